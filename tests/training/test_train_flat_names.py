"""Settings of training by the names that they had before there were groups: in run.json, by ``--set``, in Python."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from typing import Any

import pytest

from statewise.configuration import assign, from_dict, to_dict
from statewise.errors import ConfigError
from statewise.training import RunConfig, ScheduleConfig, TrainConfig, run_from_dict
from statewise.training.flat_names import FLAT_NAMES
from statewise.training.tasks import run_types

# What a run.json of version 0.1.0 had
FIRST = {
    "steps": 6, "minutes": None, "batch_size": 2, "length": 8, "accumulation": 1, "carry_state": True, "seed": 3,
    "lr": 2.0, "lr_min_ratio": 0.2, "dynamics_lr_ratio": 0.5, "betas": [0.8, 0.9], "eps": 1e-07, "weight_decay": 0.3,
    "clip_norm": 2.0, "schedule": "wsd", "warmup": 0.03, "decay": 0.1, "precision": "float32", "matmul": "default",
    "compile": False, "gradient_checkpointing": False, "device": "auto", "threads": None, "evaluate_every": 2,
    "evaluate_minutes": 4.0, "evaluate_tokens": 200, "save_every": 3, "save_minutes": None, "keep_last": 1,
    "keep_best": False, "log_every": 5,
}  # fmt: skip
# What the last one without groups had besides
LATER = {
    "epochs": 2.5, "drop_last": True, "stop_at": 0.5, "stop_after": 2, "lr_start_ratio": 0.1, "dynamics_lr_max": 0.001,
    "dt_lr_ratio": 0.25, "dt_lr_max": 0.002, "weight_decay_of": "all", "warmup_prefix": True, "check_memory": False,
    "parallel": {"data": "fsdp", "tensor": 2, "sequence": 1}, "evaluate_items": 100, "evaluate_window": 16,
}  # fmt: skip
FLAT = {name: value for name, value in {**FIRST, **LATER}.items() if name != "evaluate_tokens"}
GROUPED: dict[str, Any] = {
    "budget": {"steps": 6, "epochs": 2.5, "minutes": None, "stop_at": 0.5, "stop_after": 2},
    "optimizer": {
        "lr": 2.0, "dynamics_lr_ratio": 0.5, "dynamics_lr_max": 0.001, "dt_lr_ratio": 0.25, "dt_lr_max": 0.002,
        "betas": [0.8, 0.9], "eps": 1e-07, "weight_decay": 0.3, "weight_decay_of": "all", "clip_norm": 2.0,
    },
    "schedule": {
        "kind": "wsd", "warmup": 0.03, "warmup_prefix": True, "decay": 0.1, "start_ratio": 0.1, "min_ratio": 0.2,
    },
    "reporting": {
        "evaluate_every": 2, "evaluate_minutes": 4.0, "evaluate_items": 100, "evaluate_window": 16, "save_every": 3,
        "save_minutes": None, "keep_last": 1, "keep_best": False, "log_every": 5,
    },
    "parallel": {"data": "fsdp", "tensor": 2, "sequence": 1},
    "batch_size": 2, "length": 8, "accumulation": 1, "drop_last": True, "carry_state": True, "seed": 3,
    "precision": "float32", "matmul": "default", "compile": False, "gradient_checkpointing": False,
    "check_memory": False, "device": "auto", "threads": None,
}  # fmt: skip

# What came after the groups, at what it was before
SINCE = {
    "budget": {"clock": "wall"},
    "optimizer": {"matrices": "adamw", "matrices_lr": 0.02, "matrices_momentum": 0.95, "matrices_weight_decay": 0.1},
    "reporting": {"log": []},
}
SINCE_BESIDE: dict[str, Any] = {  # the same beside the groups
    "initial": None,
    "exact": False,
    "pieces": 1,
    "short_first": False,
    "routing": {"balance": 0.0, "z": 0.0, "bias_step": 0.0},
}


def a_run(train: dict[str, Any]) -> RunConfig:
    model = {"vocab_size": 257, "d_model": 8, "layers": [{"type": "MambaConfig"}]}
    return run_from_dict({"model": model, "data": {"source": "text"}, "train": train})


def test_a_run_json_without_groups_is_the_run_that_it_was() -> None:
    run = a_run(FLAT)
    assert run == a_run(GROUPED)
    grouped = {name: {**GROUPED[name], **since} for name, since in SINCE.items()}
    assert to_dict(run)["train"] == {**GROUPED, **grouped, **SINCE_BESIDE}  # which is how it is written from now on
    first = a_run(FIRST).train
    assert (first.budget.steps, first.optimizer.lr, first.schedule.kind) == (6, 2.0, "wsd")
    assert (first.schedule.min_ratio, first.reporting.evaluate_items, first.seed) == (0.2, 200, 3)


def test_the_table_has_every_name_there_was() -> None:
    groups = {name for name, value in GROUPED.items() if isinstance(value, dict)}
    flat = {field.name for field in fields(TrainConfig)} - groups - SINCE_BESIDE.keys() | {"parallel"}
    assert {*FIRST, *LATER} == FLAT_NAMES.keys() | flat


@pytest.mark.parametrize(("name", "path"), FLAT_NAMES.items())
def test_every_former_name_is_the_field_that_it_became(name: str, path: str) -> None:
    value = {**FIRST, **LATER}[name]
    group, field = path.split(".")
    read = from_dict(TrainConfig, {"steps": 1, "dt_lr_ratio": 1.0} | {name: value})
    assert to_dict(read)[group][field] == value
    start = a_run({"steps": 1, "dt_lr_ratio": 1.0})
    by_name, by_path = (assign(start, [f"train.{one}={json.dumps(value)}"]) for one in (name, path))
    assert by_name == by_path
    assert to_dict(by_name)["train"][group][field] == value


def test_names_of_both_kinds_may_stand_together_but_for_one_field() -> None:
    read = from_dict(TrainConfig, {"steps": 1, "lr": 1.0, "optimizer": {"eps": 1e-6}})
    assert (read.optimizer.lr, read.optimizer.eps) == (1.0, 1e-6)
    with pytest.raises(
        ConfigError, match=r"^here\.lr and here\.optimizer\.lr are the same field; leave out the first$"
    ):
        from_dict(TrainConfig, {"steps": 1, "optimizer": {"lr": 1.0}, "lr": 2.0}, where="here")
    for group in (None, 5, "adam"):  # it is the type that is wrong
        with pytest.raises(ConfigError, match=r"^here\.optimizer") as caught:
            from_dict(TrainConfig, {"steps": 1, "optimizer": group, "lr": 2.0}, where="here")
        assert "one field" not in str(caught.value)


def test_schedule_is_the_former_name_of_a_field_and_a_group_of_today() -> None:
    run = a_run(GROUPED)
    assert assign(run, ['train.schedule={"kind": "linear"}']).train.schedule == ScheduleConfig(kind="linear")
    assert assign(run, ["train.schedule=linear"]).train.schedule == replace(run.train.schedule, kind="linear")


@pytest.mark.parametrize(
    ("name", "meant"), [("stepps", "budget.steps"), ("weight_decy", "optimizer.weight_decay"), ("xyzzy", None)]
)
def test_an_unknown_name_is_one_line_that_names_what_is_near(name: str, meant: str | None) -> None:
    found = f"TrainConfig has no field {name!r}; "
    listed = f"its fields: {', '.join(field.name for field in fields(TrainConfig))}"
    near = rf"did you mean {re.escape(repr(meant))}.*\? All {len(fields(TrainConfig))}: help\(TrainConfig\)"
    expected = re.escape(listed) if meant is None else near
    for call in (
        lambda: a_run({**FLAT, name: 1}),
        lambda: a_run({**GROUPED, name: 1}),
        lambda: assign(a_run(GROUPED), [f"train.{name}=1"], types=run_types()),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert re.fullmatch(rf"(run\.)?train: {re.escape(found)}{expected}", str(caught.value))


def test_python_is_told_the_new_name() -> None:
    with pytest.raises(ConfigError, match=r"^TrainConfig has no field 'lr' any more; use optimizer\.lr$"):
        TrainConfig(lr=1e-3)  # type: ignore[call-arg]
