"""Systems whose coefficients are constant, and DenseLTV: every form against an independent loop over time in float64.

The loop knows matrices: each system is written down as h = A_t h + B_t u, y = C h + D u with dense matrices, by the
equations of the papers and not by ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

import statewise as sw
from fuzz.draw import Draw, Finding, expect_close
from statewise import kernels, native
from statewise.operators import bidirectional
from statewise.operators.base import Operator


class Case(NamedTuple):
    """A system of width w as we have it, and as the loop has it.

    A, B:    of step k, (w, n, n) and (w, n), in float64 or complex128   C: (w, p, n)   D: (w, p)
    outputs: () or (p,)   pairs: the output is 2 Re(C h)   of: the dtype of the operator's coefficients
    """

    operator: Any
    A: Callable[[int], Tensor]
    B: Callable[[int], Tensor]
    C: Tensor
    D: Tensor
    outputs: tuple[int, ...]
    pairs: bool
    of: torch.dtype


def check(draw: Draw) -> None:
    family = draw.choice(sorted(FAMILIES), "family")
    case = FAMILIES[family](draw)
    w = case.C.shape[0]
    batch, length = draw.size(3, "batch"), draw.size(20 if family == "varying" else 130, "length")
    trailing = draw.choice([(), (), (2,), (0,)], "trailing")
    dtype = case.of if draw.chance(0.8) else draw.choice([torch.bfloat16, torch.float32, torch.float64])
    draw.note("dtype", (dtype, case.of))
    learns = draw.chance(0.2, "learns")
    u = draw.normal(batch, length, w, *trailing, dtype=dtype).requires_grad_(learns)
    lengths = draw.lengths(batch, length) if draw.chance(0.3) else None
    starts = draw.starts(batch, length) if draw.chance(0.3) else None
    backend = draw.choice(["auto", "torch"] if native.available() else ["torch"], "backend")
    autocast = draw.chance(0.2, "autocast")
    masks = {"lengths": lengths, "starts": starts}

    with (
        kernels.use(backend),
        torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext(),
        torch.set_grad_enabled(learns),
    ):
        if draw.chance(0.1, "bidirectional"):
            y, _ = bidirectional(case.operator)(draw.laid_out(u), **masks)
            wanted, _ = loop(case, u, None, lengths, starts)
            turned, _ = loop(case, turn(u, lengths, starts), None, lengths, starts)
            return compare(draw, "y", y, wanted + turn(turned, lengths, starts), dtype, case)
        form = draw.choice([*case.operator.forms, None], "form")
        state = drawn_state(draw, case.operator, batch, trailing) if draw.chance(0.6, "state") else None
        wanted, final = loop(case, u, state, lengths, starts)
        if state is None or lengths is not None or starts is not None:
            y, after = case.operator(draw.laid_out(u), state, form=form, **masks)
        else:
            cut = draw.integer(0, length, "cut")
            first, after = case.operator(draw.laid_out(u[:, :cut]), state, form=form)
            second, after = case.operator(draw.laid_out(u[:, cut:]), after, form=form)
            y = torch.cat([first, second], 1)
    compare(draw, "y", y, wanted, dtype, case)
    if state is not None:
        kept = -1 if family == "convolution" else None
        compare(draw, "state", as_numbers(case, after)[..., :kept], final[..., :kept], dtype, case)


def compare(draw: Draw, what: str, got: Tensor, wanted: Tensor, dtype: torch.dtype, case: Case) -> None:
    single = {dtype, case.of} & {torch.float32, torch.complex64}
    tolerance = 2e-2 if torch.bfloat16 in (dtype,) else 2e-3 if single else 1e-9
    name = f"{type(case.operator).__name__} {draw.notes.get('form', '')}: {what}"
    if got.is_complex() != wanted.is_complex():
        raise Finding(f"{name}: {got.dtype} where {wanted.dtype} is wanted")
    for part in ("real", "imag") if got.is_complex() else ("real",):
        one, other = (getattr(m, part) for m in (got.detach(), wanted))
        expect_close(name, one, other, tolerance, float(wanted.abs().max()) if wanted.numel() else None)


def drawn_state(draw: Draw, operator: Operator, batch: int, trailing: tuple[int, ...]) -> Any:
    rest = operator.initial_state(batch, trailing=trailing)
    leaves = []
    for leaf in rest:
        if leaf.is_floating_point():
            leaves.append(draw.laid_out(draw.normal(*leaf.shape, dtype=leaf.dtype)))
        else:
            leaves.append(torch.full_like(leaf, draw.integer(0, 5)))
    return type(rest)(*leaves)


def as_numbers(case: Case, state: Any) -> Tensor:
    """(batch, w, *trailing, n) as the loop has it, in float64 or complex128."""
    h: Tensor = state[0].detach().double()
    if isinstance(case.operator, sw.CausalConvolution):  # the last input first, and one more than is kept
        return torch.nn.functional.pad(h.movedim(1, -1).flip(-1), (0, 1))
    h = torch.complex(h[..., 0], h[..., 1]) if case.pairs else h
    return torch.cat([h, h.conj()], -1) if isinstance(case.operator, sw.DiagonalPlusLowRank) else h


def loop(case: Case, u: Tensor, state: Any, lengths: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """y (batch, length, w, [p,] *trailing) and the last states, row by row and step by step."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        batch, length, w, *trailing = u.shape
        r = math.prod(trailing)
        n = case.C.shape[-1]
        number = torch.complex128 if case.pairs else torch.float64
        x = u.double().reshape(batch, length, w, r)
        y = torch.zeros(batch, length, w, case.C.shape[1], r, dtype=torch.float64)
        finals = torch.zeros(batch, w, r, n, dtype=number)
        begin = torch.zeros_like(finals) if state is None else as_numbers(case, state).reshape(finals.shape).to(number)
        for b in range(batch):
            h = begin[b]
            age = int(state.steps[b]) if state is not None and hasattr(state, "steps") else 0
            for t in range(length if lengths is None else int(lengths[b])):
                if starts is not None and bool(starts[b, t]):
                    h, age = torch.zeros_like(h), 0
                A, B = case.A(age).to(number), case.B(age).to(number)
                h = torch.einsum("wij,wrj->wri", A, h) + B[:, None] * x[b, t, :, :, None]
                seen = torch.einsum("wpn,wrn->wpr", case.C.to(number), h)
                y[b, t] = (2 * seen.real if case.pairs else seen) + case.D[..., None] * x[b, t, :, None]
                age += 1
            finals[b] = h
        y = y.reshape(batch, length, w, *case.outputs, *trailing)
        return y, finals.reshape(batch, w, *trailing, n)


