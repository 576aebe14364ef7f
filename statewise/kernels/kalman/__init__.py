"""The Kalman filter in square-root form, and its adjoint, as one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.kernels.adjoint import derivative_of, empty_like, gradients_of, without_none
from statewise.kernels.arguments import Sizes
from statewise.kernels.backend import c_runs, refusal_of
from statewise.kernels.kalman import native, pytorch
from statewise.kernels.kalman.signature import Arguments, Gradients, Grads, Outputs
from statewise.kernels.registration import register, save, saved

__all__ = ["Outputs", "kalman"]

_TENSORS = [f"Tensor {key}" for key in ("y", "G", "N", "offset", "mean", "factor", "prior_mean", "prior_factor")]
_TENSORS += [f"Tensor? {key}" for key in ("observed", "lengths", "starts")]
_ARGUMENTS = [*_TENSORS, "int rows"]
_TAKES = {
    "y": "batch length p: real",
    "G": "1|batch 1|length k n: as y",
    "N": "1|batch 1|length k j: as y",
    "offset": "1|batch 1|length k: as y",
    **{"mean": "1|batch n: as y", "factor": "1|batch n n: as y"},
    **{"prior_mean": "1|batch n: as y", "prior_factor": "1|batch n n: as y"},
    **{"observed": "batch length p: ids", "lengths": "batch: int64", "starts": "batch length: ids"},
}
_GIVES = {
    "mean_t": "batch length n: as y",
    "factor_t": "rows length n n: as y",
    "innovation": "batch length p: as y",
    "innovation_factor": "rows length p p: as y",
    "density": "batch length: as y",
}
_GRADS = {f"grad_{key}": _GIVES[key] for key in ("mean_t", "innovation", "density")}
_N = len(Arguments._fields)


def _wrong(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    n, p, rows, batch = sizes["n"], sizes["p"], sizes["rows"], sizes["batch"]
    if not n or not p or sizes["k"] != n + p:
        return f"n and p above 0, and p + n rows; got n = {n}, p = {p} and {sizes['k']} rows"
    if rows == batch:
        return None
    varies = [key for key in ("G", "N", "factor", "prior_factor") if given[key].shape[0] != 1]
    varies += [key for key in ("observed", "lengths", "starts") if given[key] is not None]
    if rows != 1 or varies:
        return f"covariances for {batch} rows, or for 1 where no {', '.join(varies) or 'row'} differs; got {rows}"
    return None


def _forward(*arguments: Any) -> Outputs:
    given = Arguments(*arguments)
    runs_c = c_runs("kalman", refusal_of(y=given.y))
    return tuple((native if runs_c else pytorch).forward(given))  # type: ignore[return-value]


def _adjoint(*arguments: Any) -> Any:
    given, found, grads = _parts(arguments)
    runs_c = c_runs("kalman", refusal_of(y=given.y))
    return without_none((native if runs_c else pytorch).backward(grads, given, found), given.y)


def _parts(arguments: Sequence[Any]) -> tuple[Arguments, Outputs, Grads]:
    """Sorts the adjoint's arguments: tensors come first, the count of rows is the last."""
    *tensors, rows = arguments
    given = Arguments(*[*tensors[: _N - 1], rows])
    return given, Outputs(*tensors[_N - 1 : -3]), Grads(*tensors[-3:])


def _fake_adjoint(*arguments: Any) -> Any:
    return without_none([empty_like(m) for m in arguments[: len(Gradients._fields)]], arguments[0])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # factors are large, and their gradients rare
    save(ctx, (*inputs[:-1], *output, inputs[-1]), output)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    *tensors, rows = saved(ctx)
    of = Outputs(*grads)  # type: ignore[arg-type]
    nothing = [None] * (_N - len(Gradients._fields))
    if not tensors[0].shape[1]:  # of no steps: the outputs are empty, and depend on nothing
        return *(torch.zeros_like(m) for m in tensors[: len(Gradients._fields)]), *nothing
    if of.factor is None and of.innovation_factor is None:
        return *_kalman_backward(*tensors, of.mean, of.innovation, of.density, rows), *nothing
    # A gradient of the factors themselves is rare: PyTorch's loop has it. Its inputs are no history of one another, as
    # the prior is of the state before a document.
    again, given = torch.is_grad_enabled(), [*tensors[: _N - 1], rows]
    numbers = given[: len(Gradients._fields)]
    with torch.enable_grad():
        numbers = [m.view_as(m) if again and m.requires_grad else m.detach().requires_grad_() for m in numbers]
        return *gradients_of(*_definition(given, numbers, of), create_graph=again), *nothing


