"""Time-invariant systems: impulse responses against dense powers, prepared operators, streams, both directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from families import FAMILIES
from operator_laws import check_operator_laws
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.errors import InputError
from statewise.hippo.diagonalize import nplr
from statewise.operators import (
    DenseLTV,
    DiagonalPlusLowRank,
    Operator,
    bidirectional,
)
from statewise.operators.time_invariant import TimeInvariant

D = torch.float64
LTI = [name for name, member in FAMILIES.items() if isinstance(member(1, 1, D, 0)[0], TimeInvariant)]


S4_DT = (1e-3, 1e-2, 1e-1)


def by_powers(A: Tensor, B: Tensor, C: Tensor, length: int) -> Tensor:
    """C A^k B, one step after the other: A (w, n, n), B (w, n), C (w, n)."""
    taps, x = [], B.unsqueeze(1)
    for _ in range(length):
        taps.append((x.squeeze(1) * C).sum(-1))
        x = x @ A.mT
    return torch.stack(taps, -1)


def full(half: Tensor) -> Tensor:
    """Both halves of conjugate pairs, in the last axis."""
    return torch.cat([half, half.conj()], -1)


def s4(Lambda: Tensor, P: Tensor, B: Tensor, seed: int = 0) -> DiagonalPlusLowRank:
    w, n = len(S4_DT), Lambda.shape[-1]
    C = torch.randn(w, n, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))
    dt = torch.tensor(S4_DT, dtype=D)
    return DiagonalPlusLowRank(Lambda.expand(w, n), P.expand(w, *P.shape), B.expand(w, n), C, dt)


def random_low_rank(n: int = 64) -> DiagonalPlusLowRank:
    g = torch.Generator().manual_seed(5)
    half = n // 2
    Lambda = torch.complex(torch.full((half,), -0.5, dtype=D), 10 * torch.randn(half, dtype=D, generator=g))
    P, B = (torch.randn(half, dtype=torch.complex128, generator=g) for _ in range(2))
    return s4(Lambda, P.unsqueeze(0), B)


def s4_systems() -> dict[str, Callable[[], DiagonalPlusLowRank]]:
    def of(measure: str) -> Callable[[], DiagonalPlusLowRank]:
        def build() -> DiagonalPlusLowRank:
            form = nplr(measure, 64)
            return s4(form.Lambda, form.P, form.B)

        return build

    return {**{measure: of(measure) for measure in ("legs", "legt", "fourier", "lagt")}, "random": random_low_rank}


@pytest.mark.parametrize("name", s4_systems())
def test_filter_of_s4_equals_dense_powers(name: str) -> None:
    """N = 64, lengths to 16,384: at most 1e-9 of the largest tap in float64, at 4,096 at most 1e-4 in float32.

    The dense matrix is discretised here by its own linear solve, over all 64 states.
    """
    op = s4_systems()[name]()
    assert op.P.shape[1] == (2 if name == "legt" else 1)
    P, Lambda = full(op.P), full(op.Lambda)
    A = torch.diag_embed(Lambda) - P.mT @ P.conj()
    eye, half = torch.eye(64, dtype=A.dtype), op.dt[:, None, None] / 2
    discrete = torch.linalg.solve(eye - half * A, eye + half * A)
    B = torch.linalg.solve(eye - half * A, (op.dt[:, None] * full(op.B)).unsqueeze(-1)).squeeze(-1)
    want = by_powers(discrete, B, full(op.C), 16_384)
    assert float(want.imag.abs().max()) < 1e-8 * float(want.real.abs().max())
    Lambda, P, B, C = (m.to(torch.complex64) for m in (op.Lambda, op.P, op.B, op.C))
    narrow = DiagonalPlusLowRank(Lambda, P, B, C, op.dt.float())
    for method in ("response_by_cauchy_sums", "response_by_squaring", "impulse_response"):
        for length in (1, 2, 3, 64, 100, 1024, 4096, 16_384):
            got, true = getattr(op, method)(length), want.real[:, :length]
            error = (got - true).abs().amax(-1) / true.abs().amax(-1)
            assert float(error.max()) < 1e-9, (method, length, error)
        got, true = getattr(narrow, method)(4096).double(), want.real[:, :4096]
        error = (got - true).abs().amax(-1) / true.abs().amax(-1)
        assert float(error.max()) < 1e-4, (method, error)


def test_sums_squarings_and_blocks_of_channels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in every gradient. Of wide layers the sums are taken block by block, and again in the backward pass."""
    op, _ = FAMILIES["DiagonalPlusLowRank rank 2, two outputs"](1, 1, D, 3)
    leaves = {k: v.detach().clone().requires_grad_() for k, v in vars(op).items() if isinstance(v, Tensor)}
    op = replace(op, **leaves)  # type: ignore[type-var]
    weight = torch.randn(3, 2, 50, dtype=D)

    def run(method: str) -> tuple[Tensor, ...]:
        response = getattr(op, method)(50)
        return (response, *torch.autograd.grad((response * weight).sum(), list(leaves.values())))

    whole = run("response_by_cauchy_sums")
    want = run("response_by_squaring")
    monkeypatch.setattr("statewise.operators.diagonal_low_rank.KEPT", 1)
    for a, b in [*zip(run("response_by_cauchy_sums"), want), *zip(whole, want)]:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * float(b.detach().abs().max()))


