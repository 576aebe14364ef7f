"""What kernels refuse: at the public function what would lose numbers, at the operator what C would read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import statewise.kernels.diagonal_scan
import statewise.kernels.kalman
import statewise.reproduce.long_convolution  # noqa: F401 (registers operators)
from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.cauchy import cauchy
from statewise.kernels.fft_convolution import fft_convolution  # noqa: F401 (registers operators)
from statewise.kernels.gated_rms_norm import gated_rms_norm
from statewise.kernels.gelu_tanh import _gelu, gelu_tanh
from statewise.kernels.linear_cross_entropy import linear_cross_entropy
from statewise.kernels.linear_cross_entropy.pytorch import NO_TARGET
from statewise.kernels.linear_scan import linear_scan
from statewise.kernels.registration import IMPLEMENTATIONS
from statewise.kernels.rms_norm import rms_norm
from statewise.kernels.selective_scan import selective_scan, selective_scan_reference
from statewise.kernels.short_convolution import short_convolution
from statewise.kernels.ssd import ssd
from statewise.kernels.vandermonde import vandermonde

PATHS = ("torch", "c") if native.available() else ("torch",)
PUBLIC: dict[str, Callable[[Tensor], Any]] = {  # with x of (1, 3, 2)
    "short_convolution": lambda x: short_convolution(x, torch.ones(2, 2), torch.zeros(1, 1, 2)),
    "rms_norm": lambda x: rms_norm(x, torch.ones(2)),
    "gelu_tanh": lambda x: (gelu_tanh(x), _gelu(x)),  # the first takes PyTorch's own for so few
    "gated_rms_norm": lambda x: gated_rms_norm(torch.ones(1, 3, 2), x, torch.ones(2)),
    "ssd": lambda x: ssd(x.unsqueeze(3), torch.zeros(1, 3, 2), *(torch.ones(1, 3, 1, 1),) * 2, torch.zeros(1, 2, 1, 1)),
    "selective_scan": lambda x: selective_scan(
        x, torch.ones(1, 3, 2), -torch.ones(2, 1), *(torch.ones(1, 3, 1, 1),) * 2, torch.zeros(1, 2, 1)
    ),
    "linear_cross_entropy": lambda x: linear_cross_entropy(x[0], torch.ones(4, 2), torch.tensor([1, 2, 3])),
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_not_real_is_refused_by_its_dtype(name: str, dtype: torch.dtype) -> None:
    PUBLIC[name](torch.ones(1, 3, 2))
    with pytest.raises(InputError, match=f"{name} needs real .* of {dtype}"):
        PUBLIC[name](torch.ones(1, 3, 2).to(dtype))


def operator_calls() -> dict[str, list[Any]]:
    """Arguments that fit, by the operator's name."""
    x, steps, one = torch.rand(1, 3, 2), torch.rand(1, 3, 1, 4), torch.ones(2)
    scan = [x, x, -torch.rand(2, 4), steps, steps, torch.rand(1, 2, 4), one, x, one, None, False, False]
    dual = [x.unsqueeze(3), -x, steps, steps, torch.rand(1, 2, 1, 4), x, one, None]
    keys = [torch.rand(1, 3, 2, 4) for _ in range(4)]
    rank_one = [x.unsqueeze(3), *keys[:2], -keys[2], torch.rand(1, 2, 1, 4), *keys[2:], None, 64]
    convolution = [x, torch.rand(2, 4), torch.rand(1, 3, 2), one, None, False]
    response = [torch.rand(2, 1, 4), torch.rand(2, 4)]
    entropy = [x[0], torch.rand(5, 2), torch.tensor([1, 2, 3])]
    system = [torch.rand(2, 4).to(torch.complex64)] * 3
    walk = [x.unsqueeze(3), *system, one, torch.rand(1, 2, 1, 4, 2), torch.tensor([2])]
    return {
        "diagonal_scan": walk,
        "diagonal_scan_backward": [walk[0], walk[5], *walk],
        "linear_scan": [x, x, torch.rand(1, 2)],
        "linear_scan_backward": [x, x, x, torch.rand(1, 2)],
        "rms_norm": [x, one, 1e-5],
        "rms_norm_backward": [x, x, one, 1e-5],
        "gelu_tanh_backward": [x, x],
        "gated_rms_norm": [x, x, one, 1e-5, 1, False],
        "gated_rms_norm_backward": [x, x, x, one, 1e-5, 1, False],
        "short_convolution": convolution,
        "short_convolution_backward": [x, *convolution],
        "selective_scan": [*scan, False],
        "selective_scan_backward": [x, scan[5], torch.zeros(1, 1, 4, 2), *scan],
        "diagonal_rank_one": rank_one,
        "diagonal_rank_one_backward": [rank_one[0], rank_one[4], *rank_one],
        "ssd": [*dual, 64],
        "ssd_backward": [dual[0], dual[4], *dual, 64],
        "vandermonde": [*response, 3],
        "vandermonde_backward": [torch.rand(2, 1, 3), *response, 3],
        "linear_cross_entropy": entropy,
        "linear_cross_entropy_sum": [*entropy, torch.rand(3), True],
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", operator_calls())
def test_operators_refuse_other_dtypes_and_shapes(name: str, path: str) -> None:
    operator, given = getattr(torch.ops.statewise, name).default, operator_calls()[name]
    with kernels.use(path):
        operator(*given)
        for i, m in enumerate(given):
            if not isinstance(m, Tensor):
                continue
            argument, shorter = operator._schema.arguments[i].name, m.narrow(-1, 0, m.shape[-1] - 1).contiguous()
            wider = torch.complex128 if m.is_complex() else torch.int32 if m.dtype == torch.int64 else torch.float64
            others = [shorter, shorter.to(wider), m.to(wider)]
            if argument in ("targets", "coefficients"):
                others = [shorter]  # converted to what C takes
            for other in others:
                with pytest.raises(InputError, match="needs"):
                    operator(*given[:i], other, *given[i + 1 :])


@pytest.mark.parametrize("path", PATHS)
def test_a_scan_without_states_is_its_skip(path: str) -> None:
    u, D = torch.randn(1, 3, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    empty = torch.zeros(1, 3, 1, 0)
    with kernels.use(path):
        y, state = selective_scan(u, u.abs(), torch.zeros(2, 0), empty, empty, torch.zeros(1, 2, 0), D=D)
        y.sum().backward()
    assert u.grad is not None
    assert D.grad is not None
    assert torch.equal(y, u)
    assert state.shape == (1, 2, 0)
    assert torch.equal(u.grad, torch.ones_like(u))
    assert torch.allclose(D.grad, u.detach().sum((0, 1)))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(0, 3, 2, 4), (1, 0, 2, 4), (1, 3, 0, 4)])
