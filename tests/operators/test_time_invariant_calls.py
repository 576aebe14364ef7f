"""Time-invariant operators: refusals, dtypes, systems that grow, documents."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from families import FAMILIES
from torch import Tensor

import statewise as sw
from statewise.errors import InputError
from statewise.operators import (
    SSD,
    DenseLTI,
    DenseLTV,
    DiagonalLTI,
    DiagonalPlusLowRank,
    Operator,
)
from statewise.operators.time_invariant import TimeInvariant

D = torch.float64
LTI = [name for name, member in FAMILIES.items() if isinstance(member(1, 1, D, 0)[0], TimeInvariant)]


@pytest.mark.parametrize("name", ["DiagonalLTI complex", "DiagonalPlusLowRank", "DenseLTI"])
def test_many_short_documents(name: str) -> None:
    """One long document and many short ones: rows of about one length are laid out together."""
    op, u = FAMILIES[name](2, 300, D, 0)
    starts = torch.rand(2, 300, generator=torch.Generator().manual_seed(0)) < 0.2
    starts[:, 100:250] = False
    state = op.initial_state(2)
    want = op(u, state, starts=starts, form="recurrent")
    torch.testing.assert_close(op(u, state, starts=starts, form="convolve"), want, rtol=0, atol=1e-10)


def test_errors() -> None:
    n = torch.randn(2, 3, dtype=D)
    z = n.to(torch.complex128)
    A = torch.eye(3, dtype=D).expand(2, 3, 3)
    u = torch.randn(1, 4, 2, dtype=D)
    P, dt = z.unsqueeze(1), torch.ones(2, dtype=D)
    wrong: list[tuple[Operator, Tensor, str]] = [
        (DenseLTI(A[:, :2], n, n), u, r"DenseLTI needs A \(w, n, n\)"),
        (DenseLTI(A.to(torch.complex128), n, n), u, "real A, B, C"),
        (DenseLTI(A, n, n), u.to(torch.complex128), "real u"),
        (DenseLTI(A, n, n), u[..., :1], "width 2"),
        (DenseLTV(A[0], n[0], n[:, :2]), u, "DenseLTV needs"),
        (DenseLTV(A[0], n[0], n), u[..., :1], "width 2"),
        (DenseLTV(A[0].to(torch.complex128), n[0], n), u, "real A, B, C"),
        (DiagonalLTI(n, n, n.unsqueeze(0)), u, "DiagonalLTI needs"),
        (DiagonalPlusLowRank(z, z, z, z, dt), u, "DiagonalPlusLowRank needs"),
        (DiagonalPlusLowRank(z, P, z, z, dt[:1]), u, "DiagonalPlusLowRank needs"),
        (DiagonalPlusLowRank(n, P, z, z, dt), u, "complex Lambda"),
        (DiagonalPlusLowRank(z, P, z, z, dt), u[..., :1], "width 2"),
    ]
    for op, x, message in wrong:
        with pytest.raises(InputError, match=message):
            op(x)
    with pytest.raises(InputError, match="LowRankState"):
        DiagonalPlusLowRank(0 * z, P, z, z, dt)(u, DenseLTI(A, n, n).initial_state(1))


def unstable(Q: Tensor | None = None) -> DiagonalPlusLowRank:
    Lambda = torch.complex(torch.full((1, 8), 0.05, dtype=D), 1 + torch.arange(8, dtype=D)[None])
    ones = torch.ones_like(Lambda)
    return DiagonalPlusLowRank(Lambda, torch.zeros_like(ones).unsqueeze(1), ones, ones, torch.ones(1, dtype=D), Q)


def test_positive_real_parts_are_refused() -> None:
    """Without Q, where the sums would be silently wrong; with a Q of its own the filter is taken by squaring."""
    u = torch.randn(1, 512, 1, dtype=D)
    op = unstable()
    for call in (lambda: op(u), lambda: op(u, form="recurrent"), lambda: op.response_by_cauchy_sums(512)):
        with pytest.raises(InputError, match=r"at or below 0.*the largest is 0\.05"):
            call()
    want, _ = replace(op, check_values=False)(u, form="recurrent")
    with_q = replace(op, Q=op.P)
    torch.testing.assert_close(with_q(u, form="convolve")[0], want, rtol=0, atol=1e-9 * float(want.abs().max()))


@pytest.mark.parametrize("value", [0.0, -0.1, float("nan"), float("inf")])
def test_step_sizes_are_positive_and_finite(value: float) -> None:
    op, u = FAMILIES["DiagonalPlusLowRank"](1, 3, D, 0)
    dt = op.dt.clone()  # type: ignore[attr-defined]
    dt[1] = value
    with pytest.raises(InputError, match="positive and finite dt"):
        replace(op, dt=dt)(u)  # type: ignore[type-var]


@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_systems_that_grow_go_in_chunks(dtype: torch.dtype) -> None:
    """The early outputs are right too, though late ones are 1e21 times larger, and later ones overflow."""
    A = torch.tensor([[1.05, 0.5], [0.9, 0.3]], dtype=dtype)
    B = C = torch.ones_like(A)
    u = torch.randn(2, 1024, 2, dtype=dtype)
    for op in (DiagonalLTI(A, B, C), DenseLTI(torch.diag_embed(A), B, C)):
        for length, growth in ((1024, 1.0), (600, 1.2)):
            op = replace(op, A=op.A * growth)
            want, _ = op(u[:, :length], form="recurrent")
            got, none = op(u[:, :length], form="convolve")
            assert none is None
            right = want.abs() < 1e30
            near = 1e-3 if dtype == torch.float32 else 1e-9
            torch.testing.assert_close(got[right], want[right], rtol=near, atol=near)


def test_prepared_operators_serve_several_dtypes() -> None:
    for name in LTI:
        op, u = FAMILIES[name](2, 20, torch.float32, 0)
        prepared = op.prepare()  # type: ignore[attr-defined]
        for x in (u.double(), u):
            state = op.initial_state(2, trailing=tuple(u.shape[3:]), dtype=x.dtype)
            for form in op.forms:
                y, after = prepared(x, state, form=form)
                assert (y.dtype, after.h.dtype) == (x.dtype, x.dtype)
                torch.testing.assert_close(y.float(), op(u, form=form)[0], rtol=1e-4, atol=1e-4)
                assert prepared(x, form=form)[0].dtype == x.dtype


def test_impulse_response_of_no_length() -> None:
    for name in LTI:
        op, u = FAMILIES[name](1, 1, D, 0)
        empty = op.impulse_response(0)  # type: ignore[attr-defined]
        assert empty.shape == (*op(u)[0].shape[2 : 1 + op.C.ndim], 0)  # type: ignore[attr-defined]
        assert empty.dtype == D
        with pytest.raises(InputError, match="length >= 0; got -1"):
            op.impulse_response(-1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_nan_passes_a_start(bad: float) -> None:
    """Of the systems without a time axis, in every form, from the input, from the state and from an overflow."""
    starts = torch.zeros(1, 12, dtype=torch.bool)
    starts[0, 5] = True
    for name in LTI:
        op, u = FAMILIES[name](1, 12, torch.float32, 0)
        trailing = tuple(u.shape[3:])
        rest = op.initial_state(1, trailing=trailing)
        want, _ = op(u, rest, starts=starts, form="recurrent")
        spoilt = u.clone()
        spoilt[:, 2] = bad
        loud = u.clone()
        loud[:, :5] = 3e38
        for form in op.forms:
            for x, state in ((spoilt, rest), (loud, rest), (u, type(rest)(torch.full_like(rest.h, bad)))):
                y, final = op(x, state, starts=starts, form=form)
                torch.testing.assert_close(y[:, 5:], want[:, 5:], rtol=1e-4, atol=1e-4)
                assert final.h.isfinite().all()


def test_no_dtype_is_changed_silently() -> None:
    for name in ("DiagonalLTI complex", "DenseLTI", "DenseLTV", "DiagonalPlusLowRank", "CausalConvolution", "SSD"):
        op, u = FAMILIES[name](1, 4, torch.float32, 0)
        for x in (u.long(), u.to(torch.complex64)):
            with pytest.raises(InputError, match="real"):
                op(x)
        field = "taps" if name == "CausalConvolution" else "B"
        value = getattr(op, field)
        changes = [value.real.long()]
        if name == "CausalConvolution":
            changes.append(value.to(torch.complex64))
        elif name != "SSD":  # whose log_a is wider in mixed precision
            changes.append(value.double() if not value.is_complex() else value.to(torch.complex128))
        for other in changes:
            with pytest.raises(InputError, match="needs"):
                replace(op, **{field: other})(u)  # type: ignore[type-var]
    op, u = FAMILIES["DiagonalPlusLowRank"](1, 4, torch.float32, 0)
    with pytest.raises(InputError, match="int64"):
        replace(op, dt=op.dt.long() + 1)(u)  # type: ignore[attr-defined, type-var]


def test_a_step_keeps_the_dtype_of_the_state() -> None:
    for name in LTI:
        op, u = FAMILIES[name](1, 1, D, 0)
        state = op.initial_state(1, trailing=tuple(u.shape[3:]), dtype=torch.float32)
        assert op.step(u[:, 0], state)[1].h.dtype == torch.float32


def test_plan_names_forms_that_exist() -> None:
    op, u = FAMILIES["DiagonalPlusLowRank"](1, 100, D, 0)
    assert "convolve" in str(sw.explain(op, u))
    assert isinstance(FAMILIES["SSD"](1, 4, D, 0)[0], SSD)
