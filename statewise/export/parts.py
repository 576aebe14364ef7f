"""The parts of a model that can be exported: their inputs, their outputs and which sizes may vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from statewise.export.growing import as_exported, as_read, exported_rest
from statewise.models.base import Model
from statewise.models.encoder import SequenceModel
from statewise.models.forecaster import Forecaster
from statewise.models.language_model import LanguageModel
from statewise.models.regressor import SequenceRegressor

# Of what is traced; nothing of them stays in a program
EXAMPLE_BATCH, EXAMPLE_LENGTH, EXAMPLE_HISTORY = 6, 71, 5


@dataclass(frozen=True)
class Part:
    """module(*inputs) -> outputs, all of them tensors

    inputs:  an example of each, by its name   outputs: their names
    axes:    of each input the axes that the program takes in any size: the name of the size, or the only one that fits
    leaves:  which of the inputs are a state, each of which has its output, "next." before its name
    """

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    axes: dict[str, dict[int, str | int]] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()

    @property
    def any_length(self) -> bool:
        return bool(self.axes)


def numbers_dtype(model: SequenceModel) -> torch.dtype:
    """In which a model of numbers is given them. Raw data are scaled in float64, so that nothing is lost of a small
    change on a large mean; numbers that are read as they are have the model's own."""
    raw = model.config.input
    own = model.head.weight.dtype
    return own if raw is None or raw.scaling == "none" else torch.promote_types(own, torch.float64)


def state_names(model: LanguageModel | SequenceModel) -> tuple[str, ...]:
    """A name for each leaf of the model's state, in order: "position", "layers.0.convolution.inputs" ..."""
    paths, _ = tree_flatten_with_path(exported_rest(model, 1, "meta"))
    return tuple(".".join(str(getattr(key, "name", getattr(key, "idx", key))) for key in path) for path, _ in paths)


def step_part(model: LanguageModel | SequenceModel, batch: int) -> Part:
    """One step of each of ``batch`` rows, on a state."""
    module = _Step(model, batch)
    names = state_names(model)
    axes = _history_axes(names, module.rest)
    leaves = _examples(names, module.rest)
    return Part("step", module, {**_example(model, (batch,)), **leaves}, _outputs(model, names), axes, names)


def piece_part(model: LanguageModel | SequenceModel) -> Part:
    """Any number of steps of any number of rows, from a state to a state."""
    module = _Piece(model, EXAMPLE_BATCH)
    names = state_names(model)
    first = _example(model, (EXAMPLE_BATCH, EXAMPLE_LENGTH))
    leaves = _examples(names, module.rest)
    growing = _history_axes(names, module.rest)
    axes = {**_row_axes(first), **{name: {0: "batch", **growing.get(name, {})} for name in names}}
    name = "prefill" if isinstance(model, LanguageModel) else "stream"
    return Part(name, module, {**first, **_lengths(), **leaves}, _outputs(model, names), axes, names)


def whole_part(model: SequenceModel) -> Part:
    """Whole rows, without a state."""
    raw = model.config.input
    length = len(raw.order) if raw is not None and raw.order else EXAMPLE_LENGTH
    first = _example(model, (EXAMPLE_BATCH, length))
    if raw is not None and raw.order:  # rows of one length, and no others
        return Part("whole", _Whole(model), first, _outputs(model, ()), {"x": {0: "batch", 1: length}})
    return Part("whole", _Whole(model), {**first, **_lengths()}, _outputs(model, ()), _row_axes(first))


def rest_of(example: Tensor) -> float:
    """What every number of a leaf is at rest: 0, but for the largest score so far of a pooling by attention."""
    return float(example.flatten()[0]) if example.numel() else 0.0


def at_rest(part: Part, batch: int) -> list[Tensor]:
    """The leaves before the first step of ``batch`` rows."""
    found = []
    for name in part.leaves:
        example, free = part.inputs[name], part.axes.get(name, {})
        shape = [batch, *(0 if axis in free else size for axis, size in enumerate(example.shape) if axis > 0)]
        found.append(torch.full(shape, rest_of(example), dtype=example.dtype, device=example.device))
    return found


def forecast_part(model: Forecaster) -> Part:
    """Whole histories, in float64 if the model scales them, with the covariates that it reads."""
    config = model.config
    rows, dtype = (EXAMPLE_BATCH, EXAMPLE_LENGTH), model.head.weight.dtype
    wide = dtype if config.scaling == "none" else torch.promote_types(dtype, torch.float64)
    inputs = {"history": torch.zeros(*rows, config.d_target, dtype=wide), **_lengths()}
    axes = _row_axes({"history": inputs["history"]})
    if config.d_covariates + config.d_past_covariates:
        inputs["covariates"] = torch.zeros(*rows, config.d_covariates + config.d_past_covariates, dtype=dtype)
        axes["covariates"] = {0: "batch", 1: "length"}
    if config.d_covariates:
        inputs["future_covariates"] = torch.zeros(EXAMPLE_BATCH, config.horizon, config.d_covariates, dtype=dtype)
        axes["future_covariates"] = {0: "batch"}
    return Part("whole", _Forecast(model), inputs, ("forecasts",), axes)


