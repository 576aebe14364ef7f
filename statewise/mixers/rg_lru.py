"""Griffin's recurrent block: a gated linear recurrence, a number of state for each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import Count, Positive, PositiveRange
from statewise.errors import ConfigError
from statewise.kernels.exact import is_exact
from statewise.kernels.gelu_tanh import gelu_tanh
from statewise.kernels.linear_scan import linear_scan
from statewise.mixers.base import Dynamics, Mixer, MixerConfig
from statewise.mixers.projection import Linear, draw_default
from statewise.mixers.short_convolution import ShortConvolution
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.folding import is_any
from statewise.operators.masks import Masks, mask_time
from statewise.operators.state_shape import COUNT, leaf
from statewise.precision import full_precision, without_autocast

LEAST_SHARE = 1e-14  # of 1 - a^2, whose square root has no derivative at 0


class RGLRUState(NamedTuple):
    """convolution: the last inputs of the short convolution; h: (batch, d_inner); n_read: (batch,) int64, how many
    steps were read, since the first one counts in full.
    """

    convolution: ConvolutionState
    h: Tensor
    n_read: Tensor


@dataclass(frozen=True, kw_only=True)
class RGLRUConfig(MixerConfig):
    """Griffin's recurrent block, as RecurrentGemma has it.

    d_inner:  channels of the recurrence; None: d_model
    n_blocks: of the two gates' maps, which are block-diagonal
    exponent: c of log a = -c softplus(Lambda) r
    a_range:  exp(-c softplus(Lambda)) at the start, drawn so that its square is uniform

    Source: De et al. 2024, arXiv:2402.19427, sec. 2.4 and app. A.
    """

    d_inner: Count | None = None
    n_blocks: Count = 1
    n_taps: Count = 4
    exponent: Positive = 8.0
    a_range: PositiveRange = (0.9, 0.999)

    def build(self, d_model: int) -> RGLRU:
        return RGLRU(d_model, self)


class RGLRUDynamics(Dynamics):
    """log a = -c softplus(Lambda) r, a number for each channel."""

    def __init__(self, d_inner: int, config: RGLRUConfig) -> None:
        super().__init__()
        self.config = config
        self.Lambda = nn.Parameter(torch.empty(d_inner))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        low, high = (a**2 for a in self.config.a_range)
        with torch.no_grad():
            decay = -torch.empty_like(self.Lambda).uniform_(low, high).log() / (2 * self.config.exponent)
            self.Lambda.copy_(torch.log(torch.expm1(decay)))  # the inverse of softplus

    def forward(self, r: Tensor) -> Tensor:
        return -self.config.exponent * F.softplus(self.Lambda.to(r.dtype)) * r


class RGLRU(Mixer):
    """u = conv(W_x x), r = sigmoid(W_r u), i = sigmoid(W_i u), a_t = exp(-c softplus(Lambda) r_t);
    h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t u_t, and h = i u at the first step of a document; y = W_o (GELU(W_y x) * h).

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`RGLRUState`. ``in_proj.weight``: the rows of W_y,
             then of W_x (d_inner each)
    Cost:    for each token 3 d_model d_inner multiply-adds of the projections and 2 d_inner^2 / n_blocks of the gates
    Numerics: the recurrence in float32 or wider
    Errors:  ConfigError if n_blocks does not divide d_inner; InputError for shapes or states that do not fit.
    Source:  De et al. 2024, arXiv:2402.19427, eq. 1 to 4; the first step as in the published code.

    >>> mixer = RGLRUConfig(n_blocks=2).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 16]))
    """

    def __init__(self, d_model: int, config: RGLRUConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_inner = d_model if config.d_inner is None else config.d_inner
        if self.d_inner % config.n_blocks:
            raise ConfigError(
                f"RGLRUConfig.n_blocks={config.n_blocks} does not divide d_inner={self.d_inner}; use one that does"
            )
        width = self.d_inner // config.n_blocks
        self.in_proj = Linear(d_model, 2 * self.d_inner, parts=[self.d_inner] * 2)
        self.convolution = ShortConvolution(self.d_inner, config.n_taps)
        self.input_gates, self.recurrence_gates = (
            nn.ModuleList(Linear(width, width) for _ in range(config.n_blocks)) for _ in range(2)
        )
        self.dynamics = RGLRUDynamics(self.d_inner, config)
        self.out_proj = Linear(self.d_inner, d_model)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default for the maps (biases zero), the output's scaled."""
        gates = [m for m in (*self.input_gates, *self.recurrence_gates) if isinstance(m, Linear)]
        draw_default(self.in_proj, self.out_proj, *gates)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
        self.convolution.reset_parameters()
        self.dynamics.reset_parameters()

    def state_shape(self) -> RGLRUState:
        return RGLRUState(self.convolution.operator.state_shape(), leaf(self.d_inner), COUNT)

    def mix(self, x: Tensor, state: RGLRUState | None, masks: Masks) -> tuple[Tensor, RGLRUState | None]:
        y, u = self.in_proj(x).chunk(2, -1)
        u, convolution = self.convolution(u, None if state is None else state.convolution, masks=masks)
        dtype = (
            full_precision(x.dtype) if state is None else torch.promote_types(full_precision(x.dtype), state.h.dtype)
        )
        i, r = (self._gate(gates, u).to(dtype).sigmoid() for gates in (self.input_gates, self.recurrence_gates))
        begins = self._begins(u, state, masks).unsqueeze(-1)
        log_a = self.dynamics(r)
        share = (-torch.expm1(2 * log_a)).clamp(min=LEAST_SHARE).sqrt()
        added = i * u.to(dtype) * share.masked_fill(begins, 1)
        a = log_a.exp().masked_fill(begins, 0)
        if masks.valid is not None:
            added, a = mask_time(added, masks.valid), a.masked_fill(~masks.valid.unsqueeze(-1), 1)
        before = x.new_zeros(x.shape[0], self.d_inner, dtype=dtype) if state is None else state.h.to(dtype)
        if masks.starts is not None and x.shape[1]:
            before = before.masked_fill(masks.starts[:, :1], 0)  # even one that holds NaN
        if not is_any(x.shape[1]) and x.shape[1] == 1 and not is_exact():
            h = a * before.unsqueeze(1) + added
        else:
            with without_autocast(x.device):
                h = linear_scan(a, added, before)
        out = self.out_proj(gelu_tanh(y) * h.to(x.dtype))
        if state is None:
            return out, None
        n_read = state.n_read + (x.shape[1] if masks.lengths is None else masks.lengths)
        last = h[:, -1] if x.shape[1] else before
        return out, RGLRUState(convolution, last.to(state.h.dtype), n_read)

    def _gate(self, gates: nn.ModuleList, u: Tensor) -> Tensor:
        parts = u.split(self.d_inner // self.config.n_blocks, -1)
        return torch.cat([gate(part) for gate, part in zip(gates, parts)], -1)

    def _begins(self, u: Tensor, state: RGLRUState | None, masks: Masks) -> Tensor:
        """(batch, length) bool: whether a step is the first of its document."""
        first = torch.zeros(u.shape[:2], dtype=torch.bool, device=u.device)
        first[:, :1] = True if state is None else (state.n_read == 0).unsqueeze(-1)
        return first if masks.starts is None else first | masks.starts
