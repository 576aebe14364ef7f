"""H3: a shift SSM stores keys, a diagonal SSM stores the values paired with them, and queries read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, EvenCount, OneOf, Positive, PositiveRange
from statewise.errors import ConfigError
from statewise.mixers.base import Dynamics, MixerConfig
from statewise.mixers.prepared import PreparableMixer, wide
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.mixers.s4d import METHODS, S4DConfig, S4DDynamics
from statewise.mixers.time_invariant import as_complex
from statewise.operators.base import Operator
from statewise.operators.bidirectional import reverse, reversed_order
from statewise.operators.causal_convolution import CausalConvolution, ConvolutionState
from statewise.operators.diagonal import DiagonalLTI, DiagonalState
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import without_autocast


class H3State(NamedTuple):
    """shift: the last d_shift - 1 keys; ssm: (batch, n_heads, d_state / 2, 2), or with d_head > 1
    (batch, n_heads, d_head, d_head, d_state / 2, 2), the key's axis before the value's."""

    shift: ConvolutionState
    ssm: DiagonalState


@dataclass(frozen=True, kw_only=True)
class H3Config(MixerConfig):
    """H3 with its published defaults.

    d_state:  N, the order of each head's diagonal SSM: d_state / 2 complex pairs
    d_head:   the width of a head; d_model must be a multiple of it
    d_shift:  the order of the shift SSM: how many keys it sees; None: d_state
    dt_range: dt of the diagonal SSM is drawn log-uniformly from it
    method:   its discretisation, "bilinear" (as published) or "zoh"
    bias:     of the four projections
    weight_std: standard deviation of their weights at the start; 0.02 as published, for widths from 768
    bidirectional: second C and D read the same systems run backwards in time; then it has no state and cannot decode

    Source: Fu et al. 2023 (H3), arXiv:2212.14052, sec. 3.2, and the ``H3`` module of its code.
    """

    d_state: EvenCount = 64
    d_head: Count = 1
    d_shift: Count | None = None
    dt_range: PositiveRange = (1e-3, 1e-1)
    method: Annotated[str, OneOf(METHODS)] = "bilinear"
    bias: bool = True
    weight_std: Positive = WEIGHT_STD
    bidirectional: bool = False

    def build(self, d_model: int) -> H3:
        return H3(d_model, self)


class H3Dynamics(Dynamics):
    """B of the shift SSM (d_model, d_shift), and log_decay, frequency, B, log_dt of the diagonal one, as in S4D."""

    def __init__(self, d_model: int, n_heads: int, d_shift: int, config: H3Config) -> None:
        super().__init__()
        self.shift_B = nn.Parameter(torch.empty(d_model, d_shift))
        self.diagonal = S4DDynamics(
            n_heads,
            S4DConfig(d_state=config.d_state, initialization="lin", method=config.method, dt_range=config.dt_range),
        )

    def reset_parameters(self) -> None:
        """The shift SSM's input enters at the first place of its state; the diagonal SSM is S4D-Lin."""
        with torch.no_grad():
            self.shift_B.zero_()[:, 0] = 1.0
        self.diagonal.reset_parameters()

    def forward(self) -> tuple[Tensor, Tensor]:
        """The discrete A and B of the diagonal SSM, (n_heads, d_state / 2).

        The bilinear rule in plain arithmetic, a quarter of the operations of
        :func:`statewise.systems.discretize_diagonal`, which of all operations in a training step of a small model would
        be half. Exact to a few roundings of 1, instead of each entry's own: a pole that hardly decays may
        come out as much beyond 1.
        """
        diagonal = self.diagonal
        if diagonal.config.method != "bilinear" or diagonal.frequency is None or diagonal.B is None:
            return diagonal(1.0)
        dt = wide(diagonal.log_dt).exp().unsqueeze(-1)
        A = torch.complex(-wide(diagonal.log_decay).exp(), wide(diagonal.frequency))
        inverse = (1 - (0.5 * dt) * A).reciprocal()
        return 2 * inverse - 1, (dt * inverse) * as_complex(diagonal.B)  # (1 + z) / (1 - z) = 2 / (1 - z) - 1