def _example(model: Model, rows: tuple[int, ...]) -> dict[str, Tensor]:
    """Numbers or tokens of this shape."""
    device = next(model.parameters()).device
    if isinstance(model, SequenceModel) and model.config.d_input is not None:
        return {"x": torch.zeros(*rows, model.config.d_input, dtype=numbers_dtype(model), device=device)}
    return {"tokens": torch.zeros(*rows, dtype=torch.int64, device=device)}


def _history_axes(names: Sequence[str], rest: Sequence[Tensor]) -> dict[str, dict[int, str | int]]:
    """The axes of each leaf that grows: those that have no step at rest."""
    axes: dict[str, dict[int, str | int]] = {}
    for name, leaf in zip(names, rest):
        if leaf.numel() == 0 and leaf.shape[1] == 0 and name.endswith((".keys", ".values")):
            axes[name] = {1: f"history of {name.removesuffix('.keys').removesuffix('.values')}"}
    return axes


def _examples(names: Sequence[str], rest: Sequence[Tensor]) -> dict[str, Tensor]:
    """The leaves at rest, but for those that grow, which have some steps already."""
    growing = _history_axes(names, rest)
    return {
        name: leaf.new_zeros(leaf.shape[0], EXAMPLE_HISTORY, *leaf.shape[2:]) if name in growing else leaf
        for name, leaf in zip(names, rest)
    }


def _lengths() -> dict[str, Tensor]:
    return {"lengths": torch.arange(EXAMPLE_BATCH) + EXAMPLE_LENGTH - EXAMPLE_BATCH + 1}


def _row_axes(first: dict[str, Tensor]) -> dict[str, dict[int, str | int]]:
    return {**{name: {0: "batch", 1: "length"} for name in first}, "lengths": {0: "batch"}}


def _outputs(model: Model, state: Sequence[str]) -> tuple[str, ...]:
    own = ("logits",) if isinstance(model, LanguageModel) else ("logits", "probabilities")
    own = ("values",) if isinstance(model, SequenceRegressor) else own
    return (*own, *(f"next.{name}" for name in state))


def _answers(model: Model, outputs: Tensor) -> tuple[Tensor, ...]:
    """The head's outputs, and of a classifier the probabilities beside them."""
    one = isinstance(model, (LanguageModel, SequenceRegressor))
    return (outputs,) if one else (outputs, outputs.softmax(-1))


class _Whole(nn.Module):
    """The model's call for whole rows."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model.freeze()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, ...]:
        return _answers(self.model, self.model(x, lengths=lengths)[0])


class _Forecast(nn.Module):
    """The forecasts from the end of whole histories."""

    def __init__(self, model: Forecaster) -> None:
        super().__init__()
        self.model = model.freeze()

    def forward(self, history: Tensor, lengths: Tensor, *covariates: Tensor) -> Tensor:
        past, future = (*covariates, None, None)[:2]
        found: Tensor = self.model(history, covariates=past, future_covariates=future, lengths=lengths)[0]
        return found


class _Stateful(nn.Module):
    """A model's call on leaves in place of the state."""

    def __init__(self, model: LanguageModel | SequenceModel, batch: int) -> None:
        super().__init__()
        self.model = model.freeze()
        self.rest, self._structure = tree_flatten(exported_rest(self.model, batch))

    def call(
        self, read: Callable[..., tuple[Tensor, Any]], x: Tensor, leaves: Sequence[Tensor], **masks: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        outputs, state = read(x, as_read(tree_unflatten(list(leaves), self._structure)), **masks)
        return outputs, tree_leaves(as_exported(state))


class _Step(_Stateful):
    """For one step of each row."""

    def forward(self, x: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        outputs, after = self.call(self.model, x.unsqueeze(1), leaves)
        pooled = isinstance(self.model, SequenceModel) and self.model.config.pooling is not None
        return *_answers(self.model, outputs if pooled else outputs.squeeze(1)), *after


class _Piece(_Stateful):
    """For any number of steps. A language model gives the logits behind each row's last token alone."""

    def forward(self, x: Tensor, lengths: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(self.model, LanguageModel):
            outputs, after = self.call(self.model, x, leaves, lengths=lengths)
            return *_answers(self.model, outputs), *after
        features, after = self.call(self.model.features, x, leaves, lengths=lengths)
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, features.shape[-1])
        return self.model.head(features.gather(1, last).squeeze(1)), *after
