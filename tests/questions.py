"""Questions for tests: made-up rows of SuperGLUE's eight tasks, as ``datasets`` and the official files have them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

# As a file of one's own has it
QUESTION = {"question": "a", "choices": ["b", "c"], "answer": 0}

Made = tuple[list[dict[str, Any]], dict[str, Any]]  # the columns, a row each; the row of the official file

NAMES = ("Anna", "Bertrand", "the U.S. Navy", "Doña Inés", "An Apple Inc.", "O'Neil", "“Ziggy”", "the old mill")
VERBS = ("sold", "painted", "did n't see", "forgot about", "paid for", "wrote to")
THINGS = ("the red bicycle", "a map of Köln", "its 3 windows", "the night train", 'a "fair" price', "no one's coat")
WHEN = ("as ever", "twice", "in 1911")
BOOLEAN = {"boolq", "multirc", "wic", "wsc"}
OFFICIAL_LABELS = {"cb": ("entailment", "contradiction", "neutral"), "rte": ("entailment", "not_entailment")}


def sentence(draw: random.Random) -> str:
    return f"{draw.choice(NAMES)} {draw.choice(VERBS)} {draw.choice(THINGS)}, {draw.choice(WHEN)}."


def boolq(draw: random.Random, i: int) -> Made:
    row = {"passage": f"{sentence(draw)} {sentence(draw)}", "question": f"was it {draw.choice(THINGS)}", "idx": i}
    return labelled("boolq", row, draw.randrange(2))


def cb(draw: random.Random, i: int) -> Made:
    return labelled("cb", {"premise": sentence(draw), "hypothesis": sentence(draw)[:-1], "idx": i}, draw.randrange(3))


def copa(draw: random.Random, i: int) -> Made:
    row = {
        "premise": sentence(draw),
        "choice1": sentence(draw),
        "choice2": sentence(draw),
        "question": draw.choice(("cause", "effect")),
        "idx": i,
    }
    return labelled("copa", row, draw.randrange(2))


def rte(draw: random.Random, i: int) -> Made:
    return labelled("rte", {"premise": sentence(draw), "hypothesis": sentence(draw), "idx": i}, draw.randrange(2))


def wic(draw: random.Random, i: int) -> Made:
    begin, row = draw.randrange(6), {"word": "mill", "sentence1": sentence(draw), "sentence2": sentence(draw), "idx": i}
    row |= {"start1": begin, "end1": begin + 5, "start2": 0, "end2": 4}
    return labelled("wic", row, draw.randrange(2))


def wsc(draw: random.Random, i: int) -> Made:
    words = f'{sentence(draw)[:-1]} because it ( or he ) did n\'t say " why " .'.split()
    at = words.index("it")
    spans = {"span1_text": " ".join(words[:2]), "span1_index": 0, "span2_text": "it", "span2_index": at}
    (columns,), official = labelled("wsc", {"text": " ".join(words), "idx": i, **spans}, draw.randrange(2))
    official = {name: value for name, value in official.items() if name not in spans} | {"target": spans}
    return [columns], official


def multirc(draw: random.Random, i: int) -> Made:
    columns, questions, number = [], [], 0
    text = " ".join(sentence(draw) for _ in range(3))
    for q in range(2):
        asked, answers = f"Who {draw.choice(VERBS)} it?", []
        for a in range(draw.randrange(1, 3)):
            answer, label = draw.choice(NAMES), draw.randrange(2)
            index = {"paragraph": i, "question": q, "answer": number}
            columns.append({"paragraph": text, "question": asked, "answer": answer, "idx": index, "label": label})
            answers.append({"text": answer, "idx": number, "label": bool(label) if a else label})
            number += 1
        questions.append({"question": asked, "answers": answers, "idx": q})
    return columns, {"idx": i, "version": 1.1, "passage": {"text": text, "questions": questions}}


def record(draw: random.Random, i: int) -> Made:
    names = draw.sample(NAMES, 4)
    text = f"{names[0]} met {names[1]}. {names[2]} saw {names[3]} and {names[0]}."
    text += f"\n@highlight\n{sentence(draw)[:-1]}\n@highlight\nmore"
    spans, place = [], 0
    for name in (names[0], names[1], names[2], names[3], names[0]):
        place = text.index(name, place)
        spans.append({"start": place, "end": place + len(name) - 1})
    columns, queries = [], []
    for q in range(2):
        answers = draw.sample(names, 1 + q)
        query = f"Later @placeholder {draw.choice(VERBS)} {draw.choice(THINGS)}"
        index = {"passage": i, "query": 2 * i + q}
        columns.append(
            {"passage": text, "query": query, "entities": sorted(names), "answers": sorted(answers), "idx": index}
        )
        found = [{"start": text.index(a), "end": text.index(a) + len(a) - 1, "text": a} for a in (*answers, answers[0])]
        queries.append({"query": query, "answers": found, "idx": 2 * i + q})
    return columns, {"source": "x", "passage": {"text": text, "entities": spans}, "qas": queries, "idx": i}


def labelled(task: str, row: dict[str, Any], label: int) -> Made:
    """The label as the official files have it: a truth value, a name, or a number."""
    official = bool(label) if task in BOOLEAN else OFFICIAL_LABELS[task][label] if task in OFFICIAL_LABELS else label
    return [{**row, "label": label}], {**row, "label": official}


MAKERS: dict[str, Callable[[random.Random, int], Made]] = {
    "boolq": boolq,
    "cb": cb,
    "copa": copa,
    "multirc": multirc,
    "record": record,
    "rte": rte,
    "wic": wic,
    "wsc": wsc,
}
FOLDERS = ("BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "RTE", "WiC", "WSC")


def write_superglue(folder: Path, *, n_validation: int = 9, n_train: int = 6) -> None:
    """folder/official/BoolQ/val.jsonl and so on, and folder/columns/boolq/validation.jsonl."""
    for (task, make), official_name in zip(MAKERS.items(), FOLDERS, strict=True):
        draw = random.Random(task)
        for split, official_split, n in (("validation", "val", n_validation), ("train", "train", n_train)):
            made = [make(draw, i) for i in range(n)]
            for path, rows in (
                (folder / "columns" / task / f"{split}.jsonl", [row for columns, _ in made for row in columns]),
                (folder / "official" / official_name / f"{official_split}.jsonl", [official for _, official in made]),
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
