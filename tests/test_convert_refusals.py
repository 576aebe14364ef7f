"""Published files that are refused: pickles that would run code, what does not fit, what is damaged."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import refusal
from safetensors.torch import load_file, save_file

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.errors import InputError

CONFIG = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.MambaConfig(d_state=4),) * 2)


@pytest.fixture
def model() -> sw.LanguageModel:
    torch.manual_seed(0)
    return CONFIG.build().eval()


@pytest.fixture
def folder(model: sw.LanguageModel, tmp_path: Path) -> Path:
    """A published folder: safetensors and config.json."""
    return save_as(model, tmp_path / "published", "transformers")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def replaced(folder: Path, name: str, content: Any) -> Path:
    """The folder with its weights in a file of torch.save instead."""
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / name)
    return folder


def same_logits(one: Any, other: sw.LanguageModel) -> bool:
    tokens = torch.arange(40)[None] % 16
    return torch.equal(one(tokens)[0], other(tokens)[0])


# -- pickles -----------------------------------------------------------------------------------------------------------


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
    assert "open, which would run code; nothing of it was run" in said
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
    assert "'epoch' is a int, expected tensors by name" in refusal(sw.load, replaced(folder, "m.pt", {"epoch": 3}))
    torch.save([1], folder / "m.pt")
    assert "holds a list, expected tensors by name" in refusal(sw.load, folder)
    torch.save({}, folder / "m.pt")
    assert "holds no tensors" in refusal(sw.load, folder)
    (folder / "m.pt").write_bytes(b"no file of torch's")
    assert "is not a file of torch.save that can be read" in refusal(sw.load, folder)
    torch.save({"a": torch.ones(2).to(torch.float8_e5m2)}, folder / "m.pt")
    assert "a is float8_e5m2, which is not read" in refusal(sw.load, folder)


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
    subprocess.run([sys.executable, "-c", program, path], check=True)
    from statewise.checkpoints.convert.source import find_source
    from statewise.checkpoints.convert.weights import read_weights

    config, tensors = read_weights(find_source(path))
    assert config["pytorch-lightning_version"] == "1.5"
    assert config["hyper_parameters"] == {"model": {"d_model": 8, "layer": {"name": "s4"}}}
    assert torch.equal(tensors["model.a"], torch.ones(2))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_unknown_architecture(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    said = refusal(sw.load, folder)
    assert "is of an unknown architecture: its config says 'llama', and its tensors are backbone.embedding" in said
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
    assert "the tensor b is not one of this architecture" in said(weights | {"b": torch.ones(1)})
    assert "of shape (3,), expected (32,)" in said(weights | {name: torch.ones(3)})
    assert "values that are not finite" in said(weights | {name: torch.full((32,), torch.nan)})


def test_several_models_in_a_folder(folder: Path, model: sw.LanguageModel) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    assert "holds several models, a.safetensors, b.safetensors; give one" in refusal(sw.load, folder)
    assert same_logits(sw.load(folder / "b.safetensors"), model)


def test_a_file_of_our_own_checkpoint(model: sw.LanguageModel, tmp_path: Path) -> None:
    sw.save(model, tmp_path / "ours")
    assert "is part of a checkpoint of Statewise; give its folder" in refusal(
        sw.load, tmp_path / "ours" / "model.safetensors"
    )


def test_a_revision_of_a_path(folder: Path) -> None:
    with pytest.raises(InputError, match="belongs to a name of the hub"):
        sw.load(folder, revision="main")
