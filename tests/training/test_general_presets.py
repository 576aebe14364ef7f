"""Presets for data that nobody knows yet: sizes, time scales and budgets that follow from what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import statewise as sw
from statewise import cli
from statewise.data.recognise import recognise
from statewise.errors import ConfigError, DataError
from statewise.training.presets import GENERAL, PRESETS, chosen, run_on
from statewise.training.presets.labelled import Size

SMALL_REGRESSOR = sw.SequenceRegressorConfig(d_output=1, d_input=1, d_model=8, layers=(sw.S4DConfig(d_state=4),))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))


def run_for(source: str, preset: str | None = None, lines: tuple[str, ...] = (), **said: Any) -> Any:
    return run_on(preset, recognise(source, **said), lines)


@pytest.mark.parametrize(
    ("size", "frame", "batch", "epochs"),
    [
        (Size(1300, 64, 64), 1, 32, 30.0),  # digits
        (Size(72, 1460, 1460), 2, 4, 33.0),
        (Size(60, 20, 20), 1, 4, 40.0),
        (Size(100_000, 100, 100), 1, 32, 0.96),  # 3,000 updates at most
        (Size(54_000, 784, 784), 1, 32, 0.24),  # 10,000,000 steps at most
        (Size(3, 16_000, 5), 4, 3, 600.0),
        (Size(1, 1, 1), 1, 1, 600.0),
    ],
)
def test_sizes(size: Size, frame: int, batch: int, epochs: float) -> None:
    assert (size.frame_length, size.batch_size) == (frame, batch)
    assert size.epochs == pytest.approx(epochs, rel=0.02)
    low, high = size.dt_range
    assert 0 < low < high


def test_a_name_is_general_or_tuned() -> None:
    assert not GENERAL.keys() & PRESETS.keys()


def test_what_is_long_is_read_in_frames() -> None:
    np.savez("long.npz", x=np.ones((40, 5000)) * np.arange(40)[:, None], y=np.arange(40) % 2)
    run = run_for("long.npz")
    assert (run.model.frame_length, run.model.n_classes, run.train.batch_size) == (8, 2, 4)
    shorter = run_for("long.npz", lines=("data.max_length=100",))
    assert (shorter.model.frame_length, shorter.data.max_length) == (1, 100)


def test_targets_far_from_zero_are_learned() -> None:
    x = np.random.default_rng(0).normal(size=(200, 12)).astype(np.float32)
    prices = 200_000 + 50_000 * x.mean(1) * np.sqrt(12)
    run = sw.train("regressor", (x, prices.astype(np.float32)), steps=80, set={"model.d_model": 16})
    record = run.evaluate("test")
    assert record["r2"] > 0.7
    assert run.model.config.target_mean[0] == pytest.approx(200_000, rel=0.1)
    assert np.abs(run.predict(x).values[:, 0] - prices).mean() < 20_000


def test_whole_numbers_are_what_the_preset_learns() -> None:
    """From files and from arrays; without one they are classes, and so many are asked about."""
    x = np.random.default_rng(0).normal(size=(200, 3)).round(3)
    for name, targets in (("age", np.arange(200) % 40 + 20), ("price", np.arange(200) * 1000)):
        rows = "".join(f"{a},{b},{c},{target}\n" for (a, b, c), target in zip(x, targets))
        Path(f"{name}.csv").write_text(f"a,b,c,{name}\n{rows}")
        np.savez(f"{name}.npz", x=x, y=targets)
        table = {"source": f"{name}.csv", "label_field": name}
        for run in (run_for(preset="regressor", **table), run_for(f"{name}.npz", "regressor")):
            assert (type(run.model).__name__, run.data.task) == ("SequenceRegressorConfig", "regression")
            assert run.model.target_mean[0] == pytest.approx(targets.mean(), rel=0.1)
    ages = {"source": "age.csv", "label_field": "age"}
    run = run_for(preset="classifier", **ages)
    assert (run.model.n_classes, run.data.task) == (40, "classification")
    assert "training a classifier of 40 classes for" in chosen(recognise("age.csv", label_field="age"), run_for(**ages))
    for said in ({"preset": "classifier"}, {}):
        with pytest.raises(DataError, match=r"as many classes; to predict numbers say --set data\.task=regression"):
            run_for("price.csv", label_field="price", **said)
    for preset, line in (("regressor", "data.task=classification"), ("classifier", "data.task=regression")):
        with pytest.raises(ConfigError, match=rf"--preset {preset} and --set {line} contradict each other; leave one"):
            run_for(preset=preset, lines=(line,), **ages)
    run = sw.train("regressor", (x, np.arange(200)), steps=2, set={"model.d_model": 8})
    assert run.predict(x[:5]).values.shape == (5, 1)
    run = sw.train(SMALL_REGRESSOR, (x, np.arange(200)), steps=2)
    assert run.evaluate("test")["sequences"] == 40


def test_classes_and_numbers_in_each_others_preset() -> None:
    x = np.ones((30, 4)) * np.arange(30)[:, None]
    np.savez("real.npz", x=x, y=np.linspace(0, 1, 30))
    np.savez("whole.npz", x=x, y=np.arange(30) % 3 * 1.0)
    np.savez("named.npz", x=x, y=np.array(["low", "high"] * 15))
    with pytest.raises(ConfigError, match='targets are numbers, not classes; use the preset "regressor"'):
        run_for("real.npz", "classifier")
    with pytest.raises(ConfigError, match='targets are classes, not numbers; use the preset "classifier"'):
        run_for("named.npz", "regressor")
    for name, line, message in (
        ("real.npz", "data.task=classification", "not classes; leave out --set data.task=classification to predict"),
        ("named.npz", "data.task=regression", "needs numbers; leave out --set data.task=regression to learn classes"),
    ):
        with pytest.raises(DataError, match=message):
            run_for(name, lines=(line,))
    assert run_for("whole.npz", "classifier").model.n_classes == 3
    assert run_for("named.npz", "classifier").model.n_classes == 2
    with pytest.raises(ConfigError, match='targets are classes, not numbers; use the preset "classifier"'):
        run_for("digits", "regressor")


@pytest.mark.parametrize(
    ("n", "said", "horizon", "history", "calendar"),
    [
        (800, {}, 7, 24, ("week", "year")),  # days; two years and more
        (400, {"horizon": 30}, 30, 90, ("week",)),
        (60, {}, 6, 24, ("week",)),
    ],
)
def test_series(n: int, said: dict[str, Any], horizon: int, history: int, calendar: tuple[str, ...]) -> None:
    days = np.datetime64("2020-01-01") + np.arange(n)
    Path("sales.csv").write_text("day,sold\n" + "".join(f"{day},{i % 7}\n" for i, day in enumerate(days)))
    run = run_for("sales.csv", **said)
    assert (run.data.horizon, run.data.calendar) == (horizon, calendar)
    assert run.data.history == pytest.approx(history, abs=6)
    assert run.model.horizon == horizon
    given = run_for("sales.csv", lines=("data.history=12", "data.calendar=[]"), **said)
    assert (given.data.history, given.data.calendar) == (12, ())


def test_series_of_numbers_have_no_calendar() -> None:
    Path("waves.csv").write_text("time,x\n" + "".join(f"{i},{i % 5}\n" for i in range(300)))
    run = run_for("waves.csv")
    assert (run.data.calendar, run.data.horizon) == ((), 10)


def test_little_text_is_read_in_small_pieces() -> None:
    Path("short.txt").write_text("a line of text\n" * 60)
    run = run_for("short.txt")
    assert (run.data.tokenizer, run.train.batch_size, run.train.length) == ("bytes", 1, 256)
    assert (run.train.budget.epochs, run.train.budget.minutes) == (30.0, 5.0)
    Path("long.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(20_000)))
    run = run_for("long.txt")
    assert (run.data.tokenizer, run.model.vocab_size) == ("bpe:2048", 2048)
    assert run_for("long.txt", lines=("data.tokenizer=bytes",)).model.vocab_size == 257


def test_texts_with_labels() -> None:
    rows = [{"text": f"{'good' if i % 2 else 'bad'} number {i}", "stars": i % 2} for i in range(100)]
    Path("reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_for("reviews.jsonl", text_field="text", label_field="stars")
    assert (run.model.n_classes, run.data.max_length, run.data.tokenizer) == (2, 512, "bytes")


def test_the_kind_has_to_fit() -> None:
    Path("text.txt").write_text("a text\n" * 100)
    with pytest.raises(ConfigError, match=r"learns from series, but text\.txt is read as text; use the preset 'lang"):
        run_for("text.txt", "forecaster")
    with pytest.raises(ConfigError, match="'digits' learns from LabelledDataConfig, but"):
        run_for("text.txt", "digits")


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("own.npz", x=np.ones((40, 9)) * (np.arange(40) % 2)[:, None], y=np.arange(40) % 2)
    assert cli.run(["train", "--data", "own.npz", "--set", "model.d_model=8", "--print-config"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"]["d_model"] == 8
    assert printed["data"]["folder"] == "own.npz"
    assert cli.run(["train", "--preset", "digits", "--data", "own.npz", "--steps", "1", "--batch-size", "4"]) == 0
    assert json.loads(Path("runs/digits-1/run.json").read_text())["model"]["n_classes"] == 2
    capsys.readouterr()
    np.savez("other.npz", x=np.ones((30, 9)), y=np.arange(30) % 2)
    for data in ("own.npz", "other.npz"):
        assert cli.run(["evaluate", "runs/digits-1", "--data", data, "--json"]) == 0
    told = [json.loads(line)["sequences"] for line in capsys.readouterr().out.splitlines()]
    assert told == [40, 30]
    for words, message in (
        (["--preset", "classifier"], "--preset classifier has no data of its own; give --data"),
        ([], "nothing says what to train on; give one of: statewise train --data photos"),
        (["--steps", "3"], "statewise train --preset demo\n"),
        (["--label-field", "kind"], "--label-field is for your own data; give --data PATH too"),
        (["--preset", "tiny", "--label-field", "kind"], "--label-field is not for TextDataConfig"),
        (["--data", "own.npz", "--tokenizer", "bytes"], "--tokenizer is not for LabelledDataConfig"),
        (["--preset", "forecastr", "--data", "gone"], "did you mean 'forecaster'"),
    ):
        assert cli.run(["train", *words, "--out", "new"]) == 2
        assert message in capsys.readouterr().err
        assert not Path("new").exists()


def test_columns_that_are_no_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Named, or numbering the rows: neither is asked for by predict, nor is it in its way."""
    x = np.random.default_rng(0).normal(size=(40, 2)).round(3)
    rows = [f"{i},K{i},{a},{b},{'up' if a > 0 else 'down'}" for i, (a, b) in enumerate(x)]
    Path("t.csv").write_text("\n".join(["id,Kunde,a,b,kind", *rows]))
    Path("bare.csv").write_text("a,b\n" + "".join(f"{a},{b}\n" for a, b in x))
    command = ["train", "--data", "t.csv", "--label-field", "kind", "--steps", "1"]
    assert cli.run([*command, "--out", "run"]) == 2
    assert "leave out columns that are not steps: --ignore-field Kunde\n" in capsys.readouterr().err
    assert cli.run([*command, "--ignore-field", "Kunde", "--out", "run"]) == 0
    told = capsys.readouterr().out
    assert "steps a, b; classes down, up by 'kind'; id numbers the rows, so it is left out" in told
    assert json.loads(Path("run/run.json").read_text())["data"]["ignored_fields"] == ["Kunde"]
    assert cli.run([*command, "--set", "data.ignored_fields=Kunde", "--out", "other"]) == 0
    capsys.readouterr()
    answers = []
    for name in ("t.csv", "bare.csv"):
        assert cli.run(["predict", "run", name]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert answers[0].count("\n") == 40
