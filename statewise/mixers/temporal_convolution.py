"""The temporal convolutional network: causal convolutions over time whose taps lie ever further apart, as a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Fraction, OneOf
from statewise.errors import ConfigError
from statewise.kernels.exact import is_exact
from statewise.kernels.exact.nodes import windows
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.projection import Linear, draw_default
from statewise.operators.causal_convolution import last_inputs
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import full_precision


class TCNState(NamedTuple):
    """inputs: (batch, n_convolutions, (n_taps - 1) dilation, d_model), what each convolution read, oldest first."""

    inputs: Tensor


@dataclass(frozen=True, kw_only=True)
class TCNConfig(MixerConfig):
    """One level of a temporal convolutional network; :func:`tcn_layers` stacks levels whose reach doubles.

    n_taps:         how many inputs an output of a convolution sees
    dilation:       how many steps apart they are
    n_convolutions: one after the other, each with its activation and dropout
    activation:     of each convolution's output
    dropout:        of each number behind an activation
    """

    n_taps: Count = 3
    dilation: Count = 1
    n_convolutions: Count = 2
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "relu"
    dropout: Fraction = 0.0

    def build(self, d_model: int) -> TCN:
        return TCN(d_model, self)


class TCN(Mixer):
    """z_t = drop(f(b + sum_k W_k x_{t - k dilation})), n_convolutions times; all channels are mixed.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`TCNState`, float32 or wider
    Cost:    n_convolutions n_taps d_model^2 multiply-adds a token, of all tokens at once. For the gradient
             n_taps d_model numbers a token are held.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Bai, Kolter & Koltun 2018, arXiv:1803.01271, sec. 3, without its weight normalisation; the residual
             connection is the block's.
    """

    def __init__(self, d_model: int, config: TCNConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.reach = (config.n_taps - 1) * config.dilation
        n_seen = config.n_taps * d_model  # the newest tap first
        self.convolutions = nn.ModuleList(Linear(n_seen, d_model) for _ in range(config.n_convolutions))
        self.activation, self.dropout = ACTIVATIONS[config.activation], nn.Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As PyTorch draws a convolution's weights; biases zero."""
        self._refuse_if_frozen("cannot draw its parameters again")
        *_, last = layers = [m for m in self.convolutions if isinstance(m, Linear)]
        draw_default(*layers)
        with torch.no_grad():
            last.weight.mul_(residual_scale)

    def _like(self) -> Tensor:
        first = self.convolutions[0]
        assert isinstance(first, Linear)
        return first.weight

    def state_shape(self) -> TCNState:
        return TCNState(leaf(self.config.n_convolutions, self.reach, self.d_model))

    def mix(self, x: Tensor, state: TCNState | None, masks: Masks) -> tuple[Tensor, TCNState | None]:
        histories = [None] * len(self.convolutions) if state is None else state.inputs.unbind(1)
        kept = []
        for convolution, before in zip(self.convolutions, histories):
            dtype = full_precision(x.dtype) if before is None else before.dtype
            history = x.new_zeros(x.shape[0], self.reach, self.d_model, dtype=dtype) if before is None else before
            taps, x, history = self._taps(x, history, masks.segments)
            if state is not None:
                kept.append(last_inputs(x.to(dtype), history, masks))
            x = self.dropout(self.activation(convolution(taps)))
        return x, None if state is None else TCNState(torch.stack(kept, 1))

    def _taps(self, x: Tensor, history: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, length, n_taps d_model): for each step the inputs that it sees, zero before its document; and x and
        the history, for the state behind them to be made of."""
        past = torch.cat([history.to(x.dtype), x], 1)
        offsets = [self.reach - i * self.config.dilation for i in range(self.config.n_taps)]
        if is_exact():
            seen, past = windows(past, offsets, x.shape[1])
            history, x = past[:, : self.reach], past[:, self.reach :]
        else:
            seen = [past[:, at : at + x.shape[1]] for at in offsets]
        if segments is not None:
            ids = torch.cat([segments.new_zeros(len(x), self.reach), segments], 1)
            seen = [
                torch.where((ids[:, at : at + x.shape[1]] == segments).unsqueeze(-1), part, torch.zeros_like(part))
                for at, part in zip(offsets, seen)
            ]
        return torch.cat(seen, -1), x, history


def tcn_layers(n_layers: int, *, n_taps: int = 3, dropout: float = 0.0) -> tuple[TCNConfig, ...]:
    """Levels with dilations 1, 2, 4, ..., for the ``layers`` of a model. Together they see
    2 (n_taps - 1) (2^n_layers - 1) + 1 steps.

    Errors:  ConfigError for numbers that no level can have.
    """
    if n_layers < 1:
        raise ConfigError(f"tcn_layers needs n_layers of at least 1, got {n_layers}")
    return tuple(TCNConfig(n_taps=n_taps, dilation=2**i, dropout=dropout) for i in range(n_layers))
