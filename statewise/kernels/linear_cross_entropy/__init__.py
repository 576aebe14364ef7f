"""The cross-entropy of a linear layer over a vocabulary, without keeping its logits, as differentiable operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.arguments import Sizes
from statewise.kernels.batching import whole
from statewise.kernels.linear_cross_entropy.blocks import losses_and_gradients
from statewise.kernels.linear_cross_entropy.pytorch import NO_TARGET
from statewise.kernels.linear_cross_entropy.reference import linear_cross_entropy_reference
from statewise.kernels.registration import register, saved
from statewise.kernels.stored import refuse_unreal
from statewise.precision import full_precision

__all__ = ["linear_cross_entropy", "linear_cross_entropy_reference"]

_TAKES = {"x": "n d: floating", "weight": "vocab d: as x", "targets": "n: integer"}


def _no_vocabulary(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    return None if sizes["vocab"] else "a vocabulary; got a weight without rows"


def _summed(
    x: Tensor, weight: Tensor, targets: Tensor, coefficients: Tensor, gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sum(coefficients * losses), the losses, and where asked the gradients of the sum, taken on the way."""
    found = losses_and_gradients(x, weight, targets, coefficients if gradients else None)
    losses, grad_x, grad_weight = found
    return torch.dot(losses, coefficients), losses, grad_x, grad_weight


