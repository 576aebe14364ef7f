"""Masked attention and state-space models as contractions: both orders are one sum, and equal to the operator SSD."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from semiseparable_examples import (
    Work,
    decays,
    randn,
)
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils.flop_counter import FlopCounterMode

from statewise.errors import InputError
from statewise.operators import SSD
from statewise.semiseparable import (
    CumulativeSum,
    LinearSteps,
    OneSemiseparable,
    QuadraticSteps,
    SequentiallySemiseparable,
    masked_attention_contraction,
    ssm_contraction,
)


def every_mask(length: int, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    return {
        "cumulative sum": CumulativeSum(length, dtype),
        "1-SS": OneSemiseparable(decays(length, dtype=dtype)),
        "batch of 1-SS": OneSemiseparable(decays(2, 1, length, dtype=dtype)),
        "N-SSS": SequentiallySemiseparable(*(randn(length, 2, seed=s).to(dtype).tanh() for s in (1, 2, 3))),
        "dense": randn(3, length, length, dtype=dtype).tril(),
    }


@pytest.mark.parametrize("name", every_mask(1))
@pytest.mark.parametrize("length", [1, 2, 7, 65])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_both_orders_are_the_same_sum(name: str, length: int, dtype: torch.dtype, tolerance: float) -> None:
    mask = every_mask(length, dtype)[name]
    Q, K = randn(2, 3, length, 4, dtype=dtype), randn(2, 3, length, 4, dtype=dtype, seed=5)
    V = randn(2, 3, length, 6, dtype=dtype, seed=6)
    dense = mask if isinstance(mask, Tensor) else mask.dense()
    L = dense.double().expand(2, 3, length, length)
    expected = torch.einsum("...ts,...tn,...sn,...sp->...tp", L, Q.double(), K.double(), V.double())
    quadratic = masked_attention_contraction(mask, Q, K, V, order="quadratic")
    linear = masked_attention_contraction(mask, Q, K, V, order="linear")
    assert isinstance(quadratic, QuadraticSteps)
    assert isinstance(linear, LinearSteps)
    for Y in (quadratic.Y, linear.Y):
        assert Y.dtype == dtype
        torch.testing.assert_close(Y.double(), expected, rtol=tolerance, atol=10 * tolerance)
    assert quadratic.G.shape == quadratic.M.shape == (2, 3, length, length)
    assert linear.Z.shape == linear.H.shape == (2, 3, length, 6, 4)
    torch.testing.assert_close(quadratic.M, dense * (Q @ K.mT), rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("order", ["quadratic", "linear"])
def test_times_of_outputs_and_inputs_may_differ(order: Any) -> None:
    mask, Q, K, V = randn(5, 8), randn(2, 5, 3), randn(2, 8, 3), randn(2, 8, 4)
    steps = masked_attention_contraction(mask, Q, K, V, order=order)
    torch.testing.assert_close(steps.Y, (mask * (Q @ K.mT)) @ V)


@pytest.mark.parametrize("length", [1, 2, 31, 65])
def test_state_space_model_is_the_linear_order(length: int) -> None:
    a, B, C, X = decays(2, 1, length), randn(2, 3, length, 4), randn(3, length, 4, seed=3), randn(1, length, 5, seed=4)
    steps = ssm_contraction(a, B, C, X)
    twin = masked_attention_contraction(OneSemiseparable(a), C, B, X, order="quadratic")
    torch.testing.assert_close(steps.Y, twin.Y)
    h = torch.zeros(2, 3, 5, 4, dtype=a.dtype)
    for t in range(length):  # the recurrence as it is written
        h = a[..., t, None, None] * h + X[..., t, :, None] * B[..., t, None, :]
        torch.testing.assert_close(steps.H[..., t, :, :], h)
        torch.testing.assert_close(steps.Y[..., t, :], (h @ C[:, t, :, None])[..., 0])
    torch.testing.assert_close(steps.Y, SequentiallySemiseparable(a.expand(2, 3, -1), B, C.expand_as(B)) @ X)


def test_cost_of_the_orders() -> None:
    """The multiplications and sizes that the docstrings give; a product of matrices counts 2 for each."""
    T, S, N, P = 32, 32, 4, 6
    mask, Q, K, V = OneSemiseparable(decays(T)), randn(T, N), randn(S, N), randn(S, P)
    with Work() as linear:
        masked_attention_contraction(mask, Q, K, V, order="linear")
    read = T * P  # of Y = Q H, a product of matrices
    assert linear.elements["bmm"] in (read, read + S * P * N)  # Z may be one as well
    recurrence_and_outer = linear.elements["mul"] + linear.elements["bmm"] - read
    assert recurrence_and_outer <= 3.5 * T * P * N
    with FlopCounterMode(display=False) as quadratic:
        masked_attention_contraction(mask.dense(), Q, K, V, order="quadratic")
    assert quadratic.get_total_flops() == 2 * T * S * (N + P)


def test_gradients_of_the_contractions() -> None:
    a = decays(6).requires_grad_()
    Q, K, V = (randn(6, 2, seed=s).requires_grad_() for s in (1, 2, 3))

    def every_order(a: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, ...]:
        quadratic = masked_attention_contraction(OneSemiseparable(a), Q, K, V, order="quadratic")
        linear = masked_attention_contraction(CumulativeSum(6, a.dtype), Q, K, V, order="linear")
        return *ssm_contraction(a, K, Q, V), *quadratic, *linear

    assert gradcheck(every_order, (a, Q, K, V))


# -------------------------------------------------------------------------------------------- the operator SSD


def ssd_inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_a (b, l, h), B and C (b, l, g, n) and x (b, l, h, p), with 4 heads in 2 groups."""
    log_a = -randn(2, length, 4).abs()
    B, C, x = randn(2, length, 2, 3, seed=1), randn(2, length, 2, 3, seed=2), randn(2, length, 4, 5, seed=3)
    return log_a.to(dtype), B.to(dtype), C.to(dtype), x.to(dtype)


