"""The selective scan: in C on each instruction set and in PyTorch, values and derivatives are the definition's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.selective_scan import (
    CHUNK_LENGTH,
    METHODS,
    blocks,
    pytorch,
    selective_scan,
    selective_scan_reference,
)
from statewise.kernels.selective_scan.reference import hold, hold_slope
from statewise.kernels.selective_scan.signature import Arguments

D = torch.float64
LAUNCHED = "torch, every call a launch"  # as off the CPU: many chunks of time at once
PATHS = ["torch", LAUNCHED, *native.instruction_sets()]
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


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN, so that a kernel that reads what it did not write is found out."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def on(path: str) -> Iterator[None]:
    if path == LAUNCHED:
        way: Any = mock.patch.object(blocks, "is_launched", return_value=True)
    else:
        way = contextlib.nullcontext() if path == "torch" else native.forced(path)
    with kernels.use("torch" if path in ("torch", LAUNCHED) else "c"), way:
        yield


def case(
    b: int, length: int, d: int, n: int, g: int, *, is_complex: bool = False, options: bool = True, dtype: Any = D
) -> dict[str, Any]:
    torch.manual_seed(0)
    kind = {D: torch.complex128, torch.float32: torch.complex64}[dtype] if is_complex else dtype
    A = -torch.rand(d, n, dtype=dtype) - 0.01
    inputs = {
        "u": torch.randn(b, length, d, dtype=dtype),
        "dt": torch.randn(b, length, d, dtype=dtype),
        "A": torch.complex(A, 3 * torch.randn(d, n, dtype=dtype)) if is_complex else A,
        "B": torch.randn(b, length, g, n, dtype=kind),
        "C": torch.randn(b, length, g, n, dtype=kind),
        "h0": torch.randn(b, d, n, *((2,) if is_complex else ()), dtype=dtype),
    }
    if options:
        inputs |= {
            "D": torch.randn(d, dtype=dtype),
            "gate": torch.randn(b, length, d, dtype=dtype),
            "dt_bias": torch.randn(d, dtype=dtype),
        }
    return {name: m.requires_grad_() for name, m in inputs.items()}


def wide(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: m.detach().to(torch.complex128 if m.is_complex() else D).requires_grad_() for k, m in inputs.items()}


def ids(b: int, length: int, often: float = 0.15) -> Tensor:
    return (torch.rand(b, length, generator=torch.Generator().manual_seed(1)) < often).cumsum(1)


def everything(run: Any, inputs: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    """y, the state and all gradients of a fixed combination of both."""
    y, state = run(**inputs, **options)
    weights = [torch.sin(torch.arange(m.numel(), dtype=D) + 1).reshape(m.shape).to(m.dtype) for m in (y, state)]
    total = (y * weights[0]).sum() + (state * weights[1]).sum()
    total = total + 0 * sum(m.abs().sum() for m in inputs.values())  # of what an empty sequence does not use
    found = torch.autograd.grad(total, list(inputs.values()))
    return {"y": y, "state": state} | {f"gradient of {name}": g for name, g in zip(inputs, found)}


def assert_near(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    for name, expected in want.items():
        scale = max(float(expected.detach().abs().max()), 1e-30) if expected.numel() else 1.0
        atol = tolerance * scale
        found = got[name].to(expected.dtype)
        assert not found.numel() or float((found - expected).detach().abs().max()) <= atol, name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_equal_to_the_definition(path: str, is_complex: bool, method: str) -> None:
    for shape in SHAPES:
        for options in (False, True):
            inputs = case(*shape, is_complex=is_complex, options=options)
            more = {"method": method, "softplus": options, "segments": ids(*shape[:2]) if options else None}
            if not options:
                inputs["dt"] = (inputs["dt"].detach().abs() / 2).requires_grad_()
            want = everything(selective_scan_reference, inputs, **more)
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
    monkeypatch.setattr(blocks, "_RESIDENT_NUMBERS", at_once * 2 * 6 * 3 * CHUNK_LENGTH)
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


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_exact_hold_near_zero(path: str, is_complex: bool) -> None:
    """At A = 0 the hold is Delta, with a derivative; around it no digits are lost."""
    inputs = case(1, 6, 13, 1, 1, is_complex=is_complex, options=False)
    sizes = torch.tensor([0.0, 1e-300, 1e-20, 1e-9, 1e-5, 1e-3, 0.1, 0.4, 0.9, 1.1, 2.0, 8.0, 30.0], dtype=D)
    A = -sizes.unsqueeze(1)
    inputs["A"] = (torch.complex(A, A.flip(0) / 4) if is_complex else A).requires_grad_()
    inputs["dt"] = (inputs["dt"].detach().abs() + 0.01).requires_grad_()
    want = everything(selective_scan_reference, inputs, method="zoh")
    with on(path):
        got = everything(selective_scan, inputs, method="zoh")
    assert all(m.isfinite().all() for m in got.values())
    assert_near(got, want, 1e-13)


def test_the_hold_and_its_slope_to_rounding() -> None:
    import mpmath

    for z in (0.0, 1e-20, 1e-9, -1e-4, 0.3, -0.49, 0.51, -0.51, -3.0, 2.0, -40.0):
        with mpmath.workdps(60):
            value, slope = mpmath.mpf(1), mpmath.mpf(1) / 2
            if z:
                m = mpmath.mpf(z)
                value = (mpmath.exp(m) - 1) / m
                slope = (mpmath.exp(m) - value) / m
        x = torch.tensor(z, dtype=D)
        one = torch.ones_like(x)  # of this step the hold is phi_1
        assert abs(hold(one, x).item() - float(value)) <= 1e-15 * float(value)
        assert abs(hold_slope(one, x).item() - float(slope)) <= 3e-15 * float(slope)
        leaf = x.clone().requires_grad_()
        hold(one, leaf).backward()
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, hold_slope(one, x), atol=0, rtol=1e-13)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_minus_infinity_under_softplus_is_the_identity(path: str, is_complex: bool, method: str) -> None:
    inputs = case(2, 70, 18, 5, 1, is_complex=is_complex, dtype=torch.float32)
    masked = inputs["dt"].detach().clone()
    masked[:, 5:] = -torch.inf
    inputs["dt"] = masked.requires_grad_()
    with on(path):
        y, state = selective_scan(**inputs, softplus=True, method=method)
        rest = {k: m[:, 5:] if k in ("u", "dt", "B", "C", "gate") else m for k, m in inputs.items()}
        _, after = selective_scan(**(rest | {"h0": state.detach()}), softplus=True, method=method)
        assert torch.equal(after, state)
        found = dict(zip(inputs, torch.autograd.grad(y.sum() + state.sum(), list(inputs.values()))))
    assert all(g.isfinite().all() for g in found.values())
    assert not found["dt"][:, 5:].any()
    assert not found["B"][:, 5:].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("path", PATHS)
def test_nan_and_infinity_stay_in_their_row_channel_and_document(path: str, bad: float) -> None:
    """The boundary lies inside a chunk, and in the new document there are whole ones."""
    inputs = {k: m.detach() for k, m in case(2, 130, 19, 4, 1, dtype=torch.float32).items()}
    inputs["u"][0, 5, 3] = bad
    segments = (torch.arange(130) >= 40).long().expand(2, -1)
    with on(path):
        y, state = selective_scan(**inputs, softplus=True, segments=segments)
    assert not y[0, 5:40, 3].isfinite().any()
    y[0, 5:40, 3] = 0
    assert y.isfinite().all()
    assert state.isfinite().all()


@pytest.mark.parametrize("name", ["dt", "h0"])
@pytest.mark.parametrize("path", PATHS)
def test_nan_in_dt_and_in_the_state_ends_with_its_document(path: str, name: str) -> None:
    inputs = case(2, 130, 19, 4, 1)
    with torch.no_grad():
        inputs[name][(0, 35, 3) if name == "dt" else (0, 3)] = torch.nan
    segments = (torch.arange(130) >= 40).long().expand(2, -1)
    with on(path):
        y, state = selective_scan(**inputs, softplus=True, segments=segments)
        gradients = torch.autograd.grad(y[:, 40:].sum() + state.sum(), [inputs[k] for k in ("u", "B", "C")])
    assert y[0, 35:40, 3].isnan().all()
    assert y[:, 40:].isfinite().all()
    assert state.isfinite().all()
    assert all(g[:, 40:].isfinite().all() for g in gradients)


@pytest.mark.parametrize("path", PATHS)
def test_a_gradient_that_nobody_announced(path: str) -> None:
    """Without kept states (the operator was called with keep=False) the backward pass computes them."""
    inputs = case(1, 70, 5, 3, 1)
    order = ("u", "dt", "A", "B", "C", "h0", "D", "gate", "dt_bias")
    operator = torch.ops.statewise.selective_scan.default
    with on(path):
        y, state, _ = operator(*(inputs[k] for k in order), None, True, False, False)
        got = torch.autograd.grad(y.sum() + state.sum(), list(inputs.values()))
        y, state = selective_scan(**inputs, softplus=True)
        want = torch.autograd.grad(y.sum() + state.sum(), list(inputs.values()))
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.parametrize("path", ["torch", LAUNCHED, *native.instruction_sets()[-1:]])
def test_pieces_with_the_state_passed_on(path: str) -> None:
    inputs = {k: m.detach() for k, m in case(2, 100, 9, 3, 3).items()}
    along_time = ("u", "dt", "B", "C", "gate")
    with on(path):
        y, state = selective_scan(**inputs, softplus=True)
        h, outputs = inputs["h0"], []
        for start, stop in ((0, 1), (1, 33), (33, 33), (33, 100)):
            piece = {k: m[:, start:stop] if k in along_time else m for k, m in inputs.items()} | {"h0": h}
            out, h = selective_scan(**piece, softplus=True)
            outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, 1), y, atol=1e-13, rtol=0)
    torch.testing.assert_close(h, state, atol=1e-13, rtol=0)


def test_opcheck() -> None:
    torch.use_deterministic_algorithms(False)  # opcheck compares memory that an operator is free to leave as it is
    inputs = case(2, 7, 4, 3, 2)
    tensors = [inputs[k] for k in ("u", "dt", "A", "B", "C", "h0", "D", "gate", "dt_bias")]
    operator, backward = torch.ops.statewise.selective_scan.default, torch.ops.statewise.selective_scan_backward.default
    _, _, kept = operator(*tensors, ids(2, 7), True, False, True)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    for arguments in (
        (*tensors, ids(2, 7), True, False, True),
        (*tensors[:6], None, None, None, None, False, True, True),
    ):
        assert set(torch.library.opcheck(operator, arguments, test_utils=checks).values()) == {"SUCCESS"}
    arguments = (*tensors, ids(2, 7), True, False, True)
    assert torch.library.opcheck(operator, arguments, test_utils="test_aot_dispatch_dynamic")
    given = (
        torch.randn(2, 7, 4, dtype=D),
        torch.randn(2, 4, 3, dtype=D),
        kept.detach(),
        *tensors,
        ids(2, 7),
        True,
        False,
    )
    assert set(torch.library.opcheck(backward, given, test_utils=checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dt": torch.ones(1, 2, 4)}, "needs u, dt and gate"),
        ({"B": torch.ones(1, 3, 3, 2)}, "groups dividing d"),
        ({"h0": torch.ones(1, 4, 3)}, "needs h0"),
        ({"A": torch.ones(4, 2, dtype=torch.complex64)}, r"needs h0 of shape \(1, 4, 2, 2\)"),
        ({"D": torch.ones(3)}, "needs D"),
        ({"dt_bias": torch.ones(3)}, "needs dt_bias"),
        ({"segments": torch.ones(1, 2)}, "needs segments"),
        ({"method": "euler"}, "method 'euler' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], complaint: str) -> None:
    inputs: dict[str, Any] = case(1, 3, 4, 2, 1, options=False, dtype=torch.float32)
    with pytest.raises(InputError, match=complaint) as error:
        selective_scan(**(inputs | change))
    assert "\n" not in str(error.value)


def test_c_asked_for_by_name_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "why_not", lambda: "no compiler")
    inputs = case(1, 3, 4, 2, 1)
    with kernels.use("c"), pytest.raises(InputError, match=r"selective_scan: .* no compiler"):
        selective_scan(**inputs)
    with kernels.use("auto"):
        selective_scan(**inputs)
