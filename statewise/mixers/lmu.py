"""The Legendre Memory Unit: a memory of the last theta steps, fixed by theory, and a learned hidden state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from statewise import hippo
from statewise.configuration.types import Count, OneOf, Positive
from statewise.errors import ConfigError
from statewise.kernels.linear import linear
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.base import MixerConfig
from statewise.mixers.prepared import PreparableMixer
from statewise.mixers.projection import Linear
from statewise.operators.dense import DenseLTI, DenseState
from statewise.operators.folding import fold
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.operators.time_invariant import TimeInvariant
from statewise.precision import full_precision, without_autocast
from statewise.systems import discretize_dense


class LMUState(NamedTuple):
    """memory: (batch, d_memory, d_state); hidden: (batch, d_hidden)."""

    memory: Tensor
    hidden: Tensor


@dataclass(frozen=True, kw_only=True)
class LMUConfig(MixerConfig):
    """The LMU, as its cell with a recurrent hidden state, or parallel; the defaults are those of ``keras-lmu``.

    theta:            the window that the memory holds, in steps
    d_state:          the order of each memory: how many Legendre polynomials describe the window
    d_memory:         how many memories there are, each for a learned linear view of the input
    d_hidden:         width of the hidden state (default d_model); if it is another, a linear map leads to d_model
    activation:       of the hidden state
    hidden_to_memory: what is remembered also depends on the last hidden state
    memory_to_memory: and on the last memory
    input_to_hidden:  the hidden state sees the input as well as the memory
    parallel:         the memory depends only on the input, and the hidden state not on the one before, so a whole
                      sequence is one convolution (Chilkuri & Eliasmith 2021)
    """

    theta: Positive
    d_state: Count = 64
    d_memory: Count = 1
    d_hidden: Count | None = None
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "tanh"
    hidden_to_memory: bool = False
    memory_to_memory: bool = False
    input_to_hidden: bool = False
    parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden_to_memory", "memory_to_memory"):
            if self.parallel and getattr(self, name):
                raise ConfigError(
                    f"LMUConfig.{name}=True with parallel=True: with parallel=True the memory depends only on the "
                    "input; use one of the two"
                )

    def build(self, d_model: int) -> LMU | ParallelLMU:
        return ParallelLMU(d_model, self) if self.parallel else LMU(d_model, self)


class LMUBase(PreparableMixer):
    """The parts of both forms: the memory, the views of the input that it keeps, and what leads to the output."""

    def __init__(self, d_model: int, config: LMUConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_hidden = d_model if config.d_hidden is None else config.d_hidden
        self.activation = ACTIVATIONS[config.activation]
        with torch.device("cpu"):  # numbers also where the parameters have none, on the meta device
            self.per_step = _memory(config.d_state, config.theta, 1.0)  # no buffers, so its digits stay in any dtype
        d_memories = config.d_memory * config.d_state
        self.input_to_memory = Linear(d_model, config.d_memory, bias=False)
        self.memory_to_hidden = Linear(d_memories, self.d_hidden)
        self.input_to_hidden = Linear(d_model, self.d_hidden, bias=False) if config.input_to_hidden else None
        self.out_proj = None if self.d_hidden == d_model else Linear(self.d_hidden, d_model)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As ``keras-lmu`` draws them: uniform after Glorot, over all that enters a sum; biases zero.

        ``residual_scale`` acts on the output projection, if there is one.
        """
        self._refuse_if_frozen("cannot draw its parameters again")
        n_seen = self.d_model + self.d_hidden * self.config.hidden_to_memory
        d_memories = self.config.d_memory * self.config.d_state
        _glorot(self.input_to_memory, n_seen)
        _glorot(self.memory_to_hidden, d_memories + self.d_model * self.config.input_to_hidden)
        if self.input_to_hidden is not None:
            _glorot(self.input_to_hidden, d_memories + self.d_model)
        if self.out_proj is not None:
            _glorot(self.out_proj, self.d_hidden)
            with torch.no_grad():
                self.out_proj.weight.mul_(residual_scale)

    def build_operators(self) -> list[TimeInvariant]:
        """The memory, m_t = A m_{t-1} + B u_t with all of m as its output: width 1, the memories as a trailing axis."""
        weight = self.input_to_memory.weight
        assert self.rate is not None
        A, B = self.per_step if self.rate == 1.0 else _memory(self.config.d_state, self.config.theta, self.rate)
        A, B = (m.to(weight.device, full_precision(weight.dtype)).unsqueeze(0) for m in (A, B))
        return [DenseLTI(A, B, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).unsqueeze(0))]

    def _like(self) -> Tensor:
        return self.input_to_memory.weight

    def _end(self, hidden: Tensor) -> Tensor:
        return hidden if self.out_proj is None else self.out_proj(hidden)


