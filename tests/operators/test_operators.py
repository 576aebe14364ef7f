"""Operators: the laws, the matrix, special cases, narrow numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from families import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_laws import (
    check_agreement,
    check_operator_laws,
    coefficients,
    outcome,
    random_state,
    with_gradients,
)
from torch.utils import _pytree as pytree

import statewise as sw
from statewise import kernels, native
from statewise.operators.diagonal import DiagonalState

D = torch.float64


@pytest.mark.parametrize("length", [1, 2, 13])
@pytest.mark.parametrize("family", FAMILIES)
def test_laws(family: str, length: int) -> None:
    op, u = FAMILIES[family](3, length, D, length)
    check_operator_laws(op, u)


@pytest.mark.parametrize(
    "family",
    [
        *("DiagonalLTI complex", "CausalConvolution", "SelectiveDiagonal", "SSD", "SSD with any decay"),
        *("DeltaRule, a decay a channel", "DiagonalPlusRankOne"),
    ],
)
def test_laws_past_65_steps(family: str) -> None:
    op, u = FAMILIES[family](1, 131, D, 0)
    check_operator_laws(op, u)


@settings(max_examples=25)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    length=st.sampled_from([1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 37, 63, 64, 65]),
    batch=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_forms_agree_everywhere(family: str, length: int, batch: int, seed: int) -> None:
    op, u = FAMILIES[family](batch, length, D, seed)
    check_agreement(with_gradients(op), u.requires_grad_(), 1e-11)


@settings(max_examples=20)
@given(
    length=st.integers(1, 40),
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    d_head=st.integers(1, 5),
    d_state=st.integers(1, 6),
    chunk_length=st.integers(1, 20),
    seed=st.integers(0, 2**16),
)
def test_ssd_of_any_shape(
    length: int, batch: int, groups: int, per_group: int, d_head: int, d_state: int, chunk_length: int, seed: int
) -> None:
    op, u = FAMILIES["SSD"](batch, length, D, seed, groups * per_group, groups, d_head, d_state, chunk_length)  # type: ignore[call-arg]
    check_agreement(with_gradients(op), u.requires_grad_(), 1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32(family: str) -> None:
    """The fast forms in float32 stay as near to float64 as the recurrence itself does."""
    op, u = FAMILIES[family](2, 65 if family == "DenseLTV" else 257, D, 3)
    narrow = replace(op, **{k: v.to(_narrow(v.dtype)) for k, v in vars(op).items() if isinstance(v, torch.Tensor)})
    want, _ = op(u, form="recurrent")
    for form in op.forms:
        error = (narrow(u.float(), form=form)[0].double() - want).abs().max() / want.abs().max()
        assert error < (1e-5 if "LowRank" in family else 2e-6), (form, float(error))
    check_operator_laws(*_first(narrow, u.float()), atol=2e-5)


def test_float32_over_thousands_of_steps_from_a_state() -> None:
    """With |A| almost 1 what is wrong with a power of A is repeated by every chunk."""
    generator = torch.Generator().manual_seed(0)
    A = torch.polar(
        torch.full((4, 8), 0.9999, dtype=torch.float64), 0.3 * torch.rand(4, 8, generator=generator).double()
    )
    op = sw.DiagonalLTI(A.to(torch.complex64), torch.full((4, 8), 0.01 + 0j), torch.full((4, 8), 1 + 0j))
    u, h = torch.randn(1, 16_000, 4, generator=generator), torch.randn(1, 4, 8, 2, generator=generator)
    exact = sw.DiagonalLTI(*(m.to(torch.complex128) for m in (op.A, op.B, op.C)))
    want = exact(u.double(), DiagonalState(h.double()), form="scan")
    got = op(u.requires_grad_(), DiagonalState(h), form="convolve")
    for found, expected in ((got[0], want[0]), (got[1].h, want[1].h)):
        assert (found - expected).abs().max() < 5e-6 * expected.abs().max()


def _first(op: sw.Operator, u: torch.Tensor, length: int = 11) -> tuple[sw.Operator, torch.Tensor]:
    return op[:length], u[:, :length]


def _narrow(dtype: torch.dtype) -> torch.dtype:
    return torch.complex64 if dtype == torch.complex128 else torch.float32


@pytest.mark.parametrize("family", ["DiagonalLTI complex", "CausalConvolution", "SSD"])
def test_4099_steps(family: str) -> None:
    """A prime length far beyond every block size: outputs, final state and gradients of every form."""
    op, u = FAMILIES[family](1, 4099, D, 4)
    check_agreement(with_gradients(op), u.requires_grad_(), 1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_matrix(family: str) -> None:
    op, u = FAMILIES[family](2, 10, D, 5)
    matrix = op.matrix(10)
    assert torch.equal(matrix, matrix.tril())
    trailing = u.flatten(3) if u.ndim > 3 else u.unsqueeze(-1)
    if not op.time_varying:
        matrix = matrix.expand(2, *matrix.shape)
        if family != "DenseLTV":
            torch.testing.assert_close(matrix[..., 1:, 1:], matrix[..., :-1, :-1])  # Toeplitz
    want = op(u)[0]
    if op.mixes_channels:
        y = torch.einsum("bocts,bscp->btop", matrix, trailing).reshape(want.shape)
    else:
        outputs = matrix.reshape(*matrix.shape[:2], -1, 10, 10)
        y = torch.einsum("bcots,bscp->btcop", outputs, trailing).reshape(want.shape)
    torch.testing.assert_close(y, want)


def test_ssd_matrix_is_a_masked_attention_matrix() -> None:
    """M = L * (C B^T) with L_ts = a_t ... a_{s+1} (Dao & Gu 2024, sec. 5)."""
    op, _ = FAMILIES["SSD one group"](1, 6, D, 6)
    a = op.log_a[0, :, 0].exp()  # type: ignore[attr-defined]
    L = torch.tensor([[a[s + 1 : t + 1].prod() if t >= s else 0.0 for s in range(6)] for t in range(6)], dtype=D)
    scores = op.C[0, :, 0] @ op.B[0, :, 0].T  # type: ignore[attr-defined]
    torch.testing.assert_close(op.matrix()[0, 0], L * scores)


def test_linear_attention_is_ssd_without_decay() -> None:
    """O_i = phi(Q_i)^T S_i / phi(Q_i)^T z_i: keys are B, queries C; a column of ones beside V gives z."""
    Q, K = (torch.nn.functional.elu(torch.randn(2, 9, 2, 4, dtype=D)) + 1 for _ in range(2))
    V = torch.randn(2, 9, 2, 3, dtype=D)
    u = torch.cat([V, torch.ones(2, 9, 2, 1, dtype=D)], -1)
    op = sw.SSD(torch.zeros(2, 9, 2, dtype=D), K, Q)
    y, _ = op(u)
    weights = torch.einsum("blhn,bshn->bhls", Q, K).tril()
    want = torch.einsum("bhls,bshp->blhp", weights / weights.sum(-1, keepdim=True), V)
    for form in op.forms:
        y, _ = op(u, form=form)
        torch.testing.assert_close(y[..., :-1] / y[..., -1:], want)


def test_retention_is_ssd_with_a_constant_decay() -> None:
    """RetNet: Y = (Q K^T * D) V with D_ts = gamma^(t - s) (Sun et al. 2023, arXiv:2307.08621, eq. 5)."""
    gamma = torch.tensor([0.9, 0.99], dtype=D)
    Q, K, V = (torch.randn(1, 20, 2, 4, dtype=D) for _ in range(3))
    t = torch.arange(20, dtype=D)
    decay = (gamma[:, None, None] ** (t[:, None] - t)).tril()
    want = torch.einsum("blhn,bshn,hls,bshp->blhp", Q, K, decay, V)
    op = sw.SSD(gamma.log().expand(1, 20, 2), K, Q)
    for form in op.forms:
        torch.testing.assert_close(op(V, form=form)[0], want)


def test_shift_is_a_causal_convolution() -> None:
    """H3's shift SSM, run as the state-space model it is: A has ones below its diagonal."""
    B, C, u = torch.randn(3, 5, dtype=D), torch.randn(3, 5, dtype=D), torch.randn(2, 12, 3, dtype=D)
    A, h, outputs = torch.diag(torch.ones(4, dtype=D), -1), torch.zeros(2, 3, 5, dtype=D), []
    for u_t in u.unbind(1):
        h = h @ A.T + B * u_t[..., None]
        outputs.append((C * h).sum(-1))
    torch.testing.assert_close(sw.CausalConvolution.from_shift(B, C)(u)[0], torch.stack(outputs, 1))


