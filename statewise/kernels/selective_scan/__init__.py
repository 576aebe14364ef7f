"""The selective scan of Mamba, with its skip, gate and step size, as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import Path, derivative_of, empty_like, gradients_of, without_none
from statewise.kernels.arguments import Sizes
from statewise.kernels.backend import c_runs, refusal_of
from statewise.kernels.gpu import triton_or
from statewise.kernels.registration import register, save, saved
from statewise.kernels.selective_scan import native, pytorch
from statewise.kernels.selective_scan.reference import selective_scan_reference
from statewise.kernels.selective_scan.signature import METHODS, Arguments, Gradients
from statewise.native.memory import room_for

__all__ = ["METHODS", "selective_scan", "selective_scan_reference"]

CHUNK_LENGTH = 32  # steps between the states that the backward pass starts again from

_ARGUMENTS = (
    "Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0, Tensor? D, Tensor? gate, Tensor? dt_bias, "
    "Tensor? segments, bool softplus, bool exact"
)


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the outputs, and if ``keep`` for the states at the starts of chunks, (batch, chunks, [2,] n, d)."""
    given, keep = Arguments(*arguments[:-1]), arguments[-1]
    (b, length, d), (_, _, n, *pair), device = given.u.shape, given.h0.shape, given.u.device
    n_chunks = (length + CHUNK_LENGTH - 1) // CHUNK_LENGTH if keep else 0
    y, state = (torch.empty(m.shape, dtype=m.dtype, device=device) for m in (given.u, given.h0))
    return y, state, torch.empty((b, n_chunks, *pair, n, d), dtype=given.h0.dtype, device=device)


def _path(given: Arguments) -> Path:
    if c_runs("selective_scan", refusal_of(u=given.u)):
        return native
    path: Path = triton_or(pytorch, "selective_scan", given)
    return path


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    y, state, checkpoints = map(room_for, _fake_forward(*arguments))
    given = Arguments(*arguments[:-1])
    _path(given).forward(given, y, state, checkpoints, CHUNK_LENGTH)
    return y, state, checkpoints


_TAKES = {  # the state in full precision, and what is as long as the sequence so or in bfloat16
    **dict.fromkeys(("u", "dt"), "b l d: stored h0"),
    "A": "d n *pair: as h0",
    **dict.fromkeys("BC", "b l g n *pair: as h0"),
    "h0": "b d n *pair: real",
    "D": "d: as h0",
    "gate": "b l d: stored h0",
    "dt_bias": "d: as h0",
    "segments": "b l: ids",
}


