"""`statewise evaluate --data`: other data are read as `predict` reads them, and scored as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run

import statewise as sw
from statewise import cli

own_files = pytest.importorskip("own_files", reason="the extra files is not installed")
pandas = own_files.pandas
SMALL = ("--preset", "classifier", "--steps", "3", "--set", "train.batch_size=8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of each kind, and a run on each."""
    folder = tmp_path_factory.mktemp("others")
    own_files.wide().assign(note="a").to_csv(folder / "wide.csv", index=False)
    own_files.long().to_csv(folder / "long.csv", index=False)
    own_files.write_pictures(folder / "photos", mode="RGB")
    own_files.write_sounds(folder / "sounds", rates=(8000,))
    column = ("--label-field", "kind")
    options: dict[str, tuple[str, ...]] = {
        "wide.csv": (*column, "--set", 'data.ignored_fields=["note"]'),
        "long.csv": (*column, "--row-field", "id", "--time", "time"),
        "photos": (),
        "sounds": (),
    }
    for name, own in options.items():
        out = folder / "runs" / Path(name).stem
        words = ("train", *SMALL, "--data", folder / name, *own, "--out", out)
        assert cli.run([str(word) for word in words]) == 0
    return folder


def asked(run: Path, path: Path, labels: np.ndarray) -> dict[str, float]:
    """The scores by predict's answers."""
    answers: Any = sw.predictor(run).predict(path)
    right = np.array([answers.names.index(label) for label in labels])
    logits = answers.logits.astype(np.float64)
    nats = (
        np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - logits[range(len(right)), right]
    )
    return {"loss": float(nats.mean()), "accuracy": float((logits.argmax(1) == right).mean())}


