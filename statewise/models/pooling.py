"""From the features of every step to one feature vector a sequence: mean, last, or attention, each with a state.

A pooling reads its sequence like every other part of a model: ``y, state = pooling(x, state)``. ``y`` is what all steps
read so far pool to, so that a signal read in chunks ends with the features of the whole.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from statewise.kernels.exact.nodes import as_node
from statewise.kernels.exact.switch import is_exact
from statewise.kernels.linear_scan import linear_scan
from statewise.operators.masks import Masks, build_masks, mask_time
from statewise.operators.state_shape import COUNT, at_rest, check_state, leaf
from statewise.precision import without_autocast

POOLINGS = ("mean", "last", "attention")


class MeanState(NamedTuple):
    """total: (batch, d_model), the sum of the features read; n_steps: (batch,) int64, how many there were."""

    total: Tensor
    n_steps: Tensor


class LastState(NamedTuple):
    """last: (batch, d_model), the features of the last step read; zeros before the first."""

    last: Tensor


class AttentionState(NamedTuple):
    """The softmax over the steps read, by its largest score (batch,), the sum of exp(score - largest) (batch,), and the
    features weighted with them (batch, d_model).
    """

    maximum: Tensor
    denominator: Tensor
    numerator: Tensor


class Pooling(nn.Module, abc.ABC):
    """x (batch, length, d_model) -> y (batch, d_model), of all steps read so far; a row without any gives zeros.

    Steps from ``lengths`` on do not count, whatever they hold. Sums are kept in float32, or wider as x is.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def reset_parameters(self) -> None:
        """Draw the parameters again, if there are any."""

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """The state before the first step. ``dtype`` defaults to float32, and is never narrower."""
        return self._rest(
            batch, torch.device(device or "cpu"), torch.promote_types(dtype or torch.float32, torch.float32)
        )

    def forward(
        self, x: Tensor, state: Any = None, *, lengths: Tensor | None = None, masks: Masks | None = None
    ) -> tuple[Tensor, Any]:
        """``masks``, from a model that has built them: what ``lengths`` means."""
        if state is not None:
            check_state(type(self).__name__, state, self.state_shape(), x.shape[0], x.device)
        valid = (build_masks(x, lengths, None) if masks is None else masks).valid
        dtype = torch.promote_types(x.dtype, torch.float32 if state is None else state[0].dtype)
        before = self._rest(x.shape[0], x.device, dtype) if state is None else state
        with without_autocast(x.device):
            y, after = self._pool(mask_time(x, valid).to(dtype), before, valid)
        return y.to(x.dtype), None if state is None else after

    @abc.abstractmethod
    def state_shape(self) -> Any:
        """The state with a :func:`~statewise.operators.state_shape.leaf` instead of each tensor."""

    def _rest(self, batch: int, device: torch.device, dtype: torch.dtype) -> Any:
        return at_rest(self.state_shape(), batch, device=device, dtype=dtype)

    @abc.abstractmethod
    def _pool(self, x: Tensor, state: Any, valid: Tensor | None) -> tuple[Tensor, Any]:
        """``x`` holds zeros where ``valid`` (batch, length) is False; None: every step is real."""


class MeanPooling(Pooling):
    """The mean over the steps."""

    def state_shape(self) -> MeanState:
        return MeanState(leaf(self.d_model), COUNT)

    def _pool(self, x: Tensor, state: MeanState, valid: Tensor | None) -> tuple[Tensor, MeanState]:
        total = _running_sum(x, state.total) if is_exact() else state.total + x.sum(1)
        n_steps = state.n_steps + (x.shape[1] if valid is None else valid.sum(1))
        return total / n_steps.clamp(min=1).unsqueeze(-1), MeanState(total, n_steps)


class LastPooling(Pooling):
    """The features of the last real step."""

    def state_shape(self) -> LastState:
        return LastState(leaf(self.d_model))

    def _pool(self, x: Tensor, state: LastState, valid: Tensor | None) -> tuple[Tensor, LastState]:
        if x.shape[1] == 0:
            return state.last, state
        if valid is None:
            last = x[:, -1]
        else:
            count = valid.sum(1)
            step = x[torch.arange(x.shape[0], device=x.device), (count - 1).clamp(min=0)]
            last = torch.where((count > 0).unsqueeze(-1), step, state.last)
        return last, LastState(last)


