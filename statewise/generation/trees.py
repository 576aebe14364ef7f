"""Several continuations of each prompt, and which of them are given: n samples, the best of several, or by beams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.generation.beams import best_of, search
from statewise.generation.branching import Branching, repeated
from statewise.generation.options import check_integer
from statewise.generation.reading import Reading, read_again
from statewise.generation.sample import Sampling, ids_without_token
from statewise.generation.stopping import Endings, RowText
from statewise.generation.token import Token
from statewise.models.language_model import LanguageModel

ReadPrompt = Callable[[], tuple[LanguageModel, Reading]]  # the model that reads, and what it knows behind the prompt


class Tree(NamedTuple):
    """n: continuations that are given of each prompt; width: that are written; beams: if they are searched for"""

    n: int
    width: int
    beams: int | None
    length_penalty: float

    @property
    def is_one(self) -> bool:
        """Whether each prompt is simply continued."""
        return self.width == 1 and self.beams is None

    @classmethod
    def checked(
        cls,
        n: int,
        best_of: int | None,
        beams: int | None,
        length_penalty: float | None,
        sampling: Sampling,
        stops: Sequence[str],
        *,
        with_draft: bool,
    ) -> Self:
        """Errors:  InputError for options that do not go together."""
        check_integer("n", n, 1)
        for name, value in (("best_of", best_of), ("beams", beams)):
            if value is None:
                continue
            check_integer(name, value, 1)
            if value < n:
                raise InputError(f"n={n} of {name}={value} continuations cannot be given; use n of at most {name}")
        if best_of is not None and beams is not None:
            raise InputError(f"best_of={best_of} samples, and beams={beams} searches; give one of them")
        if with_draft and (n, best_of, beams) != (1, None, None):
            raise InputError("a draft goes with one continuation of each row; leave n, best_of and beams out, or draft")
        if beams is None and length_penalty is not None:
            raise InputError(f"length_penalty={length_penalty!r} is for beams; give beams=, or leave it out")
        if beams is not None:
            _check_search(beams, length_penalty, sampling, stops)
        penalty = 1.0 if length_penalty is None else float(length_penalty)
        return cls(int(n), int(beams or best_of or n), beams, penalty)


def _check_search(beams: int, length_penalty: float | None, sampling: Sampling, stops: Sequence[str]) -> None:
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, (int, float, type(None))):
        raise InputError(f"length_penalty={length_penalty!r} is not a number; use one such as 1.0")
    if length_penalty is not None and not abs(length_penalty) <= 100:
        raise InputError(f"length_penalty={length_penalty} is out of range; use a number from -100 to 100")
    plain = Sampling(temperature=sampling.temperature)
    if sampling != plain or sampling.temperature not in (0, 1):
        raise InputError(
            f"beams={beams} draws nothing; leave temperature, top_k, top_p, min_p and repetition_penalty out"
        )
    if stops:
        raise InputError(f"beams={beams} compares whole texts, and stop={tuple(stops)!r} would cut them; leave it out")


class _Row(NamedTuple):
    """What is given of one continuation. texts: of each token, or None without a tokenizer"""

    tokens: list[int]
    log_probabilities: list[float]
    texts: list[str] | None
    finished: bool


def best(tree: Tree, stream: Iterator[Token], read_prompt: ReadPrompt, endings: Endings) -> Iterator[Token]:
    """The continuations with the highest mean log-probability, once all have been written."""
    steps = list(stream)
    if not steps:
        return
    ids = torch.stack([step.ids for step in steps], 1)
    own = torch.stack([step.log_probabilities for step in steps], 1)
    means = own.double().sum(1) / (ids >= 0).sum(1)
    order = means.unflatten(0, (-1, tree.width)).sort(dim=1, descending=True, stable=True).indices[:, : tree.n]
    chosen = (order + torch.arange(len(order), device=order.device)[:, None] * tree.width).flatten().tolist()
    rows = []
    for row in chosen:
        n = int((ids[row] >= 0).sum())
        texts = [step.text[row] for step in steps[:n] if step.text is not None] if endings.tokenizer else None
        rows.append(_Row(ids[row, :n].tolist(), own[row, :n].tolist(), texts, bool(steps[-1].finished[row])))
    yield from _given(rows, own, tree.n, read_prompt, endings)


def searched(
    tree: Tree, branching: Branching | None, read_prompt: ReadPrompt, endings: Endings, max_new_tokens: int
) -> Iterator[Token]:
    """What beam search has found."""
    if not max_new_tokens:
        return
    reader, reading = read_prompt()
    assert tree.beams is not None
    assert branching is not None
    found = search(
        reading.logits,
        partial(branching.branches, reader, reading.state),
        beams=tree.beams,
        length_penalty=tree.length_penalty,
        max_new_tokens=max_new_tokens,
        ends=endings.tokens,
        outside=ids_without_token(reading.logits, endings.tokenizer),
        document_token=None if endings.stop_at_document else endings.document_token,
    )
    if any(len(one.found) < tree.n for one in found):
        raise InputError(f"there are no {tree.n} continuations of {max_new_tokens} tokens; use a smaller n")
    rows = []
    for i, one in enumerate(best_of(found, tree.n)):
        texts = None
        if endings.tokenizer is not None:
            text = RowText(endings.tokenizer, (), reading.recent[i // tree.n].tolist())
            last = len(one.tokens) - 1
            texts = [text.feed(token, endings.tokens, last=j == last) for j, token in enumerate(one.tokens)]
        rows.append(_Row(one.tokens, one.log_probabilities, texts, one.ended))
    yield from _given(rows, reading.logits, tree.n, lambda: (reader, reading), endings)


def _given(rows: list[_Row], like: Tensor, n: int, read_prompt: ReadPrompt, endings: Endings) -> Iterator[Token]:
    """The tokens of these rows, step by step. like: of the dtype and on the device of what is yielded"""
    latest: list[Reading | Callable[[], Reading]] = []
    document_token = None if endings.stop_at_document else endings.document_token

    def again(t: int) -> Reading:
        model, reading = read_prompt()
        written = [[*row.tokens[:t], *[-1] * (t - len(row.tokens))] for row in rows]
        return read_again(model, repeated(reading, n), written, document_token)

    for t in range(max(len(row.tokens) for row in rows)):
        latest.clear()
        latest = [partial(again, t)]
        live = [t < len(row.tokens) for row in rows]
        ids = [row.tokens[t] if on else -1 for on, row in zip(live, rows)]
        own = [row.log_probabilities[t] if on else 0.0 for on, row in zip(live, rows)]
        texts = [row.texts[t] if on else "" for on, row in zip(live, rows) if row.texts is not None]
        yield Token(
            torch.tensor(ids, device=like.device),
            torch.tensor(own, dtype=like.dtype, device=like.device),
            torch.tensor([row.finished and t >= len(row.tokens) - 1 for row in rows], device=like.device),
            None if endings.tokenizer is None else texts,
            latest,
        )
