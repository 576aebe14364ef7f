"""The linear recurrence in Triton, forwards, and backwards for the adjoint.

A program walks through the blocks of a sequence with its channels, and scans each block in parallel; the state stays in
registers. Where there are few sequences, each is cut into pieces: from rest they say what they pass on, one program
chains that, and each starts again from the state that reaches it. Every sum has its order from the shapes and the card:
the same bits on every run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.gpu import on_device_of, options, pieces
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.canary import slope_of
from statewise.kernels.linear_scan.native import expanded
from statewise.kernels.stored import plain

TIME, WARPS = 32, 4  # steps of a block, and a program's warps
REGISTERS = 255  # without a limit the assembler spills some, to have room for more programs
WIDTH, COMPLEX_WIDTH = 64, 32  # channels of a program
_LEAST_BLOCKS = 8  # of a piece


@triton.jit
def scan(
    a, b, h, h0, starts, da, out, last, decays, length, width, line, a_row, a_step, n_pieces, blocks,
    BACK: tl.constexpr, COMPLEX: tl.constexpr, ENDS: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Blocks of a piece, each from the state that the one before left.

    a, b, out  (rows, length, width) numbers, those of a of any stride along rows and steps; complex ones as pairs, so
               that a step is a ``line`` of 2 width
    starts     (rows * n_pieces, width), the states before the pieces, None for 0
    ENDS       nothing goes to ``out``: ``last`` and ``decays`` (as starts) get the states after the pieces and their
               products of a
    BACK       against the time: g_t = b_t + conj(a_{t+1}) g_{t+1}. With h and h0 (rows, width), the states, da gets
               g_t conj(h_{t-1}), and last (rows, width) conj(a_0) g_0
    """
    row = (tl.program_id(0) // n_pieces).to(tl.int64)
    piece = (tl.program_id(0) % n_pieces).to(tl.int64)
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    channel = c < width
    number = c * PARTS
    k = tl.arange(0, TIME).to(tl.int64)
    a += row * a_row
    b += row * length * line
    out += row * length * line
    at_piece = tl.program_id(0).to(tl.int64) * line + number
    state = tl.zeros((WIDTH,), tl.float32)
    state_im = tl.zeros((WIDTH,), tl.float32)
    decay = tl.full((WIDTH,), 1.0, tl.float32)
    decay_im = tl.zeros((WIDTH,), tl.float32)
    if starts is not None:
        state = tl.load(starts + at_piece, mask=channel, other=0.0).to(tl.float32)
        if COMPLEX:
            state_im = tl.load(starts + (at_piece + 1), mask=channel, other=0.0)
    for block in range(0, blocks):
        step = (piece * blocks + block) * TIME + k
        t = length - 1 - step if BACK else step
        real = (step < length)[:, None] & channel[None, :]
        # beyond the end a is 1 and b is 0, so that the last state stays; before the first g of all a is nothing
        s = t + 1 if BACK else t
        known = real & (s < length)[:, None]
        at = t[:, None] * line + number[None, :]
        at_a = s[:, None] * a_step + number[None, :]
        x = tl.load(b + at, mask=real, other=0.0).to(tl.float32)
        m = tl.load(a + at_a, mask=known, other=0.0).to(tl.float32)
        m = tl.where((step < length)[:, None], m, 1.0)
        if COMPLEX:
            x_im = tl.load(b + (at + 1), mask=real, other=0.0)
            m_im = tl.load(a + (at_a + 1), mask=known, other=0.0)
            if BACK:
                m_im = -m_im
            begins = (k == 0)[:, None]
            x_re = tl.where(begins, x + m * state[None, :] - m_im * state_im[None, :], x)
            x_im = tl.where(begins, x_im + m * state_im[None, :] + m_im * state[None, :], x_im)
            p, p_im, x, x_im = tl.associative_scan((m, m_im, x_re, x_im), 0, _complex_chain)
            ends = (k == TIME - 1)[:, None]
            state = tl.sum(tl.where(ends, x, 0.0), 0)
            state_im = tl.sum(tl.where(ends, x_im, 0.0), 0)
            if ENDS:
                q = tl.sum(tl.where(ends, p, 0.0), 0)
                q_im = tl.sum(tl.where(ends, p_im, 0.0), 0)
                before = decay
                decay = before * q - decay_im * q_im
                decay_im = before * q_im + decay_im * q
        else:
            x = tl.where((k == 0)[:, None], x + m * state[None, :], x)
            p, x = tl.associative_scan((m, x), 0, _chain)
            ends = (k == TIME - 1)[:, None]
            state = tl.sum(tl.where(ends, x, 0.0), 0)
            if ENDS:
                decay *= tl.sum(tl.where(ends, p, 0.0), 0)
        if not ENDS:
            tl.store(out + at, x.to(out.dtype.element_ty), mask=real)
            if COMPLEX:
                tl.store(out + (at + 1), x_im, mask=real)
            if BACK:
                of_row = row * length * line
                earlier = (t - 1)[:, None] * line + number[None, :]
                begun = real & (t > 0)[:, None]
                first = real & (t == 0)[:, None]
                at_row = row * line + number[None, :]
                y = tl.load(h + (of_row + earlier), mask=begun, other=0.0).to(tl.float32)
                y += tl.load(h0 + at_row, mask=first, other=0.0).to(tl.float32)
                if COMPLEX:
                    y_im = tl.load(h + (of_row + earlier + 1), mask=begun, other=0.0)
                    y_im += tl.load(h0 + (at_row + 1), mask=first, other=0.0)
                    tl.store(da + (of_row + at), x * y + x_im * y_im, mask=real)
                    tl.store(da + (of_row + at + 1), x_im * y - x * y_im, mask=real)
                else:
                    tl.store(da + (of_row + at), (x * y).to(da.dtype.element_ty), mask=real)
    if ENDS:
        tl.store(last + at_piece, state, mask=channel)
        tl.store(decays + at_piece, decay, mask=channel)
        if COMPLEX:
            tl.store(last + (at_piece + 1), state_im, mask=channel)
            tl.store(decays + (at_piece + 1), decay_im, mask=channel)
    elif BACK:  # known when it is compiled, what follows is not  # noqa: SIM102
        if piece == n_pieces - 1:
            at_row = row * line + number
            m = tl.load(a + number, mask=channel, other=0.0).to(tl.float32)
            if COMPLEX:
                m_im = tl.load(a + (number + 1), mask=channel, other=0.0)
                tl.store(last + at_row, m * state + m_im * state_im, mask=channel)
                tl.store(last + (at_row + 1), m * state_im - m_im * state, mask=channel)
            else:
                tl.store(last + at_row, (m * state).to(last.dtype.element_ty), mask=channel)


@triton.jit
def chain_pieces(first, ends, decays, starts, width, line, n_pieces, COMPLEX: tl.constexpr, WIDTH: tl.constexpr):
    """starts of all pieces from ``first`` (rows, width), the state before them (None for 0), and what each does."""
    row = tl.program_id(0).to(tl.int64)
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    channel = c < width
    at = row * line + c * PARTS
    state = tl.zeros((WIDTH,), tl.float32)
    state_im = tl.zeros((WIDTH,), tl.float32)
    if first is not None:
        state = tl.load(first + at, mask=channel, other=0.0).to(tl.float32)
        if COMPLEX:
            state_im = tl.load(first + (at + 1), mask=channel, other=0.0)
    for piece in range(0, n_pieces):
        at = (row * n_pieces + piece) * line + c * PARTS
        tl.store(starts + at, state, mask=channel)
        m = tl.load(decays + at, mask=channel, other=0.0)
        x = tl.load(ends + at, mask=channel, other=0.0)
        if COMPLEX:
            tl.store(starts + (at + 1), state_im, mask=channel)
            m_im = tl.load(decays + (at + 1), mask=channel, other=0.0)
            before = state
            state = m * before - m_im * state_im + x
            state_im = m * state_im + m_im * before + tl.load(ends + (at + 1), mask=channel, other=0.0)
        else:
            state = m * state + x


@triton.jit
def _chain(a1, b1, a2, b2):
    return a2 * a1, a2 * b1 + b2


@triton.jit
def _complex_chain(a1, a1_im, b1, b1_im, a2, a2_im, b2, b2_im):
    a, a_im = a2 * a1 - a2_im * a1_im, a2 * a1_im + a2_im * a1
    return a, a_im, a2 * b1 - a2_im * b1_im + b2, a2 * b1_im + a2_im * b1 + b2_im


def refusal(a: Tensor, b: Tensor, h0: Tensor) -> str | None:
    return None


def forward(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """a, b (batch, length, ...), h0 (batch, ...) -> h like b."""
    h = torch.empty(b.shape, dtype=b.dtype, device=b.device)
    if h.numel():
        _run(a, _pairs(b), None, _pairs(h0), None, _pairs(h), None, back=False)
    return h


def backward(grad: Tensor, a: Tensor, h: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a (of its whole shape), b and h0 for one of h."""
    da, db, dh0 = (torch.zeros(m.shape, dtype=m.dtype, device=m.device) for m in (h, h, h0))
    if h.numel():
        _run(a, _pairs(grad), _pairs(h), _pairs(h0), _pairs(da), _pairs(db), _pairs(dh0), back=True)
    return da, db, dh0


def _pairs(m: Tensor) -> Tensor:
    m = plain(m)
    return torch.view_as_real(m) if m.is_complex() else m


def _run(
    a: Tensor,
    b: Tensor,
    h: Tensor | None,
    h0: Tensor,
    da: Tensor | None,
    out: Tensor,
    dh0: Tensor | None,
    *,
    back: bool,
) -> None:
    factors, a_row, a_step = expanded(a)
    rows, length, is_complex = a.shape[0], a.shape[1], a.is_complex()
    width = a[0, 0].numel()
    factors = torch.view_as_real(factors) if is_complex else factors
    line, channels = (2 * width, COMPLEX_WIDTH) if is_complex else (width, WIDTH)
    blocks, programs = triton.cdiv(length, TIME), triton.cdiv(width, channels)
    n_pieces = pieces(b.device, rows * programs, blocks, _LEAST_BLOCKS)
    each = triton.cdiv(blocks, n_pieces)
    n_pieces = triton.cdiv(blocks, each)
    sizes = (length, width, line, a_row, a_step, n_pieces, each)
    fixed: dict[str, Any] = {"BACK": back, "COMPLEX": is_complex, "TIME": TIME, "WIDTH": channels}
    fixed |= options(b.device, WARPS, REGISTERS)
    starts = None if back else h0
    with on_device_of(b):
        if n_pieces > 1:
            shape = (rows * n_pieces, width, 2 if is_complex else 1)
            ends, decays, carried = (torch.empty(shape, dtype=torch.float32, device=b.device) for _ in range(3))
            grid = (rows * n_pieces, programs)
            scan[grid](factors, b, h, h0, None, da, out, ends, decays, *sizes, ENDS=True, **fixed)
            chain_pieces[(rows, programs)](
                starts,
                ends,
                decays,
                carried,
                width,
                line,
                n_pieces,
                COMPLEX=is_complex,
                WIDTH=channels,
                **options(b.device, WARPS),
            )
            starts = carried
        scan[(rows * n_pieces, programs)](
            factors, b, h, h0, starts, da, out, dh0, None, *sizes, ENDS=False, **fixed
        )  # fmt: skip


def builds() -> list[Build]:
    sizes = numbers(i32="length width line a_row a_step n_pieces blocks")
    found = []
    for kind, is_complex in (("bf16", False), ("fp16", False), ("fp32", False), ("fp32", True)):
        long, channels = f"*{kind}", COMPLEX_WIDTH if is_complex else WIDTH
        chained = {"first": long, **pointers(fp32="ends decays starts"), **numbers(i32="width line n_pieces")}
        fixed = {"COMPLEX": is_complex, "WIDTH": channels}
        called = f"{kind}{', complex' if is_complex else ''}"
        found.append(Build(chain_pieces, {**chained, **fixed}, WARPS, label=called))
        for back, ends, starts in dict.fromkeys(
            (
                *((False, False, long), (False, False, "*fp32"), (True, False, "*fp32")),
                *((False, True, None), (True, True, None)),
            )
        ):
            given: dict[str, Any] = {**dict.fromkeys(("a", "b", "h", "h0", "da", "out", "last"), long), **sizes}
            given |= {"starts": starts, "decays": "*fp32" if ends else None}
            given |= {"BACK": back, "COMPLEX": is_complex, "ENDS": ends, "TIME": TIME, "WIDTH": channels}
            if ends:
                given["last"] = "*fp32"
            label = f"{called}, {'back' if back else 'ahead'}{', ends' if ends else ''}"
            label += ", a piece" if starts == "*fp32" != long and not back else ""
            for sixteens in ("", "width line a_row a_step"):
                size = "" if sixteens else ", any size"
                found.append(Build(scan, given, WARPS, registers=REGISTERS, sixteens=sixteens, label=label + size))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    b = torch.linspace(-2, 3, 2 * 34 * 66, device=device).sin().view(2, 34, 66)
    a = b.mul(1.7).cos()
    found = [(a, b, b[:, 3]), (torch.complex(a, b) * 0.7, torch.complex(b, a), torch.complex(a, b)[:, 3])]
    if device.type == "cuda":  # one long row, which is cut into pieces
        long = torch.linspace(-2, 3, 2 * TIME * _LEAST_BLOCKS * 3, device=device).mul(9).sin().view(1, -1, 3)
        decays = torch.complex(long.mul(1.7).cos(), long) * 0.7
        found += [(decays.real, long, long[:, 3]), (decays, torch.complex(long, long.cos()), decays[:, 3])]
    return found


def trial(path: Any, a: Tensor, b: Tensor, h0: Tensor) -> list[Tensor]:
    """The states of a path, and its gradients for a fixed slope."""
    h = path.forward(a, b, h0)
    return [h, *path.backward(slope_of(h), a, h, h0)]
