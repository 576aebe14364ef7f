"""Commands that torchrun starts on several ranks: they speak with one voice, and end with one exit code."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import typer

from statewise.errors import StatewiseError


def one_voice(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with all ranks in touch where there are several. Rank 0 alone then prints a user's mistake; one
    that only another rank can see reaches rank 0 first."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return command(*args, **kwargs)
        from statewise.training.open_ranks import open_ranks

        try:
            with open_ranks():
                command(*args, **kwargs)
        except (StatewiseError, typer.BadParameter) as error:
            if os.environ["RANK"] != "0":
                raise typer.Exit(error.exit_code) from None
            raise

    return run
