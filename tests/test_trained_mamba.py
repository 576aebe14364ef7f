"""A trained bidirectional Mamba that others made and published, rebuilt from our operators: real weights as an oracle.

``pip install --no-deps typeseg==0.2.7``: six layers over bytes that label each with its kind of text. Its own numpy
code, which shares nothing with ours, gives what is expected.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.operators import CausalConvolution, SelectiveDiagonal, bidirectional

if importlib.util.find_spec("typeseg") is None:
    pytest.skip(
        "needs the weights in the package typeseg (pip install --no-deps typeseg==0.2.7)", allow_module_level=True
    )

N_LAYERS, DT_RANK, D_STATE = 6, 16, 16


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    spec = importlib.util.find_spec("typeseg")
    assert spec is not None
    assert spec.origin is not None
    with np.load(Path(spec.origin).parent / "data" / "mamba_al.npz") as file:
        return {name.replace("__", "/"): torch.tensor(file[name]) for name in file.files}


def dense(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def norm(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}/scale"], weights[f"{name}/bias"], 1e-6)


def centred_convolution(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Four taps, of which the newest is two steps ahead: a causal convolution, read two steps late."""
    taps = weights[f"{name}/kernel"][:, 0].T.flip(1)
    y, _ = CausalConvolution(taps)(F.pad(x, (0, 0, 0, 2)))
    return y[:, 2:] + weights[f"{name}/bias"]


def logits(weights: dict[str, Tensor], tokens: Tensor, lengths: Tensor | None = None, form: str = "scan") -> Tensor:
    """tokens: (batch, length) bytes -> (batch, length, 35)"""
    h = weights["Embed_0/embedding"][tokens.clamp(max=128)]
    real = torch.ones_like(tokens[..., None]).bool()
    if lengths is not None:
        real = (torch.arange(tokens.shape[1]) < lengths[:, None]).unsqueeze(-1)
    for i in range(N_LAYERS):
        of = f"CheckpointMambaBlock1D_{i}/"
        x, z = dense(weights, of + "Dense_0", norm(weights, of + "LayerNorm_0", h)).chunk(2, -1)
        x = F.silu(centred_convolution(weights, of + "Conv_0", x * real))
        dt, B, C = dense(weights, of + "Dense_1", x).split([DT_RANK, D_STATE, D_STATE], -1)
        dt = F.softplus(dense(weights, of + "Dense_2", dt)) + 1e-4
        A = -weights[of + "A_log"].exp()
        operator = SelectiveDiagonal(dt, A, B.unsqueeze(2), C.unsqueeze(2), D=weights[of + "D"])
        if form == "scan":
            y, _ = bidirectional(operator)(x, lengths=lengths)
        else:
            flipped = SelectiveDiagonal(dt.flip(1), A, B.flip(1).unsqueeze(2), C.flip(1).unsqueeze(2), D=operator.D)
            y = operator(x, form=form)[0] + flipped(x.flip(1), form=form)[0].flip(1)
        h = h + dense(weights, of + "Dense_3", y * F.silu(z))
    return dense(weights, "Dense_0", norm(weights, "LayerNorm_0", h))


def expected(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    from typeseg._mamba_kernel import mamba_forward

    arrays = {name: value.numpy() for name, value in weights.items()}
    return torch.tensor(np.asarray(mamba_forward(np, arrays, tokens.numpy(), n_layers=N_LAYERS)))


def test_logits_of_a_trained_model(weights: dict[str, Tensor]) -> None:
    """Code and prose, one row alone and both in a padded batch."""
    page = (Path(__file__).parents[1] / "docs" / "operators.md").read_bytes()
    texts = [torch.tensor(list(page[1500:2100])), torch.tensor(list(Path(__file__).read_bytes()[600:860]))]
    want = [expected(weights, text) for text in texts]
    for form in ("scan", "recurrent"):
        got = logits(weights, texts[0].unsqueeze(0), form=form)[0]
        assert (got - want[0]).abs().max() < 2e-4 * want[0].abs().max(), form
        assert torch.equal(got.argmax(-1), want[0].argmax(-1))
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=7)
    both = logits(weights, padded, torch.tensor([len(text) for text in texts]))
    for row, text in enumerate(texts):
        assert (both[row, : len(text)] - want[row]).abs().max() < 2e-4 * want[row].abs().max()
        print(f"{len(text)} bytes: {float((both[row, : len(text)] - want[row]).abs().max()):.1e}")