def turn(x: Tensor, lengths: Tensor | None, starts: Tensor | None) -> Tensor:
    """Each document of each row reversed in itself."""
    turned = x.clone()
    for b in range(x.shape[0]):
        end = x.shape[1] if lengths is None else int(lengths[b])
        edges = {0, end} | ({t for t in range(end) if bool(starts[b, t])} if starts is not None else set())
        places = sorted(edges)
        for first, last in pairwise(places):
            turned[b, first:last] = x[b, first:last].flip(0)
    return turned


def _sizes(draw: Draw, least: int = 0) -> tuple[int, int, tuple[int, ...], torch.dtype]:
    w, n = draw.integer(0 if draw.chance(0.05) else 1, 4, "width"), draw.integer(least, 7, "n")
    return w, n, draw.choice([(), (), (1,), (3,)], "outputs"), draw.choice([torch.float64, torch.float32], "of")


def _complex(draw: Draw, *shape: int) -> Tensor:
    return torch.complex(draw.normal(*shape), draw.normal(*shape))


def _wide(m: Tensor) -> Tensor:
    return m.to(torch.complex128 if m.is_complex() else torch.float64)


def _narrow(draw: Draw, of: torch.dtype, *given: Tensor) -> list[Tensor]:
    """In the dtype to compute in, laid out somehow."""
    pair = torch.complex128 if of == torch.float64 else torch.complex64
    return [draw.laid_out(m.to(pair if m.is_complex() else of)) for m in given]


def _outputs(C: Tensor) -> Tensor:
    return C if C.ndim == 3 else C.unsqueeze(1)


def diagonal(draw: Draw) -> Case:
    w, n, outputs, of = _sizes(draw)
    pairs = draw.chance(0.6, "pairs")
    size = draw.choice([0.5, 0.99, 1.0, 1.05], "|A|")
    drawn = (lambda *shape: _complex(draw, *shape)) if pairs else draw.normal
    A = drawn(w, n)
    A = torch.where(A.abs() > 0, A / A.abs().clamp(min=1e-9), A) * size
    A, B, C, D = _narrow(draw, of, A, drawn(w, n), drawn(w, *outputs, n), draw.normal(w, *outputs))
    skip = draw.chance(0.5, "skip")
    matrix, gain = torch.diag_embed(_wide(A)), _wide(B)
    zero = torch.zeros(w, math.prod(outputs), dtype=torch.float64)
    read = _wide(D).reshape(w, -1) if skip and w else zero
    op = sw.DiagonalLTI(A, B, C, D if skip else None)
    return Case(op, lambda k: matrix, lambda k: gain, _outputs(_wide(C)), read, outputs, pairs, of)


