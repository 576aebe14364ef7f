"""`statewise evaluate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statewise.cli.options import Device, Exact, Folder, Json, TokenizerOption, Weights, Which, device_for, may_be_exact

if TYPE_CHECKING:
    from statewise.cli.questions import Shown

# Options that go with some of data and texts (""), "--tasks" and "--questions" alone
GOES_WITH = {
    **dict.fromkeys(
        ("data", "split", "max_items", "plot", "text_file", "across_documents", "chunk_length", "streams"), ("",)
    ),
    **dict.fromkeys(("window", "stride", "compressors", "published"), ("",)),
    "include_path": ("--tasks",),
    "normalize": ("--questions",),
    "data_folder": ("", "--questions"),
    **dict.fromkeys(
        ("shots", "limit", "max_length", "document_token", "batch_size", "output"), ("--tasks", "--questions")
    ),
}


def _asked(help: str, *names: str, **more: Any) -> Any:
    """An option of questions and tasks."""
    return typer.Option(*names, help=help, show_default=False, rich_help_panel="Questions and tasks", **more)


@may_be_exact
def evaluate(
    context: typer.Context,
    folder: Folder,
    data: Annotated[str | None, typer.Option(help="Other data than the run's, given as for train.")] = None,
    data_folder: Annotated[
        str | None,
        typer.Option("--data-dir", help="The folder with the data set's files, or with the questions."),
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field or column of the text in --data.")
    ] = None,
    label_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field or column of the label in --data.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="test (the default), validation or train; for labelled data also all, the default for your own files.",
            show_default=False,
        ),
    ] = None,
    max_items: Annotated[
        int | None,
        typer.Option("--max-items", "--max-tokens", min=1, help="Read only this many rows, or tokens."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the result, if this kind of result has a picture.")
    ] = None,
    text_file: Annotated[
        str | None, typer.Option(help="Text: read a file as one document instead of a split; - is standard input.")
    ] = None,
    chunk_length: Annotated[
        int | None, typer.Option(help="Text: tokens in a chunk. Affects memory, not the result. Default: 1024.")
    ] = None,
    across_documents: Annotated[
        bool | None,
        typer.Option(
            "--across-documents",
            help="Text: carry the state from one document to the next.",
            show_default=False,
        ),
    ] = None,
    streams: Annotated[
        int | None, typer.Option(help="Text: read it as this many pieces side by side, which is faster. Default: 1.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Text: read windows of this many tokens instead of one sequence.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens (default: half a window) or time steps between windows.")
    ] = None,
    compressors: Annotated[
        bool | None, typer.Option(help="Text: compare with xz -9 and zlib on the same bytes.", show_default=False)
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(help="Text: print published perplexities on pile, openwebtext or wikitext103 beside the model's."),
    ] = None,
    questions: Annotated[
        str | None,
        _asked(
            "Questions instead of a text: superglue or boolq, cb, copa, multirc, record, rte, wic, wsc; lambada; "
            "blimp; or a FILE.jsonl with question, choices and answer.",
            metavar="A,B",
        ),
    ] = None,
    normalize: Annotated[
        bool | None, _asked("Questions: choose by log-probability per character.", "--normalize")
    ] = None,
    tasks: Annotated[
        str | None, _asked("Tasks of lm-eval instead of a text: names, patterns or YAML files.", metavar="A,B")
    ] = None,
    include_path: Annotated[Path | None, _asked("Where other task files are.", metavar="FOLDER")] = None,
    shots: Annotated[int | None, _asked("Examples before each question. Default: the task's.", min=0)] = None,
    limit: Annotated[int | None, _asked("Questions of each task. Default: all.", min=1)] = None,
    max_length: Annotated[
        int | None, _asked("How many tokens a prediction may depend on. Default: all.", min=1)
    ] = None,
    document_token: Annotated[
        bool | None,
        _asked(
            "Begin every prompt with the document token. Default: unless others published the model.",
            "--document-token/--no-document-token",
        ),
    ] = None,
    batch_size: Annotated[int | None, _asked("Rows read together. Default: 16.", min=1)] = None,
    output: Annotated[
        Path | None,
        _asked("Also write everything as JSON, each question with the model's answer.", metavar="FILE"),
    ] = None,
    weights: Weights = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    exact: Exact = False,
    json: Json = None,
) -> None:
    """Measure how well a model does on a split of its data, on questions, or on tasks of lm-eval.

    A language model is compared with general compressors. It reads the text as one sequence, carrying its state; with
    full attention it reads in windows. --tasks needs the extra "eval", --questions the files of the questions.
    """
    from statewise.cli.console import read_prompt, show_evaluation

    if tasks is not None and questions is not None:
        raise typer.BadParameter("has no place with --tasks; ask one after the other", param_hint="--questions")
    mode = "--tasks" if tasks is not None else "--questions" if questions is not None else ""
    _refuse_what_has_no_place(context, mode)
    if text_file is not None and data is not None:
        raise typer.BadParameter("a text comes from one of --data and --text-file", param_hint="--text-file")
    for name, given in (("--split", split), ("--max-tokens", max_items), ("--data-dir", data_folder)):
        if text_file is not None and given is not None:
            raise typer.BadParameter(
                f"{name} chooses from a corpus that is divided; the file of --text-file is read as a whole",
                param_hint=name,
            )
    if published is not None:
        from statewise.evaluate.questions import PERPLEXITY

        if published not in PERPLEXITY:
            raise typer.BadParameter(f"{published} is none of {', '.join(PERPLEXITY)}", param_hint="--published")
    for made in (output, plot):
        if made is not None:
            _require_new(made)
    for name, given in (("--text-field", text_field), ("--label-field", label_field)):
        if given is not None and data is None:
            raise typer.BadParameter("says what is in --data; name these data, too", param_hint=name)
    text = None if text_file is None else read_prompt(text_file)
    if text is not None and text_file != "-":
        _refuse_records(text, str(text_file))
    opened_questions: Any = None
    if questions is not None:  # before the model, which takes longer to open
        from statewise.evaluate.questions import open_tasks

        opened_questions = open_tasks(_names(questions), data_folder, n_shots=shots or 0, limit=limit)
    from statewise.cli.model_folder import open_model
    from statewise.cli.questions import ask, beside_published, run_tasks

    opened = open_model(folder, which=which, device=device_for(weights, device, exact), tokenizer=tokenizer)
    if weights is not None:
        opened = opened.with_weights(weights)
    asked = {
        "across_documents": across_documents,
        "chunk_length": chunk_length,
        "n_streams": streams,
        "window": window,
        "stride": stride,
        "compressors": compressors,
    }
    options = {name: value for name, value in asked.items() if value is not None}
    of_questions = {"batch_size": batch_size, "max_length": max_length}
    shown: Shown
    if questions is not None:
        of_questions |= {"n_shots": shots or 0}
        begin = opened.begins_documents if document_token is None else document_token
        shown = ask(opened, opened_questions, bool(normalize), begin, output, of_questions)
    elif tasks is not None:
        task_options = {"include_path": include_path, "n_shots": shots, "limit": limit}
        shown = run_tasks(opened, _names(tasks), document_token, output, of_questions, task_options)
    elif text is not None:
        shown = opened.evaluate_file(text, str(text_file), plot=plot, **options)
    else:
        from statewise.cli.run_task import open_scored

        fields = {"text_field": text_field, "label_field": label_field}
        task, chosen, note = open_scored(opened, data, data_folder, split=split, **fields)
        shown = opened.evaluate(task, chosen, note=note, max_items=max_items, plot=plot, **options)
    if published is not None:
        shown = beside_published(*shown, published, opened)
    show_evaluation(*shown, as_json=json)


def _refuse_what_has_no_place(context: typer.Context, mode: str) -> None:
    """``mode``: "" for data and texts, "--questions" or "--tasks"."""
    hints = {parameter.name: parameter.opts[-1] for parameter in context.command.params}
    for name, modes in GOES_WITH.items():
        if context.params[name] is not None and mode not in modes:
            message = f"has no place with {mode}" if mode else f"goes with {' or '.join(one for one in modes if one)}"
            raise typer.BadParameter(message, param_hint=hints[name])


def _refuse_records(text: bytes, path: str) -> None:
    """A file of records is not scored with its braces by mistake."""
    from statewise.errors import DataError
    from statewise.files.sniffing import HEAD, in_words, kind_of_bytes

    kind = kind_of_bytes(text[:HEAD], path)
    if kind in ("json lines", "parquet", "gzip", "zstd"):
        raise DataError(
            f"{path} is {in_words(kind)}, and --text-file reads one document as it is written; give --data {path} "
            "--text-field FIELD, or to score it as it is written: --text-file - < FILE"
        )


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _require_new(path: Path) -> None:
    """Told before the work, not after it."""
    from statewise.checkpoints.atomic import require_place
    from statewise.errors import ConfigError

    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already; name a new file, nothing is overwritten")
    require_place(path)
