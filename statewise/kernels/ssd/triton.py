"""The launches of SSD in Triton: one sweep forwards (three launches where there are few sequences), three backwards."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from statewise.kernels.gpu import HOPPER, is_nvidia, on_device_of, options, pieces
from statewise.kernels.gpu.triton_products import product
from statewise.kernels.ssd import pytorch
from statewise.kernels.ssd.reference import Arguments
from statewise.kernels.ssd.triton_adjoint import of_groups, of_heads, states_and_gradients
from statewise.kernels.ssd.triton_kernels import chain_pieces, sweep
from statewise.kernels.ssd.triton_tiles import CHAINED, REGISTERS, TILED, TILES, TILES_ANY, Tile, Tiles, builds

__all__ = ["backward", "builds", "forward", "refusal", "samples"]

_LEAST_CHUNKS = 16  # of a piece


def has_descriptors(device: torch.device) -> bool:
    """Whether its tiles come through descriptors."""
    return is_nvidia(device, HOPPER)


def tiles_of(*inputs: Tensor) -> Tiles:
    """inputs: x, B, C, and what else (b, length, a, b) is read by tiles."""
    x, B = inputs[:2]
    kind = "bfloat16" if x.dtype == torch.bfloat16 else "float32"
    if kind == "bfloat16" and has_descriptors(x.device) and all(_has_tiles(m) for m in inputs):
        for n, tiles in TILED.items():
            if B.shape[3] % n == 0 and x.shape[3] % tiles.ahead[0].p == 0:
                return tiles
    return (TILES if all(_is_in_sixteens(m) for m in inputs) else TILES_ANY)[kind]


def _is_in_sixteens(m: Tensor) -> bool:
    """Whether the kernels know that m's rows begin at multiples of 16, and 32 bits hold the distance of two."""
    return m.data_ptr() % 16 == 0 and all(i % 16 == 0 and i < 2**31 for i in (m.shape[3], *m.stride()[:2]))


def _has_tiles(m: Tensor) -> bool:
    """Whether a descriptor can have m: rows of whole 16 bytes, none over another, and sizes that 32 bits hold."""
    columns = m.shape[2] * m.shape[3]
    strides = [stride for size, stride in zip(m.shape[:2], m.stride()) if size > 1]
    apart = all(s >= columns and s * m.element_size() % 16 == 0 and s * m.element_size() < 2**40 for s in strides)
    return apart and m.data_ptr() % 16 == 0 and max(m.shape[0], m.shape[1], columns) < 2**31 - 1024


def refusal(given: Arguments) -> str | None:
    return None


