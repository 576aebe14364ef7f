"""`statewise explore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import SOURCES, Device, TokenizerOption, Which, refuse_existing
from statewise.errors import ConfigError


def explore(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help=f"The language model of Selection and State surgery. {SOURCES} Default: a small one that comes along.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the page to this file, and stop. The model's numbers are in it.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the local server; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    which: Which = "best",
    tokenizer: TokenizerOption = None,
    device: Device = "auto",
) -> None:
    """Open a page to play with: memory, poles, duality, selection, states and lookup, live.

    With RUN, Python computes for the page, behind a server that only this machine reaches; Ctrl-C ends it. With --out
    the page needs neither Python nor a network.
    """
    from statewise.explore.page import assemble, own_specs
    from statewise.explore.weights import spec

    if out is not None:
        if out.exists() and not overwrite:
            refuse_existing(out)
        if port:
            raise typer.BadParameter("a page in a file has no server; leave out --port", param_hint="--port")
    small, lookup = own_specs()
    if source is None:
        mind = None
    else:
        from statewise.cli.model_folder import open_model
        from statewise.data.tokenizers import ByteTokenizer
        from statewise.explore.mind import Mind

        opened = open_model(source, which=which, device="cpu" if out is not None else device, tokenizer=tokenizer)
        model, tokens, name = opened.language_model, opened.tokenizer, str(source)
        if out is not None:
            if not isinstance(tokens, ByteTokenizer):
                raise ConfigError(
                    f"{source} reads tokens, and a page by itself runs models of bytes; leave out --out, or RUN"
                )
            small, mind = spec(model, name), None
        else:
            begins = opened.begins_documents or not tokens.prefix
            mind = Mind(model, tokens, name, [tokens.document_token] if begins else list(tokens.prefix))
    if out is not None:
        from statewise.checkpoints.atomic import write_file

        text = assemble(small, lookup)

        def write(path: Path) -> None:
            path.write_text(text, "utf-8")

        write_file(out, 0, write, None if overwrite else refuse_existing)
        print(out)
        return
    from statewise.explore.server import PageServer

    def page(calls: str | None) -> str:
        return assemble(small, lookup, None if calls is None else {"address": calls})

    with PageServer(page, None if mind is None else mind.calls, port) as server:
        print(f"{server.address}\nCtrl-C ends it.", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(server.address)
        server.serve_forever()
