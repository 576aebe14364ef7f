"""lm-eval's tasks run over a model, and what came out as one record and one table."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval import evaluator
from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from statewise.errors import ConfigError, DataError, StatewiseError, require_least
from statewise.integrations.lm_eval.problems import (
    broken_yaml,
    check_choices,
    check_examples,
    check_metrics,
    evaluation_error,
    loading_error,
    named,
)
from statewise.integrations.lm_eval.wrapper import StatewiseLM
from statewise.training.metrics import write_bytes
from statewise.training.tasks import Table

RESAMPLES = 1000  # lm-eval's own 100,000 take minutes where a task reports a perplexity, for a third digit of its error


def evaluate_tasks(
    model: StatewiseLM,
    tasks: Sequence[str],
    *,
    include_path: str | os.PathLike[str] | None = None,
    n_shots: int | None = None,
    limit: int | None = None,
    resamples: int = RESAMPLES,
    log_samples: bool = False,
) -> dict[str, Any]:
    """What lm-eval measures: its own result, as ``lm_eval.simple_evaluate`` returns it, and a record of it.

    tasks:        names of tasks, groups or tags, with * and ?, or paths of task files (YAML)
    include_path: a folder with task files; where all tasks are found there, lm-eval's own are not looked through
    n_shots:      examples before each question. None: as many as the task says
    limit:        questions of each task. None: all
    resamples:    for the standard errors that have no formula
    log_samples:  keep every question with what the model said, under "samples" of lm-eval's result

    Returns:  {"results": [{"task", "metric", "filter", "value", "standard_error", "higher_is_better", "n_shots",
              "n_samples", "version"}], "groups": [the same of groups], "seconds", "lm_eval": lm-eval's own}
    Errors:   ConfigError for an unknown task; DataError for one whose data are not available, that cannot be
              evaluated, or that gives no value; and, of your own task files alone, for a question whose answer is not
              among its choices, which lm-eval counts as answered wrongly, and for examples drawn from the questions
              that are asked, where lm-eval may show a question its own answer.
    """
    if not tasks:
        raise ConfigError("no task is named; give at least one")
    require_least(ConfigError, n_shots=(n_shots, 0), limit=(limit, 1))
    if include_path is not None and not Path(include_path).is_dir():
        raise DataError(f"there is no folder {include_path} to take task files from")
    begin = time.perf_counter()
    with _quiet():
        manager, names, ours = _find(tasks, include_path)
        loaded = [
            task
            for name in names
            for task in (_load(manager, name, limit, n_shots) if name in ours else _load(manager, name, 0, 0))
        ]
        leaves = [task for one in loaded for task in (one.get_all_tasks() if isinstance(one, Group) else [one])]
        try:
            result = lm_eval.simple_evaluate(
                model,
                tasks=loaded,
                num_fewshot=n_shots,
                limit=limit,
                batch_size=model.batch_size,
                bootstrap_iters=resamples,
                log_samples=log_samples,
                task_manager=manager,
            )
        except StatewiseError:
            raise
        except Exception as error:  # a task's own code and templates raise anything
            raise evaluation_error(leaves, n_shots, error) from error
    for task in leaves:
        if not _rows(result, named(task)):
            raise DataError(
                f"the task {named(task)} gave no value: none of its metrics ({', '.join(task.higher_is_better())}) "
                f"goes with its output_type {task.OUTPUT_TYPE}; correct its metric_list"
            )
    return {
        "results": [
            row for name in result["results"] if name not in result.get("groups", {}) for row in _rows(result, name)
        ],
        "groups": [row for name in result.get("groups", {}) for row in _rows(result, name, "groups")],
        "seconds": time.perf_counter() - begin,
        "lm_eval": result,
    }


def task_tables(record: dict[str, Any]) -> list[Table]:
    """One table of all metrics with their standard errors, and one of groups if there are any."""
    tables = []
    for key, title in (("results", "tasks"), ("groups", "groups")):
        rows = [
            (
                row["task"] + (f" ({row['filter']})" if row["filter"] != "none" else ""),
                row["metric"],
                _number(row["value"]),
                "" if row["standard_error"] is None else f"± {_number(row['standard_error'])}",
                "" if row["n_shots"] is None else str(row["n_shots"]),
                "" if row["n_samples"] is None else f"{row['n_samples']:,}",
            )
            for row in record[key]
        ]
        if rows:
            columns = (title, "metric", "value", "standard error", "shots", "questions")
            notes = (f"{record['seconds']:,.1f} s",) if key == "results" else ()
            tables.append(Table(record.get("checkpoint", ""), columns, rows, notes))
    return tables


def write_record(record: dict[str, Any], path: Path) -> None:
    """The whole record as a JSON file, lm-eval's own result in it."""
    text = json.dumps(record, default=lm_eval.utils.handle_non_serializable, ensure_ascii=False, indent=1).encode()
    write_bytes(path, text)


def _find(tasks: Sequence[str], include_path: str | os.PathLike[str] | None) -> tuple[TaskManager, list[str], set[str]]:
    """The manager that knows all of these, their names in full, and which are the caller's own."""
    folder = None if include_path is None else str(include_path)
    # lm-eval reads the head of some 14,000 files to know its own tasks: seconds.
    manager = TaskManager(include_path=folder, include_defaults=False)
    names = [_matching(name, manager.all_subtasks) for name in tasks]
    ours = {name for found in names for name in found}
    if not all(names):
        manager = TaskManager(include_path=folder)
        names = [_matching(name, manager.all_tasks) for name in tasks]
    for name, found in zip(tasks, names):
        if not found:
            where = "" if folder is None else f", nor in {folder}{broken_yaml(folder)}"
            raise ConfigError(f"lm-eval has no task {name!r}{where}; `lm-eval ls tasks` lists its own")
    return manager, list(dict.fromkeys(name for found in names for name in found)), ours


def _matching(name: str, known: Sequence[str]) -> list[str]:
    if Path(name).suffix in (".yaml", ".yml") and Path(name).is_file():
        return [name]
    matching: list[str] = lm_eval.utils.pattern_match([name], known)
    return matching


def _load(manager: TaskManager, name: str, check: int | None, n_shots: int | None) -> list[Task | Group]:
    """``check``: questions to look at first. None: all. ``n_shots``: examples that are looked for. None: the task's."""
    try:
        loaded = manager.load([name])
        for task in loaded["tasks"].values():
            check_metrics(task)
            check_choices(task, check)
            check_examples(task, n_shots)
    except StatewiseError:
        raise
    except Exception as error:  # what a missing file, a missing network or a wrong YAML raises is any of twenty classes
        entry = manager.task_index.get(name)
        raise loading_error(name, None if entry is None else entry.cfg, error) from error
    groups = loaded.get("groups", {})
    return [groups[name]] if name in groups else list(loaded["tasks"].values())


def _rows(result: dict[str, Any], name: str, key: str = "results") -> list[dict[str, Any]]:
    values = result[key][name]
    rows = []
    for metric, value in values.items():
        measure, _, chosen = metric.partition(",")
        if not chosen or measure.endswith("_stderr") or not isinstance(value, Real):
            continue
        error = values.get(f"{measure}_stderr,{chosen}")
        rows.append(
            {
                "task": name,
                "metric": measure,
                "filter": chosen,
                "value": float(value),
                "standard_error": float(error) if isinstance(error, Real) else None,
                "higher_is_better": result.get("higher_is_better", {}).get(name, {}).get(measure),
                "n_shots": result.get("n-shot", {}).get(name),
                "n_samples": result.get("n-samples", {}).get(name, {}).get("effective"),
                "version": result.get("versions", {}).get(name),
            }
        )
    return rows


def _number(value: float) -> str:
    if abs(value) < 1000:
        return f"{value:.4f}"
    return f"{value:,.1f}" if abs(value) < 1e7 else f"{value:.3e}"


def _git_hash() -> str | None:
    """The commit of the folder's repository, as lm-eval reports it; without git's complaint if there is none."""
    try:
        found = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Standard output is for the result; and no processes are forked to resample in, beside threads of computation."""
    previous = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    look_up = getattr(evaluator, "get_git_commit_hash", _git_hash)  # not a part of its interface
    evaluator.get_git_commit_hash = _git_hash
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        evaluator.get_git_commit_hash = look_up
        if previous is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = previous
