"""The losses of all tokens and the gradients of x and the weight, over blocks of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.backend import c_runs
from statewise.kernels.exact.switch import is_exact
from statewise.kernels.gpu import triton_or
from statewise.kernels.linear import linear, onednn
from statewise.kernels.linear_cross_entropy import native, pytorch
from statewise.kernels.linear_cross_entropy.pytorch import NO_TARGET
from statewise.kernels.stored import stored_refusal
from statewise.precision import full_precision

LOGITS = 2**23  # of a block of tokens: 32 MiB in float32, so that the weight is read for many tokens at once
_PIECE = 4096  # rows of the weight that are multiplied at one time
_LOGITS_ELSEWHERE = 2**27  # not on a CPU, where few large products are wanted: half a gigabyte in float32


def losses_and_gradients(
    x: Tensor, weight: Tensor, targets: Tensor, coefficients: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses (n,), and of sum(coefficients * losses) the gradients of x and the weight: empty without coefficients.

    The target NO_TARGET has no loss.
    """
    n, vocab = x.shape[0], weight.shape[0]
    _check_targets(targets, vocab)
    full = full_precision(x.dtype)
    in_c = c_runs("linear_cross_entropy", stored_refusal(x=x, weight=weight))
    path = native if in_c else triton_or(pytorch, "linear_cross_entropy", x, weight, targets, coefficients)
    losses = x.new_empty(n, dtype=full)
    grad_x = x.new_empty(x.shape if coefficients is not None else 0)
    grad_weight = weight.new_empty(weight.shape if coefficients is not None else 0, dtype=full)
    targets = targets.long().contiguous()
    coefficients = None if coefficients is None else coefficients.to(full).contiguous()
    block = min(n, max(1, (LOGITS if x.device.type == "cpu" else _LOGITS_ELSEWHERE) // max(vocab, 1)))
    logits = x.new_empty(block, vocab)
    for start in range(0, n, max(block, 1)):
        here = slice(start, min(start + block, n))
        part = logits[: here.stop - start]
        _make_logits(part, x[here], weight)
        losses[here] = path.rows(part, targets[here], None if coefficients is None else coefficients[here])
        if coefficients is not None:
            _take_gradients(part, x[here], weight, grad_x[here], grad_weight, first=start == 0)
    if n == 0:
        grad_weight.zero_()
    return losses, grad_x, grad_weight.to(weight.dtype)


def _make_logits(out: Tensor, x: Tensor, weight: Tensor) -> None:
    if x.device.type != "cpu":
        torch.mm(x, weight.t(), out=out)  # in place: a block is half a gigabyte
        return
    for piece in _pieces(weight):
        out[:, piece] = _product(x, weight[piece])


def _take_gradients(
    slope: Tensor, x: Tensor, weight: Tensor, grad_x: Tensor, grad_weight: Tensor, *, first: bool
) -> None:
    """dx = slope W, dW += slope^T x; sums over pieces of the vocabulary and blocks of tokens are in full precision."""
    total: Tensor | None = None
    for piece in _pieces(weight):
        part = _product(slope[:, piece], weight[piece].t()).to(grad_weight.dtype)
        total = part if total is None else total.add_(part)
        part = linear(slope[:, piece].t(), x.t())
        if first:
            grad_weight[piece] = part
        else:
            grad_weight[piece] += part
    assert total is not None  # a vocabulary has a piece
    grad_x.copy_(total)


def _pieces(weight: Tensor) -> list[slice]:
    vocab = weight.shape[0]
    size = _PIECE if weight.device.type == "cpu" else max(vocab, 1)
    return [slice(start, min(start + size, vocab)) for start in range(0, vocab, size)]


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T for a few hundred rows of x and many of W: there oneDNN is ahead of our own code, and both of MKL."""
    in_float32 = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    if in_float32 and onednn.available() and not is_exact():
        return onednn.product(x, weight, None)
    return linear(x, weight)


def _check_targets(targets: Tensor, vocab: int) -> None:
    if targets.device.type != "cpu" or targets.numel() == 0:
        return  # on CUDA it would be a wait for the device, which itself refuses them
    highest = int(targets.max())
    if highest >= vocab:
        raise InputError(f"linear_cross_entropy: target {highest} is outside the vocabulary of {vocab}")
    wrong = targets[(targets < 0) & (targets != NO_TARGET)]
    if wrong.numel():
        raise InputError(
            f"linear_cross_entropy: a target is {int(wrong.min())}; use ids of the vocabulary, or ignore_index for a "
            "token without one"
        )
