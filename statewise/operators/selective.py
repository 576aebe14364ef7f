"""The selective diagonal system of Mamba: its step size, input vector and output vector change with every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.pairs import as_complex
from statewise.kernels.selective_scan import METHODS, Arguments, selective_scan_unchecked
from statewise.kernels.selective_scan.reference import hold
from statewise.operators.base import Operator
from statewise.operators.masks import NO_MASKS, Masks, mask_time
from statewise.operators.plan import Rule, otherwise
from statewise.operators.state_shape import leaf
from statewise.precision import as_dtype, full_precision


class SelectiveState(NamedTuple):
    """h: (batch, d, *trailing, n), or (batch, d, *trailing, n, 2) where A, B or C is complex."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class SelectiveDiagonal(Operator):
    """h_t = exp(Delta_t A) h_{t-1} + Bbar_t u_t, y_t = (C_t h_t + D u_t) SiLU(gate_t), a state of n numbers a channel.

    Delta = dt + dt_bias, or with ``softplus`` log(1 + exp(dt + dt_bias)); without D there is no skip, without a gate no
    factor. If A, B or C is complex they are one of each conjugate pair, and 2 Re(C h) replaces C h.

    method:  "mamba", as published: Bbar = Delta B, the first term of "zoh". "zoh" is zero-order hold, exact for inputs
             that are constant within a step: Bbar = (exp(Delta A) - 1) / A B, and Delta B at A = 0. Both have the same
             A.
    Shapes:  dt, gate: (batch, length, d)   A: (d, n), with a real part <= 0   D, dt_bias: (d,)
             B, C: (batch, length, n_groups, n), a group shared by d / n_groups consecutive channels; n_groups = d gives
             each channel its own   u: (batch, length, d, *trailing)
    Forms:   ``recurrent``; ``scan``, O(length d n) in one kernel, which keeps a state for every chunk of steps if
             gradients are needed, and none otherwise.
    Errors:  InputError for shapes or dtypes that do not fit, or an unknown method.
    Source:  Gu & Dao 2023, arXiv:2312.00752, sec. 3.2, algorithm 2, and eq. 4 for zero-order hold; the code of that
             paper has Delta B instead.

    >>> _ = torch.manual_seed(0)
    >>> dt, B, C, u = torch.randn(1, 9, 4), torch.randn(1, 9, 1, 2), torch.randn(1, 9, 1, 2), torch.randn(1, 9, 4)
    >>> operator = SelectiveDiagonal(dt, -torch.rand(4, 2), B, C, softplus=True)
    >>> y, state = operator(u, operator.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 9, 4]), torch.Size([1, 4, 2]))
    """

    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    gate: Tensor | None = None
    dt_bias: Tensor | None = None
    softplus: bool = False
    method: str = "mamba"
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "scan")
    rules: ClassVar[tuple[Rule, ...]] = (
        otherwise("scan", "one kernel over all steps, without an array of states", condition="always"),
    )

    exact_form: ClassVar[str] = "scan"

    @property
    def time_varying(self) -> tuple[str, ...]:  # type: ignore[override]
        """The coefficients with a time axis: a gate only if there is one."""
        return ("dt", "B", "C") if self.gate is None else ("dt", "B", "C", "gate")

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.A.shape[0],)

    @property
    def is_complex(self) -> bool:
        return any(m.is_complex() for m in (self.A, self.B, self.C))

    def _like(self) -> Tensor:
        return self.A

    def state_shape(self, trailing: tuple[int, ...] = ()) -> SelectiveState:
        pair = (2,) if self.is_complex else ()
        return SelectiveState(leaf(self.A.shape[0], *trailing, self.A.shape[1], *pair))

    def step(self, u: Tensor, state: SelectiveState) -> tuple[Tensor, SelectiveState]:
        dtype = self._state_dtype(u)
        A, B, C = (self._computed_in(m, dtype) for m in (self.A, self.B, self.C))
        ones = [1] * (u.ndim - 2)
        d = A.shape[0]
        # (batch, d, 1 per trailing axis, n), and delta with n = 1
        B, C = (m.repeat_interleave(d // m.shape[1], 1).reshape(-1, d, *ones, m.shape[2]) for m in (B, C))
        delta = self._delta(dtype).reshape(-1, d, *ones, 1)
        x = u.to(dtype)
        A = A.reshape(d, *ones, -1)
        z = delta * A
        B_bar = (delta if self.method == "mamba" else hold(delta, A)) * B
        h = as_complex(state.h.to(dtype)) if self.is_complex else state.h.to(dtype)
        h = z.exp() * h + B_bar * x.unsqueeze(-1)
        y = (C * h).sum(-1)
        y = 2 * y.real if y.is_complex() else y
        if self.D is not None:
            y = y + self.D.to(dtype).reshape(d, *ones) * x
        if self.gate is not None:
            y = y * F.silu(self.gate.to(dtype)).reshape(-1, d, *ones)
        following = torch.view_as_real(h) if h.is_complex() else h
        return y.to(u.dtype), SelectiveState(following.to(state.h.dtype))

    def scan(self, u: Tensor, state: SelectiveState | None, masks: Masks = NO_MASKS) -> tuple[Tensor, SelectiveState]:
        """All steps by :func:`statewise.kernels.selective_scan`: trailing axes are channels with equal coefficients."""
        trailing = self._trailing(u)
        copies = math.prod(trailing)
        if state is None:
            state = self.initial_state(u.shape[0], trailing=trailing, device=u.device, dtype=self._state_dtype(u))

        def repeated(m: Tensor, axis: int) -> Tensor:
            if not trailing:
                return m
            m = m if m.is_complex() else m.to(full_precision(m.dtype))  # to add the gradients of the copies in
            return m.repeat_interleave(copies, axis)

        given = Arguments(
            u.flatten(2),
            repeated(self.dt, 2),
            repeated(self.A, 0),
            self.B,  # a group serves as many times more channels
            self.C,
            state.h.flatten(1, 1 + len(trailing)),
            D=None if self.D is None else repeated(self.D, 0),
            gate=None if self.gate is None else repeated(self.gate, 2),
            dt_bias=None if self.dt_bias is None else repeated(self.dt_bias, 0),
            segments=masks.segments,
            softplus=self.softplus,
            exact=self.method == "zoh",
        )
        y, h = selective_scan_unchecked(given)
        return y.reshape(u.shape), SelectiveState(as_dtype(h.reshape(state.h.shape), state.h.dtype))

    def step_sizes(self) -> Tensor:
        """Delta, (batch, length, d): dt with its bias and softplus, in float32 or wider."""
        return self._delta(full_precision(self.dt.dtype, self.A.real.dtype))

    def _delta(self, dtype: torch.dtype) -> Tensor:
        """The step sizes, from dt with or without its time axis."""
        dt = self.dt.to(dtype)
        if self.dt_bias is not None:
            dt = dt + self.dt_bias.to(dtype)
        return torch.logaddexp(dt, torch.zeros_like(dt)) if self.softplus else dt

    def _computed_in(self, m: Tensor, dtype: torch.dtype) -> Tensor:
        """In the dtype to compute in, complex if any coefficient is."""
        if self.is_complex:
            dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
        return m.to(dtype)

    def _mask(self, valid: Tensor) -> SelectiveDiagonal:
        """Where a step is not real Delta is exactly 0, so that the state passes unchanged: exp(0 A) = 1, 0 B = 0."""
        B, C = (mask_time(m, valid) for m in (self.B, self.C))
        gate = None if self.gate is None else mask_time(self.gate, valid)
        dt, bias = self.dt, self.dt_bias
        if self.softplus:
            dt = dt.masked_fill(~valid.unsqueeze(-1), -torch.inf)
        else:
            if bias is not None:  # as the kernel adds it: the sum of two half-precision numbers is not one
                dtype = full_precision(dt.dtype, bias.dtype)
                dt = dt.to(dtype) + bias.to(dtype)
            dt, bias = mask_time(dt, valid), None
        return replace(self, dt=dt, B=B, C=C, gate=gate, dt_bias=bias)

    def _check(self, u: Tensor) -> None:
        dt, A, B, C = self.dt, self.A, self.B, self.C
        fits = dt.ndim == 3 and A.ndim == 2 and B.ndim == 4 and B.shape == C.shape and B.shape[:2] == dt.shape[:2]
        fits = fits and dt.shape[2] == A.shape[0] and B.shape[3] == A.shape[1]
        if not (fits and B.shape[2] > 0 and A.shape[0] % B.shape[2] == 0):
            shapes = ", ".join(str(tuple(m.shape)) for m in (dt, A, B, C))
            raise InputError(
                "SelectiveDiagonal needs dt (batch, length, d), A (d, n), B and C (batch, length, n_groups, n) with "
                f"n_groups dividing d; got {shapes}"
            )
        d = A.shape[0]
        for name, m, shape in (("D", self.D, (d,)), ("dt_bias", self.dt_bias, (d,)), ("gate", self.gate, dt.shape)):
            if m is not None and m.shape != shape:
                raise InputError(f"SelectiveDiagonal needs {name} of shape {tuple(shape)}; got {tuple(m.shape)}")
        if u.ndim < 3 or u.shape[:3] != dt.shape:
            raise InputError(
                f"SelectiveDiagonal over (batch, length, d) = {tuple(dt.shape)} needs u of that shape, maybe with more "
                f"axes behind it; got {tuple(u.shape)}"
            )
        real = {"u": u, "dt": dt, "D": self.D, "gate": self.gate, "dt_bias": self.dt_bias}
        for name, m in real.items():
            if m is not None and not m.is_floating_point():
                raise InputError(f"SelectiveDiagonal needs a real {name} of a floating-point dtype; got {m.dtype}")
        for name, m in (("A", A), ("B", B), ("C", C)):
            if not (m.is_floating_point() or m.is_complex()):
                raise InputError(f"SelectiveDiagonal needs {name} of a floating-point or complex dtype; got {m.dtype}")
        if self.method not in METHODS:
            raise InputError(f"SelectiveDiagonal.method={self.method!r} is unknown; use one of {list(METHODS)}")

    def _state_dtype(self, u: Tensor) -> torch.dtype:
        return full_precision(u.dtype, *(m.dtype for m in (self.dt, self.A, self.B, self.C)))
