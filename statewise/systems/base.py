"""What a continuous and a discrete system share: their shapes, their poles, whether they are stable."""

from __future__ import annotations

import abc
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.double_word import real_dtype
from statewise.systems.rules import check_dtypes


class Matrices(NamedTuple):
    """All axes there: A (..., n, n) or (..., n), B (..., n, m), C (..., p, n), D (..., p, m)."""

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor


@dataclass(frozen=True, eq=False)
class System(abc.ABC):
    """A linear time-invariant system of n states, m inputs and p outputs, or a batch of them.

    Shapes:  A: (..., n, n), or with ``diagonal=True`` its diagonal (..., n)
             B: (..., n) for one input, (..., n, m) for m
             C: (..., n) for one output, (..., p, n) for p; None where only the states matter
             D: (...), (..., p), (..., m) or (..., p, m), as B and C say; None for no direct path
             The leading axes are the same in number and broadcast. An axis that B or C lacks, inputs, outputs and
             responses lack too.
    Errors:  InputError for shapes, dtypes (one for all: float32, float64, complex64, complex128), NaN, infinity.

    Complex coefficients are taken literally: y = C x + D u is complex. (The operators of S4 and S4D keep one of
    each pair of conjugates and write 2 Re.)
    """

    A: Tensor
    B: Tensor
    C: Tensor | None = None
    D: Tensor | None = None
    _: KW_ONLY
    diagonal: bool = False

    def __post_init__(self) -> None:
        given = {name: z for name, z in (("A", self.A), ("B", self.B), ("C", self.C), ("D", self.D)) if z is not None}
        check_dtypes(**given)
        shapes = ", ".join(f"{name} {tuple(z.shape)}" for name, z in given.items())
        own = 1 if self.diagonal else 2
        if self.A.ndim < own or self.A.shape[-own] != self.A.shape[-1] or not self.A.shape[-1]:
            kind = (
                "(..., n), n > 0, with diagonal=True" if self.diagonal else "(..., n, n), n > 0 (or pass diagonal=True)"
            )
            raise InputError(f"A must be {kind}; got {shapes}")
        n, leading = self.A.shape[-1], self.A.ndim - own
        inputs = self.B.ndim - leading
        outputs = 1 if self.C is None else self.C.ndim - leading
        if inputs not in (1, 2) or outputs not in (1, 2):
            raise InputError(f"B must be (..., n) or (..., n, m), C (..., n) or (..., p, n), like A; got {shapes}")
        ends = {"B": (n, *self.B.shape[leading + 1 :])}
        if self.C is not None:
            ends["C"] = (*self.C.shape[leading:-1], n)
        if self.D is not None:
            if self.C is None:
                raise InputError("a system with D needs C; give both or neither")
            ends["D"] = (*ends["C"][:-1], *ends["B"][1:])
        for name, end in ends.items():
            if given[name].ndim != leading + len(end) or tuple(given[name].shape[leading:]) != end:
                wanted = ", ".join(["...", *map(str, end)])
                raise InputError(f"{name} must be ({wanted}) with {leading} leading axes; got {shapes}")
        try:
            torch.broadcast_shapes(*(z.shape[:leading] for z in given.values()))
        except RuntimeError:
            raise InputError(f"the leading axes do not broadcast: {shapes}") from None
        for name, z in given.items():
            if not bool(z.detach().isfinite().all()):
                raise InputError(f"{name} holds NaN or infinity")

    @property
    def leading(self) -> tuple[int, ...]:
        """The leading axes: () for one system."""
        n_axes = self.A.ndim - (1 if self.diagonal else 2)
        given = [z for z in (self.A, self.B, self.C, self.D) if z is not None]
        return tuple(torch.broadcast_shapes(*(z.shape[:n_axes] for z in given)))

    @property
    def single_input(self) -> bool:
        return self.B.ndim == self.A.ndim - (0 if self.diagonal else 1)

    @property
    def single_output(self) -> bool:
        if self.C is None:
            raise InputError("this system has no C, so it has no outputs; give it a C")
        return self.C.ndim == self.A.ndim - (0 if self.diagonal else 1)

    def poles(self) -> Tensor:
        """The eigenvalues of A, complex, in no order: (..., n)."""
        if self.diagonal:
            return self.A + 0j
        return torch.linalg.eigvals(self.A)

    def is_stable(self) -> Tensor:
        """Whether no mode grows, (...) bool: real parts at most 0, or moduli at most 1 if the system is discrete.

        Modes on the border count as stable (an integrator, an undamped oscillator); for dense A within the rounding
        of an eigenvalue, n times the last place of the largest. Repeated poles on the border may still grow, by a
        power of time.
        """
        poles = self.poles().detach()
        if self.diagonal:
            return (self._growth(poles) <= 0).all(-1)
        rounding = poles.shape[-1] * torch.finfo(poles.dtype).eps * poles.abs().amax(-1, keepdim=True)
        return (self._growth(poles) <= rounding).all(-1)

    def require_stable(self) -> Self:
        """The system itself; InputError if one of its modes grows. Nothing else here asks for stability."""
        if not bool(self.is_stable().all()):
            growth = self._growth(self.poles().detach())
            worst = self.poles().detach().flatten()[growth.flatten().argmax()].item()
            raise InputError(f"the system has a pole at {worst:.4g}, which grows; {self._stable_means}")
        return self

    _stable_means = ""

    @abc.abstractmethod
    def _growth(self, poles: Tensor) -> Tensor:
        """Above zero for poles whose modes grow."""

    def _matrices(self) -> Matrices:
        B = self.B.unsqueeze(-1) if self.single_input else self.B
        if self.C is None:
            raise InputError("this system has no C, so it has no outputs; give it a C")
        C = self.C.unsqueeze(-2) if self.single_output else self.C
        if self.D is None:
            D = self.A.new_zeros(*[1] * len(self.leading), C.shape[-2], B.shape[-1])
        else:
            D = self.D.unsqueeze(-1) if self.single_input else self.D
            D = D.unsqueeze(-2) if self.single_output else D
        return Matrices(self.A, B, C, D)

    def _with(self, A: Tensor, B: Tensor, C: Tensor | None, *, diagonal: bool = False) -> Self:
        """The system with these, (..., n, m) and (..., p, n), in its precision and without the axes that it lacks."""
        dtype = self.A.dtype.to_complex() if A.is_complex() else self.A.dtype
        A, B = A.to(dtype), (B.squeeze(-1) if self.single_input else B).to(dtype)
        C = None if C is None else (C.squeeze(-2) if self.single_output else C).to(dtype)
        D = None if self.D is None else self.D.to(dtype)
        return replace(self, A=A, B=B, C=C, D=D, diagonal=diagonal)

    def _squeeze(self, response: Tensor) -> Tensor:
        """(..., p, m, k) without the axes that C and B lack."""
        response = response.squeeze(-2) if self.single_input else response
        return response.squeeze(-2 if self.single_input else -3) if self.single_output else response

    def _resolvent(self, z: Tensor, matrices: Matrices) -> Tensor:
        """C (z I - A)^-1 B at points z (..., f), complex: (..., p, m, f)."""
        A, B, C, _ = (m.to(z.dtype) for m in matrices)
        if self.diagonal:
            inverse = z.unsqueeze(-1) - A.unsqueeze(-2)
            if bool((inverse == 0).any()):
                raise InputError(
                    "omega is a pole on the border of stability, where the response is infinite; leave it out"
                )
            return torch.einsum("...pn,...fn,...nm->...pmf", C, 1 / inverse, B)
        identity = torch.eye(A.shape[-1], dtype=z.dtype, device=z.device)
        matrix = z[..., None, None] * identity - A.unsqueeze(-3)
        try:
            states = torch.linalg.solve(matrix, B.unsqueeze(-3).expand(*matrix.shape[:-2], *B.shape[-2:]))
        except torch.linalg.LinAlgError:
            raise InputError(
                "omega is a pole on the border of stability, where the response is infinite; leave it out"
            ) from None
        return torch.einsum("...pn,...fnm->...pmf", C, states)


def check_omega(omega: Tensor, A: Tensor) -> None:
    real = real_dtype(A)
    if not isinstance(omega, Tensor) or omega.ndim != 1 or omega.dtype != real:
        given = f"{omega.dtype} {tuple(omega.shape)}" if isinstance(omega, Tensor) else type(omega).__name__
        raise InputError(f"omega must be a vector of frequencies (f,) in {real}; got {given}")
