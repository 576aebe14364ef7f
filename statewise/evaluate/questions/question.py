"""A question whose choices a model weighs, how an answer counts, and the tasks that questions come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from statewise.evaluate.text.likelihood import Score


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is asked and what may follow.

    prompt:  the text before the choices; "": there is none, and each choice is a text of its own
    choices: what may follow it, after a space
    answers: which of the choices are right, from 0
    target:  what follows the prompt, after a space, where the question is an example
    row:     as the data has it. Two questions are the same if their rows are
    """

    prompt: str
    choices: tuple[str, ...]
    answers: tuple[int, ...]
    target: str
    row: Mapping[str, Any]


def asked(
    row: Mapping[str, Any], prompt: str, choices: Sequence[str], answer: int, target: str | None = None
) -> Question:
    """A question with one right choice, which is also its ``target`` unless another is given."""
    return Question(prompt, tuple(choices), (answer,), choices[answer] if target is None else target, row)


@dataclass(frozen=True, slots=True)
class Answered:
    """A question, the score of each of its choices, and the number of the choice that the model is held to."""

    question: Question
    scores: tuple[Score, ...]
    predicted: int


def decide(question: Question, scores: Sequence[Score], *, normalize: bool = False) -> Answered:
    """The most likely choice, the first if several are; with ``normalize`` by its log-probability per character.

    >>> two = Question("", ("abcd", "a"), (0,), "", {})
    >>> scores = (Score(-3.0, False), Score(-1.0, False))
    >>> decide(two, scores).predicted, decide(two, scores, normalize=True).predicted
    (1, 0)
    """
    values = np.array([score.log_probability for score in scores])
    if normalize:
        values = values / np.array([float(len(choice)) for choice in question.choices])
    return Answered(question, tuple(scores), int(np.argmax(values)))


def mean(values: np.ndarray) -> float:
    """Summed one after the other, so that it is lm-eval's to the last digit."""
    return float(sum(values.tolist()) / len(values))


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What is reported about a task.

    value:    of an answered question: a number, or several that ``combine`` makes one number of
    combine:  (n,) or (n, k), a row for each question -> the metric
    interval: "wilson" for shares of right answers, else "bootstrap"
    by_choice: whether it depends on the choice that the model is held to, and so on the normalisation
    chance:   of a question, what a guess is worth on average. None: each choice is as likely as the others; "none":
              there is no such value
    """

    name: str
    value: Callable[[Answered], Any]
    combine: Callable[[np.ndarray], float] = mean
    interval: Literal["wilson", "bootstrap"] = "wilson"
    higher_is_better: bool = True
    by_choice: bool = True
    chance: Callable[[Question], float] | Literal["none"] | None = None


def is_right(answered: Answered) -> float:
    return float(answered.predicted in answered.question.answers)


ACCURACY = Metric(name="acc", value=is_right)


@dataclass(frozen=True, kw_only=True)
class QuestionTask:
    """Questions that are counted together.

    questions: those that are asked
    examples:  those that few-shot examples are drawn from; None: the task has none
    metrics:   the first stands for the task in averages over several
    official:  whether these are the questions of the published task of this name. Only these count in means over groups
               and are shown next to published numbers; your own file does not, whatever its name
    labels:    whether the choices mean the same in every question, so that always giving one is a way to guess
    source:    where the questions came from
    note:      what a reader of the numbers has to know
    """

    name: str
    questions: Sequence[Question]
    examples: Sequence[Question] | None
    metrics: tuple[Metric, ...] = (ACCURACY,)
    official: bool = False
    labels: bool = False
    source: str = ""
    note: str = field(default="", compare=False)
