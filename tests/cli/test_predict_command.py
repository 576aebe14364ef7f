"""`statewise predict`: files and streams in, answers out."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import Run
from places import TESTS
from raw_data import run_on, shifted

import statewise as sw
from statewise.data import LabelledDataConfig
from statewise.models.raw_input import InputConfig
from statewise.train import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with own.npz, and a run on it."""
    folder = tmp_path_factory.mktemp("predict")
    train(run_on(LabelledDataConfig(source="arrays", folder=str(shifted(folder)))), folder / "run")
    return folder


def test_files(run: Run, refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    asked = ("predict", trained / "run", trained / "own.npz", "--array", "test_x")
    with np.load(trained / "own.npz") as arrays:
        expected = sw.predictor(trained / "run").predict(arrays["test_x"])
    result = run(*asked)
    assert result.code == 0, result.err
    assert result.records == list(expected.rows())
    out = tmp_path / "answers.csv"
    assert run(*asked, "--out", out, "--batch-size", "5").code == 0
    with out.open(newline="") as file:
        assert [row["class"] for row in csv.DictReader(file)] == expected.labels.tolist()  # type: ignore[union-attr]
    before = out.read_bytes()
    assert "exists already; name a new file, or replace it: --overwrite" in refused(*asked, "--out", out)
    assert out.read_bytes() == before
    assert run(*asked, "--out", out, "--overwrite", "--embeddings").code == 0
    assert out.read_text().startswith("row,feature 0,feature 1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv"]

    for words, said in (
        (("--out", tmp_path / "a.txt"), "answers are written as .csv"),
        (("--every", "2"), "--every"),
        (("--follow",), "--array"),
    ):
        assert said in refused(*asked, *words)
    assert "say which by --array" in refused(*asked[:3])
    assert "there is no file" in refused("predict", trained / "run", tmp_path / "x.npz")


def test_a_signal_from_standard_input(
    run: Run, refused: Callable[..., str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(trained / "own.npz") as arrays:
        signal = arrays["test_x"][0]
    text = "left,right\n" + "".join(f"{a},{b}\n" for a, b in signal.tolist())
    (tmp_path / "signal.csv").write_text(text)
    (whole,) = run("predict", trained / "run", tmp_path / "signal.csv").records
    assert whole["row"] == 0

    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    found = run("predict", trained / "run", "-", "--every", "8").records
    assert [answer["steps"] for answer in found] == [8, 16, 24, 30]
    assert found[-1]["class"] == whole["class"]
    assert found[-1]["probability"] == pytest.approx(whole["probability"], rel=1e-4)

    waits = iter((True, False))
    monkeypatch.setattr("statewise.cli.commands.predict._wait", lambda: next(waits))
    followed = run("predict", trained / "run", tmp_path / "signal.csv", "--follow", "--every", "8").records
    assert followed == found

    monkeypatch.setattr("sys.stdin", io.StringIO("1,2,3\n"))
    assert "row 0 has the shape (1, 3); expected (length, 2)" in refused("predict", trained / "run", "-")
    assert "leave it out" in refused("predict", trained / "run", "-", "--follow")
    assert "leave it out" in refused("predict", trained / "run", "-", "--out", tmp_path / "a.csv")


@pytest.mark.usefixtures("in_workplace")
def test_texts(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "import numpy"}\n"zqxj"\n')
    likely, unlikely = run("predict", "run", tmp_path / "texts.jsonl").records
    assert likely["tokens"] == 12
    assert likely["bits_per_byte"] < unlikely["bits_per_byte"]
    assert "this model reads tokens" in refused("predict", "run", tmp_path / "texts.jsonl", "--follow")
    (tmp_path / "empty.txt").write_text("\n")
    assert "holds no text" in refused("predict", "run", tmp_path / "empty.txt")


def test_what_a_checkpoint_of_0_1_0_lacks_is_said(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(TESTS / "classifier_0_1_0", tmp_path / "old")
    said = refused("predict", tmp_path / "old", trained / "own.npz")
    assert "written by Statewise 0.1.0, which saved no scaling and no names of classes" in said


def test_a_forecaster_is_asked_otherwise(refused: Callable[..., str], tmp_path: Path) -> None:
    layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    sw.save(sw.ForecasterConfig(horizon=3, d_model=16, layers=layers).build(), tmp_path / "model")
    assert "use statewise forecast" in refused("predict", tmp_path / "model", "-")


def test_json_lines_are_whole(run: Run, trained: Path) -> None:
    out = run("predict", trained / "run", trained / "own.npz", "--array", "train_x").out
    assert len([json.loads(line) for line in out.splitlines()]) == 80


def test_info_shows_the_beginning_of_a_long_list(run: Run, tmp_path: Path) -> None:
    layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    order = InputConfig(order=tuple(range(784)))
    config = sw.SequenceClassifierConfig(n_classes=2, d_input=1, d_model=16, layers=layers, input=order)
    sw.save(config.build(), tmp_path / "model")
    shown = run("info", tmp_path / "model", "--no-json").out.replace("│", " ")
    assert "order=(0, 1, 2, ... 784 in all)" in " ".join(shown.split())
    (record,) = run("info", tmp_path / "model", "--json").records
    assert len(record["configuration"]["input"]["order"]) == 784
