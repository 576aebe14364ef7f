"""TrainConfig refuses what makes no sense; the schedules; which parameter is in which group."""

from __future__ import annotations

import copy
import io
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from training_runs import GROUP_OF, GROUPS, small_model, train_config

from statewise.configuration import from_dict, to_dict
from statewise.data.synthetic_languages import InductionHeadConfig
from statewise.data.text import TextDataConfig
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import Dynamics
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.training import BudgetConfig, OptimizerConfig, RunConfig, ScheduleConfig, TrainConfig
from statewise.training.distributed.wrap import require_divisible
from statewise.training.environment import process_settings
from statewise.training.optimizer import (
    build_optimizer,
    describe_groups,
    groups_table,
    parameter_groups,
    set_learning_rate,
)
from statewise.training.schedule import Cadence, learning_rate_factor


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("minutes", 0.0),
        ("epochs", 0.0),
        ("epochs", math.inf),
        ("batch_size", 0),
        ("length", 0),
        ("accumulation", 0),
        ("seed", -1),
        ("lr", 0.0),
        ("lr", math.nan),
        ("lr", math.inf),
        ("min_ratio", 1.5),
        ("dynamics_lr_ratio", -1.0),
        ("dynamics_lr_max", 0.0),
        ("dt_lr_ratio", 0.0),
        ("dt_lr_max", -1.0),
        ("betas", (0.9, 1.0)),
        ("betas", (0.9,)),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("weight_decay_of", "biases"),
        ("clip_norm", 0.0),
        ("kind", "exponential"),
        ("warmup", -0.1),
        ("decay", 2.0),
        ("precision", "float16"),
        ("matmul", "medium"),
        ("device", "tpu"),
        ("threads", 0),
        ("evaluate_every", 0),
        ("evaluate_minutes", -1.0),
        ("evaluate_items", 1),
        ("save_every", 0),
        ("save_minutes", 0.0),
        ("keep_last", 0),
        ("log_every", 0),
    ],
)
def test_values_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    cls = GROUPS[GROUP_OF[field]] if field in GROUP_OF else TrainConfig
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{field}[.=]") as caught:
        train_config(**{"steps": 1, field: value})
    assert "\n" not in str(caught.value)


def test_a_run_needs_an_end() -> None:
    for cls in (BudgetConfig, TrainConfig):
        with pytest.raises(ConfigError, match="steps, minutes or epochs"):
            cls()


def test_warmup_and_decay_must_fit_into_one_run() -> None:
    ScheduleConfig(warmup=0.6, decay=0.6)  # a cosine has no decay phase
    with pytest.raises(ConfigError, match="together"):
        ScheduleConfig(kind="wsd", warmup=0.6, decay=0.6)


def test_config_goes_through_json() -> None:
    config = train_config(steps=5, betas=(0.8, 0.9), clip_norm=None)
    assert from_dict(TrainConfig, to_dict(config), types={}) == config


def test_cosine_by_its_definition() -> None:
    for progress in (0.1, 0.3, 0.5, 0.99):
        expected = 0.2 + 0.8 * (1 + math.cos(math.pi * (progress - 0.1) / 0.9)) / 2
        assert learning_rate_factor(progress, warmup=0.1, min_ratio=0.2) == pytest.approx(expected, rel=1e-12)


def test_the_fall_may_begin_under_the_warm_up() -> None:
    """timm's warmup_prefix=False: at step t of T it is the cosine of t / T, wherever the warm-up ended."""
    for progress in (0.1, 0.3, 0.5, 1.0):
        for kind, shape in (("cosine", (1 + math.cos(math.pi * progress)) / 2), ("linear", 1 - progress)):
            found = learning_rate_factor(progress, kind=kind, warmup=0.1, warmup_prefix=False, min_ratio=0.2)
            assert found == pytest.approx(0.2 + 0.8 * shape, rel=1e-12)
    assert learning_rate_factor(0.05, warmup=0.1, warmup_prefix=False, start_ratio=0.2) == pytest.approx(0.6)
    with pytest.raises(ConfigError, match=r"warmup_prefix=False is for schedules that fall after the warm-up"):
        ScheduleConfig(kind="wsd", warmup_prefix=False)


def test_the_rows_that_fill_no_batch_can_be_kept_where_there_are_rows() -> None:
    with pytest.raises(ConfigError, match=r"drop_last=False with accumulation=2: .* set train.accumulation=1 or"):
        train_config(steps=1, drop_last=False, accumulation=2)
    train, model = train_config(steps=1, drop_last=False), small_model()
    with pytest.raises(ConfigError, match=r"train.drop_last=false: the batches of TextDataConfig are all full"):
        RunConfig(model=model, data=TextDataConfig(source="x"), train=train)
    run = RunConfig(model=model, data=InductionHeadConfig(), train=train)
    require_divisible(run, cast(Any, SimpleNamespace(n_data=1)))
    with pytest.raises(ConfigError, match=r"may not divide among 4 data ranks; set train.drop_last=true"):
        require_divisible(run, cast(Any, SimpleNamespace(n_data=4)))


