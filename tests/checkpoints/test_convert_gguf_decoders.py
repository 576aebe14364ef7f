"""GGUF of GPT-2 and GPT-NeoX: round trips, llama.cpp's logits beside ours, and what the format does not hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_examples import read, write

import statewise as sw
from statewise.checkpoints.convert.gguf import read_gguf
from statewise.checkpoints.convert.gguf_file import read_file, write_file
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError

TOKENS = [(7 * i * i + 3 * i) % 260 for i in range(40)]
HEADS = sw.AttentionConfig(n_heads=4, positions=None, bias=True)
GPT2 = sw.BlockConfig(mixer=HEADS, mlp=sw.MLPConfig(activation="gelu_tanh"), norm="layer")
PARTLY = replace(HEADS, positions="rotary", d_rotary=8, rotary_base=500.0)
NEOX = sw.BlockConfig(mixer=PARTLY, mlp=sw.MLPConfig(expand=2.5), norm="layer", placement="parallel")
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"layers": (GPT2,) * 2, "max_positions": 48},
    "gpt2, untied": {"layers": (GPT2,) * 2, "max_positions": 48, "tie_embeddings": False},
    "gptneox": {"layers": (NEOX,) * 2, "tie_embeddings": False},
    "gptneox, one after the other": {"layers": (replace(NEOX, placement="pre"),) * 2, "tie_embeddings": False},
}


def build(name: str, **options: Any) -> sw.LanguageModel:
    torch.manual_seed(0)
    fields = {"vocab_size": 260, "d_model": 64, "norm": "layer"} | MODELS[name] | options
    model = sw.LanguageModelConfig(**fields).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    return model


@torch.inference_mode()
def logits(model: Any) -> np.ndarray:
    found: np.ndarray = model(torch.tensor([TOKENS]))[0][0].numpy()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(name)
    config, tensors = read_gguf(write(model, tmp_path / "model.gguf", dtype=dtype))
    assert config == model.config
    file = read_file(tmp_path / "model.gguf")
    assert file.metadata["general.architecture"] == name.partition(",")[0]
    for key, tensor in stored_tensors(model).items():
        matrix = tensor.ndim == 2 and key != "positions.weight"
        assert torch.equal(tensors[key], tensor.detach().to(dtype if matrix else torch.float32).float()), key
    if dtype == torch.float32:
        assert np.array_equal(logits(read(tmp_path / "model.gguf")), logits(model))


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_computes_what_we_compute(name: str, tmp_path: Path) -> None:
    """To the rounding of its GELU, a table of the tanh form in float16. Its own files are read here as well."""
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp, written

    model = build(name)
    layers = [replace(block, mlp=replace(block.mlp, activation="gelu_tanh")) for block in model.config.blocks]
    as_theirs = replace(model.config, layers=tuple(layers)).build().eval()
    as_theirs.load_state_dict(model.state_dict())
    known = logits(as_theirs)[-1]
    scale = np.abs(known).max()
    path = write(model, tmp_path / "model.gguf")
    found = LlamaCpp.of_file(path, 1, 48).read(TOKENS)
    assert np.abs(found - known).max() < 2e-3 * scale
    assert np.abs(found - logits(model)[-1]).max() < 2e-2 * scale
    assert found.argmax() == known.argmax()
    for weights in ("float16", "q8_0"):
        path = written(model, weights)
        found = LlamaCpp.of_file(path, 1, 48).read(TOKENS)
        assert np.abs(found - logits(read(path))[-1]).max() < 4e-2 * scale, weights


def test_keys_that_may_be_missing(tmp_path: Path) -> None:
    """The base of the rotary positions is 10,000 where nothing is said, and the number of key heads that of all."""
    model = build("gptneox", layers=(replace(NEOX, mixer=replace(PARTLY, rotary_base=10_000.0)),))
    file = read_file(write(model, tmp_path / "model.gguf"))
    tensors = {name: file.read(name) for name in file.tensors}
    metadata = {key: value for key, value in file.metadata.items() if key != "gptneox.rope.freq_base"}
    write_file(tmp_path / "less.gguf", metadata | {"gptneox.attention.head_count_kv": 4}, tensors)
    assert read_gguf(tmp_path / "less.gguf")[0] == model.config
    for key, value, message in (
        ("gptneox.attention.head_count_kv", 2, "expected as many as there are heads, 4"),
        ("gptneox.attention.head_count", 5, "expected a divisor"),
        ("gptneox.rope.scaling.type", "yarn", "is unknown, and may change the results"),
        ("gptneox.block_count", 3, "but there are tensors for 1 layers"),
    ):
        write_file(tmp_path / f"{key}.gguf", file.metadata | {key: value}, tensors)
        with pytest.raises(CheckpointError, match=message):
            read_gguf(tmp_path / f"{key}.gguf")


def test_what_llama_cpp_asks_for_is_not_made_up(tmp_path: Path) -> None:
    """A gptneox has a head of its own and says how its blocks are laid out; one without is damaged."""
    file = read_file(write(build("gptneox"), tmp_path / "model.gguf"))
    tensors = {name: file.read(name) for name in file.tensors}
    head, how = "output.weight", "gptneox.use_parallel_residual"
    write_file(tmp_path / "head.gguf", file.metadata, {name: t for name, t in tensors.items() if name != head})
    write_file(tmp_path / "how.gguf", {key: v for key, v in file.metadata.items() if key != how}, tensors)
    for name, missing in (("head", head), ("how", how)):
        with pytest.raises(CheckpointError, match=missing):
            read_gguf(tmp_path / f"{name}.gguf")


def test_another_number_of_positions_is_refused(tmp_path: Path) -> None:
    file = read_file(write(build("gpt2"), tmp_path / "model.gguf"))
    tensors = {name: file.read(name) for name in file.tensors}
    write_file(tmp_path / "wrong.gguf", file.metadata | {"gpt2.context_length": 10**9}, tensors)
    with pytest.raises(CheckpointError, match=r"position_embd.weight has shape \(48, 64\)"):
        read_gguf(tmp_path / "wrong.gguf")


UNWRITTEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "tied": ("gptneox", {"tie_embeddings": True}, "tie_embeddings=True"),
    "offset": (
        "gpt2",
        {"position_offset": 2},
        "^GGUF has no OPT, which this model is, only GPT-2 and GPT-NeoX; write it as 'transformers'$",
    ),
    "narrow": ("gpt2", {"d_embedding": 8}, "d_embedding=8"),
    "norm": ("gpt2", {"norm": None}, "norm=None"),
    "exact GELU": ("gpt2", {"layers": (replace(GPT2, mlp=sw.MLPConfig()),)}, "activation='gelu'"),
    "window": ("gpt2", {"layers": (replace(GPT2, mixer=replace(HEADS, window=4)),)}, "window=4"),
    "scale": ("gpt2", {"layers": (replace(GPT2, mixer=replace(HEADS, scale=1.0)),)}, "scale=1.0"),
    "GPT-Neo": (
        "gpt2",
        {"layers": (replace(GPT2, mixer=replace(HEADS, bias=False, output_bias=True, scale=1.0)),)},
        "^GGUF has no GPT-Neo, which this model is, only GPT-2 and GPT-NeoX; write it as 'transformers'$",
    ),
    "no bias": ("gpt2", {"layers": (replace(GPT2, mixer=replace(HEADS, bias=False)),)}, "bias=False"),
    "no mlp": ("gpt2", {"layers": (HEADS,)}, "norm='rms'"),
    "no mlp, normed": ("gpt2", {"layers": (replace(GPT2, mlp=None),)}, "mlp=None"),
    "groups": ("gptneox", {"layers": (replace(NEOX, mixer=replace(PARTLY, n_kv_heads=2)),)}, "n_kv_heads=2"),
    "parallel": ("gpt2", {"layers": (replace(GPT2, placement="parallel"),)}, "placement='parallel'"),
    "hybrid": ("gpt2", {"layers": (GPT2, sw.MambaConfig())}, "mixer='MambaConfig'"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_is_not_written(case: str, tmp_path: Path) -> None:
    name, options, message = UNWRITTEN[case]
    with pytest.raises(CheckpointError, match=message):
        write(build(name, **options), tmp_path / "model.gguf")
