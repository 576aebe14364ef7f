"""Many continuations written: what their prompts have in common is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from statewise import kernels
from statewise.data.tokenizers import Tokenizer
from statewise.decoding import Decoder, why_not
from statewise.evaluate.text.likelihood import prepared
from statewise.evaluate.text.prefixes import Segment, chunks, prefix_tree, select, walk
from statewise.generation import generate
from statewise.generation.reading import Reading, extend, nothing_read
from statewise.generation.stepping import WORTH_PACKING
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel


def write(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int,
    seed: int,
    batch_size: int = 16,
    done: Callable[[int, str], None] | None = None,
    **options: Any,
) -> list[str]:
    """What the model writes after each prompt (ids, at least one): :func:`statewise.generate`, with ``options``.

    What the beginnings of several prompts have in common is read once. Each prompt has a generator of its own, seeded
    with ``seed`` and the number of prompts written before it: what is drawn may depend on ``batch_size``, what is
    greedy does not.

    done:    called with the index of a prompt and its text
    Errors:  as for ``generate``
    """
    texts = [""] * len(prompts)
    reader = prepared(model)
    every_batch: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "tokenizer": tokenizer,
        "weights": _decoder(model, max_new_tokens),
    }
    n_written = 0

    def read(batch: list[Segment], reading: Reading) -> Reading:
        nonlocal n_written
        with evaluation_mode(reader), torch.inference_mode():
            for tokens, lengths, _ in chunks(batch, reader.embedding.weight.device):
                reading = extend(reader, reading, tokens, lengths, None)
        ended = [(row, i) for row, segment in enumerate(batch) for i in segment.ends]
        for part in _cut(ended, batch_size):
            state = select(reading, [row for row, _ in part])
            indices = [i for _, i in part]
            for i, text in zip(indices, continued(state, len(indices), seed + n_written)):
                n_written += 1
                texts[i] = text
                if done is not None:
                    done(i, text)
        return reading

    def continued(state: Reading, n_rows: int, seed: int) -> list[str]:
        pieces: list[list[str]] = [[] for _ in range(n_rows)]
        for token in generate(reader, state=state, seed=seed, **every_batch, **options):
            assert token.text is not None  # a tokenizer was given
            for row, piece in zip(pieces, token.text):
                row.append(piece)
        return ["".join(row) for row in pieces]

    walk(prefix_tree(prompts), nothing_read(reader, 1, None), read, batch_size=batch_size)
    return texts


def _decoder(model: LanguageModel, n_tokens: int) -> Decoder | None:
    """One for all batches, where ``generate`` would make one for each."""
    wanted = n_tokens > WORTH_PACKING and kernels.backend.backend() != "torch"
    return Decoder(model) if wanted and why_not(model) is None else None


def _cut(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
