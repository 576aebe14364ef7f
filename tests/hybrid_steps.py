"""A small hybrid's loss and gradients, on any device and by any path: what tests on CUDA compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import statewise as sw

VOCABULARY = 64
LAYERS = (
    sw.BlockConfig(mixer=sw.Mamba2Config(d_state=16, d_head=32), mlp=sw.MLPConfig(expand=2)),
    sw.AttentionConfig(n_heads=2),
)


def hybrid(device: str, dtype: torch.dtype = torch.float32, *more: sw.MambaConfig) -> sw.LanguageModel:
    """The same parameters on every device: they are drawn on the CPU."""
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=64, layers=(*LAYERS, *more))
    return config.build().to(device, dtype)


def text(device: str, seed: int = 0) -> Tensor:
    """Long enough that attention is the fused one, and that the scans have several chunks."""
    return torch.randint(VOCABULARY, (2, 97), generator=torch.Generator().manual_seed(seed)).to(device)


def loss_of(read: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """read: tokens -> logits"""
    return F.cross_entropy(read(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


def loss_and_gradients(
    model: sw.LanguageModel, tokens: Tensor, read: Callable[[Tensor], Tensor] | None = None
) -> list[Tensor]:
    loss = loss_of(read or (lambda ids: model(ids)[0]), tokens)
    return [loss.detach(), *torch.autograd.grad(loss, [*model.parameters()])]


def assert_near(got: Sequence[Tensor], want: Sequence[Tensor], tolerance: float) -> None:
    """The losses, and each gradient by its size. One that is small beside the others is what rounding leaves of sums:
    it may be off by as much as the tolerance says of a twentieth of the largest."""
    assert all(m.isfinite().all() for m in (*got, *want))
    torch.testing.assert_close(got[0].double(), want[0].double(), atol=0, rtol=tolerance)
    sizes = [float(m.double().norm()) for m in want[1:]]
    off = [float((g.double() - w.double()).norm()) for g, w in zip(got[1:], want[1:])]
    wrong = [(i, a, b) for i, (a, b) in enumerate(zip(off, sizes)) if a > tolerance * max(b, max(sizes) / 20)]
    assert not wrong, f"number, difference and size of gradients: {wrong}"
