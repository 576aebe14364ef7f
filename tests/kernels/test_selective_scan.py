"""The selective scan: in C on each instruction set and in PyTorch, values and derivatives are the definition's."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from selective_scans import LAUNCHED, PATHS, D, assert_near, case, everything, ids, on
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise import kernels, native
from statewise.kernels.selective_scan import (
    CHUNK_LENGTH,
    METHODS,
    pytorch,
    pytorch_blocks,
    selective_scan,
    selective_scan_reference,
)
from statewise.kernels.selective_scan.signature import Arguments

needs_library = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")


# batch, length, d, n, groups: odd and empty lengths, channels that fill no vector, groups that straddle vectors
SHAPES = [
    (2, 70, 6, 3, 2),
    (1, 40, 48, 16, 1),
    (2, 1, 33, 8, 1),
    (1, 5, 300, 4, 1),
    (1, 33, 64, 5, 64),
    (11, 7, 72, 9, 3),
    (1, 3, 20, 16, 10),
    (1, 3, 1, 1, 1),
    (2, 0, 4, 2, 1),
    (2, 230, 6, 3, 2),
]


pytestmark = pytest.mark.usefixtures("poisoned_memory")


def wide(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: m.detach().to(torch.complex128 if m.is_complex() else D).requires_grad_() for k, m in inputs.items()}


@functools.cache
def by_the_definition(shape: tuple[int, ...], is_complex: bool, method: str, options: bool) -> tuple[Any, Any, Any]:
    """The inputs, the options and what comes of them, for every path."""
    inputs = case(*shape, is_complex=is_complex, options=options)
    more = {"method": method, "softplus": options, "segments": ids(*shape[:2]) if options else None}
    if not options:
        inputs["dt"] = (inputs["dt"].detach().abs() / 2).requires_grad_()
    return inputs, more, everything(selective_scan_reference, inputs, **more)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_equal_to_the_definition(path: str, is_complex: bool, method: str) -> None:
    for shape in SHAPES:
        for options in (False, True):
            inputs, more, want = by_the_definition(shape, is_complex, method, options)
            with on(path):
                assert_near(everything(selective_scan, inputs, **more), want, 1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_float32_against_float64(path: str, is_complex: bool, method: str) -> None:
    for shape in SHAPES[:5]:
        inputs = case(*shape, is_complex=is_complex, dtype=torch.float32)
        more = {"method": method, "softplus": True, "segments": ids(*shape[:2])}
        want = everything(selective_scan_reference, wide(inputs), **more)
        with on(path):
            got = everything(selective_scan, inputs, **more)
        assert_near(got, {name: want[name] for name in ("y", "state")}, 3e-6)
        assert_near(got, want, 2e-5)


@pytest.mark.parametrize("path", PATHS)
def test_float32_error_of_a_long_sequence(path: str) -> None:
    inputs = case(1, 2048, 32, 16, 1, dtype=torch.float32)
    inputs["A"] = -torch.arange(1.0, 17).expand(32, -1).contiguous()
    inputs["dt_bias"] = torch.full((32,), -4.0)
    wider = {k: m.detach().double() for k, m in inputs.items()}
    want = selective_scan_reference(**wider, softplus=True)[0]
    with on(path), torch.no_grad():
        got = selective_scan(**inputs, softplus=True)[0]
    assert (got - want).norm() <= 1e-6 * want.norm()
    assert (got - want).abs().max() <= 3e-6 * want.abs().max()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_is_read_and_written_and_computed_in_float32(path: str, method: str) -> None:
    inputs = {k: m.detach() for k, m in case(2, 37, 21, 5, 1, dtype=torch.float32).items()}
    along_time = ("u", "dt", "gate")
    rounded = {k: m.bfloat16().requires_grad_() if k in along_time else m.requires_grad_() for k, m in inputs.items()}
    more = {"method": method, "softplus": True}
    want = everything(selective_scan_reference, wide(rounded), **more)
    with on(path):
        got = everything(selective_scan, rounded, **more)
    for name in ("y", "gradient of u", "gradient of dt", "gradient of gate"):
        assert got[name].dtype == torch.bfloat16
    assert got["state"].dtype == torch.float32
    assert_near(got, want, 1e-2)
    assert_near(got, {"state": want["state"]}, 3e-6)


@pytest.mark.parametrize("path", PATHS)
def test_strided_inputs(path: str) -> None:
    """Halves of a projection, transposed and expanded tensors."""
    plain = case(2, 9, 8, 4, 2)
    strided = dict(plain)
    both = torch.cat([plain["u"], plain["gate"]], -1).detach()
    strided["u"], strided["gate"] = (m.requires_grad_() for m in both.chunk(2, -1))
    for name in ("dt", "A"):
        strided[name] = plain[name].detach().mT.contiguous().mT.requires_grad_()
    with on(path):
        assert_near(everything(selective_scan, strided), everything(selective_scan, plain), 1e-14)


@pytest.mark.parametrize("at_once", [1, 3])
def test_fewer_chunks_at_once_where_memory_is_short(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Seven whole chunks in threes: from span to span the state and its gradient go on, and the last comes alone."""
    inputs, segments = case(2, 230, 6, 3, 2), ids(2, 230, often=0.01)
    want = everything(selective_scan_reference, inputs, softplus=True, segments=segments)
    monkeypatch.setattr(pytorch_blocks, "_RESIDENT_NUMBERS", at_once * 2 * 6 * 3 * CHUNK_LENGTH)
    with on(LAUNCHED):
        assert_near(everything(selective_scan, inputs, softplus=True, segments=segments), want, 1e-12)


