"""The memory tasks: what is asked for is what was read, the rows of the splits differ, and signals are as described."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from statewise import cli
from statewise.data.labelled_batches import LabelledBatches
from statewise.data.memory_tasks import IGNORED, MemoryData, MemoryDataConfig, open_memory_task, white_signal
from statewise.errors import ConfigError, DataError
from statewise.training.presets import PRESETS, fit_model
from statewise.training.tasks import open_task

ROWS = np.arange(200)


def task(name: str, length: int = 40, **options: Any) -> MemoryData:
    return open_memory_task(MemoryDataConfig(task=name, length=length, **options))


def test_delay() -> None:
    data = task("delay", delay=7)
    x, y = data.split("train").read(ROWS)
    assert x.shape == y.shape == (200, 40, 1)
    assert x.dtype == y.dtype == np.float32
    np.testing.assert_array_equal(y[:, 7:], x[:, :-7])
    assert not y[:, :7].any()
    assert (data.d_input, data.d_output, data.each_step, data.classes, data.vocab_size) == (1, 1, True, (), None)
    np.testing.assert_array_equal(*task("delay", delay=0).split("train").read(ROWS))
    assert task("delay").config.resolved("delay") == 20
    assert float((y**2).mean()) == pytest.approx(1 - 7 / 40, rel=0.05)


def test_copying() -> None:
    data = task("copying", n_symbols=5, n_copied=6)
    x, y = data.split("test").read(ROWS)
    assert x.dtype == y.dtype == np.int64
    np.testing.assert_array_equal(y[:, -6:], x[:, :6])
    assert (y[:, :-6] == IGNORED).all()
    assert (x[:, 6:33] == 5).all()  # blank
    assert (x[:, 33] == 6).all()  # go
    assert (x[:, 34:] == 5).all()
    assert set(x[:, :6].ravel()) == set(range(5))
    assert (data.d_input, data.vocab_size, data.classes, data.each_step) == (None, 7, tuple("01234"), True)
    shortest = task("copying", length=21).split("train").read(ROWS)[0]
    assert (shortest[:, 10] == 9).all()


def test_adding() -> None:
    data = task("adding", length=11)
    x, y = data.split("train").read(ROWS)
    np.testing.assert_allclose((x[..., 0] * x[..., 1]).sum(1, keepdims=True), y, rtol=1e-6)
    assert (x[:, :5, 1].sum(1) == 1).all()
    assert (x[:, 5:, 1].sum(1) == 1).all()
    assert 0 <= x[..., 0].min() <= x[..., 0].max() < 1
    assert (data.d_input, data.d_output, data.each_step) == (2, 1, False)
    assert float(((y - 1) ** 2).mean()) == pytest.approx(1 / 6, rel=0.2)


def test_reconstruction() -> None:
    x, y = task("reconstruction", n_points=5, window=21).split("train").read(ROWS)
    np.testing.assert_array_equal(y, x[:, [39, 34, 29, 24, 19], 0])
    data = task("reconstruction", n_points=3, window=21, each_step=True)
    x, y = data.split("train").read(ROWS)
    assert y.shape == (200, 40, 3)
    np.testing.assert_array_equal(y[:, 30], x[:, [30, 20, 10], 0])
    np.testing.assert_array_equal(y[:, 5, 0], x[:, 5, 0])
    assert not y[:, 5, 1:].any()
    assert data.each_step
    whole = task("reconstruction", n_points=40).split("train").read(ROWS)
    np.testing.assert_array_equal(whole[1], whole[0][:, ::-1, 0])


@pytest.mark.parametrize("band", [None, 1.0, 0.25])
def test_signals_have_variance_one_and_no_frequency_above_the_band(band: float | None) -> None:
    signals = np.stack([white_signal(np.random.default_rng(i), 256, band) for i in range(400)])
    assert signals.mean() == pytest.approx(0, abs=0.02)
    assert signals.var() == pytest.approx(1, rel=0.03)
    assert signals[:, :10].var() == pytest.approx(1, rel=0.15)
    assert signals[:, -10:].var() == pytest.approx(1, rel=0.15)
    ends = np.corrcoef(signals[:, 0], signals[:, -1])[0, 1]  # no period that joins them
    assert abs(ends) < 0.2
    power = np.abs(np.fft.rfft(signals * np.hanning(256))) ** 2
    share = power[:, round(0.25 * 128) + 3 :].sum() / power.sum()
    assert share < 1e-4 if band == 0.25 else share > 0.6


def test_rows_hang_on_seed_split_and_number_alone() -> None:
    data = task("delay")
    again, other, more = task("delay"), task("delay", seed=1), task("delay", n_train=9999)
    train, _ = data.split("train").read(ROWS)
    np.testing.assert_array_equal(again.split("train").read(ROWS[50:60])[0], train[50:60])
    np.testing.assert_array_equal(more.split("train").read(ROWS)[0], train)
    rows = [train, *(d.split(s).read(ROWS)[0] for d, s in ((data, "validation"), (data, "test"), (other, "train")))]
    assert len({row.tobytes() for part in rows for row in part}) == 4 * len(ROWS)
    assert data.fingerprint == again.fingerprint
    assert len({d.fingerprint for d in (data, other, more, task("delay", delay=3), task("adding"))}) == 5
    assert task("delay", delay=20).fingerprint == data.fingerprint  # the default, written out


def test_splits_and_batches() -> None:
    data = task("copying", n_train=64, n_test=0)
    assert len(data.split("train")) == 64
    with pytest.raises(DataError, match=r"there is no test split: data\.n_test is 0"):
        data.split("test")
    with pytest.raises(ConfigError, match="the split 'x' is unknown"):
        data.split("x")
    batches = LabelledBatches(data.split("train"), 16, seed=0)
    rows = torch.cat([batches[step].inputs for step in range(4)])
    assert len(rows.unique(dim=0)) == 64
    assert batches[2].lengths is None
    assert "the task copying: length 40, n_symbols 8, n_copied 10" in data.describe()
    assert "train 64, validation 512, test 0" in data.describe()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "counting"}, "task='counting' is unknown"),
        ({"length": 1}, "length=1 is out of range"),
        ({"delay": 40, "length": 40}, "delay=40 is out of range for length 40; use at most 39"),
        ({"task": "copying", "length": 20}, "n_copied=10 is out of range for length 20; use at most 9"),
        ({"task": "copying", "n_symbols": 1}, "n_symbols=1 is out of range; expected an integer of at least 2 or None"),
        ({"task": "adding", "delay": 3}, "delay is not for the task 'adding'"),
        ({"task": "copying", "band": 0.5}, "band is not for the task 'copying'"),
        ({"task": "reconstruction", "window": 10, "n_points": 11}, "n_points=11 is out of range"),
        ({"task": "reconstruction", "window": 257}, "window=257 is out of range"),
        ({"band": 0.0}, "band=0.0 is out of range"),
        ({"n_train": 0}, "n_train=0 is out of range"),
        ({"seed": -1}, "seed=-1 is out of range"),
    ],
)
def test_configs_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryDataConfig(**fields)


@pytest.mark.parametrize("name", ["delay", "copying", "adding", "reconstruction"])
def test_the_presets_fit_their_tasks(name: str) -> None:
    run = PRESETS[name]()
    opened = open_task(run)
    assert fit_model(run) == run
    loss, _ = opened.loss(run.model.build(), opened.batches[0], None)
    loss.backward()
    assert loss.isfinite()


def test_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    for words, named in (
        (("--data", "delay"), "use --preset delay"),
        (("--preset", "adding", "--data", "copying"), "choose another by --preset delay, copying"),
        (("--preset", "delay", "--set", "data.task=adding"), "MemoryDataConfig.delay is not for the task 'adding'"),
        (("--preset", "adding", "--set", "data.task=delay", "--set", "data.delay=4"), None),
        (("--preset", "spoken-digits", "--out", "x"), "(--data-dir)"),
    ):
        code = cli.run(["train", *words, *([] if "--out" in words else ["--print-config"])])
        out, err = capfd.readouterr()
        if named is None:
            assert (code, json.loads(out)["model"]["pooling"]) == (0, None)
        else:
            assert (code, err.count("\n")) == (2, 1)
            assert named in err
