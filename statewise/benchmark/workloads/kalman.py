"""Kalman filters: one long series, thousands of series, the gradients of the likelihood; and the forms by length."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise.benchmark.case import OURS_WITHOUT_C, Action, Case, Function, Missing, Workload, case_name, our_sides
from statewise.benchmark.peers import kalman as peers
from statewise.benchmark.peers.kalman import Problem

ONE, MANY, GAPS, SHORT = "one series, 2 states", "10,000 series", "10,000 series with gaps", "one series, 4 states"
GRADIENTS = case_name("one series, 4 states", True)
LONG_GRADIENTS = case_name("one long series, 4 states", True)
DYNAMAX = "dynamax"
LOOP = "loop, autograd"
FORM_LENGTHS = (64, 256, 1024, 4096)
FORM_SIZES = ((2, 1), (2, 8), (2, 32), (4, 1), (16, 1))  # states, series


def problem(batch: int, length: int, n: int, *, gaps: bool = False) -> Problem:
    """A stable system of oscillations, seen in one noisy number; float64. ``gaps``: a tenth of the numbers is NaN."""
    g = torch.Generator().manual_seed(0)
    normal = functools.partial(torch.randn, generator=g, dtype=torch.float64)
    eye = torch.eye(n, dtype=torch.float64)
    turn = torch.linalg.matrix_exp(0.5 * (normal(n, n) - normal(n, n).T))
    A, _ = torch.linalg.qr(turn)
    A = 0.95 * A
    y = normal(batch, length, 1).cumsum(1) / length**0.5 + normal(batch, length, 1)
    if gaps:
        y = y.masked_fill(torch.rand(batch, length, 1, generator=g) < 0.1, torch.nan)
    return Problem(y, A, 0.1 * eye, torch.ones(1, n, dtype=torch.float64), eye[:1, :1], eye[0], eye)


def model_of(given: Problem) -> Any:
    from statewise.estimation import LinearGaussian

    return LinearGaussian(*given[1:5], mean=given.mean, covariance=given.covariance)


def our_filter(given: Problem) -> Tensor:
    """Means, factors and the log-likelihood."""
    posterior, _ = model_of(given).filter(given.y, form="square_root")
    posterior.log_likelihood.sum().item()
    mean: Tensor = posterior.mean
    return mean


def our_gradients(*given: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    return _gradients(lambda one: model_of(one).filter(one.y, form="square_root")[0].log_likelihood.sum(), given)


def loop_gradients(*given: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    return _gradients(lambda one: peers.torch_loop(*one), given)


def _gradients(function: Callable[[Problem], Tensor], given: tuple[Tensor, ...]) -> Any:
    """A log-likelihood and its gradients by A, Q, C and R."""
    learned = [m.detach().requires_grad_() for m in given[1:5]]
    value = function(Problem(given[0], *learned, *given[5:]))
    return value.detach(), torch.autograd.grad(value, learned)


def agreeing(build: Callable[[], Function], small: Problem) -> Function:
    """A side that finds on a small problem what ours finds.

    Errors:  Missing if it does not.
    """
    run = build()
    want, got = our_filter(small), run(small)
    error = float((want - got).abs().max())
    if not error < 1e-6 * float(want.abs().max()):
        raise Missing(f"it computes something different: its means differ by {error:.2g}")
    return run


def _prepare(build: Callable[[], Function], given: Callable[[], Problem], small: Callable[[], Problem]) -> Action:
    run, whole = agreeing(build, small()), given()
    return torch.no_grad()(functools.partial(run, whole))


def _case(name: str, batch: int, length: int, n: int, sides: dict[str, Any], *, gaps: bool = False) -> Case:
    given = functools.cache(functools.partial(problem, batch, length, n, gaps=gaps))
    small = functools.cache(functools.partial(problem, min(batch, 3), min(length, 60), n, gaps=gaps))
    ours = functools.partial(_prepare, lambda: our_filter, given, small)
    others = {side: functools.partial(_prepare, build, given, small) for side, build in sides.items()}
    missing = ", a tenth missing" if gaps else ""
    both = our_sides(ours)
    if gaps:
        del both[OURS_WITHOUT_C]  # minutes
    return Case(
        name=name,
        setting=f"{batch:,} x {length:,} steps, {n} states, 1 observation{missing}, float64",
        sides=both | others,
        length=batch * length,
        rounds=3,
    )


def cases(quick: bool) -> list[Case]:
    batch, length, long = (4, 20, 50) if quick else (10_000, 1000, 20_000)
    one = {
        "filterpy": peers.filterpy,
        "pykalman": peers.pykalman,
        "statsmodels": peers.statsmodels,
        DYNAMAX: peers.dynamax,
    }
    many = {"simdkalman": peers.simdkalman, "torch-kf": peers.torch_kf}
    return [
        _case(ONE, 1, long, 2, one),
        _case(SHORT, 1, length, 4, one | many),
        _case(MANY, batch, length, 4, many),
        _case(GAPS, batch, length, 4, many, gaps=True),
        _gradients_case(GRADIENTS, length, loop=True),
        _gradients_case(LONG_GRADIENTS, long, loop=False),  # the loop takes half a minute
    ]


def _gradients_case(name: str, length: int, *, loop: bool) -> Case:
    given = functools.cache(functools.partial(problem, 1, length, 4))

    def prepare(function: Function) -> Action:
        return functools.partial(function, *given())

    sides = our_sides(functools.partial(prepare, our_gradients))
    if loop:
        sides[LOOP] = functools.partial(prepare, loop_gradients)
    else:
        del sides[OURS_WITHOUT_C]
    return Case(
        name=name,
        setting=f"1 x {length:,} steps, 4 states, the log-likelihood by A, Q, C and R, float64",
        sides={**sides, DYNAMAX: lambda: prepare(peers.dynamax_gradients())},
        length=length,
        rounds=3,
    )


def form_cases(quick: bool) -> list[Case]:
    """``parallel`` and ``square_root``, with the C kernel and without; a tenth missing, so that rows share nothing."""
    found = []
    for n, batch in FORM_SIZES[:2] if quick else FORM_SIZES:
        for length in (8, 16) if quick else FORM_LENGTHS:
            given = functools.cache(functools.partial(problem, batch, length, n, gaps=True))
            sides: dict[str, Callable[[], Action]] = {}
            for form in ("square_root", "parallel"):
                both = our_sides(functools.partial(_form, form, given))
                sides |= {side.replace("ours", form): prepare for side, prepare in both.items()}
            sides.pop("parallel without C")  # it has no C
            found.append(
                Case(
                    name=f"{n} states, {batch} series, L={length:,}",
                    setting="1 observation, a tenth missing, float64: means, factors and log-likelihood",
                    sides=sides,
                    length=length,
                    rounds=3,
                )
            )
    return found


def _form(form: str, given: Callable[[], Problem]) -> Action:
    one = given()
    model = model_of(one)
    return torch.no_grad()(lambda: model.filter(one.y, form=form)[0].log_densities)


WORKLOAD = Workload(
    name="kalman",
    summary="Kalman filters: filterpy, pykalman, statsmodels, dynamax, simdkalman, torch-kf; gradients",
    cases=cases,
)
FORMS = Workload(
    name="kalman-forms",
    summary="Kalman filters: the parallel form and the sequential one, with C and without, by length and states",
    cases=form_cases,
)
