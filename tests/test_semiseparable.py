"""Semiseparable matrices: entries as the formulas say, products equal to the dense ones, ranks, both orders."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from statewise.errors import InputError
from statewise.operators import SSD
from statewise.semiseparable import (
    CumulativeSum,
    LinearSteps,
    OneSemiseparable,
    QuadraticSteps,
    SequentiallySemiseparable,
    block_ranks,
    masked_attention_contraction,
    semiseparable_rank,
    ssm_contraction,
)
from statewise.semiseparable.recurrence import recurrence

LENGTHS = (1, 2, 3, 7, 13, 63, 64, 65, 257)
STRUCTURES = ("scalar", "diagonal", "dense")


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def decays(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Between -1 and 1, and every fifth one exactly zero."""
    a = randn(*shape, seed=seed).tanh()
    a.view(-1)[4::5] = 0
    return a.to(dtype)


def transitions(structure: str, batch: tuple[int, ...], length: int, d_state: int, seed: int = 2) -> Tensor:
    trailing = {"scalar": (), "diagonal": (d_state,), "dense": (d_state, d_state)}[structure]
    return decays(*batch, length, *trailing, seed=seed) / (d_state**0.5 if structure == "dense" else 1)


def random_sss(structure: str, length: int, d_state: int, batch: tuple[int, ...] = (), seed: int = 3) -> Any:
    A = transitions(structure, batch, length, d_state, seed)
    B, C = randn(*batch, length, d_state, seed=seed + 1), randn(*batch, length, d_state, seed=seed + 2)
    return SequentiallySemiseparable(A, B, C)


