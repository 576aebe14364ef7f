"""The tensors of one published S4 or S4D layer, and the numbers of ours: what is copied, and what is computed.

Theirs, with S systems for H channels, ch outputs of each (twice as many C where both directions are read), rank R and
n = N/2 complex pairs: inv_dt (H, 1), A_real and A_imag (S, n), B (1, S, n, 2), C (ch, H, n, 2), P (R, S, n, 2),
l_kernel (), D (ch, H). Their A is -f(A_real) - i A_imag, and -P P* is added to it in S4.

Two things are computed, in float64. In S4 their C is the one for a filter of l_kernel taps, C~ = C (I - Abar^L); ours
is C itself, so C = C~ (I - Abar^L)^-1. In both directions their backward filter begins at the step after the present
one, ours at the present one; so ours reads with C Abar^-1, and the one tap that this adds is taken off D:
D - 2 Re(C Abar^-1 Bbar).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, require_shape
from statewise.checkpoints.convert.fields import LARGEST_COUNT
from statewise.errors import CheckpointError, excerpt
from statewise.kernels.pairs import as_complex

# How a positive number may be stored: by the inverse of one of these.
POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "exp": torch.exp,
    "relu": lambda x: F.relu(x) + 1e-4,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
}


_Systems = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # log dt, log decay, frequency, B, P


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One layer's systems as they are stored.

    names:         of theirs, by the names of the last version; "P" and "l_kernel" are there in S4 and not in S4D, and
                   where "B" is not, it is 1
    dt_transform, real_transform, imag_transform: names of ``POSITIVE``
    imag_sign:     -1 where A has -A_imag (version 4), 1 where it has A_imag (before)
    shared_B:      B has a leading axis of 1
    method:        of S4D: "zoh" or "bilinear"; S4 is always bilinear
    """

    names: dict[str, str]
    d_model: int
    n_heads: int
    n_systems: int
    n: int
    rank: int = 0
    bidirectional: bool = False
    dt_transform: str = "exp"
    real_transform: str = "exp"
    imag_transform: str = "none"
    imag_sign: int = -1
    dt_axis: bool = True
    D_axis: bool = True
    shared_B: bool = True
    method: str = "bilinear"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of their tensors, by the names of the last version."""
        H, S, n, ch = self.d_model, self.n_systems, self.n, self.n_heads
        shapes: dict[str, tuple[int, ...]] = {
            "inv_dt": (H, 1) if self.dt_axis else (H,),
            "A_real": (S, n),
            "A_imag": (S, n),
            "B": (1, S, n, 2) if self.shared_B else (S, n, 2),
            "C": (ch * (2 if self.bidirectional else 1), H, n, 2) if self.D_axis else (H, n, 2),
            "P": (self.rank, S, n, 2),
            "l_kernel": (),
            "D": (ch, H) if self.D_axis else (H,),
        }
        return {name: shapes[name] for name in self.names}

    def entry(self, ours: str) -> Entry:
        """All of it as one entry; ``ours`` is the name of our mixer, with its dot."""
        targets = [f"{ours}dynamics.log_dt", f"{ours}dynamics.log_decay", f"{ours}dynamics.frequency"]
        targets += [f"{ours}dynamics.{name}" for name in ("B", "P") if name in self.names]
        targets += [f"{ours}readout.C", f"{ours}readout.D"]
        if self.bidirectional:
            targets.append(f"{ours}readout.C_backward")
        return Entry(tuple(self.names.values()), tuple(targets), self._to_ours, self._to_theirs)

    def _to_ours(self, *given: Tensor) -> tuple[Tensor, ...]:
        theirs = dict(zip(self.names, given, strict=True))
        for name, shape in self.shapes.items():
            require_shape(self.names[name], theirs[name], shape)
        H = self.d_model
        log_dt = _log_of(theirs["inv_dt"].reshape(H), self.dt_transform)
        log_decay = _log_of(theirs["A_real"], self.real_transform)
        frequency = self.imag_sign * POSITIVE[self.imag_transform](theirs["A_imag"])
        found = [log_dt, log_decay, frequency]
        if "B" in theirs:
            found.append(theirs["B"].reshape(self.n_systems, self.n, 2))
        if "P" in theirs:
            found.append(theirs["P"].transpose(0, 1))
        C = theirs["C"].reshape(-1, H, self.n, 2).transpose(0, 1)
        D = theirs["D"].reshape(-1, H).T
        length = _taps(self.names["l_kernel"], theirs["l_kernel"]) if "l_kernel" in theirs else 0
        if length or self.bidirectional:
            systems = log_dt, log_decay, frequency, theirs.get("B"), theirs.get("P")
            return tuple(x.contiguous() for x in (*found, *self._computed(C, D, length, systems)))
        return tuple(x.contiguous() for x in (*found, C, D))

    def _computed(self, C: Tensor, D: Tensor, length: int, systems: _Systems) -> tuple[Tensor, ...]:
        """C, D, and in both directions the C of the backward one.

        Errors:  CheckpointError where the systems have no such C: (I - Abar^L) or Abar has no inverse, or overflows.
        """
        try:
            system = self._system(*systems)
            found: tuple[Tensor, ...] = (system.untruncated(C, length) if length else C, D)
            if self.bidirectional:
                ahead, behind = found[0][:, : self.n_heads], found[0][:, self.n_heads :]
                behind, tap = system.one_step_later(behind)
                found = ahead, (D.double() - tap).to(D.dtype), behind
        except torch.linalg.LinAlgError:
            found = ()
        if not found or not all(torch.isfinite(x).all() for x in found):
            names = ", ".join(self.names[name] for name in ("inv_dt", "A_real", "A_imag", "P") if name in self.names)
            raise CheckpointError(
                f"{self.names['C']} is not determined by the systems of {names}, which overflow or do not change at "
                "all; expected systems that decay: check these tensors, and the config's dt_transform"
            )
        return found

    def _to_theirs(self, *given: Tensor) -> tuple[Tensor, ...]:
        """In the transforms "exp" and "none", with C itself, which is what l_kernel = 0 says."""
        left = list(given)
        log_dt, log_decay, frequency = left[:3]
        del left[:3]
        B = left.pop(0) if "B" in self.names else None
        P = left.pop(0).transpose(0, 1) if "P" in self.names else None
        C, D, *behind = left
        if behind:
            system = self._system(log_dt, log_decay, frequency, B, P)
            before, tap = system.one_step_earlier(behind[0])
            C, D = torch.cat((C, before), 1), (D.double() + tap).to(D.dtype)
        found = {
            "inv_dt": log_dt,
            "A_real": log_decay,
            "A_imag": self.imag_sign * frequency,
            "B": B,
            "C": C.transpose(0, 1),
            "P": P,
            "l_kernel": torch.tensor(0),
            "D": D.T,
        }
        shapes = self.shapes
        return tuple(_present(found[name]).reshape(shapes[name]).contiguous() for name in self.names)

    def _system(
        self, log_dt: Tensor, log_decay: Tensor, frequency: Tensor, B: Tensor | None, P: Tensor | None
    ) -> DiscreteSystems:
        A = torch.complex(-log_decay.double().exp(), frequency.double()).repeat(self.d_model // self.n_systems, 1)
        dt = log_dt.double().exp()[:, None]
        b = torch.ones_like(A)
        if B is not None:
            b = _complex(B.reshape(self.n_systems, self.n, 2)).repeat(self.d_model // self.n_systems, 1)
        if P is None:
            return DiscreteSystems.diagonal(A, b, dt, self.method)
        low_rank = _complex(P).repeat(1, self.d_model // self.n_systems, 1)  # (rank, d_model, n)
        return DiscreteSystems.dense(A, low_rank, b, dt)


@dataclass(frozen=True)
class DiscreteSystems:
    """h_t = A h_{t-1} + B u_t for each channel, with the conjugate of each state beside it, in complex128.

    Shapes:  A: (d_model, 2 n, 2 n)   B: (d_model, 2 n)
    """

    A: Tensor
    B: Tensor

    @classmethod
    def diagonal(cls, A: Tensor, B: Tensor, dt: Tensor, method: str) -> DiscreteSystems:
        if method == "zoh":
            step, entering = (dt * A).exp(), B * torch.expm1(dt * A) / A
        else:
            step, entering = (1 + dt * A / 2) / (1 - dt * A / 2), B * dt / (1 - dt * A / 2)
        return cls(torch.diag_embed(_with_conjugates(step)), _with_conjugates(entering))

    @classmethod
    def dense(cls, A: Tensor, P: Tensor, B: Tensor, dt: Tensor) -> DiscreteSystems:
        """The bilinear rule for A - P P*; P: (rank, d_model, n)."""
        P = _with_conjugates(P)
        half = torch.diag_embed(_with_conjugates(A)) - torch.einsum("rhn,rhm->hnm", P, P.conj())
        half = half * dt[..., None] / 2
        one = torch.eye(half.shape[-1], dtype=half.dtype)
        entering = dt * _with_conjugates(B)
        solved = torch.linalg.solve(one - half, torch.cat((one + half, entering[..., None]), -1))
        return cls(solved[..., :-1], solved[..., -1])

    def untruncated(self, C: Tensor, length: int) -> Tensor:
        """C of C (I - A^length)."""
        one = torch.eye(self.A.shape[-1], dtype=self.A.dtype)
        return self._solve(one - torch.linalg.matrix_power(self.A, length), C)

    def one_step_later(self, C: Tensor) -> tuple[Tensor, Tensor]:
        """C A^-1, and what a system with it gives at once: 2 Re(C A^-1 B), (d_model, heads)."""
        later = self._solve(self.A, C)
        return later, self._tap(later)

    def one_step_earlier(self, C: Tensor) -> tuple[Tensor, Tensor]:
        """The way back: C A, and 2 Re(C B)."""
        found = torch.einsum("hcn,hnm->hcm", _with_conjugates(_complex(C)), self.A)
        return _halved(found, C), self._tap(C)

    def _tap(self, C: Tensor) -> Tensor:
        return torch.einsum("hcn,hn->hc", _with_conjugates(_complex(C)), self.B).real

    def _solve(self, matrix: Tensor, C: Tensor) -> Tensor:
        """x of x matrix = C; C: (d_model, heads, n, 2)."""
        return _halved(torch.linalg.solve(matrix, _with_conjugates(_complex(C)), left=False), C)


def _taps(name: str, stored: Tensor) -> int:
    value = stored.item()
    if isinstance(value, complex) or not float(value).is_integer() or not 0 <= value <= LARGEST_COUNT:
        raise CheckpointError(
            f"{name}={excerpt(value)}; expected the number of taps that C is stored for, an integer "
            f"from 0 to {LARGEST_COUNT}"
        )
    return int(value)


def _halved(full: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_real(full[..., : full.shape[-1] // 2].resolve_conj()).to(like.dtype)


def _with_conjugates(x: Tensor) -> Tensor:
    return torch.cat((x, x.conj()), -1)


def _complex(x: Tensor) -> Tensor:
    return as_complex(x.double())


def _log_of(stored: Tensor, transform: str) -> Tensor:
    """The logarithm of the number that is stored: as it stands if that is what is stored."""
    return stored if transform == "exp" else POSITIVE[transform](stored.double()).log().to(stored.dtype)


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
