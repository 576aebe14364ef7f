"""The code of a page, run as a reader would type it: in order, in one namespace, in an empty folder.

What a Python block prints is its output. Where a ```text block follows it, the two are compared, with ``...`` for what
differs from run to run. A figure that a block draws is kept, with the text of ``figure.set_label`` for those who do not
see it. Commands of a page that says so (``<!-- its commands are executed -->``) run too; what stands under them is what
they print.

The site and the tests both use this. It imports neither Sphinx nor pytest.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import notebooks

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXECUTES_COMMANDS = "<!-- its commands are executed -->"
_SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class PageError(Exception):
    """Something is wrong with a page: one line that begins with its file and line."""


@dataclass
class Block:
    """A fenced block: the line on which its text begins, and the text block right behind it, if there is one."""

    line: int
    language: str
    text: str
    expected: str | None = None


@dataclass
class Result:
    """What a block left: text, and figures with the text that stands for each."""

    line: int
    text: str
    output: str = ""
    figures: list[tuple[str, str]] = field(default_factory=list)


def text_of(page: Path) -> str:
    """The Markdown of a page, or of a notebook."""
    text = page.read_text("utf-8")
    return notebooks.as_markdown(text, page.name) if page.suffix == ".ipynb" else text


def blocks(text: str) -> list[Block]:
    """
    >>> blocks("```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")[0]
    Block(line=2, language='python', text='print(1)\\n', expected='1\\n')
    """
    fences = list(FENCE.finditer(text))
    found = []
    for fence, after in zip(fences, [*fences[1:], None]):
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        line = text.count("\n", 0, fence.start(2)) + 1
        found.append(Block(line, fence[1], fence[2], after[2] if follows else None))
    return found


def has_code(text: str) -> bool:
    """Whether anything of a page is executed.

    >>> has_code("```python\\n1\\n```\\n"), has_code("```console\\n$ make demo\\n```\\n")
    (True, False)
    """
    languages = {block.language for block in blocks(text)}
    return "python" in languages or ("console" in languages and EXECUTES_COMMANDS in text)


def commands(block: Block) -> list[tuple[int, str, str]]:
    """Of a console block: the line, the words and the output of each command behind a prompt."""
    found: list[tuple[int, str, str]] = []
    lines = block.text.splitlines()
    i = 0
    while i < len(lines):
        if lines[i].startswith("$ "):
            start, command = i, lines[i][2:]
            while command.endswith("\\"):
                i += 1
                command = command[:-1] + lines[i].strip()
            output = []
            while i + 1 < len(lines) and not lines[i + 1].startswith("$ "):
                i += 1
                output.append(lines[i])
            found.append((block.line + start, command, "\n".join(output)))
        i += 1
    return found


def run(page: Path, folder: Path, figures: Path | None = None) -> list[Result]:
    """Runs a page in ``folder``, which is empty.

    figures: where figures are written as SVG; None: they are drawn and thrown away
    Errors:  PageError for an output that is not the one of the page, a figure without words; what the code raises,
             with a traceback to the page
    """
    import torch

    text = text_of(page)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    results = []
    with _in(folder), _drawing():
        torch.manual_seed(0)
        for block in blocks(text):
            if block.language == "python":
                results.append(_run_python(page, block, namespace, figures))
            elif block.language == "console" and EXECUTES_COMMANDS in text:
                results.append(_run_commands(page, block))
    return results


def filled(expected: str, got: str) -> str:
    """The page's output with what was printed in place of ``...``. A line of ``...`` alone stays: it leaves lines out.

    >>> filled("accuracy ...%\\n...\\n", "accuracy 97 %\\nmore\\nstill more\\n")
    'accuracy 97 %\\n...'
    """
    lines, rest = [], got.strip().splitlines()
    for line in expected.strip("\n").splitlines():
        if line.strip() == "..." or "..." not in line:
            lines.append(line)
            continue
        pattern = re.compile(r"\s*" + ".*?".join(_loose(part) for part in line.strip().split("...")) + r"\s*")
        at = next((i for i, printed in enumerate(rest) if pattern.fullmatch(printed)), None)
        lines.append(line if at is None else rest[at])
        rest = rest if at is None else rest[at + 1 :]
    return "\n".join(lines)


def _loose(part: str) -> str:
    """A pattern of a text, with any blanks where it has some."""
    return r"\s*".join(re.escape(word) for word in re.split(r"\s+", part))


def _run_commands(page: Path, block: Block) -> Result:
    """Of a block of commands: itself, with what they printed."""
    shown = block.text
    for line, command, expected in commands(block):
        if command.startswith("statewise "):
            got = _run_command(page, line, command)
            _compare(page, line, expected, got)
            shown = shown.replace(expected, filled(expected, got), 1) if expected.strip() else shown
    return Result(block.line, block.text, shown)


def _run_python(page: Path, block: Block, namespace: dict[str, Any], figures: Path | None) -> Result:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
    result = Result(block.line, block.text, written.getvalue())
    if block.expected is not None:
        _compare(page, block.line, block.expected, result.output)
    if "matplotlib" in sys.modules:
        result.figures = list(_figures(page, block.line, namespace, figures))
    return result


def _compare(page: Path, line: int, expected: str, got: str) -> None:
    if not doctest.OutputChecker().check_output(expected.strip() + "\n", got.strip() + "\n", _SAME):
        raise PageError(f"{page.name}:{line}: the page has another output than the code:\n{got.strip()}")


def _figures(page: Path, line: int, namespace: dict[str, Any], folder: Path | None) -> Iterator[tuple[str, str]]:
    """Those that pyplot has open, and those of ``statewise.plots`` that the block has made and given words."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    shown = namespace.setdefault("__shown__", [])  # kept, so that no other object gets the id of one
    drawn = [plt.figure(number) for number in plt.get_fignums()]
    drawn += [value for value in namespace.values() if isinstance(value, Figure) and value.get_label()]
    for number, figure in enumerate(drawn, 1):
        if any(figure is other for other in shown):
            continue
        shown.append(figure)
        words = " ".join(str(figure.get_label()).split())
        if not words:
            raise PageError(
                f'{page.name}:{line}: a figure has no words; give it some: figure.set_label("What it shows")'
            )
        name = f"{page.stem}-{line}-{number}.svg"
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            _save(figure, folder / name)
        yield name, words
    plt.close("all")


def _save(figure: Any, path: Path) -> None:
    """With one pass of the layout, which measures every label; ``savefig`` alone makes two or three."""
    layout = figure.get_layout_engine()
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    figure.savefig(path, metadata={"Date": None})
    figure.set_layout_engine(layout)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _run_command(page: Path, line: int, command: str) -> str:
    """What a reader sees on a terminal of 90 columns."""
    from statewise.cli import run as run_command

    out, errors = _Terminal(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = run_command(shlex.split(command, comments=True)[1:])
    if code:
        raise PageError(f"{page.name}:{line}: {command} ended with {code}: {errors.getvalue().strip()[-500:]}")
    return out.getvalue()


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    """In a folder, on a terminal without colours, with no window to draw in."""
    changes = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "90", "MPLBACKEND": "Agg"}
    before = {name: os.environ.get(name) for name in changes}
    place = Path.cwd()
    os.chdir(folder)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.chdir(place)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    """Figures look alike on every page, and like those of ``statewise.plots``; without matplotlib nothing is drawn."""
    try:
        import matplotlib
    except ImportError:
        yield
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from statewise.plots.style import style

    with style():
        try:
            yield
        finally:
            plt.close("all")  # also those of a page that failed
