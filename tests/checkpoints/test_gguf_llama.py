"""llama.cpp beside us: files of our writer continue with the same tokens, and its own quantised files are read here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_examples import build as build_recurrent
from gguf_examples import write

import statewise as sw
from statewise.checkpoints.convert.gguf_file import read_file
from statewise.models.language_model import LanguageModel

pytest.importorskip("llama_cpp")
from statewise.benchmark.peers import llama_cpp as peer

TOKENS = [(7 * i * i + 3 * i) % 260 for i in range(24)]
WIDE = 256  # a block of the K types
# What llama.cpp rounds the inputs of quantised products to moves its logits by this share of the largest
ROUNDING = {"F32": 1e-5, "F16": 2e-3, "BF16": 2e-2}


def attention(kind: str) -> LanguageModel:
    """GPT-2, or GPT-NeoX with the activation that llama.cpp computes it with."""
    torch.manual_seed(0)
    positions = None if kind == "gpt2" else "rotary"
    mixer = sw.AttentionConfig(n_heads=4, positions=positions, bias=True)
    mlp = sw.MLPConfig(activation="gelu_tanh" if kind == "gpt2" else "gelu")
    block = sw.BlockConfig(mixer=mixer, mlp=mlp, norm="layer", placement="pre" if kind == "gpt2" else "parallel")
    config = sw.LanguageModelConfig(
        vocab_size=260,
        d_model=WIDE,
        layers=(block,) * 2,
        norm="layer",
        max_positions=48 if kind == "gpt2" else None,
        tie_embeddings=kind == "gpt2",
    )
    model = config.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    return model


def built(kind: str) -> LanguageModel:
    return attention(kind) if kind.startswith("gpt") else build_recurrent(kind, d_model=WIDE)


@torch.inference_mode()
def logits(model: LanguageModel) -> np.ndarray:
    """After the last of the tokens."""
    found: np.ndarray = model(torch.tensor([TOKENS]))[0][0, -1].numpy()
    return found


def loaded(path: Path) -> LanguageModel:
    model = sw.load(path)
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize("stored", ["F32", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("kind", ["mamba", "falcon-mamba", "mamba2", "gpt2", "gptneox"])
def test_the_same_greedy_tokens(kind: str, stored: str, tmp_path: Path) -> None:
    """Where the two likeliest tokens are no closer than what llama.cpp rounds away: there either may be written."""
    path = write(built(kind), tmp_path / "model.gguf", type=stored)
    found, model = peer.LlamaCpp.of_file(path, 1, 48).generate(24), loaded(path)
    with torch.inference_mode():
        known = model(torch.tensor([[0, *found[:-1]]]))[0][0]
    scale = float(known.abs().max())
    tolerance = (2e-3 if kind.startswith("gpt") else 1e-4) if stored == "F32" else 4e-2
    lost = known.amax(1) - known[torch.arange(24), torch.tensor(found)]
    assert (lost <= tolerance * scale).all()
    if stored == "F32":
        ours = [int(t.ids) for t in sw.generate(model, [0], max_new_tokens=24, temperature=0, document_token=259)]
        assert ours == found


@pytest.mark.parametrize("stored", ["F16", "BF16", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ2_0", "TQ1_0"])
def test_every_type_that_we_write_opens(stored: str, tmp_path: Path) -> None:
    path = write(built("mamba"), tmp_path / "model.gguf", type=stored)
    found, known = peer.LlamaCpp.of_file(path, 1, 48).read(TOKENS), logits(loaded(path))
    assert np.abs(found - known).max() < ROUNDING.get(stored, 5e-2) * np.abs(known).max()


OWN = {"q4_k": "Q4_K_M", "q5_k": "Q5_K_M", "q6_k": "Q6_K", "q3_k": "Q3_K_M", "q2_k": "Q2_K", "iq4_xs": "IQ4_XS"}
OWN |= {"iq4_nl": "IQ4_NL", "iq3_s": "IQ3_S"}


@pytest.mark.parametrize("kind", ["mamba", "gpt2"])
@pytest.mark.parametrize("weights", OWN)
def test_files_that_llama_cpp_quantised(weights: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Widened, and with its own integers in the step."""
    monkeypatch.setitem(peer.TYPES, weights, f"MOSTLY_{OWN[weights]}")
    path = peer.written(built(kind), weights)
    assert weights.upper() in {tensor.type for tensor in read_file(path).tensors.values()}
    found, known = peer.LlamaCpp.of_file(path, 1, 48).read(TOKENS), logits(loaded(path))
    scale = np.abs(known).max()
    assert np.abs(found - known).max() < 5e-2 * scale
    kept = sw.load(path, keep_quantised=True)
    assert isinstance(kept, LanguageModel)
    assert np.abs(logits(kept) - known).max() < 1e-5 * scale
