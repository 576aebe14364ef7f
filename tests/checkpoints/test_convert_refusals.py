"""Published files that are refused: pickles that would run code, what does not fit, what is damaged."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import refusal
from forked_programs import ran
from published_folder import build_model, publish, replaced, same_logits, weights_of
from safetensors.torch import save_file

import statewise as sw
from statewise.errors import InputError


@pytest.fixture
def model() -> sw.LanguageModel:
    return build_model()


@pytest.fixture
def folder(model: sw.LanguageModel, tmp_path: Path) -> Path:
    return publish(model, tmp_path)


class Creates:
    """Creates a file where it is unpickled by a reader that runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.ckpt"])
def test_a_pickle_that_would_run_code(folder: Path, tmp_path: Path, name: str, legacy: bool) -> None:
    made = tmp_path / "made"
    content = {**weights_of(folder), "x": Creates(made)}
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / name, _use_new_zipfile_serialization=not legacy)
    said = refusal(sw.load, folder)
    assert f"{folder / name} is a pickle that names" in said
    assert "open, which could run code; none of it was run" in said
    assert not made.exists()
    (folder / name).write_bytes(pickle.dumps(content["x"]))
    refusal(sw.load, folder)
    assert not made.exists()
    torch.load(_saved(tmp_path, content["x"]), weights_only=False)
    assert made.exists(), "and so the pickle is one"


def _saved(tmp_path: Path, content: Any) -> Path:
    torch.save(content, tmp_path / "alone.pt")
    return tmp_path / "alone.pt"


def test_the_environment_does_not_make_pickles_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    made = folder / "made"
    replaced(folder, "model.pt", {"x": Creates(made)})
    refusal(sw.load, folder)
    assert not made.exists()


def test_files_that_hold_something_else(folder: Path) -> None:
    assert "'epoch' is a int; expected a tensor" in refusal(sw.load, replaced(folder, "m.pt", {"epoch": 3}))
    torch.save([1], folder / "m.pt")
    assert "contains a list; expected a dict of tensors by name" in refusal(sw.load, folder)
    torch.save({}, folder / "m.pt")
    assert "contains no tensors" in refusal(sw.load, folder)
    (folder / "m.pt").write_bytes(b"no file of torch's")
    assert "is not a file of torch.save that can be read" in refusal(sw.load, folder)
    torch.save({"a": torch.ones(2).to(torch.float8_e5m2)}, folder / "m.pt")
    assert "a is float8_e5m2, which Statewise does not read" in refusal(sw.load, folder)


def test_objects_of_lightning_are_read_without_lightning(tmp_path: Path) -> None:
    """A file that names omegaconf's classes, made by a process in which there are such classes."""
    program = (
        "import sys, types, torch\n"
        "module = types.ModuleType('omegaconf.dictconfig'); sys.modules['omegaconf'] = types.ModuleType('omegaconf')\n"
        "class DictConfig:\n"
        "    def __init__(self, **content): self.content = content\n"
        "    def __getstate__(self): return {'_content': self.content, '_parent': None}\n"
        "DictConfig.__module__, module.DictConfig = module.__name__, DictConfig\n"
        "sys.modules[module.__name__] = module\n"
        "torch.save({'pytorch-lightning_version': '1.5', 'state_dict': {'model.a': torch.ones(2)},\n"
        "            'hyper_parameters': {'model': DictConfig(d_model=8, layer=DictConfig(name='s4'))}}, sys.argv[1])\n"
    )
    path = tmp_path / "a.ckpt"
    assert ran(["-c", program, path]).returncode == 0
    from statewise.checkpoints.convert.source import find_source
    from statewise.checkpoints.convert.weights import read_weights

    config, tensors = read_weights(find_source(path))
    assert config["pytorch-lightning_version"] == "1.5"
    assert config["hyper_parameters"] == {"model": {"d_model": 8, "layer": {"name": "s4"}}}
    assert torch.equal(tensors["model.a"], torch.ones(2))


