"""Linear attention with Taylor features of any order, and with heads that share keys, queries or values."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from law_signals import prepared
from laws import check_mixer_laws
from test_linear_attention import build

from statewise.errors import ConfigError, InputError
from statewise.mixers.feature_maps import taylor, taylor_error, taylor_map
from statewise.operators.head_patterns import HEAD_PATTERNS


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_taylor_of_any_order(order: int) -> None:
    """phi(q) . phi(k) is the sum of s^n / n!, and taylor_error measures by it what the features would give."""
    torch.manual_seed(0)
    q, k = torch.randn(3, 6, 4, dtype=torch.float64), torch.randn(3, 9, 4, dtype=torch.float64)
    s = torch.einsum("btd,bsd->bts", q, k) / 2
    series = sum(s**n / math.factorial(n) for n in range(order + 1))
    weights = taylor(q, order) @ taylor(k, order).mT
    torch.testing.assert_close(weights, series)
    assert taylor(q, order).shape[-1] == taylor_map(order).width(4) == sum(4**n for n in range(order + 1))
    assert taylor_map(order).nonnegative == (order % 2 == 0)
    for causal in (True, False):
        seen = torch.ones(6, 9, dtype=torch.bool).tril(3) if causal else torch.ones(6, 9, dtype=torch.bool)
        error = taylor_error(q.float(), k.float(), order, causal=causal)
        similarity = ((weights - s.exp()).abs() / s.exp())[:, seen].amax(-1)
        torch.testing.assert_close(error.similarity, similarity, rtol=1e-4, atol=1e-6)
        assert (error.similarity <= error.bound * (1 + 1e-9)).all()
        softmax = s.masked_fill(~seen, -torch.inf).softmax(-1)
        ours = weights * seen / (weights * seen).sum(-1, keepdim=True)
        moved = ((softmax - ours).abs().sum(-1) / 2).amax(-1)
        torch.testing.assert_close(error.attention, moved, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("order", [0, 1, 4, 5, 60, 121])
def test_taylor_error_is_right_where_the_series_cancels(order: int) -> None:
    """Beside sums of 300 digits; keys that no query sees say nothing."""
    for s in (-60.0, -order - 1.5, -order - 0.5, -20.0, -3.0, -1e-3, 1e-3, 3.0, 20.0, 60.0):
        with localcontext() as context:
            context.prec = 300
            series, term = Decimal(1), Decimal(1)
            for n in range(1, order + 1):
                term = term * Decimal(s) / n
                series += term
            known = float(abs(series / Decimal(s).exp() - 1))
        error = taylor_error(torch.tensor([[1.0], [0.0]]), torch.tensor([[s], [-800.0]], dtype=torch.float64), order)
        assert float(error.similarity) == pytest.approx(known if known > 1e-290 else 0.0, rel=1e-8, abs=1e-290)
        assert error.similarity <= error.bound * (1 + 1e-8)


@pytest.mark.parametrize("order", [0, 2, 5, 16, 40])
def test_a_small_error_of_attention_is_no_rounding(order: int) -> None:
    """Beside sums of 300 digits: far below the rounding of the weights themselves."""
    for products in ([0.5, -0.3, 0.1], [3e-3, -1e-3, 2e-6], [0.9, -1.1], [2.5, 2.0, -2.0]):
        with localcontext() as context:
            context.prec = 300
            exact, series = [], []
            for s in map(Decimal, products):
                terms = [Decimal(1)]
                for n in range(1, order + 1):
                    terms.append(terms[-1] * s / n)
                exact.append(s.exp())
                series.append(sum(terms))
            pairs = zip(exact, series)
            known = float(sum(abs(a / sum(exact) - b / sum(series)) for a, b in pairs) / 2)
        k = torch.tensor(products, dtype=torch.float64).unsqueeze(1)
        found = float(taylor_error(torch.ones(1, 1, dtype=torch.float64), k, order, causal=False).attention)
        assert found == pytest.approx(known, rel=1e-8, abs=1e-300)


def test_attention_moves_by_no_more_than_its_similarities() -> None:
    k = torch.tensor([[-20.0], [-21.0], [-19.5]])
    error = taylor_error(torch.ones(1, 1), k, 80, causal=False)
    assert error.attention < error.similarity < error.bound < 3e-5


def test_a_taylor_layer_of_a_high_order_is_softmax_attention() -> None:
    """Of the weights exp(q . k / sqrt(d)), which the orders approach."""
    torch.manual_seed(0)
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    options: dict[str, Any] = {"feature_map": "taylor", "d_feature": 2}
    errors = []
    for order in (2, 4, 6, 8):
        mixer = build(taylor_order=order, **options).double()
        with torch.no_grad():
            mixer.in_proj.weight.mul_(10)
        Q, K, V = mixer.in_proj(x).split([4, 4, 8], -1)
        q, k, v = (m.unflatten(-1, (2, -1)).transpose(1, 2) for m in (Q, K, V))
        exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = mixer(x)[0] - mixer.out_proj(exact.transpose(1, 2).flatten(2))
        errors.append(float(y.detach().abs().max()))
        bound = taylor_error(q, k, order).attention.max() * 2 * v.abs().max() * 8 * mixer.out_proj.weight.abs().max()
        assert errors[-1] <= bound
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-2 * errors[0]


def test_taylor_error_refuses_what_does_not_fit() -> None:
    q, k = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    assert taylor_error(q, k, 2, causal=False).attention.shape == (2,)
    for arguments, words in (
        ((q, k, 2), "fewer keys"),
        ((q, q, -1), "order"),
        ((q, q, True), "order"),
        ((q, q[..., :3], 2), r"\(2, 5, 3\)"),
        ((q[:, :0], q, 2), r"\(2, 0, 4\)"),
    ):
        with pytest.raises(InputError, match=words):
            taylor_error(*arguments)


@pytest.mark.parametrize("pattern", HEAD_PATTERNS)
@pytest.mark.parametrize("n_groups", [1, 2])
def test_head_patterns_are_heads_repeated_by_hand(pattern: str, n_groups: int) -> None:
    """A layer of full heads with the shared rows of the projection repeated gives the same, and its laws hold."""
    if pattern == "multi_head" and n_groups > 1:
        with pytest.raises(ConfigError, match="leave it out"):
            build(n_heads=4, head_pattern=pattern, n_groups=n_groups)
        return
    mixer = prepared(build(n_heads=4, head_pattern=pattern, n_groups=n_groups, d_feature=3))
    full = prepared(build(n_heads=4, d_feature=3))
    counts = {"multi_head": (4, 4, 4), "multi_query": (4, 1, 1), "multi_key": (1, 4, 1), "multi_value": (1, 1, 4)}
    counts = tuple(count if count == 4 else n_groups for count in counts[pattern])
    assert tuple(mixer.heads) == counts
    parts = mixer.in_proj.weight.split([count * width for count, width in zip(counts, (3, 3, 2))])
    rows = [part.unflatten(0, (count, -1)).repeat_interleave(4 // count, 0) for part, count in zip(parts, counts)]
    with torch.no_grad():
        full.in_proj.weight.copy_(torch.cat([part.flatten(0, 1) for part in rows]))
        full.out_proj.weight.copy_(mixer.out_proj.weight)
    x = torch.randn(2, 17, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], full(x)[0])
    check_mixer_laws(mixer, length=9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"taylor_order": 4}, ["taylor_order=4", "feature_map='elu'"]),
        ({"taylor_order": 3, "feature_map": "taylor"}, ["odd", "normalize=False"]),
        ({"head_pattern": "multi_value", "n_groups": 3}, ["n_groups=3", "divisor"]),
        ({"head_pattern": "grouped"}, ["head_pattern='grouped'", "multi_key"]),
    ],
)
def test_bad_patterns_and_orders_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("products", "order"),
    [
        ([1000.0, 0.0], 2),
        ([735.0, 100.0], 2),
        ([-720.0, -800.0], 2),
        ([-600.0, -650.0, -3000.0], 5),
        ([-510.0, -505.0], 600),
        ([1e4, -1e4, 0.0], 3),
    ],
)
def test_errors_of_large_products(products: list[float], order: int) -> None:
    """Exponentials are beyond float64 there, and ratios of weights are not."""
    with localcontext() as context:
        context.prec = 900
        s = [Decimal(x) for x in products]
        powers = [(x - max(s)).exp() for x in s]
        series = [sum(x**n / math.factorial(n) for n in range(order + 1)) if x else Decimal(1) for x in s]
        shares = [(a / sum(powers), b / sum(series)) for a, b in zip(powers, series)]
        exact = float(sum(abs(a - b) for a, b in shares) / 2)
    q, k = torch.ones(1, 1, dtype=torch.float64), torch.tensor(products, dtype=torch.float64).unsqueeze(1)
    assert math.isclose(float(taylor_error(q, k, order, causal=False).attention), exact, rel_tol=1e-9)


def test_errors_far_below_zero_are_infinite_and_no_nan() -> None:
    for s, order in ((-1e150, 5), (-1e6, 1000)):
        found = taylor_error(torch.ones(1, 1), torch.tensor([[s]], dtype=torch.float64), order, causal=False)
        assert float(found.similarity) == math.inf


@pytest.mark.parametrize("shapes", [((3, 0), (3, 0)), ((2, 3, 4), (5, 3, 4))])
def test_errors_of_what_does_not_fit(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match="taylor_error needs q"):
        taylor_error(torch.ones(shapes[0]), torch.ones(shapes[1]), 2)


SIZES = (1e-6, 0.1, 1.0, 10.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 60.0, 100.0, 300.0, 380.0, 499.0, 501.0, 900.0)


def attention_moved(products: list[float], order: int) -> tuple[float, float]:
    """The definition, of 50 digits more than the largest exponentials have; and how far the sum of the weights is from
    cancelling, of 1."""
    with localcontext() as context:
        context.prec = 900
        s = [Decimal(x) for x in products]
        exact = [x.exp() for x in s]
        series = []
        for x in s:
            term = total = Decimal(1)
            for n in range(1, order + 1):
                term = term * x / n
                total += term
            series.append(total)
        moved = sum(abs(a / sum(exact) - b / sum(series)) for a, b in zip(exact, series)) / 2
        return float(moved), float(abs(sum(series)) / sum(abs(b) for b in series))


@pytest.mark.parametrize("order", [1, 2, 3, 8])
@pytest.mark.parametrize("size", SIZES)
def test_attention_of_products_of_every_size(size: float, order: int) -> None:
    """Queries see one key, two, ...: the largest product last, first, and beside its negative."""
    for products in ([size, size - 1, 1e-9], [1e-9, size - 1, size], [size, -size], [0.3, -size, -size / 2]):
        k = torch.tensor(products, dtype=torch.float64).unsqueeze(1)
        rows = [attention_moved(products[: i + 1], order)[0] for i in range(len(products))]
        found = taylor_error(torch.ones(len(products), 1, dtype=torch.float64), k, order)
        assert float(found.attention) == pytest.approx(max(rows), rel=1e-8)
        found = taylor_error(torch.ones(1, 1, dtype=torch.float64), k, order, causal=False)
        assert float(found.attention) == pytest.approx(rows[-1], rel=1e-8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_attention_of_random_products(order: int, causal: bool) -> None:
    """Products of up to 50 or so, of both signs."""
    torch.manual_seed(0)
    q, k = 5 * torch.randn(2, 3, 4, dtype=torch.float64), 5 * torch.randn(2, 5, 4, dtype=torch.float64)
    found = taylor_error(q, k, order, causal=causal).attention
    for head in range(2):
        s = (q[head] @ k[head].mT * 0.5).tolist()
        rows = [attention_moved(row[: i + 3] if causal else row, order) for i, row in enumerate(s)]
        worst, conditioned = max(rows)
        assert float(found[head]) == pytest.approx(worst, rel=1e-10 / conditioned)


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        (torch.ones(2, 2) + 0j, torch.ones(2, 2), "needs q as a tensor of real numbers, got torch.complex64"),
        (torch.ones(2, 2), torch.ones(2, 2) + 0j, "needs k as a tensor of real numbers, got torch.complex64"),
        ([[1.0]], torch.ones(1, 1), "needs q as a tensor of real numbers, got list; convert it first"),
        (torch.ones(1, 1), [[1.0]], "needs k as a tensor of real numbers, got list"),
    ],
)
def test_errors_of_what_is_no_real_tensor(q: Any, k: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^taylor_error {message}"):
        taylor_error(q, k, 2)
