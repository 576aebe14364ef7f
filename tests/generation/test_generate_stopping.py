"""Stop strings, wherever the pieces are cut, and prompts of every kind."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import InputError
from statewise.generation.prompt import encode_prompt
from statewise.generation.stopping import StopText, check_stop


def before_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: read character by character until one stop string is complete."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


texts = st.text("ab\n", max_size=24)
stop_lists = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


@given(texts, stop_lists, st.lists(st.integers(0, 24), max_size=8))
def test_stop_strings_do_not_depend_on_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    stream = StopText(stops)
    given_out = ""
    for begin, end in itertools.pairwise(places):
        given_out += stream.feed(text[begin:end])
        assert text.startswith(given_out)
    given_out += stream.flush()
    assert (given_out, stream.stopped) == before_stop(text, stops)


def test_what_cannot_be_a_stop_string_is_given_out_at_once() -> None:
    stream = StopText(["</s>", "\n\n"])
    assert [stream.feed(piece) for piece in ("a<", "b", "</", "s ", "\n", "c")] == ["a", "<b", "", "</s ", "", "\nc"]
    assert stream.flush() == ""


def test_nothing_comes_after_a_stop_string() -> None:
    stream = StopText(["x"])
    assert [stream.feed("axb"), stream.feed("c"), stream.flush()] == ["a", "", ""]


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_stop_strings_are_texts(stop: Any) -> None:
    with pytest.raises(InputError, match="at least one character"):
        check_stop(stop)


TOKENIZER = ByteTokenizer()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 2, 3], [[1, 2, 3]]),
        ((1, 2), [[1, 2]]),
        (torch.tensor([1, 2]), [[1, 2]]),
        (torch.tensor([1, 2], dtype=torch.int32), [[1, 2]]),
        (np.array([1, 2], np.uint16), [[1, 2]]),
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([torch.tensor([1, 2]), np.array([3])], [[1, 2], [3]]),
        ("né", [[256, 110, 195, 169]]),
        (b"n\xff", [[256, 110, 255]]),
        ("", [[256]]),
        (["a", "", [98]], [[256, 97], [256], [98]]),
        (None, [[256]]),
    ],
)
def test_prompts_of_every_kind(prompt: Any, expected: list[list[int]]) -> None:
    tokens, lengths = encode_prompt(prompt, vocab_size=257, tokenizer=TOKENIZER, document_token=256)
    assert [row[:n].tolist() for row, n in zip(tokens, lengths)] == expected
    assert tokens.dtype == torch.int64
    assert all(not row[n:].any() for row, n in zip(tokens, lengths))


def test_lengths_cut_rows_and_padding_may_hold_anything() -> None:
    padded = torch.tensor([[1, 2, 3], [4, 999, -7]])
    tokens, lengths = encode_prompt(padded, vocab_size=10, lengths=torch.tensor([3, 1]))
    assert tokens.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert lengths == [3, 1]


def test_nothing_goes_before_a_text_that_continues() -> None:
    options: dict[str, Any] = {"vocab_size": 257, "tokenizer": TOKENIZER, "document_token": 256, "n_continued": 1}
    assert encode_prompt("a", **options)[0].tolist() == [[97]]
    assert encode_prompt(None, **options, may_be_empty=True)[1] == [0]
    options["n_continued"] = 3
    assert encode_prompt(["a", "", "bc"], **options, may_be_empty=True)[1] == [1, 0, 2]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("text", {}, "which needs a tokenizer"),
        ([[1], "text"], {}, "which needs a tokenizer"),
        ([], {}, "row 0 of the prompt is empty"),
        (None, {}, "row 0 of the prompt is empty"),
        ([[1], []], {}, "row 1 of the prompt is empty"),
        (torch.zeros(0, 3, dtype=torch.int64), {}, "no rows"),
        (torch.zeros(2, 0, dtype=torch.int64), {}, "row 0 of the prompt is empty"),
        ([1, 10], {}, "holds the id 10; the model's vocabulary has the ids 0 to 9"),
        ([[1], [-1]], {}, "row 1 of the prompt holds the id -1"),
        (torch.tensor([1.0]), {}, "must be integers"),
        (np.array([1.0]), {}, "must be integers"),
        (torch.tensor([True]), {}, "must be integers"),
        (torch.zeros(1, 1, 1, dtype=torch.int64), {}, "must be integers"),
        ([[[1]]], {}, "row 0 of the prompt holds a list"),
        ([1.5], {}, "not a float"),
        ({"a": 1}, {}, "not a dict"),
        ([1, 2], {"lengths": torch.tensor([1])}, "lengths goes with a prompt of shape"),
        (torch.tensor([[1, 2]]), {"lengths": torch.tensor([3])}, "from 0 to 2"),
        (torch.tensor([[1, 2]]), {"lengths": torch.tensor([1, 1])}, r"lengths must be \(1,\)"),
        ([[1], [2]], {"n_continued": 1}, "has 2 rows and the state 1"),
        ([[]], {"n_continued": 1}, "is empty"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        encode_prompt(prompt, vocab_size=10, **options)
    assert "\n" not in str(caught.value)
