"""From white noise in continuous time to the covariance of a step, exactly."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems import ContinuousSystem, discretize_dense


class Discretized(NamedTuple):
    """A and Q, with the axes (1 or batch, length) before their own where dt has some; B, C and D."""

    A: Tensor
    B: Tensor | None
    C: Tensor
    D: Tensor | None
    Q: Tensor


def van_loan(system: ContinuousSystem, dt: Tensor | float, Q: Tensor, noise_of: str = "states") -> Discretized:
    """A = e^(F dt), Q = int_0^dt e^(F s) Q_c e^(F^T s) ds, and B for inputs that are constant over the step.

    Numerics: the exponential of [[-F, Q_c], [0, F^T]] gives both, for a step so short that e^(-F dt) is harmless; then
              doubling, Q(2h) = Q(h) + e^(F h) Q(h) e^(F^T h), a sum of what is positive, so that nothing cancels.
    Cost:     O((2 n)^3) for each dt, and an exponential for each doubling.
    Source:   Van Loan 1978, IEEE Trans. Automat. Contr. 23:395, theorem 1.
    """
    F, B, C, D, Q, dt = _checked(system, dt, Q, noise_of)
    real = dt > 0
    step = torch.where(real, dt, 1)
    Q_step = _covariance(F, Q, step)
    n = F.shape[-1]
    E, gain = discretize_dense(F.expand(*dt.shape, n, n), B.expand(*dt.shape, *B.shape[-2:]), step)
    identity = torch.eye(n, dtype=F.dtype, device=F.device)
    some = real[..., None, None]
    A, gain, Q_step = torch.where(some, E, identity), torch.where(some, gain, 0), torch.where(some, Q_step, 0)
    if noise_of == "inputs":
        return Discretized(A, None, C, None, Q_step)
    return Discretized(A, gain, C, D, Q_step)


def _covariance(F: Tensor, Q: Tensor, dt: Tensor) -> Tensor:
    n = F.shape[-1]
    size = F.detach().abs().sum(-2).amax() * dt.detach()
    n_doublings = torch.ceil(torch.log2((size / 0.5).clamp(min=1e-300))).clamp(min=0)
    h = (dt * torch.exp2(-n_doublings))[..., None, None]
    joint = torch.cat([torch.cat([-F, Q], -1), torch.cat([torch.zeros_like(F), F.mT], -1)], -2)
    exponential = torch.linalg.matrix_exp(joint * h)
    P = exponential[..., n:, n:].mT @ exponential[..., :n, n:]
    nothing = F.new_zeros(*dt.shape, n, 1)
    for k in range(int(n_doublings.max()) if n_doublings.numel() else 0):
        more = (k < n_doublings)[..., None, None]
        # not by squaring the last one, which would double the error of slow modes each time; what is done takes h = 1
        E, _ = discretize_dense(
            F.expand(*dt.shape, n, n), nothing, torch.where(k < n_doublings, h[..., 0, 0] * 2.0**k, 1)
        )
        P = torch.where(more, P + E @ P @ E.mT, P)
    return (P + P.mT) / 2


def _as_times(dt: Any, like: Tensor) -> Tensor:
    try:
        if isinstance(dt, bool):
            raise TypeError
        return torch.as_tensor(dt, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(
            f"from_continuous needs dt as a number, or a tensor of numbers (length,) or (batch, length); got {dt!r:.40}"
        ) from None


def _checked(
    system: ContinuousSystem, dt: Tensor | float, Q: Tensor, noise_of: str
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    if not isinstance(system, ContinuousSystem) or system.leading or system.A.is_complex():
        given = type(system).__name__ if not isinstance(system, ContinuousSystem) else f"A {tuple(system.A.shape)}"
        raise InputError(f"from_continuous needs one real ContinuousSystem without leading axes, got {given}")
    if noise_of not in ("states", "inputs"):
        raise InputError(f"noise_of={noise_of!r} is unknown; use 'states' (Q is (n, n)) or 'inputs' (Q is (m, m))")
    F, B, C, D = system._matrices()
    F = torch.diag_embed(F) if system.diagonal else F
    if not isinstance(dt, Tensor):
        dt = _as_times(dt, F)
    if dt.dtype != F.dtype or dt.ndim > 2 or not bool((dt >= 0).all()) or not bool(dt.isfinite().all()):
        raise InputError(
            f"from_continuous needs dt as a number or (length,) or (batch, length) in {F.dtype}, finite and none below "
            f"0; got {dt.dtype} {tuple(dt.shape)}{f', {float(dt)}' if dt.numel() == 1 else ''}"
        )
    size = F.shape[-1] if noise_of == "states" else B.shape[-1]
    if not isinstance(Q, Tensor) or tuple(Q.shape) != (size, size) or Q.dtype != F.dtype:
        given = f"{Q.dtype} {tuple(Q.shape)}" if isinstance(Q, Tensor) else type(Q).__name__
        raise InputError(
            f"from_continuous needs Q ({size}, {size}) in {F.dtype}, the density of the noise; got {given}"
        )
    Q = B @ Q @ B.mT if noise_of == "inputs" else Q
    return F, B, C, D if system.D is not None else None, Q, dt.reshape(1, -1) if dt.ndim == 1 else dt
