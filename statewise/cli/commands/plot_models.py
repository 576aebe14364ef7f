"""`statewise plot poles RUN` and the like: pictures of what is inside a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statewise.cli.options import Folder, TokenizerOption, Which, refuse_existing

if TYPE_CHECKING:
    from statewise.cli.model_folder import ModelFolder

LayerOption = Annotated[
    int | None, typer.Option(min=0, help="From 0. Default: the first with which it can be drawn.", show_default=False)
]
Channels = Annotated[
    str | None, typer.Option(metavar="LIST", help="Such as 0,3,7. Default: up to five.", show_default=False)
]
Heads = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Such as 0,3,7; of Mamba channels. Default: a few.", show_default=False),
]
Head = Annotated[int, typer.Option(min=0, help="Which head; of Mamba and time-invariant layers a channel.")]
Text = Annotated[str | None, typer.Option(help="What the model reads.", show_default=False)]
Ids = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="The same as ids, such as 3,1,4, for a model without text.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="A .png, .svg or .pdf. Default: a .png with the command's name in the run's folder.", show_default=False
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")]


def impulse_response(
    folder: Folder,
    layer: LayerOption = None,
    channels: Channels = None,
    length: Annotated[int, typer.Option(min=1, help="Steps.")] = 256,
    out: Out = None,
    overwrite: Overwrite = False,
    which: Which = "best",
) -> None:
    """Draw how a layer answers to an input of 1: how long it remembers. S4, S4D, S5, LSSL, GSS, H3, LMU."""
    place = _place(folder, out, "impulse-response")
    from statewise import plots

    model = _open(folder, which).model
    _draw(
        lambda: plots.impulse_response(model, layer=layer, channels=_list(channels, "--channels"), length=length),
        place,
        overwrite,
    )


def frequency_response(
    folder: Folder,
    layer: LayerOption = None,
    channels: Channels = None,
    out: Out = None,
    overwrite: Overwrite = False,
    which: Which = "best",
) -> None:
    """Draw what a layer makes of oscillations: magnitude and phase. Layers as for impulse-response."""
    place = _place(folder, out, "frequency-response")
    from statewise import plots

    model = _open(folder, which).model
    _draw(
        lambda: plots.frequency_response(model, layer=layer, channels=_list(channels, "--channels")), place, overwrite
    )


def poles(
    folder: Folder,
    layer: LayerOption = None,
    channels: Channels = None,
    out: Out = None,
    overwrite: Overwrite = False,
    which: Which = "best",
) -> None:
    """Draw the poles of a layer, in continuous and in discrete time. Layers as for impulse-response, and Mamba."""
    place = _place(folder, out, "poles")
    from statewise import plots

    model = _open(folder, which).model
    _draw(lambda: plots.poles(model, layer=layer, channels=_list(channels, "--channels")), place, overwrite)


def step_sizes(
    folder: Folder,
    text: Text = None,
    ids: Ids = None,
    layer: LayerOption = None,
    out: Out = None,
    overwrite: Overwrite = False,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
) -> None:
    """Draw the step sizes of Mamba, Mamba-2 or Mamba-3 over a text: how much each token lets in."""
    _over_text("step-sizes", folder, text, ids, tokenizer, which, out, overwrite, {"layer": layer})


def half_lives(
    folder: Folder,
    text: Text = None,
    ids: Ids = None,
    layer: LayerOption = None,
    out: Out = None,
    overwrite: Overwrite = False,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
) -> None:
    """Draw how long the states of Mamba, Mamba-2 or Mamba-3 last, token by token."""
    _over_text("half-lives", folder, text, ids, tokenizer, which, out, overwrite, {"layer": layer})


def hidden_attention(
    folder: Folder,
    text: Text = None,
    ids: Ids = None,
    layer: LayerOption = None,
    heads: Heads = None,
    out: Out = None,
    overwrite: Overwrite = False,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
) -> None:
    """Draw how much Mamba, Mamba-2 or Mamba-3 takes from each token before, head by head."""
    options = {"layer": layer, "heads": _list(heads, "--heads")}
    _over_text("hidden-attention", folder, text, ids, tokenizer, which, out, overwrite, options)


def lookup(
    folder: Folder,
    text: Text = None,
    ids: Ids = None,
    layer: LayerOption = None,
    heads: Heads = None,
    out: Out = None,
    overwrite: Overwrite = False,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
) -> None:
    """Draw the keys that an H3 layer stores, the values beside them, and what is recalled."""
    options = {"layer": layer, "heads": _list(heads, "--heads")}
    _over_text("lookup", folder, text, ids, tokenizer, which, out, overwrite, options)


def states(
    folder: Folder,
    text: Text = None,
    ids: Ids = None,
    layer: LayerOption = None,
    head: Annotated[int | None, typer.Option(min=0, help="Default: that with the largest state.")] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
) -> None:
    """Draw the state of a layer while the model reads."""
    _over_text("states", folder, text, ids, tokenizer, which, out, overwrite, {"layer": layer, "head": head})


def semiseparable(
    folder: Folder,
    text: Text = None,
    ids: Ids = None,
    layer: LayerOption = None,
    head: Head = 0,
    chunk_length: Annotated[
        int | None, typer.Option(min=1, help="Default: a quarter of the steps.", show_default=False)
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
) -> None:
    """Draw a layer as a matrix: its chunks, their ranks, and the attention map that it is.

    A layer that selects nothing, such as S4D, needs no text.
    """
    options = {"layer": layer, "head": head, "chunk_length": chunk_length}
    _over_text("semiseparable", folder, text, ids, tokenizer, which, out, overwrite, options, required=False)


def hippo(
    measure: Annotated[
        str, typer.Argument(help="legs, legt, lagt, tlagt, glagt, fourier, fourier_diag or lmu.")
    ] = "legs",
    n: Annotated[int, typer.Option(min=1, help="Numbers in the state.")] = 16,
    theta: Annotated[
        float | None, typer.Option(help="Window, or unit of time, in steps. Default: a third.", show_default=False)
    ] = None,
    length: Annotated[int, typer.Option(min=8, help="Steps of the signal, a sum of waves.")] = 600,
    out: Annotated[Path, typer.Option(help="A .png, .svg or .pdf.")] = Path("hippo.png"),
    overwrite: Overwrite = False,
) -> None:
    """Draw HiPPO at work: a signal, what a few numbers say of it, the measure, and the basis. It needs no run."""
    _require(out)
    import math

    import torch

    from statewise import plots

    time = (torch.arange(length, dtype=torch.float64) + 0.5) / length
    signal = (3 * math.pi * time).sin() + 0.5 * (8 * math.pi * time + 1).sin()
    _draw(lambda: plots.hippo_memory(signal, measure, n, theta=theta), out, overwrite)


def forecasts(
    folder: Folder,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="A table. Default: the run's own.", show_default=False)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="How many. Default: the model's horizon.", show_default=False)
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    which: Which = "best",
) -> None:
    """Draw what comes after the end of series, with intervals: `statewise forecast RUN DATA --plot FILE`."""
    from statewise.cli.commands.forecast import forecast

    place = _place(folder, out, "forecasts")
    forecast(folder, data, steps=steps, plot=place, overwrite=overwrite, which=which)
    print(place)


COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__.replace("_", "-"): command
    for command in (
        *(impulse_response, frequency_response, poles),
        *(step_sizes, half_lives, hidden_attention),
        *(semiseparable, lookup, states, hippo, forecasts),
    )
}


def write(figure: Any, out: Path, overwrite: bool) -> None:
    """The figure in a file, and its name printed. A file that is there is replaced only with --overwrite."""
    from statewise.checkpoints.atomic import write_file
    from statewise.plots.style import save

    _require(out)
    write_file(out, 0, lambda path: save(figure, path), None if overwrite else refuse_existing)
    print(out)


def _draw(draw: Callable[[], Any], out: Path, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        refuse_existing(out)
    write(draw(), out, overwrite)


def _place(folder: Path, out: Path | None, what: str) -> Path:
    """Where the figure goes, checked before a model is loaded."""
    place = out or (folder if folder.is_dir() else Path()) / f"{what}.png"
    _require(place)
    return place


def _require(out: Path) -> None:
    from statewise.plots.style import require_plot

    require_plot(out)


def _open(folder: Path, which: str, tokenizer: str | None = None) -> ModelFolder:
    from statewise.cli.model_folder import open_model

    return open_model(folder, which=which, device="cpu", tokenizer=tokenizer)


def _over_text(
    what: str,
    folder: Path,
    text: str | None,
    ids: str | None,
    tokenizer: str | None,
    which: str,
    out: Path | None,
    overwrite: bool,
    options: dict[str, Any],
    *,
    required: bool = True,
) -> None:
    """A picture of what the model does with a text."""
    place = _place(folder, out, what)
    from statewise import plots

    opened = _open(folder, which, tokenizer)
    if text is None and ids is None and not required:
        _draw(lambda: plots.semiseparable(opened.model, **options), place, overwrite)
        return
    inputs, tokens = _read(opened, text, ids)
    draw = getattr(plots, what.replace("-", "_"))
    _draw(lambda: draw(opened.model, inputs, tokens=tokens, **options), place, overwrite)


def _read(opened: ModelFolder, text: str | None, ids: str | None) -> tuple[Any, list[str]]:
    """Tokens (1, length), and what each says.

    Errors:  ConfigError for no input or two, an empty one, or a model that reads something else.
    """
    import torch

    from statewise.errors import ConfigError

    model = opened.model
    if getattr(model.config, "vocab_size", None) is None:
        raise ConfigError(
            f"{opened.folder} holds a {type(model).__name__}, which reads no text; draw it in Python, "
            "with statewise.plots and what it reads"
        )
    if (text is None) == (ids is None):
        raise ConfigError("say what the model is to read: --text, or --ids for a model without text, and not both")
    if ids is not None:
        found = _list(ids, "--ids") or []
        tokens = [str(one) for one in found]
    else:
        tokenizer = opened.tokenizer
        found = [int(one) for one in tokenizer.encode(text or "")]
        tokens = [tokenizer.decode([one]) for one in found]
    if not found:
        raise ConfigError("there is nothing to read; give a text of at least one token")
    return torch.tensor([found]), tokens


def _list(text: str | None, flag: str) -> list[int] | None:
    """
    >>> _list("0,3", "--heads")
    [0, 3]
    """
    from statewise.errors import ConfigError

    if text is None:
        return None
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is not a list of numbers; write it as {flag} 0,3,7") from None
