"""Systems in steps: x_k = A x_{k-1} + B u_k, y_k = C x_k + D u_k."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.base import System, check_omega
from statewise.systems.double_word import real_dtype
from statewise.systems.rules import is_number


@dataclass(frozen=True, eq=False)
class DiscreteSystem(System):
    """x_k = A x_{k-1} + B u_k and y_k = C x_k + D u_k: the state reads u_k, then the output reads the state.

    ``reads="before"`` is the other convention, y_k = C x_{k-1} + D u_k, which first-order hold needs and which
    control theory and SciPy use (they call our x_{k-1} x_k). ``dt`` is the time between steps, broadcast over the
    leading axes; it gives frequencies their unit.

    Shapes:  as :class:`System`   dt: (...), real
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, eq. 3.
    """

    dt: Tensor | float = 1.0
    _: KW_ONLY
    reads: Literal["after", "before"] = "after"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reads not in ("after", "before"):
            raise InputError(f"reads={self.reads!r} is unknown; use 'after' or 'before' (the input of its step)")
        if not isinstance(self.dt, Tensor) and not is_number(self.dt):
            raise InputError(f"dt must be real and positive, got {self.dt!r}")
        dt = self.dt if isinstance(self.dt, Tensor) else torch.tensor(float(self.dt), dtype=real_dtype(self.A))
        if dt.is_complex() or not dt.is_floating_point() or not bool(((dt > 0) & dt.isfinite()).all()):
            raise InputError(f"dt must be real, positive and finite, got {self.dt}")
        try:
            torch.broadcast_shapes(dt.shape, self.leading)
        except RuntimeError:
            raise InputError(f"dt {tuple(dt.shape)} does not broadcast with the systems {self.leading}") from None
        object.__setattr__(self, "dt", dt.to(self.A.device))

    _stable_means = "a stable discrete system has no pole outside the unit circle"

    def _growth(self, poles: Tensor) -> Tensor:
        return poles.abs() - 1

    def initial_state(self) -> Tensor:
        """The state at rest, (..., n)."""
        return self.A.new_zeros(*self.leading, self.A.shape[-1])

    def simulate(self, u: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The outputs for inputs u, step by step: the definition that faster forms are tested against.

        With ``state=None`` the system starts from rest and returns None. Otherwise it returns the state after the last
        step, so you can cut a signal anywhere.

        Shapes:  u: (..., length) for one input, (..., length, m) for m   state: (..., n)
                 ->   y: (..., length) or (..., length, p), the state (..., n); leading axes broadcast with the
                 systems'
        Cost:    O(length n^2), O(length n) for diagonal A; all states are in memory.
        Errors:  InputError for wrong shapes and dtypes; u is real in the system's precision, or complex for a complex
                  system.
        """
        A, B, C, D = self._matrices()
        u = self._input(u)
        leading = torch.broadcast_shapes(u.shape[:-2], self.leading)
        n = A.shape[-1]
        if state is not None:
            if not isinstance(state, Tensor):
                raise InputError(f"state must be (..., {n}) in {A.dtype}; got {type(state).__name__}")
            if state.dtype != A.dtype or not state.ndim or state.shape[-1] != n:
                raise InputError(f"state must be (..., {n}) in {A.dtype}; got {state.dtype} {tuple(state.shape)}")
            try:
                leading = torch.broadcast_shapes(leading, state.shape[:-1])
            except RuntimeError:
                raise InputError(f"state {tuple(state.shape)} does not fit the leading axes {leading}") from None
        x = A.new_zeros(*leading, n) if state is None else state.expand(*leading, n)
        driven = torch.einsum("...nm,...lm->...ln", B, u).expand(*leading, u.shape[-2], n)
        states = [x]
        for step in driven.unbind(-2):
            x = (A * x if self.diagonal else (A @ x.unsqueeze(-1)).squeeze(-1)) + step
            states.append(x)
        read = torch.stack(states, -2)
        read = read[..., 1:, :] if self.reads == "after" else read[..., :-1, :]
        y = torch.einsum("...pn,...ln->...lp", C, read) + torch.einsum("...pm,...lm->...lp", D, u)
        return y.squeeze(-1) if self.single_output else y, None if state is None else x

    def reading_before(self) -> DiscreteSystem:
        """The same map from inputs to outputs with ``reads="before"``: y_k = C A x_{k-1} + (C B + D) u_k.

        Its state is the same. A system that reads before its input is returned as it is.

        Errors:  InputError for a system without C.
        """
        if self.reads == "before":
            return self
        A, B, C, D = self._matrices()
        moved = self._with(A, B, C * A.unsqueeze(-2) if self.diagonal else C @ A, diagonal=self.diagonal)
        direct = self._squeeze((C @ B + D).unsqueeze(-1)).squeeze(-1)
        return replace(moved, D=direct, reads="before")

    def impulse_response(self, length: int) -> Tensor:
        """The outputs after u = 1, 0, 0, ...: K_k = C A^k B, plus D at k = 0.

        y is the causal convolution of u with it. (With ``reads="before"``: D, then C A^(k-1) B.)

        Shapes:  -> (..., length), with axes p and m before it if there are several outputs or inputs
        Cost:    O(length n^2) work and O(log length) products of matrices; states of all steps in memory.
        """
        if not isinstance(length, int) or length < 1:
            raise InputError(f"length must be a whole number of steps above 0, got {length!r}")
        A, B, C, D = self._matrices()
        powers = B.expand(*self.leading, *B.shape[-2:]).unsqueeze(-3)  # (..., steps, n, m): doubled until long enough
        square = A.unsqueeze(-1) if self.diagonal else A  # A^steps
        while powers.shape[-3] < length:
            next_powers = square.unsqueeze(-3)
            powers = torch.cat([powers, next_powers * powers if self.diagonal else next_powers @ powers], -3)
            square = square * square if self.diagonal else square @ square
        response = torch.einsum("...pn,...knm->...pmk", C, powers[..., :length, :, :])
        direct = D.unsqueeze(-1).expand(*response.shape[:-1], 1)
        if self.reads == "before":
            response = torch.cat([direct, response[..., : length - 1]], -1)
        else:
            response = torch.cat([response[..., :1] + direct, response[..., 1:]], -1)
        return self._squeeze(response)

    def frequency_response(self, omega: Tensor) -> Tensor:
        """H = C (I - A / z)^-1 B + D at z = exp(i omega dt): the z-transform of the impulse response, complex.

        (With ``reads="before"``: C (z I - A)^-1 B + D.)

        Shapes:  omega: (f,), radians per unit of time   ->   (..., f), with axes p and m before it as for
                 :meth:`impulse_response`
        Errors:  InputError if omega is a pole on the unit circle.
        """
        check_omega(omega, self.A)
        assert isinstance(self.dt, Tensor)
        angle = omega * self.dt.to(omega.dtype).unsqueeze(-1)
        z = torch.polar(torch.ones_like(angle), angle)
        matrices = self._matrices()
        response = self._resolvent(z, matrices)
        if self.reads == "after":
            response = response * z[..., None, None, :]
        return self._squeeze(response + matrices.D.unsqueeze(-1))

    def _input(self, u: Tensor) -> Tensor:
        """u as (..., length, m) in the system's dtype."""
        real = real_dtype(self.A)
        n_inputs = 1 if self.single_input else self.B.shape[-1]
        wanted = "(..., length)" if self.single_input else f"(..., length, {n_inputs})"
        shaped = isinstance(u, Tensor) and u.ndim >= (1 if self.single_input else 2)
        if not shaped or u.dtype not in (real, self.A.dtype) or (not self.single_input and u.shape[-1] != n_inputs):
            given = f"{u.dtype} {tuple(u.shape)}" if isinstance(u, Tensor) else type(u).__name__
            raise InputError(f"u must be {wanted} in {real}; got {given}")
        u = (u.unsqueeze(-1) if self.single_input else u).to(self.A.dtype)
        try:
            torch.broadcast_shapes(u.shape[:-2], self.leading)
        except RuntimeError:
            raise InputError(f"u {tuple(u.shape)} does not fit the leading axes {self.leading} of the system") from None
        return u
