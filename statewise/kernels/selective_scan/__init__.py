"""The selective scan of Mamba, with its skip, gate and step size, as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.arguments import Sizes
from statewise.kernels.backend import c_runs
from statewise.kernels.pairs import as_complex
from statewise.kernels.registration import register
from statewise.kernels.selective_scan import native, pytorch
from statewise.kernels.selective_scan.blocks import Arguments, Gradients
from statewise.kernels.selective_scan.native import refusal
from statewise.kernels.selective_scan.reference import selective_scan_reference
from statewise.kernels.stored import refuse_unreal
from statewise.native.memory import empty, in_huge_pages

__all__ = ["METHODS", "selective_scan", "selective_scan_reference"]

METHODS = ("mamba", "zoh")
CHUNK_LENGTH = 32  # steps between the states that the backward pass starts again from

_SCHEMA = (
    "Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0, Tensor? D, Tensor? gate, Tensor? dt_bias, "
    "Tensor? segments, bool softplus, bool exact"
)


def _checkpoints(u: Tensor, h0: Tensor, n_chunks: int) -> Tensor:
    """Room for the states at the starts of chunks: (batch, chunks, [2,] n, d), channels last."""
    complex_axis = h0.shape[3:]
    return torch.empty((u.shape[0], n_chunks, *complex_axis, h0.shape[2], u.shape[2]), dtype=h0.dtype, device=u.device)


def _fake_forward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    D: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    segments: Tensor | None,
    softplus: bool,
    exact: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the outputs; ``keep``: with the states that a backward pass needs."""
    n_chunks = (u.shape[1] + CHUNK_LENGTH - 1) // CHUNK_LENGTH if keep else 0
    y, state = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (u, h0))
    return y, state, _checkpoints(u, h0, n_chunks)