@pytest.mark.parametrize("kind", ["cosine", "wsd"])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("decay", [0.0, 0.2, 0.5])
def test_schedule_rises_to_one_and_ends_low(kind: str, warmup: float, decay: float) -> None:
    factors = [
        learning_rate_factor(i / 200, kind=kind, warmup=warmup, decay=decay, min_ratio=0.1) for i in range(-10, 220)
    ]
    assert all(0 <= f <= 1 for f in factors)
    peak = factors.index(max(factors))
    if warmup < 1:
        assert max(factors) == pytest.approx(1.0)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(factors[: peak + 1]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(factors[peak:]))
    if kind == "cosine" or decay > 0:
        assert factors[-1] == pytest.approx(0.1)


def test_wsd_is_flat_in_the_middle() -> None:
    middle = [learning_rate_factor(p / 100, kind="wsd", warmup=0.1, decay=0.2) for p in range(10, 80)]
    assert middle == [1.0] * 70


def test_cadence_by_minutes_counts_from_the_last_time() -> None:
    due = Cadence(every=None, minutes=1.0, seconds=30.0)
    assert [due(1, s) for s in (40.0, 90.0, 140.0, 150.0)] == [False, True, False, True]
    never = Cadence(every=None, minutes=None)
    assert not any(never(step, 1e9) for step in range(10))


def hybrid(tie: bool) -> nn.Module:
    mamba = BlockConfig(mixer=Mamba2Config(d_state=8, d_head=8, bias=True), mlp=MLPConfig(gated=True))
    attention = BlockConfig(
        mixer=AttentionConfig(n_heads=2, positions="learned", max_positions=32), mlp=MLPConfig(), norm="layer"
    )
    return LanguageModelConfig(vocab_size=11, d_model=16, layers=(mamba, attention), tie_embeddings=tie).build()


@pytest.mark.parametrize("tie", [True, False])
def test_each_parameter_is_in_exactly_one_group(tie: bool) -> None:
    model = hybrid(tie)
    groups = {g.name: g for g in parameter_groups(model, OptimizerConfig(dynamics_lr_ratio=0.1))}
    members = [id(p) for g in groups.values() for _, p in g.parameters]
    assert len(members) == len(set(members))
    assert set(members) == {id(p) for p in model.parameters()}

    names = {name: {n for n, _ in g.parameters} for name, g in groups.items()}
    assert {"layers.0.mixer.dynamics.A_log", "layers.0.mixer.dynamics.dt_bias"} <= names["dynamics"]
    assert {"layers.0.mixer.in_proj.weight", "layers.0.mixer.convolution.weight"} <= names["maps"]
    assert {"embedding.weight", "layers.1.mixer.positions.weight"} == names["embeddings"]
    assert {"norm.weight", "layers.0.mixer.norm.weight", "layers.0.mixer.in_proj.bias"} <= names["vectors"]
    assert ("head.weight" in names["maps"]) is not tie
    assert all("head.weight" not in group for name, group in names.items() if name != "maps")

    assert {name: (g.lr_ratio, g.weight_decay) for name, g in groups.items()} == {
        "maps": (1.0, 0.1),
        "embeddings": (1.0, 0.0),
        "vectors": (1.0, 0.0),
        "dynamics": (0.1, 0.0),
    }

    everything = parameter_groups(model, OptimizerConfig(weight_decay_of="all"))
    assert {g.name: g.weight_decay for g in everything} == {
        "maps": 0.1,
        "embeddings": 0.1,
        "vectors": 0.1,
        "dynamics": 0.0,
    }


def test_dt_may_have_a_rate_of_its_own() -> None:
    """As S4's published settings for ListOps: A and B at 1e-3, dt at the rate of everything else, 1e-2."""
    mixers = (S4Config(d_state=4), S4DConfig(d_state=4), H3Config(d_state=4), MambaConfig(), Mamba2Config(d_head=4))
    model = LanguageModelConfig(vocab_size=5, d_model=8, layers=mixers).build()
    together = OptimizerConfig(lr=1e-2, dynamics_lr_max=1e-3)
    apart = replace(together, dt_lr_ratio=1.0)
    groups = {g.name: g for g in parameter_groups(model, apart)}
    assert (groups["dynamics"].lr_ratio, groups["dt"].lr_ratio) == pytest.approx((0.1, 1.0))
    assert groups["dt"].weight_decay == 0.0
    names = {name for name, _ in groups["dt"].parameters}
    inside = ("dynamics.log_dt", "dynamics.log_dt", "dynamics.diagonal.log_dt")
    assert {f"layers.{i}.mixer.{name}" for i, name in enumerate(inside)} < names
    assert {name.rpartition(".")[2] for name in names} == {"log_dt", "dt_bias"}
    assert len(names) == len(mixers)
    before = {g.name: g for g in parameter_groups(model, together)}
    assert "dt" not in before
    assert {n for n, _ in before["dynamics"].parameters} == names | {n for n, _ in groups["dynamics"].parameters}
    bounded = {g.name: g.lr_ratio for g in parameter_groups(model, replace(apart, dt_lr_ratio=0.5, dt_lr_max=2e-3))}
    assert bounded["dt"] == pytest.approx(0.2)
    with pytest.raises(
        ConfigError, match=r"dt_lr_max=0\.002 needs a separate rate for dt; set train\.optimizer\.dt_lr_ratio=1"
    ):
        replace(together, dt_lr_max=2e-3)


