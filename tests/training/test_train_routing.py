"""Experts in balance while a run trains: whole, in pieces, accumulated, stopped and resumed; and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_data import run_on
from rich.console import Console
from test_train_pieces import assert_close
from test_train_resume import StopAt, assert_same, everything
from training_runs import curve, small_model, small_run, with_train

import statewise as sw
from statewise.data import LabelledDataConfig
from statewise.errors import ConfigError
from statewise.training import RoutingConfig, read_run, train_run
from statewise.training.report import TerminalReporter
from statewise.training.tasks import open_task

EVERYTHING = RoutingConfig(balance=0.1, z=0.01, bias_step=0.02)


def mixtures(**fields: Any) -> tuple[sw.BlockConfig, ...]:
    experts = {"n_experts": 4, "n_active": 1, "expand": 1, "router": "sigmoid", "correction_bias": True}
    block = sw.BlockConfig(
        mixer=sw.Mamba2Config(d_state=8, d_head=8, chunk_length=16), mlp=sw.MoEConfig(**{**experts, **fields})
    )
    return (block, block)


def a_run(folder: Path, fields: dict[str, Any] | None = None, **train: Any) -> Any:
    settings = {"steps": 4, "routing": EVERYTHING, **train}
    return small_run(folder, model=small_model(layers=mixtures(**(fields or {}))), **settings)


@pytest.mark.parametrize("options", [{}, {"carry_state": True}, {"accumulation": 2}], ids=str)
def test_a_text_in_pieces(tmp_path: Path, options: dict[str, Any]) -> None:
    train_run(a_run(tmp_path, **options), tmp_path / "whole")
    train_run(a_run(tmp_path, pieces=4, **options), tmp_path / "pieces")
    assert_close(tmp_path / "pieces", tmp_path / "whole")
    loads = [[line["expert_load"] for line in curve(tmp_path / name, "train")] for name in ("whole", "pieces")]
    assert loads[0] == loads[1]


def test_padded_rows_in_pieces(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 30, 2)).astype("float32")
    lengths = rng.integers(3, 31, 80)
    np.savez(tmp_path / "own.npz", train_x=x, train_y=(x[:, 0, 0] > 0).astype(int), train_lengths=lengths)
    run = run_on(LabelledDataConfig(source="arrays", folder=str(tmp_path / "own.npz")), steps=4, routing=EVERYTHING)
    run = replace(run, model=replace(run.model, layers=mixtures()))  # type: ignore[call-arg]
    train_run(run, tmp_path / "whole")
    train_run(with_train(run, pieces=5), tmp_path / "pieces")
    assert_close(tmp_path / "pieces", tmp_path / "whole")


def test_stopped_and_resumed_every_bit_is_the_same(tmp_path: Path) -> None:
    config = a_run(tmp_path, steps=5, log_every=2)
    train_run(config, tmp_path / "straight")
    for number, stop in enumerate([1, 3, 99]):  # also between two lines of metrics
        train_run(config, tmp_path / "run", resume=number > 0, reporter=StopAt(stop))
    found = everything(tmp_path / "run")
    assert_same(found, everything(tmp_path / "straight"))
    assert found["layers.0.mlp.router.bias"].abs().sum() > 0
    assert curve(tmp_path / "run") == curve(tmp_path / "straight")
    with pytest.raises(ConfigError, match=r"train.routing.balance"):
        train_run(with_train(config, routing=RoutingConfig()), tmp_path / "run", resume=True)


@pytest.mark.parametrize("options", [{"gradient_checkpointing": True}, {"precision": "bfloat16"}], ids=str)
def test_however_it_is_computed(tmp_path: Path, options: dict[str, Any]) -> None:
    train_run(a_run(tmp_path), tmp_path / "plain")
    train_run(a_run(tmp_path, **options), tmp_path / "other")
    for one, other in zip(curve(tmp_path / "plain", "train"), curve(tmp_path / "other", "train")):
        rel = 0.02 if "precision" in options else 1e-6
        assert one["loss"] == pytest.approx(other["loss"], rel=rel)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=10 * rel)


def test_experts_stay_in_use(tmp_path: Path) -> None:
    """Either way of balancing them is better than none; the loss that is told is the text's alone."""
    loads, ends = {}, {}
    ways = {"none": {}, "loss": {"balance": 0.1}, "bias": {"bias_step": 0.02}}
    for name, way in ways.items():
        run = a_run(tmp_path, {"n_experts": 8}, routing=RoutingConfig(**way), steps=60, log_every=20, lr=1e-2)
        train_run(run, tmp_path / name)
        lines = curve(tmp_path / name, "train")
        loads[name], ends[name] = lines[-1]["expert_load"], lines[-1]["loss"]
        assert 1.0 <= loads[name] <= 8.0
    assert max(loads["loss"], loads["bias"]) < 0.8 * loads["none"], loads
    assert ends["loss"] == pytest.approx(ends["none"], rel=0.2)


def test_the_first_loss_that_is_told_is_the_same(tmp_path: Path) -> None:
    for name, routing in (("none", RoutingConfig()), ("all", EVERYTHING)):
        train_run(a_run(tmp_path, routing=routing, steps=1), tmp_path / name)
    none, every = (curve(tmp_path / name, "train")[0] for name in ("none", "all"))
    assert none["loss"] == every["loss"]
    assert none["gradient_norm"] != every["gradient_norm"]


def test_a_line_of_the_terminal(tmp_path: Path) -> None:
    config = a_run(tmp_path, steps=2)
    train_run(config, tmp_path / "run")
    (line, *_) = curve(tmp_path / "run", "train")
    console = Console(width=80, force_terminal=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    reporter = TerminalReporter(console)
    reporter.begin(open_task(read_run(tmp_path / "run")))
    reporter.progress(0.5, {**line, "tokens_per_second": 12345.0})
    console.print(reporter.bar.get_renderable())
    reporter.close()
    shown = [text for text in console.export_text().splitlines() if "bits/byte" in text]
    assert f"load {line['expert_load']:.2f} 12,345 tok/s" in shown[0]


def test_errors(tmp_path: Path) -> None:
    config = small_run(tmp_path, steps=1, routing=RoutingConfig(balance=0.01))
    with pytest.raises(ConfigError, match=r"train.routing.balance=0.01, but no layer of the model is a mixture of exp"):
        train_run(config, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"bias_step=0.02 moves biases .*, and layers.0.mlp.router has none; set co"):
        train_run(a_run(tmp_path, {"correction_bias": False}), tmp_path / "b")
    with pytest.raises(ConfigError, match=r"RoutingConfig.z=-1"):
        RoutingConfig(z=-1.0)
    assert not (tmp_path / "a" / "run.json").exists()