class LMU(LMUBase):
    """u_t = e_x x_t + e_h h_{t-1} + e_m m_{t-1}; m_t = A m_{t-1} + B u_t; h_t = f(W_m m_t + W_x x_t + W_h h_{t-1} + b).

    e_h, e_m and W_x are there if the config says so. A and B are held constant over steps of one (zero-order hold) and
    are not learned.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`LMUState`, float32 or wider
    Cost:    for each token, one after the other, d_memory d_state (d_state + d_hidden) + d_hidden^2 multiply-adds and
             those of the input and output maps.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Voelker, Kajic & Eliasmith 2019, sec. 2; order of operations and initialisation: ``keras-lmu``.
    """

    def __init__(self, d_model: int, config: LMUConfig) -> None:
        super().__init__(d_model, config)
        d_memories = config.d_memory * config.d_state
        self.hidden_to_hidden = nn.Linear(self.d_hidden, self.d_hidden, bias=False)
        self.hidden_to_memory = (
            nn.Linear(self.d_hidden, config.d_memory, bias=False) if config.hidden_to_memory else None
        )
        self.memory_to_memory = nn.Linear(d_memories, config.d_memory, bias=False) if config.memory_to_memory else None
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        super().reset_parameters(residual_scale)
        nn.init.orthogonal_(self.hidden_to_hidden.weight)
        if self.hidden_to_memory is not None:
            _glorot(self.hidden_to_memory, self.d_model + self.d_hidden)
        if self.memory_to_memory is not None:
            nn.init.orthogonal_(self.memory_to_memory.weight)

    def state_shape(self) -> LMUState:
        return LMUState(leaf(self.config.d_memory, self.config.d_state), leaf(self.d_hidden))

    def mix(self, x: Tensor, state: LMUState | None, masks: Masks) -> tuple[Tensor, LMUState | None]:
        rest = self.initial_state(x.shape[0], device=x.device, dtype=x.dtype)
        now = rest if state is None else LMUState(*(new.to(old.dtype) for new, old in zip(state, rest)))
        memory = self.operators[0]
        assert isinstance(memory, DenseLTI)
        A, B = (m[0].to(now.memory.dtype) for m in (memory.A, memory.B))
        if x.shape[1] == 0:
            return self._end(x.new_zeros(*x.shape[:2], self.d_hidden)), state
        maps = dict(self.named_parameters())
        steps = {"u": self.input_to_memory(x), "valid": masks.valid, "starts": masks.starts}
        steps["seen"] = None if self.input_to_hidden is None else self.input_to_hidden(x)
        given = {name: m for name, m in steps.items() if m is not None}

        def step(
            carry: list[Tensor], inputs: list[Tensor], constants: list[Tensor]
        ) -> tuple[list[Tensor], list[Tensor]]:
            now, at = LMUState(*carry), dict(zip(given, inputs))
            A, B, *own = constants
            if "starts" in at:
                now = _choose(at["starts"], LMUState(*(torch.zeros_like(m) for m in now)), now)
            after, h = self._step(at["u"], at.get("seen"), now, A, B, dict(zip(maps, own)), x.dtype)
            after = _choose(at["valid"], after, now) if "valid" in at else after
            return [*after], [h]

        carried, (hidden,) = fold(step, [*now], [*given.values()], [A, B, *maps.values()])
        if state is None:
            return self._end(hidden), None
        return self._end(hidden), LMUState(*(new.to(old.dtype) for new, old in zip(carried, state)))

    def _step(
        self,
        u: Tensor,
        seen: Tensor | None,
        state: LMUState,
        A: Tensor,
        B: Tensor,
        maps: dict[str, Tensor],
        dtype: torch.dtype,
    ) -> tuple[LMUState, Tensor]:
        """The state is kept wide; the learned maps, by their names, see it in the dtype of the input."""
        before = state.hidden.to(dtype)
        if self.hidden_to_memory is not None:
            u = u + F.linear(before, maps["hidden_to_memory.weight"])
        if self.memory_to_memory is not None:
            u = u + F.linear(state.memory.flatten(1).to(dtype), maps["memory_to_memory.weight"])
        with without_autocast(u.device):
            memory = state.memory @ A.mT + u.to(B.dtype).unsqueeze(-1) * B
        seen_of_memory = memory.flatten(1).to(dtype)
        h = linear(seen_of_memory, maps["memory_to_hidden.weight"], maps["memory_to_hidden.bias"])
        h = h + F.linear(before, maps["hidden_to_hidden.weight"])
        if seen is not None:
            h = h + seen
        h = self.activation(h)
        return LMUState(memory.to(state.memory.dtype), h.to(state.hidden.dtype)), h


