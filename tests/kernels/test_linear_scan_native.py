"""The C code of linear_scan: instruction sets, shapes and strides, any number of threads, derivatives of all orders."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.linear_scan import linear_scan, linear_scan_reference

D, Z = torch.float64, torch.complex128

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}"),
    pytest.mark.usefixtures("in_c", "poisoned_memory"),
]
each_instruction_set = pytest.mark.parametrize("instructions", native.instruction_sets())


def case(batch: int, length: int, *trailing: int, dtype: torch.dtype = D) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = ((batch, length, *trailing), (batch, length, *trailing), (batch, *trailing))
    a, b, h0 = (torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)
    return [a / a.abs().clamp(min=1), b, h0]


def outcomes(run: object, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    h = run(*leaves)  # type: ignore[operator]
    weight = torch.randn(h.shape, dtype=h.dtype, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(h, leaves, weight, allow_unused=True, materialize_grads=True)
    return [h.detach(), *grads]


def check(inputs: list[Tensor], rtol: float = 1e-13) -> None:
    for got, want in zip(outcomes(linear_scan, inputs), outcomes(linear_scan_reference, inputs)):
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        torch.testing.assert_close(got, want, atol=rtol * scale, rtol=0)


@each_instruction_set
@pytest.mark.parametrize("dtype", [D, Z])
def test_equal_to_the_definition(dtype: torch.dtype, instructions: str) -> None:
    with native.forced(instructions):
        for trailing in ((), (1,), (3,), (2, 5), (4, 8), (71,), (3, 1, 45)):
            for batch, length in ((1, 1), (2, 7), (3, 20)):
                check(case(batch, length, *trailing, dtype=dtype))


@each_instruction_set
def test_empty(instructions: str) -> None:
    with native.forced(instructions):
        for shape in ((2, 0, 3), (0, 4, 3), (2, 4, 0), (2, 4, 3, 0)):
            inputs = case(*shape)
            for x, like in zip(outcomes(linear_scan, inputs), (inputs[1], *inputs)):
                assert x.shape == like.shape
                assert (x == 0).all()


@pytest.mark.parametrize("dtype", [D, Z])
def test_strides(dtype: torch.dtype) -> None:
    """Expanded over rows, times, channels or all of them; transposed; conjugated."""
    a, b, h0 = case(3, 6, 2, 20, dtype=dtype)
    for narrow in ((0,), (1,), (2,), (3,), (0, 1), (0, 1, 3), (0, 1, 2, 3)):
        small = a
        for axis in narrow:
            small = small.narrow(axis, 0, 1)
        check([small.expand_as(b), b, h0])
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (a, b)]
    check([*turned, h0.transpose(1, 2).contiguous().transpose(1, 2)])
    check([a.conj(), b.conj(), h0.conj()])


@each_instruction_set
@pytest.mark.parametrize("narrow", [torch.float32, torch.complex64])
def test_float32_against_float64(narrow: torch.dtype, instructions: str) -> None:
    wide = D if narrow == torch.float32 else Z
    inputs = [x.to(narrow) for x in case(2, 500, 37, dtype=wide)]
    weight = torch.randn(inputs[1].shape, dtype=narrow, generator=torch.Generator().manual_seed(1)).to(wide)
    leaves = [x.to(wide).requires_grad_() for x in inputs]
    h = linear_scan_reference(*leaves)
    exact = [h, *torch.autograd.grad(h, leaves, weight)]
    with native.forced(instructions):
        for got, want in zip(outcomes(linear_scan, inputs), exact):
            assert got.dtype == narrow
            assert (got - want).abs().max() < 2e-6 * want.abs().max()


def test_the_same_bits_for_any_number_of_threads() -> None:
    for inputs in (case(2, 50, 150), case(1, 50, 70, dtype=Z)):
        found = []
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            try:
                found.append(outcomes(linear_scan, inputs))
            finally:
                torch.set_num_threads(1)
        assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other))


@each_instruction_set
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [D, Z])
def test_what_is_not_finite_stays_in_its_channel_and_its_future(
    dtype: torch.dtype, bad: float, instructions: str
) -> None:
    with native.forced(instructions):
        inputs = case(2, 9, 13, dtype=dtype)
        inputs[1][1, 4, 5] = bad
        h = linear_scan(*inputs)
        assert not h[1, 4:, 5].isfinite().any()
        h[1, 4:, 5] = 0
        assert h.isfinite().all()


@pytest.mark.parametrize("dtype", [D, Z])
def test_derivatives(dtype: torch.dtype) -> None:
    """Three orders: the second derivative is written with the operators."""
    inputs = [x.requires_grad_() for x in case(2, 3, 2, dtype=dtype)]
    assert torch.autograd.gradcheck(linear_scan, inputs)
    assert torch.autograd.gradgradcheck(linear_scan, inputs)
    third = []
    for run in (linear_scan, linear_scan_reference):
        y = (run(*inputs).abs() ** 4).sum()
        for _ in range(2):
            grads = torch.autograd.grad(y, inputs, create_graph=True)
            y = sum((g.abs() ** 2).sum() for g in grads)
        third.append(torch.autograd.grad(y, inputs))
    for got, want in zip(*third):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=0)


def test_opcheck_of_the_adjoint() -> None:
    torch.use_deterministic_algorithms(False)  # opcheck compares memory that an operator is free to leave as it is
    a, b, h0 = (x.requires_grad_() for x in case(2, 5, 3))
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    operator = torch.ops.statewise.linear_scan_backward.default
    assert {*torch.library.opcheck(operator, (b, a, b, h0), test_utils=checks).values()} == {"SUCCESS"}


def test_refusals_by_name() -> None:
    x = torch.ones(1, 3, 2)
    with pytest.raises(InputError, match="linear_scan: the C kernel was asked for by name, but b is torch"):
        linear_scan(x.bfloat16(), x.bfloat16(), x[:, 0].bfloat16())
    with kernels.use("auto"):
        assert linear_scan(x.bfloat16(), x.bfloat16(), x[:, 0].bfloat16())[0, -1, 0] == 4
