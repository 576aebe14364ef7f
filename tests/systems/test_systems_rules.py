"""The rules of discretisation among themselves, their gradients, limits and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from discretised import F64, options, relative, stable, stiff, tensor
from torch import Tensor

from statewise.errors import InputError
from statewise.systems import METHODS, discretize_dense, discretize_diagonal

INF = float("inf")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [F64, torch.complex128])
def test_dense_equals_diagonal_on_diagonal_matrices(method: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(3, 5, dtype=dtype, generator=generator) - 2
    A[0, 0] = 0
    dt = torch.rand(2, 3, dtype=F64, generator=generator)
    for B in (
        torch.randn(3, 5, dtype=dtype, generator=generator),
        torch.randn(3, 5, 2, dtype=dtype, generator=generator),
    ):
        diagonal = discretize_diagonal(A, B, dt, **options(method))
        dense = discretize_dense(torch.diag_embed(A), B, dt, **options(method))
        assert diagonal[0].shape == (2, 3, 5)
        assert diagonal[1].shape == dense[1].shape == (2, *B.shape)
        assert torch.allclose(torch.diag_embed(diagonal[0]), dense[0], rtol=1e-13, atol=1e-15)
        assert torch.allclose(diagonal[1], dense[1], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_its_members(method: str) -> None:
    rng = np.random.default_rng(7)
    A, B = (
        tensor(np.stack([stiff(rng, 3, False), np.zeros((3, 3)), stable(rng, 1, 3)[0]])),
        torch.randn(3, 3, 2, dtype=F64),
    )
    dt = tensor([[1e-12, 1.0, 50.0], [0.1, 0.1, 0.1]])
    A_bar, B_bar = discretize_dense(A, B, dt, **options(method))
    for k in range(2):
        for i in range(3):
            one = discretize_dense(A[i], B[i], dt[k, i], **options(method))
            assert relative(A_bar[k, i], one[0].numpy()) < 1e-15
            assert relative(B_bar[k, i], one[1].numpy()) < 1e-15


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("discretise", [discretize_dense, discretize_diagonal])
def test_at_zero_the_system_only_adds_up(method: str, discretise: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Exactly: A = 0 gives A_bar = I and B_bar = dt B (B for impulses), with finite gradients of two orders."""
    dense = discretise is discretize_dense
    for dtype in (F64, torch.float32, torch.complex128):
        A = torch.zeros((2, 2) if dense else 2, dtype=dtype, requires_grad=True)
        B = torch.tensor([3.0, -1.0], dtype=dtype, requires_grad=True)
        dt = torch.tensor(0.3, dtype=dtype.to_real(), requires_grad=True)
        A_bar, B_bar = discretise(A, B, dt, **options(method))
        assert torch.equal(A_bar, torch.eye(2, dtype=dtype) if dense else torch.ones(2, dtype=dtype))
        assert torch.equal(B_bar, B if method == "dirac" else dt * B)
        total = (A_bar.real**2).sum() + (B_bar.real**2).sum()
        first = torch.autograd.grad(total, (A, B, dt), create_graph=True)
        assert all(g.isfinite().all() for g in first)
        second = torch.autograd.grad(sum(g.real.sum() for g in first), (A, dt))
        assert all(g.isfinite().all() for g in second)