def heads_first(log_a: Tensor, B: Tensor, C: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a (b, h, l), B and C (b, h, l, n) with a group repeated for its heads, x (b, h, l, p)."""
    B, C = (z.repeat_interleave(2, dim=2).transpose(1, 2) for z in (B, C))
    return log_a.exp().mT, B, C, x.transpose(1, 2)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_matrices_and_contractions_equal_the_operator(length: int, dtype: torch.dtype, tolerance: float) -> None:
    inputs = ssd_inputs(length, dtype)
    operator, (a, B, C, X) = SSD(*inputs[:3]), heads_first(*inputs)
    close = {"rtol": tolerance, "atol": 10 * tolerance}
    matrix = SequentiallySemiseparable(a, B, C)
    torch.testing.assert_close(operator.matrix(), matrix.dense(), **close)
    torch.testing.assert_close(operator.matrix(), OneSemiseparable(a).dense() * (C @ B.mT), **close)
    by_order = (
        ssm_contraction(a, B, C, X).Y,
        masked_attention_contraction(OneSemiseparable(a), C, B, X, order="quadratic").Y,
        masked_attention_contraction(OneSemiseparable(a), C, B, X, order="linear").Y,
        masked_attention_contraction(OneSemiseparable(a).dense(), C, B, X, order="linear").Y,
        matrix @ X,
    )
    for form in operator.forms:
        y, _ = operator(inputs[3], form=form)
        for Y in by_order:
            torch.testing.assert_close(Y.transpose(1, 2), y, **close)


def test_gradients_equal_those_of_the_operator() -> None:
    inputs = [z.requires_grad_() for z in ssd_inputs(13)]
    y, _ = SSD(*inputs[:3])(inputs[3])
    expected = torch.autograd.grad(y.square().sum(), inputs)
    Y = ssm_contraction(*heads_first(*inputs)).Y
    for got, want in zip(torch.autograd.grad(Y.square().sum(), inputs), expected):
        torch.testing.assert_close(got, want)


def test_linear_attention_with_its_normaliser_is_the_operator() -> None:
    """Katharopoulos et al. 2020: o_t = sum_s phi(q_t).phi(k_s) v_s / sum_s phi(q_t).phi(k_s), over s <= t."""
    log_a, k, q, v = ssd_inputs(33)
    q, k = (torch.nn.functional.elu(z) + 1 for z in (q, k))
    with_ones = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    y, _ = SSD(torch.zeros_like(log_a), k, q)(with_ones)
    output = y[..., :-1] / y[..., -1:]

    _, K, Q, V = heads_first(log_a, k, q, v)
    similarity = (Q @ K.mT).tril()
    expected = (similarity / similarity.sum(-1, keepdim=True)) @ V
    torch.testing.assert_close(output, expected.transpose(1, 2))
    by_cumsum = masked_attention_contraction(
        CumulativeSum(33, torch.float64), Q, K, with_ones.transpose(1, 2), order="linear"
    ).Y
    torch.testing.assert_close(by_cumsum.transpose(1, 2), y)


def test_retention_is_the_operator_with_a_constant_decay() -> None:
    """Sun et al. 2023 (RetNet): the mask is D_ts = gamma^(t - s), one gamma a head."""
    log_a, k, q, v = ssd_inputs(33)
    gamma = 1 - 2.0 ** -torch.arange(3, 7, dtype=torch.float64)
    y, _ = SSD(gamma.log().expand_as(log_a), k, q)(v)
    _, K, Q, V = heads_first(log_a, k, q, v)
    distance = torch.arange(33)[:, None] - torch.arange(33)
    D = (gamma[:, None, None] ** distance).tril()
    torch.testing.assert_close(y.transpose(1, 2), (D * (Q @ K.mT)) @ V)
    torch.testing.assert_close(OneSemiseparable(gamma[:, None].expand(4, 33)).dense(), D)


@pytest.mark.parametrize("order", ["quadratic", "linear"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(5, 5)}, r"equal T, S and N .* got \(5, 5\), \(4, 2\), \(4, 2\), \(4, 3\)"),
        ({"mask": OneSemiseparable(torch.ones(5))}, "equal T, S and N"),
        ({"mask": torch.ones(4)}, r"expected mask \(..., T, S\)"),
        ({"Q": torch.ones(4, 3)}, "equal T, S and N"),
        ({"K": torch.ones(3, 2)}, "equal T, S and N"),
        ({"V": torch.ones(3, 3)}, "equal T, S and N"),
        ({"V": torch.ones(4)}, r"expected mask \(..., T, S\)"),
        ({"Q": torch.ones(2, 4, 2), "V": torch.ones(3, 4, 3)}, "do not broadcast"),
        ({"mask": torch.ones(0, 0), "Q": torch.ones(0, 2), "K": torch.ones(0, 2), "V": torch.ones(0, 3)}, "empty"),
        ({"V": torch.ones(4, 3).double()}, "one dtype"),
        ({"mask": CumulativeSum(4, torch.float64)}, "one dtype"),
    ],
)
def test_errors_of_contractions(order: Any, change: dict[str, Any], message: str) -> None:
    arguments = {"mask": torch.ones(4, 4), "Q": torch.ones(4, 2), "K": torch.ones(4, 2), "V": torch.ones(4, 3)}
    with pytest.raises(InputError, match=message) as caught:
        masked_attention_contraction(**(arguments | change), order=order)
    assert "\n" not in str(caught.value)


def test_unknown_order() -> None:
    ones = torch.ones(4, 4)
    order: Any = "cubic"
    with pytest.raises(InputError, match="order='cubic' is unknown; use 'quadratic' or 'linear'"):
        masked_attention_contraction(ones, ones, ones, ones, order=order)


def test_shapes_of_the_state_space_model_disagree() -> None:
    with pytest.raises(InputError, match="equal T, S and N"):
        ssm_contraction(torch.ones(5), torch.ones(4, 2), torch.ones(4, 2), torch.ones(4, 3))
