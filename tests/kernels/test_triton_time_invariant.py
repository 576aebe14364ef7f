"""The Vandermonde product and the Cauchy sum in Triton, under its interpreter: against definitions in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from interpreted import compare, long_but, needs_interpreter
from lti_kernels import cauchy_case, leaves, vandermonde_case
from torch import Tensor

from statewise.kernels import gpu
from statewise.kernels.cauchy import cauchy, cauchy_reference
from statewise.kernels.vandermonde import vandermonde, vandermonde_reference
from statewise.kernels.vandermonde.reference import vandermonde_differentiable

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory", "in_triton")]
D, Z = torch.float64, torch.complex128


def narrow(inputs: list[Tensor]) -> list[Tensor]:
    """In float32 or complex64."""
    return [m.detach().to(torch.complex64 if m.is_complex() else torch.float32).requires_grad_() for m in inputs]


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were many, so that sums are cut into pieces."""
    monkeypatch.setattr(gpu, "processors", lambda device: 10)
    for room in ("vandermonde", "cauchy"):
        monkeypatch.setattr(f"statewise.kernels.{room}.triton._LEAST_BLOCKS", 1)


@pytest.mark.parametrize("dtype", [D, Z])
@pytest.mark.parametrize("p", long_but([()], [(), (1,), (3,)]), ids=str)
def test_the_sum_of_powers(p: tuple[int, ...], dtype: torch.dtype) -> None:
    for length in (0, 1, 2, 63, 65, 130):
        fast, definition, inputs = vandermonde_case(length, p, dtype)
        compare(fast, definition, narrow(inputs), 2e-6)
    fast, definition, inputs = vandermonde_case(9, p, dtype, n=40)
    compare(fast, definition, narrow(inputs), 2e-6)


@pytest.mark.usefixtures("processors")
def test_long_sums_of_powers_in_pieces() -> None:
    """Many lines, and a size and an angle that a rounded logarithm would not keep."""
    length = 9000
    A = torch.polar(torch.tensor([[0.99999, 1.0, 0.999]]), torch.tensor([[3.1, -0.7, -3.1415925]]))
    c = torch.randn(1, 2, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    inputs = [c.requires_grad_(), A.requires_grad_()]
    compare(partial(vandermonde, length=length), partial(vandermonde_differentiable, length=length), inputs, 1e-6)


def test_powers_of_every_kind() -> None:
    """On the axes, growing, vanishing, infinite and none."""
    A = torch.tensor([[1.0, -1.0, 1j, -1j, 2.0, 0.0, 1e-30, -1.5 + 1j]], dtype=torch.complex64)
    c = torch.ones(1, 8, dtype=torch.complex64).diag_embed()
    K = vandermonde(c, A, 70)[0]
    want = vandermonde_reference(c.to(Z), A.to(Z), 70)[0]
    torch.testing.assert_close(K.double(), want, rtol=1e-6, atol=1e-37)
    assert not vandermonde(c, A * 4, 200)[0, 0, -1].isfinite()
    for wrong in (torch.nan, torch.inf):
        inputs = [c[:, :3, :3].clone().requires_grad_(), torch.tensor([[0.5, wrong, 0.5]]).cfloat().requires_grad_()]
        K = vandermonde(*inputs, 70)
        assert K[0, 1, 1:].isnan().all()
        gradients = torch.autograd.grad(K[0, 1].sum(), inputs)
        assert gradients[1][0, 1].isnan()


def test_what_grows_reaches_no_other_step() -> None:
    """A^l beyond the length would be infinite."""
    A = torch.tensor([[1e6 + 0j, 0.5]], dtype=torch.complex64)
    inputs = [torch.ones(1, 2, dtype=torch.complex64).requires_grad_(), A.requires_grad_()]
    compare(partial(vandermonde, length=4), partial(vandermonde_reference, length=4), inputs, 1e-6)


@pytest.mark.parametrize("own", long_but([True], [False, True]))
def test_the_sum_of_fractions(own: bool) -> None:
    cases = [cauchy_case(nodes, own, k) for nodes in (0, 1, 70) for k in (1, 9)]
    for fast, definition, inputs in (*cases, cauchy_case(5, own, n=35)):
        compare(fast, definition, narrow(inputs), 1e-5)


@pytest.mark.usefixtures("processors")
@pytest.mark.parametrize("own", long_but([True], [False, True]))
def test_the_sum_of_fractions_in_pieces(own: bool) -> None:
    fast, definition, inputs = cauchy_case(300, own, 3)
    compare(fast, definition, narrow(inputs), 1e-5)


def test_nothing_cancels_near_a_pole() -> None:
    """Where z^2 - 2 p z + |L|^2 would leave no digit."""
    poles = torch.complex(torch.full((1, 3), -1e-3), torch.tensor([[1.0, 20.0, 300.0]]))
    z = torch.complex(torch.full((3,), 1e-3), poles[0].imag)
    v = leaves((1, 2, 3), dtype=Z)[0]
    compare(cauchy, cauchy_reference, [*narrow([v]), z.requires_grad_(), poles.requires_grad_()], 1e-5)


@pytest.mark.parametrize("run", [lambda *m: vandermonde(m[0], m[2], 90), cauchy], ids=["vandermonde", "cauchy"])
def test_the_same_bits_on_every_run(run: Callable[..., Tensor]) -> None:
    inputs = narrow(cauchy_case(90, k=2)[2])
    inputs[2] = (inputs[2] / 9).detach().requires_grad_()
    found = []
    for _ in range(2):
        y = run(*inputs)
        found.append([y, *torch.autograd.grad(y.abs().sum(), inputs, allow_unused=True, materialize_grads=True)])
    assert all(torch.equal(a, b) for a, b in zip(*found))
