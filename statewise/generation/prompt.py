"""Prompts of every accepted kind, as one right-padded batch of ids."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.data.tokenizers import FileTokenizer, Tokenizer, text_of
from statewise.errors import InputError, excerpt
from statewise.generation.options import is_integer

Prompt = str | bytes | Sequence[Any] | np.ndarray | Tensor | None


def encode_prompt(
    prompt: Prompt,
    *,
    vocab_size: int,
    tokenizer: Tokenizer | None = None,
    document_token: int | None = None,
    lengths: Tensor | None = None,
    n_continued: int | None = None,
    may_be_empty: bool = False,
) -> tuple[Tensor, list[int]]:
    """The ids of a prompt and the length of each row; padding is 0.

    ``prompt`` is one text, one row of ids (a list, or a tensor or array of one axis), a list of any of these (a
    ragged batch), a tensor of two axes with or without ``lengths``, or None.

    A text, or None, starts a document, so the document token goes before it; with the tokenizer of a published model
    it is encoded as published, and that is all. Ids are taken as they are. When a state of ``n_continued`` rows is
    continued, nothing goes before a text, and None is an empty prompt for every row.

    You get one warning for the letters that the tokenizer has no token for, and reads as another.

    Shapes:  -> (batch, length) int64 on the CPU, and batch integers
    Errors:  InputError for a text without a tokenizer, ids outside the vocabulary, a row without any token
             (unless it ``may_be_empty``), and a batch other than ``n_continued``.

    >>> encode_prompt([[5, 6, 7], [8]], vocab_size=10)
    (tensor([[5, 6, 7],
            [8, 0, 0]]), [3, 1])
    """

    unknown: dict[str, None] = {}  # letters, in order

    def outside(i: int, token: int) -> InputError:
        return InputError(
            f"row {i} of the prompt holds the id {token}; the model's vocabulary has the ids 0 to {vocab_size - 1}"
        )

    def text_row(text: str | bytes) -> Tensor:
        if tokenizer is None:
            raise InputError("the prompt is a text, which needs a tokenizer; give tokenizer=, or a prompt of ids")
        if isinstance(tokenizer, FileTokenizer):
            unknown.update(dict.fromkeys(tokenizer.unknown_letters(text if isinstance(text, str) else text_of(text))))
        if tokenizer.conventions is not None:
            return published_row(text_of(text) if isinstance(text, bytes) else text, tokenizer)
        ids = tokenizer.encode_bytes(text) if isinstance(text, bytes) else np.asarray(tokenizer.encode(text), np.int64)
        first = [] if n_continued is not None or document_token is None else [document_token]
        return torch.cat([torch.tensor(first, dtype=torch.int64, device="cpu"), torch.from_numpy(ids.astype(np.int64))])

    def published_row(text: str, tokenizer: Tokenizer) -> Tensor:
        """What the tokenizer adds goes round a text that begins; where it adds nothing to nothing, its begin token."""
        assert isinstance(tokenizer, FileTokenizer)
        assert tokenizer.conventions is not None
        ids = tokenizer.encode_published(text, whole=n_continued is None)
        if not ids and n_continued is None:
            begin = tokenizer.conventions.begin_id
            ids = [tokenizer.document_token if begin is None else begin]
        return torch.tensor(ids, dtype=torch.int64, device="cpu")

    def row(item: Any, i: int = 0) -> Tensor:
        if isinstance(item, (str, bytes)):
            return text_row(item)
        if not isinstance(item, (Sequence, np.ndarray, Tensor)):
            raise InputError(f"a row of a prompt is a text or integers, not a {type(item).__name__}")
        if isinstance(item, Sequence):
            for token in item:  # before torch sees them, which takes True for 1 and stumbles over 2**70
                if not is_integer(token):
                    raise InputError(
                        f"row {i} of the prompt holds a {type(token).__name__}; expected a text or integers in each row"
                    )
                if not 0 <= token < vocab_size:
                    raise outside(i, token)
            item = np.array(item, dtype=np.int64)
        if isinstance(item, np.ndarray):
            item = _tensor(item)
        ids = item
        if ids.ndim != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InputError(f"a row of a prompt must be integers (length,), got {ids.dtype} {tuple(ids.shape)}")
        return ids.to("cpu", torch.int64)

    if isinstance(prompt, np.ndarray):
        prompt = _tensor(prompt)
    if lengths is not None and not (isinstance(prompt, Tensor) and prompt.ndim == 2):
        raise InputError("lengths goes with a prompt of shape (batch, length); a list of rows has its own lengths")
    if prompt is None:
        if tokenizer is not None and tokenizer.conventions is not None:
            rows = [published_row("", tokenizer)] * (n_continued or 1)
        else:
            first = [] if n_continued is not None or document_token is None else [document_token]
            rows = [torch.tensor(first, dtype=torch.int64)] * (n_continued or 1)
    elif isinstance(prompt, Tensor) and prompt.ndim == 2:
        rows = [row(ids, i) for i, ids in enumerate(_cut(prompt, lengths))]
    elif isinstance(prompt, (str, bytes, Tensor)):
        rows = [row(prompt)]
    elif isinstance(prompt, Sequence):
        single = all(isinstance(item, (int, np.integer, np.bool_)) for item in prompt)
        rows = [row(prompt)] if single else [row(item, i) for i, item in enumerate(prompt)]
    else:
        raise InputError(f"a prompt is a text, ids, or a list of them, not a {type(prompt).__name__}")

    if unknown:
        assert isinstance(tokenizer, FileTokenizer)
        warnings.warn(
            f"the tokenizer has no token for the letters {excerpt(''.join(unknown))} of the prompt, and reads each as "
            f"{tokenizer.unknown_token!r}; check the prompt",
            stacklevel=4,  # where generate is called
        )
    if n_continued is not None and len(rows) != n_continued:
        raise InputError(f"the prompt has {len(rows)} rows and the state {n_continued}; give the same number of both")
    for i, ids in enumerate(rows):
        if not len(ids) and not may_be_empty:
            raise InputError(
                f"row {i} of the prompt is empty; give at least one token, a text with a tokenizer, or document_token="
            )
        wrong = ids[(ids < 0) | (ids >= vocab_size)]
        if len(wrong):
            raise outside(i, int(wrong[0]))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), [len(ids) for ids in rows]


def _tensor(ids: np.ndarray) -> Tensor:
    if ids.dtype.kind not in "iu":
        raise InputError(f"a row of a prompt must be integers (length,), got {ids.dtype} {ids.shape}")
    return torch.from_numpy(ids.astype(np.int64))


def _cut(tokens: Tensor, lengths: Tensor | None) -> list[Tensor]:
    if not len(tokens):
        raise InputError(f"the prompt has no rows: its shape is {tuple(tokens.shape)}")
    if lengths is None:
        return list(tokens)
    batch, longest = tokens.shape
    try:
        lengths = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"lengths must be ({batch},) integers, got {lengths!r}") from error
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise InputError(f"lengths must be ({batch},) integers, got {lengths.dtype}")
    if lengths.shape != (batch,) or not bool(((lengths >= 0) & (lengths <= longest)).all()):
        raise InputError(
            f"lengths must be ({batch},) integers from 0 to {longest}, got {lengths.tolist()} for {tuple(tokens.shape)}"
        )
    return [ids[:length] for ids, length in zip(tokens, lengths.tolist())]