class H3Readout(nn.Module):
    """What is read from the states: shift_C (d_model, d_shift) and C (n_heads, d_state / 2, 2), with the skips shift_D
    (d_model,) and D (n_heads,)."""

    def __init__(self, d_model: int, n_heads: int, d_shift: int, config: H3Config) -> None:
        super().__init__()
        self.shift_C = nn.Parameter(torch.empty(d_model, d_shift))
        self.shift_D = nn.Parameter(torch.empty(d_model))
        self.C = nn.Parameter(torch.empty(n_heads, config.d_state // 2, 2))
        self.D = nn.Parameter(torch.empty(n_heads))

    def reset_parameters(self) -> None:
        """shift_C uniform in +-1/sqrt(d_shift), as the taps of a depthwise convolution: the published code's
        ``kaiming_uniform_(a=sqrt(5))`` of a tensor (d_model, 1, d_shift), whose axes it exchanges only then. All else
        normal of variance 1, half of it in each part of C."""
        bound = self.shift_C.shape[1] ** -0.5
        nn.init.uniform_(self.shift_C, -bound, bound)
        nn.init.normal_(self.C, std=math.sqrt(0.5))
        for skip in (self.shift_D, self.D):
            nn.init.normal_(skip)


class H3(PreparableMixer):
    """Q, K, V = W u + b; K' = SSM_shift(K); S^h = SSM_diag^h(K'_h V_h^T) for each head; y = W_O [Q_h^T S^h] + b_O.

    Each head has one diagonal SSM, shared by the d_head x d_head entries of the outer product. Everywhere the first of
    their two axes is the key's (and the query's, which is summed over), the second the value's. With d_head = 1 this is
    Q * SSM_diag(SSM_shift(K) * V). Both systems have a skip. The shift SSM is a convolution with d_shift taps.

    Bidirectional, all between the projections is done for the reversed sequence as well, and added: there a key is
    stored with the value in front of it. ``backward_readout`` holds what it reads the same systems with.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`H3State`. ``in_proj.weight`` is one
             (3 d_model, d_model): the rows of q, of k, of v, and in each of them head by head.
    Cost:    for each token 4 d_model^2 multiply-adds of the projections, and the two systems as convolutions over
             d_model and d_model d_head channels. The state holds d_model (d_shift - 1 + d_head d_state) numbers.
             ``freeze()`` before decoding.
    Errors:  ConfigError if d_head does not divide d_model; InputError for shapes or states that do not fit.
    Source:  Fu et al. 2023 (H3), arXiv:2212.14052, sec. 3.2, algorithm 1.

    >>> mixer = H3Config(d_state=8, d_head=2).build(d_model=4)
    >>> y, state = mixer(torch.randn(1, 20, 4), mixer.initial_state(batch=1))
    >>> y.shape, state.shift.inputs.shape, state.ssm.h.shape
    (torch.Size([1, 20, 4]), torch.Size([1, 7, 4]), torch.Size([1, 2, 2, 2, 4, 2]))
    """

    def __init__(self, d_model: int, config: H3Config) -> None:
        if d_model % config.d_head:
            raise ConfigError(
                f"d_model={d_model} is not a multiple of H3Config.d_head={config.d_head}; "
                "use a head width that divides it"
            )
        super().__init__()
        self.rate = None  # the shift SSM counts steps, so that a dt alone cannot stand for another sampling rate
        self.d_model, self.config = d_model, config
        self.is_causal = not config.bidirectional
        self.n_heads = d_model // config.d_head
        self.d_shift = config.d_state if config.d_shift is None else config.d_shift
        self.in_proj = Linear(d_model, 3 * d_model, bias=config.bias, parts=(d_model,) * 3)
        self.dynamics = H3Dynamics(d_model, self.n_heads, self.d_shift, config)
        self.readout = H3Readout(d_model, self.n_heads, self.d_shift, config)
        own = config.bidirectional
        self.backward_readout = H3Readout(d_model, self.n_heads, self.d_shift, config) if own else None
        self.out_proj = Linear(d_model, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As published: the projections normal of standard deviation ``weight_std``, biases zero.

        ``residual_scale`` is not used. The published code scales the residual projections that it knows by name, and
        H3's own is not among them.
        """
        self._refuse_if_frozen("cannot draw its parameters again")
        draw_normal(self.config.weight_std, self.in_proj, self.out_proj)
        self.dynamics.reset_parameters()
        for readout in (self.readout, self.backward_readout):
            if readout is not None:
                readout.reset_parameters()

    def build_operators(self) -> list[Operator]:
        """The shift SSM as a convolution, and the discrete diagonal SSM, each with its skip; for each direction."""
        shift_B = wide(self.dynamics.shift_B)
        A, B = self.dynamics()
        operators: list[Operator] = []
        for readout in (self.readout, self.backward_readout):
            if readout is not None:
                shift = CausalConvolution.from_shift(shift_B, wide(readout.shift_C), wide(readout.shift_D))
                operators += [shift, DiagonalLTI(A, B, as_complex(readout.C), wide(readout.D))]
        return operators

    def state_shape(self) -> H3State:
        d_head = self.config.d_head
        entries = () if d_head == 1 else (d_head, d_head)
        ssm = DiagonalState(leaf(self.n_heads, *entries, self.config.d_state // 2, 2))
        return H3State(ConvolutionState(leaf(self.d_shift - 1, self.d_model)), ssm)

    def mix(self, x: Tensor, state: H3State | None, masks: Masks) -> tuple[Tensor, H3State | None]:
        q, k, v = wide(self.in_proj(x)).chunk(3, -1)
        with without_autocast(x.device):
            shift, diagonal, *backward = self.operators
            y, state = self._recall(shift, diagonal, q, k, v, state, masks)
            if backward:
                order = reversed_order(x, masks)
                q, k, v = (reverse(m, order) for m in (q, k, v))
                shift, diagonal = backward
                behind, _ = self._recall(shift, diagonal, q, k, v, None, masks)
                y = y + reverse(behind, order)
        return self.out_proj(y.to(x.dtype)), state

    def _recall(
        self,
        shift: Operator,
        diagonal: Operator,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: H3State | None,
        masks: Masks,
    ) -> tuple[Tensor, H3State | None]:
        """Stores keys with values and reads them by the queries: (batch, length, d_model)."""
        before, before_ssm = (None, None) if state is None else state
        k, keys = shift.apply(k, before, masks)
        if self.config.d_head == 1:
            stored, ssm = diagonal.apply(k * v, before_ssm, masks)
            y = q * stored
        else:
            q, k, v = (m.unflatten(-1, (self.n_heads, self.config.d_head)) for m in (q, k, v))
            pairs = k.unsqueeze(-1) @ v.unsqueeze(-2)
            stored, ssm = diagonal.apply(pairs, before_ssm, masks)
            y = (q.unsqueeze(-2) @ stored).flatten(-3)
        return y, None if state is None else H3State(keys, ssm)
