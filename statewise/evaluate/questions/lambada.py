"""LAMBADA: the last word of a passage, which only the whole of it gives away."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable

import numpy as np

from statewise.errors import DataError
from statewise.evaluate.questions.question import Metric, Question, QuestionTask, asked, mean
from statewise.evaluate.questions.rows import Row


def word_of_the_passage(question: Question) -> float:
    """How often a word drawn from the passage is the one that is looked for."""
    words = [word.strip(string.punctuation + "“”‘’") for word in question.prompt.split()]
    return words.count(question.choices[0].strip(string.punctuation + "“”‘’")) / max(len(words), 1)


def perplexity(values: np.ndarray) -> float:
    """exp of minus the mean log-probability, infinite where it would overflow."""
    nats = -mean(values)
    return math.exp(nats) if nats < 709 else math.inf


LAST_WORD = Metric(
    name="acc",
    value=lambda answered: float(answered.scores[0].is_greedy),
    by_choice=False,
    chance=word_of_the_passage,
)
PERPLEXITY = Metric(
    name="perplexity",
    value=lambda answered: answered.scores[0].log_probability,
    combine=perplexity,
    interval="bootstrap",
    higher_is_better=False,
    by_choice=False,
    chance="none",
)


def lambada_task(rows: Iterable[Row], source: str) -> QuestionTask:
    """Rows with a "text" whose last word, what follows its last space, is to be said.

    A passage counts as right if each token of the word is the most likely one, so that greedy decoding would write it.
    The perplexity is that of the word, however many tokens it has. Chance is a word drawn from the passage.

    Source:  Paperno et al. 2016, "The LAMBADA dataset", arXiv:1606.06031; as lm-eval's lambada_openai.
    Errors:  DataError, with the place, for a text of one word, or one that ends with a space.
    """
    questions = []
    for row in rows:
        context, space, word = row.text("text").rpartition(" ")
        if not space or not word.strip() or not context.strip():
            raise DataError(f'{row.place}: "text" has no last word after a space; give a passage')
        questions.append(asked(row.values, context, (word,), 0))
    return QuestionTask(
        name="lambada",
        questions=questions,
        examples=None,
        metrics=(LAST_WORD, PERPLEXITY),
        official=True,
        source=source,
    )
