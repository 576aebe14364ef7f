"""The diagonal scan in Triton, under its interpreter: against the definition in float64, cut anywhere, ragged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from interpreted import TOLERANCE, compare, needs_interpreter, results
from torch import Tensor

from statewise.kernels.diagonal_scan import diagonal_scan, diagonal_scan_reference

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory", "in_triton")]
SHAPES = [(2, 7, 3, 2, 5), (1, 1, 1, 1, 1), (2, 67, 3, 1, 2), (1, 3, 40, 1, 17), (1, 33, 2, 1, 70), (2, 3, 5, 1, 300)]


def case(
    batch: int, length: int, width: int, r: int, n: int, *, skip: bool = True, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """u, A, B, C, D if ``skip``, and the state; |A| from 0.5 to 1."""
    generator = torch.Generator().manual_seed(length + 100 * n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    A = torch.polar(0.5 + 0.5 * torch.rand((width, n), generator=generator), normal(width, n))
    B, C = (torch.complex(normal(width, n), normal(width, n)) for _ in "BC")
    found = [normal(batch, length, width, r).to(dtype), A, B, C]
    found += [normal(width)] if skip else []
    return [m.requires_grad_() for m in (*found, normal(batch, width, r, n, 2))]


def check(inputs: Sequence[Tensor], lengths: list[int] | None = None, tolerance: float = 2e-5) -> None:
    """Outputs, and gradients of everything, against the definition."""
    ends = None if lengths is None else torch.tensor(lengths)

    def given(m: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        return *m[:4], m[4] if len(m) == 6 else None, m[-1], ends

    compare(
        lambda *m: diagonal_scan(*given(m)),  # type: ignore[arg-type]
        lambda *m: diagonal_scan_reference(*given(m)),  # type: ignore[arg-type]
        inputs,
        tolerance,
    )


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_definition(shape: tuple[int, ...], options: bool) -> None:
    batch, length, *_ = shape
    check(case(*shape, skip=options), [length - 1, length + 3][:batch] if options else None)


@pytest.mark.parametrize("length", [31, 32, 63, 64, 65])
def test_lengths_about_those_of_chunks(length: int) -> None:
    check(case(1, length, 2, 1, 3))


def test_rows_that_end_anywhere() -> None:
    """Before they begin, inside chunks, where one ends, and beyond."""
    ends = [0, -3, 1, 31, 32, 33, 64, 69, 70, 2**40, -(2**40) + 5]
    check(case(len(ends), 70, 2, 2, 3), ends)


def test_what_lies_beyond_the_end_of_a_row_is_not_read() -> None:
    numbers = [m.detach() for m in case(2, 40, 3, 1, 2)]
    numbers[0][0, 9:] = torch.nan
    leaves = [m.requires_grad_() for m in numbers]
    y, state = diagonal_scan(*leaves, torch.tensor([9, 40]))  # type: ignore[arg-type]
    slope = torch.ones_like(y)
    slope[0, 9:] = torch.nan
    grads = torch.autograd.grad([y, state], leaves, [slope, torch.ones_like(state)])
    assert (y[0, 9:] == 0).all()
    assert (grads[0][0, 9:] == 0).all()
    assert all(m.isfinite().all() for m in (y, state, *grads))


@pytest.mark.parametrize("n", [3, 270])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inputs_that_are_stored_narrower(dtype: torch.dtype, n: int) -> None:
    inputs = case(2, 5, 3, 2, n, dtype=dtype)
    check(inputs, [5, 3], TOLERANCE[dtype])
    y, _, of_u, of_A, *_ = results(lambda *m: diagonal_scan(*m), inputs)
    assert [y.dtype, of_u.dtype, of_A.dtype] == [dtype, dtype, torch.complex64]


def test_conjugates_and_strides() -> None:
    u, A, B, C, D, state = case(2, 9, 3, 2, 4)
    check([u.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(), A, B, C, D, state])
    compare(
        lambda u, A, B, C, D, state: diagonal_scan(u, A.conj(), B, C.conj(), D, state),
        lambda u, A, B, C, D, state: diagonal_scan_reference(u, A.conj(), B, C.conj(), D, state, None),
        [u, A, B, C, D, state],
        2e-5,
    )


def test_nothing() -> None:
    for shape in ((2, 0, 3, 1, 4), (0, 3, 3, 1, 4), (2, 3, 0, 1, 4), (2, 3, 3, 1, 0)):
        check(case(*shape))


@pytest.mark.parametrize("cut", [1, 31, 32, 33, 39])
def test_it_is_itself_cut_anywhere(cut: int) -> None:
    def in_two(u: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        *systems, state = rest
        begin, h = diagonal_scan(u[:, :cut], *systems, state)  # type: ignore[call-arg]
        end, last = diagonal_scan(u[:, cut:], *systems, h)  # type: ignore[call-arg]
        return torch.cat([begin, end], 1), last

    inputs = case(2, 40, 3, 1, 3)
    whole = results(lambda *m: diagonal_scan(*m), inputs)
    for one, other in zip(results(in_two, inputs), whole, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6 * max(1.0, float(other.abs().max())), rtol=1e-5)


@pytest.mark.parametrize("shape", [(3, 40, 5, 2, 3), (2, 5, 3, 1, 300)], ids=str)
def test_the_same_bits_on_every_run(shape: tuple[int, ...]) -> None:
    inputs = case(*shape)
    first, again = (results(lambda *m: diagonal_scan(*m), inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_what_is_not_a_number_stays_in_its_channel_and_reaches_no_earlier_step() -> None:
    """And of a gradient no later one."""
    u, *rest = (m.detach() for m in case(2, 40, 5, 1, 3))
    u[1, 20, 2] = torch.nan
    y, state = diagonal_scan(u, *rest)
    assert y[1, 20:, 2].isnan().all()
    assert int(y.isnan().sum()) == 20
    assert int(state.isnan().any(-1).sum()) == 3
    u = u.nan_to_num().requires_grad_()
    y, _ = diagonal_scan(u, *rest)
    slope = torch.ones_like(y)
    slope[1, 20, 2] = torch.nan
    (of_u,) = torch.autograd.grad(y, u, slope)
    assert of_u[1, :21, 2].isnan().all()
    assert int(of_u.isnan().sum()) == 21