def require_as_asked(record: dict[str, Any], run: Path, path: Path, labels: np.ndarray) -> None:
    expected = asked(run, path, labels)
    assert {name: record[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert (record["split"], record["sequences"]) == ("all", len(labels))


WIDE: dict[str, Callable[[Any], Any]] = {
    "as it was": lambda frame: frame,
    "reversed": lambda frame: frame[frame.columns[::-1]],
    "another column": lambda frame: frame.assign(extra=frame["t0"] * 2)[["extra", *frame.columns]],
    "without the ignored": lambda frame: frame.drop(columns="note"),
    "one class": lambda frame: frame[frame["kind"] == "up"],
    "one row": lambda frame: frame[:1],
}


@pytest.mark.parametrize("how", WIDE)
def test_wide_tables(run: Run, place: Path, tmp_path: Path, how: str) -> None:
    frame = WIDE[how](own_files.wide(30).assign(note="b"))
    frame.to_csv(tmp_path / "new.csv", index=False)
    result = run("evaluate", place / "runs/wide", "--data", tmp_path / "new.csv")
    assert result.code == 0, result.err
    (record,) = result.records
    require_as_asked(record, place / "runs/wide", tmp_path / "new.csv", frame["kind"].to_numpy())
    assert record["classes"] == ["down", "up"]


def test_tables_that_the_model_does_not_read(
    run: Run, refused: Callable[..., str], place: Path, tmp_path: Path
) -> None:
    frame, new = own_files.wide(), tmp_path / "new.csv"
    words = ("evaluate", place / "runs/wide", "--data", new)
    frame.drop(columns="t2").to_csv(new, index=False)
    assert "new.csv has no column 't2' (a column of the steps); its columns are: t0, t1, t3" in refused(*words)
    frame.drop(columns="kind").to_csv(new, index=False)
    assert "new.csv has no column 'kind' (data.label_field)" in refused(*words)
    assert "the model reads the column 't1' as data" in refused(*words, "--label-field", "t1")
    frame.assign(kind=["up", "down", "sideways"] * 8).to_csv(new, index=False)
    told = refused(*words)
    assert "new.csv, line 4: the class 'sideways' is not one that the model was trained on: down, up" in told
    frame.assign(kind=frame["t0"]).to_csv(new, index=False)
    assert "is not one that the model was trained on: down, up" in refused(*words)
    frame.rename(columns={"kind": "sort"}).to_parquet(tmp_path / "new.parquet")
    words = ("evaluate", place / "runs/wide", "--data", tmp_path / "new.parquet", "--label-field", "sort")
    assert run(*words).records[0]["sequences"] == 24
    told = refused(*words, "--split", "test")
    assert "--split test: " in told
    assert "new.parquet is not divided, so all of it is scored; leave --split out" in told
    assert run(*words, "--split", "all", "--max-items", "5").records[0]["sequences"] == 5
    told = refused("evaluate", place / "runs/wide", "--data", place / "photos")
    assert "photos is a folder, but this model was trained on tables; give a table" in told
    told = refused("evaluate", place / "runs/wide", "--data", tmp_path / "none.csv")
    assert "none.csv' does not exist" in told


def test_long_tables(run: Run, place: Path, tmp_path: Path) -> None:
    frame = own_files.long(20)
    frame[["right", "kind", "time", "left", "id"]].to_csv(tmp_path / "new.csv", index=False)
    (record,) = run("evaluate", place / "runs/long", "--data", tmp_path / "new.csv").records
    labels = frame.drop_duplicates("id")["kind"].to_numpy()
    require_as_asked(record, place / "runs/long", tmp_path / "new.csv", labels)


def in_order(folder: Path) -> np.ndarray:
    """The classes of the files of a folder, as predict reads them."""
    return np.array([path.parent.name for path in sorted(folder.rglob("*.*"), key=lambda path: path.parts)])


@pytest.mark.parametrize("how", [{"size": (9, 7), "mode": "RGB"}, {"mode": "L"}, {"mode": "RGB", "ending": "bmp"}])
def test_pictures(run: Run, place: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    """Of another size, and grey ones for a model of colours."""
    new = own_files.write_pictures(tmp_path / "new", **how)
    (record,) = run("evaluate", place / "runs/photos", "--data", new).records
    require_as_asked(record, place / "runs/photos", new, in_order(new))


def test_sounds(run: Run, refused: Callable[..., str], place: Path, tmp_path: Path) -> None:
    """At other rates, in stereo; one class of the two."""
    new = own_files.write_sounds(tmp_path / "new", rates=(11025, 16000), channels=2)
    shutil.rmtree(new / "low")
    (record,) = run("evaluate", place / "runs/sounds", "--data", new).records
    require_as_asked(record, place / "runs/sounds", new, in_order(new))
    (new / "high").rename(new / "shrill")
    assert "has the class 'shrill', not one that the model was trained on: high, low" in refused(
        "evaluate", place / "runs/sounds", "--data", new
    )
    told = refused("evaluate", place / "runs/sounds", "--data", place / "photos")
    assert "photos holds pictures, but this model was trained on sounds" in told


def test_a_class_without_rows_has_no_recall(run: Run, place: Path, tmp_path: Path) -> None:
    frame = own_files.wide()
    frame[frame["kind"] == "up"].to_csv(tmp_path / "new.csv", index=False)
    out = run("evaluate", place / "runs/wide", "--data", tmp_path / "new.csv", "--no-json").out.replace("│", " ")
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["down"])
    assert row[-1] == "0"
    assert len(row) < 5
    assert "all rows" in out


def test_folders_with_splits(run: Run, refused: Callable[..., str], place: Path, tmp_path: Path) -> None:
    for split, n in (("train", 8), ("test", 6)):
        own_files.write_pictures(tmp_path / "new" / split, n=n, mode="RGB")
    words = ("evaluate", place / "runs/photos", "--data", tmp_path / "new")
    for more, n in (((), 6), (("--split", "train"), 8), (("--split", "all"), 14)):
        (record,) = run(*words, *more).records
        assert (record["split"], record["sequences"]) == (more[1] if more else "test", n)
    assert "has no validation split; choose by --split: train, test, all" in refused(*words, "--split", "validation")
    (record,) = run("evaluate", place / "runs/photos", "--data", tmp_path / "new/test").records
    assert (record["split"], record["sequences"]) == ("all", 6)


def test_data_of_the_run_that_have_changed(run: Run, refused: Callable[..., str], place: Path, tmp_path: Path) -> None:
    own_files.wide(40).to_csv(tmp_path / "own.csv", index=False)
    words = ("train", *SMALL, "--data", tmp_path / "own.csv", "--label-field", "kind", "--out", tmp_path / "run")
    assert run(*words).code == 0
    (before,) = run("evaluate", tmp_path / "run").records
    assert (before["split"], before["sequences"]) == ("test", 8)
    (whole,) = run("evaluate", tmp_path / "run", "--split", "all").records
    own_files.wide(41).to_csv(tmp_path / "own.csv", index=False)
    told = refused("evaluate", tmp_path / "run")
    assert f"the data at '{tmp_path}/own.csv' is not the one that {tmp_path}/run/checkpoints/" in told
    assert f"statewise evaluate {tmp_path}/run --data {tmp_path}/own.csv" in told
    assert f"the data at '{tmp_path}/own.csv' is not" in refused("train", "--resume", tmp_path / "run", "--steps", "9")
    (record,) = run("evaluate", tmp_path / "run", "--data", tmp_path / "own.csv").records
    assert (record["split"], record["sequences"]) == ("all", 41)
    assert record["note"].startswith("these are the run's own data")
    own_files.wide(40).assign(more=1).to_csv(tmp_path / "own.csv", index=False)
    (again,) = run("evaluate", tmp_path / "run", "--split", "all").records
    assert again["loss"] == pytest.approx(whole["loss"], rel=1e-6)


def test_arrays(run: Run, refused: Callable[..., str], place: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 6)), np.array(["low", "high"] * 15)
    trained = sw.train("classifier", (x, y), steps=2, out=tmp_path / "run", progress=False)
    np.savez(tmp_path / "new.npz", x=x[:9], y=np.array(["high"] * 9))
    (record,) = run("evaluate", tmp_path / "run", "--data", tmp_path / "new.npz").records
    require_as_asked(record, tmp_path / "run", tmp_path / "new.npz", np.array(["high"] * 9))
    np.savez(tmp_path / "two.npz", x=rng.normal(size=(9, 6, 2)), y=y[:9])
    told = refused("evaluate", tmp_path / "run", "--data", tmp_path / "two.npz")
    assert "the data have 2 numbers a step, but the model was trained on 1; give data like those" in told
    told = refused("evaluate", tmp_path / "run", "--data", place / "wide.csv", "--label-field", "kind")
    assert (
        "wide.csv is a table, cells with separators, but this model was trained on arrays; give an .npz with x and y"
        in told
    )
    assert trained.evaluate("all")["sequences"] == 30
    arrays = next((tmp_path / "run" / "data").iterdir())
    np.savez(arrays, train_x=x[:29], train_y=y[:29])
    with pytest.raises(sw.DataError, match=r"arrays.npz' is not the one that .* was trained on"):
        trained.evaluate()


def test_numbers_to_predict(run: Run, tmp_path: Path) -> None:
    """Whole numbers, all alike, too: the model says that they are numbers."""
    frame = own_files.wide(30).drop(columns="kind")
    frame.assign(price=frame["t5"] / 7).to_csv(tmp_path / "own.csv", index=False)
    words = ("--preset", "regressor", "--steps", "2", "--set", "train.batch_size=8")
    label = ("--label-field", "price")
    assert run("train", *words, "--data", tmp_path / "own.csv", *label, "--out", tmp_path / "run").code == 0
    frame.assign(price=150).to_csv(tmp_path / "new.csv", index=False)
    (record,) = run("evaluate", tmp_path / "run", "--data", tmp_path / "new.csv").records
    answers: Any = sw.predictor(tmp_path / "run").predict(tmp_path / "new.csv")
    assert record["mse"] == pytest.approx(((answers.values.astype(np.float64) - 150) ** 2).mean(), rel=1e-5)
    assert (record["split"], record["sequences"]) == ("all", 30)


def test_texts(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    def write(name: str, labels: list[str]) -> Path:
        path = tmp_path / name
        lines = [f"{['good', 'bad', 'fine', 'poor'][i % 4]} number {i},{label}\n" for i, label in enumerate(labels)]
        path.write_text("words,kind\n" + "".join(lines))
        return path

    own = write("own.csv", ["yes", "no"] * 20)
    words = ("--preset", "text-classifier", "--steps", "2", "--set", "train.batch_size=8")
    fields = ("--text-field", "words", "--label-field", "kind")
    assert run("train", *words, "--data", own, *fields, "--out", tmp_path / "run").code == 0
    (record,) = run("evaluate", tmp_path / "run").records
    assert (record["split"], record["sequences"]) == ("test", 4)
    new = write("new.csv", ["yes"] * 7)
    (record,) = run("evaluate", tmp_path / "run", "--data", new).records
    assert (record["split"], record["sequences"], record["classes"]) == ("all", 7, ["no", "yes"])
    answers: Any = sw.predictor(tmp_path / "run").predict(
        [f"{['good', 'bad', 'fine', 'poor'][i % 4]} number {i}" for i in range(7)]
    )
    assert record["accuracy"] == pytest.approx((answers.labels == "yes").mean())
    told = refused("evaluate", tmp_path / "run", "--data", write("other.csv", ["yes", "perhaps"]))
    assert "the class 'perhaps' is not one that the model was trained on: no, yes" in told
    write("own.csv", ["yes", "no"] * 21)
    assert "own.csv' is not the one that" in refused("evaluate", tmp_path / "run")