def _fake_summed(
    x: Tensor, weight: Tensor, targets: Tensor, coefficients: Tensor, gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    full = full_precision(x.dtype)
    total, losses = x.new_empty((), dtype=full), x.new_empty(x.shape[0], dtype=full)
    if not gradients:
        return total, losses, x.new_empty(0), weight.new_empty(0)
    return total, losses, x.new_empty(x.shape), weight.new_empty(weight.shape)


def _setup_summed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, targets, coefficients, ctx.gradients = inputs
    ctx.save_for_backward(x, weight, targets, coefficients, *output[1:])
    ctx.set_materialize_grads(False)


def _backward_summed(ctx: Any, grad: Tensor | None, *others: Tensor | None) -> tuple[Any, ...]:
    *given, losses, grad_x, grad_weight = ctx.saved_tensors
    if any(g is not None for g in others) or not ctx.gradients:
        return _second(tuple(given), grad, *others)
    if grad is None:
        return None, None, None, None, None
    for_x, for_weight, _, for_coefficients, _ = ctx.needs_input_grad
    return (
        grad_x * grad.to(grad_x.dtype) if for_x else None,
        grad_weight * grad.to(grad_weight.dtype) if for_weight else None,
        None,
        losses * grad if for_coefficients else None,
        None,
    )


def _second(
    given: tuple[Tensor, ...],
    grad: Tensor | None,
    grad_losses: Tensor | None,
    grad_grad_x: Tensor | None,
    grad_grad_weight: Tensor | None,
) -> tuple[Any, ...]:
    """Derivatives also of the losses and of the gradients that are outputs, through the definition: rare."""
    x, weight, targets, coefficients = given
    dtype = coefficients.dtype
    with torch.enable_grad():
        leaves = [m.detach().to(dtype).requires_grad_() for m in (x, weight, coefficients)]
        losses = linear_cross_entropy_reference(leaves[0], leaves[1], targets, NO_TARGET)
        total = torch.dot(losses, leaves[2])
        first = torch.autograd.grad(total, leaves[:2], create_graph=True)
        pairs = zip((total, losses, *first), (grad, grad_losses, grad_grad_x, grad_grad_weight))
        outputs = [(y, g.to(dtype)) for y, g in pairs if g is not None]
        second = torch.autograd.grad([y for y, _ in outputs], leaves, [g for _, g in outputs], materialize_grads=True)
    dx, dweight, dcoefficients = (s.to(m.dtype) for s, m in zip(second, (x, weight, coefficients)))
    return dx, dweight, None, dcoefficients, None


def _each(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return losses_and_gradients(x, weight, targets, None)[0]


def _backward_each(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """The logits are made again: their gradients need the losses' weights, which were not known before."""
    _, _, grad_x, grad_weight = _linear_cross_entropy_sum(*saved(ctx), grad, True)
    return grad_x, grad_weight, None


_linear_cross_entropy_sum = register(
    "linear_cross_entropy_sum",
    "Tensor x, Tensor weight, Tensor targets, Tensor coefficients, bool gradients",
    _summed,
    takes={**_TAKES, "coefficients": "n: floating"},
    gives=dict.fromkeys(("total", "losses", "grad_x", "grad_weight"), "n: full x"),
    needs=_no_vocabulary,
    fake=_fake_summed,
    setup_context=_setup_summed,
    backward=_backward_summed,
    is_projection=True,
)
_linear_cross_entropy = register(
    "linear_cross_entropy",
    "Tensor x, Tensor weight, Tensor targets",
    _each,
    takes=_TAKES,
    needs=_no_vocabulary,
    gives={"losses": "n: full x"},
    backward=_backward_each,
    is_projection=True,
)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """The cross-entropy, in nats, of the distribution softmax(x W^T) at the targets.

    Shapes:   x: (n, d)   weight: (vocab, d)   targets: (n,) integers   ->   a number, or (n,) with reduction "none".
              A token whose target is ``ignore_index`` has the loss 0, gives no gradient, and is not in the mean.
    Cost:     with gradients the three products of d n vocab multiply-adds that a linear layer has as well. For "mean"
              and "sum" they are all done in the forward call; for "none" the backward call makes the logits again, a
              fourth. Memory: the logits of a block of tokens (32 MiB in float32, on a GPU up to 512), and the two
              gradients, from the forward call on; never (n, vocab).
    Numerics: softmax and sums over blocks in float32, float64 for float64; with bfloat16 the products are bfloat16's,
              with sums in float32. Under autocast in its dtype, but of float16 in float32.
    Errors:   InputError if the shapes disagree, for targets outside the vocabulary, an empty one, unknown reductions,
              and complex numbers or integers. On a device that is not a CPU it refuses targets itself, as it can; in
              Triton they make the loss NaN.
    Source:   the gradient in the forward pass: Hsu et al. 2024 (Liger kernel), arXiv:2410.10989, sec. 3.2.

    >>> linear_cross_entropy(torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([1, 2]))  # log 4
    tensor(1.3863)
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1] or targets.shape != x.shape[:1]:
        raise InputError(
            "linear_cross_entropy needs x (n, d), weight (vocab, d) and targets (n,); "
            f"got {tuple(x.shape)}, {tuple(weight.shape)} and {tuple(targets.shape)}"
        )
    if not weight.shape[0]:
        raise InputError(f"linear_cross_entropy needs a vocabulary; got a weight of shape {tuple(weight.shape)}")
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f'linear_cross_entropy has the reductions "mean", "sum" and "none"; got {reduction!r}')
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise InputError(f"linear_cross_entropy needs integer targets; got {targets.dtype}")
    refuse_unreal("linear_cross_entropy", x=x, weight=weight)
    device = x.device.type
    dtype = torch.promote_types(x.dtype, weight.dtype)
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        if dtype == torch.float16:  # it has no room for the slopes p / n of a large vocabulary
            dtype = torch.float32
    x, weight = x.to(dtype), weight.to(dtype)
    counted = targets != ignore_index
    inside = torch.where(counted, targets.long(), NO_TARGET)
    if reduction == "none":
        losses: Tensor = _linear_cross_entropy(x, weight, inside)
        return losses
    coefficients = counted.to(full_precision(dtype))
    if reduction == "mean":
        coefficients = coefficients / coefficients.sum()
    gradients = torch.is_grad_enabled() and (whole(x).requires_grad or whole(weight).requires_grad)
    total: Tensor = _linear_cross_entropy_sum(x, weight, inside, coefficients, gradients)[0]
    return total
