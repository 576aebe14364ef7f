"""Ask a model questions: metrics with their intervals, and chance to compare them with."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from statewise.data.progress import Progress
from statewise.data.tokenizers import Tokenizer, require_fits
from statewise.errors import ConfigError, InputError, require_least
from statewise.evaluate.intervals import Interval, bootstrap, mean_of_shares, standard_error_of_mean, wilson
from statewise.evaluate.questions.find import GROUPS
from statewise.evaluate.questions.question import Answered, Metric, Question, QuestionTask, decide, mean
from statewise.evaluate.questions.shots import contexts
from statewise.evaluate.text.likelihood import Score, encode_pair, keep_the_end, prepared, score
from statewise.evaluate.text.perplexity import position_limit
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel

AT_ONCE = 256  # questions whose tokens are held at a time


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A metric of a task, or the mean of the tasks of a group.

    official: whether these are the questions of the published task of this name, and not a file of yours
    standard_error: as lm-eval's where it has a formula, else resampled; None for a single question, and for a mean
        over tasks of which one has a single question
    low, high, interval: the 95 % interval, and how it was made ("wilson", "bootstrap", "plus four"). It takes the
        questions for independent of each other
    chance:   what guessing is worth; None where that is not a number of its own
    majority: what always giving the commonest answer is worth, where the choices are the same in every question
    """

    task: str
    metric: str
    value: float
    standard_error: float | None
    low: float
    high: float
    interval: str
    chance: float | None
    majority: float | None
    higher_is_better: bool
    n_shots: int
    n_samples: int
    official: bool = False


