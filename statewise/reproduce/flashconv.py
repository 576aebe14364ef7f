"""FlashConv: forward and backward of a long convolution against length, beside attention and the plain FFT."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.configuration import Config
from statewise.configuration.types import Count, Distinct, EvenCount, NonEmpty
from statewise.errors import ConfigError
from statewise.operators import DiagonalLTI
from statewise.operators.time_invariant import CHUNK
from statewise.reproduce.measure import milliseconds, peak_bytes, time_side_by_side
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report, doubling_axis, drawn
from statewise.reproduce.work import Work
from statewise.train.config import Device
from statewise.train.environment import choose_device
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENTION, PLAIN, OURS, BLOCK, PASSING = "attention", "plain FFT", "convolve", "block FFT", "state passing"
NAMES = (ATTENTION, PLAIN, OURS, BLOCK, PASSING)
FORMS = {OURS: "convolve", BLOCK: "block_fft", PASSING: "state_passing"}
FROM_A_STATE = (OURS, PASSING)


def forms_at(length: int) -> dict[str, str]:
    """The forms that differ at this length: up to one of its chunks, state passing from rest is ``convolve``."""
    return {name: form for name, form in FORMS.items() if name != PASSING or length > CHUNK}


# Fu et al. 2023 (H3), arXiv:2212.14052: times as fast as a Transformer on the Long Range Arena.
PUBLISHED_LRA = (
    ("Transformer", "1"),
    ("FlashAttention", "2.4"),
    ("block-sparse FlashAttention", "2.8"),
    ("S4", "2.9"),
    ("S4 with FlashConv", "5.8"),
)


@dataclass(frozen=True, kw_only=True)
class FlashConvSettings(Config):
    """lengths, batches: of the sequences, each length once, and how many of them at each length
    d_model: channels, and n_heads that attention divides them into
    d_state: order of the diagonal system of each channel, d_state // 2 conjugate pairs
    rounds:  how often all are measured in turn, at each length
    device:  "cpu", "cuda", or "auto"
    """

    lengths: Distinct[Count] = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
    batches: NonEmpty[Count] = (8, 8, 8, 4, 2, 2, 1, 1)
    d_model: Count = 256
    n_heads: Count = 4
    d_state: EvenCount = 64
    rounds: Count = 7
    device: Device = "cpu"

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.batches):
            raise ConfigError(
                f"FlashConvSettings: lengths={self.lengths}, batches={self.batches}; give a batch for each length"
            )
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"FlashConvSettings: d_model={self.d_model} is not a multiple of n_heads={self.n_heads}; change either"
            )
        choose_device(self.device)  # refuses what is not there before the folder is made


def quick() -> FlashConvSettings:
    return FlashConvSettings(lengths=(256, 8192), batches=(1, 1), d_model=64, d_state=16, rounds=2)


def system(config: FlashConvSettings, device: torch.device) -> DiagonalLTI:
    """One diagonal system a channel, oscillating and slowly decaying, with gradients."""
    generator = torch.Generator().manual_seed(0)
    shape = config.d_model, config.d_state // 2
    decay, angle = (torch.rand(shape, generator=generator) for _ in range(2))
    A = torch.polar(torch.exp(-0.001 - 0.05 * decay), 3 * angle)
    B, C = (torch.randn(shape, generator=generator, dtype=torch.complex64) for _ in range(2))
    return DiagonalLTI(*(m.to(device).requires_grad_() for m in (A, B, C / config.d_state)))


def plain_fft(op: DiagonalLTI, u: Tensor) -> Tensor:
    """irfft(rfft(u, 2 L) rfft(K, 2 L))[:L], whole, as torch.fft has it."""
    length = u.shape[1]
    K = op.impulse_response(length)
    spectrum = torch.fft.rfft(u.mT, n=2 * length) * torch.fft.rfft(K, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].mT


def _in_form(op: DiagonalLTI, u: Tensor, form: str) -> Tensor:
    return op(u, form=form)[0]


def attend(u: Tensor, n_heads: int) -> Tensor:
    """Causal attention of u with itself, without projections, as the convolutions have none."""
    heads = u.unflatten(2, (n_heads, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)


def run(config: FlashConvSettings, work: Work) -> Report:
    device = choose_device(config.device)
    work.begin(len(config.lengths))
    found: dict[int, dict[str, Any]] = {}
    for length, batch in zip(config.lengths, config.batches):
        found[length] = work.part(
            f"length-{length}", partial(_measure, config, work, length, batch, device), device=device
        )
    return _report(config, found, device)


def _measure(config: FlashConvSettings, work: Work, length: int, batch: int, device: torch.device) -> dict[str, Any]:
    op, generator = system(config, device), torch.Generator().manual_seed(1)
    u, grad = (torch.randn(batch, length, config.d_model, generator=generator).to(device) for _ in range(2))
    u.requires_grad_()
    outputs: dict[str, Callable[[], Tensor]] = {
        ATTENTION: lambda: attend(u, config.n_heads),
        PLAIN: lambda: plain_fft(op, u),
        **{name: partial(_in_form, op, u, form) for name, form in forms_at(length).items()},
    }
    parameters = (op.A, op.B, op.C)
    state = op.initial_state(batch, device=device)

    def both(name: str) -> None:
        inputs = (u,) if name == ATTENTION else (u, *parameters)
        torch.autograd.grad(outputs[name](), inputs, grad)

    def both_from_a_state(form: str) -> None:
        y, final = op(u, state, form=form)
        torch.autograd.grad((y, final.h), (u, *parameters), (grad, torch.ones_like(final.h)))

    total = config.rounds + 1
    with torch.no_grad():
        want = outputs[PLAIN]()
        apart = {name: float((outputs[name]() - want).abs().max() / want.abs().max()) for name in forms_at(length)}
    actions = {name: partial(both, name) for name in outputs}
    for action in actions.values():
        action()
    memory = {name: peak_bytes(action, device) for name, action in actions.items()}
    carried = {name: partial(both_from_a_state, FORMS[name]) for name in FROM_A_STATE}
    for action in carried.values():
        action()
    work.progress(1, total)
    seconds = time_side_by_side(
        {**actions, **{f"{name}, from a state": action for name, action in carried.items()}},
        config.rounds,
        device=device,
        progress=lambda done, _: work.progress(done + 1, total),
    )
    from_a_state = {name: seconds.pop(f"{name}, from a state") for name in FROM_A_STATE}
    return {
        "batch": batch,
        "seconds": seconds,
        "seconds_from_a_state": from_a_state,
        "peak_bytes": memory,
        "apart": apart,
    }


def published(length: int) -> str:
    """What the paper says of its kernels at a length, against the FFT that was there; it gives no table."""
    if length <= 512:
        return "fused 3.4x"
    if length <= 8192:
        return "block FFT 2x"
    return "state passing 2.3x"


def _report(config: FlashConvSettings, found: Mapping[int, Mapping[str, Any]], device: torch.device) -> Report:
    times, ratios, carried, memories, figures = [], [], [], [], {}
    spread = max(
        _spread(seconds)
        for part in found.values()
        for seconds in (*part["seconds"].values(), *part["seconds_from_a_state"].values())
    )
    for length, part in found.items():
        ms = {name: milliseconds(seconds) for name, seconds in part["seconds"].items()}
        mb = {name: n_bytes / 1e6 for name, n_bytes in part["peak_bytes"].items()}
        label = (f"{length:,}", str(part["batch"]))
        times.append((*label, *(f"{ms[name]:,.1f}" if name in ms else "-" for name in NAMES)))
        speed = {name: ms[PLAIN] / ms[name] for name in forms_at(length)}
        best = ms[ATTENTION] / min(ms[name] for name in speed)
        cells = (f"{speed[name]:.2f}x" if name in speed else "-" for name in FORMS)
        ratios.append((*label, published(length), *cells, f"{best:.2f}x"))
        passed = {name: milliseconds(seconds) for name, seconds in part["seconds_from_a_state"].items()}
        carried.append(
            (*label, *(f"{passed[name]:,.1f}" for name in FROM_A_STATE), f"{passed[OURS] / passed[PASSING]:.2f}x")
        )
        memories.append((*label, *(f"{mb[name]:,.1f}" if name in mb else "-" for name in NAMES)))
        figures[str(length)] = {"ms": ms, "mb": mb, "over_plain_fft": speed, "over_attention": best, **part}
        figures[str(length)]["ms_from_a_state"] = passed
    apart = max(value for part in found.values() for value in part["apart"].values())
    return Report(
        title="FlashConv: a long convolution, forward and backward",
        setting=(
            f"{config.d_model} channels, in each a diagonal system of order {config.d_state}, float32, "
            f"{device.type}: the impulse response, the convolution, and the gradients of "
            f"the input and of A, B and C. "
            f"Attention has {config.n_heads} heads and no projections. "
            f"All in one process, in turns, medians of {config.rounds}; half of the rounds lie within {spread:.0%} of "
            "the median or nearer. "
            f"The forms are at most {apart:.1e} of the largest output apart."
        ),
        tables=[
            Table("Milliseconds, forward and backward", ("length", "batch", *NAMES), times),
            Table(
                "Times as fast as the plain FFT",
                ("length", "batch", "published", *FORMS, "fastest over attention"),
                ratios,
                (
                    "Published over attention: up to 35 times. `convolve` is what runs by default from rest.",
                    *(
                        [f"-: in a chunk of {CHUNK:,} steps state passing is `convolve`."]
                        if min(found) <= CHUNK
                        else ()
                    ),
                ),
            ),
            Table(
                "From a state to a state, milliseconds, forward and backward",
                ("length", "batch", "convolve (chunks of 64)", PASSING, "ratio"),
                carried,
                ("The first runs by default: on some machines the second is slower at every length.",),
            ),
            Table("Megabytes at the peak", ("length", "batch", *NAMES), memories),
            Table("Published: times as fast on the Long Range Arena", ("model", "speed"), PUBLISHED_LRA),
        ],
        differences=(
            "Published (arXiv:2212.14052) on an A100 at batch 8 and width 1,024; here on "
            f"{device.type} at {_batches(config)} and width {config.d_model:,}.",
            "Of the published micro-benchmark only what the text says of ranges of length is known, no cells.",
            "The block FFT is made for tensor cores: it has several times the operations of an FFT, in matrix "
            f"products.{' A CPU has none for float32.' if device.type == 'cpu' else ''}",
            "The published state passing is fused and on chip; here it is matrix products around the same convolution.",
            "The published attention is the standard one; PyTorch's is fused, and so faster and smaller.",
            "The published speeds on the Long Range Arena are of whole models that train; no model is trained here.",
        ),
        figures=figures,
        plots=[drawn("flashconv", "Forward and backward against length", partial(_draw, figures=figures))],
    )


def _spread(seconds: list[float]) -> float:
    """How far the nearer half of the rounds is from their median, as a fraction of it."""
    middle = statistics.median(seconds)
    return statistics.median(abs(one - middle) for one in seconds) / middle


def _batches(config: FlashConvSettings) -> str:
    least, most = min(config.batches), max(config.batches)
    return f"batch {least}" if least == most else f"batches of {least} to {most}"


def _draw(drawing: Figure, figures: Mapping[str, Any]) -> None:
    axes = drawing.subplots()
    lengths = [int(length) for length in figures]
    for name in NAMES:
        there = [n for n in lengths if name in figures[str(n)]["ms"]]
        rows = [figures[str(n)]["ms"][name] / figures[str(n)]["batch"] for n in there]
        if there:
            axes.loglog(there, rows, marker="o", label=name)
    doubling_axis(axes, lengths, "length")
    axes.set_ylabel("milliseconds a row of the batch")
    axes.legend()


REPRODUCTION = Reproduction(
    summary="forward and backward of a long convolution at lengths 256 to 32,768, five ways",
    duration="7 minutes",
    full=FlashConvSettings,
    quick=quick,
    run=run,
)
