"""Each filter beside its definition written out, their order, and the draw."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from statewise.errors import ConfigError
from statewise.generation.sample import Sampling, draw, keep_min_p, keep_top_k, keep_top_p, penalise_repetition

# A few values only, so that there are ties; sixteenths are exact in any order of summation.
rows = st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 0.5, 2.0]), min_size=1, max_size=12)


def softmax(z: list[float]) -> list[float]:
    largest = max(z)
    e = [math.exp(x - largest) for x in z]
    return [x / math.fsum(e) for x in e]


def kept(filtered: Tensor) -> list[bool]:
    return (filtered > -math.inf).tolist()


@given(rows, st.integers(1, 15))
def test_top_k_keeps_what_is_at_least_the_kth_largest(z: list[float], k: int) -> None:
    smallest = sorted(z, reverse=True)[min(k, len(z)) - 1]
    assert kept(keep_top_k(torch.tensor([z]), k)[0]) == [x >= smallest for x in z]


@given(rows, st.floats(0.01, 1.0))
def test_top_p_keeps_the_likeliest_until_they_sum_to_p(z: list[float], p: float) -> None:
    probabilities = softmax(z)
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    before, expected = 0.0, [False] * len(z)
    for i in order:
        if abs(before - p) < 1e-9 and p < 1:
            return  # decided by rounding
        expected[i] = before < p
        before += probabilities[i]
    if p == 1:
        expected = [True] * len(z)
    assert kept(keep_top_p(torch.tensor([z]), p)[0]) == expected


def test_top_p_counts_what_was_filtered_before_as_nothing() -> None:
    z = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().masked_fill(torch.tensor([True, False, False, False]), -math.inf)
    assert kept(keep_top_p(z, 0.49)[0]) == [False, True, False, False]
    assert kept(keep_top_p(z, 0.51)[0]) == [False, True, True, False]


def test_top_p_at_its_limits() -> None:
    assert kept(keep_top_p(torch.zeros(1, 2), 0.5)[0]) == [True, False]  # the first is enough to reach a half
    assert kept(keep_top_p(torch.zeros(1, 2), 0.5001)[0]) == [True, True]
    assert kept(keep_top_p(torch.tensor([[-50.0, 0.0]]), 1.0)[0]) == [True, True]  # the rest sums to 1 but for rounding
    assert kept(keep_top_p(torch.tensor([[0.0, 3.0]]), 1e-300)[0]) == [False, True]


@given(rows, st.floats(0.0, 1.0))
def test_min_p_keeps_what_has_a_share_of_the_likeliest(z: list[float], p: float) -> None:
    probabilities = softmax(z)
    if any(abs(x - p * max(probabilities)) < 1e-6 for x in probabilities if x < max(probabilities)):
        return  # decided by rounding
    assert kept(keep_min_p(torch.tensor([z]), p)[0]) == [x >= p * max(probabilities) for x in probabilities]


@given(rows, st.floats(0.25, 4.0), st.integers(0, 2**12 - 1))
def test_repetition_penalty_moves_seen_ids_away(z: list[float], penalty: float, bits: int) -> None:
    seen = [bool(bits >> i & 1) for i in range(len(z))]
    expected = [(x / penalty if x > 0 else x * penalty) if s else x for x, s in zip(z, seen)]
    given_logits = torch.tensor([z], dtype=torch.float64)
    torch.testing.assert_close(
        penalise_repetition(given_logits, torch.tensor([seen]), penalty), torch.tensor([expected], dtype=torch.float64)
    )
    assert given_logits.tolist() == [z]


def test_the_order_of_the_filters() -> None:
    """Each filter, moved before or behind its neighbour, would give another result here."""
    z = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0, -2.0]], dtype=torch.float64)
    seen = torch.tensor([[True, False, False, False, False, False]])
    sampling = Sampling(temperature=2.0, top_k=4, top_p=0.9, min_p=0.55, repetition_penalty=4.0)
    by_hand = penalise_repetition(z, seen, 4.0)  # 1, 3, 2, 1, 0, -2
    by_hand = (by_hand - by_hand.max()) / 2.0
    by_hand = keep_min_p(keep_top_p(keep_top_k(by_hand, 4), 0.9), 0.55)
    torch.testing.assert_close(sampling.apply(z, seen), by_hand, rtol=0, atol=0)
    assert kept(by_hand[0]) == [False, True, True, False, False, False]


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 0.1, 1.0, 7.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    z = torch.tensor([[1.0, 3.0, -2.0]])
    got = Sampling(temperature=temperature).apply(z, torch.zeros(1, 3, dtype=torch.bool)).softmax(-1)
    expected = torch.tensor([softmax([x / temperature for x in (1.0, 3.0, -2.0)])])
    torch.testing.assert_close(got.float(), expected)


def test_temperature_0_is_greedy_after_the_penalty_and_takes_the_smallest_id_of_equals() -> None:
    z, seen = torch.tensor([[3.0, 2.0, 2.0], [1.0, 0.0, 1.0]]), torch.tensor([[True, False, False], [False] * 3])
    sampling = Sampling(temperature=0, repetition_penalty=2.0, top_k=1, top_p=0.1, min_p=1.0)
    uniforms = torch.tensor([0.999, 0.999], dtype=torch.float64)
    assert draw(sampling.apply(z, seen), uniforms).tolist() == [1, 0]


@given(rows, st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_cumulative_distribution(z: list[float], uniform: float) -> None:
    cumulative, expected = 0.0, None
    for i, p in enumerate(softmax(z)):
        cumulative += p
        if abs(cumulative - uniform) < 1e-9:
            return  # decided by rounding
        if cumulative > uniform and expected is None:
            expected = i
    assert draw(torch.tensor([z]), torch.tensor([uniform], dtype=torch.float64)).item() == expected


def test_draw_has_the_right_frequencies_and_never_draws_what_was_filtered_out() -> None:
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    uniforms = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    ids = draw(probabilities.log().expand(10_000, -1), uniforms)
    assert torch.bincount(ids, minlength=6).tolist() == [0, 5000, 0, 3000, 2000, 0]
    extremes = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw(probabilities.log().expand(2, -1), extremes).tolist() == [1, 4]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", 0),
        ("top_k", -3),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
    ],
)
def test_options_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^Sampling\.{field}="):
        Sampling(**{field: value})  # type: ignore[arg-type]
