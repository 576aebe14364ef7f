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
from statewise.files.json_lines import json_line
from statewise.models.raw_input import InputConfig
from statewise.training import train_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with own.npz, and a run on it."""
    folder = tmp_path_factory.mktemp("predict")
    train_run(run_on(LabelledDataConfig(source="arrays", folder=str(shifted(folder)))), folder / "run")
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
    assert "exists already; give a new name, or replace it with --overwrite" in refused(*asked, "--out", out)
    assert out.read_bytes() == before
    assert run(*asked, "--out", out, "--overwrite", "--embeddings").code == 0
    assert out.read_text().startswith("row,feature 0,feature 1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv"]

    for words, said in (
        (("--out", tmp_path / "a.txt"), "give a name that ends in one of .csv"),
        (("--every", "2"), "--every"),
        (("--follow",), "--array"),
    ):
        assert said in refused(*asked, *words)
    assert "choose one with --array" in refused(*asked[:3])
    assert "there is no file" in refused("predict", trained / "run", tmp_path / "x.npz")


def test_answers_never_replace_the_data(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "new.csv"
    data.write_text("left,right\n1000.5,1\n")
    before = data.read_bytes()
    (tmp_path / "link.csv").symlink_to(data)
    (tmp_path / "hard.csv").hardlink_to(data)
    for out in (data, tmp_path / "link.csv", tmp_path / "hard.csv", tmp_path / ".." / tmp_path.name / "new.csv"):
        for asked in ((data, "--out", out), (out, "--out", data)):
            for leave in ((), ("--overwrite",)):
                said = refused("predict", trained / "run", *asked, *leave)
                assert "is the data that are read, which would be lost; give another name" in said
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "1.csv").write_bytes(before)
    said = refused("predict", trained / "run", folder, "--out", folder / "1.csv", "--overwrite")
    assert f"is a file of {folder}, which is read" in said
    assert data.read_bytes() == (folder / "1.csv").read_bytes() == before


def test_all_forms_of_a_sequence_agree_to_the_last_digit(
    run: Run, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table's model: each sequence as a file, a DataFrame, an array, standard input, and a file that grows."""
    own_files = pytest.importorskip("own_files", reason="the extra files is not installed")
    frame = own_files.long().sort_values(["id", "time"])
    frame.to_csv(tmp_path / "long.csv", index=False)
    fields = {"label_field": "kind", "row_field": "id", "time_field": "time"}
    data = LabelledDataConfig(source="files", folder=str(tmp_path / "long.csv"), **fields)
    train_run(run_on(data, steps=3, batch_size=8), tmp_path / "run")
    predictor = sw.predictor(tmp_path / "run")
    waits = iter(())
    monkeypatch.setattr("statewise.cli.commands.predict._wait", lambda: next(waits, False))
    path = tmp_path / "one.csv"
    for name, one in list(frame.groupby("id"))[:2]:
        array = one[["left", "right"]].to_numpy()
        expected = predictor.predict([array])
        assert isinstance(expected, sw.predict.Classes)
        asked = next(expected.rows())
        del asked["row"]
        for columns, written in (
            (["left", "right"], {"sep": "\t"}),
            (["right", "left"], {"sep": ";", "decimal": ","}),
            (["kind", "right", "time", "id", "left"], {}),  # which is a table, too
        ):
            one[columns].to_csv(path, index=False, **written)
            for every in (len(one), 2):  # at once, and in pieces
                monkeypatch.setattr("sys.stdin", io.StringIO(path.read_text()))
                streamed = run("predict", tmp_path / "run", "-", "--every", every).records[-1]
                assert run("predict", tmp_path / "run", path, "--follow", "--every", every).records[-1] == streamed
                assert streamed.pop("steps") == len(one)
                near = pytest.approx(asked["probability"], rel=1e-5)
                assert streamed == (asked if every == len(one) else {**streamed, "probability": near})
        (of_file,) = run("predict", tmp_path / "run", path).records
        assert of_file == {"row": 0, "id": name, **asked}
        of_frame = predictor.predict(one[columns])
        assert next(of_frame.rows()) == of_file
    whole = predictor.predict(tmp_path / "long.csv")
    of_frame = predictor.predict(frame.sample(frac=1, random_state=1).sort_values("id", kind="stable"))
    assert list(of_frame.rows()) == list(whole.rows())
    monkeypatch.setattr("sys.stdin", io.StringIO((tmp_path / "long.csv").read_text()))
    assert "a signal is one sequence" in refused("predict", tmp_path / "run", "-", "--every", "1000")


