"""The command line: `statewise train`, `predict`, `evaluate`, `generate`, `chat`, `convert`, `benchmark` and so on.

It only translates: options to configurations, results to text. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from statewise import __version__
from statewise.cli.commands.benchmark import benchmark, profile
from statewise.cli.commands.chat import chat
from statewise.cli.commands.convert import convert
from statewise.cli.commands.evaluate import evaluate
from statewise.cli.commands.explore import explore
from statewise.cli.commands.export import export
from statewise.cli.commands.forecast import forecast
from statewise.cli.commands.generate import generate
from statewise.cli.commands.info import info
from statewise.cli.commands.plot import plot
from statewise.cli.commands.predict import predict
from statewise.cli.commands.reproduce import reproduce
from statewise.cli.commands.serve import serve
from statewise.cli.commands.train import train
from statewise.errors import StatewiseError

LONGEST = 580  # characters of a message: a screen of a terminal, not the file that somebody gave as an option

app = typer.Typer(
    name="statewise",
    help="State-space sequence models: train, evaluate, ask, generate, understand.",
    rich_markup_mode=None,  # its tables leave a third of 80 columns to the text
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"statewise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


for command in (
    train,
    predict,
    forecast,
    generate,
    chat,
    serve,
    evaluate,
    convert,
    export,
    reproduce,
    explore,
    benchmark,
    profile,
    info,
):
    app.command()(command)
app.add_typer(plot, name="plot")


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; a user's mistake is one line on standard error."""
    try:
        words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        command = typer.main.get_command(app)
        with command.make_context("statewise", words) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # `statewise generate ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except StatewiseError as error:
        return _fail(error, str(error), error.exit_code)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(error, f"{name}{error.strerror or error}", 1)
    except Exception as error:
        if isinstance(error, MemoryError) or "tried to allocate" in str(error):  # numpy's and PyTorch's
            return _fail(error, f"there is not enough memory: {error or 'use smaller sizes'}", 1)
        # Errors of usage: their class is typer's or click's own, depending on the version
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _fail(error, message(), 2)


def _fail(error: Exception, message: str, code: int) -> int:
    if os.environ.get("STATEWISE_DEBUG") == "1":
        traceback.print_exception(error)
    message = " ".join(message.split())
    if len(message) > LONGEST:  # it quotes what was given: what is wrong is told first, and what to do last
        message = f"{message[: LONGEST - 205]} ... {message[-200:]}"
    print(f"statewise: error: {message}", file=sys.stderr)
    return code


def main() -> NoReturn:
    """The program `statewise`."""
    if "_STATEWISE_COMPLETE" in os.environ:  # a shell asks for what may come next
        app(prog_name="statewise")
    # The threads of OpenMP wait for each other by spinning, for milliseconds. Where another process wants a core, the
    # one that is waited for does not run, and a training step takes ten times as long. Read when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.exit(run())
