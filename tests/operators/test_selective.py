"""SelectiveDiagonal beyond the laws: options against a loop, shapes, masks, precision, errors."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_laws import check_agreement, with_gradients
from operator_members import selective, selective_complex
from torch import Tensor

from statewise import kernels, native
from statewise.errors import InputError
from statewise.operators import SSD, DiagonalLTI, SelectiveDiagonal, explain
from statewise.systems import discretize_diagonal

D = torch.float64


def loop(op: SelectiveDiagonal, u: Tensor) -> Tensor:
    """Algorithm 2 of the paper by numbers: row, step, channel, state."""
    y = torch.zeros_like(u)
    per_group = op.A.shape[0] // op.B.shape[2]
    for row in range(u.shape[0]):
        for channel in range(u.shape[2]):
            h = torch.zeros(op.A.shape[1], dtype=torch.promote_types(op.A.dtype, op.B.dtype))
            for t in range(u.shape[1]):
                raw = op.dt[row, t, channel] + (0 if op.dt_bias is None else op.dt_bias[channel])
                delta = torch.log1p(raw.exp()) if op.softplus else raw
                A, B, C = op.A[channel], op.B[row, t, channel // per_group], op.C[row, t, channel // per_group]
                hold = delta if op.method == "mamba" else ((delta * A).exp() - 1) / A
                h = (delta * A).exp() * h + hold * B * u[row, t, channel]
                out = (C * h).sum()
                out = 2 * out.real if out.is_complex() else out
                out = out + (0 if op.D is None else op.D[channel] * u[row, t, channel])
                y[row, t, channel] = out * (1 if op.gate is None else F.silu(op.gate[row, t, channel]))
    return y


@pytest.mark.parametrize("method", ["mamba", "zoh"])
@pytest.mark.parametrize("build", [selective, selective_complex])
def test_each_option_by_a_loop(build, method: str) -> None:  # type: ignore[no-untyped-def]
    op, u = build(2, 7, D, 0)
    full = replace(op, method=method)
    for absent in ((), ("D",), ("gate",), ("dt_bias",), ("D", "gate", "dt_bias")):
        some = replace(full, **dict.fromkeys(absent))
        for softplus in (True, False):
            one = replace(some, softplus=softplus, dt=some.dt.abs())
            want = loop(one, u)
            for form in one.forms:
                torch.testing.assert_close(one(u, form=form)[0], want, rtol=1e-11, atol=1e-11)


@settings(max_examples=15)
@given(
    length=st.integers(1, 40),
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    d_state=st.integers(1, 6),
    options=st.booleans(),
    method=st.sampled_from(["mamba", "zoh"]),
    seed=st.integers(0, 2**16),
)
def test_any_shape(
    length: int, batch: int, groups: int, per_group: int, d_state: int, options: bool, method: str, seed: int
) -> None:
    op, u = selective(batch, length, D, seed, groups * per_group, groups, d_state, options, method)
    check_agreement(with_gradients(op), u.requires_grad_(), 1e-11)


def test_groups_are_consecutive_channels_each_with_its_own() -> None:
    op, u = selective(1, 9, D, 0, d=6, groups=3)
    own = replace(op, B=op.B.repeat_interleave(2, 2), C=op.C.repeat_interleave(2, 2))  # type: ignore[attr-defined]
    torch.testing.assert_close(own(u)[0], op(u)[0])


def test_trailing_axes_are_copies_of_the_system() -> None:
    op, u = selective(2, 9, D, 0)
    several = torch.stack([u, 2 * u, u.square()], -1).unsqueeze(-2)  # (2, 9, 4, 1, 3)
    for form in op.forms:
        y, state = op(several, op.initial_state(2, trailing=(1, 3)), form=form)
        assert state.h.shape == (2, 4, 1, 3, 3)
        for i in range(3):
            alone, final = op(several[..., 0, i], op.initial_state(2), form=form)
            torch.testing.assert_close(y[..., 0, i], alone)
            torch.testing.assert_close(state.h[:, :, 0, i], final.h)
        assert op(u.unsqueeze(-1)[..., :0], form=form)[0].shape == (2, 9, 4, 0)


def test_no_steps_leave_the_state_as_it_is() -> None:
    op, u = selective(2, 0, D, 0)
    state = op.initial_state(2)
    state.h.normal_()
    for form in op.forms:
        y, after = op(u, state, form=form)
        assert y.shape == (2, 0, 4)
        torch.testing.assert_close(after, state, rtol=0, atol=0)


@pytest.mark.parametrize("softplus", [True, False])
def test_a_masked_step_passes_the_state_to_the_bit(softplus: bool) -> None:
    """Delta is 0 there, not nearly 0, with any bias."""
    op, u = selective(2, 40, torch.float32, 0)
    op = replace(op, softplus=softplus, dt=op.dt.abs(), dt_bias=op.dt_bias * 3)  # type: ignore[attr-defined, type-var]
    state = op.initial_state(2)
    state.h.normal_()
    for form in op.forms:
        _, after = op(u, state, lengths=torch.tensor([0, 0]), form=form)
        assert torch.equal(after.h, state.h)
        _, after = op(u, state, lengths=torch.tensor([7, 40]), form=form)
        _, want = op[:7](u[:, :7], state, form=form)
        assert torch.equal(after.h[0], want.h[0])


def test_constant_coefficients_are_a_time_invariant_system() -> None:
    """With dt, B, C the same at every step it is DiagonalLTI: exactly held if "zoh", first order if "mamba"."""
    A = torch.complex(-torch.rand(3, 4, dtype=D), torch.randn(3, 4, dtype=D))
    B, C = torch.randn(3, 4, dtype=torch.complex128), torch.randn(3, 4, dtype=torch.complex128)
    dt, u = torch.rand(3, dtype=D) / 10, torch.randn(2, 50, 3, dtype=D)
    A_bar, B_bar = discretize_diagonal(A, B, dt, "zoh")
    for method, held in (("zoh", B_bar), ("mamba", dt.unsqueeze(-1) * B)):
        coefficients = (dt.expand(2, 50, 3), A, B.expand(2, 50, 3, 4), C.expand(2, 50, 3, 4))
        y, _ = SelectiveDiagonal(*coefficients, method=method)(u)
        torch.testing.assert_close(y, DiagonalLTI(A_bar, held, C)(u)[0])


def test_equal_rates_are_an_ssd() -> None:
    """Mamba-2's system is this one with one A a head: the states of a channel then share their decay."""
    op, u = selective(2, 30, D, 0, groups=1, options=False)
    A = op.A[:, :1].expand(4, 3)  # type: ignore[attr-defined]
    y, _ = replace(op, A=A)(u)  # type: ignore[type-var]
    ssd = SSD(op.dt * A[:, 0], op.B, op.C, 8)  # type: ignore[attr-defined]
    torch.testing.assert_close(y, ssd((op.dt * u).unsqueeze(-1))[0].squeeze(-1))  # type: ignore[attr-defined]