class _Calls(TorchDispatchMode):
    """Counts the calls that would each be a launch on a GPU: all but views."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += not func.is_view
        return func(*args, **(kwargs or {}))


def test_a_long_sequence_is_few_launches() -> None:
    inputs = {k: m.detach() for k, m in case(1, 4096, 8, 2, 1, dtype=torch.float32).items()}
    given = Arguments(**inputs, segments=None, softplus=True, exact=False)
    y, state = torch.empty_like(given.u), torch.empty_like(given.h0)
    kept, ones = torch.empty(1, 4096 // CHUNK_LENGTH, 2, 8), torch.ones_like(given.u)
    counted = {}
    for path in ("torch", LAUNCHED):
        with on(path), _Calls() as forward:
            pytorch.forward(given, y, state, kept, CHUNK_LENGTH)
        with on(path), _Calls() as backward:
            pytorch.backward(ones, state, kept, given, CHUNK_LENGTH)
        counted[path] = (forward.n, backward.n)
    # 5,762 and 19,466 beside 422 and 834 with torch 2.13, of which docs/kernels.md tells
    assert counted["torch"][0] > 4096 < counted["torch"][1]
    assert counted[LAUNCHED][0] <= 500
    assert counted[LAUNCHED][1] <= 1000


@needs_library
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(11, 40, 300, 5, 1), (1, 70, 520, 16, 2), (1, 9, 40, 3, 20)])
def test_same_bits_on_any_number_of_threads(shape: tuple[int, ...], method: str) -> None:
    inputs = case(*shape, dtype=torch.float32)
    results = []
    try:
        for threads in (1, 2, 3, 8, 1):
            torch.set_num_threads(threads)
            with kernels.use("c"):
                results.append(everything(selective_scan, inputs, softplus=True, method=method))
    finally:
        torch.set_num_threads(1)
    for other in results[1:]:
        for name, m in results[0].items():
            assert torch.equal(m, other[name]), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", ["torch", LAUNCHED, *native.instruction_sets()[-1:]])
def test_first_and_second_derivatives(path: str, is_complex: bool, method: str) -> None:
    inputs = case(1, 4, 4, 2, 2, is_complex=is_complex)
    segments = torch.tensor([[0, 0, 1, 1]])

    def run(*values: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan(**dict(zip(inputs, values)), method=method, softplus=True, segments=segments)

    with on(path):
        assert torch.autograd.gradcheck(run, tuple(inputs.values()), fast_mode=True)
        assert torch.autograd.gradgradcheck(run, tuple(inputs.values()), fast_mode=True)
