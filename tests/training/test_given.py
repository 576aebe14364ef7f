"""What sw.train takes from memory: each is written, read again as the same numbers, and trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_call import TINY, X, Y
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import statewise as sw
from statewise.data import open_labelled
from statewise.errors import DataError, InputError
from statewise.training import read_run

TEXTS = [f"the {'good' if i % 2 else 'bad'} state number {i}" for i in range(60)]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))


def data_of(data: Any, **more: Any) -> Any:
    """The data as the run has read them."""
    run = sw.train(TINY, data, steps=1, **more)
    assert run.predict(X[:2]).labels.shape == (2,)
    return open_labelled(read_run(run.folder).data)  # type: ignore[arg-type]


def rows_of(opened: Any) -> dict[bytes, str]:
    """Every row as it was stored, and its class."""
    found = {}
    for split in opened.splits.values():
        for i in range(len(split)):
            found[split.raw.sequence(i).astype(np.float32).tobytes()] = opened.classes[split.targets[i]]
    return found


EXPECTED = {row.tobytes(): str(name) for row, name in zip(X, Y)}


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, str]:
        return torch.from_numpy(X[i]), str(Y[i])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y.tolist()))


def test_arrays_of_any_kind_are_the_same_rows() -> None:
    for x in (X, X[:, :, None], torch.from_numpy(X), X.tolist(), list(X), [torch.from_numpy(row) for row in X]):
        for y in (Y, Y.tolist()):
            assert rows_of(data_of((x, y))) == EXPECTED
    ragged = [row[: 15 + i % 5] for i, row in enumerate(X)]
    expected = {row.tobytes(): str(name) for row, name in zip(ragged, Y)}
    assert rows_of(data_of((ragged, Y))) == expected
    padded = (np.where(np.arange(20) < 15, X, np.nan), Y, np.full(60, 15))
    assert rows_of(data_of(padded)) == {row[:15].tobytes(): str(name) for row, name in zip(X, Y)}
    assert data_of((X, Y == "low")).classes == ("False", "True")
    assert data_of((X, np.arange(60) % 3)).classes == ("0", "1", "2")


def test_parts_of_their_own() -> None:
    opened = data_of({"x": X[:40], "y": Y[:40], "validation": (X[40:50], Y[40:50])}, test=(X[50:], Y[50:]))
    assert {name: len(split) for name, split in opened.splits.items()} == {"train": 40, "validation": 10, "test": 10}
    assert rows_of(opened) == EXPECTED


@pytest.mark.parametrize("batched", [False, True])
def test_data_sets_of_pytorch(batched: bool) -> None:
    for dataset in (Pairs(), Stream()):
        data = DataLoader(dataset, batch_size=7) if batched else dataset
        assert rows_of(data_of(data)) == EXPECTED
    numbers = TensorDataset(torch.from_numpy(X), torch.arange(60) % 2)
    assert data_of(numbers, test=numbers).classes == ("0", "1")
    with pytest.raises(InputError, match="item 0 of the TensorDataset is a tuple of 1"):
        sw.train("classifier", TensorDataset(torch.from_numpy(X)))


def test_data_sets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    names = datasets.ClassLabel(names=["low", "high"])
    features = datasets.Features({"signal": datasets.Sequence(datasets.Value("float32")), "label": names})
    numbers = [["low", "high"].index(name) for name in Y]
    signals = datasets.Dataset.from_dict({"signal": X.tolist(), "label": numbers}, features=features)
    assert rows_of(data_of(signals)) == EXPECTED
    parts = datasets.DatasetDict({"train": signals, "test": signals.select(range(5, 35))})
    assert len(data_of(parts).splits["test"]) == 30
    texts = datasets.Dataset.from_dict({"text": TEXTS, "label": [i % 2 for i in range(60)]})
    run = sw.train(None, texts, steps=1)
    assert run.predict(["a good one"]).labels.shape == (1,)
    alone = sw.train("language", texts.remove_columns("label"), steps=1)
    assert alone.predict(["a good one"]).log_likelihoods < 0
    with pytest.raises(InputError, match="no such column; the columns are text, label"):
        sw.train(None, texts, text_field="review")


def test_frames() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(X).assign(kind=Y)
    assert rows_of(data_of(frame, label_field="kind")) == EXPECTED
    days = pandas.date_range("2024-01-01", periods=200, name="day")
    series = pandas.DataFrame({"sold": np.sin(np.arange(200))}, index=days)
    for table in (series, series.reset_index(), series.set_axis(days.to_period("D"))):
        run = sw.train(None, table, horizon=7, steps=1)
        config = read_run(run.folder)
        assert (type(config.data).__name__, config.model.horizon) == ("SeriesDataConfig", 7)  # type: ignore[attr-defined]
    named = frame.assign(who=[f"person {i}" for i in range(60)], day="2024-01-01", id=range(60))
    for ignored in (("who", "day"), ["who", "day"]):
        assert rows_of(data_of(named, label_field="kind", ignored_fields=ignored)) == EXPECTED
    assert rows_of(data_of(frame.assign(who="you"), label_field="kind", ignored_fields="who")) == EXPECTED
    with pytest.raises(DataError, match="leave out columns that are not steps: --ignore-field who --ignore-field day"):
        sw.train(None, named, label_field="kind")
    sold = read_run(sw.train(None, series.assign(cost=1.0), targets="sold", steps=1).folder).data
    assert sold.targets == ("sold",)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="its columns are 0, 1, 2"):
        sw.train(None, frame, label_field="sort")
    with pytest.raises(DataError, match="--label-field COLUMN"):
        sw.train(None, frame)
    with pytest.raises(InputError, match="two columns with the same name, a"):
        sw.train(None, pandas.DataFrame([[1, 2]], columns=["a", "a"]))


def test_texts() -> None:
    run = sw.train("text-classifier", (TEXTS, ["up", "down"] * 30), steps=1)
    assert set(run.predict(TEXTS).labels) <= {"up", "down"}
    assert (run.folder / "data" / "texts.jsonl").read_text().startswith('{"text": "the bad state number 0", "label"')
    stars = sw.train(None, (TEXTS, [float(i) for i in range(60)]), steps=1)
    assert stars.predict(["a text"]).values.shape == (1, 1)
    with pytest.raises(InputError, match="not Unicode"):
        sw.train("language", ["\ud800"])


def test_paths(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    for path in (tmp_path / "own.npz", "own.npz"):
        run = sw.train(None, path, steps=1)
        assert not (run.folder / "data").exists()
        assert read_run(run.folder).data.folder == str(tmp_path / "own.npz")  # type: ignore[attr-defined]
