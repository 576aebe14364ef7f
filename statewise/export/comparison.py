"""An exported part beside the model that it is of, on numbers and tokens that nobody has chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.errors import NotFiniteError
from statewise.export.parts import Part, at_rest
from statewise.mixers.positions import LearnedPositions
from statewise.models.base import Model
from statewise.models.encoder import SequenceModel
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.forecaster import Forecaster
from statewise.models.language_model import LanguageModel
from statewise.models.pair_classifier import PairClassifier

CHECKED_STEPS = 16
PIECES = ((9, 4, 9), (1, 1, 1), (40, 33, 7))  # steps of each row, piece after piece
WHOLE = ((70, 70, 3), (33,))  # of two calls
OFFSET, SPREAD = 1000.0, 3.0  # of raw numbers that are scaled by their own row
SHARE_OF_GAPS = 0.1  # of a history

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]  # from a part's inputs to its outputs


def largest_difference(model: Model, part: Part, run: Run) -> float:
    """The largest difference between the part's first output and the model's, which reads a whole row at once; relative
    to the largest output. NaN or infinite if one of the outputs is.

    A step reads 16 steps of each row, a stream or prefill three pieces of ragged lengths, whole rows are two batches.
    At most ``max_positions`` tokens are read.

    Errors:  NotFiniteError if the model's own outputs are not finite.
    """
    differences, sizes = [], []
    with evaluation_mode(model), torch.no_grad():
        for got, want in _compared(model, part, run):
            if not want.isfinite().all():
                raise NotFiniteError(
                    "the model's own logits are not finite, so the exported step cannot be checked; nothing was "
                    "written: export a model whose logits are finite"
                )
            if got.numel():
                differences.append((got.double() - want.double()).abs().max())
                sizes.append(want.double().abs().max())
    largest = float(torch.stack(differences).max())  # of tensors: Python's max() passes over NaN
    return largest / max(float(torch.stack(sizes).max()), torch.finfo(torch.float32).tiny)


def _compared(model: Model, part: Part, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(model, Forecaster):
        yield from _forecasts(model, part, run)
        return
    if part.name == "whole":
        assert isinstance(model, SequenceModel)
        yield from _whole(model, part, run)
        return
    first = next(iter(part.inputs.values()))
    pieces: Sequence[tuple[int, ...]] = PIECES
    if part.name == "step":
        pieces = ((1,) * first.shape[0],) * CHECKED_STEPS
    most = most_positions(model)
    rows = drawn(model, first, (len(pieces[0]), sum(max(piece) for piece in pieces)))
    leaves: Sequence[Tensor] = at_rest(part, len(rows))
    read = [0] * len(rows)
    for whole_piece in pieces:
        piece = [min(more, most - n) for n, more in zip(read, whole_piece)]
        if not any(piece):
            return
        given = torch.stack([_padded(row[n : n + more], max(piece)) for row, n, more in zip(rows, read, piece)])
        read = [n + more for n, more in zip(read, piece)]
        inputs = [given[:, 0]] if part.name == "step" else [given, torch.tensor(piece)]
        outputs, leaves = _split(part, run([*inputs, *leaves]))
        for i, (row, n, more) in enumerate(zip(rows, read, piece)):
            if more:
                yield _last(model, part, outputs[i], more), _wanted(model, row[:n])


def most_positions(model: Model) -> int:
    """How many steps of a row the model has positions for, in its own table and in those of its layers."""
    tables = [module.n_positions for module in model.modules() if isinstance(module, LearnedPositions)]
    return min(tables, default=10**9)


def _wanted(model: Model, row: Tensor) -> Tensor:
    """The model's outputs behind the last step of a row."""
    if isinstance(model, LanguageModel):
        return model(row[None])[0][0, -1]
    outputs, _ = model(row[None], model.initial_state(1))
    assert isinstance(model, SequenceModel)
    return outputs[0] if model.config.pooling is not None else outputs[0, -1]


def _last(model: Model, part: Part, outputs: Tensor, n_steps: int) -> Tensor:
    """A row's outputs at its last step."""
    each = isinstance(model, SequenceModel) and model.config.pooling is None and part.name != "step"
    return outputs[n_steps - 1] if each else outputs


def _whole(model: SequenceModel, part: Part, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    first = next(iter(part.inputs.values()))
    most = most_positions(model)
    for lengths in WHOLE if "lengths" in part.inputs else ((first.shape[1],) * 2,):
        twice = isinstance(model, PairClassifier)  # two rows are a pair
        n = torch.tensor([max(min(length, most), model.config.frame_length) for length in lengths * (1 + twice)])
        x = drawn(model, first, (len(n), int(n.max())))
        real = torch.arange(x.shape[1]) < n[:, None]
        got = run([x, n] if "lengths" in part.inputs else [x])[0]
        want, _ = model(x, lengths=n)
        yield (got[real], want[real]) if model.config.pooling is None else (got, want)


def _forecasts(model: Forecaster, part: Part, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """Forecasts of random walks with gaps that begin at 0, so that their level hides nothing."""
    generator = torch.Generator().manual_seed(0)
    for wanted in WHOLE:
        lengths = [min(length, most_positions(model)) for length in wanted]
        given = {"lengths": torch.tensor(lengths)}
        for name, example in part.inputs.items():
            if name != "lengths":
                length = max(lengths) if 1 in part.axes[name] else example.shape[1]
                shape = (len(lengths), length, *example.shape[2:])
                given[name] = torch.randn(shape, generator=generator).to(example)
        history = given["history"].cumsum(1)
        gaps = torch.rand(history.shape, generator=generator) < SHARE_OF_GAPS
        given["history"] = history.masked_fill(gaps, torch.nan)
        want, _ = model(**given)
        yield run([given[name] for name in part.inputs])[0], want


def drawn(model: Model, like: Tensor, rows: tuple[int, int]) -> Tensor:
    """(rows, length, ...): tokens, or numbers as the model was trained on, before they were scaled."""
    generator = torch.Generator().manual_seed(0)
    config: Any = model.config
    if not like.is_floating_point():
        return torch.randint(config.vocab_size, rows, generator=generator).to(like.device)
    x = torch.randn(*rows, config.d_input, generator=generator, dtype=torch.float64)
    if config.input is not None and config.input.scaling == "series":
        x = OFFSET + SPREAD * x
    elif config.input is not None and config.input.scaling == "dataset":
        scale, shift = (torch.tensor(m, dtype=torch.float64) for m in (config.input.scale, config.input.shift))
        x = torch.where(scale == 0, x, (x - shift) / torch.where(scale == 0, 1.0, scale))
    return x.to(like)


def _split(part: Part, outputs: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    return outputs[0], outputs[len(outputs) - len(part.leaves) :]


def _padded(row: Tensor, length: int) -> Tensor:
    return torch.cat([row, row.new_zeros(length - len(row), *row.shape[1:])])