@dataclass(frozen=True, kw_only=True)
class QuestionResults:
    """tasks: the metrics of each; groups: averages over the tasks of a group; answers: every question, by task."""

    tasks: tuple[Measure, ...]
    groups: tuple[Measure, ...]
    answers: Mapping[str, Sequence[Answered]]
    sources: Mapping[str, str]
    notes: tuple[str, ...]
    seconds: float

    def record(self) -> dict[str, Any]:
        """The results as JSON data, without the single questions."""
        return {
            "results": [asdict(measure) for measure in self.tasks],
            "groups": [asdict(measure) for measure in self.groups],
            "sources": dict(self.sources),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def questions(self) -> dict[str, list[dict[str, Any]]]:
        """Every question with the model's answer, by task, as JSON data."""
        return {name: [_said(answered) for answered in answers] for name, answers in self.answers.items()}


def evaluate_questions(
    model: LanguageModel,
    tokenizer: Tokenizer,
    tasks: Sequence[QuestionTask],
    *,
    n_shots: int = 0,
    normalize: bool = False,
    document_token: bool = True,
    max_length: int | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> QuestionResults:
    """Ask every question of the tasks; the model's answer is the choice that it finds most likely after the prompt.

    The numbers equal those of lm-eval for the same model, prompts and examples. What the choices of a question share
    is read once.

    n_shots:        examples before each question, drawn as lm-eval draws them
    normalize:      divide a choice's log-probability by its number of characters; such metrics end in "_norm"
    document_token: begin every context with it, as every document began when Statewise trained the model. Leave it out
                    for published models: they begin a text as their tokenizer does. An empty context is that beginning,
                    or the document token if there is none
    max_length:     how many tokens a prediction may depend on: longer contexts are cut at their beginning. None: all,
                    or as many as there are learned positions
    batch_size:     rows read together
    progress:       called with the number of questions answered, and of all questions

    Cost:     as :func:`~statewise.evaluate.text.likelihood.score`, 256 questions at a time
    Errors:   ConfigError for options out of range and a tokenizer larger than the model; DataError for too few
              examples and choices without a token; NotFiniteError.
    """
    require_least(ConfigError, n_shots=(n_shots, 0), batch_size=(batch_size, 1), max_length=(max_length, 1))
    require_fits(tokenizer, model.config.vocab_size, ConfigError)
    limits = [limit for limit in (position_limit(model), max_length) if limit is not None]
    begin, n_all, n_before = time.perf_counter(), sum(len(task.questions) for task in tasks), 0
    limit = min(limits, default=None)
    answers: dict[str, list[Answered]] = {}
    measures: list[Measure] = []
    cut: Counter[str] = Counter()
    for task in tasks:
        if not task.questions:
            raise InputError(f"the task {task.name} has no questions; give at least one")
        if n_shots and task.examples is None:
            raise ConfigError(f"{task.name} has no examples to put before a question; use n_shots=0")
        told = None if progress is None else _after(progress, n_before, n_all)
        asked = _ask(model, tokenizer, task, n_shots, document_token, limit, batch_size, told, cut)
        answers[task.name] = [decide(question, scores, normalize=normalize) for question, scores in asked]
        n_before += len(task.questions)
        measures += [measure(task, metric, answers[task.name], n_shots, normalize) for metric in task.metrics]
    return QuestionResults(
        tasks=tuple(measures),
        groups=tuple(_group_measures(measures, n_shots)),
        answers=answers,
        sources={task.name: task.source for task in tasks},
        notes=(*(task.note for task in tasks if task.note), *_what_was_cut(answers, cut, limit)),
        seconds=time.perf_counter() - begin,
    )


def _ask(
    model: LanguageModel,
    tokenizer: Tokenizer,
    task: QuestionTask,
    n_shots: int,
    document_token: bool,
    max_length: int | None,
    batch_size: int,
    progress: Callable[[int], None] | None,
    cut: Counter[str],
) -> Iterator[tuple[Question, list[Score]]]:
    """cut: to count the questions in of which a context is cut"""
    told = contexts(task, task.questions, n_shots)
    with evaluation_mode(model):
        model = prepared(model)
    for begin in range(0, len(task.questions), AT_ONCE):
        part = task.questions[begin : begin + AT_ONCE]
        requests, owners = [], []
        for i, question in enumerate(part):
            choices = [f" {choice}" for choice in question.choices]
            pairs = encode_pair(tokenizer, next(told), choices, document_token=document_token)
            kept = [keep_the_end(*pair, max_length) for pair in pairs]
            cut[task.name] += any(len(pair[0]) > len(context) for pair, (context, _) in zip(pairs, kept))
            requests += kept
            owners += [i] * len(pairs)
        left = Counter(owners)

        def done(request: int, _: Score, left: Counter[int] = left, owners: list[int] = owners) -> None:
            left[owners[request]] -= 1
            if progress is not None and not left[owners[request]]:
                progress(1)

        scores = score(model, requests, batch_size=batch_size, done=done)
        place = 0
        for question in part:
            yield question, scores[place : place + len(question.choices)]
            place += len(question.choices)


def _what_was_cut(answers: Mapping[str, Sequence[Answered]], cut: Counter[str], limit: int | None) -> Iterator[str]:
    for name, n in cut.items():
        if n:
            yield (
                f"{name}: {n:,} of {len(answers[name]):,} questions are longer than the {limit:,} tokens that the "
                "model reads, and lost their beginning, examples first"
            )


def measure(task: QuestionTask, metric: Metric, answers: Sequence[Answered], n_shots: int, normalized: bool) -> Measure:
    """A metric of answered questions, with its standard error, interval and what guessing would give."""
    values = np.array([metric.value(answered) for answered in answers], np.float64)
    value = metric.combine(values)
    interval: Interval
    if metric.interval == "wilson":
        error, interval = standard_error_of_mean(values), wilson(int(values.sum()), len(values))
    else:
        error, interval = bootstrap(values, metric.combine)
        error = standard_error_of_mean(values) if metric.combine is mean else error
    name = f"{metric.name}_norm" if normalized and metric.by_choice else metric.name
    return Measure(
        task=task.name,
        metric=name,
        value=value,
        standard_error=error,
        low=interval.low,
        high=interval.high,
        interval=interval.kind,
        chance=_chance(metric, answers),
        majority=_majority(answers) if task.labels and metric is task.metrics[0] else None,
        higher_is_better=metric.higher_is_better,
        n_shots=n_shots,
        n_samples=len(answers),
        official=task.official,
    )


def _chance(metric: Metric, answers: Sequence[Answered]) -> float | None:
    if metric.chance == "none":
        return None
    if metric.chance is not None:
        return math.fsum(metric.chance(answered.question) for answered in answers) / len(answers)
    guesses = (
        math.fsum(metric.value(Answered(answered.question, answered.scores, i)) for i in range(len(answered.scores)))
        / len(answered.scores)
        for answered in answers
    )
    return math.fsum(guesses) / len(answers)


def _majority(answers: Sequence[Answered]) -> float:
    return Counter(answered.question.answers[0] for answered in answers).most_common(1)[0][1] / len(answers)


def _group_measures(measures: Sequence[Measure], n_shots: int) -> Iterator[Measure]:
    """The unweighted mean over the first metrics of a group's tasks, all shares, where all of them were asked."""
    first: dict[str, Measure] = {}
    for one in measures:
        if one.official:
            first.setdefault(one.task, one)
    for name, members in GROUPS.items():
        if not all(member in first for member in members):
            continue
        parts = [first[member] for member in members]
        value = math.fsum(part.value for part in parts) / len(parts)
        errors = [part.standard_error for part in parts if part.standard_error is not None]
        known = len(errors) == len(parts)
        interval = mean_of_shares([part.value for part in parts], [part.n_samples for part in parts])
        yield Measure(
            task=name,
            metric="mean",
            value=value,
            standard_error=math.hypot(*errors) / len(parts) if known else None,
            low=interval.low,
            high=interval.high,
            interval=interval.kind,
            chance=math.fsum(part.chance or 0.0 for part in parts) / len(parts),
            majority=None,
            higher_is_better=True,
            n_shots=n_shots,
            n_samples=sum(part.n_samples for part in parts),
            official=True,
        )


def _after(progress: Progress, before: int, total: int) -> Callable[[int], None]:
    done = before

    def told(more: int) -> None:
        nonlocal done
        done += more
        progress(done, total)

    return told


def _said(answered: Answered) -> dict[str, Any]:
    question = answered.question
    return {
        "prompt": question.prompt,
        "choices": list(question.choices),
        "answers": list(question.answers),
        "predicted": answered.predicted,
        "log_probabilities": [score.log_probability for score in answered.scores],
        "is_greedy": [score.is_greedy for score in answered.scores],
    }
