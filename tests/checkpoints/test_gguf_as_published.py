"""GGUF files of hybrids as llama.cpp's own converter writes them, which says more than ours; and steps of Nemotron-H
that llama.cpp does not bound."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_examples import write
from hybrid_models import build

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.gguf_file import read_file, write_file
from statewise.checkpoints.convert.headers import read_headers
from statewise.errors import CheckpointError
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.language_model import LanguageModel

# By a model: what the converter writes otherwise. Sources: conversion/base.py and conversion/granite.py of llama.cpp,
# and the metadata of the published files of Granite 4.0-H 1B and Kimi-Linear 48B
PUBLISHED: dict[str, dict[str, Any]] = {
    "granitehybrid": {
        "expert_count": 0,
        "expert_used_count": 0,
        "expert_shared_feed_forward_length": 96,
        "rope.dimension_count": 16,
        "rope.freq_base": 10_000.0,
        "vocab_size": 260,
    },
    "kimi-linear": {"attention.value_length": 16},  # the width of a head, not of what is kept for it
    "nemotron_h": {"expert_count": 0, "expert_used_count": 0, "rope.dimension_count": 16},
    "lfm2": {"expert_count": 0},
    "jamba, dense": {"expert_count": 0},
}
TOKENS = torch.tensor([[(7 * i * i + 3 * i) % 260 for i in range(24)]])


def changed(path: Path, target: Path, **keys: Any) -> Path:
    file = read_file(path)
    architecture = file.metadata["general.architecture"]
    more = {f"{architecture}.{key}": value for key, value in keys.items()}
    write_file(target, {**file.metadata, **more}, {name: file.read(name) for name in file.tensors})
    return target


@pytest.mark.parametrize("name", PUBLISHED)
@torch.no_grad()
def test_keys_of_the_converter(name: str, tmp_path: Path) -> None:
    path = write(build(name), tmp_path / "ours.gguf")
    other = changed(path, tmp_path / "theirs.gguf", **PUBLISHED[name])
    model, same = sw.load(other), sw.load(path)
    assert isinstance(model, LanguageModel)
    assert isinstance(same, LanguageModel)
    assert model.config == same.config
    assert model(TOKENS)[0].equal(same(TOKENS)[0])
    assert read_headers(other).reason is None


@pytest.mark.parametrize("name", PUBLISHED)
def test_llama_cpp_reads_them_alike(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    path = write(build(name), tmp_path / "ours.gguf")
    other = changed(path, tmp_path / "theirs.gguf", **PUBLISHED[name])
    known, found = (LlamaCpp.of_file(each, 1, 64).read(TOKENS[0].tolist()) for each in (path, other))
    assert (known == found).all()


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("granitehybrid, experts", "expert_count", 0, "is missing"),  # of the tensors: those of dense MLPs
        ("granitehybrid", "expert_count", "0", "expected an integer of at least 1"),
        ("granitehybrid", "expert_used_count", False, "expected an integer of at least 1"),
        ("kimi-linear", "expert_count", 0, "expected an integer of at least 1"),
        ("kimi-linear", "attention.value_length", 0, "expected an integer of at least 1"),
        ("kimi-linear", "attention.key_length", 16, "as attention.kv_lora_rank has it"),
    ],
)
def test_what_is_still_refused(name: str, key: str, value: Any, message: str, tmp_path: Path) -> None:
    path = write(build(name), tmp_path / "ours.gguf")
    with pytest.raises(CheckpointError, match=message):
        sw.load(changed(path, tmp_path / "theirs.gguf", **{key: value}))


@torch.no_grad()
def test_any_inner_width_is_written(tmp_path: Path) -> None:
    """transformers' config.json says it as a multiple of the model's width, a GGUF file as it is."""
    model = build("granitehybrid", mamba_n_heads=6)  # 96 of 64
    path = save_as(model, tmp_path / "model.gguf", "gguf")
    assert read_file(path).metadata["granitehybrid.ssm.inner_size"] == 96
    logits = sw.load(path)(TOKENS)[0]
    assert (logits - model(TOKENS)[0]).abs().max() < 1e-5 * logits.abs().max()
    with pytest.raises(CheckpointError, match="inner width of Mamba-2 is 96, which is not a multiple of d_model=64"):
        save_as(model, tmp_path / "folder", "transformers")


# -- step sizes --------------------------------------------------------------------------------------------------------
def nemotron(shift: float) -> LanguageModel:
    """Its step sizes are e^shift of what they were, about; what passes by the state counts less."""
    model = build("nemotron_h")
    with torch.no_grad():
        for block in model.blocks:
            if isinstance(block.config.mixer, Mamba2Config):
                mixer: Any = block.mixer
                mixer.dynamics.dt_bias.add_(shift)
                mixer.in_proj.weight[-len(mixer.dynamics.dt_bias) :] *= 0.1
                mixer.dynamics.D *= 0.1
    return model


def differs(path: Path) -> float:
    """llama.cpp's logits and ours, of the largest."""
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    with torch.no_grad():
        known = sw.load(path)(TOKENS)[0][0, -1]
    found = torch.from_numpy(LlamaCpp.of_file(path, 1, 64).read(TOKENS[0].tolist()))
    return float((found - known).abs().max() / known.abs().max())


def test_small_steps_are_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"^llama.cpp has no least step size.* of 0.001: 16 of 16 heads can") as told:
        write(nemotron(-9.0), tmp_path / "small.gguf")
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(nemotron(2.0), tmp_path / "wide.gguf")
        write(build("granitehybrid"), tmp_path / "granite.gguf")  # which has no least step


def test_the_warning_is_right(tmp_path: Path) -> None:
    """With it llama.cpp goes on otherwise, without it as we do."""
    pytest.importorskip("llama_cpp")
    with pytest.warns(UserWarning, match="no least step size"):
        write(nemotron(-9.0), tmp_path / "small.gguf")
    assert differs(tmp_path / "small.gguf") > 0.03
    write(nemotron(2.0), tmp_path / "wide.gguf")
    assert differs(tmp_path / "wide.gguf") < 0.01
