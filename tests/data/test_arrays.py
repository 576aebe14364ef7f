"""Sequences of one's own, from an .npz file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from statewise.cli import run
from statewise.data import LabelledDataConfig, open_labelled
from statewise.errors import ConfigError, DataError

X = np.random.default_rng(0).normal(size=(20, 9, 2)).astype(np.float32).astype(np.float64)  # numpy's default
Y = np.array(["b", "a"] * 10)


def opened(path: Path, **options: object):  # type: ignore[no-untyped-def]
    return open_labelled(LabelledDataConfig(source="arrays", folder=str(path), normalize="none", **options))  # type: ignore[arg-type]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, lengths = tmp_path / "mine.npz", np.arange(20) % 9 + 1
    padded = X.copy()
    padded[np.arange(9) >= lengths[:, None]] = np.nan
    np.savez(path, train_x=padded, train_y=Y, train_lengths=lengths, test_x=X[:4], test_y=Y[:4])
    data = opened(path, validation_fraction=0.0)
    assert (data.classes, data.d_input, data.max_length) == (("a", "b"), 2, 9)
    split = data.split("train")
    for row in range(20):
        n = lengths[row]
        np.testing.assert_array_equal(split.values[split.begins[row] : split.begins[row] + n], X[row, :n])
    assert split.targets.tolist() == [1, 0] * 10
    assert len(data.split("test")) == 4
    assert data.split("test").inputs(np.arange(4)).dtype == np.float32


def test_regression_one_channel_and_a_split_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, train_x=(X[..., 0] * 100).astype(np.int16), train_y=X[:, 0, 0])
    data = opened(path, test_fraction=0.25)
    assert (data.classes, data.d_input, data.d_output) == ((), 1, 1)
    assert [len(data.split(name)) for name in ("train", "test")] == [13, 5]


def test_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "mine.npz", tmp_path / "run"
    np.savez(path, train_x=X, train_y=np.arange(20) % 4, test_x=X[:8], test_y=np.arange(8) % 4)
    torch.manual_seed(0)
    words = ["train", "--preset", "digits", "--data", "arrays", "--data-dir", str(path), "--steps", "2"]
    assert run([*words, "--set", "train.batch_size=4", "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(["evaluate", str(out)]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["sequences"] == 8


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_x": X}, "no train_y"),
        ({"train_x": X, "train_y": Y, "extra": Y}, "'extra'"),
        ({"train_x": X, "train_y": Y[:3]}, "20 rows"),
        ({"train_x": X, "train_y": np.array(1)}, "20 rows"),
        ({"train_x": X[0, 0], "train_y": Y}, r"\(n, length"),
        ({"train_x": X, "train_y": Y, "test_x": X}, "test_x and test_y"),
        ({"train_x": X, "train_y": Y, "test_x": X, "test_y": X[:, 0, 0]}, "alike"),
        ({"train_x": X, "train_y": Y, "test_x": X[..., :1], "test_y": Y}, "2 numbers a step"),
        ({"train_x": X, "train_y": Y, "train_lengths": np.full(20, 10)}, "1 to 9"),
        ({"train_x": X, "train_y": Y, "train_lengths": np.ones(3, int)}, "integers"),
        ({"train_x": np.where(X > 3, X, np.nan), "train_y": Y}, "not finite"),
        ({"train_x": X, "train_y": np.array([{}] * 20)}, "is no plain array of numbers or text"),
    ],
)
def test_what_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message) as error:
        opened(path)
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(DataError, match="cannot be read"):
        opened(tmp_path / "text.npz")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "one.npy", X)
    for name in ("empty.npz", "one.npy"):
        with pytest.raises(DataError, match="is no zip archive"):
            opened(tmp_path / name)
    with pytest.raises(DataError, match=r"does not exist; give the \.npz file"):
        opened(tmp_path / "none.npz")
    with pytest.raises(DataError, match="not a file"):
        opened(tmp_path)
    with pytest.raises(DataError, match="--data-dir"):
        open_labelled(LabelledDataConfig(source="arrays"))
    with pytest.raises(ConfigError, match="test rows"):
        LabelledDataConfig(source="mnist", test_fraction=0.1)
