"""GGUF of Mamba, Falcon-Mamba and Mamba-2: what it means, both ways, beside a plain recurrence and llama.cpp itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_examples import KINDS, build, read, recurrence, write

import statewise as sw
from statewise.checkpoints.convert.gguf import read_gguf
from statewise.checkpoints.convert.gguf_file import read_file, write_file
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError

TOKENS = [(7 * i * i + 3 * i) % 260 for i in range(40)]


@torch.inference_mode()
def logits(model: Any, tokens: list[int] = TOKENS) -> np.ndarray:
    """(length, vocabulary)"""
    found: np.ndarray = model(torch.tensor([tokens]))[0][0].numpy()
    return found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_file_means_what_the_model_computes(kind: str, tied: bool, tmp_path: Path) -> None:
    """By a recurrence over the file's own tensors: a round trip would prove names, not meaning."""
    model = build(kind, tied=tied)
    file = read_file(write(model, tmp_path / "model.gguf"))
    raw = {name: file.read(name).numpy() for name in file.tensors}
    assert ("output.weight" in raw) is not tied
    known = recurrence(file.metadata, raw, TOKENS)
    scale = np.abs(known).max()
    assert np.abs(logits(read(tmp_path / "model.gguf")) - known).max() < 1e-5 * scale
    assert np.abs(logits(model.double()) - known).max() < 1e-6 * scale  # ssm_a is rounded to float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(kind, tied=kind != "mamba2")
    config, tensors = read_gguf(write(model, tmp_path / "model.gguf", dtype=dtype))
    assert config == model.config
    file = read_file(tmp_path / "model.gguf")
    assert {t.type for t in file.tensors.values()} == ({"F32"} if dtype == torch.float32 else {"F32", "F16"})
    for name, tensor in stored_tensors(model).items():
        if name.endswith("A_log"):
            torch.testing.assert_close(tensors[name], tensor.detach(), rtol=1e-6, atol=1e-6)
        else:
            matrix = tensor.ndim == 2 and "convolution" not in name
            expected = tensor.detach().to(dtype if matrix else torch.float32).float()
            assert torch.equal(tensors[name], expected), name


def test_one_group_as_ggml_writes_it(tmp_path: Path) -> None:
    """ggml, and so llama-quantize, drops axes of one entry: of Mamba-2's norm the axis of the groups."""
    layer = sw.Mamba2Config(d_state=16, d_head=8)
    model = sw.LanguageModelConfig(vocab_size=260, d_model=32, layers=(layer,)).build().eval()
    file = read_file(write(model, tmp_path / "model.gguf"))
    tensors = {name: file.read(name) for name in file.tensors}
    assert tensors["blk.0.ssm_norm.weight"].shape == (1, 64)
    flat = {name: t[0] if name.endswith("ssm_norm.weight") else t for name, t in tensors.items()}
    write_file(tmp_path / "flat.gguf", file.metadata, flat)
    assert np.array_equal(logits(read(tmp_path / "flat.gguf")), logits(read(tmp_path / "model.gguf")))
    write_file(tmp_path / "wrong.gguf", file.metadata, flat | {"blk.0.ssm_norm.weight": torch.ones(64, 1)})
    with pytest.raises(CheckpointError, match=r"ssm_norm\.weight has shape \(64, 1\), expected \(1, 64\)"):
        read(tmp_path / "wrong.gguf")


def test_a_half_model_is_written_in_half_and_a_bfloat16_one_in_float32(tmp_path: Path) -> None:
    for dtype, found in ((torch.float16, "F16"), (torch.bfloat16, "F32")):
        model = build("mamba").to(dtype)
        file = read_file(write(model, tmp_path / f"{found}.gguf"))
        assert file.tensors["blk.1.ssm_in.weight"].type == found
        assert file.tensors["blk.1.ssm_conv1d.weight"].type == "F32"
        assert torch.equal(file.read("blk.1.ssm_in.weight"), model.blocks[1].mixer.in_proj.weight.float())


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_computes_what_we_compute(kind: str, tmp_path: Path) -> None:
    """Our float32 and float16 files in llama.cpp; and its own float16, bfloat16 and Q8_0 files here."""
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp, written

    model = build(kind)
    known = logits(model)[-1]
    scale = np.abs(known).max()
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-3)):
        path = write(model, tmp_path / f"{dtype}.gguf", dtype=dtype)
        found = LlamaCpp.of_file(path, 1, 64).read(TOKENS)
        assert np.abs(found - known).max() < tolerance * scale, dtype
        assert np.abs(found - logits(read(path))[-1]).max() < tolerance * scale, dtype
    for weights, stored in (("float16", "F16"), ("bfloat16", "BF16"), ("q8_0", "Q8_0")):
        path = written(model, weights)
        assert stored in {tensor.type for tensor in read_file(path).tensors.values()}
        found = LlamaCpp.of_file(path, 1, 64).read(TOKENS)
        assert np.abs(found - logits(read(path))[-1]).max() < 4e-2 * scale, weights  # it rounds the activations too


def test_load_takes_the_file(tmp_path: Path) -> None:
    model = build("falcon-mamba")
    path = write(model, tmp_path / "model.gguf")
    assert np.allclose(logits(sw.load(path)), logits(model), rtol=0, atol=1e-5)
    narrow = sw.load(path, dtype=torch.bfloat16)
    assert narrow.blocks[0].mixer.in_proj.weight.dtype == torch.bfloat16
    assert narrow.blocks[0].mixer.dynamics.A_log.dtype == torch.float32
