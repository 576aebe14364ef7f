"""SuperGLUE's eight tasks as lm-eval asks them, word for word, so that the numbers are its own.

Source:  Wang et al. 2019, "SuperGLUE", arXiv:1905.00537; prompts and metrics: lm-eval 0.4.13, the files
         tasks/super_glue/<task>/default.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from statewise.evaluate.labelled.classification import confusion_matrix, f1_scores
from statewise.evaluate.questions.question import ACCURACY, Answered, Metric, Question, QuestionTask, asked
from statewise.evaluate.questions.rows import Row
from statewise.evaluate.questions.superglue_rows import in_columns
from statewise.evaluate.questions.words import exact_match, word_f1

Columns = Mapping[str, Any]


def _boolq(row: Columns) -> Question:
    return asked(row, f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:", ("no", "yes"), row["label"])


def _cb(row: Columns) -> Question:
    prompt = f"{row['premise']}\nQuestion: {row['hypothesis']}. True, False, or Neither?\nAnswer:"
    return asked(row, prompt, ("True", "False", "Neither"), row["label"])


def _copa(row: Columns) -> Question:
    connector = {"cause": "because", "effect": "therefore"}[row["question"]]
    # The choices begin with a space of their own: lm-eval's prompt has two there.
    choices = [f" {text[:1].lower()}{text[1:]}" for text in (row["choice1"], row["choice2"])]
    return asked(row, f"{row['premise'].strip()[:-1]} {connector}", choices, row["label"])


def _multirc(row: Columns) -> Question:
    choices = [f"{row['answer']}\nIs the answer correct? {word}" for word in ("yes", "no")]
    return asked(row, f"{row['paragraph']}\nQuestion: {row['question']}\nAnswer:", choices, row["label"])


def _record(row: Columns) -> Question:
    first, *highlights = row["passage"].strip().split("\n@highlight\n")
    prompt = f"{first}\n\n" + "".join(f"  - {highlight}.\n" for highlight in highlights)

    def filled(entity: str) -> str:
        return f"  - {row['query']}".replace("@placeholder", entity)

    answers = tuple(i for i, entity in enumerate(row["entities"]) if entity in row["answers"])
    return Question(prompt, tuple(map(filled, row["entities"])), answers, filled(row["answers"][0]), row)


def _rte(row: Columns) -> Question:
    prompt = f"{row['premise']}\nQuestion: {row['hypothesis']} True or False?\nAnswer:"
    return asked(row, prompt, ("True", "False"), row["label"])


def _wic(row: Columns) -> Question:
    word = row["sentence1"][row["start1"] : row["end1"]]
    prompt = (
        f"Sentence 1: {row['sentence1']}\nSentence 2: {row['sentence2']}\n"
        f"Question: Is the word '{word}' used in the same way in the two sentences above?\nAnswer:"
    )
    return asked(row, prompt, ("no", "yes"), row["label"])


def _wsc(row: Columns) -> Question:
    text, pronoun = row["text"], row["span2_text"]
    before = " ".join(text.split()[: row["span2_index"]])  # the index counts words
    after = text[len(before) + len(pronoun) + 1 :]
    passage = _detokenized(f"{before} *{pronoun}*{after}")
    prompt = (
        f'Passage: {passage}\nQuestion: In the passage above, does the pronoun "*{pronoun}*" refer to '
        f'"*{row["span1_text"]}*"?\nAnswer:'
    )
    return asked(row, prompt, ("no", "yes"), row["label"])


def _detokenized(text: str) -> str:
    for spaced, joined in ((" n't", "n't"), (" )", ")"), ("( ", "("), ('" ', '"'), (' "', '"')):
        text = text.replace(spaced, joined)
    return re.sub(r" (['.,])", r"\1", text)


def _macro_f1(values: np.ndarray) -> float:
    """From (n, 2) answers and predictions, the mean F1 of CB's three classes, 0 for one that never occurs."""
    golds, predictions = values.astype(int).T
    return float(np.mean(np.nan_to_num(f1_scores(confusion_matrix(golds, predictions, 3)))))


def _best(compare: Callable[[str, str], float]) -> Callable[[Answered], float]:
    """Compares the chosen entity with the right one that it is closest to."""

    def value(answered: Answered) -> float:
        row = answered.question.row
        return max(compare(row["entities"][answered.predicted], answer) for answer in row["answers"])

    return value


EXACT_MATCH = Metric(name="em", value=_best(exact_match))
WORD_F1 = Metric(name="f1", value=_best(word_f1), interval="bootstrap")
MACRO_F1 = Metric(
    name="f1",
    value=lambda answered: (answered.question.answers[0], answered.predicted),
    combine=_macro_f1,
    interval="bootstrap",
    chance="none",
)
PROMPTS: dict[str, Callable[[Columns], Question]] = {
    "wsc": _wsc,
    "wic": _wic,
    "rte": _rte,
    "cb": _cb,
    "multirc": _multirc,
    "record": _record,
    "boolq": _boolq,
    "copa": _copa,
}
METRICS = {"cb": (ACCURACY, MACRO_F1), "record": (EXACT_MATCH, WORD_F1)}
NOTES = {
    "multirc": "multirc: lm-eval's file, which this follows, counts “yes” as right where the answer is wrong, and “no” "
    "where it is right; the accuracy by the labels is 1 minus this one"
}
NOT_LABELS = ("copa", "record")  # their choices are other texts in every question


def superglue_task(name: str, rows: Iterable[Row], examples: Iterable[Row] | None, source: str) -> QuestionTask:
    """One of the eight tasks over the rows of its validation split, with those of its training split as examples.

    Errors:  DataError, with the place, for a row that is not the task's.
    """

    def made(found: Iterable[Row]) -> list[Question]:
        return [PROMPTS[name](columns) for row in found for columns in in_columns(name, row)]

    return QuestionTask(
        name=name,
        questions=made(rows),
        examples=() if examples is None else made(examples),
        metrics=METRICS.get(name, (ACCURACY,)),
        official=True,
        labels=name not in NOT_LABELS,
        source=source,
        note=NOTES.get(name, ""),
    )
