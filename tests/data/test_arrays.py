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
        ({"train_x": X, "train_y": np.array([{}] * 20)}, "is not a plain array of numbers or text"),
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
    with pytest.raises(DataError, match=r"is not an .npz file"):
        opened(tmp_path / "text.npz")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(DataError, match="not a zip archive"):
        opened(tmp_path / "empty.npz")
    with pytest.raises(DataError, match=r"without labels; name the file of labels in data\.labels"):
        opened(tmp_path / "one.npy")
    with pytest.raises(DataError, match=r"does not exist; give the \.npz file"):
        opened(tmp_path / "none.npz")
    with pytest.raises(DataError, match="not a file"):
        opened(tmp_path)
    with pytest.raises(DataError, match="--data-dir"):
        open_labelled(LabelledDataConfig(source="arrays"))
    with pytest.raises(ConfigError, match="test rows"):
        LabelledDataConfig(source="mnist", test_fraction=0.1)


def test_x_and_y_and_a_validation_of_their_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, lengths=np.full(20, 5))
    data = open_labelled(LabelledDataConfig(source="files", folder=str(tmp_path / "a.npz")))
    assert (data.classes, data.max_length) == (("a", "b"), 5)
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [14, 2, 4]
    np.savez(tmp_path / "b.npz", train_x=X, train_y=Y, validation_x=X[:3], validation_y=Y[:3])
    assert [len(opened(tmp_path / "b.npz").split(name)) for name in ("train", "validation", "test")] == [16, 3, 4]


def test_one_array_with_its_labels_beside(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", np.arange(20) % 3)
    (tmp_path / "y.txt").write_text("\n".join(Y.tolist()) + "\n")
    for name, classes in (("y.npy", ("0", "1", "2")), ("y.txt", ("a", "b"))):
        assert opened(tmp_path / "x.npy", labels=str(tmp_path / name)).classes == classes
    (tmp_path / "y.txt").write_text("a\n\n" * 10)
    with pytest.raises(DataError, match="label 1 has no label"):
        opened(tmp_path / "x.npy", labels=str(tmp_path / "y.txt"))
    (tmp_path / "y.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"train_y is of shape \(2,\) for 20 rows"):
        opened(tmp_path / "x.npy", labels=str(tmp_path / "y.txt"))
    np.savez(tmp_path / "a.npz", x=X, y=np.arange(20) % 3)
    assert opened(tmp_path / "a.npz", task="regression").d_output == 1
    with pytest.raises(DataError, match=r"its labels, as y; leave data\.labels out"):
        opened(tmp_path / "a.npz", labels=str(tmp_path / "y.txt"))
    np.savez(tmp_path / "b.npz", x=X, train_y=Y)
    with pytest.raises(DataError, match="holds 'train_y'; the names are lengths, x, y"):
        opened(tmp_path / "b.npz")
    with pytest.raises(ConfigError, match=r"data\.label_field is not for arrays"):
        opened(tmp_path / "a.npz", label_field="y")
