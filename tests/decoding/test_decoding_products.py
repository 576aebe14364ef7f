"""A matrix product of the step: its definition in float64, and that no way to compute it changes a bit."""

from __future__ import annotations

import pytest
import torch
from decoded_models import needs_library
from torch import Tensor

from statewise import native
from statewise.decoding import PRECISIONS
from statewise.decoding.operands import TILE
from statewise.decoding.packing import pack, quantise
from statewise.decoding.product import Product, large
from statewise.decoding.reading import WAYS

SHAPES = ((1, 1), (17, 8), (35, 301), (50, 1000))
LARGEST = 32767


def weight_of(weight: Tensor, precision: str, group: int | None) -> Tensor:
    """W in float64, as it is packed."""
    if precision in ("float32", "bfloat16"):
        return weight.to(getattr(torch, precision)).double()
    return quantise(weight, precision, group).weight().double()


def half_a_step(x: Tensor) -> Tensor:
    """What a number of x may change by: of every 256 columns the largest becomes 32767, the others whole numbers."""
    tiles = [tile.abs().amax(1, keepdim=True).expand(tile.shape) for tile in x.double().split(TILE, 1)]
    return torch.cat(tiles, 1) * (0.5001 / LARGEST)


def whole_numbers(batch: int, n_columns: int) -> Tensor:
    """x that nothing is lost of: integers, in every tile one of 32767, times a power of two for each row."""
    x = torch.randint(-LARGEST, LARGEST + 1, (batch, n_columns)).float()
    x[:, ::TILE] = LARGEST
    return x * 2.0 ** torch.arange(-batch, batch, 2)[:, None]


CASES = [
    pytest.param(precision, group, id=f"{precision}, groups of {group}")
    for precision in PRECISIONS
    for group in ((None, 8, 24, 264) if precision.startswith("int") else (None,))
]


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(("precision", "group"), CASES)
def test_every_product_is_its_definition(precision: str, group: int | None, instructions: str) -> None:
    """And the same bits in every way: however the memory is asked for, on any number of threads, with VNNI or not."""
    torch.manual_seed(0)
    with native.forced(instructions):
        for n_rows, n_columns in SHAPES:
            weight = torch.randn(n_rows, n_columns)
            product, exact = Product(pack(weight, precision, group)), weight_of(weight, precision, group)
            for batch in (1, 3, 8, 15):
                x = whole_numbers(batch, n_columns)
                found = product(x)
                size = x.double().abs() @ exact.abs().T  # what rounding is relative to
                assert ((found - x.double() @ exact.T).abs() <= 1e-6 * size).all()
                others = [product(x, way, n_threads=1, vnni=False) for way in WAYS]
                assert all(torch.equal(found, other) for other in (*others, product(x, WAYS[-1], n_threads=3)))
                x = torch.randn(batch, n_columns)
                size = x.double().abs() @ exact.abs().T
                lost = 0.0 if precision in ("float32", "bfloat16") else half_a_step(x) @ exact.abs().T
                assert ((product(x) - x.double() @ exact.T).abs() <= 1e-6 * size + lost).all()


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(("precision", "group"), CASES)
def test_every_transposed_product_is_its_definition(precision: str, group: int | None, instructions: str) -> None:
    """To the rounding of float32: here x stays as it is."""
    torch.manual_seed(0)
    with native.forced(instructions):
        for n_rows, n_columns in SHAPES:
            weight = torch.randn(n_rows, n_columns)
            product = Product(pack(weight, precision, group), transposed=True)
            exact, x = weight_of(weight, precision, group), torch.randn(5, n_rows)
            found, most = product(x), x.double().abs() @ exact.abs()
            assert bool(((found.double() - x.double() @ exact).abs() <= 1e-6 * most).all())
            assert torch.equal(product(x, n_threads=3), found)
            assert torch.equal(product(x[3:4]), found[3:4])


@needs_library
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_row_of_integers_is_the_same_bits_in_any_batch(precision: str) -> None:
    torch.manual_seed(0)
    product, x = Product(pack(torch.randn(40, 530), precision)), torch.randn(13, 530)
    found = product(x)
    assert all(torch.equal(found[b], product(x[b : b + 1])[0]) for b in range(len(x)))


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_what_integers_cannot_hold(precision: str, instructions: str) -> None:
    """NaN and infinity make NaN of their row alone; zeros, and what is nearly subnormal, make zeros."""
    x = torch.randn(5, 300)
    x[0, 7], x[1, 299], x[2], x[3] = torch.nan, -torch.inf, 0.0, 1e-38
    x[4, 3] = 1e36
    with native.forced(instructions):
        y = Product(pack(torch.randn(20, 300), precision))(x)
    assert y[:2].isnan().all()
    assert (y[2:4].abs() < 1e-34).all()
    assert y[4].isfinite().all()


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_large_matrix_is_its_few_rows_again(precision: str) -> None:
    packed = large(40, 300_000, precision)
    assert 200_000 < packed.n_bytes <= 300_000
    x = torch.randn(2, 40)
    y = Product(packed)(x).unflatten(1, (-1, 256))
    assert torch.equal(y, y[:, :1].expand(y.shape))
    assert y.isfinite().all()
