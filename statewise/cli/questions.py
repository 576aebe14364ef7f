"""Questions and tasks for the command line: run, and as tables beside chance and beside what others published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from statewise.checkpoints.convert.hub import cached
from statewise.checkpoints.convert.source import find_source, is_published
from statewise.cli.console import counted
from statewise.cli.model_folder import ModelFolder
from statewise.errors import CheckpointError, ConfigError
from statewise.evaluate.questions import (
    PERPLEXITY,
    SUPERGLUE_ORDER,
    SUPERGLUE_SIZES,
    WEIGHTS,
    QuestionTask,
    evaluate_questions,
    has_sizes_of,
    row_of,
    superglue_rows,
)
from statewise.training.metrics import write_bytes
from statewise.training.tasks import Table

Shown = tuple[dict[str, Any], list[Table]]

SOURCE = "Fu et al. 2023 (H3), arXiv:2212.14052"
UNPUBLISHED = "their prompts are not published; ours are lm-eval's"
OTHER_TOKENS = "a token of GPT-2's tokenizer, not of another; GPT-2 was not trained on the Pile, the others were"
TITLES = {"multirc": "MultiRC", "record": "ReCoRD", "boolq": "BoolQ", "wic": "WiC", "superglue": "average"}


def ask(
    opened: ModelFolder,
    tasks: list[QuestionTask],
    normalize: bool,
    document_token: bool,
    output: Path | None,
    options: dict[str, Any],
) -> Shown:
    """The record and the tables of questions; with ``output`` also a file with every question."""
    given = {name: value for name, value in options.items() if value is not None}
    with counted("questions") as progress:
        results = evaluate_questions(
            opened.language_model,
            opened.tokenizer,
            tasks,
            normalize=normalize,
            document_token=document_token,
            progress=progress,
            **given,
        )
    record = {"checkpoint": str(opened.checkpoint), "document_token": document_token, **results.record()}
    published = published_superglue(record, options["n_shots"])
    if published is not None:
        record["published"] = published | _rows_here(opened, published["rows"])
    if output is not None:
        whole = {**record, "questions": results.questions()}
        write_bytes(output, json.dumps(whole, ensure_ascii=False, indent=1).encode("utf-8", "surrogateescape"))
    return record, question_tables(record)


def run_tasks(
    opened: ModelFolder,
    names: list[str],
    document_token: bool | None,
    output: Path | None,
    options: dict[str, Any],
    task_options: dict[str, Any],
) -> Shown:
    """The record and the tables of lm-eval's tasks; with ``output`` also a file with all of lm-eval's own result."""
    from statewise.integrations.lm_eval import StatewiseLM
    from statewise.integrations.lm_eval.tasks import evaluate_tasks, task_tables, write_record

    begin = opened.begins_documents if document_token is None else document_token
    model = StatewiseLM(opened.language_model, tokenizer=opened.tokenizer, add_bos_token=begin, **options)
    result = evaluate_tasks(model, names, log_samples=output is not None, **task_options)
    record = {"checkpoint": str(opened.checkpoint), "document_token": begin, **result}
    if output is not None:
        write_record(record, output)
    return {key: value for key, value in record.items() if key != "lm_eval"}, task_tables(record)


def beside_published(record: dict[str, Any], tables: list[Table], corpus: str, opened: ModelFolder) -> Shown:
    """The measurement of a text, and a table with published perplexities.

    Errors:  ConfigError if a text was not what was measured.
    """
    if "perplexity_per_token" not in record:
        raise ConfigError("--published is for language models on text; leave it out")
    published = published_perplexity(corpus, record["perplexity_per_token"]) | _rows_here(opened, PERPLEXITY[corpus])
    return {**record, "published": published}, [*tables, _published_table(published)]


def question_tables(record: Mapping[str, Any]) -> list[Table]:
    """A table of the tasks, one of BLiMP's sets, one of means over groups and one of published rows, where there are
    any. What does not fit a terminal of 80 columns is in the record alone: standard errors, and how intervals are made.
    """
    title, shots = record.get("checkpoint", ""), {measure["n_shots"] for measure in record["results"]}
    notes = (f"{max(shots)} shots, {record['seconds']:,.1f} s", *record["notes"])
    sets = [measure for measure in record["results"] if measure["official"] and measure["task"].startswith("blimp_")]
    others = [measure for measure in record["results"] if measure not in sets]
    made = (
        _table(title, "task", others),
        _table("BLiMP by set: chance is 0.5" + _how(sets), "set", sets),
        _table("means" + _how(sets), "over", record["groups"]),
    )
    tables = [table for table in made if table is not None]
    tables[-1] = tables[-1]._replace(notes=notes)
    if "published" in record:
        tables.append(_published_table(record["published"]))
    return tables


def published_superglue(results: Mapping[str, Any], n_shots: int) -> dict[str, Any] | None:
    """The published rows of the tasks in a record of questions, ours first; None if nobody published such.

    "notes" has what sets ours apart from a whole measurement by the sum of log-probabilities.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for measure in (*results["results"], *results["groups"]):
        if measure["official"]:
            first.setdefault(measure["task"], measure)
    ours = {name: 100 * measure["value"] for name, measure in first.items()}
    rows = superglue_rows(n_shots, ours)
    if not rows:
        return None
    names = [name for name in (*SUPERGLUE_ORDER, "superglue") if name in ours]
    parts = [
        f"{TITLES.get(name, name.upper())} {first[name]['n_samples']:,} of {size:,}"
        for name, size in SUPERGLUE_SIZES.items()
        if name in first and first[name]["n_samples"] != size
    ]
    return {
        "what": f"SuperGLUE, {n_shots} shots, per cent",
        "source": f"{SOURCE}; {UNPUBLISHED}",
        "columns": names,
        "rows": {"this model": {name: ours[name] for name in names}, **rows},
        "notes": [
            *(["length-normalised (--normalize)"] if _how(list(first.values())) else []),
            *(["not of the whole validation split: " + ", ".join(parts)] if parts else []),
        ],
    }


