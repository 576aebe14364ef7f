"""The C code of the time-invariant kernels: every instruction set, any number of threads, odd sizes, broken numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from statewise import native
from statewise.errors import InputError
from statewise.kernels.cauchy import cauchy, cauchy_reference
from statewise.kernels.registration import IMPLEMENTATIONS
from statewise.kernels.vandermonde import vandermonde, vandermonde_reference
from statewise.native import memory

D, Z = torch.float64, torch.complex128
Kernel = Callable[..., Tensor]

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}"),
    pytest.mark.usefixtures("in_c", "poisoned_memory"),
]
each_instruction_set = pytest.mark.parametrize("instructions", native.instruction_sets())


def random(*shape: int, dtype: torch.dtype = Z, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed + sum(shape)))


def powers_case(n: int, p: tuple[int, ...], dtype: torch.dtype, length: int) -> tuple[Kernel, Kernel, list[Tensor]]:
    A = random(3, n, dtype=dtype)
    A = A / A.abs().clamp(min=1)
    A[0, 0] = 0
    inputs = [random(3, *p, n, dtype=dtype, seed=1), A]
    return partial(vandermonde, length=length), partial(vandermonde_reference, length=length), inputs


def fractions_case(n: int, k: int, own: bool, nodes: int) -> tuple[Kernel, Kernel, list[Tensor]]:
    z = random(3, nodes) if own else random(nodes)
    return cauchy, cauchy_reference, [random(3, k, n, seed=1), z, random(3, n, seed=2)]


def outcomes(run: Kernel, inputs: list[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """The output and all gradients of a fixed function of it."""
    leaves = [x.to(dtype) if dtype and x.is_complex() else x for x in inputs]
    leaves = [x.detach().requires_grad_() for x in leaves]
    y = run(*leaves)
    weight = random(*y.shape, dtype=torch.complex128 if y.is_complex() else D, seed=3).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, weight, allow_unused=True, materialize_grads=True)]


def check(run: Kernel, definition: Kernel, inputs: list[Tensor], rtol: float) -> None:
    """Relative to the largest value of each output and gradient."""
    for got, want in zip(outcomes(run, inputs), outcomes(definition, inputs)):
        scale = max(float(want.abs().max()), 1e-3) if want.numel() else 1.0
        torch.testing.assert_close(got, want, atol=rtol * scale, rtol=0)


@each_instruction_set
@pytest.mark.parametrize("dtype", [D, Z])
def test_vandermonde(dtype: torch.dtype, instructions: str) -> None:
    with native.forced(instructions):
        for length in (1, 2, 31, 32, 33, 200, 1025):
            for n, p in ((1, ()), (3, (3,)), (17, (1,)), (32, ())):
                check(*powers_case(n, p, dtype, length), rtol=3e-14)


@each_instruction_set
def test_cauchy(instructions: str) -> None:
    with native.forced(instructions):
        for nodes in (1, 2, 63, 64, 65, 300, 2100):
            for n, k, own in ((1, 1, True), (3, 4, False), (17, 9, True), (32, 2, False)):
                check(*fractions_case(n, k, own, nodes), rtol=2e-13)


@each_instruction_set
def test_empty_sizes(instructions: str) -> None:
    with native.forced(instructions):
        for shape in ((0, 2, 3), (2, 0, 3), (2, 2, 0), (2, 2, 3)):
            w, p, n = shape
            for length in (0, 5):
                c, A = random(*shape), random(w, n)
                outputs = outcomes(partial(vandermonde, length=length), [c, A])
                assert [x.shape for x in outputs] == [(w, p, length), c.shape, A.shape]
                assert all(x.isfinite().all() for x in outputs)
                outputs = outcomes(cauchy, [c, random(length, seed=1), A])
                assert [x.shape for x in outputs] == [(w, p, length), c.shape, (length,), A.shape]
                assert all(x.isfinite().all() for x in outputs)


@each_instruction_set
def test_float32_against_float64(instructions: str) -> None:
    """Powers are computed in float64: at a length of 5000 nothing has grown."""
    with native.forced(instructions):
        _, _, inputs = powers_case(32, (2,), Z, 1)
        inputs[1] = inputs[1] / inputs[1].abs().clamp(min=1e-3) * 0.9999
        inputs = [x.to(torch.complex64).to(Z) for x in inputs]
        run = partial(vandermonde, length=5000)
        for got, want in zip(outcomes(run, inputs, torch.complex64), outcomes(run, inputs)):
            assert (got - want).abs().max() < 1e-6 * want.abs().max()
        v, Lambda = random(3, 4, 32), torch.complex(-random(3, 32, dtype=D).abs(), 100 * random(3, 32, dtype=D, seed=1))
        inputs = [x.to(torch.complex64).to(Z) for x in (v, 1j * torch.linspace(0, 200, 3000), Lambda)]
        for got, want in zip(outcomes(cauchy, inputs, torch.complex64), outcomes(cauchy, inputs)):
            assert (got - want).abs().max() < 2e-6 * want.abs().max()


def test_the_same_bits_for_any_number_of_threads() -> None:
    cases = [powers_case(9, (2,), Z, 700), powers_case(5, (), D, 300), fractions_case(9, 4, False, 5000)]
    for run, _, inputs in cases:
        found = []
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            try:
                found.append(outcomes(run, inputs))
            finally:
                torch.set_num_threads(1)
        assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


@each_instruction_set
def test_zero_and_growing_powers(instructions: str) -> None:
    """0^0 = 1 and its derivative are exact; |A| > 1 is right up to the largest number, past the end of a row too."""
    with native.forced(instructions):
        A = torch.tensor([[0.0, 1e4]], requires_grad=True)
        c = torch.ones(1, 2, requires_grad=True)
        K = vandermonde(c, A, 3)
        assert K.tolist() == [[2, 1e4, 1e8]]
        dc, dA = torch.autograd.grad(K, (c, A), torch.tensor([[0.0, 1.0, 2.0]]))
        assert dc.tolist() == [[0, 1e4 + 2e8]]
        assert dA.tolist() == [[1, 1 + 4e4]]
        A = torch.tensor([[1.02 + 0j, 1.01j]], dtype=Z)
        check(partial(vandermonde, length=2000), partial(vandermonde_reference, length=2000), [random(1, 2), A], 1e-12)


@each_instruction_set
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_channel(bad: float, instructions: str) -> None:
    with native.forced(instructions):
        _, _, (c, A) = powers_case(3, (2,), Z, 1)
        for which in (0, 1):
            inputs = [c.clone(), A.clone()]
            inputs[which][1, ..., 1] = bad
            outputs = outcomes(partial(vandermonde, length=100), inputs)
            assert not outputs[0][1, :, 1:].isfinite().any()
            assert all(x[[0, 2]].isfinite().all() for x in outputs)
        v, z, Lambda = fractions_case(3, 2, False, 100)[2]
        for changed in ((v, 0), (Lambda, 2)):
            inputs = [v.clone(), z.clone(), Lambda.clone()]
            inputs[changed[1]][1, ..., 1] = bad
            outputs = outcomes(cauchy, inputs)
            finite = outputs[0][1].isfinite()
            # a pole at infinity is a fraction that may have become 0
            assert not finite.any() or (changed[1] == 2 and bad == torch.inf)
            assert all(x[[0, 2]].isfinite().all() for x in (outputs[0], outputs[1], outputs[3]))


def test_a_tensor_that_c_cannot_take_is_refused_by_name() -> None:
    c = torch.empty(2, 1, 3, device="meta")
    with pytest.raises(InputError, match=r"vandermonde: the C kernel was asked for by name, but c is on meta"):
        IMPLEMENTATIONS["statewise::vandermonde"](c, c[:, 0], 4)
    with pytest.raises(InputError, match=r"cauchy: the C kernel was asked for by name, but v is on meta"):
        IMPLEMENTATIONS["statewise::cauchy"](c + 0j, c[:, 0] + 0j, c[:, 0] + 0j)


def test_large_outputs_ask_for_huge_pages() -> None:
    torch.use_deterministic_algorithms(False)
    x = memory.empty(3, 2**20, dtype=torch.float32)
    assert x.shape == (3, 2**20)
    assert x.fill_(1).sum() == 3 * 2**20