def _definition(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The definition on what the operator takes: complex numbers as a last axis of 2."""
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, softplus, exact = arguments
    if h0.ndim == 4:
        A, B, C = (as_complex(m) for m in (A, B, C))
    return selective_scan_reference(
        u, dt, A, B, C, h0, D=D, gate=gate, dt_bias=dt_bias, softplus=softplus,
        method="zoh" if exact else "mamba", segments=segments,
    )  # fmt: skip


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    given = Arguments(*arguments[:-1])
    y, state, checkpoints = map(in_huge_pages, _fake_forward(*arguments))
    run = native.forward if c_runs("selective_scan", refusal(given)) else pytorch.forward
    run(given, y, state, checkpoints, CHUNK_LENGTH)
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
    given = Arguments(*arguments)
    if not checkpoints.shape[1] and grad_y.shape[1]:  # nobody had said that a gradient would be wanted
        checkpoints = _forward(*arguments, True)[2]
    if c_runs("selective_scan", refusal(given)):
        room: list[Any] = [None if m is None else empty(*m.shape, dtype=m.dtype) for m in arguments[:9]]
        found = native.backward(grad_y, grad_state, checkpoints, given, Gradients(*room), CHUNK_LENGTH)
    else:
        found = pytorch.backward(grad_y, grad_state, checkpoints, given, CHUNK_LENGTH)
    return tuple(grad_y.new_empty(0) if m is None else m for m in found)  # an operator cannot return None


def _fake_adjoint(grad_y: Tensor, grad_state: Tensor, checkpoints: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(
        grad_y.new_empty(0) if m is None else torch.empty(m.shape, dtype=m.dtype, device=m.device)
        for m in arguments[:9]
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.softplus, ctx.exact, _ = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # the kept states have none, and are not small
    ctx.save_for_backward(output[2], *tensors)


def _backward(ctx: Any, grad_y: Tensor | None, grad_state: Tensor | None, _: None) -> tuple[Any, ...]:
    checkpoints, *tensors = ctx.saved_tensors
    grad_y = torch.zeros_like(tensors[0]) if grad_y is None else grad_y
    grad_state = torch.zeros_like(tensors[5]) if grad_state is None else grad_state
    gradients = _scan_backward(grad_y, grad_state, checkpoints, *tensors, ctx.softplus, ctx.exact)
    return *(None if m is None else g for m, g in zip(tensors, gradients)), None, None, None, None


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    grad_y, grad_state, _, *tensors, ctx.softplus, ctx.exact = inputs
    ctx.save_for_backward(grad_y, grad_state, *tensors)


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through the plain definition: rare, so it need not be fast."""
    *tensors, segments = ctx.saved_tensors
    leaves = [None if m is None else m.detach().requires_grad_() for m in tensors]
    given = [m for m in leaves if m is not None]
    with torch.enable_grad():
        grad_y, grad_state, *inputs = leaves
        outputs = _definition(*inputs, segments, ctx.softplus, ctx.exact)
        first = torch.autograd.grad(outputs, given[2:], (grad_y, grad_state), create_graph=True, materialize_grads=True)
        wanted = [g for m, g in zip(inputs, grads) if m is not None]
        second = iter(torch.autograd.grad(first, given, wanted, materialize_grads=True))
    found = [None if m is None else next(second) for m in leaves]
    return *found[:2], None, *found[2:], None, None, None


_scan = register(
    "selective_scan",
    f"({_SCHEMA}, bool keep) -> (Tensor, Tensor, Tensor)",
    _forward,
    takes=_TAKES,
    needs=_wrong_counts,
    fake=_fake_forward,
    setup_context=_setup_context,
    backward=_backward,
)
_scan_backward = register(
    "selective_scan_backward",
    f"(Tensor grad_y, Tensor grad_state, Tensor checkpoints, {_SCHEMA}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _adjoint,
    takes={
        "grad_y": "b l d: as u",
        "grad_state": "b d n *pair: as h0",
        "checkpoints": "b kept *pair n d: as h0",
        **_TAKES,
    },
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
    _check_shapes(u, dt, A, B, C, h0, D, gate, dt_bias, segments)
    if method not in METHODS:
        raise InputError(f"selective_scan: method {method!r} is unknown; use one of {', '.join(METHODS)}")
    refuse_unreal("selective_scan", u=u, dt=dt, h0=h0, D=D, gate=gate, dt_bias=dt_bias)
    return selective_scan_unchecked(
        u, dt, A, B, C, h0, D=D, gate=gate, dt_bias=dt_bias, softplus=softplus, method=method, segments=segments
    )


def selective_scan_unchecked(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    *,
    D: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    softplus: bool,
    method: str,
    segments: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """:func:`selective_scan` of what its caller has checked; the registered operator holds it against the sizes that it
    reads."""
    tensors = (u, dt, A, B, C, h0, D, gate, dt_bias)
    double = any(m is not None and m.dtype in (torch.float64, torch.complex128) for m in tensors)
    real, complex_ = (torch.float64, torch.complex128) if double else (torch.float32, torch.complex64)
    if any(m.is_complex() for m in (A, B, C)):
        A, B, C = (torch.view_as_real(m.to(complex_).resolve_conj()) for m in (A, B, C))
    # what is as long as the sequence is read as it is; a C kernel converts it in its registers
    narrow = (real, torch.bfloat16) if not double else (real,)
    u_, dt = (m if m.dtype in narrow else m.to(real) for m in (u, dt))
    gate = gate if gate is None or gate.dtype in narrow else gate.to(real)
    A, B, C, h0 = (m.to(real) for m in (A, B, C, h0))
    D, dt_bias = (None if m is None else m.to(real) for m in (D, dt_bias))
    keep = torch.is_grad_enabled() and any(
        m is not None and m.requires_grad for m in (u, dt, A, B, C, h0, D, gate, dt_bias)
    )
    y, state, _ = _scan(u_, dt, A, B, C, h0, D, gate, dt_bias, segments, softplus, method == "zoh", keep)
    return y.to(u.dtype), state


def _check_shapes(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    D: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    segments: Tensor | None,
) -> None:
    b, length, d = u.shape if u.ndim == 3 else (0, 0, 0)
    g = B.shape[2] if B.ndim == 4 else 0
    n = A.shape[1] if A.ndim == 2 else 0
    like_u = u.ndim == 3 and all(m is None or m.shape == u.shape for m in (dt, gate))
    if not (like_u and g and d % g == 0 and A.shape == (d, n) and B.shape == C.shape == (b, length, g, n)):
        raise InputError(
            "selective_scan needs u, dt and gate (batch, length, d), A (d, n), B and C (batch, length, groups, n) with "
            f"groups dividing d; got u {tuple(u.shape)}, dt {tuple(dt.shape)}, "
            f"gate {None if gate is None else tuple(gate.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}, "
            f"C {tuple(C.shape)}"
        )
    wanted = (b, d, n, 2) if any(m.is_complex() for m in (A, B, C)) else (b, d, n)
    if h0.shape != wanted:
        raise InputError(f"selective_scan needs h0 of shape {wanted}; got {tuple(h0.shape)}")
    for name, m in (("D", D), ("dt_bias", dt_bias)):
        if m is not None and m.shape != (d,):
            raise InputError(f"selective_scan needs {name} of shape {(d,)}; got {tuple(m.shape)}")
    if segments is not None and segments.shape != (b, length):
        raise InputError(f"selective_scan needs segments of shape {(b, length)}; got {tuple(segments.shape)}")
