"""`statewise serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statewise.cli.options import Device, Exact, Folder, TokenizerOption, Weights, Which, device_for

GIGA = 1 << 30


def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call the model. Default: the folder's name.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="STATEWISE_API_KEY", help="What clients must send as a bearer token.", show_default=False),
    ] = None,
    rows: Annotated[int, typer.Option(help="Sequences that are answered at once; more wait.")] = 8,
    max_waiting: Annotated[int, typer.Option(help="Sequences that may wait; more are refused with 429.")] = 64,
    max_prompt_tokens: Annotated[int, typer.Option(help="The longest prompt.")] = 131_072,
    max_new_tokens: Annotated[int, typer.Option(help="The longest answer.")] = 4096,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 8 << 20,
    max_connections: Annotated[int, typer.Option(help="Connections at once; further ones are refused with 503.")] = 512,
    requests_per_minute: Annotated[
        float | None, typer.Option(help="From one client's address. Default: any number.", show_default=False)
    ] = None,
    prefill_piece: Annotated[
        int, typer.Option(help="Tokens of a prompt that are read between two steps of running answers.")
    ] = 256,
    state_memory: Annotated[float, typer.Option(help="Gigabytes for states of conversations in memory.")] = 1.0,
    state_folder: Annotated[
        Path | None, typer.Option(help="Keep states here too, so that they outlive the server.", show_default=False)
    ] = None,
    state_disk: Annotated[float, typer.Option(help="Gigabytes for states without a name in --state-folder.")] = 8.0,
    max_saved: Annotated[int, typer.Option(help="States that clients may save by a name.")] = 256,
    stop_seconds: Annotated[float, typer.Option(help="How long running answers may take when you stop it.")] = 30.0,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A chat template (Jinja). Default: the published one.")
    ] = None,
    weights: Weights = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    exact: Exact = False,
) -> None:
    """Answer OpenAI's clients over HTTP, until Ctrl-C."""
    from statewise.cli.model_folder import open_model
    from statewise.conventions.published import check_template, read_text
    from statewise.serve import ServeConfig
    from statewise.serve import serve as serve_model
    from statewise.serve.server import log_to_stderr

    limits: dict[str, Any] = {"state_bytes": _bytes("--state-memory", state_memory)}
    config = ServeConfig(
        host=host,
        port=port,
        api_key=api_key,
        rows=rows,
        max_waiting=max_waiting,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        max_body=max_body,
        max_connections=max_connections,
        requests_per_minute=requests_per_minute,
        prefill_piece=prefill_piece,
        state_folder=None if state_folder is None else str(state_folder),
        disk_bytes=_bytes("--state-disk", state_disk),
        max_saved=max_saved,
        stop_seconds=stop_seconds,
        exact=exact,
        **limits,
    )
    text = None if template is None else check_template(read_text(template), template)
    opened = open_model(folder, which=which, device=device_for(weights, device, exact), tokenizer=tokenizer)
    if name is None:  # that of a hub is in a folder with a name of its own
        name = folder.name if str(folder).startswith("hub:") else opened.folder.resolve().name
    log_to_stderr()

    def ready(address: str) -> None:
        typer.echo(f"Serving {name} at {address}/v1 (Ctrl-C stops it)")

    serve_model(
        opened.language_model,
        opened.tokenizer,
        config,
        name=name,
        weights=weights,
        template=text,
        prompts=opened.prompts,
        ready=ready,
    )


def _bytes(option: str, gigabytes: float) -> int:
    from statewise.errors import ConfigError

    if not 0 <= gigabytes < 1 << 20:
        raise ConfigError(f"{option}={gigabytes} is out of range; use gigabytes of at least 0")
    return int(gigabytes * GIGA)
