"""The texts of files, of data sets and of tables in memory, and where each stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from text_formats import RECORDS, frame, json_lines, some_texts, write_saved

import statewise as sw
from statewise.errors import DataError
from statewise.models.text_input import TextInputConfig
from statewise.predict.texts import texts_at, texts_of_frame

TEXTS = some_texts(20)


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_every_format(tmp_path: Path, kind: str) -> None:
    path = RECORDS[kind](tmp_path, [{"n": i, "body": text} for i, text in enumerate(TEXTS)])
    assert list(texts_at(path, "body")) == TEXTS


def test_a_field_within_another_of_a_data_set(tmp_path: Path) -> None:
    path = write_saved(tmp_path, [{"meta": {"body": text}} for text in TEXTS])
    assert list(texts_at(path, "meta.body")) == TEXTS


def test_a_data_set_of_several_splits_or_without_texts(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    one, other = (datasets.Dataset.from_dict({"text": texts}) for texts in (TEXTS[:7], TEXTS[7:]))
    datasets.DatasetDict(train=one, test=other).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match=r"has the splits train, test; give the folder of one, as .*saved/train"):
        texts_at(tmp_path / "saved")
    assert list(texts_at(tmp_path / "saved" / "test")) == TEXTS[7:]
    for rows, said in (
        ([{"text": "a"}, {"text": None}], "saved, row 2: None is not a string; expected a text"),
        ([{"a": "a", "b": "b"}], "has no column 'text', expected for the texts; it has a, b"),
        ([{"text": 3}], "row 1: the field 'text' holds 3; expected a string"),
    ):
        (place := tmp_path / str(len(said))).mkdir()
        with pytest.raises(DataError, match=said):
            texts_at(write_saved(place, rows))


def test_the_lines_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\r\n \ntwo\u2028halves\n\x85\nthree".encode())
    texts: Any = texts_at(tmp_path / "a.txt")
    assert list(texts) == ["one", "two\u2028halves", "three"]
    assert (texts.names, texts.named_by) == ([1, 4, 6], "line")


def test_json_lines_are_records_whatever_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(json_lines([{"text": text} for text in TEXTS]))
    assert list(texts_at(tmp_path / "a.txt")) == TEXTS
    (tmp_path / "a.txt").rename(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"is named \.csv, but is JSON lines .*; rename it to end in \.jsonl"):
        texts_at(tmp_path / "a.csv")


def test_a_table_in_memory() -> None:
    table = frame([{"n": i, "body": text} for i, text in enumerate(TEXTS)])
    layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    text = TextInputConfig(max_length=30, field="body")
    config = sw.SequenceClassifierConfig(n_classes=2, vocab_size=258, d_model=16, layers=layers, text=text)
    predictor = sw.predictor(config.build())
    expected = list(predictor.predict(TEXTS).rows())
    assert list(predictor.predict(table).rows()) == expected
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    assert list(predictor.predict(datasets.Dataset.from_pandas(table)).rows()) == expected
    assert texts_of_frame(table) == texts_of_frame(table, "body") == TEXTS  # the only one of texts
    for wrong, said in (
        (
            table.rename(columns={"body": "text"}),
            "the DataFrame has no column 'body', expected for the texts; it has n",
        ),
        (table.assign(body=[*TEXTS[:-1], None]), "the DataFrame, row 19: .* is not a string"),
    ):
        with pytest.raises(DataError, match=said):
            predictor.predict(wrong)
