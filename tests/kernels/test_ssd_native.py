"""SSD in C: against the definition on every instruction set, the same bits on any number of threads, NaN, the edges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.ssd import ssd, ssd_reference

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")

D = torch.float64
SHAPES = [  # batch, length, heads, d_head, groups, d_state
    (2, 0, 4, 2, 2, 3),
    (2, 1, 4, 2, 2, 3),
    (1, 3, 6, 7, 3, 16),
    (2, 9, 4, 2, 2, 3),
    (1, 200, 3, 65, 1, 17),
    (2, 130, 2, 64, 1, 128),
    (1, 64, 4, 16, 2, 1),
    (3, 67, 12, 5, 1, 4),
    (2, 70, 2, 1, 2, 33),
]


@pytest.fixture(autouse=True)
def _in_c_with_poisoned_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN
    with kernels.use("c"):
        yield
    torch.use_deterministic_algorithms(False)


def case(shape: tuple[int, ...], options: bool = False, dtype: torch.dtype = D) -> list[Tensor]:
    """x, log_a, B, C, h0, and with options dt and D."""
    b, length, h, p, g, n = shape
    random = torch.Generator().manual_seed(length)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=D)

    inputs = [draw(b, length, h, p), -draw(b, length, h).abs() / 5]
    inputs += [draw(b, length, g, n), draw(b, length, g, n), draw(b, h, p, n)]
    if options:
        inputs += [draw(b, length, h).abs(), draw(h)]
    return [m.to(dtype).requires_grad_() for m in inputs]


def documents(shape: tuple[int, ...]) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return (torch.rand(shape[:2], generator=random) < 0.05).cumsum(1)


def outputs_and_gradients(run, inputs: list[Tensor], segments: Tensor | None) -> list[Tensor]:
    """y, the state, and the gradients of a product with fixed numbers."""
    options = {"dt": inputs[5], "D": inputs[6]} if len(inputs) > 5 else {}
    outputs = run(*inputs[:5], segments, **options)
    total = sum((m * torch.sin(torch.arange(m.numel())).reshape(m.shape)).sum() for m in outputs)
    total = total + 0 * sum(m.sum() for m in inputs)
    return [*outputs, *torch.autograd.grad(total, inputs)]


@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (D, 1e-14)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_definition(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, instructions: str
) -> None:
    for segments in (None, documents(shape)):
        for options in (False, True):
            inputs = case(shape, options)
            wanted = outputs_and_gradients(ssd_reference, inputs, segments)
            with native.forced(instructions):
                copies = [m.detach().to(dtype).requires_grad_() for m in inputs]
                found = outputs_and_gradients(ssd, copies, segments)
            for got, want in zip(found, wanted):
                if want.numel():
                    error = (got.double() - want).abs().max()
                    assert error <= tolerance * want.abs().max().clamp(min=1), (segments is not None, options)


@pytest.mark.parametrize("shape", [(1, 130, 24, 8, 1, 16), (3, 70, 4, 5, 2, 6), (2, 2, 6, 64, 1, 128)], ids=str)
def test_the_same_bits_on_any_number_of_threads(shape: tuple[int, ...]) -> None:
    inputs, before = case(shape, True, torch.float32), torch.get_num_threads()
    try:
        results = []
        for n_threads in (1, 2, 3, 8, 1):
            torch.set_num_threads(n_threads)
            results.append(outputs_and_gradients(ssd, inputs, documents(shape)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_derivatives_by_differences() -> None:
    inputs = case((1, 5, 4, 2, 2, 3), True)
    ids = torch.tensor([[0, 0, 1, 1, 1]])

    def run(x: Tensor, log_a: Tensor, B: Tensor, C: Tensor, h0: Tensor, dt: Tensor, D: Tensor) -> tuple[Tensor, ...]:
        return ssd(x, log_a, B, C, h0, ids, dt=dt, D=D)

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("length", [5, 150])
def test_a_nan_stays_in_its_segment_and_reaches_no_earlier_step(length: int, value: float) -> None:
    x, log_a, B, C, h0 = (m.detach() for m in case((1, length, 2, 3, 1, 4)))
    ids = torch.zeros(1, length, dtype=torch.int64)
    ids[:, 2 * length // 3 :] = 1
    at = length // 2
    clean = ssd(x, log_a, B, C, h0, ids)
    for spoil in (x[0, at, 1], B[0, at, 0]):  # the heads share B
        kept = spoil.clone()
        spoil[:] = value
        y, h = ssd(x, log_a, B, C, h0, ids)
        spoil[:] = kept
        assert not y[0, at : 2 * length // 3, 1].isfinite().any()
        assert torch.equal(y[0, :at], clean[0][0, :at])
        assert torch.equal(y[0, 2 * length // 3 :], clean[0][0, 2 * length // 3 :])
        assert torch.equal(h, clean[1])
    C[0, at] = value
    y, h = ssd(x, log_a, B, C, h0, ids)
    rest = [t for t in range(length) if t != at]
    assert not y[0, at].isfinite().any()
    assert torch.equal(y[0, rest], clean[0][0, rest])
    assert torch.equal(h, clean[1])


def test_a_nan_in_the_state_or_a_decay_goes_where_the_definition_has_it() -> None:
    for which, where in ((1, (0, 70, 1)), (4, (0, 1, 2))):
        inputs = [m.detach() for m in case((2, 140, 2, 3, 1, 4))]
        inputs[which][where] = torch.nan
        inputs[1][1, ::5], inputs[1][0, 80] = -torch.inf, -torch.inf  # 0 NaN is NaN
        ids = torch.zeros(2, 140, dtype=torch.int64)
        ids[:, 100:] = 3
        for got, want in zip(ssd(*inputs, ids), ssd_reference(*inputs, ids)):
            assert torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (D, 1e-14)])
@pytest.mark.parametrize("decay", [5.0, 100.0, 1e4, 1e12, 1e30, torch.inf])
@pytest.mark.parametrize("length", [3, 130])
def test_strong_decays_beside_weak_ones(
    length: int, decay: float, dtype: torch.dtype, tolerance: float, instructions: str
) -> None:
    inputs = case((1, length, 2, 8, 1, 8))
    with torch.no_grad():
        inputs[1][:] = -1e-3
        inputs[1][:, ::8] = -decay
    wanted = outputs_and_gradients(ssd_reference, inputs, None)
    with native.forced(instructions):
        found = outputs_and_gradients(ssd, [m.detach().to(dtype).requires_grad_() for m in inputs], None)
    for got, want in zip(found, wanted):
        assert (got.double() - want).abs().max() <= max(
            tolerance * float(want.detach().abs().max()), 1e-30
        )  # below, float32 ends


def test_a_part_after_the_other_and_views_of_one_tensor() -> None:
    b, length, h, p, n = 2, 150, 4, 8, 6
    together = torch.randn(b, length, h * p + 2 * n)
    x, B, C = together.split([h * p, n, n], -1)
    x, B, C = x.unflatten(-1, (h, p)), B.unsqueeze(2), C.unsqueeze(2)
    log_a, h0 = -torch.rand(b, length, h), torch.randn(b, h, p, n)
    y, state = ssd(x, log_a, B, C, h0)
    for a, b_ in zip((y, state), ssd(*(m.contiguous() for m in (x, log_a, B, C, h0)))):
        assert torch.equal(a, b_)
    parts, carried = [], h0
    for start, stop in ((0, 1), (1, 66), (66, 70), (70, 150)):
        part, carried = ssd(*(m[:, start:stop] for m in (x, log_a, B, C)), carried)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), y, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(carried, state, atol=2e-5, rtol=1e-5)


def test_bfloat16_in_and_out_with_a_float32_state() -> None:
    inputs = [m.detach() for m in case((2, 100, 4, 16, 1, 8), True, torch.float32)]
    half = [m.bfloat16() for m in inputs]
    y, state = ssd(*half[:4], inputs[4], dt=half[5], D=half[6])
    wide, wide_state = ssd(*(m.float() for m in half[:4]), inputs[4], dt=half[5].float(), D=half[6].float())
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, wide.bfloat16())
    assert torch.equal(state, wide_state)


def test_the_chunk_length_of_the_caller_changes_nothing() -> None:
    inputs = case((1, 90, 2, 3, 1, 4), False, torch.float32)
    assert torch.equal(ssd(*inputs, chunk_length=7)[0], ssd(*inputs, chunk_length=90)[0])


@pytest.mark.parametrize("shape", [(0, 70, 2, 3, 1, 4), (2, 70, 2, 0, 1, 4), (2, 70, 2, 3, 1, 0)], ids=str)
def test_empty_axes(shape: tuple[int, ...]) -> None:
    inputs = case(shape, True)
    found = outputs_and_gradients(ssd, inputs, None)
    for got, want in zip(found, outputs_and_gradients(ssd_reference, inputs, None)):
        torch.testing.assert_close(got, want)


def test_by_name_on_another_device_it_says_why() -> None:
    inputs = [torch.empty(m.shape, device="meta") for m in case((1, 3, 2, 2, 1, 2))]
    from statewise.kernels.backend import c_runs, refusal_of

    with pytest.raises(InputError, match="x is on meta, and the C kernels need the CPU"):
        c_runs("ssd", refusal_of(x=inputs[0]))


@pytest.mark.parametrize(("name", "shape"), [("dt", (1, 3)), ("D", (3,)), ("segments", (1, 4))])
def test_options_of_other_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"ssd needs {name} of shape"):
        ssd(*case((1, 3, 2, 2, 1, 2)), **{name: torch.zeros(shape)})
