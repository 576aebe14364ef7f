"""The synthetic languages, checked against their rules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from languages import language

from statewise.data.synthetic_languages import (
    IGNORED,
    LANGUAGES,
)
from statewise.errors import ConfigError


def thousand(task: str, **options: Any) -> list[tuple[list[int], list[int], list[bool]]]:
    arrays = language(task, **options).split("train").read(np.arange(1000))
    return list(zip(*(array.tolist() for array in arrays)))


def induction_answer(example: list[int], special: int) -> int:
    """The token after the first special one; the second special one is the last that is read."""
    first = example.index(special)
    assert example.count(special) == 2
    assert example[-1] == special
    assert first < len(example) - 1 - 2  # not one of the last two of the body
    return example[first + 1]


def test_induction_head() -> None:
    places = Counter()
    for tokens, targets, due in thousand("induction-head"):
        assert len(tokens) == 31
        answer = induction_answer(tokens, 19)
        assert targets == [*tokens[1:], answer]  # every next token counts
        assert due == [False] * 30 + [True]
        assert set(tokens) - {19} <= set(range(1, 19))
        assert answer != 19
        places[tokens.index(19)] += 1
    assert set(places) == set(range(28))
    assert max(places.values()) < 3 * min(places.values())


@pytest.mark.parametrize(("task", "body", "row"), [("induction-head", 30, 32), ("associative-recall", 20, 23)])
def test_the_lengths_of_the_table_in_h3s_paper(task: str, body: int, row: int) -> None:
    """They count the body, and are the rows that the default lengths are."""
    of_body = language(task, length=body, counted="body", test_length=2 * body)
    of_row = language(task, length=row, test_length=2 * body + row - body)
    for split in ("train", "test"):
        found, expected = (data.split(split).read(np.arange(20)) for data in (of_body, of_row))
        assert all(np.array_equal(*pair) for pair in zip(found, expected))
    with pytest.raises(ConfigError, match=r"length=1 does not fit; expected (at least 3|an even number from 2 up)"):
        language(task, length=1, counted="body")


def test_associative_recall() -> None:
    asked_of_shown = Counter()
    for tokens, targets, due in thousand("associative-recall"):
        assert len(tokens) == 22
        pairs, (special, asked) = tokens[:20], tokens[20:]
        assert special == 9
        values: dict[int, int] = {}
        for key, value in zip(pairs[::2], pairs[1::2]):
            assert key in (1, 2, 3, 4)
            assert value in (5, 6, 7, 8)
            assert values.setdefault(key, value) == value  # one value for each key
        assert targets == [*tokens[1:], values[asked]]  # the key has been seen
        assert due == [False] * 21 + [True]
        asked_of_shown[len(values), sorted(values).index(asked)] += 1
    counts = [n for (shown, _), n in asked_of_shown.items() if shown == 4]
    assert max(counts) < 1.4 * min(counts)  # each key that was seen is as likely


@pytest.mark.parametrize("random_non_queries", [True, False])
@pytest.mark.parametrize(("vocab_size", "n_pairs", "length"), [(64, 5, 32), (13, 5, 20), (300, 1, 16)])
def test_mqar(random_non_queries: bool, vocab_size: int, n_pairs: int, length: int) -> None:
    others: Counter[int] = Counter()
    first_gap = []
    options = {"vocab_size": vocab_size, "n_pairs": n_pairs, "length": length}
    for tokens, targets, due in thousand("mqar", random_non_queries=random_non_queries, **options):
        assert len(tokens) == length
        keys, values = tokens[0 : 2 * n_pairs : 2], tokens[1 : 2 * n_pairs : 2]
        assert len(set(keys)) == len(set(values)) == n_pairs
        assert all(1 <= key < vocab_size // 2 for key in keys)
        assert all(vocab_size // 2 <= value < vocab_size for value in values)
        queries = [step for step, is_due in enumerate(due) if is_due]
        assert sorted(tokens[step] for step in queries) == sorted(keys)  # each key once
        assert all(step >= 2 * n_pairs and step % 2 == 0 for step in queries)
        for step in range(length):
            expected = values[keys.index(tokens[step])] if step in queries else IGNORED
            assert targets[step] == expected
        others.update(tokens[step] for step in range(2 * n_pairs, length) if step not in queries)
        first_gap.append(queries[[tokens[step] for step in queries].index(keys[0])] // 2 - n_pairs)
    assert set(others) == (set(range(vocab_size)) if random_non_queries else {0} if others else set())
    if n_pairs == 1:  # then the gap is drawn from the law itself
        law = np.arange(1, length // 2 - n_pairs + 1) ** (0.01 - 1)
        expected = 1000 * law / law.sum()
        found = np.bincount(first_gap, minlength=len(law))
        assert ((found - expected) ** 2 / expected).sum() < 25  # chi squared of 6 degrees of freedom: 1 in 3,000


def test_the_gaps_of_mqar_follow_the_exponent() -> None:
    """With alpha 1 they are uniform, and half of the queries come in the second half."""
    late = {}
    for alpha in (0.01, 1.0):
        rows = language("mqar", length=64, alpha=alpha).split("train").rows(np.arange(500))
        late[alpha] = float((rows.positions >= 10 + 27).mean())
    assert late[1.0] == pytest.approx(0.5, abs=0.05)
    assert late[0.01] < 0.35


def test_selective_copying() -> None:
    for tokens, targets, due in thousand("selective-copying", n_copied=7):
        assert len(tokens) == 100
        assert tokens[-7:] == [15] * 7
        symbols = [token for token in tokens[:-7] if token != 0]
        assert len(symbols) == 7
        assert all(1 <= symbol <= 14 for symbol in symbols)
        assert targets == [IGNORED] * 93 + symbols
        assert due == [False] * 93 + [True] * 7


def test_long_induction_head() -> None:
    for tokens, targets, due in thousand("long-induction-head"):
        assert len(tokens) == 63
        assert targets == [IGNORED] * 62 + [induction_answer(tokens, 15)]
        assert due == [False] * 62 + [True]
        assert set(tokens) <= set(range(16))
    tested = language("long-induction-head", test_length=1 << 20, n_test=2).split("test")
    tokens, targets, _ = tested.read(np.array([1]))
    assert tokens.shape == (1, (1 << 20) - 1)
    assert targets[0, -1] == induction_answer(tokens[0].tolist(), 15)


@pytest.mark.parametrize("task", LANGUAGES)
@pytest.mark.parametrize("answer_only", [True, False])
def test_the_loss_counts_the_answers_or_every_next_token_too(task: str, answer_only: bool) -> None:
    tokens, targets, due = language(task, answer_only=answer_only).split("test").read(np.arange(100))
    assert tokens.dtype == targets.dtype == np.int64
    assert due.any(1).all()
    rest = targets[:, :-1][~due[:, :-1]]
    expected = IGNORED if answer_only else tokens[:, 1:][~due[:, :-1]]
    np.testing.assert_array_equal(rest, np.broadcast_to(expected, rest.shape))
    assert (targets[due] != IGNORED).all()
    either = [language(task, answer_only=x).split("test").read(np.arange(100)) for x in (True, False)]
    np.testing.assert_array_equal(either[0][1][due], either[1][1][due])


@pytest.mark.parametrize("task", LANGUAGES)
def test_the_source_of_an_answer_is_the_last_place_that_shows_it(task: str) -> None:
    rows = language(task).split("train").rows(np.arange(300))
    np.testing.assert_array_equal(np.take_along_axis(rows.inputs, rows.sources, 1), rows.answers)
    assert (rows.sources < rows.positions).all()
    if task == "associative-recall":
        for tokens, source in zip(rows.inputs.tolist(), rows.sources[:, 0].tolist()):
            assert tokens[source - 1] == tokens[-1]
            assert tokens[-1] not in tokens[source + 1 : -2 : 2]


@pytest.mark.parametrize("task", LANGUAGES)
def test_chance(task: str) -> None:
    """The answers are spread evenly over as many tokens as the chance says."""
    data = language(task)
    answers = data.split("train").rows(np.arange(4000)).answers
    tokens, counts = np.unique(answers, return_counts=True)
    assert len(tokens) == round(1 / data.chance)
    assert counts.max() / answers.size == pytest.approx(data.chance, rel=0.35)
