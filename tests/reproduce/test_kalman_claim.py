"""`statewise reproduce kalman`: a quick look, what it counts, and its 50 digits beside the definition."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from statewise.estimation import LinearGaussian
from statewise.reproduce import reproduce, settings
from statewise.reproduce.kalman import digits, systems
from statewise.reproduce.kalman.consistency import against, told

D = torch.float64
FORMS = [form for form in LinearGaussian.forms if form != "recurrent"]


def test_quick(tmp_path: Path) -> None:
    plots = find_spec("matplotlib") is not None
    outcome = reproduce("kalman", tmp_path / "run", settings("kalman", quick=True), plots=plots)
    assert outcome.exit_code == 0
    assert outcome.report is not None
    assert outcome.record is not None
    assert not outcome.report.bars
    assert all((tmp_path / "run" / plot).exists() for plot in outcome.record["plots"])
    found = outcome.record["figures"]
    for system in ("spring", "target"):
        assert found[system]["smoother"]["error"] < found[system]["filter"]["error"]
        assert found[system]["filter"]["coverage"] > 0.9
    assert found["target"]["filter"]["hidden_error"] > 2 * found["target"]["smoother"]["hidden_error"]
    assert len(outcome.record["tables"]) == 4


@pytest.mark.parametrize("form", FORMS)
def test_float32_stays_definite_where_the_textbook_does_not(form: str) -> None:
    """A condition of 10^12, beside 50 digits: float32 to a percent of a variance, float64 to 1e-10."""
    hard = digits.ill_conditioned(60, 0)
    assert all(bool((m == m.float().double()).all()) for m in (*hard.model._given().values(), hard.y))
    exact = digits.exactly(hard, 1)
    first = digits.by_form(hard, D, form)
    assert float(torch.linalg.cond(torch.as_tensor(first.covariances)).max()) > 5e11
    for dtype, variances, means in ((torch.float32, 2e-2, 1.0), (D, 1e-10, 1e-8)):
        found = digits.compared(digits.by_form(hard, dtype, form), exact)
        assert found["indefinite"] == 0
        assert found["lowest"] > 0
        assert found["variance_error"] < variances
        assert found["mean_error"] < means
        textbook = digits.compared(digits.by_textbook(hard, dtype, joseph=False), exact)
        joseph = digits.compared(digits.by_textbook(hard, dtype, joseph=True), exact)
        assert textbook["indefinite"] > 0
        assert joseph["variance_error"] > 100 * found["variance_error"]


@pytest.mark.parametrize("form", FORMS)
def test_the_long_series(form: str) -> None:
    hard = digits.long(600, 0)
    exact = digits.exactly(hard, 5)
    found = digits.compared(digits.by_form(hard, torch.float32, form), exact)
    assert found["indefinite"] == 0
    assert found["mean_error"] < 1e-3
    assert digits.compared(digits.by_textbook(hard, torch.float32, joseph=False), exact)["indefinite"] > 10
    assert digits.compared(digits.by_textbook(hard, torch.float32, joseph=True), exact)["indefinite"] > 10


def test_50_digits_are_the_definitions() -> None:
    """And a gain that has settled changes none of them."""
    hard = digits.long(400, 1)
    model = digits._as(hard.model, D)
    exact = digits.exactly(digits.Hard(model, hard.y), 1)
    want, _ = model.filter(hard.y[None], form="recurrent")
    means = torch.tensor([[float(m) for m in row] for row in exact.means], dtype=D)
    torch.testing.assert_close(means, want.mean[0], atol=1e-9, rtol=1e-9)
    assert float(exact.log_likelihood) == pytest.approx(float(want.log_likelihood), rel=1e-11)


def test_a_textbook_that_breaks_is_told() -> None:
    hard = digits.ill_conditioned(10, 0)
    exact = digits.exactly(hard, 1)
    run = digits.by_form(hard, D, "square_root")
    run.means[4:], run.covariances[4:] = math.nan, math.nan
    found = digits.compared(run._replace(log_likelihood=math.nan), exact)
    assert found["indefinite"] == 6
    assert found["mean_error"] == math.inf
    assert found["likelihood_error"] is None


def test_what_counts_as_inside() -> None:
    """Chi-square of 2 over 500 runs: a right mean lies inside, one of a quarter more does not, and steps of none do
    not count."""
    g = torch.Generator().manual_seed(0)
    squares = torch.randn(500, 40, 2, dtype=D, generator=g).square().sum(-1).mean(0)
    dof = torch.full((40,), 2)
    dof[10:20] = 0
    right, sure = against(squares, dof, 500, 0.95), against(1.25 * squares, dof, 500, 0.95)
    assert len(right["step"]) == 30
    assert right["inside"] > 0.8
    assert sure["inside"] < 0.1
    assert right["mean"] == pytest.approx(1.0, abs=0.03)
    assert right["low"] < 1 < right["high"]


def test_coverage_and_errors_of_gaps() -> None:
    runs = systems.target(20, 50, torch.Generator().manual_seed(0))
    assert runs.y.isnan().all(-1)[0].tolist() == systems.gap(50).tolist()
    posterior, _ = runs.model.filter(runs.y)
    found = told(posterior, runs, 0.95)
    assert found["coverage"] > 0.9
    assert found["lost"] == 0
    hidden = runs.y.isnan().all(-1)
    want = (posterior.mean - runs.x)[..., 0][hidden].square().mean().sqrt()
    assert found["hidden_error"] == pytest.approx(float(want))
    assert told(posterior, runs._replace(x=runs.x + 100), 0.95)["lost"] == 20
