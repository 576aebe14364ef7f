"""The launches of the selective scan in Triton (triton_kernels.py): real states, each stretched by Delta.

Forwards one launch, backwards another; the sums over rows and over the programs of a group come after, in their order.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional

from statewise.kernels.gpu import HOPPER, is_nvidia, on_device_of, options
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.canary import slope_of
from statewise.kernels.selective_scan import pytorch
from statewise.kernels.selective_scan.signature import Arguments, Gradients
from statewise.kernels.selective_scan.triton_adjoint import scan_backward
from statewise.kernels.selective_scan.triton_kernels import scan_forward
from statewise.kernels.stored import plain_steps

REGISTERS = 255
CHUNK = 32  # steps, as the operator keeps states


class Tile(NamedTuple):
    """A program's channels, the states of each, its warps, and how many steps before they are needed numbers are asked
    for."""

    channels: int
    states: int
    warps: int
    steps: int


# Mamba's 16 states, forwards and backwards; and backwards on Hopper, where it spills nothing, with half as many partial
# sums, unless a step is exact, or has masks or a group of its own for each channel
AHEAD, BACK, BACK_WIDE = Tile(8, 16, 1, 8), Tile(8, 16, 1, 2), Tile(16, 16, 1, 2)
# Other numbers of states, which are padded to those of the first tile that holds them: masks take registers
AHEAD_ANY = (Tile(8, 16, 1, 4), Tile(4, 64, 1, 2), Tile(1, 256, 1, 2), Tile(1, 1024, 4, 1))
BACK_ANY = (Tile(8, 16, 1, 1), Tile(2, 64, 1, 1), Tile(1, 256, 2, 1), Tile(1, 1024, 8, 1))
MOST_STATES = BACK_ANY[-1].states


def refusal(given: Arguments) -> str | None:
    if given.is_complex:
        return "its states are complex"
    if given.A.shape[1] > MOST_STATES:
        return f"a channel has {given.A.shape[1]:,} states, and the kernel takes {MOST_STATES:,} at most"
    return None


def forward(given: Arguments, y: Tensor, state: Tensor, checkpoints: Tensor, chunk_length: int) -> None:
    """Writes y, the last state, and the states at the starts of chunks (if there is room for any)."""
    if not y.numel() or not state.numel():
        return pytorch.forward(given, y, state, checkpoints, chunk_length)
    n = state.shape[2]
    tile = AHEAD if n == AHEAD.states else _tile(AHEAD_ANY, n)
    given = _prepared(given)
    kept = checkpoints if checkpoints.shape[1] else None
    fixed = _fixed(tile, given, chunk_length)
    programs, sizes = _sizes(given, fixed)
    last = state if tile.states == n else given.h0.new_empty(given.h0.shape)
    with on_device_of(y):
        scan_forward[(y.shape[0], programs)](
            *given[:10], y, last, kept, *sizes, *_strides(given.u, given.dt, given.gate),
            **fixed, **options(y.device, tile.warps, REGISTERS),
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
    tile = _back_tile(given, n)
    fixed = _fixed(tile, given, chunk_length)
    programs, sizes = _sizes(given, fixed)
    b, _, d = given.u.shape
    device = given.u.device
    shares = 1 if fixed["OWN"] else programs // given.B.shape[2]

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    d_u, d_dt, d_gate = (
        None if m is None else torch.empty(m.shape, dtype=m.dtype, device=device)
        for m in (given.u, given.dt, given.gate)
    )
    keys = (shares, *given.B.shape[:3], tile.states)
    d_A, d_B, d_C, d_h0 = (
        room(*given.h0.shape),
        room(*keys),
        room(*keys),
        room(*given.h0.shape),
    )
    d_D, d_bias = room(b, d), room(b, d)
    begun = room(b, chunk_length // fixed["STEPS"] + fixed["STEPS"], *given.A.shape)
    with on_device_of(slope):
        scan_backward[(b, programs)](
            slope, _padded(grad_state), checkpoints, *given[:5], *given[6:10],
            d_u, d_dt, d_A, d_B, d_C, d_h0, d_D, d_gate, d_bias, begun, *sizes, b,
            *_strides(slope, given.u, given.dt, given.gate), **fixed, **options(device, tile.warps, REGISTERS),
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
    """As many states as a tile has, so that threads read them in fours."""
    n = m.shape[-1]
    return functional.pad(m, (0, _tile(BACK_ANY, n).states - n), value=value).contiguous()


def _tile(tiles: tuple[Tile, ...], n: int) -> Tile:
    """The first that holds n states."""
    return next(tile for tile in tiles if n <= tile.states)


def _back_tile(given: Arguments, n: int) -> Tile:
    (_, _, groups, _), d = given.B.shape, given.u.shape[2]
    if n != BACK.states or (given.exact and groups == d):
        return _tile(BACK_ANY, n)
    heavy = given.exact or groups == d or given.segments is not None or (d // groups) % BACK_WIDE.channels
    return BACK_WIDE if not heavy and is_nvidia(given.u.device, HOPPER) else BACK


def _fixed(tile: Tile, given: Arguments, chunk: int) -> dict[str, Any]:
    """What a kernel is compiled for."""
    (_, _, groups, n), d = given.B.shape, given.u.shape[2]
    fixed = {"n": n, "groups": groups, "SOFTPLUS": given.softplus, "EXACT": given.exact, "OWN": groups == d}
    fixed["WHOLE"] = (d if groups == d else d // groups) % tile.channels == 0
    return {**fixed, "TIME": chunk, "WIDTH": tile.channels, "N": tile.states, "STEPS": math.gcd(tile.steps, chunk)}


def _sizes(given: Arguments, tile: dict[str, Any]) -> tuple[int, tuple[int, ...]]:
    """Programs of a row, and the sizes as the kernels take them."""
    (_, length, d), groups = given.u.shape, given.B.shape[2]
    of_group = triton.cdiv(d if tile["OWN"] else d // groups, tile["WIDTH"])
    sizes = (length, d, d // groups, of_group, triton.cdiv(length, tile["TIME"]))
    return of_group if tile["OWN"] else of_group * groups, sizes


def _strides(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(i for m in tensors for i in ((0, 0) if m is None else m.stride()[:2]))


def builds() -> list[Build]:
    """Mamba's 16 states as most models have them; then each tile with masks for states and channels and with documents:
    a group for all and a group each, exact and not."""
    found = []
    for kind in ("bf16", "fp32"):
        found += [_build(scan_forward, AHEAD, 16, kind), _build(scan_backward, BACK, 16, kind)]
        found.append(_build(scan_backward, BACK_WIDE, 16, kind, targets=("sm_90",)))
        for own, exact in itertools.product((False, True), repeat=2):
            options: dict[str, Any] = {"kind": kind, "packed": True, "own": own, "exact": exact}
            found.append(_build(scan_forward, AHEAD, 16, **options))
            if not (own and exact):
                found.append(_build(scan_backward, BACK, 16, **options))
            found += [_build(scan_forward, tile, tile.states - 3, **options) for tile in AHEAD_ANY]
            found += [_build(scan_backward, tile, tile.states - 3, **options) for tile in BACK_ANY]
    return found


def _build(
    kernel: Any,
    tile: Tile,
    n: int,
    kind: str,
    *,
    own: bool = False,
    exact: bool = False,
    packed: bool = False,
    targets: tuple[str, ...] | None = None,
) -> Build:
    """packed: has documents, and channels that fill no tile"""
    given: dict[str, Any] = pointers(**{kind: "u dt gate y grad d_u d_dt d_gate"})
    given |= pointers(fp32="A B C h0 D dt_bias state kept grad_state d_A d_B d_C d_h0 d_D d_bias begun")
    given |= numbers(i32="length d each programs chunks u_row u_step dt_row dt_step gate_row gate_step")
    given |= numbers(i32="rows grad_row grad_step")
    given |= {"segments": "*i64" if packed else None, "SOFTPLUS": True, "OWN": own, "EXACT": exact, "WHOLE": not packed}
    given |= {"n": n, "groups": 1536 if own else 1, "N": tile.states, "WIDTH": tile.channels, "STEPS": tile.steps}
    given["TIME"] = CHUNK
    label = f"{kind}, {tile.channels} x {n} states, {'a group each' if own else 'groups'}"
    label += f"{', exact' if exact else ''}{', packed' if packed else ''}"
    arguments = {key: given[key] for key in kernel.arg_names}
    return Build(kernel, arguments, tile.warps, registers=REGISTERS, label=label, targets=targets)


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
