"""Every row of the tables in docs/texts.md: trained, evaluated, asked."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_formats import RECORDS, json_lines, some_texts, write_class_folders
from training_runs import train_config

import statewise as sw
from statewise.data.labelled_text import LabelledTextDataConfig
from statewise.data.text import TextDataConfig
from statewise.training import RunConfig, read_run, train_run
from statewise.training.tasks.classification import ClassificationTask
from statewise.training.tasks.language import LanguageTask

TEXTS = some_texts(60)
ROWS = [
    {"text": f"{'xyz' if i % 2 else 'abc'} {text}", "label": "odd" if i % 2 else "even"} for i, text in enumerate(TEXTS)
]
LAYERS = (sw.Mamba2Config(d_state=4, d_head=8),)


def trained(data: Any, folder: Path, model: Any = sw.SequenceClassifierConfig, **settings: Any) -> Path:
    options: dict[str, Any] = {"steps": 2, "batch_size": 4, "lr": 1e-2, "save_minutes": None, **settings}
    task = LanguageTask if model is sw.LanguageModelConfig else ClassificationTask
    needed = {name: value for name, value in task.model_fields(data).items() if value is not None}
    config = model(d_model=8, layers=LAYERS, **needed)
    train_run(RunConfig(model=config, data=data, train=train_config(**options)), folder)
    return folder


def plain(path: Path, records: Any) -> Path:
    (path / "a.txt").write_text("\n".join(record["text"] for record in records))
    return path / "a.txt"


def plain_gz(path: Path, records: Any) -> Path:
    (path / "a.txt.gz").write_bytes(gzip.compress("\n".join(record["text"] for record in records).encode()))
    return path / "a.txt.gz"


def plain_folder(path: Path, records: Any) -> Path:
    (path / "texts").mkdir()
    for i, record in enumerate(records):
        (path / "texts" / f"{i}.txt").write_text(record["text"])
    return path / "texts"


PLAIN = {"txt": plain, "txt.gz": plain_gz, "folder of txt": plain_folder}


@pytest.mark.parametrize("kind", [*PLAIN, *RECORDS])
def test_a_corpus(kind: str, tmp_path: Path, run: Callable[..., str]) -> None:
    source = {**PLAIN, **RECORDS}[kind](tmp_path, ROWS)
    data = TextDataConfig(
        source=str(source), text_field=None if kind in PLAIN else "text", validation_fraction=0.2, test_fraction=0.2
    )
    folder = trained(data, tmp_path / "run", sw.LanguageModelConfig, length=16)
    record = json.loads(run("evaluate", folder, "--json"))
    assert 0 < record["bits_per_byte"] < 20
    assert record["xz_bytes"] > 0  # of the same text
    answers = [json.loads(line) for line in run("predict", folder, source).splitlines()]
    assert [answer["row"] for answer in answers] == list(range(len(answers)))
    assert all(0 < answer["bits_per_byte"] < 20 for answer in answers)
    assert ("line" in answers[0]) == (kind in ("txt", "txt.gz"))


@pytest.mark.parametrize("kind", ["folders of classes", *RECORDS])
def test_labelled_texts(kind: str, tmp_path: Path, run: Callable[..., str]) -> None:
    is_tree = kind == "folders of classes"
    source = write_class_folders(tmp_path, ROWS) if is_tree else RECORDS[kind](tmp_path, ROWS)
    fields = {} if is_tree else {"text_field": "text", "label_field": "label"}
    data = LabelledTextDataConfig(source=str(source), max_length=24, **fields)  # type: ignore[arg-type]
    folder = trained(data, tmp_path / "run")
    record = json.loads(run("evaluate", folder, "--json"))
    assert record["classes"] == ["even", "odd"]
    assert record["sequences"] == 6
    answers = [json.loads(line) for line in run("predict", folder, source).splitlines()]
    assert len(answers) == len(ROWS)
    assert {answer["class"] for answer in answers} <= {"even", "odd"}
    assert ("file" in answers[0]) == is_tree


def test_what_is_trained_is_asked_with_the_same_tokens(tmp_path: Path, run: Callable[..., str]) -> None:
    """Bytes, and tokens of a tokenizer that is learned from the texts and kept in the checkpoint."""
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"body": row["text"], "kind": row["label"]} for row in ROWS]))
    for tokenizer in ("bytes", "bpe:300"):
        data = LabelledTextDataConfig(
            source="a.jsonl", text_field="body", label_field="kind", tokenizer=tokenizer, max_length=24
        )
        folder = trained(data, tmp_path / tokenizer.replace(":", ""), steps=60, batch_size=16, lr=3e-2)
        record = json.loads(run("evaluate", folder, "--split", "train", "--json"))
        assert record["accuracy"] == 1.0
        answers = sw.predictor(folder).predict([row["text"] for row in ROWS])
        assert answers.labels.tolist() == [row["label"] for row in ROWS]  # type: ignore[union-attr]
        model = sw.load(folder)
        assert model.config.text.field == "body"  # type: ignore[attr-defined]
        said = [json.loads(line)["class"] for line in run("predict", folder, "a.jsonl").splitlines()]
        assert said == answers.labels.tolist()  # type: ignore[union-attr]
        (tmp_path / "a.txt").write_text("\n".join(row["text"].replace("\n", " ") for row in ROWS))
        assert len(run("predict", folder, "a.txt").splitlines()) == len(ROWS)
        again = json.loads(run("evaluate", folder, "--data", "a.jsonl", "--json"))
        assert (again["accuracy"], again["split"], again["sequences"]) == (1.0, "all", len(ROWS))
        run("train", "--resume", folder, "--steps", "62")
    with pytest.raises(sw.InputError, match=r"open it with sw\.predictor"):
        sw.predictor(model).predict(["a text"])
    assert "has no field 'body'" in run("predict", folder, wrong(tmp_path), code=2)


def wrong(folder: Path) -> Path:
    (folder / "wrong.jsonl").write_bytes(json_lines([{"text": "a"}]))
    return folder / "wrong.jsonl"


def test_floating_labels_are_regressed(tmp_path: Path, run: Callable[..., str]) -> None:
    rows = [{"text": row["text"], "score": 0.5 if row["label"] == "odd" else -0.5} for row in ROWS]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(csv_of(rows)))
    data = LabelledTextDataConfig(source="a.csv.gz", text_field="text", label_field="score", max_length=24)
    folder = trained(data, tmp_path / "run", sw.SequenceRegressorConfig, steps=60, batch_size=16)
    assert json.loads(run("evaluate", folder, "--json"))["mse"] < 0.1
    answers = sw.predictor(folder).predict([row["text"] for row in rows])
    expected = np.array([row["score"] for row in rows])
    assert np.abs(answers.values[:, 0] - expected).mean() < 0.3  # type: ignore[union-attr]
    assert read_run(folder).data.source.startswith("/")  # type: ignore[attr-defined]


def csv_of(rows: list[dict[str, Any]]) -> bytes:
    from text_formats import frame

    return bytes(frame(rows).to_csv(index=False).encode())


def test_other_data_of_another_format(tmp_path: Path, run: Callable[..., str]) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(ROWS))
    (tmp_path / "b.jsonl").write_bytes(json_lines([{"body": row["text"]} for row in ROWS]))
    plain(tmp_path, ROWS * 4)
    folder = trained(
        TextDataConfig(source="a.jsonl", text_field="text"), tmp_path / "run", sw.LanguageModelConfig, length=16
    )
    for more in (("a.txt",), ("b.jsonl", "--text-field", "body")):
        assert json.loads(run("evaluate", folder, "--data", *more, "--json"))["n_bytes"] > 0
    assert "has no field 'text'; it has body" in run("evaluate", folder, "--data", "b.jsonl", code=2)
    assert "name these data" in run("evaluate", folder, "--text-field", "body", code=2)
    said = run("evaluate", folder, "--text-file", "a.jsonl", code=2)
    assert "is JSON lines (a document a line), and --text-file reads one document" in said
    assert "--text-field text" in run("train", "--preset", "tiny", "--data", "a.jsonl", "--out", "x", code=2)