def _wrong_counts(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    if sizes["*pair"] not in ((), (2,)):
        return f"real numbers, or pairs of them on a last axis of 2; got {sizes['*pair']}"
    if sizes["g"] < 1 or sizes["d"] % sizes["g"]:
        return f"groups that divide the {sizes['d']} channels; got {sizes['g']}"
    kept = sizes.get("kept", 0)  # none: nobody had said that a gradient would be wanted
    return None if kept in (0, -(-sizes["l"] // CHUNK_LENGTH)) else f"a state for every chunk, or none; got {kept}"


def _adjoint(grad_y: Tensor, grad_state: Tensor, checkpoints: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    if not checkpoints.shape[1] and grad_y.shape[1]:  # nobody had said that a gradient would be wanted
        checkpoints = _forward(*arguments, True)[2]
    given = Arguments(*arguments)
    return without_none(_path(given).backward(grad_y, grad_state, checkpoints, given, CHUNK_LENGTH), grad_y)


def _fake_adjoint(grad_y: Tensor, grad_state: Tensor, checkpoints: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return without_none([empty_like(m) for m in Arguments(*arguments).numbers], grad_y)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # the kept states have none, and are not small
    save(ctx, (output[2], *inputs[:-1]), output)


def _backward(ctx: Any, grad_y: Tensor | None, grad_state: Tensor | None, _: None) -> tuple[Any, ...]:
    checkpoints, *arguments = saved(ctx)
    given = Arguments(*arguments)
    grad_y = torch.zeros_like(given.u) if grad_y is None else grad_y
    grad_state = torch.zeros_like(given.h0) if grad_state is None else grad_state
    gradients = _scan_backward(grad_y, grad_state, checkpoints, *given)
    return *(None if m is None else g for m, g in zip(given, gradients)), None, None, None, None


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    save(ctx, (*inputs[:2], *inputs[3:]), output)  # the kept states follow from the others


def _plain_adjoint(grad_y: Tensor, grad_state: Tensor, *arguments: Any) -> list[Tensor | None]:
    outputs = (grad_y, grad_state)
    return gradients_of(lambda *m: Arguments(*m).definition(), arguments, outputs, create_graph=True)[:9]


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    found = derivative_of(_plain_adjoint)(ctx, *grads)
    return *found[:2], None, *found[2:]


_OUTPUTS = {"y": "b l d: as u", "state": "b d n *pair: as h0"}
_KEPT = {"checkpoints": "b kept *pair n d: as h0"}
_scan = register(
    "selective_scan",
    f"{_ARGUMENTS}, bool keep",
    _forward,
    takes=_TAKES,
    gives={**_OUTPUTS, **_KEPT},
    needs=_wrong_counts,
    fake=_fake_forward,
    setup_context=_setup_context,
    backward=_backward,
)
_scan_backward = register(
    "selective_scan_backward",
    f"Tensor grad_y, Tensor grad_state, Tensor checkpoints, {_ARGUMENTS}",
    _adjoint,
    takes={**{f"grad_{key}": kind for key, kind in _OUTPUTS.items()}, **_KEPT, **_TAKES},
    gives={key: _TAKES[key] for key in Gradients._fields},
    needs=_wrong_counts,
    fake=_fake_adjoint,
    setup_context=_setup_second,
    backward=_second_backward,
)


def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    *,
    D: Tensor | None = None,
    gate: Tensor | None = None,
    dt_bias: Tensor | None = None,
    softplus: bool = False,
    method: str = "mamba",
    segments: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Selective state space: h_t = exp(Delta_t A) h_{t-1} + Delta_t B_t u_t, y_t = (C_t h_t + D u_t) SiLU(gate_t).

    Delta is dt + dt_bias, or its softplus. With complex numbers y_t = 2 Re(C_t h_t) + ..., one of each conjugate pair.

    Shapes:   u, dt, gate: (batch, length, d)   A: (d, n), used as it is: finite, its real part <= 0, however large
              B, C: (batch, length, g, n), group k of g serving the channels k d/g to (k+1) d/g - 1; g = d is one each
              D, dt_bias: (d,)   h0: (batch, d, n), and (batch, d, n, 2) where A, B or C is complex
              ->   y like u, h like h0 (the state after the last step)
              method: "mamba" as above; "zoh", the exact zero-order hold, has (exp(Delta A) - 1) / A for Delta, and
              its limit Delta at A = 0
              segments: (batch, length) integers that never fall, h0 being segment 0; nothing passes from one
              segment to the next.
    Cost:     O(length d n), one exponential for each; memory above the outputs a state for every 32 steps where a
              gradient is wanted. Off the CPU up to 64 chunks of 32 steps are computed at once, of all rows and
              channels, in about six tensors of 256 MiB, or of one chunk where that is larger.
    Numerics: computed in float32, or float64 if an input is; y comes in the dtype of u. dt = -inf under softplus is
              the identity on the state, exactly. A NaN or infinity stays in its row and channel. Second derivatives
              go through the plain definition. Where next to nothing decays, Delta |A| <= 1e-5 over 65,536 steps, the
              float32 state is in C as far off as any plain float32 recurrence, 5e-4 of it, and 1e-5 in PyTorch's
              blocks; with Delta up to 1e-3 both are below 1e-5. dt = inf has a result, with "zoh" the limit
              -B u / A for A < 0; its gradients are not defined. With a complex A a
              Delta A that overflows may give NaN. Off the CPU a state that is infinite may become NaN.
    Errors:   InputError if the shapes disagree, the method is unknown, or u, dt, gate, h0, D or dt_bias are complex or
              integers; the message gives them.
    Source:   Gu & Dao 2023, arXiv:2312.00752, algorithm 2 and eq. 4 (the exact hold).
    """
    if method not in METHODS:
        raise InputError(f"selective_scan: method {method!r} is unknown; use one of {', '.join(METHODS)}")
    given = Arguments(u, dt, A, B, C, h0, D, gate, dt_bias, segments, softplus, method == "zoh")
    given.check()
    return selective_scan_unchecked(given)


def selective_scan_unchecked(given: Arguments) -> tuple[Tensor, Tensor]:
    """:func:`selective_scan` of what its caller has checked; the registered operator holds it against the sizes that it
    reads."""
    keep = torch.is_grad_enabled() and any(m is not None and m.requires_grad for m in given.numbers)
    y, state, _ = _scan(*given.registered(), keep)
    return y.to(given.u.dtype), state
