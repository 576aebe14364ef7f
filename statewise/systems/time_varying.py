"""Systems whose coefficients change with time: x'(t) = A(t) x(t) + B(t) u(t), y(t) = C(t) x(t) + D(t) u(t)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable import BlockSequentiallySemiseparable
from statewise.systems.double_word import real_dtype
from statewise.systems.rules import check_dtypes, check_method, generalized_bilinear, transition_dense

Coefficient = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TimeVaryingSystem:
    """x'(t) = A(t) x(t) + B(t) u(t), y(t) = C(t) x(t) + D(t) u(t), with n states, m inputs and p outputs.

    Each coefficient is a function of time, or a tensor of samples, one for each step, held over the step. All axes are
    there, also of one input or output.

    Shapes:  A: t () -> (n, n), or samples (T, n, n)   B: (n, m) or (T, n, m)   C: (p, n) or (T, p, n)
             D: (p, m) or (T, p, m), or None for no direct path
    Source:  Dao & Gu 2024, arXiv:2405.21060, eq. 2; Gu et al. 2020 (HiPPO), arXiv:2008.07669, theorem 2, where A(t) is
             A / t.

    HiPPO's LegS, whose clock runs slower and slower:

    >>> from statewise import hippo
    >>> A, B = hippo.transition("legs", 4)
    >>> legs = TimeVaryingSystem(lambda t: A / t, lambda t: B[:, None] / t, lambda t: torch.eye(4, dtype=t.dtype))
    >>> u = torch.ones(100, 1, dtype=torch.float64)
    >>> y, _ = legs.simulate(u, times=torch.arange(101.0, dtype=torch.float64), method="backward_euler")
    >>> y[-1].round(decimals=1).abs()  # a constant is the first polynomial
    tensor([1., 0., 0., 0.], dtype=torch.float64)
    """

    A: Coefficient
    B: Coefficient
    C: Coefficient
    D: Coefficient | None = None

    def __post_init__(self) -> None:
        lengths = set()
        for name in ("A", "B", "C", "D"):
            given = getattr(self, name)
            if isinstance(given, Tensor):
                if given.ndim != 3:
                    raise InputError(
                        f"samples of {name} must have three axes, (steps, rows, columns); got {tuple(given.shape)}: "
                        f"for a constant give a function, lambda t: {name}"
                    )
                lengths.add(given.shape[0])
            elif not callable(given) and not (given is None and name == "D"):
                raise InputError(f"{name} must be a function of time or samples (T, ...); got {type(given).__name__}")
        if len(lengths) > 1:
            raise InputError(f"samples of A, B, C and D must have one number of steps; got {sorted(lengths)}")

    def discretize(
        self, times: Tensor, method: str = "zoh", *, alpha: float | None = None
    ) -> BlockSequentiallySemiseparable:
        """The recurrence from time to time, which is a sequentially semiseparable matrix: its product is the output.

        Step k leads from times[k] to times[k + 1] and reads u_k. Samples are held over their step, so each rule does to
        it what it does to a constant system. A function is read at the times that the rule's definition names:

        ==============================  ====================================================================
        ``zoh``                         A and B in the middle of the step: the error of a step is O(dt^3)
        ``dirac``, ``mamba``            A in the middle, B at the end
        ``euler``                       A and B at the start
        ``backward_euler``              A and B at the end
        ``bilinear``, ``gbt``           both ends: (I - alpha dt A_1)^-1 (I + (1 - alpha) dt A_0), and B likewise
        ==============================  ====================================================================

        C and D are those at the end of the step. ``foh`` is not defined here: its output would need the coefficients of
        two steps. A rule that reads nothing at the start can begin where a coefficient is infinite: A(t) = A / t begins
        at 0 with ``backward_euler`` or ``zoh``, and is refused there with ``euler`` or ``bilinear``.

        Shapes:  times: (T + 1,), ascending   ->   A (T, n, n), B (T, n, m), C (T, p, n), D (T, p, m)
        Cost:    O(T n^3); functions are called once a step, and once more for the first where both ends are read.
        Errors:  InputError for times that do not ascend, samples of another number of steps, shapes or dtypes that do
                 not fit, values that are not finite at a time that the rule reads, and those of
                 :func:`~statewise.systems.discretize_dense`.
        Source:  the middle: the first term of Magnus' series, Hairer, Lubich & Wanner 2006, Geometric Numerical
                 Integration, IV.7.
        """
        if not isinstance(times, Tensor) or times.ndim != 1 or len(times) < 2 or not times.is_floating_point():
            raise InputError(
                "times must be a floating-point vector (T + 1,): the start of the first step, then all ends"
            )
        dt = times.diff()
        if not bool((dt > 0).all()) or not bool(times.isfinite().all()):
            raise InputError("times must ascend and be finite")
        weight = _weight(method, alpha)
        start, end, middle = times[:-1], times[1:], times[:-1] + dt / 2
        C = self._values("C", end)
        D = None if self.D is None else self._values("D", end)
        before = first = None  # A and B at the starts, where both ends are read
        if weight is None:
            A, B = self._values("A", middle), self._values("B", middle if method == "zoh" else end)
        elif 0 < weight < 1:
            (before, A), (first, B) = self._both_ends("A", times), self._both_ends("B", times)
        else:
            A, B = (self._values(name, end if weight else start) for name in ("A", "B"))
        _check_fit(A, B, C, D)
        dt = _steps_like(A, dt)
        if first is not None and weight is not None:
            B = weight * B + (1 - weight) * first
        if weight is None:
            A_bar, B_bar, _ = transition_dense(A, B, dt, method)
        else:
            A_bar, B_bar = generalized_bilinear(A, B, dt, weight, before)
        return BlockSequentiallySemiseparable(A_bar, B_bar, C, D)

    def simulate(
        self,
        u: Tensor,
        state: Tensor | None = None,
        *,
        times: Tensor,
        method: str = "zoh",
        alpha: float | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs at the ends of the steps: :meth:`discretize`, then its ``simulate``.

        No steps (T = 0, one time) have no outputs, and leave the state as it was; functions are asked for no more than
        their shapes then, at that time.

        Shapes:  u: (..., T, m)   state: (..., n) at times[0]   times: (T + 1,)
                 ->   y: (..., T, p), the state (..., n)
        Errors:  those of :meth:`discretize`; InputError for a u or a state of another shape or dtype. u is real in the
                 system's precision, or complex for a complex system.
        """
        if not isinstance(u, Tensor):
            raise InputError(f"u must be a tensor, got {type(u).__name__}; use torch.as_tensor(u)")
        if _is_one_time(times) and u.ndim >= 2 and u.shape[-2] == 0:
            _weight(method, alpha)
            A, B, C, D = (None if getattr(self, name) is None else self._no_values(name, times) for name in "ABCD")
            assert A is not None
            assert B is not None
            assert C is not None
            _check_fit(A, B, C, D)
            u, leading = _driven(u, state, A, B)
            y = u.new_zeros(*leading, 0, C.shape[-2])
            return y, None if state is None else state.expand(*leading, A.shape[-1])
        steps = self.discretize(times, method, alpha=alpha)
        u, _ = _driven(u, state, steps.A, steps.B)
        return steps.simulate(u, state)

    def _no_values(self, name: str, times: Tensor) -> Tensor:
        """(0, rows, columns): the shape and the dtype of a coefficient."""
        given = getattr(self, name)
        return self._values(name, times[:0]) if isinstance(given, Tensor) else _stacked(name, [given(times[0])])[:0]

    def _both_ends(self, name: str, times: Tensor) -> tuple[Tensor, Tensor]:
        """At the starts and at the ends of the steps: samples are held from the one to the other."""
        if isinstance(getattr(self, name), Tensor):
            held = self._values(name, times[1:])
            return held, held
        values = self._values(name, times)
        return values[:-1], values[1:]

    def _values(self, name: str, times: Tensor) -> Tensor:
        """(T, rows, columns), all finite."""
        given = getattr(self, name)
        if isinstance(given, Tensor):
            if len(given) != len(times):
                raise InputError(f"{name} has samples of {len(given)} steps, and times has {len(times)} steps")
            _check_finite(given, lambda k: f"the samples of {name} hold NaN or infinity, first that of step {k}")
            return given
        values = [given(t) for t in times]
        stacked = _stacked(name, values)
        _check_finite(
            stacked,
            lambda k: (
                f"{name} holds NaN or infinity at one of the times, first at t={float(times[k]):g}; leave that time "
                "out, or use a method that does not read it there"
            ),
        )
        return stacked


