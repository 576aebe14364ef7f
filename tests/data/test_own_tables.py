"""Sequences of tables: a row, a step or a cell each; every format gives the same, and wrong ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import refused
from own_files import FORMATS, lists, long, own, pandas, rows_of, wide

from statewise.data.own.targets import as_targets
from statewise.errors import DataError, StatewiseError

WAYS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "wide": (wide, {}, "table, a sequence in each row, steps t0 to t5 (6); classes down, up by 'kind'"),
    "long": (
        long,
        {"row_field": "id", "time_field": "time"},
        "long table, a step in each row, numbers left, right, sequences by 'id', sorted by 'time'",
    ),
    "lists": (lists, {"sequence_field": "s"}, "lists, in the column s; classes down, up by 'kind'"),
}


def expected(way: str) -> tuple[list[np.ndarray], list[str]]:
    frame = WAYS[way][0]()
    if way == "wide":
        return list(frame.iloc[:, :-1].to_numpy()[..., None]), frame["kind"].tolist()
    if way == "lists":
        return [np.array(one)[:, None] for one in frame["s"]], frame["kind"].tolist()
    groups = [group.sort_values("time") for _, group in frame.groupby("id", sort=False)]
    return [group[["left", "right"]].to_numpy() for group in groups], [group["kind"].iloc[0] for group in groups]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("way", WAYS)
def test_every_format_gives_the_same_rows(tmp_path: Path, way: str, name: str) -> None:
    make, options, said = WAYS[way]
    frame = make()
    FORMATS[name](frame, tmp_path / name)
    data = own(tmp_path / name, label_field="kind", test_fraction=0.0, validation_fraction=0.0, **options)
    rows, kinds = expected(way)
    found = rows_of(data, "train")
    assert all(np.array_equal(a, b) for a, b in zip(found, rows, strict=True))
    split = data.split("train")
    assert [data.classes[i] for i in split.targets[np.argsort(split.begins)]] == kinds
    if name == "a.csv":
        assert f"data       a.csv: {said}" in data.describe()
    if name == "b.csv":
        assert "the first column, which has no name and counts the rows, is left out" in data.describe()
    if name == "g.jsonl":
        assert " in JSON lines, " in data.describe()


def test_labels_that_are_numbers(tmp_path: Path) -> None:
    frame = wide()
    frame["whole"], frame["real"] = np.arange(24) % 3 * 5 + 5, np.linspace(0, 1, 24)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";", decimal=",")
    skip = lambda *names: {"ignored_fields": tuple({"kind", "whole", "real"} - set(names)), "label_field": names[0]}  # noqa: E731
    for name in ("a.csv", "b.csv"):
        assert own(tmp_path / name, **skip("whole")).classes == ("5", "10", "15"), "sorted as numbers"
        data = own(tmp_path / name, **skip("whole"), task="regression")
        assert (data.classes, data.d_output) == ((), 1)
        data = own(tmp_path / name, **skip("real"))
        assert (data.classes, data.d_output) == ((), 1)
        assert sorted(np.concatenate([s.targets[:, 0] for s in data.splits.values()])) == pytest.approx(frame["real"])
        assert "predicts 'real'" in data.describe()
    assert "is not a number, but a regression needs numbers" in refused(
        lambda: own(tmp_path / "a.csv", **skip("kind"), task="regression")
    )
    assert "and not classes" in refused(lambda: own(tmp_path / "a.csv", **skip("real"), task="classification"))
    frame["real"] = frame["whole"].astype(float)
    frame.to_parquet(tmp_path / "c.parquet")
    assert own(tmp_path / "c.parquet", **skip("real"), task="classification").classes == ("5", "10", "15")
    frame["whole"] = np.arange(24)
    frame.to_csv(tmp_path / "d.csv", index=False)
    assert "which would be as many classes; to predict numbers say --set data.task=regression" in refused(
        lambda: own(tmp_path / "d.csv", **skip("whole"))
    )


@pytest.mark.parametrize(
    ("labels", "task", "classes"),
    [
        (["b", "a", "NA"], None, ("NA", "a", "b")),
        (["007", "8", "9"], None, ("007", "8", "9")),
        ([True, False, True], None, ("False", "True")),
        ([3, 1, 2], None, ("1", "2", "3")),
        ([3.0, 1.0, 2.0], "classification", ("1", "2", "3")),
        (["1.5", "2", "3"], None, ()),
        (["1,5", "2", "3"], None, ()),
        ([3, 1, 2], "regression", ()),
    ],
)
def test_what_labels_are(labels: list[Any], task: str | None, classes: tuple[str, ...]) -> None:
    given = np.array(labels, object if isinstance(labels[0], str) else None)
    targets, found = as_targets(given, task, str)
    assert found == classes
    assert targets.dtype == (np.int64 if classes else np.float32)


@pytest.mark.parametrize(
    ("name", "values", "is_set_aside"),
    [
        ("id", range(100, 124), True),
        ("ID", reversed(range(24)), True),  # shuffled, as rows often are
        ("customer_id", range(24), True),
        ("PassengerId", range(1, 25), True),
        ("index", range(24), True),
        ("Kunden-Nr.", range(24), True),
        ("Unnamed: 0", range(24), True),
        ("id", [0.5 + i for i in range(24)], False),  # measured, whatever it is
        ("id", [i // 2 for i in range(24)], False),
        ("index", [*range(1, 24), 0], False),  # as of prices
        ("t_first", range(24), False),
        ("liquid", range(24), False),
        ("year", range(2000, 2024), False),
    ],
)
def test_what_numbers_the_rows_is_no_step(tmp_path: Path, name: str, values: Any, is_set_aside: bool) -> None:
    """Where both the name and the values say so; and it is told."""
    frame = wide()
    frame.insert(0, name, list(values))
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = own(tmp_path / "a.csv", label_field="kind")
    assert data.max_length == (6 if is_set_aside else 7)
    assert (f"; {name} numbers the rows, so it is left out" in data.describe()) == is_set_aside
    named = own(tmp_path / "a.csv", label_field="kind", ignored_fields=(name,))
    assert named.max_length == 6
    assert "numbers the rows" not in named.describe()


@pytest.mark.parametrize("repeated", [False, True])
def test_names_of_rows_are_no_step(tmp_path: Path, repeated: bool) -> None:
    frame = wide()
    names = [f"A-{i}" for i in range(len(frame))]
    frame.insert(0, "customer_id", ["A-1", *names[1:]] if repeated else names)
    frame.to_csv(tmp_path / "a.csv", index=False)
    if repeated:
        with pytest.raises(DataError, match="'customer_id' is 'A-1', not a number"):
            own(tmp_path / "a.csv", label_field="kind")
        return
    data = own(tmp_path / "a.csv", label_field="kind")
    assert data.max_length == 6
    assert "; customer_id names the rows, so it is left out" in data.describe()


def test_what_numbers_the_rows_of_a_long_table(tmp_path: Path) -> None:
    frame = long().rename(columns={"id": "who"})
    frame.insert(0, "index", np.arange(len(frame)))
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = own(tmp_path / "a.csv", label_field="kind", row_field="who", time_field="time")
    assert data.found.files is not None
    assert data.found.files.columns == ("left", "right")
    assert "index numbers the rows, so it is left out" in data.describe()
    by_it = own(tmp_path / "a.csv", label_field="kind", row_field="who", time_field="index", ignored_fields=("time",))
    assert by_it.found.files.time_field == "index"  # type: ignore[union-attr]


def test_times_of_steps(tmp_path: Path) -> None:
    for times in (
        ["2024-01-03", "2024-01-01", "2024-01-02"],
        ["2024-01-01T12:00", "2024-01-01T02:00", "2024-01-01T03"],
    ):
        frame = pandas.DataFrame({"id": ["a"] * 3 + ["b"] * 3, "time": times * 2, "x": [3, 1, 2] * 2})
        frame["label"] = frame["id"]
        frame.to_csv(tmp_path / "a.csv", index=False)
        frame["time"] = pandas.to_datetime(frame["time"], format="ISO8601")
        frame.to_parquet(tmp_path / "a.parquet")
        for name in ("a.csv", "a.parquet"):
            fields = {"row_field": "id", "test_fraction": 0.0, "validation_fraction": 0.0}
            sorted_rows = rows_of(own(tmp_path / name, time_field="time", **fields))
            assert [row[:, 0].tolist() for row in sorted_rows] == [[1, 2, 3]] * 2


LONG = "id,time,x,label\na,1,5,up\na,2,6,up\nb,1,5,down\nb,2,4,down\n"
BY_ID = {"row_field": "id", "time_field": "time"}
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no label": ("a,b\n1,2\n3,4\n", {}, "has no column 'label' (data.label_field); its columns are: a, b"),
    "a wrong label": (
        "a,b\n1,2\n3,4\n",
        {"label_field": "c"},
        "no column 'c' (data.label_field); its columns are: a, b",
    ),
    "a label missing": ("a,label\n1,x\n3,\n4,y\n", {}, "a.csv, line 3 has no label"),
    "no labels": ("a,label\n1,\n3,\n", {}, "has no label, like all others"),
    "one class": ("a,label\n1,x\n3,x\n", {}, "all labels are 'x'"),
    "a step missing": ("a,b,label\n1,2,x\n3,,y\n", {}, "a.csv, line 3: 'b' is missing; fill it"),
    "infinite": ("a,b,label\n1,2,x\n3,inf,y\n", {}, "a.csv, line 3: 'b' is not finite in float32"),
    "text alone": ("id,note,label\n1,so good,x\n2,so bad,y\n", {}, "to learn from text, add --text-field note"),
    "text among steps": (
        "a,name,label\n1,joe,x\n3,sue,y\n",
        {},
        "not a number; write a number, or leave out columns that are not steps: --ignore-field name",
    ),
    "texts among steps": (
        "a,name,x y,label\n1,joe,1-2-24,x\n3,sue,1-3-24,y\n",
        {},
        "leave out columns that are not steps: --ignore-field name --ignore-field 'x y'",
    ),
    "no steps but an id": (
        "id,label\n1,x\n2,y\n",
        {},
        "has no columns of numbers left to learn from; its columns are: id, label",
    ),
    "a typing error": ("a,b,label\n1,2,x\n3,4o,y\n", {}, "line 3: 'b' is '4o', not a number"),
    "no steps": ("label\nx\ny\n", {}, "has no columns of numbers left"),
    "a short line": ("label,a,b\nx,1,2\ny,3\n", {}, "line 3: 'b' is missing"),
    "wrong ignored": (LONG, {"ignored_fields": ("who",)}, "no column 'who' (data.ignored_fields)"),
    "two labels": (
        LONG.replace("a,2,6,up", "a,2,6,down"),
        BY_ID,
        "line 3: the sequence 'a' has the label 'down', and 'up'",
    ),
    "no name": (LONG.replace("a,2", ",2"), BY_ID, "line 3: 'id' is missing; each step needs the name"),
    "a time twice": (LONG.replace("b,2", "b,1"), BY_ID, "line 5: the sequence 'b' has this 'time' twice"),
    "a time missing": (LONG.replace("b,2", "b,"), BY_ID, "line 5: 'time' is missing"),
    "no time": (LONG.replace("b,2", "b,later"), BY_ID, "'later', neither an ISO date"),
    "time alone": (LONG, {"time_field": "time"}, "set data.row_field, or leave it out"),
    "a column twice": (LONG, {"row_field": "id", "time_field": "id"}, "a column is named twice"),
    "lists and long": (
        LONG,
        {"row_field": "id", "sequence_field": "x"},
        "leave out row_field, time_field",
    ),
    "no list": ("s,label\n1 2 x,a\n1 2,b\n", {"sequence_field": "s"}, "line 2: 's' is '1 2 x', not a list of numbers"),
    "decimals or numbers": (
        "s;label\n0,5 1,7;a\n1 2;b\n",
        {"sequence_field": "s"},
        "line 2: 's' is '0,5 1,7', whose commas may mark decimals",
    ),
    "an empty list": ("s,label\n[],a\n1 2,b\n", {"sequence_field": "s"}, "line 2: 's' is missing or empty"),
    "a gap in a list": ('s,label\n"[1, null]",a\n1 2,b\n', {"sequence_field": "s"}, "line 2: 's' has numbers that are"),
    "no such lists": (LONG, {"sequence_field": "s"}, "no column 's' (data.sequence_field)"),
    "pictures' option": (LONG, {"image_size": (2, 2)}, "data.image_size is not for a table"),
    "channels": (LONG, {"channels": "mono"}, "data.channels is for pictures and sounds"),
    "arrays' option": (LONG, {"labels": "y.npy"}, "data.labels is not for a table"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tables_are_refused_in_a_line(tmp_path: Path, what: str) -> None:
    content, options, said = WRONG[what]
    (tmp_path / "a.csv").write_text(content)
    assert said in refused(lambda: own(tmp_path / "a.csv", **options), StatewiseError)


JSON_LABELS: dict[str, tuple[str, str]] = {
    "a label of another kind": (
        '{"x": 1, "label": "a"}\n{"x": 2, "label": 3}\n',
        "line 2: the label 3 is of another kind",
    ),
    "a label that is a list": ('{"x": 1, "label": [1]}\n{"x": 2, "label": [2]}\n', "line 1: the label"),
    "a list among numbers": (
        '{"x": 1, "label": "a"}\n{"x": [2], "label": "b"}\n',
        "'x' is 1; expected a list",
    ),
    "an object": ('{"x": {}, "label": "a"}\n{"x": {}, "label": "b"}\n', "line 1: 'x' is '{}', not a number"),
    "unlike widths": (
        '{"s": [[1, 2]], "label": "a"}\n{"s": [[2]], "label": "b"}\n',
        "has 1 numbers a step; the first has 2",
    ),
    "a cell that is no list": (
        '{"s": [1], "label": "a"}\n{"s": 2, "label": "b"}\n',
        "line 2: 's' is 2; expected a list",
    ),
}


@pytest.mark.parametrize("what", JSON_LABELS)
def test_wrong_json_lines_are_refused_in_a_line(tmp_path: Path, what: str) -> None:
    content, said = JSON_LABELS[what]
    (tmp_path / "a.jsonl").write_text(content)
    assert said in refused(lambda: own(tmp_path / "a.jsonl"), DataError)


def test_targets_that_float32_rounds_away() -> None:
    """1.7e9 plus some tens are a handful of numbers in float32: a regressor would answer one of them everywhere."""
    around = 1.7e9 + np.linspace(0, 60, 50)
    with pytest.raises(
        DataError, match=r"vary by 60 around 1700000030, .* steps of 128; subtract 1700000030 from them"
    ):
        as_targets(around, None, str)
    assert as_targets(around - 1.7e9, None, str)[0].shape == (50, 1)
    assert as_targets(np.full(5, 1e9), None, str)[0].shape == (5, 1)  # a constant loses nothing
