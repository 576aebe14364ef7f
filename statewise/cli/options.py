"""Options that several commands have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

SOURCES = "A run folder, a checkpoint, a published model's folder or file, or hub:owner/name."
Folder = Annotated[Path, typer.Argument(metavar="SOURCE", help=SOURCES, show_default=False)]
Which = Annotated[str, typer.Option("--checkpoint", help="Which checkpoint of a run folder: best or latest.")]
Device = Annotated[str, typer.Option(help="auto (CUDA if there is one), cpu or cuda.")]
TokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", help='"bytes" or a tokenizer.json. Default: the one in the checkpoint.')
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Precision of the weights: float32, bfloat16, int8 or int4. Default: as saved.", show_default=False
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="The same bits for a row however it is cut, padded and batched. On the CPU, in float32; slower."
    ),
]
Json = Annotated[
    bool | None,
    typer.Option("--json/--no-json", help="Default: tables on a terminal, JSON elsewhere.", show_default=False),
]


def refuse_existing(path: Path) -> None:
    """Errors: ConfigError, of a file that would be replaced by a command that has --overwrite."""
    from statewise.errors import ConfigError

    raise ConfigError(f"{path} exists already; give a new name, or replace it with --overwrite")


def may_be_exact(command: Callable[..., None]) -> Callable[..., None]:
    """A command that runs in exact mode if its option ``exact`` asks for it."""

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> None:
        if not given.get("exact"):
            command(*args, **given)
            return
        from statewise.kernels.exact import exact

        with exact():
            command(*args, **given)

    return run


def device_for(weights: str | None, device: str, exact: bool = False) -> str:
    """Where a command computes: other weights than those of the checkpoint are read by a step in C, on the CPU, unless
    a GPU is named. Exact mode computes on the CPU, too."""
    return "cpu" if (weights is not None or exact) and device == "auto" else device
