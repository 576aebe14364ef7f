"""How a function changes a normal distribution: by its derivative, or by a few points.

A transform gives the mean of z = g(x) and the columns M with Cov(z) = M M^T, and the columns X with Cov(x) = X X^T and
Cov(x, z) = X M^T. Filters and smoothers then work the same way for all of them, and in square roots.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError

Residual = Callable[[Tensor, Tensor], Tensor]


class Transformed(NamedTuple):
    """mean (batch, k), M (batch, k, s), X (batch, n, s), as above."""

    mean: Tensor
    M: Tensor
    X: Tensor


@dataclass(frozen=True)
class Rows:
    """A function of one state (n,), and of its inputs, on rows of them, and what it shall return."""

    name: str
    function: Callable[..., Tensor]
    size: int

    def __call__(self, x: Tensor, u: Tensor | None) -> Tensor:
        if not len(x):
            return x.new_zeros(0, self.size)
        given = (x,) if u is None else (x, u)
        with self._explained(given):
            return torch.func.vmap(self.checked)(*given)

    def with_jacobian(self, x: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        """g(x) (batch, k) and its derivative (batch, k, n)."""
        if not len(x):
            return x.new_zeros(0, self.size), x.new_zeros(0, self.size, x.shape[-1])

        def twice(*given: Tensor) -> tuple[Tensor, Tensor]:
            z = self.checked(*given)
            return z, z

        given = (x,) if u is None else (x, u)
        with self._explained(given):
            J, z = torch.func.vmap(torch.func.jacrev(twice, has_aux=True))(*given)
        return z, J

    def checked(self, *given: Tensor) -> Tensor:
        z = self.function(*[m.clone() for m in given])  # which it may write into
        if not isinstance(z, Tensor) or z.shape != (self.size,) or z.dtype != given[0].dtype:
            what = f"{z.dtype} {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f"{self.name} gets one state ({given[0].shape[0]},) in {given[0].dtype} and must return ({self.size},) "
                f"in the same; it returned {what}"
            )
        return z

    @contextmanager
    def _explained(self, given: tuple[Tensor, ...]) -> Iterator[None]:
        """What goes wrong because a function does not fit the call, or cannot run on all rows, as one line."""
        try:
            yield
        except TypeError as error:
            self._check_arguments(given, error)
            raise
        except RuntimeError as error:
            said = str(error)
            for words, advice in _ADVICE:
                if words in said:
                    raise InputError(f"{self.name} runs on all rows at once, but it {advice}") from error
            raise

    def _check_arguments(self, given: tuple[Tensor, ...], error: Exception) -> None:
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # a function in C does not say
            return
        try:
            signature.bind(*given)
        except TypeError:
            has, wanted = ("u", "(x, u)") if len(given) == 2 else ("no u", "(x); or give u=(batch, length, m)")
            raise InputError(
                f"{self.name} takes {signature}, and this call has {has}; write {self.name}{wanted}"
            ) from error


# What PyTorch says of a function that torch.func.vmap cannot run, and what the function does
_ADVICE = (
    ("called random operation", "draws random numbers; leave noise to Q and R"),
    ("numpy()", "leaves PyTorch for NumPy; write it in operations of PyTorch"),
    ("data pointer of Tensor", "leaves PyTorch for NumPy; write it in operations of PyTorch"),
    ("inplace", "writes into a tensor that it made itself; build the result with torch.stack or torch.cat"),
    (
        "data-dependent control flow",
        "decides by the value of a tensor (if, while, float(), .item()); write torch.where(condition, yes, no)",
    ),
    (".item()", "takes the value out of a tensor (float(), .item(), torch.tensor); keep it a tensor: use torch.stack"),
    ("vmap: ", "does what torch.func.vmap does not support; write it in operations of PyTorch on one state"),
)


@dataclass(frozen=True)
class Extended:
    """The derivative at the mean. Source: Särkkä 2013, sec. 5.2; Jazwinski 1970, ch. 8."""

    n_iterations: int = 1

    def check(self, n: int) -> None:
        if not isinstance(self.n_iterations, int) or isinstance(self.n_iterations, bool) or self.n_iterations < 1:
            raise InputError(f"{type(self).__name__} needs n_iterations above 0, got {self.n_iterations!r}")

    def transform(self, g: Rows, mean: Tensor, factor: Tensor, u: Tensor | None, residual: Residual) -> Transformed:
        z, J = g.with_jacobian(mean, u)
        return Transformed(z, J @ factor, factor)


@dataclass(frozen=True)
class IteratedExtended(Extended):
    """Extended, with h linearised again at the updated mean: Gauss and Newton's way to the most likely state.

    Source:  Bell & Cathey 1993, IEEE Trans. Automat. Contr. 38:294; Jazwinski 1970, ch. 8.
    """

    n_iterations: int = 5


@dataclass(frozen=True)
class Unscented:
    """2 n + 1 points: the mean, and the mean plus and minus sqrt(n + lambda) times the columns of a square root, with
    lambda = alpha^2 (n + kappa) - n and weights as published. In float32 use a larger alpha: 1e-3 costs three digits.

    The covariance of the images Y_i, with their differences D_i = Y_i - Y_0 and s = sum_i D_i / (2 (n + lambda)), is
    sum_i D_i D_i^T / (2 (n + lambda)) + (beta - alpha^2) s s^T. It has an exact square root although the weight of
    the centre may be negative, as long as it is positive for every function: n (alpha^2 - beta) <= alpha^2 (n + kappa).

    Errors:  InputError for parameters with which it may not be.
    Source:  Julier & Uhlmann 2004, Proc. IEEE 92:401; Wan & van der Merwe 2000, the unscented Kalman filter, eq. 15
             (alpha, beta, kappa).
    """

    alpha: float = 1e-3
    beta: float = 2.0
    kappa: float = 0.0

    def check(self, n: int) -> None:
        given = (self.alpha, self.beta, self.kappa)
        if any(isinstance(z, bool) or not isinstance(z, (int, float)) or not math.isfinite(z) for z in given):
            raise InputError(f"Unscented needs alpha, beta and kappa as numbers, got {given!r}")
        if self.alpha <= 0 or n + self.kappa <= 0 or self._excess(n) < -1e-12:
            raise InputError(
                f"Unscented(alpha={self.alpha:g}, beta={self.beta:g}, kappa={self.kappa:g}) may give a matrix that is "
                f"not a covariance for {n} states: it needs alpha > 0, n + kappa > 0, n (alpha^2 - beta) <= alpha^2 "
                "(n + kappa)"
            )

    def _excess(self, n: int) -> float:
        return 1 - n * (self.alpha**2 - self.beta) / (self.alpha**2 * (n + self.kappa))

    def transform(self, g: Rows, mean: Tensor, factor: Tensor, u: Tensor | None, residual: Residual) -> Transformed:
        batch, n = mean.shape
        spread = self.alpha**2 * (n + self.kappa)  # n + lambda
        weight = 1 / (2 * spread)
        columns = math.sqrt(spread) * factor.mT
        points = mean.unsqueeze(1) + torch.cat([torch.zeros_like(columns[:, :1]), columns, -columns], 1)
        inputs = None if u is None else u.unsqueeze(1).expand(-1, 2 * n + 1, -1).flatten(0, 1)
        images = g(points.flatten(0, 1), inputs).reshape(batch, 2 * n + 1, g.size)
        D = residual(images[:, 1:], images[:, :1])
        total = D.sum(1, keepdim=True)
        share = (1 - math.sqrt(max(self._excess(n), 0.0))) / (2 * n)
        M = math.sqrt(weight) * (D - share * total).mT
        return Transformed(images[:, 0] + weight * total[:, 0], M, torch.cat([factor, -factor], -1) / math.sqrt(2))


@dataclass(frozen=True)
class Cubature(Unscented):
    """2 n points of equal weight, exact for polynomials of degree 3: unscented with alpha = 1, beta = kappa = 0.

    Source:  Arasaratnam & Haykin 2009, IEEE Trans. Automat. Contr. 54:1254.
    """

    alpha: float = 1.0
    beta: float = 0.0
    kappa: float = 0.0

    def check(self, n: int) -> None:
        if (self.alpha, self.beta, self.kappa) != (1.0, 0.0, 0.0):
            raise InputError("Cubature has no parameters; Unscented has alpha, beta and kappa")


METHODS: dict[str, Any] = {
    "extended": Extended(),
    "iterated": IteratedExtended(),
    "unscented": Unscented(),
    "cubature": Cubature(),
}


def difference(a: Tensor, b: Tensor) -> Tensor:
    """The residual of numbers."""
    return a - b


def checked(name: str, residual: Residual) -> Residual:
    """The residual, which must give as many numbers as it takes; ``name`` is for its error."""
    if residual is difference:
        return residual

    def apart(a: Tensor, b: Tensor) -> Tensor:
        found, wanted = residual(a.clone(), b.clone()), torch.broadcast_shapes(a.shape, b.shape)
        if not isinstance(found, Tensor) or found.shape != wanted or found.dtype != a.dtype:
            what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"{name} gets {tuple(a.shape)} and {tuple(b.shape)} in {a.dtype} and must return {tuple(wanted)} in "
                f"the same; it returned {what}"
            )
        return found

    return apart


def angles(*places: int) -> Residual:
    """The residual for vectors whose numbers at these places are angles in radians: there a - b is in [-pi, pi).

    >>> angles(0)(torch.tensor([3.0, 3.0]), torch.tensor([-3.0, -3.0]))
    tensor([-0.2832,  6.0000])

    Errors:  InputError for a place that is not an integer; later, for a vector that has no number there.
    """
    if not all(isinstance(place, int) and not isinstance(place, bool) for place in places):
        raise InputError(f"angles needs places as integers, angles(0) for the first number; got {places!r:.60}")

    def residual(a: Tensor, b: Tensor) -> Tensor:
        plain = a - b
        if not all(-plain.shape[-1] <= place < plain.shape[-1] for place in places):
            raise InputError(
                f"angles({', '.join(map(str, places))}) got vectors of {plain.shape[-1]}; places begin at 0"
            )
        around = torch.remainder(plain + math.pi, 2 * math.pi) - math.pi
        chosen = torch.zeros(plain.shape[-1], dtype=torch.bool, device=plain.device)
        chosen[list(places)] = True
        return torch.where(chosen, around, plain)

    return residual
