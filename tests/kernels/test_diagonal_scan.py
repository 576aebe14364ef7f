"""The diagonal scan in C: the definition, ragged rows, every instruction set, and where an operator uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from statewise import kernels, native
from statewise.kernels.diagonal_scan import diagonal_scan, diagonal_scan_reference
from statewise.operators.diagonal import DiagonalLTI, DiagonalState

needs_library = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor | None]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def case(width: int, r: int, n: int, length: int, *, skip: bool = True, ragged: bool = False) -> Case:
    """float64; the rows end nowhere, in the middle and at the end."""
    g = torch.Generator().manual_seed(width + 100 * n + length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    A = torch.polar(0.5 + 0.49 * torch.rand(width, n, dtype=torch.float64, generator=g), normal(width, n))
    B, C = (torch.complex(normal(width, n), normal(width, n)) for _ in range(2))
    lengths = torch.tensor([0, length // 2, length]) if ragged else None
    D = normal(width) if skip else None
    return normal(3, length, width, r), A, B, C, D, normal(3, width, r, n, 2), lengths


def narrow(given: Case) -> Case:
    """float32 and complex64"""
    dtypes = {wide: narrow for narrow, wide in WIDE.items()}
    return tuple(m if m is None else m.to(dtypes.get(m.dtype, m.dtype)) for m in given)  # type: ignore[return-value]


def assert_near(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        scale = float(other.abs().max()) if other.numel() else 1.0
        torch.testing.assert_close(one.to(other.dtype), other, rtol=0, atol=3e-6 * max(scale, 1.0))


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(("width", "r", "n", "length"), [(1, 1, 1, 1), (17, 1, 5, 63), (5, 4, 2, 65), (40, 1, 32, 150)])
@pytest.mark.parametrize("ragged", [False, True])
def test_equals_the_definition_and_the_same_bits_on_any_number_of_threads(
    width: int, r: int, n: int, length: int, ragged: bool, instructions: str
) -> None:
    given = case(width, r, n, length, skip=n != 5, ragged=ragged)
    wanted = diagonal_scan_reference(*given)
    with native.forced(instructions), kernels.use("c"):
        torch.set_num_threads(1)
        found = diagonal_scan(*narrow(given))
        assert_near(found, wanted)
        for n_threads in (2, 3):
            torch.set_num_threads(n_threads)
            assert all(torch.equal(a, b) for a, b in zip(found, diagonal_scan(*narrow(given))))


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_empty_conjugate_and_strided_input(path: str) -> None:
    u, A, B, C, D, state, _ = narrow(case(6, 1, 3, 10))
    wanted = diagonal_scan_reference(u, A.conj().resolve_conj(), B, C, D, state, None)
    with kernels.use(path):
        assert_near(diagonal_scan(u, A.conj(), B, C, D, state), tuple(m.double() for m in wanted))  # type: ignore[arg-type]
        strided = u.transpose(1, 2).contiguous().transpose(1, 2)
        assert_near(diagonal_scan(strided, A.conj(), B, C, D, state), tuple(m.double() for m in wanted))  # type: ignore[arg-type]
        y, after = diagonal_scan(u[:, :0], A, B, C, D, state)
        assert y.shape == (3, 0, 6, 1)
        assert torch.equal(after, state)
        y, after = diagonal_scan(u[:0], A, B, C, D, state[:0])
        assert (len(y), len(after)) == (0, 0)


@pytest.mark.parametrize("path", ["auto", "torch"])
@pytest.mark.parametrize("shape", [(0, 10, 6), (3, 0, 6), (3, 10, 0)], ids=str)
def test_gradients_of_nothing(path: str, shape: tuple[int, int, int]) -> None:
    batch, length, width = shape
    u, A, B, C, D, state, _ = narrow(case(width, 1, 3, length))
    leaves = [m.requires_grad_() for m in (u[:batch], A, B, C, D, state[:batch]) if m is not None]
    with kernels.use(path):
        y, after = diagonal_scan(*leaves)
        found = torch.autograd.grad(y.sum() + after.sum(), leaves)
    assert [m.shape for m in found] == [m.shape for m in leaves]
    assert all((m == 0).all() for m in found[1:4])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("path", ["auto", "torch"])
def test_a_narrower_input_is_widened_and_what_comes_of_it_rounded(path: str, dtype: torch.dtype) -> None:
    u, *others = narrow(case(6, 2, 3, 10, ragged=True))
    with kernels.use(path):
        y, after = diagonal_scan(u.to(dtype), *others)  # type: ignore[arg-type]
        wide, last = diagonal_scan(u.to(dtype).float(), *others)  # type: ignore[arg-type]
        assert torch.equal(y, wide.to(dtype))
        assert torch.equal(after, last)
        of_u, *rest = gradients((u.to(dtype), *others))  # type: ignore[arg-type]
    assert of_u.dtype == dtype
    exact = gradients((u.to(dtype).double(), *[m if m is None else m.to(WIDE.get(m.dtype, m.dtype)) for m in others]))  # type: ignore[arg-type]
    for one, other in zip((of_u, *rest), exact):
        bound = 2 * torch.finfo(dtype).eps * float(other.abs().max())
        torch.testing.assert_close(one.to(other.dtype), other, rtol=0, atol=bound)


@pytest.mark.parametrize("path", ["auto", "torch"])
def test_lengths_out_of_range_are_the_nearest_in_it(path: str) -> None:
    *given, _ = narrow(case(6, 1, 3, 10))
    with kernels.use(path):
        found = diagonal_scan(*given, torch.tensor([-1, 4, 99]))  # type: ignore[arg-type]
        wanted = diagonal_scan(*given, torch.tensor([0, 4, 10]))  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_gradients_are_those_of_the_definition() -> None:
    *given, lengths = case(3, 2, 2, 6, ragged=True)
    leaves = [m.requires_grad_() for m in given if m is not None]
    weights = [torch.randn_like(m) for m in diagonal_scan_reference(*leaves, lengths)]
    found, wanted = (
        torch.autograd.grad(sum((m * w).sum() for m, w in zip(scan(*leaves, lengths), weights)), leaves)
        for scan in (diagonal_scan, diagonal_scan_reference)
    )
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other)


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(
    ("width", "r", "n", "length"), [(1, 1, 1, 1), (17, 1, 5, 63), (5, 4, 2, 65), (40, 1, 32, 150), (3, 2, 7, 300)]
)
@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_in_c_are_those_of_the_definition(
    width: int, r: int, n: int, length: int, ragged: bool, instructions: str
) -> None:
    given = case(width, r, n, length, skip=n != 5, ragged=ragged)
    wanted = gradients(given)  # float64, for which there is no C
    with native.forced(instructions), kernels.use("c"):
        torch.set_num_threads(1)
        found = gradients(narrow(given))
        assert_near(found, wanted)
        torch.set_num_threads(3)
        assert all(torch.equal(a, b) for a, b in zip(found, gradients(narrow(given))))


def gradients(given: Case) -> list[Tensor]:
    """Of a weighted sum of y and the state, for each tensor but the lengths."""
    *numbers, lengths = given
    leaves = [m.detach().requires_grad_() for m in numbers if m is not None]
    tensors = iter(leaves)
    y, after = diagonal_scan(*[None if m is None else next(tensors) for m in numbers], lengths)  # type: ignore[arg-type]
    weights = [torch.linspace(0, 9, m.numel(), dtype=torch.float64).sin().reshape(m.shape).to(m) for m in (y, after)]
    return list(torch.autograd.grad((y * weights[0]).sum() + (after * weights[1]).sum(), leaves))


@needs_library
@pytest.mark.parametrize("outputs", [(), (1,)])
@pytest.mark.parametrize("trailing", [(), (2, 3)])
def test_an_operator_reads_a_prompt_by_it(
    outputs: tuple[int, ...], trailing: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a state: as by matrix products, and as step by step; ragged rows and documents too."""
    calls = []

    def counted(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return diagonal_scan(*arguments)

    monkeypatch.setattr("statewise.operators.diagonal.diagonal_scan", counted)
    _, A, B, C, D, _, _ = narrow(case(4, 1, 3, 2))
    assert D is not None
    op = DiagonalLTI(A, B, C.reshape(4, *outputs, 3), D.reshape(4, *outputs))
    u = torch.randn(3, 90, 4, *trailing)
    state = DiagonalState(torch.randn(3, 4, *trailing, 3, 2))
    lengths = torch.tensor([90, 0, 41])
    starts = torch.rand(3, 90) < 0.05
    for options in ({}, {"lengths": lengths}, {"starts": starts}, {"lengths": lengths, "starts": starts}):
        calls.clear()
        y, final = op(u, state, form="convolve", **options)
        assert calls
        calls.clear()
        with kernels.use("torch"):
            by_products, last = op(u, state, form="convolve", **options)
        assert not calls
        steps, end = op(u, state, form="recurrent", **options)
        real = torch.ones(3, 90, dtype=torch.bool)
        if "lengths" in options:
            real = torch.arange(90) < lengths[:, None]
        for other in (by_products, steps):
            torch.testing.assert_close(y[real], other[real], rtol=1e-4, atol=1e-4)
        for other in (last.h, end.h):
            torch.testing.assert_close(final.h, other, rtol=1e-4, atol=1e-4)


@needs_library
def test_a_nan_reaches_no_earlier_step_and_no_other_channel() -> None:
    u, A, B, C, D, state, _ = narrow(case(20, 1, 3, 100))
    u[1, 70, 5] = torch.nan
    y, after = diagonal_scan(u, A, B, C, D, state)
    assert y[1, 70:, 5].isnan().all()
    assert int(y.isnan().sum()) == 30
    assert int(after.isnan().any(-1).sum()) == 3
