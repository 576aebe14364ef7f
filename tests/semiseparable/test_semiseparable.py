"""Semiseparable matrices: entries as the formulas say, products equal to the dense ones."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from semiseparable_examples import (
    LENGTHS,
    STRUCTURES,
    as_matrices,
    by_formula,
    decays,
    randn,
    random_sss,
    transitions,
    work,
)
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from statewise.errors import InputError
from statewise.semiseparable import (
    CumulativeSum,
    OneSemiseparable,
    SequentiallySemiseparable,
)
from statewise.semiseparable.recurrence import recurrence


@given(
    gains=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.5, -0.9, 1.1, 1e-200]), max_size=70),
    seed=st.integers(0, 2**31),
)
def test_recurrence_is_the_fold(gains: list[float], seed: int) -> None:
    x = randn(len(gains) + 1, seed=seed)
    h = [x[0].item()]
    for a, x_t in zip(gains, x[1:].tolist()):
        h.append(a * h[-1] + x_t)
    assert torch.allclose(recurrence(torch.tensor(gains, dtype=x.dtype), x), torch.tensor(h, dtype=x.dtype))


def test_recurrence_over_a_long_sequence() -> None:
    a, x = decays(4099).abs().sqrt(), randn(4099)  # slow decays, and zeros
    h, expected = 0.0, []
    for a_t, x_t in zip(a.tolist(), x.tolist()):
        h = a_t * h + x_t
        expected.append(h)
    torch.testing.assert_close(OneSemiseparable(a) @ x, torch.tensor(expected, dtype=x.dtype))


def test_product_of_one_semiseparable_is_linear_in_length_and_takes_logarithmically_many_calls() -> None:
    counts = {length: work(OneSemiseparable(decays(length)), randn(length, 3)) for length in (1024, 4096)}
    for length, counted in counts.items():
        assert counted.elements["mul"] <= 3 * length * 3
        assert counted.elements["add"] <= 2 * length * 3
        assert counted.calls < 40 * math.log2(length)


@pytest.mark.parametrize("structure", ["scalar", "diagonal"])
def test_product_of_structured_sss_is_linear_in_length_and_state(structure: str) -> None:
    def multiplications(length: int, d_state: int) -> int:
        return work(random_sss(structure, length, d_state), randn(length, 5)).elements["mul"]

    for length, d_state in ((256, 4), (512, 4), (256, 8)):
        assert multiplications(length, d_state) <= 5 * length * d_state * 5


def test_cumulative_sum_multiplies_nothing() -> None:
    counted = work(CumulativeSum(64, torch.float64), randn(64, 3))
    assert counted.elements == {"cumsum": 64 * 3}


@pytest.mark.parametrize("length", [1, 2, 3, 7, 13])
def test_entries_of_one_semiseparable(length: int) -> None:
    a = decays(2, length)
    L = OneSemiseparable(a).dense()
    assert L.shape == OneSemiseparable(a).shape == (2, length, length)
    for b, j, i in itertools.product(range(2), range(length), range(length)):
        expected = math.prod(a[b, i + 1 : j + 1].tolist()) if j >= i else 0.0
        assert L[b, j, i].item() == pytest.approx(expected, rel=1e-14, abs=0)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_products_of_one_semiseparable(length: int, dtype: torch.dtype, tolerance: float) -> None:
    a, x = decays(2, 3, length), randn(2, 3, length, 4)
    exact = OneSemiseparable(a).dense()
    matrix = OneSemiseparable(a.to(dtype))
    y, back = matrix @ x.to(dtype), matrix.transposed_matmul(x.to(dtype))
    assert y.dtype == back.dtype == matrix.dense().dtype == dtype
    close = {"rtol": tolerance, "atol": 10 * tolerance}
    torch.testing.assert_close(y.double(), exact @ x, **close)
    torch.testing.assert_close(back.double(), exact.mT @ x, **close)
    torch.testing.assert_close(matrix.dense().double(), exact, **close)
    torch.testing.assert_close(matrix.solve(y).double(), x, **close)
    torch.testing.assert_close((matrix @ matrix.solve(x.to(dtype))).double(), x, **close)


def test_inverse_is_bidiagonal() -> None:
    a = decays(7)
    inverse = OneSemiseparable(a).solve(torch.eye(7, dtype=a.dtype))
    assert torch.equal(inverse, torch.eye(7, dtype=a.dtype) - torch.diag(a[1:], -1))


@pytest.mark.parametrize(
    ("batch_a", "batch_x"), [((), ()), ((), (2, 3)), ((3,), (2, 3)), ((2, 1), (3,)), ((2, 3), ()), ((1,), (1,))]
)
def test_leading_axes_broadcast(batch_a: tuple[int, ...], batch_x: tuple[int, ...]) -> None:
    a, x = decays(*batch_a, 11), randn(*batch_x, 11, 2)
    matrix = OneSemiseparable(a)
    torch.testing.assert_close(matrix @ x, matrix.dense() @ x)
    torch.testing.assert_close(matrix.transposed_matmul(x), matrix.dense().mT @ x)
    torch.testing.assert_close(matrix.solve(matrix @ x), x.expand(*(matrix @ x).shape))
    vector = randn(11)
    torch.testing.assert_close(matrix @ vector, matrix.dense() @ vector)
    torch.testing.assert_close(matrix.matmul(vector), matrix @ vector)


def test_strided_and_expanded_inputs() -> None:
    a, x = decays(11, 3).mT, randn(2, 11).mT[None].expand(3, 11, 2)
    torch.testing.assert_close(OneSemiseparable(a) @ x, OneSemiseparable(a.contiguous()).dense() @ x)


def test_complex_decays() -> None:
    a, x = torch.complex(decays(9), decays(9, seed=5)), torch.complex(randn(9), randn(9, seed=6))
    torch.testing.assert_close(OneSemiseparable(a) @ x, OneSemiseparable(a).dense() @ x)


def test_first_decay_is_unused() -> None:
    a = decays(8)
    a[0] = torch.nan
    a.requires_grad_()
    matrix = OneSemiseparable(a)
    results = (matrix.dense(), matrix @ randn(8), matrix.transposed_matmul(randn(8)), matrix.solve(randn(8)))
    sum(r.sum() for r in results).backward()
    assert all(r.isfinite().all() for r in results)
    assert a.grad is not None
    assert a.grad.isfinite().all()
    assert a.grad[0] == 0


def test_products_that_underflow_stay_finite_with_their_gradients() -> None:
    a = torch.full((100,), 1e-30, dtype=torch.float32, requires_grad=True)
    y = OneSemiseparable(a) @ torch.ones(100)
    (y.sum() + OneSemiseparable(a).dense().sum()).backward()
    assert torch.equal(y, torch.ones(100))
    assert a.grad is not None
    # From the product: each a_t (t >= 1) meets h_{t-1} = 1; from the dense form: the entry L_{t,t-1} = a_t.
    torch.testing.assert_close(a.grad, torch.cat([torch.zeros(1), torch.full((99,), 2.0)]))


def test_every_block() -> None:
    matrix = OneSemiseparable(decays(2, 6))
    L = matrix.dense()
    cuts = [slice(first, end) for first in range(6) for end in range(first, 7)]
    for rows, columns in itertools.product(cuts, cuts):
        block = matrix.block(rows, columns)
        assert block.shape == L[:, rows, columns].shape
        torch.testing.assert_close(block, L[:, rows, columns])
        if rows.start < rows.stop and columns.start < columns.stop <= rows.start + 1:
            u, v = matrix.factors(rows, columns)
            torch.testing.assert_close(torch.einsum("...j,...i->...ji", u, v), L[:, rows, columns])
        else:
            with pytest.raises(InputError, match="on or below the diagonal"):
                matrix.factors(rows, columns)
    torch.testing.assert_close(matrix.block(slice(-3, None), slice(None, 3)), L[:, -3:, :3])
    with pytest.raises(InputError, match="step 2"):
        matrix.block(slice(0, 6, 2), slice(0, 1))


def test_gradients_of_one_semiseparable() -> None:
    a, x = decays(2, 6).requires_grad_(), randn(6, 2).requires_grad_()

    def every_product(a: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        matrix = OneSemiseparable(a)
        block, across = matrix.block(slice(3, 6), slice(0, 3)), matrix.block(slice(1, 4), slice(1, 5))
        return matrix.dense(), matrix @ x, matrix.transposed_matmul(x), matrix.solve(x), block, across

    assert (a == 0).any()
    assert gradcheck(every_product, (a, x))
    assert gradgradcheck(every_product, (a, x))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("length", "d_state"), [(1, 1), (1, 3), (2, 2), (7, 1), (7, 3), (11, 4)])
def test_entries_of_sss(structure: str, length: int, d_state: int) -> None:
    matrix = random_sss(structure, length, d_state)
    M = matrix.dense()
    assert matrix.shape == M.shape == (length, length)
    torch.testing.assert_close(M, by_formula(as_matrices(matrix.A, d_state, structure), matrix.B, matrix.C))
    assert not M.triu(1).any()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("length", LENGTHS)
def test_products_of_sss(structure: str, length: int) -> None:
    matrix, x = random_sss(structure, length, 3, (2,)), randn(2, length, 2)
    expected = matrix.dense() @ x
    torch.testing.assert_close(matrix @ x, expected)
    single = SequentiallySemiseparable(matrix.A.float(), matrix.B.float(), matrix.C.float())
    assert (single @ x.float()).dtype == single.dense().dtype == torch.float32
    torch.testing.assert_close((single @ x.float()).double(), expected, rtol=1e-4, atol=1e-4)
    vector = randn(length)
    torch.testing.assert_close(matrix @ vector, matrix.dense() @ vector)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_leading_axes_of_sss_broadcast(structure: str) -> None:
    A, B, C = transitions(structure, (1, 3), 9, 2), randn(2, 1, 9, 2), randn(1, 1, 9, 2, seed=8)
    matrix, x = SequentiallySemiseparable(A, B, C), randn(5, 1, 3, 9, 4)
    assert matrix.shape == matrix.dense().shape == (2, 3, 9, 9)
    torch.testing.assert_close(matrix @ x[:, :, :1], matrix.dense() @ x[:, :, :1])
    one = SequentiallySemiseparable(A[0, 1], B[1, 0], C[0, 0])
    torch.testing.assert_close(matrix.dense()[1, 1], one.dense())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_of_sss(structure: str) -> None:
    inputs = [z.requires_grad_() for z in (transitions(structure, (2,), 5, 2), randn(2, 5, 2), randn(2, 5, 2, seed=4))]
    x = randn(5, 2, seed=5).requires_grad_()
    assert gradcheck(lambda A, B, C: SequentiallySemiseparable(A, B, C).dense(), inputs)
    assert gradcheck(lambda A, B, C, x: SequentiallySemiseparable(A, B, C) @ x, [*inputs, x])


@pytest.mark.parametrize("length", [1, 2, 13, 65])
def test_scalar_sss_is_a_scaled_or_masked_one_semiseparable(length: int) -> None:
    a, B, C = decays(length), randn(length, 3), randn(length, 3, seed=7)
    L = OneSemiseparable(a)
    one = SequentiallySemiseparable(a, B[:, :1], C[:, :1])
    torch.testing.assert_close(one.dense(), torch.diag(C[:, 0]) @ L.dense() @ torch.diag(B[:, 0]))
    x = randn(length, seed=8)
    torch.testing.assert_close(one @ x, C[:, 0] * (L @ (B[:, 0] * x)))
    torch.testing.assert_close(SequentiallySemiseparable(a, B, C).dense(), L.dense() * (C @ B.mT))
