"""Rows of SuperGLUE as the official files have them, in the columns that the data set has by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statewise.errors import DataError, excerpt
from statewise.evaluate.questions.rows import Row, shown
from statewise.evaluate.questions.words import exact_match
from statewise.files.limits import require_within

Columns = dict[str, Any]

FOLDERS = {  # of the official files
    "boolq": "BoolQ",
    "cb": "CB",
    "copa": "COPA",
    "multirc": "MultiRC",
    "record": "ReCoRD",
    "rte": "RTE",
    "wic": "WiC",
    "wsc": "WSC",
}
_NO_YES = ("False", "True")
LABELS = {
    "boolq": _NO_YES,
    "cb": ("entailment", "contradiction", "neutral"),
    "copa": ("choice1", "choice2"),
    "multirc": _NO_YES,
    "rte": ("entailment", "not_entailment"),
    "wic": _NO_YES,
    "wsc": _NO_YES,
}
TEXTS = {
    "boolq": ("passage", "question"),
    "cb": ("premise", "hypothesis"),
    "copa": ("premise", "choice1", "choice2", "question"),
    "multirc": ("paragraph", "question", "answer"),
    "rte": ("premise", "hypothesis"),
    "wic": ("word", "sentence1", "sentence2"),
    "wsc": ("text", "span1_text", "span2_text"),
}
INTEGERS = {"wic": ("start1", "end1", "start2", "end2"), "wsc": ("span1_index", "span2_index")}


def in_columns(task: str, row: Row) -> Iterator[Columns]:
    """The questions of a row: one, but for MultiRC and ReCoRD, where a passage of the official files has many.

    Source:  the loader of the data set "super_glue" (TensorFlow Datasets, and ``datasets`` after it), wsc.fixed.
    Errors:  DataError, with the place, for a row that lacks a field or a label, or whose spans are not in its text.
    """
    if task == "record":
        yield from _record(row)
    elif task == "multirc" and "passage" in row.values:
        passage = row.row("passage")
        for question in passage.rows("questions"):
            for answer in question.rows("answers"):
                index = {"paragraph": _index(row), "question": _index(question), "answer": _index(answer)}
                yield {
                    "paragraph": passage.text("text"),
                    "question": question.text("question"),
                    "answer": answer.text("text"),
                    "idx": index,
                    "label": _label(task, answer),
                }
    else:
        nested = task == "wsc" and "target" in row.values
        spans = row.row("target") if nested else row
        columns: Columns = {name: (spans if "span" in name else row).text(name) for name in TEXTS[task]}
        columns |= {name: spans.integer(name) for name in INTEGERS.get(task, ())}
        columns |= {"idx": _index(row), "label": _label(task, row)}
        columns = _with_spans_in_the_text(columns) if nested else columns
        _check(task, columns, row.place)
        yield columns


def _check(task: str, columns: Columns, place: str) -> None:
    """That the prompt can be made of them."""
    if task == "copa" and columns["question"] not in ("cause", "effect"):
        raise DataError(f'{place}: "question" is {excerpt(columns["question"])}; expected cause or effect')
    if task == "wic":
        for i in (1, 2):
            begin, end, length = columns[f"start{i}"], columns[f"end{i}"], len(columns[f"sentence{i}"])
            if not 0 <= begin < end <= length:
                raise DataError(
                    f"{place}: the word of sentence{i} is given as characters {shown(begin)} to {shown(end)} of "
                    f"{length}; expected 0 <= start{i} < end{i} <= {length}"
                )
    if task == "wsc":
        index, n_words = columns["span2_index"], len(columns["text"].split())
        if not 0 <= index < n_words:
            raise DataError(
                f'{place}: "span2_index" is {shown(index)}; expected the number of one of its {n_words} words, from 0'
            )


def _record(row: Row) -> Iterator[Columns]:
    if "passage" not in row.values or isinstance(row.values["passage"], str):
        entities, answers = (sorted(set(row.texts(name))) for name in ("entities", "answers"))
        yield _record_columns(row, row.text("passage"), row.text("query"), entities, answers, _index(row))
        return
    passage = row.row("passage")
    text = passage.text("text")
    spans = passage.rows("entities")
    require_within(passage.place, len(spans) * len(text), len(text) + len(spans), unit="characters of entities")
    entities = sorted({_entity(span, text) for span in spans})
    for query in row.rows("qas"):
        answers = sorted({answer.text("text") for answer in query.rows("answers")})
        index = {"passage": _index(row), "query": _index(query)}
        yield _record_columns(query, text, query.text("query"), entities, answers, index)


def _entity(span: Row, text: str) -> str:
    start, end = span.integer("start"), span.integer("end")
    if not 0 <= start <= end < len(text):
        raise DataError(
            f"{span.place} is from character {shown(start)} to {shown(end)} of {len(text)}; expected "
            f"0 <= start <= end < {len(text)}"
        )
    return text[start : end + 1]


def _record_columns(row: Row, passage: str, query: str, entities: list[str], answers: list[str], index: Any) -> Columns:
    if not entities or not answers:
        raise DataError(f"{row.place} has {len(entities)} entities and {len(answers)} answers; expected some of both")
    if "@placeholder" not in query:
        raise DataError(f'{row.place}: "query" has no @placeholder for the entity to find')
    if not any(exact_match(answer, entity) for answer in answers for entity in entities):
        raise DataError(
            f"{row.place} has the answer {excerpt(answers[0])}, which is not one of its {len(entities)} entities; "
            "expected one"
        )
    n_entities = sum(map(len, entities))
    filled = len(entities) * len(query) + query.count("@placeholder") * n_entities
    require_within(row.place, filled, len(query) + n_entities, unit="characters of choices")
    return {"passage": passage, "query": query, "entities": entities, "answers": answers, "idx": index}


def _label(task: str, row: Row) -> int:
    """Its number; the files have a truth value, a number or a name."""
    names, label = LABELS[task], row.values.get("label")
    if isinstance(label, str) and label in names:
        return names.index(label)
    if isinstance(label, int) and (names is _NO_YES or not isinstance(label, bool)) and 0 <= label < len(names):
        return int(label)
    said = "has no label" if label is None or label == -1 else f"has the label {excerpt(label)}"
    raise DataError(
        f"{row.place} {said}; expected one of {', '.join(names)} (the answers of the test files are not published)"
    )


def _index(row: Row) -> Any:
    return row.values.get("idx")


def _with_spans_in_the_text(columns: Columns) -> Columns:
    """Mends spans that differ from the text, mostly by a capital letter or a full stop."""
    text, fixed = columns["text"], dict(columns)
    for span in ("span1", "span2"):
        words, index = columns[f"{span}_text"], columns[f"{span}_index"]
        if words in text or words in ("Kamenev and Zinoviev", "Kamenev, Zinoviev, and Stalin"):
            continue  # the last two have other words in between
        if "theyscold" in words:
            fixed["span2_index"] = 10
        first = text.split()[index : index + 1]
        if first and words:
            begin = words[0].lower() if first[0][0].islower() else words[0].upper()
            words = (begin + words[1:]).rstrip(".").replace("\n", " ")
        fixed[f"{span}_text"] = words
    return fixed