def _definition(given: Sequence[Any], numbers: Sequence[Tensor], of: Outputs) -> tuple[Any, ...]:
    """The outputs that have a gradient as a function of the numbers among the arguments; these; and the gradients."""
    masks = given[len(Gradients._fields) : _N]

    def run(*numbers: Tensor) -> tuple[Tensor, ...]:
        found = pytorch.forward(Arguments(*numbers, *masks))  # type: ignore[arg-type]
        return tuple(m for m, grad in zip(found, of) if grad is not None)

    return run, numbers, [grad for grad in of if grad is not None]


def _plain_adjoint(*arguments: Any) -> list[Tensor | None]:
    given, _, grads = _parts(arguments)
    of = Outputs(grads[0], None, grads[1], None, grads[2])  # type: ignore[arg-type]
    return gradients_of(*_definition(given, arguments[: len(Gradients._fields)], of), create_graph=True)


_kalman = register(
    "kalman",
    ", ".join(_ARGUMENTS),
    _forward,
    takes=_TAKES,
    gives=_GIVES,
    needs=_wrong,
    setup_context=_setup_context,
    backward=_backward,
)
_kalman_backward = register(
    "kalman_backward",
    ", ".join(
        [*_TENSORS, *(f"Tensor {key}" for key in _GIVES), *(f"Tensor? {key}" for key in _GRADS), *_ARGUMENTS[-1:]]
    ),
    _adjoint,
    takes={**_TAKES, **_GIVES, **_GRADS},
    gives={key: _TAKES[key] for key in Gradients._fields},
    needs=_wrong,
    fake=_fake_adjoint,
    backward=derivative_of(_plain_adjoint),
)


def kalman(
    y: Tensor,
    G: Tensor,
    N: Tensor,
    offset: Tensor,
    mean: Tensor,
    factor: Tensor,
    prior_mean: Tensor,
    prior_factor: Tensor,
    observed: Tensor | None = None,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
) -> Outputs:
    """Steps (y_t, x_t) = G x_{t-1} + offset + N z, z of variance 1, given y_1 ... y_t at each: the Kalman filter.

    With a square root L of the covariance of x_{t-1}, the triangular form of [G L, N] is [[F, 0], [U, L']]: F F^T is
    the innovation's covariance, U F^-1 the gain, L' the square root of that of x_t given y_t.

    Shapes:   see :class:`~statewise.kernels.kalman.signature.Arguments`, without ``rows``, and ``Outputs``; the factors
              given may be any square roots, those returned have a diagonal that is not negative, and one row where no
              covariance depends on the row
              lengths: (batch,) int64; a row stands still beyond. starts: (batch, length) bool, where x_{t-1} is the
              prior
    Cost:     O(length (p + n)^2 n) for each row whose covariances are its own. In C each lane of a vector is a row;
              the adjoint recomputes from the outputs, in O(length (p + n)^2 n) with no square root.
    Numerics: in float32 or float64 as given. In C, a variance below what the dtype holds (1e-38 in float32) is zero.
              A gradient of the factors themselves goes through PyTorch's operations, as everything does off the CPU.
              There are no second derivatives.
    Errors:   InputError if shapes or dtypes do not fit; RuntimeError for a second derivative.
    Source:   Kailath, Sayed & Hassibi 2000, Linear Estimation, sec. 12.3 (arrays); the reflection, Golub & Van Loan
              2013, Matrix Computations, sec. 5.1; the adjoint of the update, Särkkä 2013, sec. A.3, by hand.
    """
    batch = len(y)
    own = any(m is not None for m in (observed, lengths, starts))
    own = own or any(m.shape[0] != 1 for m in (G, N, factor, prior_factor))
    given = (y, G, N, offset, mean, factor, prior_mean, prior_factor, observed, lengths, starts)
    return Outputs(*_kalman(*given, batch if own else min(batch, 1)))
