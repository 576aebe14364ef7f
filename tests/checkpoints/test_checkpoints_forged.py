"""A forged checkpoint, whose checksums are right, and folders of another kind are refused with a reason."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_examples import (
    refusal,
    rewrite_config,
    rewrite_tensors,
    tiny_model,
)
from damaged import FILES, read_all

import statewise as sw
from statewise import checkpoints
from statewise.errors import InputError


def forged(folder: Path, **fields: Any) -> str:
    rewrite_config(folder, lambda data: data.update(fields))
    return refusal(read_all, folder)


def test_an_edited_config(folder: Path) -> None:
    data = json.loads((folder / "config.json").read_text())
    data["model"]["norm_eps"] = 1e-6
    (folder / "config.json").write_text(json.dumps(data, indent=2) + "\n")
    assert "is damaged or was edited: its checksum does not match" in refusal(read_all, folder)


def test_a_newer_format(folder: Path) -> None:
    said = forged(folder, format_version=3, statewise_version="9.0")
    assert "has format_version 3, from a newer Statewise ('9.0'); this one reads up to 2. Upgrade" in said


@pytest.mark.parametrize("version", ["1", 0, -1, True, None, 1.0, [1]])
def test_a_format_that_is_none(folder: Path, version: Any) -> None:
    assert "format_version=" in forged(folder, format_version=version)


def test_a_config_of_somebody_else(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}')
    assert "the tensor backbone.embeddings.weight is missing" in refusal(sw.load, folder), "it is read as theirs"
    assert "was not written by Statewise (no format_version)" in refusal(checkpoints.read_config, folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda model: model.update(d_modle=4), "model: LanguageModelConfig has no field 'd_modle'; did you"),
        (lambda model: model.update(type="Transformer"), "model.type='Transformer' is unknown here"),
        (lambda model: model["layers"][0].update(type="Mamba9Config"), "layers.0.type='Mamba9Config' is unknown"),
        (lambda model: model.update(embedding_dropout=-0.5), "embedding_dropout=-0.5 is out of range"),
        (lambda model: model["layers"][1].update(norm="group"), "model.layers.1.norm='group' is unknown"),
        (lambda model: model.update(d_model=7), "d_model"),
        (lambda model: model.update(vocab_size="257"), "model.vocab_size='257' has the wrong type (string)"),
        (lambda model: model.update(layers=[]), "model.layers=[] is empty"),
        (lambda model: model.clear(), "model: LanguageModelConfig needs the field 'vocab_size'"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_known(folder: Path, change: Callable[[Any], None], expected: str) -> None:
    rewrite_config(folder, lambda data: change(data["model"]))
    assert expected in refusal(sw.load, folder)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"extra": 1}, "unknown field 'extra'"),
        ({"dtype": "int8"}, "dtype='int8' is unknown"),
        ({"dtype": ["float32"]}, "is unknown; use one of"),
        ({"dtype_of": 3}, "dtype_of is not an object"),
        ({"dtype_of": {"norm.weight": "float8"}}, "dtype_of.norm.weight='float8' is unknown"),
        ({"dtype": "bfloat16"}, "is float32, expected bfloat16"),
        ({"dtype_of": {"norm.weight": "float64"}}, "norm.weight is float32, expected float64"),
        ({"tokenizer": "bytes"}, "tokenizer.kind is not one of"),
        ({"tokenizer": {"kind": "words", "fingerprint": "a"}}, "tokenizer.kind is not one of"),
        ({"tokenizer": {"kind": "tokenizers", "fingerprint": 1}}, "tokenizer.fingerprint is not a string"),
        ({"tokenizer": {"kind": "bytes", "fingerprint": "a"}}, "contradict each other"),
        ({"statewise_version": 1}, "statewise_version is not a string"),
        ({"files": []}, "files is not an object"),
        ({"files": {}}, "model.safetensors is missing from files"),
        ({"files": {"model.safetensors": 3}}, "files.model.safetensors is malformed"),
        ({"files": {"model.safetensors": {"bytes": "3", "sha256": ""}}}, "files.model.safetensors is malformed"),
    ],
)
def test_fields_that_cannot_be(folder: Path, fields: dict[str, Any], expected: str) -> None:
    assert expected in forged(folder, **fields)


@pytest.mark.parametrize("size", [10**6, 10**9, 10**12, 2**63])
def test_sizes_beyond_the_tensors_are_refused_before_there_is_memory_for_them(folder: Path, size: int) -> None:
    """The checksum is right, since anybody can compute one."""
    model = json.loads((folder / "config.json").read_text())["model"]
    said = forged(folder, model={**model, "d_model": size})
    assert "its sizes make a model of" in said
    assert "model.safetensors beside it has" in said


def test_a_missing_field(folder: Path) -> None:
    rewrite_config(folder, lambda data: data.pop("dtype"))
    assert "the field 'dtype' is missing" in refusal(sw.load, folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "trainer/../../secret", "..\\secret", "trainer/.."])
def test_file_names_that_leave_the_folder(folder: Path, name: str) -> None:
    rewrite_config(folder, lambda data: data["files"].update({name: {"bytes": 1, "sha256": ""}}))
    assert f"the file name {name!r} leaves the folder" in refusal(sw.load, folder)


def test_file_names_that_are_not_known(folder: Path) -> None:
    rewrite_config(folder, lambda data: data["files"].update({"run.py": {"bytes": 1, "sha256": ""}}))
    assert "unknown file 'run.py'" in refusal(sw.load, folder)
    rewrite_config(folder, lambda data: data["files"].pop("trainer/state.json"))
    rewrite_config(folder, lambda data: data["files"].pop("run.py"))
    assert "one of the two files of trainer/ is missing" in refusal(sw.load, folder)


@pytest.mark.parametrize("name", FILES)
def test_links_out_of_the_folder(folder: Path, name: str) -> None:
    outside = folder.parent / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    assert f"{folder / name} is a link that leads out of the folder" in refusal(read_all, folder)


def test_other_links(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    sw.load(folder)
    (folder / "trainer").rename(folder.parent / "trainer")
    (folder / "trainer").symlink_to(folder.parent / "trainer")
    assert "is a link that leads out of the folder" in refusal(sw.load, folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    assert "cannot read" in refusal(sw.load, folder), "a link to itself"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t.pop("norm.weight"), "the tensor norm.weight is missing"),
        (lambda t: [t.pop(name) for name in list(t)[:2]], "is missing (and 1 more)"),
        (lambda t: t.update(extra=torch.ones(1)), "the tensor extra is unexpected"),
        (lambda t: t.update({"head.weight": t["embedding.weight"].clone()}), "the tensor head.weight is unexpected"),
        (lambda t: t.update({"norm.weight": torch.ones(9)}), "norm.weight has shape (9,), expected (8,)"),
        (lambda t: t.update({"norm.weight": torch.ones(8, 1)}), "norm.weight has shape (8, 1), expected (8,)"),
        (lambda t: t.update({"norm.weight": torch.ones(8).half()}), "norm.weight is float16, expected float32"),
        (lambda t: t.update({"norm.weight": torch.ones(8).int()}), "norm.weight is int32, expected float32"),
        (lambda t: t["norm.weight"].fill_(float("nan")), "norm.weight has 8 of 8 values that are not finite"),
        (lambda t: t["norm.weight"][2:4].fill_(float("inf")), "norm.weight has 2 of 8 values that are not finite"),
        (lambda t: t["norm.weight"][:1].fill_(-float("inf")), "norm.weight has 1 of 8 values that are not finite"),
    ],
)
def test_tensors_that_cannot_be(folder: Path, change: Callable[[Any], None], expected: str) -> None:
    rewrite_tensors(folder, change)
    assert expected in refusal(sw.load, folder)
    assert expected in refusal(checkpoints.load_into, tiny_model(1), folder)


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_under_the_name_of_the_tensors(folder: Path, legacy: bool) -> None:
    path = folder / "model.safetensors"
    torch.save({"a": Bomb()}, path, _use_new_zipfile_serialization=not legacy)
    said = refusal(sw.load, folder)
    assert f"{path} is a pickle, which can run code when it is loaded, so Statewise does not load it. Convert" in said
    rewrite_config(folder, lambda data: None)
    assert "is a pickle" in refusal(sw.load, folder)
    path.write_bytes(pickle.dumps(Bomb(), protocol=4))
    assert "is a pickle" in refusal(sw.load, folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "last.ckpt"])
def test_a_folder_of_pickles(tmp_path: Path, name: str) -> None:
    torch.save({"a": Bomb()}, tmp_path / name)
    assert f"{tmp_path / name} is a pickle that names" in refusal(sw.load, tmp_path)
    assert f"{tmp_path / name} is a pickle that names" in refusal(sw.load, tmp_path / name)


def test_a_pickle_in_the_list_of_files(folder: Path) -> None:
    rewrite_config(folder, lambda data: data["files"].update({"pytorch_model.bin": {"bytes": 1, "sha256": ""}}))
    assert "'pytorch_model.bin' is a pickle by its name" in refusal(sw.load, folder)


def test_a_header_whose_length_begins_like_a_pickle_is_no_pickle(tmp_path: Path) -> None:
    """A header of 640 bytes begins with 80 02, which are the first two bytes of a pickle."""
    from safetensors.torch import load_file, save_file

    from statewise.checkpoints.tensor_files import read_tensors

    for n in range(500, 700):
        save_file({"a": torch.ones(1)}, tmp_path / "a", {"x": "y" * n})
        if (tmp_path / "a").read_bytes()[:2] == b"\x80\x02":
            break
    assert (tmp_path / "a").read_bytes()[:2] == b"\x80\x02"
    assert torch.equal(read_tensors(tmp_path / "a")["a"], load_file(tmp_path / "a")["a"])


def test_files_that_are_no_model(tmp_path: Path) -> None:
    """Zips that are no pickles, steps that were exported, and a pipe, which nobody waits for."""
    np.savez(tmp_path / "a.npz", a=np.ones(2))
    assert "is not a model: expected a file that ends in" in refusal(sw.load, tmp_path / "a.npz")
    for name in ("step.pt2", "step.onnx"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("step/data/weights.pkl", b"")
        said = refusal(sw.load, tmp_path / name)
        assert said.endswith("is an exported step, which cannot be loaded; give the model that it was exported from")
    os.mkfifo(tmp_path / "model.safetensors")
    assert "is a pipe, a socket or a device; expected a folder or" in refusal(sw.load, tmp_path / "model.safetensors")


def test_a_name_of_the_hub_without_its_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(sw.load, "state-spaces/mamba-130m")
    assert said.endswith("if you mean the model of the Hugging Face hub, give hub:state-spaces/mamba-130m")
    (tmp_path / "runs").mkdir()
    for name in ("runs/a", "a", "a/b/c", "../a/b", str(tmp_path / "a" / "b")):
        assert refusal(sw.load, name).endswith("no such folder")


@pytest.mark.parametrize("source", [3, None, b"model"])
def test_sources_that_are_no_path(source: Any) -> None:
    with pytest.raises(
        InputError, match=r"the source of a model must be a path or hub:owner/name; got a (int|NoneType|bytes)"
    ):
        sw.load(source)
    with pytest.raises(InputError, match="null byte"):
        sw.load("a\0b")


def test_folders_of_another_kind(tmp_path: Path) -> None:
    assert "no such folder" in refusal(sw.load, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "is empty; expected a checkpoint" in refusal(sw.load, tmp_path / "empty")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    assert "has no checkpoint yet" in refusal(sw.load, tmp_path / "run")
    said = refusal(checkpoints.read_config, tmp_path / "run")
    assert "is a run folder; give one of its checkpoints" in said
    assert 'resolve(folder, "best")' in said
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a")
    assert "is not a checkpoint: it has no config.json" in refusal(sw.load, tmp_path / "text")
    for name in ("a.txt", "a.h5", "model.GGUF"):
        (tmp_path / "text" / name).write_text("a")
        said = refusal(sw.load, tmp_path / "text" / name)
        assert (
            "is not a model: expected a file that ends in .safetensors, .bin, .pt, .pth, .ckpt, .gguf, or a fol" in said
        )
    (tmp_path / "text" / "a.safetensors").write_text("a")
    assert "is a file; a checkpoint is a folder" in refusal(
        checkpoints.read_config, tmp_path / "text" / "a.safetensors"
    )
    for read in (checkpoints.read_trainer, checkpoints.read_tokenizer, checkpoints.read_config, checkpoints.resolve):
        assert "no such folder" in refusal(read, tmp_path / "nothing")