class ParallelLMU(LMUBase):
    """u_t = e_x x_t; m_t = A m_{t-1} + B u_t; h_t = f(W_m m_t + W_x x_t + b), W_x if the config says so.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`~statewise.operators.dense.DenseState`,
             (batch, 1, d_memory, d_state)
    Cost:    the memory as a convolution, see :class:`~statewise.operators.dense.DenseLTI`, with d_state outputs for
             each of d_memory inputs; (batch, length, d_memory d_state) numbers are held.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Chilkuri & Eliasmith 2021, arXiv:2102.11417, sec. 3.
    """

    def __init__(self, d_model: int, config: LMUConfig) -> None:
        super().__init__(d_model, config)
        self.reset_parameters()

    def state_shape(self) -> DenseState:
        return DenseState(leaf(1, self.config.d_memory, self.config.d_state))

    def mix(self, x: Tensor, state: DenseState | None, masks: Masks) -> tuple[Tensor, DenseState | None]:
        u = self.input_to_memory(x).unsqueeze(2)  # (batch, length, 1, d_memory)
        with without_autocast(x.device):
            memory, state = self.operators[0].apply(u, state, masks)
        memory = memory.squeeze(2).mT.flatten(-2)  # (batch, length, d_memory * d_state)
        h = self.memory_to_hidden(memory.to(x.dtype))
        if self.input_to_hidden is not None:
            h = h + self.input_to_hidden(x)
        return self._end(self.activation(h)), state


def _memory(n: int, theta: float, rate: float) -> tuple[Tensor, Tensor]:
    """The discrete A (n, n) and B (n,) in float64, held over steps of ``rate``."""
    A, B = hippo.lmu(n, theta)
    return discretize_dense(A, B, A.new_tensor(rate), "zoh", check_dt=False)


def _glorot(layer: nn.Linear, fan_in: int) -> None:
    """Uniform with the variance 2 / (fan_in + fan_out), where fan_in counts all that enters the same sum."""
    bound = math.sqrt(6 / (fan_in + layer.out_features))
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _choose(condition: Tensor, yes: LMUState, no: LMUState) -> LMUState:
    """yes where the row's condition holds, else no."""
    chosen: LMUState = pytree.tree_map(
        lambda a, b: torch.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no
    )
    return chosen
