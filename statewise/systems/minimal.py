"""A system without the states that inputs do not reach or outputs do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.base import System
from statewise.systems.discrete import DiscreteSystem
from statewise.systems.gramians import _with_outputs
from statewise.systems.reachability import check_tolerance, reached
from statewise.systems.responses import Parts, Reference, frequencies, responses

_S = TypeVar("_S", bound=System)
_APART = 8.0  # times as fast: from there on two groups of poles are reduced each for itself
_ROUNDS = 3  # of choosing units: in the first ones rounding may look like a movement
_STEPS = 40  # of Newton's method, which takes about ten
_WORST = 1e6  # norm of a projection onto one of two groups; with a larger one they stay together
_WRONG = 1e3  # times the tolerance, of the responses
_MOST_WRONG = 0.1


def minimal_realization(system: _S, *, tolerance: float = 1e-10) -> _S:
    """The system with the fewest states that has the same responses: only those that are reached and shown.

    Works for any A, also one that grows, in any units of states, inputs and outputs, and for fast and slow parts side
    by side. What is nearly unreachable stays; :func:`balanced_truncation` leaves that out too, with a bound. A smaller
    system is only returned if its responses, around the size of each pole and at the 64 sharpest resonances, are the
    given ones within 1,000 times ``tolerance``, or the square root of the dtype's precision, and never worse than a
    tenth: where rounding blurs which states count, some stay that need not. With nothing to leave out the
    system comes back as it is.

    Shapes:  one system, without leading axes   ->   the same kind, dense, with at most n states; D, ``dt`` and
             ``reads`` stay
    Cost:    O(n^3) for each size that poles have, in float64; the result is rounded to the system's dtype.
    Errors:  InputError for a batch (each may have another order), a system without C, a tolerance that is not positive,
             and a system none of whose states counts: its responses are D alone.
    Source:  Kalman 1963; the staircase form: Van Dooren 1981; the matrix sign function divides fast from slow: Roberts
             1980, Int. J. Control 32(4).

    >>> from statewise.systems import ContinuousSystem
    >>> two = ContinuousSystem(-torch.ones(2), torch.ones(2), torch.ones(2), diagonal=True)
    >>> minimal_realization(two).A
    tensor([[-1.]])
    """
    A, B, C, _ = _with_outputs(system)
    if system.leading:
        raise InputError(f"minimal_realization takes one system; got a batch {system.leading}: index it")
    check_tolerance(tolerance)
    if not B.shape[-1] or not C.shape[-2]:
        raise InputError(f"minimal_realization needs an input and an output; got {B.shape[-1]} and {C.shape[-2]}")
    discrete = isinstance(system, DiscreteSystem)
    pace = 1.0 if discrete else _pace(A)  # time in units of what the system does in it
    given = Parts(A / pace, B / pace, C).in_even_units()
    of_inputs, of_outputs = _lengths(given.B, 0), _lengths(given.C, 1)  # as the states, each in its own unit
    given = Parts(given.A, given.B / of_inputs, given.C / of_outputs)
    best, reference = given, Reference.of(given, discrete)
    eps = torch.finfo(system.A.dtype).eps
    allowed = min(max(_WRONG * tolerance, eps**0.5), _MOST_WRONG)
    for found in _candidates(given, discrete, tolerance):
        stored = Parts(*(x.to(system.A.dtype).to(x.dtype) for x in found))  # as the result will hold it
        if len(found.A) < len(best.A) and reference.error(stored) <= allowed:
            best = found
    if not len(best.A):
        raise InputError("no state is both reached and shown: the responses are D alone, and no system is left")
    if best is given:
        return system._with(A, B, C)
    return system._with(best.A * pace, best.B * of_inputs * pace, best.C * of_outputs)


def _pace(A: Tensor) -> float:
    """The size of A as a power of two."""
    size = float(A.abs().amax()) if A.numel() else 0.0
    return 2.0 ** round(math.log2(size)) if size else 1.0


def _lengths(vectors: Tensor, dim: int) -> Tensor:
    """The lengths of columns (dim 0) or rows (dim 1), as powers of two; 1 for those that are zero. Squares of large and
    small numbers do not fit."""
    largest = vectors.abs().amax(dim, keepdim=True)
    largest = torch.where(largest > 0, torch.exp2(largest.log2().round()), 1.0)
    length = largest * torch.linalg.vector_norm(vectors / largest, dim=dim, keepdim=True)
    return torch.where(length > 0, torch.exp2(length.log2().round()), 1.0)


def _candidates(given: Parts, discrete: bool, tolerance: float) -> Iterator[Parts]:
    """Reduced by several ways, each of which is wrong for some systems whose numbers span many orders of magnitude."""
    yield _reduced(_in_common_units(given, discrete), tolerance)
    parts = [_reduced(_in_common_units(part, discrete), tolerance) for part in _by_speed(given)]
    if len(parts) > 1:
        A, B, C = zip(*parts)
        yield Parts(torch.block_diag(*A), torch.cat(B), torch.cat(C, -1))
    yield _reduced(given, tolerance)


def _reduced(parts: Parts, tolerance: float) -> Parts:
    """What is reached, and of that what is shown."""
    A, B, C = parts
    basis = reached(A, B, tolerance)
    A, B, C = basis.mH @ A @ basis, basis.mH @ B, C @ basis
    basis = reached(A.mH, C.mH, tolerance)
    return Parts(basis.mH @ A @ basis, basis.mH @ B, C @ basis)


def _in_common_units(parts: Parts, discrete: bool) -> Parts:
    """In units of the states in which inputs move each as much as it moves the outputs, without the states that
    responses would not miss by more than rounding.

    In another unit of a state, how far it is moved is multiplied and how far it moves the outputs is divided, so their
    product does not depend on the unit. Each state is judged, and measured, at the frequencies at which this product is
    largest compared with the others: a slow state is small in all that is fast.
    """
    for _ in range(_ROUNDS):
        counts = parts.A.new_zeros(len(parts.A)).abs()
        units = counts + 1
        for z in frequencies(parts.A, discrete) if len(counts) else []:
            seen = responses(parts, z)
            moved, moves = seen.reached.abs().amax((0, -1)), seen.shown.abs().amax((0, 1))
            product = moved * moves
            share = product / product.amax().clamp_min(torch.finfo(product.dtype).tiny)
            more = share > counts
            units, counts = torch.where(more, (moved / moves).sqrt(), units), torch.where(more, share, counts)
        kept = counts > len(counts) * torch.finfo(torch.float64).eps
        parts = Parts(parts.A[kept][:, kept], parts.B[kept], parts.C[:, kept]).in_units(units[kept])
    return parts


def _by_speed(parts: Parts) -> list[Parts]:
    """The system as a sum of systems, whose poles are of one size each. A state that counts in the sum counts in its
    part, however small it is beside the others'."""
    sizes = torch.linalg.eigvals(parts.A).abs().sort().values
    if len(sizes) < 2:
        return [parts]
    slow, fast = sizes[:-1], sizes[1:]
    slow = slow.clamp_min(len(sizes) * torch.finfo(sizes.dtype).eps * sizes[-1])
    gap = int((fast / slow).argmax())
    if not bool(fast[gap] > _APART * slow[gap]):
        return [parts]
    halves = _halves(parts, float((slow[gap] * fast[gap]).sqrt()), gap + 1)  # a size that no pole has
    return [parts] if halves is None else [part for half in halves for part in _by_speed(half)]


