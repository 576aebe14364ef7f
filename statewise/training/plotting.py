"""The training curves of runs, from their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.plots.curves import Axis, training_curves
from statewise.plots.style import require_matplotlib
from statewise.training.curves import read_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_runs(
    runs: Sequence[Path | str] | Mapping[str, Path | str],
    *,
    x: Axis = "steps",
    smooth: int = 1,
    log_y: bool = False,
) -> Figure:
    """The training curves of runs, as :func:`statewise.plots.training_curves` draws them. ``savefig`` writes it.

    A folder of several runs is one curve for each learning rate, the mean of its seeds, in a band from the least to the
    greatest.

    runs:   their folders, perhaps by names for the legend
    x:      "steps"; "time", the seconds of training without pauses; "units", the tokens, sequences or windows read
    smooth, log_y: as for :func:`statewise.plots.training_curves`

    Errors: InputError if matplotlib is not installed; CheckpointError where there is no run, or none that has begun;
            ConfigError for runs of different tasks, or a logarithm of what is not positive.
    """
    require_matplotlib()
    named = runs if isinstance(runs, Mapping) else _named(runs)
    curves = [one for name, folder in named.items() for one in read_curves(folder, x, name)]
    return training_curves(curves, x=x, smooth=smooth, log_y=log_y)


def _named(folders: Sequence[Path | str]) -> dict[str, Path | str]:
    """Folders by their last names; where two would be the same, by what was given."""
    if isinstance(folders, (str, Path)):
        folders = [folders]
    names = [Path(folder).resolve().name for folder in folders]
    return {name if names.count(name) == 1 else str(folder): folder for name, folder in zip(names, folders)}