def test_the_two_holds_differ_by_second_order_in_dt() -> None:
    op, u = selective(1, 20, D, 0, options=False)
    errors = []
    for scale in (1e-2, 1e-3, 1e-4):
        small = replace(op, dt=op.dt * scale)  # type: ignore[attr-defined, type-var]
        exact = replace(small, method="zoh")(u)[0]  # type: ignore[type-var]
        errors.append(float((small(u)[0] - exact).abs().max() / exact.abs().max()))
    assert errors[0] < 0.05
    for coarse, fine in pairwise(errors):
        assert 7 < coarse / fine < 13  # relative to outputs that are themselves of first order


@pytest.mark.parametrize("form", ["recurrent", "scan"])
def test_low_precision_inputs_keep_a_wide_state(form: str) -> None:
    op, u = selective(1, 40, torch.float32, 7)
    low = {name: getattr(op, name).to(torch.bfloat16) for name in ("dt", "B", "C", "gate")}
    y, state = replace(op, **low)(u.bfloat16(), op.initial_state(1), form=form)  # type: ignore[type-var]
    assert y.dtype == torch.bfloat16
    assert state.h.dtype == torch.float32
    want = op(u)[0]
    assert (y - want).abs().max() / want.abs().max() < 0.05


@pytest.mark.parametrize("form", ["recurrent", "scan"])
@pytest.mark.parametrize("softplus", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_steps_and_bias_are_added_in_float32(dtype: torch.dtype, softplus: bool, form: str) -> None:
    """Also where rows end: the state is that of float64 with the same, rounded numbers."""
    op, u = selective(2, 40, torch.float32, 7)
    op = replace(op, dt=op.dt.abs(), softplus=softplus)  # type: ignore[attr-defined, type-var]
    low = replace(op, **{name: getattr(op, name).to(dtype) for name in ("dt", "B", "C", "gate", "dt_bias")})  # type: ignore[type-var]
    exact = replace(low, **{name: m.double() for name, m in vars(low).items() if isinstance(m, torch.Tensor)})  # type: ignore[type-var]
    u = u.to(dtype)
    for lengths in (None, torch.tensor([40, 23])):
        y, state = low(u, low.initial_state(2), lengths=lengths, form=form)
        want, wide = exact(u.double(), exact.initial_state(2), lengths=lengths, form="recurrent")
        assert y.dtype == dtype
        assert (state.h.double() - wide.h).abs().max() < 1e-6 * wide.h.abs().max()
        assert (y.double() - want).abs().max() < torch.finfo(dtype).eps * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("backend", ["c", "torch"])
def test_large_steps_held_exactly(backend: str, dtype: torch.dtype) -> None:
    """Delta^2 would be infinite; the hold is -1 / A, and its derivative by A is 1 / A^2."""
    if backend == "c" and not native.available():
        pytest.skip(f"no C kernels: {native.why_not()}")
    A = torch.tensor([[-2.0, -0.5]], dtype=dtype, requires_grad=True)
    dt = torch.full((1, 3, 1), 1e25 if dtype == torch.float32 else 1e200, dtype=dtype)
    ones = torch.ones(1, 3, 1, 2, dtype=dtype)
    for form in SelectiveDiagonal.forms:
        with kernels.use(backend):
            y, _ = SelectiveDiagonal(dt, A, ones, ones, method="zoh")(dt.new_ones(1, 3, 1), form=form)
            (gradient,) = torch.autograd.grad(y.sum(), A)
        torch.testing.assert_close(y, y.new_full(y.shape, 2.5))
        torch.testing.assert_close(gradient, 3 / A.detach() ** 2)


def test_large_and_small_steps() -> None:
    """softplus is exact at both ends: a step of e^-30 is not lost, one of 50 is 50."""
    A, ones = -torch.ones(1, 1, dtype=D), torch.ones(1, 1, 1, 1, dtype=D)
    for raw, delta in ((-30.0, math.log1p(math.exp(-30))), (50.0, 50.0)):
        dt = torch.full((1, 1, 1), raw, dtype=D)
        op = SelectiveDiagonal(dt, A, ones, ones, softplus=True)
        for form in op.forms:
            torch.testing.assert_close(op(ones[0], form=form)[0].item(), delta, rtol=1e-14, atol=0)


def test_what_runs() -> None:
    op, u = selective(1, 40, D, 0)
    assert "'scan'" in str(explain(op, u))
    assert "'scan'" in str(explain(op[:1], u[:, :1]))  # one kernel is fewer calls than a step's operations


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dt": torch.zeros(1, 5)}, ["dt (batch, length, d)", "(1, 5)"]),
        ({"A": torch.zeros(3, 3, dtype=D)}, ["A (d, n)", "(3, 3)"]),
        ({"B": torch.zeros(1, 5, 3, 3, dtype=D), "C": torch.zeros(1, 5, 3, 3, dtype=D)}, ["n_groups dividing d"]),
        ({"C": torch.zeros(1, 5, 2, 4, dtype=D)}, ["(1, 5, 2, 4)"]),
        ({"B": torch.zeros(1, 5, 0, 3), "C": torch.zeros(1, 5, 0, 3)}, ["n_groups dividing d"]),
        ({"D": torch.zeros(3)}, ["D of shape (4,)", "(3,)"]),
        ({"dt_bias": torch.zeros(1)}, ["dt_bias of shape (4,)", "(1,)"]),
        ({"gate": torch.zeros(1, 5, 3)}, ["gate of shape (1, 5, 4)", "(1, 5, 3)"]),
        ({"dt": torch.zeros(1, 5, 4, dtype=torch.complex64)}, ["real dt", "complex64"]),
        ({"gate": torch.zeros(1, 5, 4, dtype=torch.int64)}, ["real gate", "int64"]),
        ({"A": torch.zeros(4, 3, dtype=torch.int64)}, ["A of a floating-point or complex dtype", "int64"]),
        ({"method": "euler"}, ["'euler'", "zoh"]),
    ],
)
def test_bad_coefficients_are_refused_in_one_line(change: dict, words: list[str]) -> None:
    op, u = selective(1, 5, D, 0)
    with pytest.raises(InputError) as error:
        replace(op, **change)(u)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_bad_inputs_are_refused() -> None:
    op, u = selective(1, 5, D, 0)
    with pytest.raises(InputError, match=r"\(1, 5, 4\) needs u .* got \(1, 4, 4\)"):
        op(u[:, :4])
    with pytest.raises(InputError, match="real u"):
        op(u.to(torch.complex128))
    with pytest.raises(InputError, match="SelectiveState"):
        op(u, (1,))
    with pytest.raises(InputError, match=r"\(1, 4, 3\), got \(2, 4, 3\)"):
        op(u, op.initial_state(2))


def test_the_definition_adds_the_gradients_of_half_precision_coefficients_in_full() -> None:
    """Two thousand steps of a float16 bias: a float16 sum of their gradients would lose the small ones."""
    torch.manual_seed(0)
    dt, B, C = torch.rand(1, 2000, 1), torch.randn(1, 2000, 1, 2), torch.randn(1, 2000, 1, 2)
    u, A, bias = torch.randn(1, 2000, 1), -torch.rand(1, 2), torch.rand(1)
    gradients = {}
    for dtype in (torch.float16, D):
        halves = [m.half().to(dtype) for m in (dt, A, B, C, bias, u)]
        leaf = halves[4].requires_grad_()
        op = SelectiveDiagonal(*halves[:4], dt_bias=leaf)
        y, _ = op(halves[5], form="recurrent")
        (gradients[dtype],) = torch.autograd.grad(y.double().sum(), leaf)
    assert abs(gradients[torch.float16].double() / gradients[D] - 1) < 2e-3
