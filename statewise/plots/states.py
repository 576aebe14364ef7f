"""States over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from statewise import insight
from statewise.errors import InputError
from statewise.mixers.attention import Attention
from statewise.mixers.base import Mixer
from statewise.mixers.cross_attention import MemoryReader
from statewise.mixers.s5 import S5
from statewise.operators.base import Operator
from statewise.operators.diagonal_mimo import DiagonalMIMO
from statewise.plots.found import find, spread
from statewise.plots.style import colour_bar, heat_map, new_figure, require_steps, styled, tokens_along, width_over

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 64
# What the memory of a layer is called, the first of them that its state has: a window of inputs is none if there is
# anything else, and what an LSTM shows is less than its cell
MEMORIES = ("h", "S", "ssm", "memory", "mean", "cell", "hidden", "sums", "inputs")


def has_state(of: Any) -> bool:
    """Whether there is one of a constant size."""
    if isinstance(of, (Attention, MemoryReader)):  # even within a window it grows at first; a document is given
        return False
    return isinstance(of, Operator) or (isinstance(of, Mixer) and of.bounded_state and of.is_causal)


@styled
def states(
    of: Any, inputs: Tensor, *, layer: int | None = None, head: int | None = None, tokens: Sequence[str] = ()
) -> Figure:
    """What a layer keeps while it reads: how large the state of each head or channel is, and the numbers of one.

    of:      an operator, a mixer or a model
    inputs:  what it reads, (1, length, ...), or the model's own; the first row is shown
    layer:   of a model; None: the first with a state of a constant size
    head:    whose numbers are drawn; None: that whose state is largest
    tokens:  what was read, to be written below
    Errors:  InputError for a layer whose state grows, such as attention's, a head that is not there, and more than
             1,024 steps.

    >>> import torch
    >>> import statewise as sw
    >>> figure = states(sw.S4DConfig(d_state=8).build(d_model=4), torch.randn(1, 30, 4))
    >>> figure.axes[0].get_ylabel()
    'head or\\nchannel'
    """
    require_steps(inputs)
    found = find(of, layer, has_state, "state of a constant size", inputs[:1])
    kept = _numbers(insight.states(found.of, found.x))[0]  # type: ignore[arg-type]
    if isinstance(found.of, (S5, DiagonalMIMO)):
        kept = kept.unsqueeze(1)  # one state for all channels
    length, n_heads = kept.shape[:2]
    flat = kept.reshape(length, n_heads, -1)
    size = flat.norm(dim=-1)
    if head is None:
        head = int(size.amax(0).argmax())
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < n_heads:
        raise InputError(f"head={head!r} is not there; this layer has heads 0 to {n_heads - 1}")
    rows, numbers = spread(n_heads, MOST_ROWS), spread(flat.shape[2], MOST_ROWS)
    page = new_figure(width_over(length), 3.6 + 0.03 * (len(rows) + len(numbers)))
    above, below = page.subplots(2, 1, sharex=True, height_ratios=[24 + len(rows), 24 + len(numbers)])
    part = f", {len(rows)} of {n_heads}" if len(rows) < n_heads else ""
    image = heat_map(above, size[:, rows].mT, f"{found.name}: how large the state of each is{part}", signed=False)
    colour_bar(page, image, above, "size")
    part = f", {len(numbers)} of {flat.shape[2]}" if len(numbers) < flat.shape[2] else ""
    image = heat_map(below, flat[:, head, numbers].mT, f"the state of head or channel {head}{part}")
    colour_bar(page, image, below, "value")
    above.set_ylabel("head or\nchannel")
    below.set(ylabel="number of\nthe state", xlabel="step")
    _whole_numbers(above, len(rows))
    _whole_numbers(below, len(numbers))
    page.align_ylabels()
    tokens_along(below, "x", tokens)
    return page


def _whole_numbers(axes: Axes, n: int) -> None:
    """At an axis that counts rows."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if n == 1:
        axes.set_yticks([0])


def _numbers(state: Any) -> Tensor:
    """The tensor of a state that is the layer's memory: (batch, length, heads or channels, ...)."""
    while not isinstance(state, Tensor):
        fields = getattr(state, "_fields", ())
        name = next((name for name in MEMORIES if name in fields), None)
        if name is None:
            raise InputError(
                f"a {type(state).__name__} has no part that is known as a memory: {', '.join(fields) or 'no names'}; "
                "take the numbers from statewise.insight.states"
            )
        state = getattr(state, name)
    return state