def _weight(method: str, alpha: float | None) -> float | None:
    if method == "foh":
        raise InputError("foh is not defined for a system that changes with time; use zoh or bilinear")
    return check_method(method, alpha)


def _is_one_time(times: object) -> bool:
    return isinstance(times, Tensor) and times.shape == (1,) and times.is_floating_point()


def _driven(u: Tensor, state: Tensor | None, A: Tensor, B: Tensor) -> tuple[Tensor, torch.Size]:
    """u in the dtype of A (T, n, n), and the leading axes of u and the state."""
    (T, n, m), real = (*A.shape[:2], B.shape[-1]), real_dtype(A)
    if u.ndim < 2 or tuple(u.shape[-2:]) != (T, m) or u.dtype not in (real, A.dtype):
        raise InputError(f"u must be (..., {T}, {m}) in {real}; got {u.dtype} {tuple(u.shape)}")
    if state is None:
        return u.to(A.dtype), u.shape[:-2]
    if not isinstance(state, Tensor):
        raise InputError(f"state must be a tensor, got {type(state).__name__}; use torch.as_tensor(state)")
    if not state.ndim or state.shape[-1] != n or state.dtype != A.dtype:
        raise InputError(f"state must be (..., {n}) in {A.dtype}; got {state.dtype} {tuple(state.shape)}")
    try:
        return u.to(A.dtype), torch.broadcast_shapes(u.shape[:-2], state.shape[:-1])
    except RuntimeError:
        raise InputError(
            f"the leading axes of u {tuple(u.shape)} and state {tuple(state.shape)} do not broadcast; give both alike"
        ) from None


