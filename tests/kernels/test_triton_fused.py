"""The fused kernels in Triton, under its interpreter, against their definitions in float64."""

from __future__ import annotations

import importlib

import pytest
import torch
from fused_kernels import CASES, convolution, gated, loss, norm
from interpreted import TOLERANCE, compare, needs_interpreter

from statewise.kernels.gpu import module
from statewise.kernels.linear_cross_entropy.pytorch import NO_TARGET
from statewise.kernels.linear_cross_entropy.pytorch import rows as by_pytorch
from statewise.kernels.rms_norm import rms_norm, rms_norm_reference

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory", "in_triton")]

SHARED = [
    "convolution, trailing axis, packed",
    "convolution, one step",
    "convolution, no step",
    "convolution, no row",
    "convolution, more taps than steps",
    "convolution, one tap",
    *(name for name in CASES if name.split(",")[0] in ("norm", "gated norm", "loss") and name != "norm, odd"),
]
OWN = {
    **{name: CASES[name] for name in SHARED},
    "convolution, several programs": convolution(1, 20, 130, 3, packed=True, silu=True, bias=True),
    "norm, wider than a block": norm(3, 1100),
    "norm, odd, wider than a program": norm(3, 4101),
    "norm, whole vectors, wider than most": norm(3, 5000),
    "norm, several shares": norm(30, 37),
    "loss, a row of several blocks": loss(4, 3, 20000, "mean"),
    "loss, a whole row": loss(3, 3, 1000, "mean"),
    "gated norm, groups wider than a block": gated(3, 2200, n_groups=2, norm_before_gate=False),
    "gated norm, odd, wider than a program": gated(3, 2049, n_groups=1, norm_before_gate=False),
    "gated norm, norm first, wider than a block": gated(3, 1025, n_groups=1, norm_before_gate=True),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OWN)
def test_equal_to_the_definition(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("statewise.kernels.rms_norm.triton"), "_SHARES", 1)
    torch.manual_seed(0)
    fast, definition, inputs = OWN[name](dtype)
    compare(fast, definition, inputs, TOLERANCE[dtype])


@pytest.mark.parametrize("vocab", [7, 600, 5000])
def test_losses_of_logits_that_are_no_numbers(vocab: int) -> None:
    """As PyTorch has them; a target outside the vocabulary makes NaN, and a token without one has none."""
    logits = torch.linspace(-90, 90, 7 * vocab).sin().mul(1000).view(7, vocab)
    logits[0], logits[1, 0], logits[2, 1], logits[3, 2:] = -torch.inf, torch.inf, torch.nan, -torch.inf
    targets = torch.tensor([0, 1, 2, 0, NO_TARGET, vocab, -1])
    scales = torch.linspace(1, 2, 7)
    slope, wanted = logits.clone(), logits.clone()
    rows = module("linear_cross_entropy").rows
    losses = rows(slope, targets, scales)
    want = by_pytorch(wanted[:5], targets[:5], scales[:5])
    torch.testing.assert_close(losses[:5], want, equal_nan=True)
    torch.testing.assert_close(slope[:5], wanted[:5], equal_nan=True)
    assert losses[5:].isnan().all()
    assert slope[5:].isnan().all()
    torch.testing.assert_close(rows(logits, targets, None), losses, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", [300, 9000])
def test_norms_without_an_epsilon(width: int) -> None:
    """Rows that a program has behind the last are zeros, whose norm would be infinite."""
    x, weight = torch.randn(3, width).requires_grad_(), torch.randn(width).requires_grad_()
    compare(lambda *m: rms_norm(*m, eps=0.0), lambda *m: rms_norm_reference(*m, eps=0.0), [x, weight], 1e-5)
