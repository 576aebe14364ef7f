"""H3 as a lookup: which keys it stores, the values paired with them, and what a query recalls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from statewise import insight
from statewise.errors import InputError
from statewise.insight import Signals
from statewise.mixers.h3 import H3
from statewise.plots.found import find, is_any
from statewise.plots.style import colour_bar, heat_map, new_figure, require_steps, styled, tokens_along, width_over

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 8  # heads, if none are chosen
TITLES = {
    "K": "keys: K",
    "shifted": "store the key: K' = shift SSM of K",
    "V": "values: V",
    "entering": "store the value: K'V enters the state",
    "state": "the state: diagonal SSM of K'V",
    "Q": "queries: Q",
    "output": "recall: Q times the state",
}


@styled
def lookup(
    of: Any, inputs: Tensor, *, layer: int | None = None, heads: Sequence[int] | None = None, tokens: Sequence[str] = ()
) -> Figure:
    """The signals of an H3 layer, head by head: a key is stored, one step later the value beside it, and a query that
    fits the key reads the value.

    Each head has a scale of its own. With heads wider than 1 the lengths of their vectors are drawn.

    of:      an H3 mixer, or a model that has one
    inputs:  what it reads, (1, length, d_model), or the model's own, such as tokens (1, length); the first row is shown
    layer:   of a model; None: its first H3 layer
    heads:   which; None: the eight whose output is largest
    tokens:  what was read, to be written below
    Errors:  InputError for another layer, a head that is not there, and more than 1,024 steps.
    """
    require_steps(inputs)
    found = find(of, layer, is_any(H3), "keys to store", inputs[:1])
    signals = insight.h3_trace(found.of, found.x)  # type: ignore[arg-type]
    table = by_head(signals)
    n_heads = len(table["Q"])
    if heads is None:
        heads = table["output"].abs().amax(1).argsort(descending=True)[:SHOWN].tolist()
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < n_heads:
            raise InputError(f"heads has {head!r}; this layer has heads 0 to {n_heads - 1}")
    shown = {name: rows[list(heads)] for name, rows in table.items()}
    page = new_figure(width_over(len(signals.Q[0]) + 12, 0.16), 1.0 + len(TITLES) * (0.5 + 0.13 * len(heads)))
    draw_signals(page, shown, tokens, [str(head) for head in heads], signed=signals.entering.shape[3] == 1)
    page.suptitle(f"{found.name}: stored keys and recalled values", fontsize=10)
    return page


def by_head(signals: Signals) -> dict[str, Tensor]:
    """Each signal of the first row as (heads, length): of heads wider than 1, the lengths of their vectors."""
    n_heads, d_head = signals.entering.shape[2:4]
    found = {}
    for name in TITLES:
        values = getattr(signals, name)[0]
        values = values.reshape(len(values), n_heads, -1)
        found[name] = (values[..., 0] if d_head == 1 else values.norm(dim=-1)).mT
    return found


def draw_signals(
    page: Figure, table: Mapping[str, Any], tokens: Sequence[str], rows: Sequence[str], *, signed: bool = True
) -> None:
    """Into an empty figure: a map for each signal, (rows, length), by the names of :data:`TITLES`. Each row has its own
    scale.
    """
    panels = page.subplots(len(table), 1, sharex=True, squeeze=False)[:, 0]
    image: Any = None
    for axes, (name, values) in zip(panels, table.items()):
        shown = torch.as_tensor(values).double()
        shown = shown / shown.abs().amax(1, keepdim=True).clamp(min=1e-9)
        image = heat_map(axes, shown, rows=rows if len(rows) == len(shown) else (), limit=1.0, signed=signed)
        axes.set_title(TITLES.get(name, name), fontsize=9)
        axes.set_ylabel("head", fontsize=8)
    panels[-1].set_xlabel("step")
    tokens_along(panels[-1], "x", tokens)
    colour_bar(page, image, list(panels), "relative to the row's largest", shrink=0.3)
