"""The linear scan in Triton, under its interpreter: against its definition in float64, cut, in pieces, expanded."""

from __future__ import annotations

import pytest
import torch
from interpreted import TOLERANCE, compare, long_but, long_interpreted, needs_interpreter
from torch import Tensor

from statewise.kernels import gpu
from statewise.kernels.linear_scan import linear_scan, linear_scan_reference

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory", "in_triton")]
D, Z = torch.float64, torch.complex128
SHAPES = [(2, 1), (1, 3, 2, 5), (2, 37, 3), (2, 33, 33)]
KINDS = (torch.float32, torch.complex64)


def recurrence(batch: int, length: int, *trailing: int, dtype: torch.dtype) -> list[Tensor]:
    """a, b and h0."""
    generator = torch.Generator().manual_seed(length)
    shapes = ((batch, length, *trailing), (batch, length, *trailing), (batch, *trailing))
    wide = Z if dtype.is_complex else D
    a, b, h0 = (torch.randn(shape, dtype=wide, generator=generator) for shape in shapes)
    return [m.to(dtype).requires_grad_() for m in (a / a.abs().clamp(min=1), b, h0)]


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were many, so that sequences are cut into pieces."""
    monkeypatch.setattr(gpu, "processors", lambda device: 10)
    monkeypatch.setattr("statewise.kernels.linear_scan.triton._LEAST_BLOCKS", 1)


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.complex64])
@pytest.mark.parametrize("shape", long_but(SHAPES[:3], SHAPES), ids=str)
def test_the_recurrence(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    compare(linear_scan, linear_scan_reference, recurrence(*shape, dtype=dtype), TOLERANCE.get(dtype, 2e-5))


def test_the_recurrence_of_nothing() -> None:
    for shape in ((1, 0, 4), (0, 3, 4), (2, 3, 0)):
        inputs = recurrence(*shape, dtype=torch.float32)
        h = linear_scan(*inputs)
        assert h.shape == inputs[1].shape
        assert all((g == 0).all() for g in torch.autograd.grad(h.sum(), inputs))


@pytest.mark.usefixtures("processors")
@pytest.mark.parametrize("dtype", long_but(KINDS[:1], KINDS))
def test_the_recurrence_in_pieces(dtype: torch.dtype) -> None:
    compare(linear_scan, linear_scan_reference, recurrence(2, 75, 3, dtype=dtype), 2e-5)


@pytest.mark.parametrize("dtype", long_but(KINDS[:1], KINDS))
def test_the_recurrence_with_a_expanded(dtype: torch.dtype) -> None:
    for narrow in ((0,), (1,), (0, 1, 2)):
        a, b, h0 = recurrence(2, 9, 3, dtype=dtype)
        small = a.detach()
        for axis in narrow:
            small = small.narrow(axis, 0, 1)
        inputs = [small.requires_grad_(), b, h0]
        compare(
            lambda a, b, h0: linear_scan(a.expand_as(b), b, h0),
            lambda a, b, h0: linear_scan_reference(a.expand_as(b), b, h0),
            inputs,
            2e-5,
        )


@long_interpreted
def test_the_recurrence_is_itself_cut_anywhere() -> None:
    a, b, h0 = (m.detach() for m in recurrence(1, 40, 3, dtype=torch.float32))
    whole = linear_scan(a, b, h0)
    for cut in (1, 31, 32, 33, 39):
        first = linear_scan(a[:, :cut], b[:, :cut], h0)
        rest = linear_scan(a[:, cut:], b[:, cut:], first[:, -1])
        torch.testing.assert_close(torch.cat([first, rest], 1), whole, atol=1e-6, rtol=1e-6)


def test_what_is_not_a_number_reaches_no_earlier_step() -> None:
    a, b, h0 = (m.detach() for m in recurrence(1, 40, 3, dtype=torch.float32))
    b[:, 20, 1] = torch.nan
    h = linear_scan(a, b, h0)
    assert h[:, :20].isfinite().all()
    assert h[:, 20:, 1].isnan().all()
    assert h[:, 20:, [0, 2]].isfinite().all()
