"""One style for every figure: colours that the colour-blind tell apart, and that differ in grey; lines that differ in
dashes too; no window.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import torch

from statewise.errors import ConfigError, InputError, importing, package_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MATPLOTLIB = ("matplotlib", "plot", "plots need")
SUFFIXES = (".png", ".svg", ".pdf")
# Of Okabe and Ito (2008), told apart by the colour-blind; without the yellow, which is too light for a line on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Five, so that with seven colours they make 35 pairs, and lines differ in grey too
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (9, 2)))
MARKERS = ("o", "s", "^", "D", "v")
# From dark to light without turning, so that it reads in grey; blue below the middle and yellow above it
MAP = "cividis"
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.labelcolor": "#333333",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "figure.figsize": (7.2, 3.0),
    "font.size": 9.5,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "image.cmap": MAP,
    "image.interpolation": "none",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "svg.fonttype": "path",
    "svg.hashsalt": "statewise",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}
LONGEST_AXIS = 80  # tokens that are written out below an axis
LONGEST = 1024  # steps in a picture over a text: with more, several would share a dot
WIDEST = 14.0  # inches

Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")


def require_matplotlib() -> None:
    """Errors: InputError if it is not installed."""
    package_folder(*MATPLOTLIB)


def require_plot(path: Path) -> None:
    """What can be refused before there is anything to draw.

    Errors: InputError if matplotlib is not installed; ConfigError for a name or folder that a figure cannot have.
    """
    require_matplotlib()
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"a figure cannot be written to {path}; give a name that ends in one of {', '.join(SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"a figure cannot be written to {path}: there is no folder {path.parent}")


@contextmanager
def style() -> Iterator[None]:
    """Within it matplotlib draws in our style, whatever its defaults were. It draws each object as it is made.

    Errors: InputError if matplotlib is not installed.
    """
    with importing(*MATPLOTLIB):
        import matplotlib
        from cycler import cycler

    settings: Any = {**STYLE, "axes.prop_cycle": cycler("color", list(COLOURS))}
    with matplotlib.rc_context(settings):
        yield


def styled(draw: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """A function that draws in our style."""

    @functools.wraps(draw)
    def drawn(*args: Given.args, **kwargs: Given.kwargs) -> Drawn:
        with style():
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float = 7.2, height: float = 3.0) -> Figure:
    """An empty one, in inches. Errors: InputError if matplotlib is not installed."""
    with importing(*MATPLOTLIB):  # not pyplot, which would open a window, and keeps all figures
        from statewise.plots.shown import ShownFigure

    return ShownFigure(figsize=(width, height), layout="constrained")


@contextmanager
def figure(path: Path, width: float = 6.4, height: float = 4.8) -> Iterator[Figure]:
    """An empty figure in our style, in inches, that is written to ``path`` at the end of the ``with``.

    Errors: as :func:`require_plot`.
    """
    require_plot(path)
    with style():
        drawn = new_figure(width, height)
        yield drawn
        save(drawn, path)


def save(drawn: Figure, path: Path | str) -> None:
    """Into a file whose ending sets the format; a PNG has 150 dots an inch."""
    drawn.savefig(path, dpi=150)


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of a line: all of the first 35 differ."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def marker(number: int) -> dict[str, Any]:
    return {"marker": MARKERS[number % len(MARKERS)], "markersize": 4.5, "linewidth": 1.0}


def heat_map(
    axes: Axes,
    values: Any,
    title: str = "",
    *,
    columns: Sequence[str] = (),
    rows: Sequence[str] = (),
    limit: float | None = None,
    signed: bool | None = None,
    aspect: str = "auto",
) -> Any:
    """(rows, columns) as colours.

    signed:  dark below zero and light above it, from -limit to limit; else from 0; None: if anything is below zero
    limit:   the end of the scale; None: the largest value
    columns, rows: what is written at the axes, if there are not too many; spaces between them are left out
    NaN is white. Returns the image, for a bar of colours.
    """
    table = torch.as_tensor(values).detach().double()
    finite = table[table.isfinite()]
    signed = bool((finite < 0).any()) if signed is None else signed
    end = limit or max(float(finite.abs().max()) if len(finite) else 0.0, 1e-9)
    image = axes.imshow(
        np.ma.masked_invalid(table.numpy()),
        cmap=MAP,
        vmin=-end if signed else 0.0,
        vmax=end,
        aspect=aspect,  # type: ignore[arg-type]
        interpolation="none",
    )
    axes.grid(False)
    axes.set_title(title)
    tokens_along(axes, "x", columns)
    tokens_along(axes, "y", rows)
    return image


def colour_bar(page: Figure, image: Any, beside: Any, label: str = "", shrink: float = 0.8) -> None:
    """What the colours of a map mean. beside: the axes from which it takes its room"""
    bar: Any = page.colorbar(image, ax=beside, label=label, shrink=shrink, pad=0.02)
    bar.outline.set_visible(False)


def width_over(length: int, each: float = 0.13) -> float:
    """Inches of a picture over so many steps."""
    return min(max(7.2, each * length), WIDEST)


def require_steps(inputs: Any, most: int = LONGEST) -> None:
    """Errors: InputError for inputs (batch, length, ...) of more steps than a picture has room for."""
    length = inputs.shape[1] if isinstance(inputs, torch.Tensor) and inputs.ndim > 1 else 0
    if length > most:
        raise InputError(
            f"this picture has room for {most:,} steps, got {length:,}; give a part of the text, or take the numbers "
            "from statewise.insight"
        )


def tokens_along(axes: Axes, axis: str, tokens: Sequence[str], most: int = LONGEST_AXIS) -> None:
    """Tokens at an axis, readable: blank ones have a sign, long ones are turned. Too many are left out, and the axis'
    label, which is there already, says so."""
    if len(tokens) > most:
        label = axes.get_xlabel() if axis == "x" else axes.get_ylabel()
        said = f"{label} ({len(tokens):,} tokens are too many to write)" if label else ""
        (axes.set_xlabel if axis == "x" else axes.set_ylabel)(said)
    if not tokens or len(tokens) > most:
        return
    shown = [visible(token) for token in tokens]
    size = 8 if len(shown) <= 40 else 6
    turned = axis == "x" and max(map(len, shown)) > 2
    ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    ticks(range(len(shown)), shown, fontsize=size, rotation=90 if turned else 0)


def visible(token: str) -> str:
    r"""
    >>> visible(" a\n")
    '␣a⏎'
    """
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    shown = "".join(signs.get(letter, letter) for letter in token)
    return "".join(letter if letter.isprintable() else "·" for letter in shown).replace("$", r"\$")
