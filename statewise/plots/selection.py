"""What Mamba, Mamba-2 and Mamba-3 select over a text: step sizes, half-lives, hidden attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from statewise import insight
from statewise.errors import InputError
from statewise.insight.selection import selects
from statewise.plots.found import Found, find, spread
from statewise.plots.style import (
    COLOURS,
    LONGEST,
    colour_bar,
    heat_map,
    new_figure,
    require_steps,
    styled,
    tokens_along,
    width_over,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 4  # heads, if none are chosen
LONGEST_MAP = 512  # steps of hidden attention, which is a square
MOST_ROWS = 64  # of a map: more channels are left out


@styled
def step_sizes(of: Any, inputs: Tensor, *, layer: int | None = None, tokens: Sequence[str] = ()) -> Figure:
    """How much each step lets in, and makes the state forget: the mean over the heads, and each head.

    of:      a Mamba, Mamba-2 or Mamba-3 mixer, or a model that has one
    inputs:  what it reads, (1, length, d_model), or the model's own, such as tokens (1, length); the first row is shown
    layer:   of a model; None: the first that selects
    tokens:  what was read, to be written below
    Errors:  InputError for a layer that selects nothing, and more than 1,024 steps.

    >>> import torch
    >>> import statewise as sw
    >>> figure = step_sizes(sw.MambaConfig(d_state=4).build(d_model=8), torch.randn(1, 12, 8))
    >>> figure.axes[0].get_ylabel()
    'mean step size'
    """
    found = _found(of, layer, inputs)
    dt = insight.step_sizes(found.of, found.x)[0]  # type: ignore[arg-type]
    return _over_steps(found, dt, tokens, "step size", "step sizes: how much a step lets in")


@styled
def half_lives(of: Any, inputs: Tensor, *, layer: int | None = None, tokens: Sequence[str] = ()) -> Figure:
    """In how many steps a head's state would halve, if all steps were like this one: the median, and each head.

    In Mamba a channel has d_state numbers, which fade at rates of their own; that which lasts longest is drawn.
    Arguments and errors as :func:`step_sizes`.
    """
    found = _found(of, layer, inputs)
    lives = insight.half_lives(found.of, found.x)[0].amax(-1)  # type: ignore[arg-type]
    return _over_steps(found, lives, tokens, "half-life, steps", "half-lives: how long the state lasts", median=True)


@styled
def hidden_attention(
    of: Any,
    inputs: Tensor,
    *,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    tokens: Sequence[str] = (),
) -> Figure:
    """How much each step takes from each step before it: the attention that is hidden in the recurrence.

    Each head has a scale of its own. Entries may be negative, and a row need not sum to 1.

    heads:   which; None: four, from the one whose state lasts shortest to the longest
    Other arguments and errors as :func:`step_sizes`, but up to 512 steps.
    """
    found = _found(of, layer, inputs, LONGEST_MAP)
    x = found.x[:1]  # type: ignore[index]
    if heads is None:
        lives = insight.half_lives(found.of, x)[0].amax(-1).median(0).values
        order = lives.argsort().tolist()
        heads = [order[i] for i in spread(len(order), SHOWN)]
    maps = insight.hidden_attention(found.of, x, heads)[0]
    length = maps.shape[-1]
    columns = min(2, len(heads))
    rows = -(-len(heads) // columns)
    page = new_figure(4.3 * columns, 0.5 + 3.9 * rows)
    grid = list(page.subplots(rows, columns, squeeze=False).flat)
    above = torch.ones(length, length).tril() == 0
    for axes, head, one in zip(grid, heads, maps):
        image = heat_map(axes, one.masked_fill(above, torch.nan), f"{_unit(found)} {head}")
        axes.set(xlabel="from step", ylabel="to step")
        tokens_along(axes, "x", tokens, most=48)
        if len(tokens) <= 48:
            tokens_along(axes, "y", tokens)
        colour_bar(page, image, axes)
    for axes in grid[len(heads) :]:
        axes.axis("off")
    page.suptitle(f"{found.name}: hidden attention", fontsize=10)
    return page


def _found(of: Any, layer: int | None, inputs: Any, most: int = LONGEST) -> Found:
    if not isinstance(inputs, Tensor) or inputs.ndim < 2 or inputs.shape[1] == 0:
        given = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise InputError(f"inputs must be a tensor (batch, length, ...) of at least one step, got {given}")
    require_steps(inputs, most)
    return find(of, layer, selects, "selection", inputs[:1])


def _unit(found: Found) -> str:
    return "channel" if type(found.of).__name__ == "Mamba" else "head"


def _over_steps(
    found: Found, values: Tensor, tokens: Sequence[str], what: str, title: str, *, median: bool = False
) -> Figure:
    """values: (length, heads), above zero: the middle over the heads, its bulk, and a map of all, in order of size."""
    from matplotlib.colors import LogNorm

    length, n_heads = values.shape
    middle = values.median(1).values if median else values.mean(1)
    order = values.log().mean(0).argsort()
    shown = order[spread(n_heads, MOST_ROWS)]
    page = new_figure(width_over(length), 3.4 + 0.045 * len(shown))
    above, below = page.subplots(2, 1, sharex=True, height_ratios=[2, 1.5 + 0.03 * len(shown)])
    steps = np.arange(length)
    name = "median" if median else "mean"
    dots: dict[str, Any] = {"marker": "o", "markersize": 3.5} if length <= 200 else {}
    above.plot(steps, middle.numpy(), color=COLOURS[0], linewidth=1.2, label=name, **dots)
    if n_heads > 1:
        low, high = (values.quantile(q, 1).numpy() for q in (0.1, 0.9))
        band = "from the 10th to the 90th percentile"
        above.fill_between(steps, low, high, color=COLOURS[5], alpha=0.4, linewidth=0, step="mid", label=band)
    above.set_ylabel(f"{name} {what}")
    if median:
        above.set_yscale("log")
    above.set_title(f"{found.name}: {title}")
    page.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    table = values[:, shown].mT.numpy()
    finite = table[np.isfinite(table) & (table > 0)]
    norm = LogNorm(finite.min(), max(finite.max(), finite.min() * 1.01)) if finite.size else None
    image = below.imshow(table, aspect="auto", norm=norm, interpolation="none")
    below.grid(False)
    part = f", {len(shown)} of {n_heads}" if len(shown) < n_heads else ""
    below.set_ylabel(f"{_unit(found)}s{part},\nsorted")
    below.set_yticks([])
    below.set_xlabel("step")
    tokens_along(below, "x", tokens)
    colour_bar(page, image, [above, below], what)
    return page
