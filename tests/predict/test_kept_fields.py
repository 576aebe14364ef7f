"""Columns of the data stand beside the answers, whatever the data are, so that answers can be joined to their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_formats import RECORDS, frame, some_texts, write_saved

import statewise as sw
from statewise.errors import DataError, InputError
from statewise.models.file_input import FilesConfig
from statewise.models.raw_input import InputConfig
from statewise.predict.files import writer
from statewise.predict.texts import texts_at, texts_of_frame

LAYERS = (sw.Mamba2Config(d_state=8, d_head=8),)
WIDE = FilesConfig(kind="wide table", columns=("t0", "t1"))
LONG = FilesConfig(kind="long table", columns=("a",), row_field="id", time_field="time")


def predictor(files: FilesConfig | None = None, **fields: Any) -> Any:
    config = sw.SequenceClassifierConfig(
        n_classes=2, d_input=1, d_model=16, layers=LAYERS, input=InputConfig(files=files), **fields
    )
    return sw.predictor(config.build().eval())


def test_an_id_of_a_wide_table(tmp_path: Path) -> None:
    """As it stands: zeros at its beginning, more digits than a float has, words that look like gaps, and gaps."""
    ids = ["007", "12345678901234567890", "NA", ""]
    rows = "".join(f"{i / 10},{name},{i + 1},x\n" for i, name in enumerate(ids))
    (tmp_path / "new.csv").write_text("t1,customer,t0,note\n" + rows)
    asked = predictor(WIDE)
    answers = asked.predict(tmp_path / "new.csv", keep_fields=["customer", "note"], batch_size=3)
    assert [row["customer"] or "" for row in answers.rows()] == ids
    assert list(answers.columns())[:3] == ["row", "customer", "note"]
    plain = asked.predict(tmp_path / "new.csv", batch_size=3)
    assert [{k: v for k, v in row.items() if k not in ("customer", "note")} for row in answers.rows()] == list(
        plain.rows()
    )
    assert list(asked.embed(tmp_path / "new.csv", keep_fields=["note"]).columns())[:3] == ["row", "note", "feature 0"]
    for name in ("out.csv", "out.jsonl"):
        with writer(tmp_path / name) as write:
            write(answers)
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("0,007,x,")
    first, *_, last = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert (first["customer"], last["note"]) == ("007", "x")


def test_a_data_frame_and_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pandas.DataFrame(
        {
            "t0": [1.0, 2.0, 3.0],
            "id": [2**60 + 1, 5, 7],
            "t1": 0.5,
            "day": pandas.to_datetime(["2024-03-01", "2024-03-02", None]),
            "weight": [0.5, np.nan, 2.0],
            "ok": [True, False, True],
        }
    )
    kept = ("id", "day", "weight", "ok")
    expected = [
        {"id": 2**60 + 1, "day": "2024-03-01", "weight": 0.5, "ok": True},
        {"id": 5, "day": "2024-03-02", "weight": None, "ok": False},
        {"id": 7, "day": None, "weight": 2.0, "ok": True},
    ]
    table.to_parquet(tmp_path / "new.parquet")
    for given in (table, tmp_path / "new.parquet"):
        answers = predictor(WIDE).predict(given, keep_fields=kept)
        assert [{name: row[name] for name in kept} for row in answers.rows()] == expected
    with writer(tmp_path / "out.parquet") as write:
        write(answers)
    merged = table.merge(pandas.read_parquet(tmp_path / "out.parquet"), on="id")
    assert merged["row"].tolist() == [0, 1, 2]


def test_sequences_and_steps_of_a_long_table(tmp_path: Path) -> None:
    """One answer a sequence keeps what is the same in all its steps; an answer a step keeps what the step has."""
    lines = ["z,2,0.3,west,c", "y,1,0.1,east,a", "z,1,0.2,west,b", "y,2,0.4,east,d", "y,3,0.4,east,e"]
    (tmp_path / "new.csv").write_text("id,time,a,region,note\n" + "\n".join(lines) + "\n")
    whole = predictor(LONG).predict(tmp_path / "new.csv", keep_fields=["region", "id"])
    assert [(row["id"], row["region"]) for row in whole.rows()] == [("z", "west"), ("y", "east")]
    assert list(whole.columns())[:3] == ["row", "id", "region"]
    said = r"new.csv, line 2: 'note' is 'c', and 'b' in another step of the same sequence, which has one answer"
    with pytest.raises(DataError, match=said):
        predictor(LONG).predict(tmp_path / "new.csv", keep_fields=["note"])
    steps = predictor(LONG, pooling=None).predict(tmp_path / "new.csv", keep_fields=["note", "time"])
    found = [(row["id"], row["step"], row["time"], row["note"]) for row in steps.rows()]
    assert found == [("z", 0, 1, "b"), ("z", 1, 2, "c"), ("y", 0, 1, "a"), ("y", 1, 2, "d"), ("y", 2, 3, "e")]


def test_the_steps_of_a_signal(tmp_path: Path) -> None:
    (tmp_path / "signal.csv").write_text("when,a\n08:00,1\n08:10,2\n")
    answers = predictor(pooling=None).predict(tmp_path / "signal.csv", keep_fields=["when"])
    assert [(row["step"], row["when"]) for row in answers.rows()] == [(0, "08:00"), (1, "08:10")]
    with pytest.raises(InputError, match=r"when cannot be kept: .*signal.csv is one signal, which has one answer"):
        predictor().predict(tmp_path / "signal.csv", keep_fields=["when"])
    with pytest.raises(DataError, match=r"its first line, 'when,a', has no column 'who' to keep; it has when, a"):
        predictor(pooling=None).predict(tmp_path / "signal.csv", keep_fields=["who"])
    (tmp_path / "signal.csv").write_text("1\n2\n")
    with pytest.raises(DataError, match=r"has no line of names, and so no column 'when' to keep; write one"):
        predictor(pooling=None).predict(tmp_path / "signal.csv", keep_fields=["when"])


@pytest.mark.parametrize("kind", RECORDS)
def test_other_fields_of_texts(tmp_path: Path, kind: str) -> None:
    texts = some_texts(20)
    path = RECORDS[kind](tmp_path, [{"n": i, "body": text, "id": f"0{i}"} for i, text in enumerate(texts)])
    found: Any = texts_at(path, "body", ["id"])
    assert list(found) == texts
    assert found.kept.columns["id"].tolist() == [f"0{i}" for i in range(20)]


def test_texts_of_data_sets_and_frames(tmp_path: Path) -> None:
    records = [{"text": text, "id": i} for i, text in enumerate(some_texts(5))]
    for found in (texts_of_frame(frame(records), None, ["id"]), texts_at(write_saved(tmp_path, records), None, ["id"])):
        assert found.kept.columns["id"].tolist() == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"the DataFrame has no column 'who' to keep; it has text, id"):
        texts_of_frame(frame(records), None, ["who"])


def test_the_likelihoods_of_texts(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a longer one", "id": 7}\n{"text": "b", "id": 3}\n')
    model = sw.LanguageModelConfig(vocab_size=257, d_model=16, layers=LAYERS).build()
    asked = sw.predictor(model, tokenizer=sw.ByteTokenizer())
    answers = asked.predict(tmp_path / "texts.jsonl", keep_fields=["id"])
    assert [(row["row"], row["id"]) for row in answers.rows()] == [(0, 7), (1, 3)]
    (tmp_path / "lines.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=r"id cannot be kept: .*lines.txt has a text on each line and no columns"):
        asked.predict(tmp_path / "lines.txt", keep_fields=["id"])


def test_what_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("t0,t1,class,row\n1,2,a,1\n")
    with pytest.raises(InputError, match="the answers have a column 'class' of their own; rename that column"):
        list(predictor(WIDE).predict(tmp_path / "new.csv", keep_fields=["class"]).rows())
    with pytest.raises(DataError, match=r"has no column 'who' \(to keep\); its columns are: t0, t1, class, row"):
        predictor(WIDE).predict(tmp_path / "new.csv", keep_fields=["who"])
    with pytest.raises(InputError, match=r"keep_fields='id' is one text; give a list of names: \['id'\]"):
        predictor(WIDE).predict(tmp_path / "new.csv", keep_fields="id")
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    for given in (tmp_path / "x.npy", np.zeros((2, 3))):
        with pytest.raises(InputError, match=r"id cannot be kept: .* no columns, and their rows are numbered"):
            predictor().predict(given, keep_fields=["id"])
    (tmp_path / "new.jsonl").write_text('{"t0": 1, "t1": 2, "tags": ["a"]}\n{"t0": 1, "t1": 2, "tags": ["a"]}\n')
    with pytest.raises(DataError, match="'tags' holds"):
        predictor(WIDE).predict(tmp_path / "new.jsonl", keep_fields=["tags"])
