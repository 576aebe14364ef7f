"""Labelled texts: the same rows and classes, whatever they lie in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_formats import RECORDS, frame, json_lines, some_texts, write_class_folders, write_csv, write_jsonl

from statewise.data.labelled_text import LabelledTextData, LabelledTextDataConfig, open_labelled_texts
from statewise.data.long_range.vocabulary import byte_tokens
from statewise.errors import ConfigError, DataError

TEXTS = some_texts(60)
ROWS = [{"text": text, "label": ("no", "yes", "perhaps")[i % 3]} for i, text in enumerate(TEXTS)]
LABELS = {row["text"]: row["label"] for row in ROWS}


def opened(source: Path | str, **fields: Any) -> LabelledTextData:
    given = {"text_field": "text", "label_field": "label", **fields}
    return open_labelled_texts(LabelledTextDataConfig(source=str(source), **given))


def texts_of(data: LabelledTextData, name: str) -> list[str]:
    """Read back from tokens that are bytes."""
    split = data.split(name)
    return [(split.sequence(i)[:-1] - 2).astype(np.uint8).tobytes().decode() for i in range(len(split))]


def labels_of(data: LabelledTextData) -> dict[str, str]:
    return {
        text: data.classes[target]
        for name in data.splits
        for text, target in zip(texts_of(data, name), data.split(name).targets)
    }


@pytest.mark.parametrize("kind", RECORDS)
def test_every_format_gives_the_same_rows(kind: str, cache: Path, tmp_path: Path) -> None:
    data = opened(RECORDS[kind](tmp_path, ROWS))
    assert data.classes == ("no", "perhaps", "yes")
    assert labels_of(data) == LABELS
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 48, "validation": 6, "test": 6}
    assert data.fingerprint == opened(write_jsonl(tmp_path, ROWS)).fingerprint
    assert "labels in 'label', 3 classes" in data.describe()


def test_folders_of_classes(cache: Path, tmp_path: Path) -> None:
    data = opened(write_class_folders(tmp_path, ROWS), text_field=None, label_field=None)
    assert data.classes == ("no", "perhaps", "yes")
    assert labels_of(data) == LABELS
    (tmp_path / "own").mkdir()
    for split, rows in (("train", ROWS[:40]), ("test", ROWS[40:50]), ("val", ROWS[50:])):
        write_class_folders(tmp_path / split, rows).rename(tmp_path / "own" / split)
    data = opened(tmp_path / "own", text_field=None, label_field=None)
    assert labels_of(data) == LABELS
    for split, rows in (("train", ROWS[:40]), ("test", ROWS[40:50]), ("validation", ROWS[50:])):
        assert sorted(texts_of(data, split)) == sorted(row["text"] for row in rows)


def test_rows_are_the_tokens_of_a_text_cut_at_its_end(cache: Path, tmp_path: Path) -> None:
    data = opened(write_jsonl(tmp_path, ROWS), max_length=20)
    split = data.split("train")
    assert int(split.lengths.max()) == 20
    assert "cut        " in data.describe()
    inputs, targets = split.read(np.arange(5))
    assert inputs.dtype == targets.dtype == np.int64
    known = {tuple(byte_tokens(text.encode()[:19])): label for text, label in LABELS.items()}
    for row, target in zip(inputs, targets):
        assert known[tuple(row)] == data.classes[target]


def test_tokens_of_a_learned_tokenizer(cache: Path, tmp_path: Path) -> None:
    data = opened(write_jsonl(tmp_path, ROWS), tokenizer="bpe:320", max_length=30)
    tokenizer = data.tokenizer
    assert tokenizer is not None
    assert data.vocab_size == tokenizer.vocab_size == 320
    known = {tuple([tokenizer.document_token, *tokenizer.encode(text)][:30]): label for text, label in LABELS.items()}
    for name, split in data.splits.items():
        for i in range(len(split)):
            assert known[tuple(data.split(name).sequence(i))] == data.classes[split.targets[i]]
    (tmp_path / "tokenizer.json").write_text(tokenizer.json, "utf-8")
    again = opened(tmp_path / "a.jsonl", tokenizer=str(tmp_path / "tokenizer.json"), max_length=30)
    assert again.fingerprint == data.fingerprint != opened(tmp_path / "a.jsonl").fingerprint


@pytest.mark.parametrize(
    ("labels", "task", "classes"),
    [
        (["b", "a"], None, ("a", "b")),
        ([10, 9], None, ("9", "10")),
        ([True, False], None, ("False", "True")),
        ([0.5, 1.5], None, ()),
        ([1, 2], "regression", ()),
        ([1.0, 2.0], "classification", ("1", "2")),
        ([1, 2.5], None, ()),
    ],
)
def test_what_labels_are(
    labels: list[Any], task: str | None, classes: tuple[str, ...], cache: Path, tmp_path: Path
) -> None:
    rows = [{"text": text, "label": labels[i % 2]} for i, text in enumerate(TEXTS)]
    for source in (write_jsonl(tmp_path, rows), write_csv(tmp_path, rows)):
        data = opened(source, task=task)
        assert data.classes == classes
        split = data.split("train")
        if classes:
            assert labels_of(data) == {text: str(row["label"]).removesuffix(".0") for text, row in zip(TEXTS, rows)}
        else:
            assert (data.d_output, split.targets.dtype, split.targets.shape) == (1, np.float32, (len(split), 1))
            known = dict(zip(TEXTS, (row["label"] for row in rows)))
            assert [known[text] for text in texts_of(data, "train")] == split.targets[:, 0].tolist()


def test_files_that_are_called_train_and_test(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, rows in (("train-0-of-2", ROWS[:20]), ("train-1-of-2", ROWS[20:40]), ("test-0-of-1", ROWS[40:])):
        (folder / f"{name}.jsonl").write_bytes(json_lines(rows))
    data = opened(folder)
    assert sorted(texts_of(data, "test")) == sorted(row["text"] for row in ROWS[40:])
    assert len(data.split("train")) + len(data.split("validation")) == 40
    with pytest.raises(DataError, match="already holds such a split"):
        opened(folder, test_fraction=0.1)


def test_a_data_set_with_named_classes_and_splits(cache: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    names = ["no", "perhaps", "yes"]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})

    def rows(chosen: list[dict[str, str]], **labels: int) -> Any:
        columns = {"text": [r["text"] for r in chosen], "label": [names.index(r["label"]) for r in chosen]}
        return datasets.Dataset.from_dict(columns, features)

    unlabelled = datasets.Dataset.from_dict({"text": ["a"], "label": [-1]}, features)
    whole = {"train": rows(ROWS[:40]), "test": rows(ROWS[40:]), "unsupervised": unlabelled}
    datasets.DatasetDict(whole).save_to_disk(str(tmp_path / "saved"))
    data = opened(tmp_path / "saved")
    assert data.classes == tuple(names)
    assert labels_of(data) == LABELS
    assert "not read: unsupervised" in data.describe()
    datasets.DatasetDict(train=unlabelled).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(DataError, match="row 1: the label is -1, not one of no, perhaps, yes"):
        opened(tmp_path / "other")


# --- what is refused, in one line --------------------------------------------------------------------------------


def with_label(*labels: Any) -> bytes:
    return json_lines([*ROWS, *({"text": "a text", "label": label} for label in labels)])


WRONG: dict[str, tuple[str, Callable[[], bytes], dict[str, Any], str]] = {
    "no fields given": ("a.jsonl", lambda: json_lines(ROWS), {"text_field": None, "label_field": None},
                        "data.text_field=text and data.label_field=label (--text-field text --label-field label)"),
    "no label given": ("a.csv", lambda: b"body,kind\na,b\n", {"text_field": "body", "label_field": None},
                       "(--text-field body --label-field kind); it has body, kind"),
    "no text given": ("a.jsonl", lambda: json_lines(ROWS), {"text_field": None}, "(--text-field text --label-field"),
    "no such label": ("a.jsonl", lambda: json_lines(ROWS), {"label_field": "kind"}, "no field 'kind'; it has text, la"),
    "no label": ("a.jsonl", lambda: with_label(None), {}, "line 61: the field 'label' is empty"),
    "an empty label": ("a.csv", lambda: b"text,label\na,b\nc,\n", {}, "line 3: the field 'label' is empty"),
    "a list": ("a.jsonl", lambda: with_label(["a"]), {}, "line 61: the field 'label' holds ['a']"),
    "mixed": ("a.jsonl", lambda: with_label(3), {}, "line 61: the label 3 is of another kind"),
    "one class": ("a.jsonl", lambda: json_lines([{"text": "a", "label": "b"}] * 9), {}, "all labels are 'b'"),
    "ids": ("a.jsonl", lambda: json_lines([{"text": "a", "label": f"id {i}"} for i in range(300)]), {},
            "have 300 different labels in 'label'"),
    "numbers": ("a.jsonl", lambda: json_lines([{"text": "a", "label": i} for i in range(300)]), {},
                "say --set data.task=regression"),
    "not finite": ("a.jsonl", lambda: with_label(1).replace(b'"no"', b"NaN"), {}, "is of another kind than"),
    "no text": ("a.jsonl", lambda: json_lines([*ROWS, {"text": 1, "label": "no"}]), {}, "holds 1; expected"),
    "plain text": ("a.txt", lambda: b"It rained.\n" * 9, {}, "labelled texts are a folder whose subfolders"),
    "binary": ("a.jsonl", lambda: b"\0" * 99, {}, "is named .jsonl, but is"),
    "cut": ("a.jsonl.gz", lambda: gzip.compress(json_lines(ROWS) * 50)[:-20], {}, "cannot read"),
    "all empty": ("a.jsonl", lambda: json_lines([{"text": "", "label": "b"}] * 9), {}, "no text is left"),
    "rare": ("a.jsonl", lambda: json_lines([{"text": f"{i}", "label": f"{i}"} for i in "ab"]), {}, "holds out nothing"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_labelled_texts(name: str, cache: Path, tmp_path: Path) -> None:
    file, make, fields, said = WRONG[name]
    (tmp_path / file).write_bytes(make())
    assert said in refused(tmp_path / file, **fields)


def refused(source: Path, **fields: Any) -> str:
    with pytest.raises(DataError) as caught:
        opened(source, **fields)
    message = str(caught.value)
    assert message.isprintable(), repr(message)
    assert len(message) <= 400
    return message


def test_wrong_folders(cache: Path, tmp_path: Path) -> None:
    none: dict[str, Any] = {"text_field": None, "label_field": None}
    tree = write_class_folders(tmp_path, ROWS)
    (tree / "README.md").write_text("of these texts")
    n = len(list(tree.rglob("*.txt")))
    found = opened(tree, **none)
    assert "skipped README.md" in found.describe()
    assert sum(len(split) for split in found.splits.values()) == n
    (tree / "notes.md").write_text("of these texts")
    assert "notes.md is not in a folder of a class" in refused(tree, **none)
    (tree / "notes.md").unlink()
    (tree / "no" / "binary.txt").write_bytes(b"\0" * 99)
    assert "binary.txt is binary" in refused(tree, **none)
    (tree / "no" / "binary.txt").unlink()
    write_jsonl(tree, ROWS)
    assert "a.jsonl is JSON lines" in refused(tree, **none)
    (tree / "a.jsonl").unlink()
    (tree / "unlearned").mkdir()
    (tree / "unlearned" / "1.txt").write_text("")
    assert "the class 'unlearned' has no training texts" in refused(tree, **none)
    (tmp_path / "train" / "one").mkdir(parents=True)
    (tmp_path / "train" / "one" / "1.txt").write_text("a text of words")
    assert "has only the class one" in refused(tmp_path / "train", **none)
    assert "no file or folder" in refused(tmp_path / "nothing", **none)
    (tmp_path / "empty").mkdir()
    assert "has no text: no file there" in refused(tmp_path / "empty", **none)
    with pytest.raises(ConfigError, match="give two"):
        opened(tree, label_field="text")
    assert json.loads(json_lines(ROWS).splitlines()[0]) == ROWS[0]
    assert len(frame(ROWS)) == len(ROWS)