class AttentionPooling(Pooling):
    """One learned query q attends to all steps: y = sum_t softmax_t(q . x_t / sqrt(d_model)) x_t.

    The softmax is taken online: the largest score so far is subtracted, and what was summed before is rescaled when a
    larger one comes (Milakov & Gimelshein 2018, arXiv:1805.02867).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.query = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small scores: training begins near the mean."""
        nn.init.normal_(self.query, std=0.1)

    def state_shape(self) -> AttentionState:
        return AttentionState(leaf(), leaf(), leaf(self.d_model))

    def _rest(self, batch: int, device: torch.device, dtype: torch.dtype) -> AttentionState:
        rest: AttentionState = super()._rest(batch, device, dtype)
        return rest._replace(maximum=torch.full_like(rest.maximum, torch.finfo(dtype).min))

    def _pool(self, x: Tensor, state: AttentionState, valid: Tensor | None) -> tuple[Tensor, AttentionState]:
        scores = x @ self.query.to(x.dtype) / self.d_model**0.5
        if valid is not None:
            scores = scores.masked_fill(~valid, torch.finfo(x.dtype).min)
        if is_exact():
            return self._one_by_one(x, scores, state, valid)
        # The maximum cancels in what it scales, so no gradient has to pass through it.
        maximum = torch.cat([state.maximum.unsqueeze(1), scores], 1).amax(1).detach()
        weights = (scores - maximum.unsqueeze(1)).exp()
        if valid is not None:  # a row without any real step has its masked scores as maximum
            weights = weights.masked_fill(~valid, 0)
        kept = (state.maximum - maximum).exp()
        denominator = kept * state.denominator + weights.sum(1)
        numerator = kept.unsqueeze(-1) * state.numerator + torch.einsum("bl,bld->bd", weights, x)
        return _ratio(numerator, denominator), AttentionState(maximum, denominator, numerator)

    def _one_by_one(
        self, x: Tensor, scores: Tensor, state: AttentionState, valid: Tensor | None
    ) -> tuple[Tensor, AttentionState]:
        """The same step by step: sums in one order, however the sequence is cut."""

        def step(
            carry: list[Tensor], inputs: list[Tensor], constants: list[Tensor]
        ) -> tuple[list[Tensor], list[Tensor]]:
            (denominator, numerator), (score, features), (kept, maximum) = carry, inputs, constants
            weight = (score - maximum).exp()
            return [kept * denominator + weight, kept.unsqueeze(-1) * numerator + weight.unsqueeze(-1) * features], []

        node, maximum = as_node(step), state.maximum
        carry: Sequence[Tensor] = [state.denominator, state.numerator]
        for t in range(x.shape[1]):
            largest = torch.maximum(maximum, scores[:, t]).detach()
            after, _ = node(list(carry), [scores[:, t], x[:, t]], [(maximum - largest).exp(), largest])
            if valid is not None:
                here = valid[:, t]
                after = [torch.where(here, after[0], carry[0]), torch.where(here[:, None], after[1], carry[1])]
                largest = torch.where(here, largest, maximum)
            carry, maximum = after, largest
        denominator, numerator = carry
        return _ratio(numerator, denominator), AttentionState(maximum, denominator, numerator)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """(batch, d_model); zeros where no step was read. The step with the largest score counts 1."""
    return numerator / torch.where(denominator > 0, denominator, 1.0).unsqueeze(-1)


def _running_sum(x: Tensor, before: Tensor) -> Tensor:
    """(batch, d_model): before + x_1 + x_2 and so on, one after the other."""
    return linear_scan(x.new_ones(()).expand_as(x), x, before)[:, -1] if x.shape[1] else before


def build_pooling(kind: str, d_model: int) -> Pooling:
    """The pooling of one of ``POOLINGS``."""
    classes: dict[str, type[Pooling]] = {"mean": MeanPooling, "last": LastPooling, "attention": AttentionPooling}
    return classes[kind](d_model)
