"""Ranks of semiseparable matrices, the way back from a dense one, and errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from semiseparable_examples import (
    STRUCTURES,
    decays,
    randn,
    random_sss,
)
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable import (
    CumulativeSum,
    OneSemiseparable,
    SequentiallySemiseparable,
    block_ranks,
    semiseparable_rank,
)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("d_state", [1, 2, 4])
def test_ranks_of_sss_are_at_most_the_state(structure: str, d_state: int) -> None:
    matrix = random_sss(structure, 13, d_state, (2,))
    ranks = matrix.block_ranks()
    assert ranks.shape == (2, 13)
    assert ranks.max() <= d_state
    assert semiseparable_rank(matrix.dense()) == ranks.max()


def test_generic_sss_reaches_its_state() -> None:
    A = randn(12, 3, 3)
    ranks = SequentiallySemiseparable(A, randn(12, 3, seed=1), randn(12, 3, seed=2)).block_ranks()
    assert ranks.tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1]


@pytest.mark.parametrize("a", [decays(9), torch.ones(9), torch.zeros(9), -torch.ones(9), torch.tensor([2.0])])
def test_one_semiseparable_has_rank_one_everywhere(a: Tensor) -> None:
    assert OneSemiseparable(a).block_ranks().eq(1).all()
    u, v = OneSemiseparable(a).factors(slice(len(a) // 2, None), slice(0, len(a) // 2 + 1))
    assert u[0] == v[-1] == 1


def test_ranks_of_known_matrices() -> None:
    full = randn(7, 7).tril()
    assert block_ranks(full).tolist() == [min(t + 1, 7 - t) for t in range(7)]
    assert semiseparable_rank(torch.zeros(5, 5)) == 0
    assert semiseparable_rank(torch.eye(5)) == 1
    band = torch.ones(12, 12).tril() - torch.ones(12, 12).tril(-4)  # a sliding window of 4
    assert semiseparable_rank(band) == 4
    assert semiseparable_rank(torch.stack([torch.eye(12), band])) == 4
    softmax = randn(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf).softmax(-1)
    assert semiseparable_rank(softmax) == 4  # no structure: half of the length


def test_no_block_below_the_diagonal_has_a_larger_rank() -> None:
    M = random_sss("dense", 10, 2).dense()
    for row, column in itertools.product(range(10), range(10)):
        for height, width in ((2, 2), (3, 4), (10, 10)):
            block = M[row : row + height, max(0, column - width + 1) : column + 1]
            if column <= row:
                assert torch.linalg.matrix_rank(block) <= 2


def test_tolerance_of_the_rank() -> None:
    M = random_sss("diagonal", 9, 2).dense() + 1e-7 * randn(9, 9).tril()
    assert semiseparable_rank(M) == 5
    assert semiseparable_rank(M, tolerance=1e-4) == 2
    back = SequentiallySemiseparable.from_dense(M, tolerance=1e-4)
    assert back.B.shape == (9, 2)
    torch.testing.assert_close(back.dense(), M, rtol=0, atol=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("length", "d_state"), [(1, 1), (2, 1), (5, 2), (13, 3), (31, 4), (65, 2)])
def test_round_trip(structure: str, length: int, d_state: int) -> None:
    M = random_sss(structure, length, d_state).dense()
    back = SequentiallySemiseparable.from_dense(M)
    assert back.A.shape == (length, *back.B.shape[1:], *back.B.shape[1:])
    assert back.B.shape[1] <= d_state
    assert back.B.shape[1] == semiseparable_rank(M)
    torch.testing.assert_close(back.dense(), M)
    x = randn(length, 2, seed=9)
    torch.testing.assert_close(back @ x, M @ x)
    assert torch.linalg.matrix_norm(back.A, ord=2).max() <= 1 + 1e-12


@given(length=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_any_lower_triangular_matrix_is_semiseparable_with_half_its_length(length: int, seed: int) -> None:
    M = randn(length, length, seed=seed).tril()
    back = SequentiallySemiseparable.from_dense(M)
    assert back.B.shape[1] == semiseparable_rank(M) == (length + 1) // 2
    torch.testing.assert_close(back.dense(), M)


@pytest.mark.parametrize(
    "M",
    [torch.zeros(4, 4), torch.eye(5), torch.ones(6, 6).tril(), torch.ones(9, 9).tril() - torch.ones(9, 9).tril(-3)],
    ids=["zeros", "identity", "cumulative sum", "window"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_round_trip_of_special_matrices(M: Tensor, dtype: torch.dtype) -> None:
    back = SequentiallySemiseparable.from_dense(M.to(dtype))
    assert back.dtype == dtype
    assert back.B.shape[1] == max(1, semiseparable_rank(M))
    torch.testing.assert_close(back.dense(), M.to(dtype))


def test_round_trip_of_complex_coefficients() -> None:
    A, B, C = (torch.complex(randn(7, 2, seed=s), randn(7, 2, seed=s + 1)) for s in (1, 3, 5))
    M = SequentiallySemiseparable(A.tanh(), B, C).dense()
    torch.testing.assert_close(SequentiallySemiseparable.from_dense(M).dense(), M)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneSemiseparable(torch.ones(2, 0)), r"T >= 1, got \(2, 0\)"),
        (lambda: OneSemiseparable(torch.tensor(1.0)), r"T >= 1, got \(\)"),
        (lambda: OneSemiseparable(torch.ones(3, dtype=torch.int64)), "floating-point a, got torch.int64"),
        (lambda: CumulativeSum(0), "at least 1, got 0"),
        (lambda: OneSemiseparable(torch.ones(3)) @ torch.ones(4), r"shape \(3, 3\) got .* \(4,\); expected \(3,"),
        (lambda: OneSemiseparable(torch.ones(3)) @ torch.ones(2, 4, 2), r"\(2, 4, 2\); expected"),
        (lambda: OneSemiseparable(torch.ones(3)) @ torch.tensor(1.0), "expected"),
        (lambda: OneSemiseparable(torch.ones(3)).solve(torch.ones(3).double()), "torch.float32 but got"),
        (lambda: OneSemiseparable(torch.ones(2, 3)).transposed_matmul(torch.ones(4, 3, 1)), "do not broadcast"),
        (
            lambda: SequentiallySemiseparable(torch.ones(3), torch.ones(3, 2), torch.ones(3, 4)),
            r"one shape .* C \(3, 4",
        ),
        (lambda: SequentiallySemiseparable(torch.ones(0), torch.ones(0, 2), torch.ones(0, 2)), "T, N >= 1"),
        (lambda: SequentiallySemiseparable(torch.ones(3), torch.ones(3), torch.ones(3)), r"B and C of one shape"),
        (lambda: SequentiallySemiseparable(torch.ones(4, 2), torch.ones(3, 2), torch.ones(3, 2)), r"A \(4, 2\)"),
        (lambda: SequentiallySemiseparable(torch.ones(3, 2, 3), torch.ones(3, 2), torch.ones(3, 2)), r"\(3, 2, 3\)"),
        (lambda: SequentiallySemiseparable(torch.ones(3), torch.ones(1, 3, 2), torch.ones(1, 3, 2)), "expected A"),
        (lambda: SequentiallySemiseparable(torch.tensor(1.0), torch.ones(3, 2), torch.ones(3, 2)), "expected A"),
        (
            lambda: SequentiallySemiseparable(torch.ones(3).double(), torch.ones(3, 2), torch.ones(3, 2)),
            "one floating-point dtype",
        ),
        (
            lambda: SequentiallySemiseparable(torch.ones(2, 3), torch.ones(4, 3, 2), torch.ones(4, 3, 2)),
            "do not broadcast",
        ),
        (lambda: semiseparable_rank(torch.ones(3, 2)), r"square matrix .* got shape \(3, 2\)"),
        (lambda: block_ranks(torch.ones(0, 0)), "T >= 1"),
        (lambda: block_ranks(torch.ones(3)), "square"),
        (lambda: block_ranks(torch.ones(3, 3, dtype=torch.int64).tril()), "floating-point matrix, got torch.int64"),
        (lambda: block_ranks(torch.full((2, 2), torch.nan).tril()), "NaN or infinite"),
        (lambda: block_ranks(torch.ones(3, 3)), r"entry \(0, 1\) above the diagonal"),
        (lambda: SequentiallySemiseparable.from_dense(torch.ones(3, 3).triu()), r"\(0, 1\) above .* upper-triangular"),
        (lambda: SequentiallySemiseparable.from_dense(torch.ones(2, 3, 3).tril()), r"one matrix .* \(2, 3, 3\)"),
        (lambda: SequentiallySemiseparable.from_dense(torch.ones(0, 0)), "T >= 1"),
    ],
)
def test_errors_of_matrices(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_matrices_are_frozen() -> None:
    with pytest.raises(AttributeError):
        OneSemiseparable(torch.ones(3)).a = torch.zeros(3)  # type: ignore[misc]
