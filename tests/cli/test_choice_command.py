"""`statewise evaluate --questions`, and published perplexities beside a text's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from questions import write_superglue
from scored_models import MODELS

import statewise as sw
from statewise.cli import run
from statewise.data.tokenizers import ByteTokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    sw.save(MODELS["mamba"], folder / "model", tokenizer=ByteTokenizer())
    write_superglue(folder / "data", n_validation=3, n_train=4)
    (folder / "own.jsonl").write_text('{"question": "one", "choices": ["two", "three"], "answer": "two"}\n' * 3)
    (folder / "text.txt").write_text("Some text to be read. " * 20)
    return folder


def test_questions(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    words = ["evaluate", "model", "--data-dir", "data/official", "--questions"]
    assert run([*words, "superglue, own.jsonl", "--limit", "2", "--output", "out.json", "--max-length", "4000"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in record["results"] if row["metric"] == "acc"][-1] == "own"
    assert (record["groups"][0]["task"], record["document_token"]) == ("superglue", True)
    published = record["published"]["rows"]
    assert published["Hybrid H3-125M"]["superglue"] == 53.9
    assert published["this model"]["superglue"] == pytest.approx(100 * record["groups"][0]["value"])
    whole = json.loads(Path("out.json").read_text())
    assert whole["results"] == record["results"]
    assert len(whole["questions"]["own"]) == 2

    options = ["--shots", "3", "--normalize", "--no-document-token", "--batch-size", "4"]
    assert run([*words, "rte,copa,multirc", *options, "--no-json"]) == 0
    shown = capsys.readouterr().out
    for part in ("acc_norm", "3 shots", "Hybrid H3-2.7B", "77.0", "majority", "“yes” as right where", "not published"):
        assert part in shown
    assert "average" not in shown
    assert run([*words, "own.jsonl", "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "majority" not in shown
    assert "Hybrid" not in shown


def test_what_sets_a_row_apart_from_the_published_ones(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    words = ["evaluate", "model", "--data-dir", "data/official", "--normalize", "--limit", "1"]
    assert run([*words, "--questions", "copa"]) == 0
    notes = json.loads(capsys.readouterr().out)["published"]["notes"]
    assert notes == ["length-normalised (--normalize)", "not of the whole validation split: COPA 1 of 100"]
    assert run([*words, "--questions", "copa", "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "this model *" in shown
    assert "* length-normalised" in shown
    for name in ("boolq", "blimp_mine"):
        Path(f"{name}.jsonl").write_text(Path("own.jsonl").read_text())
    assert run(["evaluate", "model", "--questions", "boolq.jsonl,blimp_mine.jsonl", "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "Hybrid" not in shown
    assert "by set" not in shown
    assert "chance" in shown
    Path("causative.jsonl").write_text('{"sentence_good": "a b", "sentence_bad": "b a"}\n' * 3)
    words = ["evaluate", "model", "--data-dir", ".", "--questions", "blimp_causative", "--no-json"]
    assert run([*words, "--normalize"]) == 0
    shown = capsys.readouterr().out
    assert "length-normalised" in shown
    assert " n " in shown


def test_published_perplexities(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    words = ["evaluate", "model", "--text-file", "text.txt", "--no-compressors", "--published", "wikitext103"]
    assert run(words) == 0
    record = json.loads(capsys.readouterr().out)
    rows = record["published"]["rows"]
    assert rows["this model"]["wikitext103"] == record["perplexity_per_token"]
    assert (rows["Hybrid H3-125M"]["wikitext103"], len(rows)) == (23.7, 11)
    assert run([*words, "--no-json"]) == 0
    assert "not of another" in capsys.readouterr().out


def test_where_nothing_may_be_written_is_told_before_the_questions(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != place)  # root may write anywhere
    for words in (["--questions", "no-such.jsonl"], ["--tasks", "no-such"]):
        for output in ("unwritten.json", "new/folder/out.json"):
            assert run(["evaluate", "no-such", *words, "--output", output]) == 2
            said = capsys.readouterr().err
            assert f"cannot write {output}: no permission to write into {place}; give another name" in said
    assert not (place / "new").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--questions", "own.jsonl", "--tasks", "x"], "--questions"),
        (["--questions", "own.jsonl", "--split", "test"], "has no place with --questions"),
        (["--questions", "own.jsonl", "--include-path", "data"], "has no place with --questions"),
        (["--questions", "own.jsonl", "--published", "pile"], "has no place with --questions"),
        (["--tasks", "x", "--normalize"], "has no place with --tasks"),
        (["--tasks", "x", "--data-dir", "data"], "has no place with --tasks"),
        (["--limit", "4"], "goes with --tasks or --questions"),
        (["--normalize"], "goes with --questions"),
        (["--questions", "own.jsonl", "--output", "text.txt"], "text.txt exists already"),
        (["--questions", "own.jsonl", "--output", "text.txt/out.json"], "text.txt is not a folder; give another name"),
        (["--questions", "bolq", "--data-dir", "data"], "did you mean boolq?"),
        (["--questions", "boolq", "--data-dir", "model"], "BoolQ/val.jsonl is not in model; get it with: curl"),
        (["--questions", " , "], "no questions are named"),
        (["--text-file", "text.txt", "--published", "ptb"], "ptb is none of pile, openwebtext, wikitext103"),
    ],
)
def test_bad_words(
    words: list[str], named: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert run(["evaluate", "model", *words]) == 2
    told = capsys.readouterr().err
    assert named in told
    assert told.count("\n") == 1