def _stacked(name: str, values: list[Tensor]) -> Tensor:
    for value in values:
        if not isinstance(value, Tensor) or value.ndim != 2 or value.shape != values[0].shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{name}(t) must be a tensor of two axes, of one shape at all times; got {shape}")
    return torch.stack(values)


def _check_finite(values: Tensor, problem: Callable[[int], str]) -> None:
    """problem: what to say of the first that is not finite, by its number"""
    finite = values.detach().isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        raise InputError(problem(int(finite.logical_not().nonzero()[0])))


def _steps_like(A: Tensor, dt: Tensor) -> Tensor:
    """dt in the real dtype of A, which may hold less than that of the times."""
    steps = dt.to(A.real.dtype)
    if not bool(((steps > 0) & steps.isfinite()).all()):
        raise InputError(
            f"times has steps from {float(dt.min()):g} to {float(dt.max()):g}, which {steps.dtype} of A does not hold; "
            "give coefficients of float64"
        )
    return steps


def _check_fit(A: Tensor, B: Tensor, C: Tensor, D: Tensor | None) -> None:
    given = {"A": A, "B": B, "C": C} | ({} if D is None else {"D": D})
    check_dtypes(**given)
    n = A.shape[-1]
    ends = {"A": (n, n), "B": (n, B.shape[-1]), "C": (C.shape[-2], n), "D": (C.shape[-2], B.shape[-1])}
    if any(tuple(z.shape[1:]) != ends[name] for name, z in given.items()):
        shapes = ", ".join(f"{name} {tuple(z.shape[1:])}" for name, z in given.items())
        raise InputError(f"expected A (n, n), B (n, m), C (p, n), D (p, m); got {shapes}")