def test_data_of_lightning_that_holds_itself(tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    settings["x"] = settings
    content = {"pytorch-lightning_version": "1.5", "state_dict": {"a": torch.ones(2)}, "hyper_parameters": settings}
    torch.save(content, tmp_path / "a.ckpt")
    assert "a.ckpt: its hyper_parameters are nested too deeply" in refusal(sw.load, tmp_path / "a.ckpt")


def test_a_folder_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("statewise.checkpoints.convert.source.os.listdir", refuse)
    assert refusal(sw.load, folder).startswith(f"cannot read {folder}: Permission denied")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_unknown_architecture(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    said = refusal(sw.load, folder)
    assert "has an unknown architecture: its config says 'llama', and its tensors are backbone.embedding" in said
    for known in ("mamba_ssm", "transformers", "h3", "gguf"):
        assert known in said
    save_file({"a": torch.ones(1)}, tmp_path / "a.safetensors")
    assert "there is no config.json beside it, and its tensors are a." in refusal(sw.load, tmp_path / "a.safetensors")


def test_tensors_that_do_not_fit(folder: Path) -> None:
    weights = weights_of(folder)
    name = "backbone.layers.0.mixer.D"

    def said(change: dict[str, torch.Tensor]) -> str:
        save_file(change, folder / "model.safetensors")
        return refusal(sw.load, folder)

    assert f"the tensor {name} is missing" in said({n: t for n, t in weights.items() if n != name})
    assert "the tensor b does not belong to this architecture" in said(weights | {"b": torch.ones(1)})
    assert "of shape (3,), expected (32,)" in said(weights | {name: torch.ones(3)})
    assert "values that are not finite" in said(weights | {name: torch.full((32,), torch.nan)})


def test_several_models_in_a_folder(folder: Path, model: sw.LanguageModel) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    assert "contains several models, a.safetensors, b.safetensors; give one" in refusal(sw.load, folder)
    assert same_logits(sw.load(folder / "b.safetensors"), model)


def test_a_file_of_our_own_checkpoint(model: sw.LanguageModel, tmp_path: Path) -> None:
    sw.save(model, tmp_path / "ours")
    assert "is part of a checkpoint of Statewise; give its folder" in refusal(
        sw.load, tmp_path / "ours" / "model.safetensors"
    )


def test_a_revision_of_a_path(folder: Path) -> None:
    with pytest.raises(InputError, match="needs a hub name"):
        sw.load(folder, revision="main")


NAME = "backbone.layers.0.mixer.conv1d.bias"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            NAME,
            torch.zeros(32, dtype=torch.complex64),
            "conv1d.bias is complex64, which Statewise does not read; convert the weights",
        ),
        (
            NAME,
            torch.zeros(32, dtype=torch.int8),
            "conv1d.bias is int8, perhaps of a quantisation, which Statewise does not read",
        ),
        ("extra\nweight", torch.zeros(2), "'extra\\nweight' is not a tensor name"),
    ],
)
def test_tensors_that_are_no_weights(folder: Path, name: str, tensor: torch.Tensor, message: str) -> None:
    save_file(weights_of(folder) | {name: tensor}, folder / "model.safetensors")
    assert message in refusal(sw.load, folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": ["mamba"]}, "its config says ['mamba']"),
        ({"model_type": {"a": 1}}, "its config says {'a': 1}"),
        ({"hidden_size": 10**9, "intermediate_size": 2 * 10**9}, "has shape (16, 16), expected (16, 1000000000)"),
        ({"state_size": 10**30}, "state_size has 31 digits; expected at most"),
        ({"state_size": 10**9, "expand": 10**9, "intermediate_size": None}, "its sizes make a model of"),
        ({"intermediate_size": 16 * 10**9}, "intermediate_size has 11 digits"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000, but there are tensors for 2 layers"),
    ],
)
def test_a_config_of_other_sizes_or_kinds(folder: Path, fields: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    assert message in refusal(sw.load, folder)


def test_a_link_to_itself(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    assert "is a broken link" in refusal(sw.load, folder)


@pytest.mark.parametrize("shard", ["a" * 5000, "a\nb.safetensors", "a\0b.safetensors"])
def test_names_of_shards_that_are_none(folder: Path, shard: str) -> None:
    index = {"weight_map": dict.fromkeys(weights_of(folder), shard)}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not the name of a shard" in refusal(sw.load, folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cos\nsystem\n(S'exit 1'\ntR.", "names os.system, which could run code; none of it was run"),
        (pickle.dumps(subprocess.run), "names subprocess.run, which could run code"),
        (b"", "it is empty"),
        (b"{}", "it is damaged, cut short, or something else"),
        (b"PK\x03\x04" + bytes(99), "it is damaged or cut short (a zip without its end)"),
    ],
)
def test_pickles_are_refused_in_our_own_words(folder: Path, content: bytes, message: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.pt").write_bytes(content)
    said = refusal(sw.load, folder)
    assert message in said
    assert "weights_only" not in said


@pytest.mark.parametrize("key", [3, ("a", 1), None])
@pytest.mark.parametrize("sharded", [False, True])
def test_keys_that_are_no_names(folder: Path, key: Any, sharded: bool) -> None:
    replaced(folder, "model.bin", {key: torch.ones(1), "a": torch.ones(1)})
    if sharded:
        (folder / "model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "model.bin"}}))
    assert f"{folder / 'model.bin'}: a key is {key!r}, expected the names of tensors" in refusal(sw.load, folder)


def test_a_tar_of_an_old_pytorch(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with tarfile.open(folder / "model.pt", "w") as file:
        file.add(folder / "config.json", "pickle")
    assert "it is a tar, as PyTorch wrote before 0.2; none of it was run" in refusal(sw.load, folder)


def test_a_config_without_weights_and_one_that_is_no_object(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text("[1]")
    assert "config.json does not contain a JSON object" in refusal(sw.load, folder)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").unlink()
    assert "there are no weights beside it" in refusal(sw.load, folder)
