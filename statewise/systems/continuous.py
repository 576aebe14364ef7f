"""Systems in continuous time, x'(t) = A x(t) + B u(t), y(t) = C x(t) + D u(t), and how they become discrete."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.base import System, check_omega
from statewise.systems.discrete import DiscreteSystem
from statewise.systems.double_word import exact_product, real_dtype
from statewise.systems.exponential import exponential_and_integral
from statewise.systems.rules import transition_dense, transition_diagonal


@dataclass(frozen=True, eq=False)
class ContinuousSystem(System):
    """x'(t) = A x(t) + B u(t), y(t) = C x(t) + D u(t). A carries its minus sign: decay is a negative real part.

    Shapes:  as :class:`System`
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, eq. 1.

    >>> decay = ContinuousSystem(torch.tensor([-1.0]), torch.tensor([1.0]), torch.tensor([1.0]), diagonal=True)
    >>> y, _ = decay.simulate(torch.ones(3), dt=1.0)
    >>> y
    tensor([0.6321, 0.8647, 0.9502])
    """

    _stable_means = "a stable continuous system has no pole with a positive real part"

    def _growth(self, poles: Tensor) -> Tensor:
        return poles.real

    def impulse_response(self, times: Tensor) -> Tensor:
        """C e^(A t) B at times t >= 0, without the impulse of D at t = 0.

        Shapes:  times: (k,)   ->   (..., k), with axes p and m before it if there are several outputs or inputs
        """
        real = real_dtype(self.A)
        if not isinstance(times, Tensor) or times.ndim != 1 or times.dtype != real or bool((times < 0).any()):
            raise InputError(f"times must be a vector (k,) in {real}, none below 0")
        A, B, C, _ = self._matrices()
        if self.diagonal:
            decays = torch.exp(times.unsqueeze(-1) * A.unsqueeze(-2))
            return self._squeeze(torch.einsum("...pn,...kn,...nm->...pmk", C, decays, B))
        precise = torch.complex128 if A.is_complex() else torch.float64
        X = exact_product(times.double()[:, None, None], A.unsqueeze(-3).to(precise))
        decays, _ = exponential_and_integral(X, X.high[..., :1])
        return self._squeeze(torch.einsum("...pn,...knj,...jm->...pmk", C, decays.to(A.dtype), B))

    def frequency_response(self, omega: Tensor) -> Tensor:
        """H = C (i omega I - A)^-1 B + D, complex.

        Shapes:  omega: (f,), radians per unit of time   ->   (..., f), with axes p and m before it as for
                 :meth:`impulse_response`
        Errors:  InputError if omega is a pole on the imaginary axis.
        """
        check_omega(omega, self.A)
        matrices = self._matrices()
        points = torch.complex(torch.zeros_like(omega), omega)
        return self._squeeze(self._resolvent(points, matrices) + matrices.D.unsqueeze(-1))

    def simulate(
        self,
        u: Tensor,
        state: Tensor | None = None,
        *,
        dt: Tensor | float,
        method: str = "zoh",
        alpha: float | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`DiscreteSystem.simulate` of the system discretised by ``method``; u is sampled every ``dt``."""
        return discretize(self, dt, method, alpha=alpha).simulate(u, state)