def test_letters_are_not_escaped(run: Run, tmp_path: Path) -> None:
    layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    model = sw.SequenceClassifierConfig(n_classes=2, d_input=1, d_model=16, layers=layers, classes=("größer", "小さい"))
    sw.save(model.build(), tmp_path / "model")
    np.save(tmp_path / "x.npy", np.zeros((1, 5)))
    assert '"p(größer)": ' in run("predict", tmp_path / "model", tmp_path / "x.npy").out
    assert run("predict", tmp_path / "model", tmp_path / "x.npy", "--out", tmp_path / "a.jsonl").code == 0
    assert '"p(小さい)": ' in (tmp_path / "a.jsonl").read_text("utf-8")
    assert json_line({"a": "ß"}, "cp1252") == json.dumps({"a": "ß"})
    assert json_line({"a": "ß\udcff"}) == json.dumps({"a": "ß\udcff"})


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
    assert "line 1: '1,2,3' is 3 numbers; this model reads 2 numbers a step" in refused("predict", trained / "run", "-")
    assert "leave it out" in refused("predict", trained / "run", "-", "--follow")
    assert "leave it out" in refused("predict", trained / "run", "-", "--out", tmp_path / "a.csv")


def test_columns_that_are_kept(
    run: Run, refused: Callable[..., str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream keeps what the last step of each answer has; arrays have no columns."""
    lines = [f"{8 + i}:00,{1000 + i},s{i},{i}.5" for i in range(5)]
    monkeypatch.setattr("sys.stdin", io.StringIO("when,left,who,right\n" + "\n".join(lines) + "\n"))
    asked = ("predict", trained / "run", "-", "--every", "2", "--keep-field", "who", "--keep-field", "when")
    found = run(*asked).records
    assert [(one["steps"], one["who"], one["when"]) for one in found] == [
        (2, "s1", "9:00"), (4, "s3", "11:00"), (5, "s4", "12:00")
    ]  # fmt: skip
    plain = "left,right\n" + "".join(f"{1000 + i},{i}.5\n" for i in range(5))
    monkeypatch.setattr("sys.stdin", io.StringIO(plain))
    without = run("predict", trained / "run", "-", "--every", "2").records
    assert [{**one, "who": two["who"], "when": two["when"]} for one, two in zip(without, found)] == found
    monkeypatch.setattr("sys.stdin", io.StringIO(plain))
    assert "has no column 'who' to keep" in refused(*asked)
    words = ("predict", trained / "run", trained / "own.npz", "--array", "test_x", "--keep-field", "id")
    assert "id cannot be kept: arrays have no columns" in refused(*words, "--out", tmp_path / "a.csv")


@pytest.mark.usefixtures("in_workplace")
def test_texts(run: Run, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "import numpy"}\n"zqxj"\n')
    likely, unlikely = run("predict", "run", tmp_path / "texts.jsonl").records
    assert likely["tokens"] == 12
    assert likely["bits_per_byte"] < unlikely["bits_per_byte"]
    assert "this model reads tokens" in refused("predict", "run", tmp_path / "texts.jsonl", "--follow")
    (tmp_path / "lines.txt").write_bytes(b"import numpy\r\n\r\n \nzqxj\x0c\n")
    asked = run("predict", "run", tmp_path / "lines.txt").records
    assert [(answer["row"], answer["line"]) for answer in asked] == [(0, 1), (1, 4)]
    assert asked[0] == {"line": 1, **likely}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "lines.txt").read_bytes())))
    assert run("predict", "run", "-").records == asked
    (tmp_path / "empty.txt").write_text("\n")
    assert "holds no text" in refused("predict", "run", tmp_path / "empty.txt")


def test_what_a_checkpoint_of_0_1_0_lacks_is_said(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(TESTS / "classifier_0_1_0", tmp_path / "old")
    said = refused("predict", tmp_path / "old", trained / "own.npz")
    assert "written by Statewise 0.1.0, which saved no scaling and no names of classes" in said
    assert "which saved no scaling" in refused("evaluate", tmp_path / "old", "--data", trained / "own.npz")


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


def test_a_folder_of_pictures_from_training_to_answers(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    own_files = pytest.importorskip("own_files", reason="the extra files is not installed")
    photos = own_files.write_pictures(tmp_path / "photos")
    words = ("train", "--preset", "digits", "--data", "files", "--data-dir", photos, "--steps", "2")
    result = run(*words, "--set", "train.batch_size=8", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "photos/: pictures in 2 folders, 5 x 4, grey; classes cat, dog" in result.out
    assert run("evaluate", tmp_path / "run").records[-1]["sequences"] == 4
    answers = run("predict", tmp_path / "run", photos / "cat").records
    assert [answer["file"] for answer in answers] == [f"{i:02}.png" for i in range(0, 24, 2)]
    assert {answer["class"] for answer in answers} <= {"cat", "dog"}
    (photos / "cat" / "notes.txt").write_text("notes\n")
    assert "notes.txt is plain text, among pictures" in refused("predict", tmp_path / "run", photos)
    assert "notes.txt is plain text, among pictures" in refused(*words, "--out", tmp_path / "other")
    assert "--array names an array of an .npz" in refused("predict", tmp_path / "run", photos, "--array", "x")
