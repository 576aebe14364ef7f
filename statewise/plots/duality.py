"""A layer as a matrix: its chunks, their ranks, and the attention map that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from statewise import insight
from statewise.errors import InputError
from statewise.insight.selection import selects
from statewise.mixers.h3 import H3
from statewise.mixers.mamba2 import Mamba2
from statewise.mixers.mamba3 import Mamba3
from statewise.operators.selective import SelectiveDiagonal
from statewise.operators.ssd import SSD
from statewise.plots.found import find
from statewise.plots.style import COLOURS, colour_bar, heat_map, new_figure, styled, tokens_along
from statewise.plots.systems import has_response
from statewise.semiseparable import block_ranks, chunk_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TOKENS = 48  # that are written along an axis of a map
LONGEST = 256  # steps of a matrix: its ranks cost the fourth power


def has_matrix(of: Any) -> bool:
    return isinstance(of, (SSD, SelectiveDiagonal)) or selects(of) or has_response(of)


@styled
def semiseparable(
    of: Any,
    inputs: Tensor | None = None,
    *,
    layer: int | None = None,
    head: int = 0,
    chunk_length: int | None = None,
    length: int | None = None,
    tokens: Sequence[str] = (),
    tolerance: float = 1e-5,
) -> Figure:
    """The matrix of one head over one sequence: its chunks with the ranks of their blocks, the rank of all that lies
    below each step, and, of Mamba-2, the mask of decays and the scores whose product it is.

    of:       an operator, a mixer or a model
    inputs:   what it reads, if it selects: (1, length, d_model), or the model's own inputs; the first row is shown
    layer:    of a model; None: the first that has a matrix
    head:     which; of Mamba and of time-invariant layers but H3 a channel
    length:   of a time-invariant layer, which needs no inputs; None: that of the inputs, and 32 without any
    chunk_length: None: a quarter of the steps
    tokens:   what was read, one for each step, to be written along the axes if there are no more than 48
    tolerance: singular values up to this share of the largest count as zero; float32 carries about 1e-6
    Errors:   InputError for a layer that has no such matrix, more than 256 steps, or another number of tokens

    >>> import torch
    >>> import statewise as sw
    >>> figure = semiseparable(sw.Mamba2Config(d_state=4, d_head=8).build(d_model=16), torch.randn(1, 16, 16))
    >>> [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")][0]
    'mask: decays from step to step'
    """
    found = find(of, layer, has_matrix, "matrix over a sequence", inputs)
    n_read = None if found.x is None else found.x.shape[1]
    _require_size(n_read if length is None else length)
    if n_read is not None and length not in (None, n_read):
        raise InputError(f"length={length} and the inputs have {n_read} steps; leave length out")
    form = insight.attention_form(found.of, found.x, length=length or n_read or 32, head=head)
    size = len(form.matrix)
    _require_size(size)
    if tokens and len(tokens) != size:
        raise InputError(
            f"there are {len(tokens)} tokens and {size} steps; give inputs too, and one token for each step"
        )
    chunk = max(1, size // 4) if chunk_length is None else chunk_length
    above = torch.ones(size, size).tril() == 0
    page = new_figure(9.0, 7.6 if form.mask is not None else 4.4)
    if form.mask is not None and form.scores is not None:
        (first, second), (third, fourth) = page.subplots(2, 2)
        image = heat_map(first, form.mask.masked_fill(above, torch.nan), "mask: decays from step to step", signed=False)
        colour_bar(page, image, first)
        title = r"scores: $C_t \cdot B_s$, times the step size"
        colour_bar(page, heat_map(second, form.scores.masked_fill(above, torch.nan), title), second)
        for axes in (first, second):
            _steps(axes, tokens)
    else:
        third, fourth = page.subplots(1, 2)
    title = "mask times scores: the matrix" if form.mask is not None else "the matrix"
    title = f"{title}, in chunks of {chunk}, with ranks"
    colour_bar(page, heat_map(third, form.matrix.masked_fill(above, torch.nan), title), third)
    _chunks(third, form.matrix, chunk, tolerance)
    _steps(third, tokens)
    _ranks(fourth, form, tolerance, before=isinstance(found.of, Mamba3))
    unit = "head" if isinstance(found.of, (SSD, Mamba2, Mamba3, H3)) else "channel"
    page.suptitle(f"{found.name}, {unit} {head}: a semiseparable matrix", fontsize=10)
    return page


def _steps(axes: Axes, tokens: Sequence[str]) -> None:
    axes.set(xlabel="from step", ylabel="to step")
    tokens_along(axes, "x", tokens, most=MOST_TOKENS)
    if len(tokens) <= MOST_TOKENS:
        tokens_along(axes, "y", tokens)


def _require_size(size: int | None) -> None:
    if size is not None and not 1 < size <= LONGEST:
        raise InputError(f"a picture of a matrix has 2 to {LONGEST} steps, got {size}; give a part of the sequence")


def _chunks(axes: Axes, matrix: Tensor, chunk: int, tolerance: float) -> None:
    """Outlines: of the blocks on the diagonal in full, of those below it dashed, each with its rank."""
    from matplotlib.patches import Rectangle

    ranks = chunk_ranks(matrix, chunk, tolerance=tolerance)
    for i in range(len(ranks)):
        for j in range(i + 1):
            left, top = j * chunk - 0.5, i * chunk - 0.5
            right, bottom = (min(edge + chunk, len(matrix) - 0.5) for edge in (left, top))
            look: dict[str, Any] = {"edgecolor": "white", "linestyle": ":", "linewidth": 1.0}
            if i == j:
                look = {"edgecolor": COLOURS[1], "linestyle": "-", "linewidth": 1.6}
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, **look))
            box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.8, "linewidth": 0}
            if len(ranks) <= 12:
                middle = (left + right) / 2, (top + bottom) / 2
                axes.text(*middle, f"{int(ranks[i, j])}", ha="center", va="center", fontsize=8, bbox=box)


def _ranks(axes: Axes, form: insight.AttentionForm, tolerance: float, *, before: bool) -> None:
    """before: whether the input before is carried too, as Mamba-3 does"""
    steps = np.arange(len(form.matrix))
    full = np.minimum(steps + 1, steps[::-1] + 1)
    axes.plot(steps, full, color="#999999", linestyle=":", label="a matrix without structure")
    ranks = block_ranks(form.matrix, tolerance=tolerance)
    axes.step(steps, ranks.numpy(), where="mid", color=COLOURS[0], label="rank of all from the past to the future")
    carried = form.d_state + before
    label = f"numbers in the state: {form.d_state}"
    if before:
        label = f"numbers carried: {form.d_state} of the state, and the input before"
    axes.axhline(carried, color=COLOURS[1], linestyle="--", linewidth=1.2, label=label)
    axes.set(xlabel="step t", ylabel="rank of M[t:, :t+1]", ylim=(0, 1.4 * max(int(full.max()), carried)))
    axes.set_title("what has to be carried past each step")
    axes.legend(fontsize=8, loc="upper left")