def discretize(
    system: ContinuousSystem, dt: Tensor | float, method: str = "zoh", *, alpha: float | None = None
) -> DiscreteSystem:
    """The discrete system that moves a continuous one from sample to sample.

    ======================  ==========================================================================
    ``zoh``                 exact for inputs that are constant over each step
    ``foh``                 exact for inputs that are straight lines between the samples
    ``bilinear``            the trapezium rule: keeps stability, and energy if A conserves it
    ``euler``               one step along the tangent: grows where |1 + dt a| > 1
    ``backward_euler``      the tangent at the end of the step: stable, damps too much
    ``gbt`` with ``alpha``  between ``euler`` (0) and ``backward_euler`` (1)
    ``dirac``               exact for inputs that are impulses
    ``mamba``               the transition of ``zoh`` with the input of ``euler``, as in Mamba's code
    ======================  ==========================================================================

    C and D are carried over. Only ``foh`` changes D, and its output reads the state before the input of the step
    (``reads="before"``). So it does not need the inverse of A_bar, which a stiff system does not have. An A that grows
    is discretised like any other; call ``system.require_stable()`` if that would be a mistake.

    Shapes:  dt: (...), broadcast with the leading axes of the system, so one system may become many
    Errors:  InputError; see :func:`discretize_dense` and the table in :mod:`statewise.systems.rules`.

    >>> spring = mass_spring_damper(mass=1.0, stiffness=4.0, damping=0.5)
    >>> discretize(spring, 0.1, "bilinear").poles().abs()
    tensor([0.9755, 0.9755], dtype=torch.float64)
    """
    if not isinstance(system, ContinuousSystem):
        raise InputError(f"discretize needs a ContinuousSystem, got {type(system).__name__}")
    transition = transition_diagonal if system.diagonal else transition_dense
    A, B, direct = transition(system.A, system.B, dt, method, alpha=alpha)
    if not isinstance(dt, Tensor):
        dt = torch.tensor(float(dt), dtype=real_dtype(A), device=A.device)
    C, D = system.C, system.D
    if direct is not None and C is not None:
        gain = direct.unsqueeze(-1) if system.single_input else direct
        passed = system._squeeze((system._matrices().C @ gain).unsqueeze(-1)).squeeze(-1)
        D = passed if D is None else D + passed
    leading = torch.broadcast_shapes(system.leading, dt.shape)
    n_inputs, n_outputs = int(not system.single_input), 0 if C is None else int(not system.single_output)
    A, B = _over(A, leading, 1 if system.diagonal else 2), _over(B, leading, 1 + n_inputs)
    C = None if C is None else _over(C, leading, 1 + n_outputs)
    D = None if D is None else _over(D, leading, n_inputs + n_outputs)
    return DiscreteSystem(A, B, C, D, dt, diagonal=system.diagonal, reads="after" if direct is None else "before")


def _over(z: Tensor, leading: tuple[int, ...], n_own: int) -> Tensor:
    """z with these leading axes before its own."""
    return z.expand((*leading, *z.shape[z.ndim - n_own :]))


def mass_spring_damper(
    mass: Tensor | float, stiffness: Tensor | float, damping: Tensor | float, *, dtype: torch.dtype = torch.float64
) -> ContinuousSystem:
    """m q'' + c q' + k q = u: a force goes in, the position comes out, x = [q, q'].

    A = [[0, 1], [-k/m, -c/m]], B = [0, 1/m], C = [1, 0]. Without damping it swings forever at sqrt(k/m) radians
    per unit of time.

    Shapes:  mass, stiffness, damping: numbers or tensors (...), which broadcast   ->   A: (..., 2, 2)
    Units:   any that fit together, such as kg, N/m, N s/m: u in N, q in m, t in s.
    Errors:  InputError for a mass that is not positive.
    """
    given = (mass, stiffness, damping)
    device = next((z.device for z in given if isinstance(z, Tensor)), None)
    parts = [torch.as_tensor(z, dtype=dtype, device=device) for z in given]
    try:
        m, k, c = torch.broadcast_tensors(*parts)
    except RuntimeError:
        shapes = ", ".join(str(tuple(z.shape)) for z in parts)
        raise InputError(f"mass, stiffness and damping do not broadcast: {shapes}") from None
    if not bool((m > 0).all()):
        raise InputError("mass must be positive; give one above 0")
    zero, one = torch.zeros_like(m), torch.ones_like(m)
    A = torch.stack([torch.stack([zero, one], -1), torch.stack([-k / m, -c / m], -1)], -2)
    return ContinuousSystem(A, torch.stack([zero, 1 / m], -1), torch.stack([one, zero], -1))
