"""Examples before a question: which lm-eval would draw, and how they are written."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from statewise.errors import DataError
from statewise.evaluate.questions.question import Question, QuestionTask

SEED = 1234  # lm-eval's, for the examples


def contexts(task: QuestionTask, questions: Sequence[Question], n_shots: int) -> Iterator[str]:
    """The text before the choices of each question: examples with their answers, then its prompt.

    One generator draws for one question after the other, so that the examples are those of lm-eval for the same
    questions in the same order, and the first questions have the same examples however many are asked. A question is
    never among its own examples.

    Errors:  DataError if there are too few examples to draw from.
    """
    if n_shots == 0:
        yield from (question.prompt for question in questions)
        return
    pool = task.examples or ()
    draw = random.Random(SEED)
    for question in questions:
        examples = _draw(draw, pool, question, n_shots, task.name)
        yield "".join(f"{example.prompt} {example.target}\n\n" for example in examples) + question.prompt


def _draw(draw: random.Random, pool: Sequence[Question], question: Question, n: int, name: str) -> list[Question]:
    """One more than is needed, since the question itself may be drawn; again from the others if it was, repeatedly."""
    if len(pool) <= n:
        raise DataError(
            f"{n} examples before each question of {name} are too many: there are {len(pool)} to draw from, and one "
            "may be the question itself; ask for fewer"
        )
    drawn = [example for example in draw.sample(pool, n + 1) if example.row != question.row][:n]
    if len(drawn) < n:
        others = [example for example in pool if example.row != question.row]
        if len(others) < n:
            raise DataError(
                f"{n} examples before each question of {name} are too many: only {len(others)} are a different "
                "question; ask for fewer"
            )
        drawn = draw.sample(others, n)
    return drawn
