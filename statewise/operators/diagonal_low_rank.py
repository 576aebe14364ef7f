"""S4's system: a diagonal matrix minus one of low rank, discretised bilinearly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from statewise.errors import InputError
from statewise.kernels.batching import whole
from statewise.kernels.cauchy import cauchy
from statewise.kernels.pairs import as_complex
from statewise.operators.dense import DenseLTI
from statewise.operators.plan import Rule, up_to
from statewise.operators.state_shape import leaf
from statewise.operators.time_invariant import CONVOLVE, FEW, Block, TimeInvariant, by_outputs, double
from statewise.precision import exactly, full_precision

# Values of the generating function that are computed at once: more are recomputed, block by block, in the backward
# pass rather than kept.
KEPT = 1 << 18
# Operations of a dense matrix product that take as long as one term of a Cauchy sum, forward and backward. `statewise
# reproduce s4-filter` on two cores (Zen 3): the sums were faster where this came out as 22 and more, squaring where 8.5
# and less.
WORTH_A_SUM = 15


class LowRankState(NamedTuple):
    """h: (batch, w, *trailing, n, 2), one of each conjugate pair."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class DiagonalPlusLowRank(TimeInvariant):
    """x' = (Lambda - P Q*) x + B u, y = 2 Re(C x), in bilinear steps of dt; one of each conjugate pair is kept.

    Shapes:  Lambda, B: (w, n)   P, Q: (w, r, n)   C: (w, n) or (w, p, n), complex   dt: (w,), real
             u: (batch, length, w, *trailing)
    Stability: Without Q, Q is P: real parts of Lambda at or below 0 keep the system stable, and others are refused.
             With another Q there is no such guarantee, so the impulse response is always computed by squaring.
    Forms:   ``recurrent``, O(n r) a step by the Woodbury identity; ``convolve`` from rest, O(length log length) for
             each row and for each impulse response the cheaper of about 2 length n (p + r)(1 + r) Cauchy sums, with
             no array of size (w, n, length) and no power of A, and log2(length) squarings of the dense A of order
             2 n; from a state in chunks of 64 steps, with the dense matrices that they need, O(w n^3).
    Numerics: the impulse response is accurate to about 1e-12 in float64 and 1e-4 in float32 (2e-5 for dt up to 0.1),
             relative to its largest value, at every length, if the system is stable.
    Errors:  InputError for shapes or dtypes that do not fit, for dt that is not positive and finite, and without Q for
             real parts of Lambda above 0. Checking values means waiting for a device; ``check_values=False`` trusts
             them.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, sec. 3 and appendix C; the circle: see ``impulse_response``.
    """

    Lambda: Tensor
    P: Tensor
    B: Tensor
    C: Tensor
    dt: Tensor
    Q: Tensor | None = None
    check_values: bool = field(default=True, kw_only=True)
    rules: ClassVar[tuple[Rule, ...]] = (up_to(8, "recurrent", FEW), CONVOLVE)

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.Lambda.shape[0],)

    def _like(self) -> Tensor:
        return self.Lambda

    def _check(self, u: Tensor) -> None:
        Lambda, P, B, C, dt = self.Lambda, self.P, self.B, self.C, self.dt
        Q = P if self.Q is None else self.Q
        fits = (
            Lambda.ndim == 2
            and B.shape == Lambda.shape
            and P.ndim == 3
            and (P.shape[0], P.shape[2]) == Lambda.shape
            and Q.shape == P.shape
            and C.ndim in (2, 3)
            and (C.shape[0], C.shape[-1]) == Lambda.shape
            and dt.shape == Lambda.shape[:1]
        )
        if not fits:
            shapes = ", ".join(str(tuple(m.shape)) for m in (Lambda, P, Q, B, C, dt))
            raise InputError(
                "DiagonalPlusLowRank needs Lambda, B (w, n), P, Q (w, r, n), C (w, n) or (w, p, n), dt (w,); got "
                f"Lambda, P, Q, B, C, dt of {shapes}"
            )
        if not all(m.is_complex() for m in (Lambda, P, Q, B, C)) or not dt.is_floating_point():
            raise InputError(
                "DiagonalPlusLowRank needs complex Lambda, P, Q, B, C (one of each conjugate pair) and a real dt; got "
                f"{Lambda.dtype}, {P.dtype}, {Q.dtype}, {B.dtype}, {C.dtype}, {dt.dtype}"
            )
        self._check_input(u, Lambda.shape[0], Lambda=Lambda, P=P, Q=Q, B=B, C=C)
        self._check_values()

    def _check_values(self) -> None:
        if not self.check_values or self.dt.is_meta or torch.compiler.is_compiling() or not self.Lambda.numel():
            return
        least, most = (float(m) for m in whole(self.dt.detach()).aminmax())
        if not (least > 0 and most < math.inf):
            raise InputError(f"DiagonalPlusLowRank needs positive and finite dt; got values in {least:g}..{most:g}")
        if self.Q is None:
            growth = float(whole(self.Lambda.detach()).real.amax())
            if growth > 0:
                raise InputError(
                    f"DiagonalPlusLowRank needs real parts of Lambda at or below 0, or the system grows without bound; "
                    f"the largest is {growth:g}. Keep them negative, for example Lambda = -exp(log_decay) + i frequency"
                )

    def state_shape(self, trailing: tuple[int, ...] = ()) -> LowRankState:
        w, n = self.Lambda.shape
        return LowRankState(leaf(w, *trailing, n, 2))

    def step(self, u: Tensor, state: LowRankState) -> tuple[Tensor, LowRankState]:
        """(I - dt/2 A) h_t = (I + dt/2 A) h_{t-1} + dt B u_t, solved by Woodbury: D = 1/(1 - dt/2 Lambda) and a matrix
        of the size of the rank.
        """
        Lambda, P, Q, B, C, dt = self._coefficients_in(full_precision(u.dtype, self.Lambda.dtype))
        D, small = self._keep(("woodbury", dt.dtype), lambda: _woodbury(Lambda, P, Q, dt))
        half = dt[:, None] / 2
        h = as_complex(state.h.to(dt.dtype))
        trailing = [1] * (h.ndim - 3)  # axes between w and n

        def over(m: Tensor) -> Tensor:
            return m.reshape(m.shape[0], *trailing, m.shape[-1])

        def low_rank(x: Tensor) -> Tensor:
            """Q* x over both halves of the pairs: (b, w, *trailing, r), real."""
            return 2 * exactly(torch.einsum, "wrn,bw...n->bw...r", Q.conj(), x).real

        def back(s: Tensor) -> Tensor:
            return exactly(torch.einsum, "wrn,bw...r->bw...n", P, s.to(P.dtype))

        z = h + over(half) * (over(Lambda) * h - back(low_rank(h))) + over(dt[:, None] * B) * u.unsqueeze(-1)
        z = over(D) * z
        s = exactly(torch.einsum, "wrs,bw...s->bw...r", small, low_rank(z))
        h = z - over(half * D) * back(s)
        y = 2 * exactly(torch.einsum, "wn,bw...n->bw..." if C.ndim == 2 else "wpn,bw...n->bwp...", C, h).real
        return y.to(u.dtype), LowRankState(torch.view_as_real(h).to(state.h.dtype))

    def impulse_response(self, length: int) -> Tensor:
        """C A^k B for k < length, by Cauchy sums or by squaring the dense A, whichever is less work.

        With another Q than P it is always by squaring: the sums are only right for stable systems.
        """
        if length < 1:
            return self._no_taps(length)
        return self.response_by_squaring(length) if self.squares(length) else self.response_by_cauchy_sums(length)

    def squares(self, length: int) -> bool:
        """Whether an impulse response of this length is computed by squaring the dense A."""
        n, rank = self.P.shape[2], self.P.shape[1]
        p = 1 if self.C.ndim == 2 else self.C.shape[1]
        sums = length * n * (p + rank) * (1 + rank)
        squarings = (2 * n) ** 3 * max(1, length.bit_length())
        return self.Q is not None or squarings < WORTH_A_SUM * sums

    def response_by_squaring(self, length: int) -> Tensor:
        """C A^k B in two levels of about sqrt(length) rows each, doubled with the squares of the dense A.

        The squares are kept without the identity, (I + E)^2 = I + (2 E + E^2): with a small dt, the rounding of A
        itself would add up over the length.
        """
        if length < 1:
            return self._no_taps(length)
        E, B, C = self._less_identity()
        rows = by_outputs(C).unsqueeze(2)
        inner = 1 << ((length - 1).bit_length() + 1) // 2
        n_outer = -(-length // inner)
        n_low, n_high = inner.bit_length() - 1, (n_outer - 1).bit_length()
        squares = [E]
        for _ in range(n_low + n_high - 1):
            squares.append(exactly(_doubled, squares[-1]))
        krylov = double(B.unsqueeze(1), tuple(squares[:n_low]), lambda x, e: x + exactly(torch.matmul, x, e.mT), 1)
        rows = double(
            rows,
            tuple(squares[n_low : n_low + n_high]),
            lambda x, e: x + exactly(torch.matmul, x.flatten(1, 2), e).reshape(x.shape),
            2,
        )
        response = exactly(torch.matmul, rows[:, :, :n_outer].flatten(1, 2), krylov.mT)  # (w, p outer, inner)
        return response.reshape(*C.shape[:-1], n_outer * inner)[..., :length]

    def response_by_cauchy_sums(self, length: int) -> Tensor:
        """C A^k B from the generating function sum_k (C A^k B) z^k, which is a few Cauchy sums at each z.

        It is evaluated on a circle of radius below 1 and transformed back. On the unit circle, as published, the sum
        wraps around, which costs a power A^length in C; here what wraps around has decayed by the radius, and is below
        the rounding that the inverse radius brings back: no power of A, no pole at z = -1. If the system grows, it has
        not decayed, and the numbers are wrong.
        """
        if length < 1:
            return self._no_taps(length)
        self._check_values()
        dtype = full_precision(self.Lambda.dtype)
        parts = self._coefficients_in(dtype)
        p = 1 if self.C.ndim == 2 else self.C.shape[1]
        rank = self.P.shape[1]
        n_nodes = _circle(length, dtype)[0] // 2 + 1
        w = self.Lambda.shape[0]
        at_once = max(1, KEPT // (n_nodes * (p + rank) * (1 + rank)))
        if at_once >= w or not torch.is_grad_enabled():
            responses = [_impulse_response(length, *(m[i : i + at_once] for m in parts)) for i in range(0, w, at_once)]
        else:
            responses = [
                checkpoint(
                    _impulse_response,
                    length,
                    *(m[i : i + at_once] for m in parts),
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
                for i in range(0, w, at_once)
            ]
        response = torch.cat(responses)
        return response.squeeze(1) if self.C.ndim == 2 else response

    def dense(self) -> DenseLTI:
        """The same discrete system over real numbers: states of order 2 n, real and imaginary parts alternating."""
        E, B, C = self._less_identity()
        return DenseLTI(E + torch.eye(E.shape[-1], dtype=E.dtype, device=E.device), B, C)

    def _less_identity(self) -> tuple[Tensor, Tensor, Tensor]:
        """A - I, (w, 2 n, 2 n), B and C of the dense system: 2 (I - dt/2 A)^-1 - 2 I, term by term."""
        Lambda, P, Q, B, C, dt = self._coefficients_in(full_precision(self.Lambda.dtype))
        D, small = _woodbury(Lambda, P, Q, dt)
        half = dt[:, None] / 2
        columns = torch.view_as_real(half.unsqueeze(1) * D.unsqueeze(1) * P).flatten(-2).mT
        columns = exactly(torch.matmul, columns, small)  # (w, 2 n, r)
        rows = 2 * _readout(Q.conj() * D.unsqueeze(1))
        low_rank = exactly(torch.matmul, columns, rows)
        E = 2 * (_real_linear(half * Lambda * D) - low_rank)  # D - 1 = dt/2 Lambda D
        B = torch.view_as_real(dt[:, None] * B).flatten(-2).unsqueeze(-1)
        B = exactly(torch.matmul, _real_linear(D) - low_rank, B).squeeze(-1)
        return E, B, 2 * _readout(C)

    def _block(self, length: int, dtype: torch.dtype) -> Block:
        return self.dense()._block(length, dtype)

    def _advance(self, h: Tensor, power: Tensor) -> Tensor:
        return exactly(torch.matmul, h.flatten(1, -2), power.mT).reshape(h.shape)

    def _flat(self, state: LowRankState) -> Tensor:
        return state.h.flatten(-2)

    def _state(self, flat: Tensor) -> LowRankState:
        return LowRankState(flat.unflatten(-1, (-1, 2)))

    def _coefficients_in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        Q = self.P if self.Q is None else self.Q
        pairs = torch.complex128 if dtype == torch.float64 else torch.complex64
        Lambda, P, Q, B, C = (m.to(pairs) for m in (self.Lambda, self.P, Q, self.B, self.C))
        return Lambda, P, Q, B, C, self.dt.to(dtype)


def _readout(c: Tensor) -> Tensor:
    """Complex (..., n) -> real (..., 2 n): Re(c x) = Re c Re x - Im c Im x as a row."""
    return torch.view_as_real(c.conj().resolve_conj()).flatten(-2)


def _doubled(E: Tensor) -> Tensor:
    """(I + E)^2 - I."""
    return torch.baddbmm(E, E, E, beta=2)


def _real_linear(diagonal: Tensor) -> Tensor:
    """Complex (w, n) -> real (w, 2 n, 2 n): [[Re, -Im], [Im, Re]] on each pair."""
    w, n = diagonal.shape
    pairs = torch.stack([torch.view_as_real(diagonal), torch.view_as_real(1j * diagonal)], -1)  # (w, n, row, column)
    eye = torch.eye(n, dtype=pairs.dtype, device=pairs.device)
    return exactly(torch.einsum, "wnij,nm->wnimj", pairs, eye).reshape(w, 2 * n, 2 * n)


def _woodbury(Lambda: Tensor, P: Tensor, Q: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """D = 1/(1 - dt/2 Lambda), (w, n), and (I + dt/2 Q* D P)^-1 over both halves of the pairs, (w, r, r), real."""
    half = dt[:, None] / 2
    D = 1 / (1 - half * Lambda)
    S = 2 * exactly(torch.einsum, "wrn,wn,wsn->wrs", Q.conj(), D, P).real
    eye = torch.eye(P.shape[1], dtype=S.dtype, device=S.device)
    return D, torch.linalg.inv(eye + half.unsqueeze(-1) * S)


def _circle(length: int, dtype: torch.dtype) -> tuple[int, float]:
    """How many points on the circle, and log of radius^length.

    With m length points and rho = radius^length what wraps around is of the order rho^m, and rounding that of
    eps/rho; they meet at rho = eps^(1/(m + 1)).
    """
    m = 4 if dtype == torch.float64 else 3
    return m * length + (m * length) % 2, math.log(torch.finfo(dtype).eps) / (m + 1)


def _impulse_response(length: int, Lambda: Tensor, P: Tensor, Q: Tensor, B: Tensor, C: Tensor, dt: Tensor) -> Tensor:
    """(w, p, length) for a block of channels, in units of dt."""
    n_points, log_rho = _circle(length, dt.dtype)
    log_radius = log_rho / length
    angle = torch.arange(n_points // 2 + 1, device=dt.device, dtype=torch.float64) * (-2 * math.pi / n_points)
    z = torch.polar(torch.full_like(angle, math.exp(log_radius)), angle)
    nodes, factor = (2 * (1 - z) / (1 + z)).to(Lambda.dtype), (2 / (1 + z)).to(Lambda.dtype)
    left = torch.cat([by_outputs(C), Q.conj()], 1)  # (w, p + r, n)
    right = torch.cat([B.unsqueeze(1), P], 1) * dt[:, None, None]  # (w, 1 + r, n)
    rank, p = P.shape[1], left.shape[1] - P.shape[1]
    sums = cauchy((left.unsqueeze(2) * right.unsqueeze(1)).flatten(1, 2), nodes, Lambda * dt[:, None])
    sums = sums.unflatten(1, (p + rank, 1 + rank))  # (w, p + r, 1 + r, points)
    CB, CP, QB, QP = sums[:, :p, :1], sums[:, :p, 1:], sums[:, p:, :1], sums[:, p:, 1:]
    if rank == 1:
        correction = CP * QB / (1 + QP)
    else:
        eye = torch.eye(rank, dtype=sums.dtype, device=sums.device)
        solved = torch.linalg.solve(eye + QP.movedim(-1, 1), QB.movedim(-1, 1))  # (w, points, r, 1)
        correction = exactly(torch.matmul, CP.movedim(-1, 1), solved).movedim(1, -1)
    generating = factor * (CB - correction).squeeze(2)
    time = torch.arange(length, device=dt.device, dtype=torch.float64)
    growth = torch.exp(-log_radius * time).to(dt.dtype)
    return torch.fft.irfft(generating, n_points)[..., :length] * growth