def test_a_scan_of_nothing_keeps_its_state(shape: tuple[int, ...], path: str) -> None:
    b, length, d, n = shape
    u, h0 = torch.randn(b, length, d, requires_grad=True), torch.randn(b, d, n, requires_grad=True)
    steps = torch.ones(b, length, 1, n)
    with kernels.use(path):
        _, state = selective_scan(u, u, -torch.ones(d, n), steps, steps, h0)
        state.sum().backward()
    assert h0.grad is not None
    assert torch.equal(state, h0)
    assert torch.equal(h0.grad, torch.ones_like(h0))


@pytest.mark.parametrize("path", PATHS)
def test_complex_numbers_of_any_strides(path: str) -> None:
    u, A, steps = torch.ones(1, 2, 1, requires_grad=True), torch.full((1, 1), -1 + 1j), torch.ones(1, 2, 1, 1)
    h0 = torch.tensor([9.0, 1.0, 2.0]).as_strided((1, 1, 1, 2), (5, 3, 7, 1), 1)  # "contiguous", at odd strides
    want = selective_scan_reference(u, u, A, steps, steps, torch.tensor([[[[1.0, 2.0]]]]))[0]
    assert torch.equal(selective_scan_reference(u, u, A, steps, steps, h0)[0], want)
    with kernels.use(path):
        y = selective_scan(u, u, A, steps, steps, h0)[0]
        y.sum().backward()
    assert torch.allclose(y, want)


