"""A forecaster: a series read up to now, and all the steps of the horizon forecast at once, with quantiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import AtLeastTwo, Count, Fraction, Natural, NonNegative, OneOf
from statewise.errors import InputError
from statewise.kernels.batching import whole
from statewise.mixers.projection import Linear
from statewise.models.base import Model, build_blocks, check_device, check_layers
from statewise.models.block import BlockConfig, Layers, as_block, build_norm
from statewise.models.quantiles import QuantileConfig, quantile_losses, scaled_targets
from statewise.models.running_scale import (
    RunningScaleState,
    in_units,
    initial_running_scale,
    level_and_scale,
    running_scale,
)
from statewise.operators.masks import Masks, build_masks, mask_time
from statewise.operators.state_shape import COUNT, check_state, leaf

NORMS = ("rms", "layer")  # of the one step that is forecast from


class ForecasterState(NamedTuple):
    """position: (batch,) int64, steps read; features: (batch, d_model), what the last of them left to forecast from;
    scaling: the running level and scale; layers: one state per layer.
    """

    position: Tensor
    features: Tensor
    scaling: RunningScaleState
    layers: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class ForecasterConfig(QuantileConfig):
    """A direct multi-horizon forecaster of ``d_target`` series that belong together.

    quantiles: as of a :class:`QuantileConfig`. They never cross.
    d_covariates: known in the past and over the horizon, such as the calendar.
    d_past_covariates: known in the past only.
    scaling: "running": what is read is taken relative to its running level and scale, and what is forecast to the
    last value and the scale (see :func:`running_scale`), so that a forecast follows any change of unit, and a series
    may lie where none did in training. "none": as it is.
    scaling_steps: over how many values, about, level and scale are averaged. A season, or a few, suits most series;
    None: over all values read.
    """

    d_target: Count = 1
    horizon: Count
    d_model: Count
    layers: Layers
    d_covariates: Natural = 0
    d_past_covariates: Natural = 0
    scaling: Literal["running", "none"] = "running"
    scaling_steps: AtLeastTwo | None = None
    norm: Annotated[str, OneOf(NORMS)] = "rms"
    norm_eps: NonNegative = 1e-5
    dropout: Fraction = 0.0  # of the features that are forecast from

    @property
    def blocks(self) -> tuple[BlockConfig, ...]:
        """The layers, with bare mixer configs made into blocks."""
        return tuple(as_block(layer) for layer in self.layers)

    def in_full(self) -> ForecasterConfig:
        return replace(self, layers=self.blocks)

    def build(self) -> Forecaster:
        """The model, its parameters drawn from torch's global generator."""
        return Forecaster(self)


