"""The forecaster: covariates, its config, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from forecast_models import MAMBA, NAN, OPTIONS, example, forecaster

from statewise.configuration import from_dict, to_dict
from statewise.errors import ConfigError, InputError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.forecaster import ForecasterConfig


def test_which_covariates_reach_which_forecasts() -> None:
    model, inputs = forecaster(**OPTIONS), example()
    ahead = inputs["future_covariates"].requires_grad_()
    forecasts, _ = model(**inputs)
    for step in range(5):
        (gradient,) = torch.autograd.grad(forecasts[:, step].sum(), ahead, retain_graph=True)
        moved = gradient.abs().amax((0, 2)) > 0
        assert moved.tolist() == [other == step for other in range(5)]
    past = inputs["covariates"].requires_grad_()
    (gradient,) = torch.autograd.grad(model(**inputs)[0].sum(), past)
    assert (gradient.abs().amax(0) > 0).any(0).all()


def test_no_covariates_may_be_none_or_empty() -> None:
    model = forecaster()
    x = torch.randn(2, 9, 1, dtype=torch.float64)
    empty = {"covariates": x.new_zeros(2, 9, 0), "future_covariates": x.new_zeros(2, 5, 0)}
    torch.testing.assert_close(model(x)[0], model(x, **empty)[0], rtol=0, atol=0)


def test_config_round_trips_and_checkpointing_changes_nothing() -> None:
    model, inputs = forecaster(**OPTIONS), example()
    types = {"Mamba2Config": Mamba2Config, "AttentionConfig": AttentionConfig, "BlockConfig": BlockConfig}
    assert from_dict(ForecasterConfig, to_dict(model.config), types=types) == model.config
    assert model.config.in_full().layers[0] == BlockConfig(mixer=MAMBA)
    plain = torch.autograd.grad(model(**inputs)[0].sum(), list(model.parameters()))
    model.gradient_checkpointing = True
    torch.testing.assert_close(torch.autograd.grad(model(**inputs)[0].sum(), list(model.parameters())), plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon=0 is out of range; expected an integer of at least 1"),
        ({"d_covariates": -1}, "d_covariates=-1"),
        ({"quantiles": (0.5, 0.1)}, "rising numbers between 0 and 1"),
        ({"quantiles": (0.0, 0.5)}, "rising numbers between 0 and 1"),
        ({"quantiles": (0.1, 0.9)}, "quantiles=.* is without the median, which is the point forecast"),
        ({"quantiles": ("a",)}, "quantiles.0='a' has the wrong type"),
        ({"quantiles": 0.5}, "rising numbers"),
        ({"horizon": 2.5}, "horizon=2.5 has the wrong type \\(number\\); expected an integer"),
        ({"d_model": "a"}, "d_model='a'"),
        ({"quantiles": ()}, "rising numbers between 0 and 1"),
        ({"scaling": "mean"}, "scaling='mean' is unknown; use one of: running, none"),
        ({"scaling_steps": 1}, "at least 2 or None"),
        ({"norm": "batch"}, "one of"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"layers": ()}, "layers=.* is empty"),
        ({"layers": (3,)}, "layers.0=3 has the wrong type"),
    ],
)
def test_config_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        forecaster(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i | {"history": i["history"][..., :1]}, r"history must be a tensor of shape \(batch, length, 2\)"),
        (lambda i: i | {"history": i["history"].nan_to_num().long()}, "history must be real"),
        (lambda i: i | {"history": i["history"][:, :0], "covariates": i["covariates"][:, :0]}, "has no step"),
        (lambda i: i | {"lengths": torch.tensor([3, 0, 1])}, "has no step"),
        (lambda i: i | {"lengths": torch.tensor([3, 30, 1])}, "lengths must lie in"),
        (lambda i: i | {"lengths": torch.tensor([3, 3])}, "lengths must be integers"),
        (lambda i: i | {"covariates": None}, r"covariates must be a tensor of shape \(3, 23, 3\), got NoneType"),
        (lambda i: i | {"future_covariates": i["covariates"]}, r"future_covariates must .* \(3, 5, 1\)"),
        (lambda i: i | {"covariates": i["covariates"] * NAN}, "covariates hold NaN"),
        (lambda i: i | {"history": i["history"] * math.inf}, "history holds infinity"),
        (lambda i: i | {"state": 3}, "state must be a ForecasterState"),
        (lambda i: i | {"state": forecaster(**OPTIONS).initial_state(2)}, r"needs state.position of shape"),
    ],
)
def test_input_refusals(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        forecaster(**OPTIONS)(**change(example()))


def test_targets_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"targets must have shape \(2, 5, 1\)"):
        forecaster().loss(torch.zeros(2, 9, 1), torch.zeros(2, 5))