@pytest.mark.parametrize("path", PATHS)
def test_the_exact_hold_of_an_infinite_step_is_its_limit(path: str) -> None:
    one, A = torch.ones(1, 2, 1), torch.tensor([[-2.0, -0.5]])
    given = (one, one * torch.inf, A, torch.ones(1, 2, 1, 2), torch.ones(1, 2, 1, 2), torch.ones(1, 1, 2))
    with kernels.use(path):
        got = selective_scan(*given, method="zoh")
    for y, state in (got, selective_scan_reference(*given, method="zoh")):
        assert torch.allclose(y, torch.full_like(y, 2.5))
        assert torch.allclose(state, -1 / A)


@pytest.mark.parametrize(
    "call",
    [
        lambda: short_convolution(torch.tensor(1.0), torch.ones(2, 2), torch.zeros(1, 1, 2)),
        lambda: short_convolution(torch.ones(1, 3, 2), torch.ones(2), torch.zeros(1, 1, 2)),
        lambda: linear_cross_entropy(torch.ones(2, 3), torch.ones(0, 3), torch.tensor([0, 0])),
        lambda: vandermonde(torch.ones(1, 2), torch.ones(1, 2), 4.0),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Tensor]) -> None:
    with pytest.raises(InputError, match="needs"):
        call()


def test_a_negative_target_is_refused_in_compiled_code_too() -> None:
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    x, weight = torch.randn(3, 2), torch.randn(4, 2)
    want = linear_cross_entropy(x[:2], weight, torch.tensor([1, 2]))
    assert torch.allclose(compiled(x, weight, torch.tensor([1, 2, -100])), want)
    with pytest.raises(InputError, match="a target is -1"):
        compiled(x, weight, torch.tensor([1, 2, -1]))
    with pytest.raises(InputError, match="a target is -1"):
        torch.ops.statewise.linear_cross_entropy(x, weight, torch.tensor([-1, NO_TARGET, 0]))


def test_a_scan_of_two_dtypes_is_refused_by_its_function() -> None:
    with pytest.raises(InputError, match="one dtype"):
        linear_scan(torch.ones(1, 3), torch.ones(1, 3).double(), torch.zeros(1))


def everything() -> dict[str, list[Any]]:
    """Arguments that fit, of those operators too whose kinds of arguments convert."""
    x = torch.rand(1, 3, 2, 1)
    convolution, sums = (
        [x, torch.rand(2, 1, 2), torch.rand(1, 1, 2, 1)],
        [torch.rand(2, 1, 4) + 0j, torch.rand(1, 3) + 0j],
    )
    one, y, factors = torch.eye(1)[None], torch.rand(1, 3, 1), torch.ones(1, 3, 1, 1)
    filtered = [y, torch.rand(1, 1, 2, 1), torch.eye(2)[None, None], torch.rand(1, 1, 2), *[one[0], one] * 2]
    filtered += [None, None, None, 1]
    return {
        **operator_calls(),
        "kalman": filtered,
        "kalman_backward": [*filtered[:-1], y, factors, y, factors, y[..., 0], y, y, None, 1],
        **{f"{kind}fft_convolution": convolution for kind in ("", "block_")},
        **{f"{kind}fft_convolution_backward": [x.unsqueeze(3), *convolution] for kind in ("", "block_")},
        "cauchy": [*sums, torch.rand(2, 4) + 0j],
        "cauchy_backward": [torch.rand(2, 1, 3) + 0j, *sums, torch.rand(2, 4) + 0j, True],
        "gelu_tanh": [x],
        "linear": [x[0, :, :, 0], torch.rand(4, 2), torch.rand(4)],
    }


