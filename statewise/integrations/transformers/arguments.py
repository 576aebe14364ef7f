"""What a call of ``transformers`` gives beside ids and their mask, checked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError

IGNORED = -100  # their label for positions without a target


def starts_of(position_ids: Tensor | None, tokens: Tensor) -> Tensor | None:
    """Where documents begin, (batch, length), if positions are given: where these are 0.

    >>> starts_of(torch.tensor([[0, 1, 0]]), torch.tensor([[5, 6, 7], [8, 9, 5]])).tolist()
    [[True, False, True], [True, False, True]]

    Errors:  InputError for another shape than (batch, length) or (1, length).
    """
    if position_ids is None:
        return None
    if tuple(position_ids.shape) not in (tuple(tokens.shape), (1, tokens.shape[1])):
        raise InputError(
            f"position_ids have the shape {tuple(position_ids.shape)} and the tokens {tuple(tokens.shape)}; expected "
            "that shape, or one row for all"
        )
    return (position_ids == 0).expand(tokens.shape).clone()


def check_labels(labels: Tensor, tokens: Tensor, logits_to_keep: int | Tensor, vocab_size: int) -> None:
    """InputError unless every token has a label, of the vocabulary or IGNORED; costs one wait for the device."""
    if not isinstance(logits_to_keep, int) or logits_to_keep:
        raise InputError("labels need the logits of every column; leave out logits_to_keep or labels")
    if labels.shape != tokens.shape:
        raise InputError(
            f"labels have the shape {tuple(labels.shape)} and the tokens {tuple(tokens.shape)}; expected one label "
            f"for every token, {IGNORED} where there is no target"
        )
    if torch.compiler.is_compiling():
        return
    wrong = labels[((labels < 0) | (labels >= vocab_size)) & (labels != IGNORED)]
    if wrong.numel():
        raise InputError(
            f"label {int(wrong[0])} is outside the vocabulary of {vocab_size}; expected token ids, and {IGNORED} "
            "where there is no target"
        )


def check_assisted(kwargs: dict[str, Any]) -> None:
    """Arguments of ``generate`` that do not go together. Errors: InputError."""
    settings = kwargs.get("generation_config")

    def asked(name: str) -> Any:
        return kwargs.get(name, getattr(settings, name, None))

    if asked("assistant_early_exit") is not None:
        raise InputError("assistant_early_exit: a Statewise model has no early exits; give a draft, assistant_model")
    if kwargs.get("assistant_model") is not None and (asked("num_beams") or 1) > 1:
        raise InputError(f"num_beams={asked('num_beams')} with an assistant_model; leave out one of them")


def refuse(kwargs: dict[str, Any]) -> None:
    """Arguments that other models have and this one gives no meaning. Errors: InputError."""
    for name, value in kwargs.items():
        if value is not None and value is not False:
            raise InputError(f"{name} means nothing to a Statewise model; leave it out")