def _halves(parts: Parts, between: float, n_slow: int) -> tuple[Parts, Parts] | None:
    """The part whose ``n_slow`` poles are within a circle, and the rest; None where they are not told apart well."""
    A, B, C = parts
    identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
    # Poles within the circle go to the left half plane, the others to the right
    sign, info = torch.linalg.solve_ex(A / between + identity, A / between - identity)
    if int(info):
        return None
    for _ in range(_STEPS):
        inverse, info = torch.linalg.inv_ex(sign)
        if int(info) or not bool(inverse.isfinite().all()):
            return None
        change, sign = torch.linalg.matrix_norm(inverse - sign) / 2, (sign + inverse) / 2
        if change <= 1e-14 * len(A) * torch.linalg.matrix_norm(sign):
            break
    slow, fast = (identity - sign) / 2, (identity + sign) / 2
    if not bool(torch.linalg.matrix_norm(slow, 2) < _WORST):
        return None
    U_slow, U_fast = torch.linalg.svd(slow).U[:, :n_slow], torch.linalg.svd(fast).U[:, : len(A) - n_slow]
    back = torch.linalg.inv(torch.cat([U_slow, U_fast], -1))
    to_slow, to_fast = back[:n_slow], back[n_slow:]
    return (
        Parts(to_slow @ A @ U_slow, to_slow @ B, C @ U_slow),
        Parts(to_fast @ A @ U_fast, to_fast @ B, C @ U_fast),
    )
