"""SSD in Triton, under its interpreter: against the definition in float64, in pieces, and cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from interpreted import TOLERANCE, compare, long_but, needs_interpreter
from torch import Tensor

from statewise.kernels import gpu
from statewise.kernels.ssd import ssd, ssd_reference

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory", "in_triton")]
SHAPES = [  # batch, length, heads, d_head, groups, d_state
    (2, 1, 4, 2, 2, 3),
    (1, 3, 6, 7, 3, 16),
    (2, 67, 4, 5, 2, 4),
    (1, 70, 2, 65, 1, 17),
    (1, 33, 1, 3, 1, 130),
    (2, 67, 2, 48, 1, 32),
    (1, 33, 1, 16, 1, 144),
]


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles come through descriptors where they can, as on Hopper."""
    monkeypatch.setattr("statewise.kernels.ssd.triton.has_descriptors", lambda device: True)


def tiles(*inputs: Tensor) -> Any:
    return gpu.module("ssd").tiles_of(*inputs)


def case(shape: tuple[int, ...], options: bool, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x, log_a, B, C, h0, and with options dt and D."""
    b, length, h, p, g, n = shape
    random = torch.Generator().manual_seed(length)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=random)

    inputs = [draw(b, length, h, p).to(dtype), -draw(b, length, h).abs() / 5]
    inputs += [draw(b, length, g, n).to(dtype), draw(b, length, g, n).to(dtype), draw(b, h, p, n)]
    inputs += [draw(b, length, h).abs(), draw(h)] if options else []
    return [m.requires_grad_() for m in inputs]


def check(inputs: Sequence[Tensor], segments: Tensor | None, tolerance: float) -> None:
    def run(function, *given: Tensor) -> Sequence[Tensor]:
        options = {"dt": given[5], "D": given[6]} if len(given) > 5 else {}
        return function(*given[:5], segments, **options)

    compare(lambda *m: run(ssd, *m), lambda *m: run(ssd_reference, *m), inputs, tolerance)


def documents(shape: tuple[int, ...]) -> Tensor:
    return (torch.rand(shape[:2], generator=torch.Generator().manual_seed(1)) < 0.05).cumsum(1)


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("shape", long_but((*SHAPES[:3], SHAPES[4]), SHAPES), ids=str)
def test_equal_to_the_definition(shape: tuple[int, ...], options: bool) -> None:
    check(case(shape, options), documents(shape) if options else None, 1e-5)


@pytest.mark.parametrize("shape", [(2, 67, 4, 5, 2, 4), (1, 67, 2, 48, 1, 144)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inputs_that_are_stored_narrower(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(case(shape, True, dtype), None, TOLERANCE[dtype])


def test_sizes_that_are_multiples_of_16_have_their_tiles() -> None:
    from statewise.kernels.ssd.triton_tiles import TILES, TILES_ANY

    for dtype, kind in ((torch.bfloat16, "bfloat16"), (torch.float16, "float32"), (torch.float32, "float32")):
        x, _, B, C, _ = case((2, 67, 2, 48, 1, 32), False, dtype)
        assert tiles(x, B, C) is TILES[kind]
        assert tiles(x, B[..., 1:], C[..., 1:]) is TILES_ANY[kind]
        assert tiles(x.flatten().detach()[1:].unfold(0, 48, 48)[:64].view(1, 32, 2, 48), B, C) is TILES_ANY[kind]


TILED_SHAPES = [(1, 130, 2, 64, 1, 128), (2, 67, 4, 64, 2, 64), (1, 3, 1, 128, 1, 256)]


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("shape", TILED_SHAPES, ids=str)
def test_tiles_through_descriptors(shape: tuple[int, ...], options: bool, descriptors: None) -> None:
    inputs = case(shape, options, torch.bfloat16)
    assert tiles(inputs[0], *inputs[2:4]).ahead[0].tiled
    check(inputs, documents(shape) if options else None, TOLERANCE[torch.bfloat16])


def test_descriptors_of_views_that_are_not_contiguous(descriptors: None) -> None:
    """As Mamba-2 has them: x, B and C side by side in one tensor."""
    packed = torch.randn(2, 70, 2 * 64 + 2 * 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x, B, C = (m.unflatten(2, (-1, 64)) for m in packed.split([128, 64, 64], 2))
    _, log_a, _, _, h0 = case((2, 70, 2, 64, 1, 64), False)
    assert tiles(x, B, C).ahead[0].tiled
    check([m.detach().requires_grad_() for m in (x, log_a, B, C, h0)], None, TOLERANCE[torch.bfloat16])
    assert not tiles(packed[..., 1:129].unflatten(2, (2, 64)), B, C).ahead[0].tiled, "columns that are not aligned"


def test_descriptors_of_states_that_begin_anywhere(descriptors: None) -> None:
    x, log_a, B, C, h0 = (m.detach() for m in case((1, 70, 2, 64, 1, 64), False, torch.bfloat16))
    elsewhere = torch.empty(h0.numel() + 1)[1:].view(h0.shape).copy_(h0)
    assert elsewhere.data_ptr() % 16
    check([m.requires_grad_() for m in (x, log_a, B, C, elsewhere)], None, TOLERANCE[torch.bfloat16])


def test_no_descriptor_of_rows_over_each_other(descriptors: None) -> None:
    """As the gradient of a sum over time or rows has them: strides of 0."""
    x, _, B, C, _ = (m.detach() for m in case((2, 70, 2, 64, 1, 64), False, torch.bfloat16))
    assert tiles(x, B, C, x).ahead[0].tiled
    assert not tiles(x, B, C, x[:, :1].expand(-1, 70, -1, -1)).ahead[0].tiled
    assert not tiles(x[:1].expand(2, -1, -1, -1), B, C).ahead[0].tiled
    assert tiles(x[:1, :1].expand(1, 1, -1, -1), B[:1, :1], C[:1, :1]).ahead[0].tiled, "one step has no stride"


def test_descriptors_in_pieces(descriptors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "processors", lambda device: 10)
    monkeypatch.setattr("statewise.kernels.ssd.triton._LEAST_CHUNKS", 1)
    shape = (1, 200, 2, 64, 1, 64)
    check(case(shape, True, torch.bfloat16), documents(shape), TOLERANCE[torch.bfloat16])


def test_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card that has more processors than there are sequences."""
    monkeypatch.setattr(gpu, "processors", lambda device: 10)
    monkeypatch.setattr("statewise.kernels.ssd.triton._LEAST_CHUNKS", 1)
    shape = (1, 140, 2, 5, 1, 4)
    check(case(shape, True), documents(shape), 1e-5)


def test_it_is_itself_cut_anywhere() -> None:
    x, log_a, B, C, h0 = (m.detach() for m in case((1, 70, 2, 5, 1, 4), False))
    y, state = ssd(x, log_a, B, C, h0)
    for cut in (1, 32, 65):
        begin, h = ssd(x[:, :cut], log_a[:, :cut], B[:, :cut], C[:, :cut], h0)
        end, last = ssd(x[:, cut:], log_a[:, cut:], B[:, cut:], C[:, cut:], h)
        torch.testing.assert_close(torch.cat([begin, end], 1), y, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(last, state, atol=1e-5, rtol=1e-5)


def test_a_mild_decay_is_as_right_after_a_strong_one() -> None:
    x, log_a, B, C, h0 = (m.detach() for m in case((1, 60, 1, 3, 1, 2), False))
    for strong in (-999.0, -torch.inf):
        log_a = torch.full_like(log_a, -1e-3)
        log_a[:, 5] = strong
        inputs = [m.requires_grad_() for m in (x, log_a, B, C, h0)]
        if strong == -999.0:
            check(inputs, None, 3e-6)
        else:
            assert all(m.isfinite().all() for m in torch.autograd.grad(ssd(*inputs)[0].sum(), inputs))