@pytest.mark.parametrize("backend", ["c", "torch"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (D, 1e-14)])
def test_a_mild_decay_after_a_strong_one_is_as_exact_as_alone(
    backend: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Within one chunk, where decays are differences of sums: outputs, the state and all gradients of every form."""
    if backend == "c" and not native.available():
        pytest.skip(f"no C kernels: {native.why_not()}")
    for strong in (-1e-6, -100.0, -720.0, -1e4, -1e8, -1e12, -1e16, -1e30, torch.finfo(torch.float32).min, -torch.inf):
        op, u = FAMILIES["SSD one group"](1, 90, torch.float32, 1)
        log_a = op.log_a / 10  # type: ignore[attr-defined]
        log_a[:, ::7], log_a[:, 3] = strong, 0.0
        op = with_gradients(replace(op, log_a=log_a))  # type: ignore[type-var]
        exact = with_gradients(replace(op, **{k: m.double() for k, m in coefficients(op).items()}))  # type: ignore[type-var]
        u, state = u.requires_grad_(), random_state(op, u)
        wide_state = type(state)(*(m.detach().double().requires_grad_() for m in state))
        want = outcome(exact, u.detach().double().requires_grad_(), wide_state, _in_form("recurrent"))
        if dtype == D:
            op, u, state = exact, u.detach().double().requires_grad_(), wide_state
        for form in op.forms:
            with kernels.use(backend):
                got = outcome(op, u, state, _in_form(form))
            for found, wanted in zip(pytree.tree_leaves(got), pytree.tree_leaves(want)):
                error = (found.double() - wanted).abs().max()
                assert error <= tolerance * wanted.abs().max().clamp(min=1), (strong, form, float(error))


def _in_form(form: str) -> Callable:
    return lambda op, u, state: op(u, state, form=form)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_keep_a_wide_state(dtype: torch.dtype) -> None:
    op, u = FAMILIES["SSD"](1, 40, torch.float32, 7)
    low = replace(op, B=op.B.to(dtype), C=op.C.to(dtype))  # type: ignore[attr-defined, type-var]
    y, state = low(u.to(dtype), low.initial_state(1, trailing=(3,)))
    assert y.dtype == dtype
    assert state.h.dtype == torch.float32
    want = op(u)[0]
    assert (y - want).abs().max() / want.abs().max() < 0.05
