"""The HiPPO-RNN: a gated recurrent cell whose memory is the projection of all that it has seen on a few polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import Count, OneOf, Positive
from statewise.errors import ConfigError, InputError
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.projection import Linear
from statewise.operators.folding import fold
from statewise.operators.masks import Masks
from statewise.operators.state_shape import COUNT, leaf
from statewise.precision import full_precision, without_autocast
from statewise.systems import discretize_dense

METHODS = ("euler", "backward_euler", "bilinear", "zoh")
WINDOWED = ("legt", "lagt", "fourier", "fourier_diag", "lmu")
_MOST_ROUNDING = 1e-3  # of the memory, by Euler's first steps


class HiPPORNNState(NamedTuple):
    """hidden: (batch, d_hidden); memory: (batch, d_memory, d_state); steps: (batch,) int64, read of the document."""

    hidden: Tensor
    memory: Tensor
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class HiPPORNNConfig(MixerConfig):
    """A recurrent network with HiPPO's memory.

    measure:  what the memory weighs the past by: "legs", all of it alike, or one of a window (:func:`hippo.transition`)
    theta:    the window, or the unit of time, in steps; "legs" has none, and the others need one
    method:   how a step of time is taken: "euler", "backward_euler", "bilinear" or, for a window, "zoh". "euler" is
              there as it was first published: with "legs" its first steps multiply rounding errors by 6,000 for 16
              states and 10^18 for 64, so it takes at most 16 states in float32 and 46 in float64
    d_state:  the order of each memory
    d_memory: how many memories there are, each of a learned linear view of the input and the hidden state
    d_hidden: width of the hidden state (default d_model); if it is another, a linear map leads to d_model
    gated:    the hidden state moves towards the new one by a learned share of each number; else it is the new one
    """

    measure: Annotated[str, OneOf(("legs", *WINDOWED))] = "legs"
    theta: Positive | None = None
    method: Annotated[str, OneOf(METHODS)] = "bilinear"
    d_state: Count = 64
    d_memory: Count = 1
    d_hidden: Count | None = None
    gated: bool = True

    def __post_init__(self) -> None:
        if self.measure == "legs" and self.theta is not None:
            raise ConfigError(f"HiPPORNNConfig.theta={self.theta}: measure 'legs' remembers everything; leave it out")
        if self.measure != "legs" and self.theta is None:
            raise ConfigError(
                f"HiPPORNNConfig.measure={self.measure!r} needs theta, how many steps it looks back; set theta=100, say"
            )

        if self.measure == "legs" and self.method == "zoh":
            raise ConfigError("HiPPORNNConfig.method='zoh' is for a window, and 'legs' has none; use method='bilinear'")

    def build(self, d_model: int) -> HiPPORNN:
        return HiPPORNN(d_model, self)


class HiPPORNN(Mixer):
    """u = W_u [x, h]; m' = A_t m + B_t u; h' = (1 - g) h + g tanh(W_h [x, m'] + b), g = σ(W_g [x, m'] + c).

    A_t and B_t are HiPPO's, not learned. For "legs" they are those of x' = (A x + B u) / t at the document's step t;
    its first input becomes the memory's first coefficient. For other measures they are the same at every step.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`HiPPORNNState`, numbers in float32 or wider
    Cost:    for each token, one after the other, d_memory d_state (d_state + 2 d_hidden) multiply-adds and those of the
             maps of the input; for "legs" d_memory d_state (log2(d_state) + 2 d_hidden).
    Errors:  InputError for shapes or states that do not fit, and where ``method="euler"`` has too few digits for its
             states; ConfigError for an odd d_state with a Fourier measure.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, sec. 2.5 and appendix F; order of operations, gate and
             initialisation of its published code.
    """

    def __init__(self, d_model: int, config: HiPPORNNConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_hidden = d_model if config.d_hidden is None else config.d_hidden
        with torch.device("cpu"):  # numbers also where the parameters have none, on the meta device
            A, B = hippo.transition(config.measure, config.d_state, theta=config.theta)
            if config.measure == "legs":
                self.system = (B, -A.diagonal())  # all that its A is made of
            else:
                self.system = discretize_dense(A, B, A.new_tensor(1.0), config.method)
                _require_stable(self.system[0], config)
        n_memory = config.d_memory * config.d_state
        self.in_proj = Linear(d_model + self.d_hidden, config.d_memory)
        self.hidden_proj = Linear(d_model + n_memory, self.d_hidden)
        self.gate_proj = Linear(d_model + n_memory, self.d_hidden) if config.gated else None
        self.out_proj = None if self.d_hidden == d_model else Linear(self.d_hidden, d_model)
        self._place()
        self.reset_parameters()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What ``nn.Module`` calls for every conversion: the system follows the parameters, and keeps all its digits.

        It is taken from where it was computed each time: ``fn`` may give memory that holds nothing, as ``to_empty``'s.
        """
        super()._apply(fn, recurse)
        self._place()
        return self

    def _place(self) -> None:
        """A copy of the system beside the parameters: a CUDA graph cannot record one from the host at every call."""
        device = self.in_proj.weight.device
        kind = torch.float32 if device.type == "mps" else torch.float64  # which has none wider
        self.placed = tuple(m.to(device, kind) for m in self.system)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """Uniform after Glorot, biases zero. ``residual_scale`` acts on the output projection, if there is one."""
        self._refuse_if_frozen("cannot draw its parameters again")
        for layer in (self.in_proj, self.hidden_proj, self.gate_proj, self.out_proj):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        if self.out_proj is not None:
            with torch.no_grad():
                self.out_proj.weight.mul_(residual_scale)

    def state_shape(self) -> HiPPORNNState:
        return HiPPORNNState(leaf(self.d_hidden), leaf(self.config.d_memory, self.config.d_state), COUNT)

    def mix(self, x: Tensor, state: HiPPORNNState | None, masks: Masks) -> tuple[Tensor, HiPPORNNState | None]:
        if x.shape[1] == 0:
            return self._end(x.new_zeros(*x.shape[:2], self.d_hidden)), state
        begin = self.initial_state(x.shape[0], device=x.device, dtype=x.dtype) if state is None else state
        dtype = full_precision(x.dtype, begin.hidden.dtype, begin.memory.dtype)
        _require_digits(self.config, dtype)
        maps = [self.in_proj, self.hidden_proj, *([] if self.gate_proj is None else [self.gate_proj])]
        constants = [p.to(dtype) for layer in maps for p in (layer.weight, layer.bias)]
        # parameters that were put in without a conversion, as load_state_dict(assign=True) does, may be elsewhere
        system = self.placed if self.placed[0].device == x.device else self.system
        constants += [m.to(x.device, dtype) for m in system]
        steps = {"x": x.to(dtype), "valid": masks.valid, "starts": masks.starts}
        given = {name: m for name, m in steps.items() if m is not None}

        def step(now: list[Tensor], inputs: list[Tensor], constants: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            at = dict(zip(given, inputs))
            if "starts" in at:
                now = [torch.where(_rows(at["starts"], m), torch.zeros_like(m), m) for m in now]
            after = self._step(at["x"], now, constants)
            hidden = after[0]
            if "valid" in at:
                after = [torch.where(_rows(at["valid"], new), new, old) for new, old in zip(after, now)]
            return after, [hidden]

        with without_autocast(x.device):
            rest = [begin.hidden.to(dtype), begin.memory.to(dtype), begin.steps]
            end, (hidden,) = fold(step, rest, [*given.values()], constants)
        y = self._end(hidden.to(x.dtype))
        if state is None:
            return y, None
        return y, HiPPORNNState(*(new.to(old.dtype) for new, old in zip(end, state)))

    def _end(self, hidden: Tensor) -> Tensor:
        return hidden if self.out_proj is None else self.out_proj(hidden)

    def _step(self, x: Tensor, now: list[Tensor], constants: list[Tensor]) -> list[Tensor]:
        hidden, memory, steps = now
        w_in, b_in, w_hidden, b_hidden, *gate = constants[:-2]
        system = constants[-2:]
        u = F.linear(torch.cat([x, hidden], -1), w_in, b_in)
        if self.config.measure == "legs":
            memory = self._scaled(memory, u, steps, *system)
        else:
            A, B = system
            memory = memory @ A.mT + u.unsqueeze(-1) * B
        seen = torch.cat([x, memory.flatten(1)], -1)
        new = F.linear(seen, w_hidden, b_hidden).tanh()
        if gate:
            new = hidden + F.linear(seen, *gate).sigmoid() * (new - hidden)
        return [new, memory, steps + 1]

    def _scaled(self, memory: Tensor, u: Tensor, steps: Tensor, root: Tensor, order: Tensor) -> Tensor:
        """A step of x' = (A x + B u) / t at t = ``steps``; of the first, x = (u, 0, ...).

        A_ij is -root_i root_j below the diagonal and -order_i on it, and B_i is root_i. So a product with A is a sum
        over the orders below, and a system of equations with it is a recurrence over the orders.
        """
        first = torch.zeros_like(memory) + F.pad(u.unsqueeze(-1), (0, memory.shape[-1] - 1))
        t = steps.clamp(min=1).to(memory.dtype)[:, None, None]
        late = {"euler": 0.0, "bilinear": 0.5, "backward_euler": 1.0}[self.config.method]  # A's share in the new state
        weighed = root * memory
        pushed = memory + (late - 1) / t * (root * (weighed.cumsum(-1) - weighed) + order * memory)
        pushed = pushed + u.unsqueeze(-1) * root / t
        if late:
            scale = 1 / (1 + late * order / t)
            gains = (1 - late * (order - 1) / t) * scale  # of the sum over the orders below, from one order to the next
            below = F.pad(_recurrence(gains, root * pushed * scale), (1, 0))[..., :-1]
            pushed = (pushed - late / t * root * below) * scale
        return torch.where((steps == 0)[:, None, None], first, pushed)


def _recurrence(gains: Tensor, inputs: Tensor) -> Tensor:
    """s_i = gains_i s_{i-1} + inputs_i along the last axis, in log2(n) passes. No gain is above 1 in size."""
    n, width = inputs.shape[-1], 1
    while width < n:
        inputs = inputs + gains * F.pad(inputs, (width, 0))[..., :n]
        gains = gains * F.pad(gains, (width, 0))[..., :n]
        width *= 2
    return inputs


def _require_digits(config: HiPPORNNConfig, dtype: torch.dtype) -> None:
    """Euler's steps of x' = A x / t multiply the last order by 1 - n / t at t = 1, 2, ...: together by a binomial."""
    if config.measure != "legs" or config.method != "euler":
        return
    growth = math.comb(config.d_state - 1, config.d_state // 2)
    if growth * torch.finfo(dtype).eps > _MOST_ROUNDING:
        raise InputError(
            f"HiPPORNN with method='euler' and d_state={config.d_state} multiplies rounding errors by {growth:.1e} in "
            f"its first steps, too much for {dtype}; use method='bilinear', or fewer states"
        )


def _require_stable(A: Tensor, config: HiPPORNNConfig) -> None:
    radius = torch.linalg.eigvals(A).abs().max().item()
    if radius > 1 + 1e-9:
        raise ConfigError(
            f"HiPPORNNConfig.method={config.method!r} with measure={config.measure!r}, theta={config.theta}, "
            f"d_state={config.d_state} multiplies the memory by {radius:.3g} at each step; use method='bilinear'"
        )


def _rows(condition: Tensor, like: Tensor) -> Tensor:
    """(batch,) with the axes of ``like``."""
    return condition.reshape(-1, *[1] * (like.ndim - 1))