def test_the_list_of_operators_is_whole() -> None:
    assert sorted(everything()) == sorted(name.removeprefix("statewise::") for name in IMPLEMENTATIONS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", everything())
def test_every_operator_refuses_tensors_of_another_kind_in_one_line(name: str, path: str) -> None:
    operator, given = getattr(torch.ops.statewise, name).default, everything()[name]
    with kernels.use(path):
        operator(*given)
        for i, m in enumerate(given):
            if not isinstance(m, Tensor):
                continue
            others = [m.to_sparse(), m.bool()]
            if name != "gelu_tanh":  # whose one tensor may have any shape and lie anywhere
                others += [m.new_zeros(()), m.unsqueeze(-1), m.to("meta")]
            if name not in ("gelu_tanh", "rms_norm"):  # whose x may have any rows
                others.append(m.unsqueeze(0))
            for other in others:
                with pytest.raises(InputError, match=f"the operator {name} needs") as refused:
                    operator(*given[:i], other, *given[i + 1 :])
                assert "\n" not in str(refused.value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        *(("gated_rms_norm", "n_groups", n) for n in (0, -1, 7, 2**40)),
        *(("gated_rms_norm_backward", "n_groups", n) for n in (0, -1, 7, 2**40)),
        *(("ssd", "chunk_length", n) for n in (0, -1)),
        *(("ssd_backward", "chunk_length", n) for n in (0, -1)),
        ("vandermonde", "length", -1),
        ("linear_cross_entropy", "targets", torch.full((3,), torch.nan)),
        ("linear_cross_entropy_sum", "targets", torch.full((3,), torch.nan)),
        ("linear_cross_entropy", "weight", torch.ones(0, 2)),
        *((f"{name}fft_convolution", "impulse_response", torch.ones(2, 1, 0)) for name in ("", "block_")),
        ("short_convolution", "taps", torch.ones(2, 0)),
        ("rms_norm", "weight", torch.ones(2, 2)),
        ("ssd", "D", torch.ones(2, 2)),
        *((name, "chunk_length", 0) for name in ("diagonal_rank_one", "diagonal_rank_one_backward")),
        ("diagonal_rank_one", "read", None),
        ("diagonal_rank_one", "beta", torch.ones(1, 3, 2)),
    ],
)
def test_operators_refuse_what_the_functions_refuse(name: str, argument: str, value: Any, path: str) -> None:
    operator, given = getattr(torch.ops.statewise, name).default, list(everything()[name])
    names = [a.name for a in operator._schema.arguments]
    given[names.index(argument)] = value
    if argument in ("impulse_response", "taps"):
        given[2] = None if argument == "impulse_response" else torch.ones(1, 0, 2)
    with kernels.use(path), pytest.raises(InputError, match=f"the operator {name} needs"):
        operator(*given)


def test_what_fitted_once_is_not_taken_for_what_does_not() -> None:
    """A call is looked up by all that it is checked by."""
    x, weight = torch.rand(3, 2), torch.ones(2)
    for _ in range(2):
        torch.ops.statewise.rms_norm(x, weight, 1e-5)
        for wrong in ((x.double(), weight), (x, weight.double()), (x[:, :1], weight), (x.to_sparse(), weight)):
            with pytest.raises(InputError, match="the operator rms_norm needs"):
                torch.ops.statewise.rms_norm(*wrong, 1e-5)


def test_a_cauchy_sum_at_no_axis_of_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="cauchy needs"):
        cauchy(torch.ones(1, 1, 1) + 0j, torch.tensor(1j), torch.ones(1, 1) + 0j)


@pytest.mark.parametrize("path", PATHS)
def test_sums_over_no_states_are_zero(path: str) -> None:
    nothing, systems = torch.zeros(2, 1, 0, dtype=torch.complex64), torch.zeros(2, 0, dtype=torch.complex64)
    with kernels.use(path):
        assert torch.equal(vandermonde(nothing, systems, 3), torch.zeros(2, 1, 3))
        assert torch.equal(cauchy(nothing, torch.ones(3) + 0j, systems), torch.zeros(2, 1, 3) + 0j)
        y = short_convolution(torch.ones(3, 0, 0), torch.ones(0, 9).requires_grad_(), torch.ones(3, 8, 0))
        y.sum().backward()


def test_no_features_have_one_group() -> None:
    """Of 0 features any number is a divisor, and the C code would walk over 2^62 groups."""
    x, weight = torch.zeros(2, 1, 0), torch.zeros(0)
    assert gated_rms_norm(x, x, weight).shape == x.shape
    with pytest.raises(InputError, match="does not divide the width 0"):
        gated_rms_norm(x, x, weight, n_groups=2**62)
    with pytest.raises(InputError, match="n_groups of at least 1"):
        torch.ops.statewise.gated_rms_norm(x, x, weight, 1e-5, 2**62, True)