class Forecaster(Model):
    """The history is read by the layers; the features after its last step give every step of the horizon at once.

    y_{T+k} = y_T + s_T f_k(features_T, covariates_{T+k}),   k = 1 .. horizon,

    where y_T is the last value seen and s_T the running scale ("running"), or 0 and 1 ("none"). f_k is a linear map of
    its own for each step, plus an MLP shared by the steps that sees the covariates of its step, where there are any.
    The median comes from it directly, the others by adding, or taking away, softplus of the
    other outputs one after the other, so they are ordered for any parameters.

    A history has gaps where it is NaN. The last value seen fills them, with a channel that says so, and layers that
    filter take a step without any value as no observation (``masks.observed``). NaN in padding is never looked at.

    Shapes:  history: (batch, length, d_target), real; covariates: (batch, length, d_covariates + d_past_covariates),
             those known over the horizon first; future_covariates: (batch, horizon, d_covariates); lengths: (batch,)
             -> forecasts: (batch, horizon, d_target, n_quantiles), in the units of the history, and the state if one
             was given. A history read in chunks gives, after the last, what it gives whole: a state may be kept while
             values arrive, and each call forecasts from all that was read. A chunk may be empty.
    Numerics: what is read is scaled, and what is forecast scaled back, in float64; the layers are in the dtype of the
             parameters, and the forecasts in the wider one of theirs and the history's. Give float64 where the level is
             high beside the changes. A history of equal values has the scale 0: the last of them is forecast.
    Cost:    of the layers, and d_model horizon d_target n_quantiles multiply-adds for each row.
    Errors:  InputError for shapes that disagree, covariates that are missing or not finite, infinite values, and a row
             without a single step.
    Source:  direct multi-horizon quantiles: Wen et al. 2017, arXiv:1711.11053, sec. 3.2.
    """

    config: ForecasterConfig

    def __init__(self, config: ForecasterConfig) -> None:
        super().__init__()
        self.config = config
        d_covariates = config.d_covariates + config.d_past_covariates
        d_step = config.d_target * config.n_quantiles
        self.in_proj = Linear(3 * config.d_target + d_covariates, config.d_model)
        self.layers = build_blocks(config.blocks, config.d_model)
        self.norm = build_norm(config.norm, config.d_model, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.head = Linear(config.d_model, config.horizon * d_step)
        self.covariate_in = Linear(config.d_model + config.d_covariates, config.d_model)
        self.covariate_out = Linear(config.d_model, d_step, bias=False)
        if not config.d_covariates:
            del self.covariate_in, self.covariate_out
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again. The outputs begin small: at first the forecast is about the last value seen."""
        self._refuse_if_frozen("cannot draw its parameters again")
        self.in_proj.reset_parameters()
        self._reset_blocks()
        self.norm.reset_parameters()
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        if self.config.d_covariates:
            self.covariate_in.reset_parameters()
            nn.init.normal_(self.covariate_out.weight, std=0.02)

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ForecasterState:
        """The state before the first step. ``dtype`` defaults to float32, or wider if the parameters are; the scaling
        is float64 in any case.

        Errors:  InputError from a layer that reads in both directions: it needs the whole history and has no state.
        """
        device = self.in_proj.weight.device if device is None else torch.device(device)
        layers = tuple(block.initial_state(batch, device=device, dtype=dtype) for block in self.blocks)
        return self._at_rest(batch, device, layers, dtype)

    def _at_rest(
        self, batch: int, device: torch.device, layers: tuple[Any, ...], dtype: torch.dtype | None
    ) -> ForecasterState:
        at_least_float32 = torch.promote_types(self.in_proj.weight.dtype if dtype is None else dtype, torch.float32)
        return ForecasterState(
            torch.zeros(batch, dtype=torch.int64, device=device),
            torch.zeros(batch, self.config.d_model, dtype=at_least_float32, device=device),
            initial_running_scale(batch, self.config.d_target, device),
            layers,
        )

    def forward(
        self,
        history: Tensor,
        state: ForecasterState | None = None,
        *,
        covariates: Tensor | None = None,
        future_covariates: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, ForecasterState | None]:
        outputs, anchor, scale, state = self.scaled_forecasts(history, state, covariates, future_covariates, lengths)
        return (anchor + scale * outputs).to(torch.promote_types(history.dtype, outputs.dtype)), state

    def loss(
        self,
        history: Tensor,
        targets: Tensor,
        state: ForecasterState | None = None,
        *,
        covariates: Tensor | None = None,
        future_covariates: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, ForecasterState | None]:
        """The pinball loss of the quantiles (or the squared error of the mean), in units of each row's scale, averaged
        over the values of ``targets`` (batch, horizon, d_target) that are there: NaN is a value that is not. It is 0
        where a row's scale is.
        """
        outputs, anchor, scale, state = self.scaled_forecasts(history, state, covariates, future_covariates, lengths)
        expected = (history.shape[0], self.config.horizon, self.config.d_target)
        if targets.shape != expected:
            raise InputError(f"targets must have shape {expected}, got {tuple(targets.shape)}")
        n_known = (~targets.isnan()).sum() * self.config.n_quantiles
        scaled = scaled_targets(targets, anchor, scale).to(outputs.dtype)
        return self.scaled_losses(outputs, scaled).sum() / n_known.clamp(min=1), state

    def scaled_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each forecast (..., n_quantiles) of targets (..., 1), both in units of the scale; 0 for NaN."""
        return quantile_losses(outputs, targets, self.config.quantiles)

    def scaled_forecasts(
        self,
        history: Tensor,
        state: ForecasterState | None,
        covariates: Tensor | None,
        future_covariates: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, ForecasterState | None]:
        """Forecasts in units of the scale (batch, horizon, d_target, n_quantiles); the value they are relative to and
        the scale, (batch, 1, d_target, 1) float64; and the state. Arguments as for a call.
        """
        covariates, future_covariates, masks = self._check(history, state, covariates, future_covariates, lengths)
        config, batch = self.config, history.shape[0]
        before = self._at_rest(batch, history.device, (), None) if state is None else state
        features, scaling, layers = self._read(history, before, covariates, masks)
        if config.scaling == "running":
            anchor, scale = scaling.last, level_and_scale(scaling)[1]
        else:
            anchor, scale = torch.zeros_like(scaling.last), torch.ones_like(scaling.last)

        x = self.dropout(features.to(self.head.weight.dtype))
        outputs = self.head(x).unflatten(-1, (config.horizon, -1))
        if config.d_covariates:
            each = torch.cat([x[:, None].expand(-1, config.horizon, -1), future_covariates.to(x)], -1)
            outputs = outputs + self.covariate_out(F.gelu(self.covariate_in(each)))
        outputs = outputs.unflatten(-1, (config.d_target, config.n_quantiles))
        outputs = _ordered(outputs.to(torch.promote_types(outputs.dtype, torch.float32)), config.point)
        anchor, scale = anchor[:, None, :, None], scale[:, None, :, None]
        if state is None:
            return outputs, anchor, scale, None
        n_read = history.shape[1] if masks.lengths is None else masks.lengths
        return outputs, anchor, scale, ForecasterState(state.position + n_read, features, scaling, layers)

    def _read(
        self, history: Tensor, before: ForecasterState, covariates: Tensor, masks: Masks
    ) -> tuple[Tensor, RunningScaleState, tuple[Any, ...]]:
        """The features after the last step of each row, the scaling and the layers' states."""
        observed = ~history.isnan()
        if masks.valid is not None:
            observed = observed & masks.valid[..., None]
        series, scaling = running_scale(history, observed, before.scaling, self.config.scaling_steps)
        if history.shape[1] == 0:
            return before.features, scaling, before.layers
        if self.config.scaling == "running":
            channels = [in_units(part, series.scale) for part in (series.value - series.level, series.change)]
        else:
            channels = [series.value, series.change]
        dtype = self.in_proj.weight.dtype
        inputs = torch.cat([*(c.to(dtype) for c in channels), observed.to(dtype), covariates.to(dtype)], -1)
        x = self.in_proj(mask_time(inputs, masks.valid))
        masks = masks._replace(observed=observed.any(-1))
        x, states = self._through(x, before.layers or None, masks)
        lengths = masks.lengths
        if lengths is None:
            features = self.norm(x[:, -1])
        else:
            last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[-1])
            features = self.norm(x.gather(1, last)[:, 0])
            features = torch.where((lengths > 0)[:, None], features, before.features.to(features.dtype))
        return features.to(before.features.dtype), scaling, states

    def _check(
        self,
        history: Tensor,
        state: ForecasterState | None,
        covariates: Tensor | None,
        future_covariates: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Masks]:
        """The covariates, with an empty tensor instead of None where the model has none, and what ``lengths`` means."""
        config = self.config
        if not isinstance(history, Tensor) or history.ndim != 3 or history.shape[-1] != config.d_target:
            got = tuple(history.shape) if isinstance(history, Tensor) else type(history).__name__
            raise InputError(f"history must be a tensor of shape (batch, length, {config.d_target}), got {got}")
        if not history.is_floating_point():
            raise InputError(f"history must be real, with NaN in its gaps, got {history.dtype}; use history.float()")
        batch, length = history.shape[:2]
        if state is not None and not isinstance(state, ForecasterState):
            raise InputError(
                f"state must be a ForecasterState or None, got {type(state).__name__}; "
                "begin with model.initial_state(batch)"
            )
        check_device(history, self.in_proj.weight, "history")
        if state is not None:
            check_layers("model", state.layers, len(self.layers))
            scaling = RunningScaleState(*[leaf(config.d_target)] * len(RunningScaleState._fields))
            for part, shape in (("position", COUNT), ("features", leaf(config.d_model)), ("scaling", scaling)):
                given = getattr(state, part)
                check_state("Forecaster", given, shape, batch, history.device, f"state.{part}")
        masks = build_masks(history, lengths, None)
        compiling = torch.compiler.is_compiling() or history.is_meta
        if state is None and (
            length == 0 or (masks.lengths is not None and not compiling and bool(whole(masks.lengths < 1).any()))
        ):
            raise InputError("a row of the history has no steps to forecast from; give at least one, or give a state")
        checked = []
        for name, value, n, width in (
            ("covariates", covariates, length, config.d_covariates + config.d_past_covariates),
            ("future_covariates", future_covariates, config.horizon, config.d_covariates),
        ):
            if value is None and width == 0:
                value = history.new_zeros(batch, n, 0)
            if not isinstance(value, Tensor) or value.shape != (batch, n, width):
                given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InputError(f"{name} must be a tensor of shape {(batch, n, width)}, got {given}")
            checked.append(value)
        checked[0] = mask_time(checked[0], masks.valid)
        if not compiling:
            if any(not bool(whole(value.isfinite()).all()) for value in checked):
                raise InputError("the covariates hold NaN or infinity; fill them first; only the history may have gaps")
            if bool(whole(mask_time(history, masks.valid).isinf()).any()):
                raise InputError("the history holds infinity; use NaN for a missing value")
        return checked[0], checked[1], masks


def _ordered(raw: Tensor, centre: int) -> Tensor:
    """Rising along the last axis, ``raw[..., centre]`` as it is."""
    middle = raw[..., centre : centre + 1]
    below, above = F.softplus(raw[..., :centre]), F.softplus(raw[..., centre + 1 :])
    below = below.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([middle - below, middle, middle + above.cumsum(-1)], -1)