def by_formula(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """M_ji = C_j^T A_j ... A_{i+1} B_i, one entry after the other; A (T, N, N), B and C (T, N)."""
    length, d_state = B.shape
    M = torch.zeros(length, length, dtype=B.dtype)
    for j in range(length):
        for i in range(j + 1):
            product = torch.eye(d_state, dtype=B.dtype)
            for k in range(i + 1, j + 1):
                product = A[k] @ product
            M[j, i] = C[j] @ product @ B[i]
    return M


def as_matrices(A: Tensor, d_state: int, structure: str) -> Tensor:
    if structure == "dense":
        return A
    return torch.diag_embed(A if structure == "diagonal" else A[..., None].expand(*A.shape, d_state))


# ---------------------------------------------------------------------------------------------- the recurrence


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


class Work(TorchDispatchMode):
    """Counts calls, and the elements that multiplications and additions write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.elements = 0, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        name = func.overloadpacket.__name__
        if name in ("mul", "add", "mm", "bmm", "cumsum"):
            self.elements[name] += result.numel()
        return result


def work(matrix: Any, x: Tensor) -> Work:
    with Work() as counted:
        matrix @ x
    return counted


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


# --------------------------------------------------------------------------------------------- 1-semiseparable


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


# -------------------------------------------------------------------------------------------------------- N-SSS


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


# -------------------------------------------------------------------------------------------------------- ranks


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


# ------------------------------------------------------------------------------------- from dense (prop. 3.4)


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


# ------------------------------------------------------------------------------------------------ contractions


def every_mask(length: int, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    return {
        "cumulative sum": CumulativeSum(length, dtype),
        "1-SS": OneSemiseparable(decays(length, dtype=dtype)),
        "batch of 1-SS": OneSemiseparable(decays(2, 1, length, dtype=dtype)),
        "N-SSS": SequentiallySemiseparable(*(randn(length, 2, seed=s).to(dtype).tanh() for s in (1, 2, 3))),
        "dense": randn(3, length, length, dtype=dtype).tril(),
    }


@pytest.mark.parametrize("name", every_mask(1))
@pytest.mark.parametrize("length", [1, 2, 7, 65])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_both_orders_are_the_same_sum(name: str, length: int, dtype: torch.dtype, tolerance: float) -> None:
    mask = every_mask(length, dtype)[name]
    Q, K = randn(2, 3, length, 4, dtype=dtype), randn(2, 3, length, 4, dtype=dtype, seed=5)
    V = randn(2, 3, length, 6, dtype=dtype, seed=6)
    dense = mask if isinstance(mask, Tensor) else mask.dense()
    L = dense.double().expand(2, 3, length, length)
    expected = torch.einsum("...ts,...tn,...sn,...sp->...tp", L, Q.double(), K.double(), V.double())
    quadratic = masked_attention_contraction(mask, Q, K, V, order="quadratic")
    linear = masked_attention_contraction(mask, Q, K, V, order="linear")
    assert isinstance(quadratic, QuadraticSteps)
    assert isinstance(linear, LinearSteps)
    for Y in (quadratic.Y, linear.Y):
        assert Y.dtype == dtype
        torch.testing.assert_close(Y.double(), expected, rtol=tolerance, atol=10 * tolerance)
    assert quadratic.G.shape == quadratic.M.shape == (2, 3, length, length)
    assert linear.Z.shape == linear.H.shape == (2, 3, length, 6, 4)
    torch.testing.assert_close(quadratic.M, dense * (Q @ K.mT), rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("order", ["quadratic", "linear"])
def test_times_of_outputs_and_inputs_may_differ(order: Any) -> None:
    mask, Q, K, V = randn(5, 8), randn(2, 5, 3), randn(2, 8, 3), randn(2, 8, 4)
    steps = masked_attention_contraction(mask, Q, K, V, order=order)
    torch.testing.assert_close(steps.Y, (mask * (Q @ K.mT)) @ V)


@pytest.mark.parametrize("length", [1, 2, 31, 65])
def test_state_space_model_is_the_linear_order(length: int) -> None:
    a, B, C, X = decays(2, 1, length), randn(2, 3, length, 4), randn(3, length, 4, seed=3), randn(1, length, 5, seed=4)
    steps = ssm_contraction(a, B, C, X)
    twin = masked_attention_contraction(OneSemiseparable(a), C, B, X, order="quadratic")
    torch.testing.assert_close(steps.Y, twin.Y)
    h = torch.zeros(2, 3, 5, 4, dtype=a.dtype)
    for t in range(length):  # the recurrence as it is written
        h = a[..., t, None, None] * h + X[..., t, :, None] * B[..., t, None, :]
        torch.testing.assert_close(steps.H[..., t, :, :], h)
        torch.testing.assert_close(steps.Y[..., t, :], (h @ C[:, t, :, None])[..., 0])
    torch.testing.assert_close(steps.Y, SequentiallySemiseparable(a.expand(2, 3, -1), B, C.expand_as(B)) @ X)


def test_cost_of_the_orders() -> None:
    """The multiplications and sizes that the docstrings give; a product of matrices counts 2 for each."""
    T, S, N, P = 32, 32, 4, 6
    mask, Q, K, V = OneSemiseparable(decays(T)), randn(T, N), randn(S, N), randn(S, P)
    with Work() as linear:
        masked_attention_contraction(mask, Q, K, V, order="linear")
    read = T * P  # of Y = Q H, a product of matrices
    assert linear.elements["bmm"] in (read, read + S * P * N)  # Z may be one as well
    recurrence_and_outer = linear.elements["mul"] + linear.elements["bmm"] - read
    assert recurrence_and_outer <= 3.5 * T * P * N
    with FlopCounterMode(display=False) as quadratic:
        masked_attention_contraction(mask.dense(), Q, K, V, order="quadratic")
    assert quadratic.get_total_flops() == 2 * T * S * (N + P)


def test_gradients_of_the_contractions() -> None:
    a = decays(6).requires_grad_()
    Q, K, V = (randn(6, 2, seed=s).requires_grad_() for s in (1, 2, 3))

    def every_order(a: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, ...]:
        quadratic = masked_attention_contraction(OneSemiseparable(a), Q, K, V, order="quadratic")
        linear = masked_attention_contraction(CumulativeSum(6, a.dtype), Q, K, V, order="linear")
        return *ssm_contraction(a, K, Q, V), *quadratic, *linear

    assert gradcheck(every_order, (a, Q, K, V))


# -------------------------------------------------------------------------------------------- the operator SSD


def ssd_inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_a (b, l, h), B and C (b, l, g, n) and x (b, l, h, p), with 4 heads in 2 groups."""
    log_a = -randn(2, length, 4).abs()
    B, C, x = randn(2, length, 2, 3, seed=1), randn(2, length, 2, 3, seed=2), randn(2, length, 4, 5, seed=3)
    return log_a.to(dtype), B.to(dtype), C.to(dtype), x.to(dtype)


def heads_first(log_a: Tensor, B: Tensor, C: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a (b, h, l), B and C (b, h, l, n) with a group repeated for its heads, x (b, h, l, p)."""
    B, C = (z.repeat_interleave(2, dim=2).transpose(1, 2) for z in (B, C))
    return log_a.exp().mT, B, C, x.transpose(1, 2)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_matrices_and_contractions_equal_the_operator(length: int, dtype: torch.dtype, tolerance: float) -> None:
    inputs = ssd_inputs(length, dtype)
    operator, (a, B, C, X) = SSD(*inputs[:3]), heads_first(*inputs)
    close = {"rtol": tolerance, "atol": 10 * tolerance}
    matrix = SequentiallySemiseparable(a, B, C)
    torch.testing.assert_close(operator.matrix(), matrix.dense(), **close)
    torch.testing.assert_close(operator.matrix(), OneSemiseparable(a).dense() * (C @ B.mT), **close)
    by_order = (
        ssm_contraction(a, B, C, X).Y,
        masked_attention_contraction(OneSemiseparable(a), C, B, X, order="quadratic").Y,
        masked_attention_contraction(OneSemiseparable(a), C, B, X, order="linear").Y,
        masked_attention_contraction(OneSemiseparable(a).dense(), C, B, X, order="linear").Y,
        matrix @ X,
    )
    for form in operator.forms:
        y, _ = operator(inputs[3], form=form)
        for Y in by_order:
            torch.testing.assert_close(Y.transpose(1, 2), y, **close)


def test_gradients_equal_those_of_the_operator() -> None:
    inputs = [z.requires_grad_() for z in ssd_inputs(13)]
    y, _ = SSD(*inputs[:3])(inputs[3])
    expected = torch.autograd.grad(y.square().sum(), inputs)
    Y = ssm_contraction(*heads_first(*inputs)).Y
    for got, want in zip(torch.autograd.grad(Y.square().sum(), inputs), expected):
        torch.testing.assert_close(got, want)


def test_linear_attention_with_its_normaliser_is_the_operator() -> None:
    """Katharopoulos et al. 2020: o_t = sum_s phi(q_t).phi(k_s) v_s / sum_s phi(q_t).phi(k_s), over s <= t."""
    log_a, k, q, v = ssd_inputs(33)
    q, k = (torch.nn.functional.elu(z) + 1 for z in (q, k))
    with_ones = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    y, _ = SSD(torch.zeros_like(log_a), k, q)(with_ones)
    output = y[..., :-1] / y[..., -1:]

    _, K, Q, V = heads_first(log_a, k, q, v)
    similarity = (Q @ K.mT).tril()
    expected = (similarity / similarity.sum(-1, keepdim=True)) @ V
    torch.testing.assert_close(output, expected.transpose(1, 2))
    by_cumsum = masked_attention_contraction(
        CumulativeSum(33, torch.float64), Q, K, with_ones.transpose(1, 2), order="linear"
    ).Y
    torch.testing.assert_close(by_cumsum.transpose(1, 2), y)


def test_retention_is_the_operator_with_a_constant_decay() -> None:
    """Sun et al. 2023 (RetNet): the mask is D_ts = gamma^(t - s), one gamma a head."""
    log_a, k, q, v = ssd_inputs(33)
    gamma = 1 - 2.0 ** -torch.arange(3, 7, dtype=torch.float64)
    y, _ = SSD(gamma.log().expand_as(log_a), k, q)(v)
    _, K, Q, V = heads_first(log_a, k, q, v)
    distance = torch.arange(33)[:, None] - torch.arange(33)
    D = (gamma[:, None, None] ** distance).tril()
    torch.testing.assert_close(y.transpose(1, 2), (D * (Q @ K.mT)) @ V)
    torch.testing.assert_close(OneSemiseparable(gamma[:, None].expand(4, 33)).dense(), D)


# ------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneSemiseparable(torch.ones(2, 0)), r"T >= 1, got \(2, 0\)"),
        (lambda: OneSemiseparable(torch.tensor(1.0)), r"T >= 1, got \(\)"),
        (lambda: OneSemiseparable(torch.ones(3, dtype=torch.int64)), "floating-point a, got torch.int64"),
        (lambda: CumulativeSum(0), "at least 1, got 0"),
        (lambda: OneSemiseparable(torch.ones(3)) @ torch.ones(4), r"shape \(3, 3\) was given .* \(4,\); expected \(3,"),
        (lambda: OneSemiseparable(torch.ones(3)) @ torch.ones(2, 4, 2), r"\(2, 4, 2\); expected"),
        (lambda: OneSemiseparable(torch.ones(3)) @ torch.tensor(1.0), "expected"),
        (lambda: OneSemiseparable(torch.ones(3)).solve(torch.ones(3).double()), "torch.float32 and was given"),
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


@pytest.mark.parametrize("order", ["quadratic", "linear"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(5, 5)}, r"equal T, S and N .* got \(5, 5\), \(4, 2\), \(4, 2\), \(4, 3\)"),
        ({"mask": OneSemiseparable(torch.ones(5))}, "equal T, S and N"),
        ({"mask": torch.ones(4)}, r"expected mask \(..., T, S\)"),
        ({"Q": torch.ones(4, 3)}, "equal T, S and N"),
        ({"K": torch.ones(3, 2)}, "equal T, S and N"),
        ({"V": torch.ones(3, 3)}, "equal T, S and N"),
        ({"V": torch.ones(4)}, r"expected mask \(..., T, S\)"),
        ({"Q": torch.ones(2, 4, 2), "V": torch.ones(3, 4, 3)}, "do not broadcast"),
        ({"mask": torch.ones(0, 0), "Q": torch.ones(0, 2), "K": torch.ones(0, 2), "V": torch.ones(0, 3)}, "empty"),
        ({"V": torch.ones(4, 3).double()}, "one dtype"),
        ({"mask": CumulativeSum(4, torch.float64)}, "one dtype"),
    ],
)
def test_errors_of_contractions(order: Any, change: dict[str, Any], message: str) -> None:
    arguments = {"mask": torch.ones(4, 4), "Q": torch.ones(4, 2), "K": torch.ones(4, 2), "V": torch.ones(4, 3)}
    with pytest.raises(InputError, match=message) as caught:
        masked_attention_contraction(**(arguments | change), order=order)
    assert "\n" not in str(caught.value)


def test_unknown_order() -> None:
    ones = torch.ones(4, 4)
    order: Any = "cubic"
    with pytest.raises(InputError, match="order='cubic' is unknown; use 'quadratic' or 'linear'"):
        masked_attention_contraction(ones, ones, ones, ones, order=order)


def test_shapes_of_the_state_space_model_disagree() -> None:
    with pytest.raises(InputError, match="equal T, S and N"):
        ssm_contraction(torch.ones(5), torch.ones(4, 2), torch.ones(4, 2), torch.ones(4, 3))


def test_matrices_are_frozen() -> None:
    with pytest.raises(AttributeError):
        OneSemiseparable(torch.ones(3)).a = torch.zeros(3)  # type: ignore[misc]
