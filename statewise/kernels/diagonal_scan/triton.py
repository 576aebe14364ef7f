"""The diagonal scan in Triton: the states of a program's channels in registers, time walked step by step.

Forwards time is walked once. Backwards first to the end, which leaves the states before chunks of TIME steps; then
chunk by chunk from the last to the first, in each forwards once more, and back. More states than a program holds are
split over programs, and the parts of y and of u's gradient are summed, in their order.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.diagonal_scan import pytorch
from statewise.kernels.gpu import on_device_of, options
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.canary import slope_of
from statewise.kernels.stored import plain

__all__ = ["backward", "builds", "forward", "refusal", "samples", "trial"]

TIME = 32  # steps of a chunk
TILES = ((32, 16), (16, 64), (4, 256))  # channels, and states of each
BACK_TILES = ((32, 16), (8, 64), (2, 256))
WARPS = 2
BACK_WARPS = 4  # a thread holds 18 numbers of a state backwards, and 8 forwards: with 2 warps some cards spill
REGISTERS = 255


@triton.jit(do_not_specialize=["length", "width", "r", "n", "line"])
def scan(
    u, A, B, C, D, state, lengths, y, after, length, width, r, n, line,
    WIDTH: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """u (rows, length, width), y (blocks, rows, length, width), to be summed over blocks of STATES; A, B, C
    (width / r, n) and state, after (rows, width, n): pairs, a channel a line."""
    row, part, first, c, k, channel, inside, system, at_state = _places(width, r, n, line, WIDTH, STATES)
    a, a_im, b, b_im, read, read_im = _numbers(A, B, C, system[:, None] * line + k[None, :] * 2, inside)
    skip = _skip(D, system, first)
    h, h_im = _pair(state, at_state, inside)
    for t in range(0, _end(lengths, row, length)):
        x = tl.load(u + ((row * length + t) * width + c), mask=channel, other=0.0).to(tl.float32)
        h, h_im = _step(h, h_im, x, a, a_im, b, b_im)
        out = tl.sum(read * h - read_im * h_im, 1) + skip * x
        tl.store(y + ((part * length + t) * width + c), out.to(y.dtype.element_ty), mask=channel)
    _store(after, at_state, h, h_im, inside)


@triton.jit(do_not_specialize=["length", "width", "r", "n", "line", "slots"])
def scan_backward(
    grad, grad_state, u, A, B, C, D, state, lengths, d_u, d_A, d_B, d_C, d_D, d_state, kept,
    length, width, r, n, line, slots, TIME: tl.constexpr, WIDTH: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """g, the gradient of h_t, against the time: g_t = conj(2 C) grad_t + conj(A) g_{t+1}.

    d_u            as y of ``scan``, with 0 beyond the ends
    d_A, d_B, d_C  (rows, width, n) pairs, and d_D (rows, width): to be summed over rows and over r
    kept           (rows, slots, width, n) pairs, memory for states: before each step of a chunk, then before each chunk
    """
    row, part, first, c, k, channel, inside, system, at_state = _places(width, r, n, line, WIDTH, STATES)
    a, a_im, b, b_im, read, read_im = _numbers(A, B, C, system[:, None] * line + k[None, :] * 2, inside)
    skip = _skip(D, system, first)
    end = _end(lengths, row, length)
    chunks = (end + TIME - 1) // TIME
    slot = (row * 0 + width) * line
    at_kept = (row * slots * width + c)[:, None] * line + k[None, :] * 2
    h, h_im = _pair(state, at_state, inside)
    for chunk in range(0, chunks):
        _store(kept, at_kept + (TIME + chunk) * slot, h, h_im, inside)
        for t in range(chunk * TIME, tl.minimum((chunk + 1) * TIME, end)):
            x = tl.load(u + ((row * length + t) * width + c), mask=channel, other=0.0).to(tl.float32)
            h, h_im = _step(h, h_im, x, a, a_im, b, b_im)
    tl.debug_barrier()  # what one thread has left another may read
    g, g_im = _pair(grad_state, at_state, inside)
    to_A, to_A_im = tl.zeros((WIDTH, STATES), tl.float32), tl.zeros((WIDTH, STATES), tl.float32)
    to_B, to_B_im = tl.zeros((WIDTH, STATES), tl.float32), tl.zeros((WIDTH, STATES), tl.float32)
    to_C, to_C_im = tl.zeros((WIDTH, STATES), tl.float32), tl.zeros((WIDTH, STATES), tl.float32)
    to_D = tl.zeros((WIDTH,), tl.float32)
    for back in range(0, chunks):
        begin = (chunks - 1 - back) * TIME
        count = tl.minimum(end - begin, TIME)
        h, h_im = _pair(kept, at_kept + (TIME + chunks - 1 - back) * slot, inside)
        for step in range(0, count):
            _store(kept, at_kept + step * slot, h, h_im, inside)
            x = tl.load(u + ((row * length + begin + step) * width + c), mask=channel, other=0.0).to(tl.float32)
            h, h_im = _step(h, h_im, x, a, a_im, b, b_im)
        tl.debug_barrier()
        for later in range(0, count):
            step = count - 1 - later
            at_step = (begin + step) * width + c
            of_row = row * length * width + at_step
            x = tl.load(u + of_row, mask=channel, other=0.0).to(tl.float32)
            slope = tl.load(grad + of_row, mask=channel, other=0.0).to(tl.float32)
            to_C += h * slope[:, None]
            to_C_im -= h_im * slope[:, None]
            h, h_im = _pair(kept, at_kept + step * slot, inside)
            g += read * slope[:, None]
            g_im -= read_im * slope[:, None]
            to_u = tl.sum(b * g + b_im * g_im, 1) + skip * slope
            tl.store(d_u + (part * length * width + at_step), to_u.to(d_u.dtype.element_ty), mask=channel)
            to_A += g * h + g_im * h_im
            to_A_im += g_im * h - g * h_im
            to_B += g * x[:, None]
            to_B_im += g_im * x[:, None]
            to_D += slope * x
            g, g_im = a * g + a_im * g_im, a * g_im - a_im * g
        tl.debug_barrier()
    _store(d_A, at_state, to_A, to_A_im, inside)
    _store(d_B, at_state, to_B, to_B_im, inside)
    _store(d_C, at_state, to_C * 2.0, to_C_im * 2.0, inside)
    _store(d_state, at_state, g, g_im, inside)
    if D is not None:
        tl.store(d_D + (row * width + c), to_D, mask=first)


@triton.jit
def _places(width, r, n, line, WIDTH: tl.constexpr, STATES: tl.constexpr):
    """A program's row, and that row in the parts; which channels are, with the first of their states; its channels and
    states; which channels are, which states; the channels' systems; and where the states lie. In 64 bits, and so is all
    that is counted from them."""
    programs = (width + WIDTH - 1) // WIDTH
    row, block = (tl.program_id(0) // programs).to(tl.int64), tl.program_id(1).to(tl.int64)
    c = (tl.program_id(0) % programs).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    k = block * STATES + tl.arange(0, STATES).to(tl.int64)
    channel = c < width
    inside = channel[:, None] & (k < n)[None, :]
    system = (c.to(tl.int32) // r).to(tl.int64)
    part = block * (tl.num_programs(0) // programs) + row
    at_state = (row * width + c)[:, None] * line + k[None, :] * 2
    return row, part, channel & (block == 0), c, k, channel, inside, system, at_state


@triton.jit
def _numbers(A, B, C, at, inside):
    """A, B, and 2 C of the channels."""
    a, a_im = _pair(A, at, inside)
    b, b_im = _pair(B, at, inside)
    read, read_im = _pair(C, at, inside)
    return a, a_im, b, b_im, read * 2.0, read_im * 2.0


@triton.jit
def _skip(D, system, mask):
    if D is None:
        return tl.zeros(system.shape, tl.float32)
    else:
        return tl.load(D + system, mask=mask, other=0.0)


@triton.jit
def _end(lengths, row, length):
    """Where a row ends, in 64 bits."""
    end = row * 0 + length
    if lengths is not None:
        end = tl.maximum(tl.minimum(tl.load(lengths + row), end), 0)
    return end


@triton.jit
def _pair(m, at, inside):
    return tl.load(m + at, mask=inside, other=0.0), tl.load(m + (at + 1), mask=inside, other=0.0)


@triton.jit
def _store(m, at, re, im, inside):
    tl.store(m + at, re, mask=inside)
    tl.store(m + (at + 1), im, mask=inside)


@triton.jit
def _step(h, h_im, x, a, a_im, b, b_im):
    return a * h - a_im * h_im + b * x[:, None], a * h_im + a_im * h + b_im * x[:, None]


def refusal(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> str | None:
    return None


def forward(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    if not u.numel() or not state.numel():
        return pytorch.forward(u, A, B, C, D, state, lengths)
    tile, grid, sizes = _launch(TILES, u, A)
    y, after = _parts(u, grid), torch.empty(state.shape, dtype=state.dtype, device=u.device)
    with on_device_of(u):
        scan[grid](
            *_given(u, A, B, C, D, state, lengths), y, after, *sizes, **tile, **options(u.device, WARPS, REGISTERS)
        )
    return _sum(y, u), after


def backward(
    grad_y: Tensor,
    grad_state: Tensor,
    u: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor,
    lengths: Tensor | None,
) -> list[Tensor | None]:
    """The gradients of u, A, B, C, D and the state. Memory above them: a state for every 32 steps of a row, 32 more
    a row, and four tensors like the state."""
    if not u.numel() or not state.numel():
        return pytorch.backward(grad_y, grad_state, u, A, B, C, D, state, lengths)
    tile, grid, sizes = _launch(BACK_TILES, u, A)
    slots = TIME + triton.cdiv(u.shape[1], TIME)

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=u.device)

    d_u, d_D = _parts(u, grid), room(*state.shape[:3])
    d_A, d_B, d_C, d_state = (room(*state.shape) for _ in range(4))
    kept = room(u.shape[0], slots, *state.shape[1:])
    with on_device_of(u):
        scan_backward[grid](
            plain(grad_y), plain(grad_state), *_given(u, A, B, C, D, state, lengths),
            d_u, d_A, d_B, d_C, d_D, d_state, kept, *sizes, slots, TIME=TIME, **tile,
            **options(u.device, BACK_WARPS, REGISTERS),
        )  # fmt: skip
    shared = [torch.view_as_complex(m.sum((0, 2))) for m in (d_A, d_B, d_C)]
    return [_sum(d_u, u), *shared, None if D is None else d_D.sum((0, 2)), d_state]


def _launch(tiles: Any, u: Tensor, A: Tensor) -> tuple[dict[str, int], tuple[int, int], tuple[int, ...]]:
    """What a kernel is compiled for, its programs, and the sizes as it takes them."""
    (rows, length, w, r), n = u.shape, A.shape[1]
    channels, states = next((tile for tile in tiles if n <= tile[1]), tiles[-1])
    grid = (rows * triton.cdiv(w * r, channels), triton.cdiv(n, states))  # along its first axis any number
    return {"WIDTH": channels, "STATES": states}, grid, (length, w * r, r, n, 2 * n)


def _given(u: Tensor, A: Tensor, B: Tensor, C: Tensor, *others: Tensor | None) -> list[Tensor | None]:
    systems = [torch.view_as_real(plain(m)) for m in (A, B, C)]
    return [plain(u), *systems, *(None if m is None else plain(m) for m in others)]


def _parts(u: Tensor, grid: tuple[int, int]) -> Tensor:
    """Zeros like u for each block of states, in u's dtype where there is one."""
    dtype = u.dtype if grid[1] == 1 else torch.float32
    return torch.zeros(grid[1], *u.shape, dtype=dtype, device=u.device)


