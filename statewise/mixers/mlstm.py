"""xLSTM's mLSTM: linear attention with exponential gates, and a normaliser that they cannot overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import Count, NonNegative, Positive
from statewise.errors import ConfigError
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.projection import Linear, draw_default
from statewise.operators.folding import is_any
from statewise.operators.masks import Masks
from statewise.operators.ssd import SSD, SSDState
from statewise.operators.state_shape import leaf
from statewise.precision import full_precision

EPS = 1e-6  # added to the denominator, as published


class MLSTMState(NamedTuple):
    """memory: the rows of C e^-m and, last, of n e^-m; m: (batch, n_heads), the logarithm of their scale."""

    memory: SSDState
    m: Tensor


@dataclass(frozen=True, kw_only=True)
class MLSTMConfig(MixerConfig):
    """The mLSTM layer of xLSTM-7B.

    d_key, d_value: widths of a head's keys and values; None: d_model / (2 n_heads) and d_model / n_heads
    gate_cap:       both gates' inputs are capped by cap tanh(x / cap)
    chunk_length:   steps in a chunk, without C

    Source: Beck et al. 2024, arXiv:2405.04517, sec. 2.3; Beck et al. 2025, arXiv:2503.13427, sec. 3.
    """

    n_heads: Count = 4
    d_key: Count | None = None
    d_value: Count | None = None
    gate_cap: Positive = 15.0
    norm_eps: NonNegative = 1e-6
    bias: bool = False
    chunk_length: Count = 64

    def build(self, d_model: int) -> MLSTM:
        return MLSTM(d_model, self)


class MLSTM(Mixer):
    """C_t = f_t C_{t-1} + i_t v_t k_t^T, n_t = f_t n_{t-1} + i_t k_t, with f_t = sigmoid(raw_f), i_t = exp(raw_i),
    numbers for each head; h_t = C_t q_t / max(|n_t . q_t|, 1), q over sqrt(d_key);
    y = W_o (sigmoid(W_z x) * LayerNorm(h)).

    With m_t = max(log f_t + m_{t-1}, log i_t), C e^-m and n e^-m have decays f_t e^{m_{t-1} - m_t} and step sizes
    i_t e^{-m_t} of at most 1: :class:`~statewise.operators.ssd.SSD`, with a column of ones beside the values for n.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`MLSTMState`. ``in_proj.weight``: the rows of q
             and k (n_heads d_key each), of v and z (n_heads d_value each), head by head; ``gate_proj``: raw_i, raw_f
    Cost:    for each token, multiply-adds of the projections, and of the memory, about
             n_heads (chunk_length (d_key + d_value) + 2 d_key d_value)
    Numerics: in float32 or wider; m is exact up to rounding, and its rounding changes nothing: C and n have the same
    Errors:  ConfigError if d_model does not divide and a width is left out; InputError for shapes or states that do not
             fit.
    Source:  Beck et al. 2024, arXiv:2405.04517, eq. 19 to 27.

    >>> mixer = MLSTMConfig(n_heads=2).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.memory.h.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 2, 9, 4]))
    """

    exact_by_steps = True  # the scales of a call come from sums over its steps

    def __init__(self, d_model: int, config: MLSTMConfig) -> None:
        super().__init__()
        for name, width, parts in (("d_key", config.d_key, 2), ("d_value", config.d_value, 1)):
            if width is None and d_model % (parts * config.n_heads):
                raise ConfigError(
                    f"d_model={d_model} is not a multiple of {parts * config.n_heads}, and MLSTMConfig(n_heads="
                    f"{config.n_heads}) has no {name}; give one"
                )
        self.d_model, self.config, self.n_heads = d_model, config, config.n_heads
        self.d_key = d_model // (2 * config.n_heads) if config.d_key is None else config.d_key
        self.d_value = d_model // config.n_heads if config.d_value is None else config.d_value
        keys, values = config.n_heads * self.d_key, config.n_heads * self.d_value
        self.sizes = [keys, keys, values, values]
        self.in_proj = Linear(d_model, sum(self.sizes), bias=config.bias, parts=self.sizes)
        self.gate_proj = Linear(d_model, 2 * config.n_heads, parts=[config.n_heads] * 2)
        self.norm = nn.LayerNorm(values, eps=config.norm_eps, bias=config.bias)
        self.out_proj = Linear(values, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default for the projections, the output's scaled; gates as published, biases -10 and 3 .. 6."""
        draw_default(self.in_proj, self.gate_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
            self.gate_proj.bias[: self.n_heads] = -10.0
            self.gate_proj.bias[self.n_heads :] = torch.linspace(3, 6, self.n_heads)
        self.norm.reset_parameters()

    def state_shape(self) -> MLSTMState:
        return MLSTMState(SSDState(leaf(self.n_heads, self.d_value + 1, self.d_key)), leaf(self.n_heads))

    def mix(self, x: Tensor, state: MLSTMState | None, masks: Masks) -> tuple[Tensor, MLSTMState | None]:
        dtype = full_precision(x.dtype)
        q, k, v, z = (m.unflatten(-1, (self.n_heads, -1)) for m in self.in_proj(x).split(self.sizes, -1))
        cap = self.config.gate_cap
        log_i, raw_f = (cap * (self.gate_proj(x).to(dtype) / cap).tanh()).chunk(2, -1)
        log_f = F.logsigmoid(raw_f)
        if masks.valid is not None:
            log_i = log_i.masked_fill(~masks.valid.unsqueeze(-1), -torch.inf)
            log_f = log_f.masked_fill(~masks.valid.unsqueeze(-1), 0)
        before, m_before = (None, x.new_zeros(x.shape[0], self.n_heads, dtype=dtype)) if state is None else state
        m = scales(log_f, log_i, m_before.to(dtype), masks.starts)
        past = torch.cat([m_before.to(dtype).unsqueeze(1), m[:, :-1]], 1)
        if masks.starts is not None:
            past = past.masked_fill(masks.starts.unsqueeze(-1), 0)
        operator = SSD(
            *((log_f + past - m).clamp(max=0), k.to(dtype), q.to(dtype) * self.d_key**-0.5, self.config.chunk_length),
            dt=(log_i - m).exp(),
        )
        h, memory = operator.apply(F.pad(v.to(dtype), (0, 1), value=1.0), before, masks)
        h = h[..., :-1] / (torch.maximum(h[..., -1:].abs(), (-m).exp().unsqueeze(-1)) + EPS)
        h = F.layer_norm(h, (self.d_value,), eps=self.config.norm_eps).flatten(-2) * self.norm.weight.to(dtype)
        h = h if self.norm.bias is None else h + self.norm.bias.to(dtype)
        y = self.out_proj((z.flatten(-2).to(dtype).sigmoid() * h).to(x.dtype))
        if state is None:
            return y, None
        assert memory is not None
        return y, MLSTMState(memory, (m[:, -1] if x.shape[1] else state.m).to(state.m.dtype))


def scales(log_f: Tensor, log_i: Tensor, before: Tensor, starts: Tensor | None) -> Tensor:
    """m_t = max(log f_t + m_{t-1}, log i_t) for all t: (batch, length, n_heads), from the m before the first step.

    It is F_t + max over s <= t of (log i_s - F_s), with F the sums of log f. At a document's start m is 0.
    """
    if not log_f.shape[1]:
        return log_f
    if not is_any(log_f.shape[1]) and log_f.shape[1] == 1:
        before = before if starts is None else before.masked_fill(starts, 0)
        return torch.maximum(log_f + before.unsqueeze(1), log_i)
    total = log_f.double().cumsum(1)
    entering = torch.full_like(total, -torch.inf)
    entering[:, 0] = before
    if starts is None:
        candidates = torch.maximum(log_i - total, entering)
        return (total + candidates.cummax(1).values).to(log_f.dtype)
    begins = starts.unsqueeze(-1)
    entering = torch.where(begins, log_f - total, entering)  # minus the sum before it
    candidates = torch.maximum(log_i - total, entering)
    # each document above the one before, so that the largest is never one of an earlier document
    finite = candidates.detach().masked_fill(candidates.detach() == -torch.inf, 0)
    step = starts.cumsum(1).unsqueeze(-1) * (1 + finite.max() - finite.min())
    return (total + (candidates + step).cummax(1).values - step).to(log_f.dtype)