@pytest.mark.parametrize("name", LTI)
@pytest.mark.parametrize("length", [1, 2, 5, 64, 100])
def test_impulse_response_is_the_response_to_an_impulse(name: str, length: int) -> None:
    op, _ = FAMILIES[name](1, 1, D, 2)
    response = op.impulse_response(length)  # type: ignore[attr-defined]
    impulse = torch.zeros(1, length, op.channels[0], dtype=D)
    impulse[:, 0] = 1
    want = op(impulse, form="recurrent")[0][0].movedim(0, -1)
    torch.testing.assert_close(response, want, rtol=0, atol=1e-12 * max(1, float(want.detach().abs().max())))


def test_low_rank_as_a_dense_system() -> None:
    op, u = FAMILIES["DiagonalPlusLowRank rank 2, two outputs"](2, 40, D, 7)
    torch.testing.assert_close(op.dense()(u)[0], op(u)[0], rtol=1e-11, atol=1e-11)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", LTI)
def test_prepared_operators_obey_the_laws(name: str) -> None:
    op, u = FAMILIES[name](3, 13, D, 11)
    prepared = op.prepare()  # type: ignore[attr-defined]
    state = op.initial_state(3, trailing=tuple(u.shape[3:]))
    for form in op.forms:
        for length in (5, 13, 5):
            torch.testing.assert_close(
                prepared(u[:, :length], state, form=form), op(u[:, :length], state, form=form), rtol=0, atol=0
            )
    torch.testing.assert_close(prepared(u)[0], op(u)[0], rtol=0, atol=0)
    assert not prepared(u)[0].requires_grad
    assert len(vars(prepared)["_kept"]) <= 6  # one impulse response at a time, blocks and powers for each power of two
    check_operator_laws(replace(prepared), u)


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for leaf in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