def test_groups_survive_a_deepcopy() -> None:
    model = hybrid(True)
    names = [[n for n, _ in group.parameters] for group in (*parameter_groups(model, OptimizerConfig()),)]
    copied = [[n for n, _ in g.parameters] for g in parameter_groups(copy.deepcopy(model), OptimizerConfig())]
    assert names == copied


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 4))


def test_a_parameter_in_no_group_is_named() -> None:
    with pytest.raises(ConfigError, match=r"layer\.table of shape \(3, 4\).*Odd"):
        parameter_groups(nn.ModuleDict({"layer": Odd()}), OptimizerConfig())


def test_what_stands_below_dynamics_is_dynamics() -> None:
    class Systems(Dynamics):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Odd()

    (group,) = parameter_groups(Systems(), OptimizerConfig())
    assert (group.name, group.n_parameters) == ("dynamics", 12)


def test_frozen_parameters_are_left_out() -> None:
    model = small_model().build()
    model.embedding.weight.requires_grad_(False)
    groups = parameter_groups(model, OptimizerConfig())
    assert "embeddings" not in {g.name for g in groups}


def test_optimizer_follows_the_groups() -> None:
    config = OptimizerConfig(lr=0.5, betas=(0.7, 0.8), eps=1e-6, weight_decay=0.3, dynamics_lr_ratio=0.1)
    groups = parameter_groups(hybrid(True), config)
    optimizer = build_optimizer(groups, config)
    set_learning_rate(optimizer, 0.25)
    by_name = dict(zip([g.name for g in groups], optimizer.param_groups))
    assert {name: g["lr"] for name, g in by_name.items()} == pytest.approx(
        {"maps": 0.25, "embeddings": 0.25, "vectors": 0.25, "dynamics": 0.025}
    )
    assert {name: g["weight_decay"] for name, g in by_name.items()} == {
        "maps": 0.3,
        "embeddings": 0.0,
        "vectors": 0.0,
        "dynamics": 0.0,
    }
    assert all((g["betas"], g["eps"]) == ((0.7, 0.8), 1e-6) for g in optimizer.param_groups)


def test_one_step_is_adamw() -> None:
    """Against the equations in float64: arXiv:1711.05101, algorithm 2."""
    config = OptimizerConfig(lr=0.1, weight_decay=0.2, betas=(0.9, 0.99), eps=1e-8)
    layer = nn.Linear(5, 3).double()
    groups = parameter_groups(layer, config)
    optimizer = build_optimizer(groups, config)
    weight, gradients = layer.weight.detach().clone(), [torch.randn(3, 5).double() for _ in range(3)]
    m = v = torch.zeros(3, 5, dtype=torch.float64)
    for t, gradient in enumerate(gradients, 1):
        layer.weight.grad = gradient.clone()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
        adam = (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
        weight = weight - 0.1 * (adam + 0.2 * weight)
    torch.testing.assert_close(layer.weight.detach(), weight, rtol=1e-10, atol=1e-12)


def test_the_table_has_a_line_for_each_group() -> None:
    from rich.console import Console

    groups = parameter_groups(hybrid(True), OptimizerConfig())
    rows = describe_groups(groups, lr=0.5)
    out = io.StringIO()
    Console(file=out, width=120).print(groups_table(rows))
    assert all(row["group"] in out.getvalue() for row in rows)
    assert f"{groups[0].n_parameters:,}" in out.getvalue()


def test_threads_are_bounded_by_the_cores_of_this_machine() -> None:
    """Not by TrainConfig: a run.json from a larger machine can still be read here."""
    with pytest.raises(ConfigError, match=r"TrainConfig\.threads=100000 is out of range; expected at most \d+"):
        process_settings(train_config(steps=1, threads=100_000)).__enter__()
    with process_settings(train_config(steps=1, threads=1)):
        assert torch.get_num_threads() == 1