def published_perplexity(name: str, perplexity: float) -> dict[str, Any]:
    """The published perplexities on a corpus beside one of ours."""
    return {
        "what": f"perplexity a token on {name}",
        "source": f"{SOURCE}; {OTHER_TOKENS}",
        "columns": [name],
        "rows": {
            "this model": {name: perplexity},
            **{model: {name: value} for model, value in PERPLEXITY[name].items()},
        },
    }


def _rows_here(opened: ModelFolder, rows: Iterable[str]) -> dict[str, Any]:
    """Which of the rows the model is by its sizes, and which can be measured with the files at hand: those of the hub's
    cache, and folders beside the model's that have the name of the weights."""
    beside, at_hand = opened.folder.resolve().parent, {}
    for row in rows:
        if row not in WEIGHTS:
            continue
        name = WEIGHTS[row].rpartition("/")[2]
        places = (path for path in (beside / name, beside / name.lower()) if is_published(path))
        folder = next((path for path in places if _is(row, path)), None)
        if folder is not None:
            at_hand[row] = str(folder)
        elif cached(WEIGHTS[row]):
            at_hand[row] = f"hub:{WEIGHTS[row]}"
    return {"sizes_of": row_of(opened.language_model.config), "at_hand": at_hand}


def _is(row: str, folder: Path) -> bool:
    """By the sizes that its config says, if any."""
    try:
        return has_sizes_of(row, find_source(folder).config)
    except CheckpointError:
        return False


def _published_table(published: Mapping[str, Any]) -> Table:
    names = published["columns"]
    marked = published.get("notes", [])
    rows = [
        (
            _named(model, published) + (" *" if marked and model == "this model" else ""),
            *(f"{values[name]:,.1f}" if name in values else "" for name in names),
        )
        for model, values in published["rows"].items()
    ]
    here = [f"at hand: {row}, {source}; give it to evaluate" for row, source in published.get("at_hand", {}).items()]
    notes = (*(f"* {note}" for note in marked), *here, f"published: {published['source']}")
    headings = tuple(TITLES.get(name, name.upper() if name in SUPERGLUE_ORDER else name) for name in names)
    return Table(published["what"], ("model", *headings), rows, notes)


def _named(row: str, published: Mapping[str, Any]) -> str:
    sizes = published.get("sizes_of")
    return f"{row}, as {sizes}" if row == "this model" and sizes else row


def _how(measures: Sequence[Mapping[str, Any]]) -> str:
    """How the measures were all taken: ", length-normalised", or nothing."""
    return ", length-normalised" if any(measure["metric"].endswith("_norm") for measure in measures) else ""


def _table(title: str, first: str, measures: Sequence[Mapping[str, Any]]) -> Table | None:
    """Without the columns that say nothing of these measures."""
    if not measures:
        return None
    columns = [first, "metric", "value", "95 %", "chance", "majority", "n"]
    rows = [
        [
            measure["task"].removeprefix("blimp_") if first == "set" else measure["task"],
            measure["metric"],
            _number(measure["value"], 4),
            f"{_number(measure['low'], 3)}–{_number(measure['high'], 3)}",
            *("" if measure[name] is None else _number(measure[name], 3) for name in ("chance", "majority")),
            f"{measure['n_samples']:,}",
        ]
        for measure in measures
    ]
    unsaid = {"metric", "chance"} if first == "set" else set()
    if first == "set" and all(measure["n_samples"] == 1000 for measure in measures):
        unsaid.add("n")  # as each of the published sets has
    told = [i for i, name in enumerate(columns) if name not in unsaid and any(row[i] for row in rows)]
    return Table(title, tuple(columns[i] for i in told), [tuple(row[i] for i in told) for row in rows])


def _number(value: float, n_digits: int) -> str:
    if value < 1000:
        return f"{value:.{n_digits}f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