def test_the_cheaper_way_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squaring for the orders that S4 has, sums for large orders and short filters."""
    taken = []
    for method in ("response_by_cauchy_sums", "response_by_squaring"):
        monkeypatch.setattr(DiagonalPlusLowRank, method, lambda self, length, method=method: taken.append(method))
    for n, length in ((64, 4096), (64, 2048), (512, 1024), (64, 1024)):
        z = torch.zeros(1, n // 2, dtype=torch.complex64)
        DiagonalPlusLowRank(z, z.unsqueeze(1), z, z, torch.ones(1)).impulse_response(length)
    assert [method.split("_")[2] for method in taken] == ["squaring", "squaring", "cauchy", "cauchy"]


@pytest.mark.parametrize("name", ["DiagonalLTI complex", "DiagonalPlusLowRank"])
def test_no_array_of_width_states_and_length(name: str) -> None:
    op, _ = FAMILIES[name](1, 1, torch.float32, 3)
    w, n, length = 8, 256, 2048
    wide = {
        k: v.repeat(1, *[1] * (v.ndim - 2), n // v.shape[-1])
        for k, v in vars(op).items()
        if isinstance(v, Tensor) and v.ndim > 1
    }
    wide = {k: v.repeat(3, *[1] * (v.ndim - 1))[:w].detach().clone().requires_grad_() for k, v in wide.items()}
    wide |= {"dt": op.dt.repeat(3)[:w]} if name == "DiagonalPlusLowRank" else {}  # type: ignore[attr-defined]
    op = replace(op, **wide)  # type: ignore[type-var]
    with Largest() as largest:
        y, _ = op(torch.randn(1, length, w), form="convolve")
        y.square().sum().backward()
    assert largest.numel < w * n * length / 2


@pytest.mark.parametrize("name", ["DiagonalLTI complex", "DiagonalPlusLowRank", "DenseLTI"])
def test_a_long_stream_equals_the_whole(name: str) -> None:
    op, u = FAMILIES[name](1, 20_000, D, 1)
    want, _ = op(u)
    op = op.prepare()  # type: ignore[attr-defined]
    state, pieces = op.initial_state(1), []
    for piece in u.split([1, 7, 4096, 4096, 3000, 4096, 4704], 1):
        y, state = op(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), want, rtol=0, atol=1e-10 * float(want.abs().max()))


def test_legs_by_its_definition() -> None:
    """c_{k+1} = e^{A s} c_k + A^-1 (e^{A s} - I) B u with s = log((k + 1)/k); of a constant only c_0 is left."""
    n = 6
    q = torch.arange(n, dtype=D)
    scale = (2 * q + 1).sqrt()
    A = -(torch.outer(scale, scale).tril(-1) + torch.diag(q + 1))
    op = DenseLTV(A, scale, torch.eye(n, dtype=D).unsqueeze(0))
    y, state = op(torch.full((1, 9, 1), 2.5, dtype=D), op.initial_state(1))
    want = torch.zeros(n, dtype=D)
    want[0] = 2.5
    torch.testing.assert_close(y[0, :, 0], want.expand(9, n), atol=1e-12, rtol=0)
    assert state.steps.tolist() == [9]
    u = torch.randn(1, 5, 1, dtype=D)
    y, _ = op(u)
    h = -torch.linalg.solve(A, scale * u[0, 0])
    for k in range(1, 5):
        transition = torch.linalg.matrix_exp(A * torch.log(torch.tensor((k + 1) / k, dtype=D)))
        h = transition @ h + torch.linalg.solve(A, (transition - torch.eye(n, dtype=D)) @ scale) * u[0, k]
        torch.testing.assert_close(y[0, k, 0], h, atol=1e-11, rtol=1e-11)


def test_both_directions_by_definition() -> None:
    """Each document alone, run forward and from its end, and added; also for coefficients that vary with time."""
    pairs = [
        (FAMILIES["DiagonalLTI complex"](2, 23, D, 0)[0], FAMILIES["DiagonalLTI complex"](2, 23, D, 1)[0], 3),
        (FAMILIES["SSD"](2, 23, D, 0)[0], FAMILIES["SSD"](2, 23, D, 1)[0], None),
    ]
    starts = torch.zeros(2, 23, dtype=torch.bool)
    starts[0, [4, 5, 17]] = True
    lengths = torch.tensor([20, 9])
    for ahead, behind, width in pairs:
        u = torch.randn(2, 23, *([width] if width else [4, 3]), dtype=D)
        y, state = bidirectional(ahead, behind)(u, lengths=lengths, starts=starts)
        assert state is None
        whole, _ = bidirectional(ahead, behind)(u)
        torch.testing.assert_close(whole, _sum(ahead, behind, u, 0, 23, slice(0, 2)))
        for row, edges in ((0, [0, 4, 5, 17, 20]), (1, [0, 9])):
            for t0, t1 in pairwise(edges):
                want = _sum(ahead, behind, u, t0, t1, slice(row, row + 1))
                torch.testing.assert_close(y[row : row + 1, t0:t1], want)
        assert not y[0, 20:].any()
        assert not y[1, 9:].any()


def _sum(ahead: Operator, behind: Operator, u: Tensor, t0: int, t1: int, rows: slice) -> Tensor:
    def part(op: Operator) -> Operator:
        return replace(op, **{name: getattr(op, name)[rows, t0:t1] for name in op.time_varying})  # type: ignore[type-var]

    def flipped(op: Operator) -> Operator:
        return replace(op, **{name: getattr(op, name).flip(1) for name in op.time_varying})  # type: ignore[type-var]

    piece = u[rows, t0:t1]
    return part(ahead)(piece)[0] + flipped(part(behind))(piece.flip(1))[0].flip(1)


def test_both_directions_have_no_state() -> None:
    op, u = FAMILIES["DenseLTI"](1, 5, D, 0)
    both = bidirectional(op, op)
    with pytest.raises(InputError, match="no state"):
        both.initial_state(1)
    with pytest.raises(InputError, match="no state"):
        both(u, op.initial_state(1))
