"""What is wrong with a task, in one line; lm-eval itself ends in many classes of errors, far from the cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.task import Task

from statewise.errors import DataError


def describe(error: BaseException) -> str:
    """An error and what it was caused by, in one line."""
    words: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(words) < 3:
        text = " ".join(str(seen).split())[:300]
        words.append(f"{type(seen).__name__}: {text}" if text else type(seen).__name__)
        seen = seen.__cause__
    return "; caused by ".join(words)


def task_at(error: BaseException) -> Task | None:
    """The task that an error was raised in, if one was."""
    found, trace = None, error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        found = owner if isinstance(owner, Task) else found
        trace = trace.tb_next
    return found


def loading_error(name: str, config: Mapping[str, Any] | None, error: Exception) -> DataError:
    """The error for a task that lm-eval cannot load."""
    task = task_at(error)
    if config is None and task is not None:
        config = vars(task.config)
    files = data_files(config or {})
    for file in files:
        if Path(file).is_file() and not Path(file).read_bytes().strip():
            return DataError(f"the task {name} cannot be loaded: its file {file} is empty; write one question a line")
    if task is not None and isinstance(error, (IndexError, TypeError)):  # from lm-eval's look at the first question
        try:
            check_choices(task)
        except DataError as found:
            return found
        except Exception:  # a task that is half built; what lm-eval said is all there is to say
            pass
    where = f" from {', '.join(files)}" if files else ""
    return DataError(f"the task {name} cannot be loaded{where}: {describe(error)}")


def evaluation_error(tasks: Iterable[Task], n_shots: int | None, error: Exception) -> DataError:
    """The error for a task that was loaded."""
    task = task_at(error)
    names = [named(task)] if task is not None else [named(one) for one in tasks]
    hint = ""
    if task is not None and (shots := task.config.num_fewshot if n_shots is None else n_shots):
        have = len(getattr(getattr(task, "sampler", None), "df", ()))
        if have <= shots:
            hint = f" ({shots} examples before each question are too many: there are {have} to draw from, "
            hint += "the question itself among them; ask for fewer shots)"
    return DataError(f"evaluating {', '.join(names)} failed: {describe(error)}{hint}")


def check_metrics(task: Task) -> None:
    """DataError if a metric is neither lm-eval's nor found anywhere else."""
    for metric, function in getattr(task, "_metric_fn_list", {}).items():
        if function is None and task.config.process_results is None:
            raise DataError(
                f"the task {named(task)} asks for the metric {metric!r}, which neither lm-eval nor the library "
                "evaluate has; correct its metric_list"
            )


def check_choices(task: Task, limit: int | None = None) -> None:
    """DataError for a question whose answer is not among its choices, or with an empty choice.

    lm-eval counts the first as answered wrongly, whatever the model says.
    """
    config = task.config
    if limit == 0 or task.OUTPUT_TYPE != "multiple_choice" or config.doc_to_choice is None or config.process_results:
        return
    for number, doc in enumerate(islice(task.eval_docs, limit), 1):
        choices = task.doc_to_choice(doc)
        answers = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
        place = f"question {number} of the task {named(task)}{_place(task)}"
        if "" in choices:
            raise DataError(f"{place} has an empty choice: {choices!r}; write a text for each")
        for answer in answers if isinstance(answers, list) else [answers]:
            if not (0 <= answer < len(choices) if isinstance(answer, int) else answer in choices):
                raise DataError(
                    f"{place} has the answer {answer!r}, which is not one of its {len(choices)} choices {choices!r}; "
                    "give the number of one, from 0, or its text"
                )


def check_examples(task: Task, n_shots: int | None) -> None:
    """DataError for a task that draws its examples from the questions it asks.

    lm-eval leaves the question out that is being asked only where ``fewshot_split`` and ``test_split`` are the same.
    """
    config, examples = task.config, getattr(task, "fewshot_cfg", None)  # a task that is a program draws as it likes
    wanted = config.num_fewshot if n_shots is None or config.num_fewshot == 0 else n_shots  # a 0 of the task's stays
    if examples is None or not wanted:
        return
    asked = config.test_split or config.validation_split
    drawn = examples.split
    if drawn is None and (config.fewshot_config is None or examples.samples is None):
        drawn = config.training_split or config.validation_split or config.test_split
    if drawn == asked and examples.split != config.test_split:
        raise DataError(
            f"the task {named(task)}{_place(task)} draws its examples from the questions that it asks, so a prompt "
            f"may contain its own answer; set test_split: {asked} and fewshot_split: {asked}, and the question asked "
            "is left out, or give a split of examples"
        )


def broken_yaml(folder: str) -> str:
    """Which task files of a folder lm-eval left out because they are not YAML; for the end of a sentence."""
    for file in sorted(Path(folder).glob("**/*.yaml")):
        try:
            for _ in yaml.parse(file.read_text("utf-8")):
                pass
        except yaml.MarkedYAMLError as error:
            line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
            return f" (where {file} is not valid YAML: {line}{error.problem})"
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            return f" (where {file} is not valid YAML: {' '.join(str(error).split())[:200]})"
    return ""


def data_files(config: Mapping[str, Any]) -> list[str]:
    """The local files that a task's config names."""
    arguments = config.get("dataset_kwargs") or {}
    found = arguments.get("data_files", ()) if isinstance(arguments, Mapping) else ()
    values = found.values() if isinstance(found, Mapping) else [found]
    return [str(file) for value in values for file in (value if _is_list(value) else [value])]


def named(task: Task) -> str:
    return str(task.config.task)


def _place(task: Task) -> str:
    files = data_files(vars(task.config))
    return f" ({', '.join(files)})" if files else ""


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