@pytest.mark.parametrize("method", METHODS)
def test_gradients(method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    dt = tensor([0.3, 2.0]).requires_grad_()
    for dtype in (F64, torch.complex128):
        A = (torch.randn(2, 3, dtype=dtype, generator=generator) - 1).index_fill(1, torch.tensor(0), 0).requires_grad_()
        B = torch.randn(2, 3, dtype=dtype, generator=generator).requires_grad_()
        diagonal = lambda A, B, dt: discretize_diagonal(A, B, dt, **options(method))  # noqa: E731
        assert torch.autograd.gradcheck(diagonal, (A, B, dt))
        assert torch.autograd.gradgradcheck(diagonal, (A, B, dt), fast_mode=True)
        M = (torch.randn(2, 2, 2, dtype=dtype, generator=generator) - torch.eye(2)).requires_grad_()
        dense = lambda M, B, dt: discretize_dense(M, B[:, :2], dt, **options(method))  # noqa: E731
        assert torch.autograd.gradcheck(dense, (M, B, dt), fast_mode=dtype != F64)
    zero = torch.zeros(2, 2, dtype=F64, requires_grad=True)
    dense = lambda M, dt: discretize_dense(M, torch.ones(2, dtype=F64), dt, **options(method))  # noqa: E731
    assert torch.autograd.gradgradcheck(dense, (zero, dt), fast_mode=True)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_stiff_systems_are_finite(method: str) -> None:
    rng = np.random.default_rng(8)
    poles = tensor([-1e6, -1.0, -1e-6, 0.0]).requires_grad_()
    M = tensor(np.stack([stiff(rng, 3, True), stiff(rng, 3, False)])).requires_grad_()
    dt = tensor([[1e-12], [1e-3], [1.0], [50.0]]).requires_grad_()
    outputs = [
        *discretize_diagonal(poles, torch.ones(4, dtype=F64), dt, **options(method)),
        *discretize_dense(M, torch.ones(2, 3, dtype=F64), dt, **options(method)),
    ]
    for gradient in torch.autograd.grad([z.sum() for z in outputs if z.requires_grad], (poles, M, dt)):
        assert gradient.isfinite().all()


def test_an_infinite_step_is_the_state_at_rest_under_a_constant_input() -> None:
    rng = np.random.default_rng(9)
    M, poles, b = tensor(stable(rng, 2, 3)), tensor([[-1e-6, -2.0, -1e6]]), torch.randn(2, 3, dtype=F64)
    dt = tensor([INF, 0.5])
    A_bar, B_bar = discretize_dense(M, b, dt)
    finite = discretize_dense(M, b, 0.5)
    assert torch.equal(A_bar[0], torch.zeros(3, 3, dtype=F64))
    assert torch.allclose(B_bar[0], torch.linalg.solve(-M[0], b[0]), rtol=1e-12)
    assert torch.equal(A_bar[1], finite[0][1])
    assert torch.equal(B_bar[1], finite[1][1])
    a_bar, b_bar = discretize_diagonal(poles, b, dt)
    assert torch.equal(a_bar[0], torch.zeros(3, dtype=F64))
    assert torch.allclose(b_bar[0], -b[0] / poles, rtol=1e-15)
    M.requires_grad_()
    poles.requires_grad_()
    gradients = torch.autograd.grad(discretize_dense(M, b, INF)[1].sum(), M)
    gradients += torch.autograd.grad(discretize_diagonal(poles, b, dt)[1].sum(), poles)
    assert all(g.isfinite().all() for g in gradients)
    for discretise, unstable in (
        (discretize_dense, torch.zeros(2, 2)),
        (discretize_diagonal, torch.tensor([-1.0, 0.0])),
    ):
        with pytest.raises(InputError, match="an infinite dt needs poles with a negative real part"):
            discretise(unstable, torch.ones(2), INF)
    with pytest.raises(InputError, match="dt must be positive and finite for method 'bilinear', got inf"):
        discretize_dense(-torch.eye(2), torch.ones(2), INF, "bilinear")


def test_stiff_poles_keep_their_place_under_each_rule() -> None:
    """What a fast pole, dt a = -1e6, becomes: the reason to choose one rule over another."""
    a, b = tensor([-1e6]), tensor([1.0])
    become = {method: discretize_diagonal(a, b, 1.0, **options(method))[0].item() for method in METHODS}
    assert become["zoh"] == become["foh"] == become["dirac"] == become["mamba"] == 0
    assert become["euler"] == 1 - 1e6
    assert become["backward_euler"] == pytest.approx(1e-6, rel=1e-5)
    assert become["bilinear"] == pytest.approx(-1, abs=1e-5)
    assert become["gbt"] == pytest.approx(-0.7 / 0.3, rel=1e-4)


ONES = torch.ones(2)


EYE = torch.eye(2)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: discretize_dense(-EYE, ONES, 0.0), "dt must be positive for method 'zoh', got 0.0"),
    (lambda: discretize_dense(-EYE, ONES, torch.tensor([1.0, -2.0])), "got -2.0"),
    (lambda: discretize_diagonal(-ONES, ONES, float("nan")), "dt must be positive for method 'zoh', got nan"),
    (
        lambda: discretize_diagonal(-ONES, ONES, 1.0, "zho"),
        "method='zho' is unknown; the methods are zoh, bilinear, euler",
    ),
    (lambda: discretize_diagonal(-ONES, ONES, 1.0, "gbt"), "needs alpha between 0 .* and 1 .*, got None"),
    (lambda: discretize_diagonal(-ONES, ONES, 1.0, "gbt", alpha=1.5), "got 1.5"),
    (lambda: discretize_diagonal(-ONES, ONES, 1.0, "gbt", alpha=float("nan")), "got nan"),
    (lambda: discretize_diagonal(-ONES, ONES, 1.0, "zoh", alpha=0.5), "alpha belongs to method 'gbt', not to 'zoh'"),
    (lambda: discretize_diagonal(torch.tensor([-1, -2]), ONES, 1.0), "A must be float32, .* got torch.int64"),
    (lambda: discretize_diagonal(-ONES.half(), ONES.half(), 1.0), "A must be float32, .* got torch.float16"),
    (
        lambda: discretize_diagonal(-ONES, ONES.double(), 1.0),
        "must have one dtype; got A torch.float32, B torch.float64",
    ),
    (lambda: discretize_diagonal(-ONES + 0j, ONES, 1.0), "must have one dtype"),
    (lambda: discretize_diagonal(-ONES, ONES, torch.tensor(1.0, dtype=F64)), "real dtype of A, torch.float32"),
    (lambda: discretize_diagonal(-ONES, ONES, torch.tensor(1)), "got torch.int64"),
    (lambda: discretize_diagonal(-ONES, torch.ones(3), 1.0), r"A \(2,\) and B \(3,\)"),
    (lambda: discretize_diagonal(-ONES, torch.ones(()), 1.0), "as many leading axes each"),
    (lambda: discretize_diagonal(-torch.ones(3, 2), torch.ones(3, 2), torch.ones(2)), "do not broadcast"),
    (lambda: discretize_dense(-torch.ones(2, 3), ONES, 1.0), r"expected A \(..., n, n\)"),
    (lambda: discretize_dense(-ONES, ONES, 1.0), r"expected A \(..., n, n\)"),
    (lambda: discretize_dense(torch.empty(0, 0), torch.empty(0), 1.0), "expected"),
    (lambda: discretize_dense(-torch.ones(4, 2, 2), torch.ones(3, 2), 1.0), "do not broadcast"),
    (lambda: discretize_dense(2 * EYE, ONES, 1.0, "bilinear"), "I - alpha dt A, is singular"),
    (lambda: discretize_dense([[1.0]], ONES, 1.0), "A must be a tensor, got list"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_check_of_dt_can_be_left_to_the_caller() -> None:
    """A module whose dt is an exponential need not wait for the device, and NaN runs on to the loss."""
    for discretise, A in ((discretize_dense, -EYE), (discretize_diagonal, -ONES)):
        A_bar, B_bar = discretise(A, ONES, float("nan"), check_dt=False)
        assert A_bar.isnan().any()
        assert B_bar.isnan().all()
    assert torch.equal(
        discretize_diagonal(-ONES, ONES, 0.5, check_dt=False)[1], discretize_diagonal(-ONES, ONES, 0.5)[1]
    )


def test_a_module_that_discretises_compiles_whole() -> None:
    """With dt unchecked there is nothing to wait for: one graph, no break."""
    A, B, dt = -torch.rand(3, 4) + 1j, torch.randn(3, 4) + 0j, torch.rand(3) + 0.1

    def run(A: Tensor, B: Tensor, dt: Tensor) -> list[Tensor]:
        return [z for method in ("zoh", "bilinear") for z in discretize_diagonal(A, B, dt, method, check_dt=False)]

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    for ours, expected in zip(compiled(A, B, dt), run(A, B, dt)):
        assert torch.allclose(ours, expected)
