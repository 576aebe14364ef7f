"""Time-invariant systems: what they answer to an impulse and to oscillations, and where their poles are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from statewise import insight
from statewise.errors import InputError
from statewise.insight.systems import systems_of
from statewise.mixers.mamba2 import Mamba2
from statewise.plots.found import Found, find, spread
from statewise.plots.style import COLOURS, MARKERS, line, new_figure, styled
from statewise.systems import ContinuousSystem, DiscreteSystem
from statewise.systems.base import System

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 5  # channels, if none are chosen
LOWEST = 1e-4  # cycles a step


def has_poles(mixer: Any) -> bool:
    """Whether :func:`poles` can draw it."""
    try:
        insight.poles(mixer)
    except InputError:
        return False
    return True


def has_response(mixer: Any) -> bool:
    """Whether :func:`impulse_response` can draw it."""
    try:
        systems_of(mixer)
    except InputError:
        return False
    return True


@styled
def impulse_response(
    of: Any,
    *,
    layer: int | None = None,
    channels: Sequence[int] | None = None,
    length: int = 256,
    dt: float | None = None,
) -> Figure:
    """The outputs after an input of 1 at step 0: how long, and with which sign, a system remembers.

    of:       a system, a time-invariant operator, a mixer made of them, or a model
    layer:    of a model; None: the first that has one
    channels: which of them; None: up to five, evenly spread
    length:   steps
    dt:       of a continuous system the time between two of them; None: to see its slowest pole decay
    Errors:   InputError for layers that have none, such as attention, and channels that are not there.

    >>> import statewise as sw
    >>> figure = impulse_response(sw.S4DConfig(d_state=8).build(d_model=4), length=64)
    >>> [line.get_label() for line in figure.axes[0].get_lines()][:2]
    ['channel 0', 'channel 1']
    """
    found = find(of, layer, has_response, "impulse response")
    systems = systems_of(found.of)
    page = new_figure(7.2, 0.4 + 2.6 * len(systems))
    panels = page.subplots(len(systems), 1, squeeze=False)[:, 0]
    for axes, (name, system) in zip(panels, systems.items()):
        if isinstance(system, ContinuousSystem):
            step = _time_scale(system, length) if dt is None else dt
            times = step * torch.arange(length, dtype=system.B.real.dtype)
            response, unit = system.impulse_response(times), "time"
        else:
            response, unit = insight.impulse_response(system, length, _chosen(system, channels)), "lag, steps"
            times = torch.arange(length)
        for number, (label, values) in enumerate(_rows(response, _chosen(system, channels))):
            axes.plot(times.numpy(), values.real.numpy(), label=label, **line(number))
        axes.axhline(0.0, color="#999999", linewidth=0.8, zorder=0)
        axes.set(xlabel=unit, ylabel="output")
        cut = _cut_off_first(axes)
        axes.set_title(_title(found, name, "impulse response") + (", lag 0 cut off" if cut else ""))
        _legend(axes)
    return page


@styled
def frequency_response(
    of: Any, *, layer: int | None = None, channels: Sequence[int] | None = None, points: int = 400
) -> Figure:
    """What a system makes of oscillations: their magnitude above, their phase below, against their frequency.

    Arguments and errors as :func:`impulse_response`. Frequencies are cycles a step, up to half a cycle; of a system
    cycles per unit of its time.
    """
    found = find(of, layer, has_response, "frequency response")
    systems = systems_of(found.of)
    page = new_figure(7.2, 0.4 + 3.8 * len(systems))
    panels = page.subplots(2 * len(systems), 1, squeeze=False, height_ratios=[3, 2] * len(systems))[:, 0]
    for number, (name, system) in enumerate(systems.items()):
        above, below = panels[2 * number], panels[2 * number + 1]
        frequency, unit = _frequencies(system, points)
        chosen = _chosen(system, channels)
        H = insight.frequency_response(system, 2 * math.pi * frequency, chosen)
        for i, (label, values) in enumerate(_rows(H, chosen)):
            above.loglog(frequency.numpy(), values.abs().numpy(), label=label, **line(i))
            phase = np.rad2deg(np.unwrap(values.angle().numpy()))
            below.semilogx(frequency.numpy(), phase, **line(i))
        above.set(ylabel="magnitude")
        above.set_title(_title(found, name, "frequency response"))
        above.tick_params(labelbottom=False)
        below.set(xlabel=f"frequency, {unit}", ylabel="phase, degrees")
        below.sharex(above)
        _legend(above, beside=True)
    page.align_ylabels()
    return page


@styled
def poles(of: Any, *, layer: int | None = None, channels: Sequence[int] | None = None) -> Figure:
    """The poles in continuous time, with the half-plane where systems grow, and in discrete time, with the unit circle.

    How far left a pole is, or how far inside the circle, is how fast it forgets; its height, or its angle, is how fast
    it oscillates. The discrete poles of Mamba and Mamba-2 are those at the step size of an input of zero.

    of:       a system, a time-invariant operator, a mixer made of them, a Mamba or Mamba-2 mixer, or a model
    layer, channels, errors: as :func:`impulse_response`

    >>> import statewise as sw
    >>> [axes.get_xlabel() for axes in poles(sw.S4Config(d_state=8).build(d_model=4)).axes]
    ['real part, 1 / time', 'real part']
    """
    found = find(of, layer, has_poles, "poles")
    sets = insight.poles(found.of)
    n_panels = max(sum(part is not None for part in (one.continuous, one.discrete)) for one in sets)
    page = new_figure(3.9 * n_panels, 1.2 + 3.3 * len(sets))
    grid = page.subplots(len(sets), n_panels, squeeze=False)
    unit = "head" if isinstance(found.of, Mamba2) else "channel"
    for row, one in zip(grid, sets):
        panels = list(row)
        if one.continuous is not None:
            _continuous_plane(panels.pop(0), one.continuous, channels, unit)
        if one.discrete is not None:
            _discrete_plane(panels.pop(0), one.discrete, channels, unit)
    page.suptitle(f"{found.name}: poles", fontsize=10)
    handles = {label: handle for axes in page.axes for handle, label in zip(*axes.get_legend_handles_labels())}
    page.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=min(4, len(handles)), fontsize=8
    )
    return page


def _continuous_plane(axes: Axes, values: Tensor, channels: Sequence[int] | None, unit: str) -> None:
    _scatter(axes, values, channels, unit)
    low, high = axes.get_xlim()
    end = max(high, 0.15 * abs(low))
    axes.axvspan(0, end, color="#DDDDDD", zorder=0, linewidth=0, label="where a system grows")
    axes.axvline(0, color="#666666", linewidth=1.0)
    axes.set(xlabel="real part, 1 / time", ylabel="imaginary part, 1 / time", xlim=(low, end))
    if not bool(values.imag.any()):
        axes.set_ylim(low / 2, -low / 2)
    axes.set_title("continuous time")


def _discrete_plane(axes: Axes, values: Tensor, channels: Sequence[int] | None, unit: str) -> None:
    around = np.linspace(0, 2 * math.pi, 400)
    axes.plot(np.cos(around), np.sin(around), color="#666666", linewidth=1.0, label="unit circle")
    _scatter(axes, values, channels, unit)
    axes.set_aspect("equal")
    axes.set(xlabel="real part", ylabel="imaginary part")
    axes.set_title("discrete time")


def _scatter(axes: Axes, values: Tensor, channels: Sequence[int] | None, unit: str) -> None:
    chosen = _of_width(len(values), channels)
    for number, channel in enumerate(chosen):
        z = values[channel].numpy()
        look: dict[str, Any] = {"marker": MARKERS[number % len(MARKERS)], "color": COLOURS[number % len(COLOURS)]}
        label = f"{unit} {channel}" if len(values) > 1 else "pole"
        axes.plot(z.real, z.imag, linestyle="none", markersize=5, markerfacecolor="none", label=label, **look)


def _rows(response: Tensor, chosen: Sequence[int] | None) -> list[tuple[str, Tensor]]:
    """Lines with their labels. response: (k,), (channels, [outputs,] k) or (outputs, inputs, k)"""
    if response.ndim == 1:
        return [("", response)]
    if chosen is None:
        flat = response.reshape(-1, response.shape[-1])
        n_in = response.shape[-2] if response.ndim == 3 else 1
        labels = [f"input {i % n_in} to output {i // n_in}" if n_in > 1 else f"output {i}" for i in range(len(flat))]
        return [(labels[i], flat[i]) for i in spread(len(flat), SHOWN)]
    if response.ndim == 3:  # the first of several outputs
        response = response[:, 0]
    return [(f"channel {channel}", values) for channel, values in zip(chosen, response, strict=True)]


def _chosen(system: Any, channels: Sequence[int] | None) -> list[int] | None:
    """None for what has no channels."""
    if isinstance(system, System) or system.mixes_channels:
        return None
    return _of_width(system.channels[0], channels)


def _of_width(width: int, channels: Sequence[int] | None) -> list[int]:
    if channels is None:
        return spread(width, SHOWN)
    for channel in channels:
        if isinstance(channel, bool) or not isinstance(channel, int) or not 0 <= channel < width:
            raise InputError(f"channels has {channel!r}; this layer has channels 0 to {width - 1}")
    return list(channels)


def _time_scale(system: ContinuousSystem, length: int) -> float:
    """So that the slowest pole has decayed to e^-5 at the end; 20 units of time where none decays."""
    decay = -system.poles().real
    slowest = float(decay[decay > 0].min()) if bool((decay > 0).any()) else 0.25
    return 5 / slowest / length


def _frequencies(system: Any, points: int) -> tuple[Tensor, str]:
    if isinstance(system, ContinuousSystem):
        size = system.poles().abs()
        middle = float(size[size > 0].log().mean().exp()) / (2 * math.pi) if bool((size > 0).any()) else 1.0
        low, high, dtype = middle / 100, middle * 100, system.B.real.dtype
        unit = "cycles per unit of time"
    elif isinstance(system, DiscreteSystem):
        assert isinstance(system.dt, Tensor)
        high = 0.5 / float(system.dt.max())
        low, dtype, unit = high * 2 * LOWEST, system.B.real.dtype, "cycles per unit of time"
    else:
        like = system._like()
        low, high, dtype, unit = LOWEST, 0.5, (like.real if like.is_complex() else like).dtype, "cycles a step"
    return torch.logspace(math.log10(low), math.log10(high), points, dtype=dtype), unit


def _title(found: Found, name: str, what: str) -> str:
    return ": ".join(part for part in (f"{found.name}{', ' if name else ''}{name}", what) if part)


def _cut_off_first(axes: Axes) -> bool:
    """A skip may be so large at lag 0 that nothing else can be seen: then the rest sets the scale. Whether it does."""
    lines = [np.asarray(drawn.get_ydata()) for drawn in axes.get_lines() if len(np.asarray(drawn.get_ydata())) > 2]
    first, rest = (max(float(np.abs(part).max()) for part in parts) for parts in zip(*((y[:1], y[1:]) for y in lines)))
    if rest == 0 or first < 4 * rest:
        return False
    axes.set_ylim(-1.2 * rest, 1.2 * rest)
    return True


def _legend(axes: Axes, *, beside: bool = False) -> None:
    """beside: the axes, which curves fill from corner to corner"""
    labels = axes.get_legend_handles_labels()[1]
    if any(labels) and beside:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    elif any(labels):
        axes.legend(fontsize=8, loc="best", ncols=1 if len(labels) < 4 else 2)
