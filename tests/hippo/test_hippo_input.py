"""HiPPO: signals that are not there, and options that are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from statewise.errors import InputError
from statewise.hippo.measures import transition
from statewise.hippo.project import initial_state, project
from statewise.systems import ContinuousSystem, DiscreteSystem


@pytest.mark.parametrize(("measure", "theta"), [("legs", None), ("legt", 3.0)])
@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 2), (2, 5, 0), (0, 0), (2, 0, 3)])
def test_no_signals_have_no_coefficients(measure: str, theta: float | None, shape: tuple[int, ...]) -> None:
    begin = initial_state(shape[0], 4, channels=shape[2:])
    wanted: tuple[list[int] | None, ...] = (None, [])
    for at in wanted:
        for state in (None, begin):
            c, end = project(torch.zeros(shape), measure, 4, state, theta=theta, at=at)
            assert c.shape == (shape[0], shape[1] if at is None else 0, *shape[2:], 4)
            if end is not None:
                assert end.coefficients.shape == begin.coefficients.shape
                assert torch.equal(end.steps, begin.steps + shape[1])


U = torch.ones(1, 3)
DECAY = ContinuousSystem(-torch.ones(1), torch.ones(1), torch.ones(1), diagonal=True)
X: Any = "x"
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: transition("legt", 4, theta=X), "theta is a length of time"),
    (lambda: transition("legt", 4, theta=True), "theta is a length of time"),
    (lambda: transition("legt", 4, theta=X, halved=True), "window of 2; got theta=x"),
    (lambda: transition("lagt", 4, beta=X), "beta must be a finite number"),
    (lambda: project(U, "lagt", 4, theta=1.0, beta=X), "beta must be a finite number"),
    (lambda: project(U, "legs", 4, theta=X), "leave theta=x out"),
    (lambda: project(U, "legt", 4, theta=1.0, dt=X), "dt is the time from one sample"),
    (lambda: DECAY.simulate(torch.ones(3), [0.0], dt=1.0), "state must be .* got list"),  # type: ignore[arg-type]
    (lambda: DECAY.simulate(torch.ones(3), dt=X), "dt must be a number"),
    (lambda: DiscreteSystem(torch.zeros(1, 1), torch.ones(1), dt=X), "dt must be real and positive"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
