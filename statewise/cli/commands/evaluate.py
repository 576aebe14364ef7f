"""`statewise evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import Device, Folder, Json, TokenizerOption, Weights, Which


def evaluate(
    folder: Folder,
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a source as for train.")] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="Where the files of a data set are, if not where the run had them.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="test (the default), validation or train.", show_default=False)
    ] = None,
    max_items: Annotated[
        int | None,
        typer.Option("--max-items", "--max-tokens", min=1, help="Read only so many rows, or tokens."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the result, where its kind has a picture.")
    ] = None,
    text_file: Annotated[
        str | None, typer.Option(help="Text: a file read as one document instead of a split; - is standard input.")
    ] = None,
    chunk_length: Annotated[
        int | None, typer.Option(help="Text: tokens in a chunk; changes the memory, not the result. Default: 1024.")
    ] = None,
    across_documents: Annotated[
        bool, typer.Option("--across-documents", help="Text: carry the state from one document to the next as well.")
    ] = False,
    streams: Annotated[
        int | None, typer.Option(help="Text: read it as so many pieces side by side, which is faster. Default: 1.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Text: read windows of so many tokens instead of one sequence.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens (default: half a window) or time steps between windows.")
    ] = None,
    compressors: Annotated[
        bool | None, typer.Option(help="Text: what xz -9 and zlib make of the same bytes.", show_default=False)
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Tasks of lm-eval instead of a text: names, patterns or YAML files.",
            show_default=False,
            rich_help_panel="Tasks",
        ),
    ] = None,
    include_path: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where other task files are.", show_default=False, rich_help_panel="Tasks"),
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Examples before each question. Default: the task's.",
            show_default=False,
            rich_help_panel="Tasks",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Questions of each task. Default: all.", show_default=False, rich_help_panel="Tasks"),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens a prediction may depend on. Default: all.",
            show_default=False,
            rich_help_panel="Tasks",
        ),
    ] = None,
    document_token: Annotated[
        bool | None,
        typer.Option(
            "--document-token/--no-document-token",
            help="Begin every prompt with the document token. Default: unless others published the model.",
            show_default=False,
            rich_help_panel="Tasks",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Rows read together. Default: 16.", show_default=False, rich_help_panel="Tasks"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write all of it as JSON, every question with what the model said.",
            show_default=False,
            rich_help_panel="Tasks",
        ),
    ] = None,
    weights: Weights = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Measure how well a model does on a split of its data, or on tasks of lm-eval.

    A language model is told beside general compressors. Its text is read as one sequence with the state carried on,
    with full attention in windows instead. Tasks (--tasks) need the extra "eval".
    """
    from statewise.console import read_prompt, show_evaluation

    of_a_split = {
        "--data": data,
        "--data-dir": data_folder,
        "--split": split,
        "--max-tokens": max_items,
        "--plot": plot,
        "--text-file": text_file,
        "--chunk-length": chunk_length,
        "--across-documents": across_documents or None,
        "--streams": streams,
        "--window": window,
        "--stride": stride,
        "--compressors": compressors,
    }
    of_tasks = {
        "--include-path": include_path,
        "--shots": shots,
        "--limit": limit,
        "--max-length": max_length,
        "--document-token": document_token,
        "--batch-size": batch_size,
        "--output": output,
    }
    for name, given in (of_tasks if tasks is None else of_a_split).items():
        if given is not None:
            raise typer.BadParameter(
                "goes with --tasks" if tasks is None else "has no place with --tasks", param_hint=name
            )
    if text_file is not None and data is not None:
        raise typer.BadParameter("a text comes from one of --data and --text-file", param_hint="--text-file")
    for name, given in (("--split", split), ("--max-tokens", max_items), ("--data-dir", data_folder)):
        if text_file is not None and given is not None:
            raise typer.BadParameter(
                f"{name} chooses from a corpus that is divided; the file of --text-file is read as a whole",
                param_hint=name,
            )
    text = None if text_file is None else read_prompt(text_file)
    from statewise.model_folder import open_model

    opened = open_model(folder, which=which, device=device, tokenizer=tokenizer)
    if weights is not None:
        opened = opened.with_weights(weights)
    asked = {
        "across_documents": across_documents or None,
        "chunk_length": chunk_length,
        "n_streams": streams,
        "window": window,
        "stride": stride,
        "compressors": compressors,
    }
    options = {name: value for name, value in asked.items() if value is not None}
    if tasks is not None:
        from statewise.checkpoints.convert.source import is_published
        from statewise.integrations.lm_eval import StatewiseLM
        from statewise.integrations.lm_eval_tasks import evaluate_tasks, require_new, task_tables, write_record

        if output is not None:
            require_new(output)
        model = StatewiseLM(
            opened.language_model,
            tokenizer=opened.tokenizer,
            batch_size=batch_size,
            max_length=max_length,
            add_bos_token=not is_published(opened.checkpoint) if document_token is None else document_token,
        )
        names = [name.strip() for name in tasks.split(",") if name.strip()]
        record = {
            "checkpoint": str(opened.checkpoint),
            **evaluate_tasks(
                model, names, include_path=include_path, n_shots=shots, limit=limit, log_samples=output is not None
            ),
        }
        if output is not None:
            write_record(record, output)
        shown = {key: value for key, value in record.items() if key != "lm_eval"}
        show_evaluation(shown, task_tables(record), as_json=json)
    elif text is not None:
        show_evaluation(*opened.evaluate_file(text, str(text_file), plot=plot, **options), as_json=json)
    else:
        task = opened.task(data, data_folder)
        result = opened.evaluate(task, split or "test", max_items=max_items, plot=plot, **options)
        show_evaluation(*result, as_json=json)