def low_rank(draw: Draw) -> Case:
    w, n, outputs, of = _sizes(draw, least=1)
    rank = draw.integer(1, 2, "rank")
    Lambda = torch.complex(-draw.normal(w, n).abs() - 0.05, 3 * draw.normal(w, n))
    P, B, C = _complex(draw, w, rank, n), _complex(draw, w, n), _complex(draw, w, *outputs, n)
    dt = draw.normal(w).abs() * 0.3 + 1e-3
    Lambda, P, B, C, dt = _narrow(draw, of, Lambda, P, B, C, dt)
    op = sw.DiagonalPlusLowRank(Lambda, P, B, C, dt)
    # the loop has both halves of the pairs, which the low rank mixes: x' = (diag(Lambda) - P Q*) x
    L, V, b, step = _wide(Lambda), _wide(P), _wide(B), dt.double()
    both = torch.cat([V, V.conj()], -1)
    full = torch.diag_embed(torch.cat([L, L.conj()], -1)) - both.mT @ both.conj()
    half, eye = step[:, None, None] / 2, torch.eye(2 * n, dtype=torch.complex128)
    inverse = torch.linalg.inv(eye - half * full)
    A = inverse @ (eye + half * full)
    gain = (inverse @ (step[:, None] * torch.cat([b, b.conj()], -1)).unsqueeze(-1)).squeeze(-1)
    read = torch.cat([_outputs(_wide(C)), _outputs(_wide(C)).conj()], -1) / 2
    zero = torch.zeros(w, read.shape[1], dtype=torch.float64)
    return Case(op, lambda k: A, lambda k: gain, read, zero, outputs, True, of)


def dense(draw: Draw) -> Case:
    w, n, outputs, of = _sizes(draw)
    A = draw.normal(w, n, n)
    if n:
        A = draw.choice([0.5, 0.99, 1.02], "|A|") * A / torch.linalg.matrix_norm(A, 2)[:, None, None].clamp(min=1e-9)
    A, B, C = _narrow(draw, of, A, draw.normal(w, n), draw.normal(w, *outputs, n))
    matrix, gain = _wide(A), _wide(B)
    zero = torch.zeros(w, math.prod(outputs), dtype=torch.float64)
    return Case(sw.DenseLTI(A, B, C), lambda k: matrix, lambda k: gain, _outputs(_wide(C)), zero, outputs, False, of)


def varying(draw: Draw) -> Case:
    w, n, outputs, of = _sizes(draw, least=1)
    A = -torch.eye(n, dtype=torch.float64) - torch.rand(n, n, generator=draw.generator, dtype=torch.float64).tril()
    A, B, C = _narrow(draw, of, A, draw.normal(n), draw.normal(w, *outputs, n))
    op = sw.DenseLTV(A, B, C)
    matrix, gain = _wide(A), _wide(B)

    def step(k: int) -> tuple[Tensor, Tensor]:
        settled = torch.linalg.solve(matrix, gain)
        if k == 0:
            return torch.zeros_like(matrix), -settled
        power = torch.matrix_exp(matrix * math.log((k + 1) / k))
        return power, power @ settled - settled

    zero = torch.zeros(w, math.prod(outputs), dtype=torch.float64)
    return Case(
        op, lambda k: step(k)[0].expand(w, n, n), lambda k: step(k)[1].expand(w, n), _outputs(_wide(C)), zero, outputs,
        False, of,
    )  # fmt: skip


def convolution(draw: Draw) -> Case:
    w, _, _, of = _sizes(draw)
    n_taps = draw.choice([1, 2, 4, 16, 17, 40, 130], "taps")
    (taps,) = _narrow(draw, of, draw.normal(w, n_taps))
    # h: the inputs so far, the last one first, u_t among them
    shift, first = torch.zeros(w, n_taps, n_taps, dtype=torch.float64), torch.zeros(w, n_taps, dtype=torch.float64)
    shift[:, 1:, :-1] = torch.eye(n_taps - 1, dtype=torch.float64)
    first[:, 0] = 1
    zero = torch.zeros(w, 1, dtype=torch.float64)
    return Case(
        sw.CausalConvolution(taps), lambda k: shift, lambda k: first, taps.double().unsqueeze(1), zero, (), False, of
    )


FAMILIES: dict[str, Callable[[Draw], Case]] = {
    "diagonal": diagonal,
    "low rank": low_rank,
    "dense": dense,
    "varying": varying,
    "convolution": convolution,
}
