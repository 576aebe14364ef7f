"""The launches of the selective scan in Triton (triton_kernels.py): real states, each stretched by Delta.

Forwards one launch, backwards another; the sums over rows and over the programs of a group come after, in their order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional

from statewise.kernels.gpu import HOPPER, is_nvidia, on_device_of, options, power_of_two
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.canary import slope_of
from statewise.kernels.selective_scan import pytorch
from statewise.kernels.selective_scan.signature import Arguments, Gradients
from statewise.kernels.selective_scan.triton_adjoint import scan_backward
from statewise.kernels.selective_scan.triton_kernels import scan_forward
from statewise.kernels.stored import plain_steps

REGISTERS = 255
CHUNK = 32  # steps, as the operator keeps states
# By the most states of a channel that they are for: the tile of a program, channels times states, or one channel; its
# most channels; its warps; and the steps before they are needed that numbers are asked for. More states have the last
AHEAD = {32: (128, 32, 1, 8), 256: (256, 32, 1, 4), 4096: (1024, 1, 4, 2)}
AHEAD_PADDED = {**AHEAD, 32: (128, 32, 1, 4)}  # of more registers: other than 2^k states
BACK = {32: (128, 32, 1, 2), 256: (256, 32, 1, 1), 4096: (1024, 1, 4, 1)}
# On Hopper, where it spills nothing, with half as many partial sums: not exact, 2^k states, and groups of channels
BACK_WIDE = {**BACK, 32: (256, 32, 1, 2)}


def refusal(given: Arguments) -> str | None:
    if given.is_complex:
        return "its states are complex"
    return None


def forward(given: Arguments, y: Tensor, state: Tensor, checkpoints: Tensor, chunk_length: int) -> None:
    """Writes y, the last state, and the states at the starts of chunks (if there is room for any)."""
    if not y.numel() or not state.numel():
        return pytorch.forward(given, y, state, checkpoints, chunk_length)
    n = state.shape[2]
    given = _prepared(given)
    kept = checkpoints if checkpoints.shape[1] else None
    tile, warps = _tile(AHEAD if n == given.A.shape[1] else AHEAD_PADDED, given, chunk_length)
    programs, sizes = _sizes(given, tile)
    last = state if tile["N"] == n else given.h0.new_empty(given.h0.shape)
    with on_device_of(y):
        scan_forward[(y.shape[0], programs)](
            *given[:10], y, last, kept, *sizes, *_strides(given.u, given.dt, given.gate),
            **tile, **options(y.device, warps, REGISTERS),
        )  # fmt: skip
    if last is not state:
        state.copy_(last[..., :n])
    return None


def backward(grad_y: Tensor, grad_state: Tensor, checkpoints: Tensor, given: Arguments, chunk_length: int) -> Gradients:
    """All gradients; those along time in the dtype of what they are gradients of."""
    if not grad_y.numel() or not grad_state.numel():
        return pytorch.backward(grad_y, grad_state, checkpoints, given, chunk_length)
    shapes, n = given.numbers, given.A.shape[1]
    given = _prepared(given)
    slope = plain_steps(grad_y)
    heavy = given.exact or given.B.shape[2] == given.u.shape[2] or n != given.A.shape[1]
    wide = not heavy and is_nvidia(given.u.device, HOPPER)
    tile, warps = _tile(BACK_WIDE if wide else BACK, given, chunk_length)
    programs, sizes = _sizes(given, tile)
    b, _, d = given.u.shape
    device = given.u.device
    shares = 1 if tile["OWN"] else programs // given.B.shape[2]

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    d_u, d_dt, d_gate = (
        None if m is None else torch.empty(m.shape, dtype=m.dtype, device=device)
        for m in (given.u, given.dt, given.gate)
    )
    keys = (shares, *given.B.shape[:3], tile["N"])
    d_A, d_B, d_C, d_h0 = (
        room(*given.h0.shape),
        room(*keys),
        room(*keys),
        room(*given.h0.shape),
    )
    d_D, d_bias = room(b, d), room(b, d)
    begun = room(b, chunk_length // tile["STEPS"] + tile["STEPS"], *given.A.shape)
    with on_device_of(slope):
        scan_backward[(b, programs)](
            slope, _padded(grad_state), checkpoints, *given[:5], *given[6:10],
            d_u, d_dt, d_A, d_B, d_C, d_h0, d_D, d_gate, d_bias, begun, *sizes, b,
            *_strides(slope, given.u, given.dt, given.gate), **tile, **options(device, warps, REGISTERS),
        )  # fmt: skip
    found = (
        d_u,
        d_dt,
        d_A.sum(0)[:, :n],
        d_B.sum(0)[..., :n],
        d_C.sum(0)[..., :n],
        d_h0[..., :n],
        d_D.sum(0),
        d_gate,
        d_bias.sum(0),
    )
    gradients: list[Any] = [None if m is None or g is None else g.contiguous() for m, g in zip(shapes, found)]
    return Gradients(*gradients)


def _prepared(given: Arguments) -> Arguments:
    """All side by side but u, dt and gate, of which only the channels are."""
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, softplus, exact = given
    small = (_padded(A, -1.0), B.contiguous(), C.contiguous(), _padded(h0), None if D is None else D.contiguous())
    bias, ids = (
        None if dt_bias is None else dt_bias.contiguous(),
        None if segments is None else segments.long().contiguous(),
    )
    gates = None if gate is None else plain_steps(gate)
    prepared: Any = (plain_steps(u), plain_steps(dt), *small, gates, bias, ids, softplus, exact)
    return Arguments(*prepared)


def _padded(m: Tensor, value: float = 0.0) -> Tensor:
    """As many states as the next power of two, so that threads read them in fours."""
    n = m.shape[-1]
    return functional.pad(m, (0, power_of_two(n) - n), value=value).contiguous()


def _tile(configurations: dict[int, tuple[int, int, int, int]], given: Arguments, chunk: int) -> tuple[Any, int]:
    """What a kernel is compiled for, and its warps."""
    (_, _, groups, n), d = given.B.shape, given.u.shape[2]
    found = _configuration(configurations, n)
    tile, widest, warps, steps = found
    states = power_of_two(n)
    width = min(widest, max(1, tile // states))
    fixed = {"n": n, "groups": groups, "SOFTPLUS": given.softplus, "EXACT": given.exact, "OWN": groups == d}
    fixed["WHOLE"] = (d if groups == d else d // groups) % width == 0
    return {**fixed, "TIME": chunk, "WIDTH": width, "N": states, "STEPS": math.gcd(steps, chunk)}, warps


def _configuration(configurations: dict[int, tuple[int, int, int, int]], n: int) -> tuple[int, int, int, int]:
    return configurations[next((most for most in configurations if n <= most), max(configurations))]


def _sizes(given: Arguments, tile: dict[str, Any]) -> tuple[int, tuple[int, ...]]:
    """Programs of a row, and the sizes as the kernels take them."""
    (_, length, d), groups = given.u.shape, given.B.shape[2]
    of_group = triton.cdiv(d if tile["OWN"] else d // groups, tile["WIDTH"])
    sizes = (length, d, d // groups, of_group, triton.cdiv(length, tile["TIME"]))
    return of_group if tile["OWN"] else of_group * groups, sizes


def _strides(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(i for m in tensors for i in ((0, 0) if m is None else m.stride()[:2]))


def builds() -> list[Build]:
    shared = numbers(i32="length d each programs chunks u_row u_step dt_row dt_step gate_row gate_step")
    given = {**pointers(bf16="u dt gate", fp32="A B C h0 D dt_bias"), **shared}
    found = []
    for n, own, exact, segments in (
        *((16, False, False, None), (16, False, False, "*i64"), (16, True, False, None)),
        *((16, False, True, "*i64"), (16, True, True, None)),
        *((13, False, False, "*i64"), (128, False, False, None), (1000, False, False, None)),
    ):
        label = f"{n} states, {'a group each' if own else 'groups'}{', exact' if exact else ''}"
        label += ", packed" if segments else ""
        fixed: dict[str, Any] = {"segments": segments, "SOFTPLUS": True, "OWN": own, "TIME": CHUNK, "EXACT": exact}
        fixed |= {"n": n, "groups": 1536 if own else 1, "N": power_of_two(n), "WHOLE": n != 13}
        outputs = pointers(bf16="y grad d_u d_dt d_gate", fp32="state kept")
        outputs |= pointers(fp32="grad_state d_A d_B d_C d_h0 d_D d_bias begun")
        every = {**given, **fixed, **outputs, **numbers(i32="rows grad_row grad_step")}
        launches: list[tuple[Any, dict[int, tuple[int, int, int, int]], tuple[str, ...] | None]]
        launches = [(scan_forward, AHEAD_PADDED if n == 13 else AHEAD, None), (scan_backward, BACK, None)]
        if n == 16 and not (own or exact):
            launches.append((scan_backward, BACK_WIDE, ("sm_90",)))
        for kernel, configurations, targets in launches:
            tile, widest, warps, steps = _configuration(configurations, n)
            every |= {"WIDTH": min(widest, max(1, tile // fixed["N"])), "STEPS": steps}
            arguments = {key: every[key] for key in kernel.arg_names}
            found.append(
                Build(
                    kernel,
                    arguments,
                    warps,
                    registers=REGISTERS,
                    label=label + (", wide" if targets else ""),
                    targets=targets,
                )
            )
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    b, length, d, g, n = 1, 34, 10, 2, 2
    u = torch.linspace(-2, 3, b * length * d, device=device).sin().view(b, length, d)
    keys = u[..., : g * n].reshape(b, length, g, n)
    A, state = -u[0, :d, :n].exp(), u[:, :n].transpose(1, 2).contiguous()
    ids = (torch.arange(length, device=device) // 17).expand(b, length)
    skip, bias = u[0, 0], u[0, 1]
    return [
        (Arguments(u, u.cos(), A, keys, keys.cos(), state, skip, u.tan().clamp(-2, 2), bias, ids, True, False),),
        (Arguments(u.bfloat16(), u.abs().bfloat16(), A, keys, keys, state, None, None, None, None, False, False),),
        (Arguments(u, u.cos(), A, keys, keys.cos(), state, skip, None, bias, None, True, True),),
    ]


def trial(path: Any, given: Arguments) -> list[Tensor]:
    """y and the state of a path, and its gradients for fixed slopes."""
    y, state = torch.empty_like(given.u), torch.empty_like(given.h0)
    b, d, n = given.h0.shape
    kept = given.h0.new_empty(b, triton.cdiv(given.u.shape[1], CHUNK), n, d)
    path.forward(given, y, state, kept, CHUNK)
    found = path.backward(slope_of(y), slope_of(state), kept, given, CHUNK)
    return [m for m in (y, state, *found) if m is not None]