def forward(given: Arguments) -> tuple[Tensor, Tensor]:
    """y and the state after the last step."""
    x = given.x
    if not x.numel() or not given.h0.numel():
        return pytorch.forward(given)
    layout = _laid_out(given)
    b, length, h, p = x.shape
    ahead = tiles_of(*layout.inputs).ahead
    tile = next((tile for tile in ahead if layout.n <= tile.n), ahead[-1])
    chunks, programs, blocks = triton.cdiv(length, tile.q), triton.cdiv(p, tile.p), triton.cdiv(layout.n, tile.n)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = y if blocks == 1 else torch.empty(blocks, *x.shape, dtype=torch.float32, device=x.device)
    state = torch.empty(given.h0.shape, dtype=torch.float32, device=x.device)
    n_pieces = pieces(x.device, b * h * programs * blocks, chunks, _LEAST_CHUNKS)
    each = triton.cdiv(chunks, n_pieces)
    n_pieces = triton.cdiv(chunks, each)
    sizes = (b, length, h, h // layout.g, p, layout.n, n_pieces, each, *layout.strides)
    fixed: dict[str, Any] = {"PRODUCT": product(x), **tile.fixed()}
    fixed |= options(x.device, tile.warps, REGISTERS)
    grid = (b * h * n_pieces, programs, blocks)
    start, (u, B, C) = layout.h0, layout.tiles(tile)
    sums = _room_for_sums(layout, n_pieces * each * tile.q)
    inputs = (u, layout.log_a, B, C, layout.dt, layout.segments, *sums)
    out = _described(parts, tile, tile.p) if tile.tiled and blocks == 1 else parts
    with on_device_of(x):
        if n_pieces > 1:
            shape = (b * h * n_pieces, p, layout.n)
            ends, start = (torch.empty(shape, dtype=torch.float32, device=x.device) for _ in range(2))
            decay = torch.empty(b * h * n_pieces, dtype=torch.float32, device=x.device)
            sweep[grid](*inputs, None, None, None, _states(ends, tile), decay, *sizes, ENDS=True, WHOLE=True, **fixed)
            chain_pieces[(b * h, triton.cdiv(p * layout.n, CHAINED))](
                layout.h0, ends, decay, start, p * layout.n, n_pieces, BLOCK=CHAINED
            )
        sweep[grid](
            *inputs, _states(start, tile), layout.D, out, _states(state, tile), None, *sizes,
            ENDS=False, WHOLE=blocks == 1, **fixed,
        )  # fmt: skip
    return y if blocks == 1 else parts.sum(0).to(x.dtype), state


def backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> tuple[Tensor | None, ...]:
    """Gradients of x, log_a, B, C, h0, dt and D; None where there was none."""
    x = given.x
    if not x.numel() or not given.h0.numel():
        return pytorch.backward(grad_y, grad_state, given)
    layout, slope = _laid_out(given), _by_steps(grad_y)
    b, length, h, p = x.shape
    n, g, device = layout.n, layout.g, x.device
    tiles = tiles_of(*layout.inputs, slope)
    tile = tiles.states
    chunks = triton.cdiv(length, tile.q)
    before, after = (torch.empty(b, h, chunks, p, n, dtype=_kept(x), device=device) for _ in range(2))
    dx, d_log_a, dB, dC, dh0 = (torch.empty(m.shape, dtype=m.dtype, device=device) for m in given[:5])
    d_dt = None if given.dt is None else torch.empty(given.dt.shape, dtype=torch.float32, device=device)
    dD = None if given.D is None else torch.empty(b, h, chunks, dtype=torch.float32, device=device)
    sizes = (length, h, h // g, p, n, chunks, *slope.stride()[:2], *layout.strides)
    kind, sums = {"PRODUCT": product(x)}, _room_for_sums(layout, tile.q * chunks)
    with on_device_of(x):
        u, B, C = layout.tiles(tile)
        states_and_gradients[(b * h, triton.cdiv(p, tile.p) * triton.cdiv(n, tile.n), 2)](
            _described(slope, tile, tile.p), _states(_aligned(grad_state), tile),
            u, layout.log_a, B, C, layout.dt, layout.segments, *sums,
            *(_states(m, tile) for m in (layout.h0, before, after, dh0)), *sizes, **kind, **tile.fixed(),
            **options(device, tile.warps, REGISTERS),
        )  # fmt: skip
        tile = tiles.heads
        of_heads[(b * h * chunks,)](
            _described(slope, tile, tile.p), *layout.tiles(tile), *sums, layout.D,
            _states(before, tile), _states(after, tile), _described(dx, tile, tile.p), d_log_a, d_dt, dD, *sizes,
            WHOLE=n <= tile.n, **kind, **tile.fixed(staged=False), **options(device, tile.warps, REGISTERS),
        )  # fmt: skip
        tile = tiles.groups
        of_groups[(b * g * chunks, triton.cdiv(n, tile.n), 2)](
            _described(slope, tile, tile.p), *layout.tiles(tile), *sums,
            _states(before, tile), _states(after, tile), dB, dC, *sizes, **kind, **tile.fixed(),
            **options(device, tile.warps, REGISTERS),
        )  # fmt: skip
    return dx, d_log_a, dB, dC, dh0, d_dt, None if dD is None else dD.sum((0, 2))


class _Layout(NamedTuple):
    """What the kernels read: x, B and C with their strides along rows and steps, all else side by side."""

    inputs: tuple[Tensor, ...]  # x, B, C
    log_a: Tensor
    h0: Tensor
    dt: Tensor | None
    D: Tensor | None
    segments: Tensor | None
    strides: tuple[int, ...]
    g: int
    n: int

    def tiles(self, tile: Tile) -> list[Any]:
        """x, B and C as a kernel with such a tile takes them."""
        return [_described(m, tile, width) for m, width in zip(self.inputs, (tile.p, tile.n, tile.n))]


def _laid_out(given: Arguments) -> _Layout:
    x, log_a, B, C, h0, dt, D, segments, _ = given
    x, B, C = (_by_steps(m) for m in (x, B, C))
    ids = None if segments is None else segments.long().contiguous()
    dt, D = (None if m is None else m.contiguous() for m in (dt, D))
    strides = tuple(stride for m in (x, B, C) for stride in m.stride()[:2])
    return _Layout((x, B, C), log_a.contiguous(), _aligned(h0), dt, D, ids, strides, *B.shape[2:])


def _room_for_sums(layout: _Layout, padded: int) -> tuple[Tensor | None, ...]:
    """coarse, fine and steps of leave_sums. In bfloat16, which rounds each number by 2^-9, one sum is enough: a decay
    is off by 2^-18 where sums stay below 64, and by 3e-3 at most, after many steps that let nothing pass, where they
    reach 38,000."""
    b, _, h = layout.log_a.shape
    n_sums = 1 if layout.inputs[0].dtype == torch.bfloat16 else 2
    room = torch.empty(n_sums + (layout.dt is not None), b, h, padded, dtype=torch.float32, device=layout.log_a.device)
    return room[0], room[1] if n_sums == 2 else None, None if layout.dt is None else room[-1]


def _described(m: Tensor, tile: Tile, width: int) -> Any:
    """m (b, length, a, b), or TILED a descriptor of its tiles (tile.q, width)."""
    if not tile.tiled:
        return m
    b, length = m.shape[:2]
    columns = m.shape[2] * m.shape[3]
    row, step = m.stride()[:2]
    step = step if length > 1 else columns
    strides = [row if b > 1 else length * step, step, 1]
    return TensorDescriptor(m, [b, length, columns], strides, [1, tile.q, width])


def _states(m: Tensor, tile: Tile) -> Any:
    """m (..., width, states), or TILED a descriptor of its tiles, whose rows 32 bits count: so many fill no card."""
    return TensorDescriptor.from_tensor(m.view(-1, m.shape[-1]), [tile.p, tile.n]) if tile.tiled else m


def _by_steps(m: Tensor) -> Tensor:
    """m (batch, length, a, b), copied only where a step's a * b numbers do not lie together."""
    return m if m.stride(3) == 1 and m.stride(2) == m.shape[3] else m.contiguous()


def _aligned(m: Tensor) -> Tensor:
    """m side by side, from a whole 16 bytes on: what a descriptor needs."""
    m = m.contiguous()
    return m if m.data_ptr() % 16 == 0 else m.clone()


def _kept(x: Tensor) -> torch.dtype:
    return torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for p, n in ((20, 24), (32, 48), (16, 144)):  # any sizes; multiples of 16, in one block of states and in several
        given = _small_sample(device, p, n)
        narrow = {name: getattr(given, name).bfloat16() for name in ("x", "B", "C")}
        found += [(given,), (given._replace(**narrow, dt=None, D=None, segments=None),)]
    if device.type == "cuda":  # so few sequences that they are cut into pieces
        pieces = _large_sample(device, 128, (1, 4096, 2))
        found += [(pieces,), (pieces._replace(**{name: getattr(pieces, name).float() for name in ("x", "B", "C")}),)]
    if has_descriptors(device):  # each of these is machine code of its own
        for n in (*TILED, 192, 256):
            large = _large_sample(device, n)
            found += [(large,), (large._replace(dt=None, D=None, segments=None),)]
    return found


def _small_sample(device: torch.device, p: int, n: int) -> Arguments:
    b, length, h, g = 1, 70, 4, 2
    x = torch.linspace(-2, 3, b * length * h * p, device=device).sin().view(b, length, h, p)
    keys = torch.linspace(-2, 3, b * length * g * n, device=device).mul(7).sin().view(b, length, g, n)
    log_a, state = -x[..., 0].abs(), torch.linspace(-1, 1, b * h * p * n, device=device).view(b, h, p, n)
    ids = (torch.arange(length, device=device) // 31).expand(b, length)
    return Arguments(x, log_a, keys, keys.cos(), state, x[..., 1].abs(), x[0, 0, :, 0], ids, 64)


def _large_sample(device: torch.device, n: int, sizes: tuple[int, int, int] = (4, 150, 64)) -> Arguments:
    """What tiles of n states divide: heads of 64 that share B and C, so many that programs fill a card and could get in
    each other's way; documents, and an end within a tile."""
    (b, length, h), p, g = sizes, 64, 1
    waves = [(torch.arange(size, device=device) % 9973 * 0.37).sin() for size in (h * p, g * n, h * p * n)]
    turns = (torch.arange(b * length, device=device) * 0.11).cos().view(b, length, 1)
    x = (turns * waves[0]).view(b, length, h, p)
    B = (turns.flip(1) + waves[1]).view(b, length, g, n) / 8
    state = waves[2].expand(b, -1).reshape(b, h, p, n)
    ids = (torch.arange(length, device=device) // 67).expand(b, length)
    steps, skip = x[..., 1].abs(), x[0, 0, :, 0]
    C = B.flip(1)
    return Arguments(x.bfloat16(), -x[..., 0].abs() / 4, B.bfloat16(), C.bfloat16(), state, steps, skip, ids, 64)
