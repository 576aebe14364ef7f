"""The forecaster: pieces and rows, gaps, scaling against its definition, ordered quantiles."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from forecast_models import LAYERS, MAMBA, NAN, OPTIONS, example, forecaster, mean
from torch.utils import _pytree as pytree

from statewise.errors import InputError
from statewise.mixers.s4d import S4DConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.quantiles import pinball
from statewise.models.running_scale import initial_running_scale, level_and_scale, running_scale

S4D = S4DConfig(d_state=8)


def scale_by_definition(x: list[float], steps: int | None) -> list[tuple[float, float]]:
    """level and scale after each step, summed over all values before it, each with its weight written out."""
    decay = 1.0 if steps is None else 1 - 1 / steps
    result = []
    for end in range(1, len(x) + 1):
        seen = [value for value in x[:end] if not math.isnan(value)]
        levels = [mean([(decay ** (i - j), seen[j]) for j in range(i + 1)]) for i in range(len(seen))]
        last = len(seen) - 1
        distances = [(decay ** (last - i), abs(seen[i] - levels[i - 1])) for i in range(1, len(seen))]
        farthest = max((abs(value - seen[0]) for value in seen), default=0.0)
        alike = not seen or farthest <= 2**-50 * abs(seen[0])
        result.append((levels[-1] if levels else 0.0, 0.0 if alike else max(mean(distances), 1e-6 * farthest)))
    return result


SERIES = [NAN, 300.0, NAN, 302.5, 299.0, NAN, NAN, 305.0, 305.0, 290.0]
ONE_JUMP = [0.1, 0.1, 0.1 + 2**-56, 50.0, *[0.1] * 200]  # a calm after it that its trace is gone from, but for LEAST


@pytest.mark.parametrize("steps", [None, 2, 5])
@pytest.mark.parametrize("x", [SERIES, ONE_JUMP], ids=["series", "one jump"])
def test_running_scale_is_its_definition(x: list[float], steps: int | None) -> None:
    history = torch.tensor(x, dtype=torch.float64)[None, :, None]
    state = initial_running_scale(1, 1, torch.device("cpu"))
    series, after = running_scale(history, ~history.isnan(), state, steps)
    expected = torch.tensor(scale_by_definition(x, steps), dtype=torch.float64)
    exact = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(series.level[0, :, 0], expected[:, 0], **exact)
    torch.testing.assert_close(series.scale[0, :, 0], expected[:, 1], **exact)
    torch.testing.assert_close(torch.cat(level_and_scale(after)).flatten(), expected[-1], **exact)
    if x is SERIES:
        assert series.value.flatten().tolist() == [0, 300, 300, 302.5, 299, 299, 299, 305, 305, 290]
        assert series.change.flatten().tolist() == [0, 0, 0, 2.5, -3.5, 0, 0, 6, 0, -15]


@pytest.mark.parametrize("value", [1000.0, 0.1, 1e-200, 0.0])
def test_a_constant_series_is_forecast_as_it_is_and_teaches_nothing(value: float) -> None:
    model = forecaster(torch.float32)
    history = torch.full((2, 30, 1), value, dtype=torch.float64)
    assert (model(history)[0] == value).all()
    loss, _ = model.loss(history, torch.full((2, 5, 1), value + 1))
    assert loss == 0
    history[1] += torch.randn(30, 1)  # of the two rows this one alone teaches
    loss, _ = model.loss(history, history[:, :5] + 1)
    single, _ = model.loss(history[1:], history[1:, :5] + 1)
    torch.testing.assert_close(loss, single / 2)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, list(model.parameters())))


def test_without_scaling_numbers_are_taken_as_they_are() -> None:
    model = forecaster(scaling="none", quantiles=None)
    x = torch.randn(1, 9, 1, dtype=torch.float64)
    assert not torch.allclose(model(x)[0] + 5, model(x + 5)[0])
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
    assert model(x)[0].abs().max() == 0


@pytest.mark.parametrize(("scaling_steps", "layers"), [(None, LAYERS), (6, LAYERS), (6, (S4D, S4D))])
def test_a_history_read_in_pieces_gives_the_same_forecasts_state_and_gradients(
    scaling_steps: int | None, layers: tuple[Any, ...]
) -> None:
    model, inputs = forecaster(**OPTIONS, scaling_steps=scaling_steps, layers=layers), example()
    history = inputs["history"].requires_grad_()
    whole, none = model(**inputs)
    assert none is None
    gradient = torch.autograd.grad(whole.sum(), [history, *model.parameters()])
    _, final = model(**inputs, state=model.initial_state(3))
    for cuts in [(c,) for c in range(1, 23)] + [(4, 4, 5, 20), (1, 2, 3, 22)]:
        state = model.initial_state(3)
        for begin, end in zip((0, *cuts), (*cuts, 23)):
            piece = {**inputs, "history": history[:, begin:end], "covariates": inputs["covariates"][:, begin:end]}
            forecasts, state = model(**piece, state=state)
        torch.testing.assert_close(forecasts, whole)
        torch.testing.assert_close(pytree.tree_leaves(state), pytree.tree_leaves(final))
    torch.testing.assert_close(torch.autograd.grad(forecasts.sum(), [history, *model.parameters()]), gradient)
    assert state.position.tolist() == [23, 23, 23]


def test_each_piece_forecasts_from_all_that_was_read() -> None:
    model, inputs = forecaster(**OPTIONS), example()
    state = model.initial_state(3)
    for t in range(23):
        so_far = {**inputs, "history": inputs["history"][:, : t + 1], "covariates": inputs["covariates"][:, : t + 1]}
        now = {**inputs, "history": inputs["history"][:, t : t + 1], "covariates": inputs["covariates"][:, t : t + 1]}
        forecasts, state = model(**now, state=state)
        torch.testing.assert_close(forecasts, model(**so_far)[0])


def test_ragged_rows_equal_single_rows() -> None:
    model, inputs = forecaster(**OPTIONS, scaling_steps=6), example()
    lengths = torch.tensor([23, 9, 1])
    padding = torch.arange(23) >= lengths[:, None]
    padded = {
        "history": inputs["history"].masked_fill(padding[..., None], math.inf),
        "covariates": inputs["covariates"].masked_fill(padding[..., None], NAN).requires_grad_(),
    }
    ahead = inputs["future_covariates"]
    forecasts, state = model(**padded, future_covariates=ahead, state=model.initial_state(3), lengths=lengths)
    for parameter in torch.autograd.grad(forecasts.sum(), [*model.parameters(), padded["covariates"]]):
        assert parameter.isfinite().all()
    # Rows that read nothing forecast what they did, and rows that read on go on from where they were
    more = example(length=4)
    again = torch.tensor([0, 4, 2])
    after, state = model(more["history"], state, covariates=more["covariates"], future_covariates=ahead, lengths=again)
    torch.testing.assert_close(after[0], forecasts[0])
    assert state is not None
    assert state.position.tolist() == [23, 13, 3]
    for row, (n, m) in enumerate(zip(lengths.tolist(), again.tolist())):
        history = torch.cat([inputs["history"][row : row + 1, :n], more["history"][row : row + 1, :m]], 1)
        covariates = torch.cat([inputs["covariates"][row : row + 1, :n], more["covariates"][row : row + 1, :m]], 1)
        single, _ = model(history[:, :n], covariates=covariates[:, :n], future_covariates=ahead[row : row + 1])
        torch.testing.assert_close(forecasts[row : row + 1], single)
        single, _ = model(history, covariates=covariates, future_covariates=ahead[row : row + 1])
        torch.testing.assert_close(after[row : row + 1], single)


def test_a_state_is_float32_or_wider_and_is_not_mutated() -> None:
    model, inputs = forecaster(torch.float32, **OPTIONS), example()
    inputs = {name: x.float() for name, x in inputs.items()}
    state = model.initial_state(3)
    assert {leaf.dtype for leaf in pytree.tree_leaves(state)} == {torch.float32, torch.float64, torch.int64}
    assert {leaf.dtype for leaf in state.scaling} == {torch.float64}
    kept = copy.deepcopy(state)
    forecasts, after = model(**inputs, state=state)
    assert forecasts.dtype == torch.float32
    assert [leaf.dtype for leaf in pytree.tree_leaves(after)] == [leaf.dtype for leaf in pytree.tree_leaves(state)]
    torch.testing.assert_close(pytree.tree_leaves(state), pytree.tree_leaves(kept), rtol=0, atol=0)
    wide, _ = copy.deepcopy(model).double()(**example())
    torch.testing.assert_close(forecasts.double(), wide, rtol=1e-5, atol=2e-3)


def test_layers_that_read_both_ways_forecast_without_a_state() -> None:
    model = forecaster(layers=(S4DConfig(d_state=8, bidirectional=True),))
    x = torch.randn(2, 9, 1, dtype=torch.float64)
    forecasts, _ = model(x, lengths=torch.tensor([9, 4]))
    torch.testing.assert_close(forecasts[1:], model(x[1:, :4])[0])
    with pytest.raises(InputError, match="bidirectional"):
        model.initial_state(2)


def test_a_gap_is_the_last_value_and_is_told_apart() -> None:
    model = forecaster(quantiles=None)
    x = torch.randn(1, 12, 1, dtype=torch.float64).cumsum(1)
    gap = x.clone()
    gap[0, 7] = NAN
    filled = x.clone()
    filled[0, 7] = x[0, 6]
    forecasts, told = model(gap)[0], model(filled)[0]
    assert forecasts.isfinite().all()
    assert not torch.allclose(forecasts, told)


def test_a_history_of_gaps_alone_gives_finite_forecasts() -> None:
    model = forecaster()
    forecasts, state = model(torch.full((1, 4, 1), NAN), model.initial_state(1))
    assert forecasts.isfinite().all()
    x = torch.randn(1, 9, 1, dtype=torch.float64)
    late = torch.cat([torch.full((1, 4, 1), NAN, dtype=torch.float64), x], 1)
    torch.testing.assert_close(model(x, state)[0], model(late)[0])


def test_quantiles_never_cross() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        model = forecaster(torch.float32, quantiles=(0.01, 0.3, 0.5, 0.6, 0.99))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(10 ** torch.randint(-1, 2, ()).item())
        forecasts, _ = model(torch.randn(4, 10, 1).cumsum(1) * 1e3)
        assert (forecasts.diff(dim=-1) >= 0).all()


def test_the_point_forecast_is_the_median() -> None:
    config = forecaster(**OPTIONS).config
    assert config.n_quantiles == 4
    assert config.point == 1
    assert forecaster(quantiles=(0.05, 0.45, 0.5)).config.point == 2
    assert forecaster(quantiles=None).config.point == 0


def test_pinball_is_smallest_at_the_quantile() -> None:
    values = torch.randn(2001, dtype=torch.float64)
    grid = torch.linspace(-2, 2, 401, dtype=torch.float64)
    losses = pinball((values[:, None] - grid)[..., None], (0.8,)).mean(0).squeeze()
    assert abs(grid[losses.argmin()] - values.quantile(0.8)) <= 0.02


@pytest.mark.parametrize("quantiles", [None, (0.1, 0.5, 0.9)])
def test_loss_is_the_error_in_units_of_the_scale(quantiles: tuple[float, ...] | None) -> None:
    model = forecaster(quantiles=quantiles, scaling_steps=4)
    history = torch.randn(2, 12, 1, dtype=torch.float64).cumsum(1)
    targets = torch.randn(2, 5, 1, dtype=torch.float64)
    targets[0, 2] = NAN
    targets.requires_grad_()
    loss, none = model.loss(history, targets)
    assert none is None
    forecasts, state = model(history, model.initial_state(2))
    assert state is not None
    scale = level_and_scale(state.scaling)[1]
    expected = []
    for row, step in [(r, k) for r in range(2) for k in range(5) if (r, k) != (0, 2)]:
        for i, q in enumerate(quantiles or (None,)):
            e = (targets[row, step, 0] - forecasts[row, step, 0, i]) / scale[row, 0]
            expected.append(e * e if q is None else q * e if e > 0 else (q - 1) * e)
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    gradients = torch.autograd.grad(loss, [*model.parameters(), targets])
    assert all(gradient.isfinite().all() for gradient in gradients)
    nothing, _ = model.loss(history, torch.full_like(targets, NAN))
    assert nothing == 0


def test_it_learns_a_trend_and_a_season_that_it_never_saw_so_high() -> None:
    torch.manual_seed(0)
    config = ForecasterConfig(horizon=4, d_model=16, layers=(MAMBA,), scaling_steps=8, quantiles=(0.1, 0.5, 0.9))
    model = config.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    time = torch.arange(28.0)
    for _ in range(60):
        phase, slope = torch.randint(0, 4, (16, 1)), torch.rand(16, 1)
        x = (slope * (time + 50 * torch.rand(16, 1)) + 2 * torch.sin(math.pi / 2 * (time + phase)))[..., None]
        loss, _ = model.loss(x[:, :24], x[:, 24:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = (0.5 * (time + 1000) + 2 * torch.sin(math.pi / 2 * time))[None, :, None]
    error = (model(x[:, :24])[0][..., 1] - x[:, 24:]).abs().mean()
    naive = (x[:, 20:24] - x[:, 24:]).abs().mean()
    assert error < 0.5 * naive