def _sum(parts: Tensor, u: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else parts.sum(0).to(u.dtype)


def builds() -> list[Build]:
    """Each tile with all that may be None, u in each dtype; parts of more states than the last tile's are float32."""
    shared = pointers(fp32="A B C state after grad_state d_A d_B d_C d_D d_state kept")
    shared |= numbers(i32="length width r n line slots")
    found = []
    for kernel, tiles, warps in ((scan, TILES, WARPS), (scan_backward, BACK_TILES, BACK_WARPS)):
        for channels, states in tiles:
            for u, y in itertools.product(("bf16", "fp16", "fp32"), repeat=2):
                if u != y and (y != "fp32" or states < tiles[-1][1]):
                    continue
                every: dict[str, Any] = {**shared, "TIME": TIME, "WIDTH": channels, "STATES": states}
                every |= {"u": f"*{u}", "grad": f"*{u}", "y": f"*{y}", "d_u": f"*{y}"}
                every |= pointers(fp32="D", i64="lengths")
                label = f"{channels} x {states}, {u}{'' if u == y else ', parts'}"
                arguments = {key: every[key] for key in kernel.arg_names}
                found.append(Build(kernel, arguments, warps, registers=REGISTERS, label=label))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    u = torch.linspace(-2, 3, 2 * 35 * 10, device=device).sin().view(2, 35, 5, 2)
    real = torch.linspace(-2, 3, 15, device=device).sin().view(5, 3)
    A, B = torch.polar(real.abs(), real * 3), torch.complex(real, real.cos())
    state = torch.linspace(-2, 3, 2 * 10 * 3 * 2, device=device).cos().view(2, 5, 2, 3, 2)
    return [
        (u, A, B, B * 1j, real[:, 0], state, torch.tensor([35, 4], device=device)),
        (u.bfloat16(), A, B, B * 1j, None, state, None),
    ]


def trial(path: Any, *given: Any) -> list[Tensor]:
    """y and the state of a path, and its gradients for fixed slopes."""
    found = path.forward(*given)
    return [m for m in (*found, *path.backward(*map(slope_of, found), *given)) if m is not None]
