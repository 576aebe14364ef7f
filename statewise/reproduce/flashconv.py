"""FlashConv: forward and backward of a long convolution against length, beside attention and the plain FFT."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.configuration.types import Count, Distinct, EvenWidth, NonEmpty, Width
from statewise.operators import DiagonalLTI
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.long_convolution.forms import CHUNK, FlashConvDiagonal
from statewise.reproduce.measure import compare, in_units, milliseconds
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work, job_for_each_length
from statewise.training.config import Device
from statewise.training.environment import choose_device
from statewise.training.report import Reporter

ATTENTION, PLAIN, OURS, BLOCK, PASSING = "attention", "plain FFT", "convolve", "block FFT", "state passing"
NAMES = (ATTENTION, PLAIN, OURS, BLOCK, PASSING)
FORMS = {OURS: "convolve", BLOCK: "block_fft", PASSING: "state_passing"}
FROM_A_STATE = (OURS, PASSING)


def forms_at(length: int) -> dict[str, str]:
    """The forms that differ at this length: up to one of its chunks, state passing from rest is ``convolve``."""
    return {name: form for name, form in FORMS.items() if name != PASSING or length > CHUNK}


# Fu et al. 2023 (H3), arXiv:2212.14052: times as fast as a Transformer on the Long Range Arena.
PUBLISHED_LRA = {
    "Transformer": 1,
    "FlashAttention": 2.4,
    "block-sparse FlashAttention": 2.8,
    "S4": 2.9,
    "S4 with FlashConv": 5.8,
}


@dataclass(frozen=True, kw_only=True)
class FlashConvSettings(Settings):
    """lengths, batches: of the sequences, each length once, and how many of them at each length
    d_model: channels, and n_heads that attention divides them into
    d_state: order of the diagonal system of each channel, d_state // 2 conjugate pairs
    rounds:  how often all are measured in turn, at each length
    device:  "cpu", "cuda", or "auto"
    """

    lengths: Distinct[Count] = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
    batches: NonEmpty[Count] = (8, 8, 8, 4, 2, 2, 1, 1)
    d_model: Width = 256
    n_heads: Count = 4
    d_state: EvenWidth = 64
    rounds: Count = 7
    device: Device = "cpu"

    def check(self) -> None:
        self.require_as_many("lengths", "batches")
        self.require(
            self.d_model % self.n_heads == 0,
            f"d_model={self.d_model} is not a multiple of n_heads={self.n_heads}; change either",
        )


def system(config: FlashConvSettings, device: torch.device) -> DiagonalLTI:
    """One diagonal system a channel, oscillating and slowly decaying, with gradients."""
    generator = torch.Generator().manual_seed(0)
    shape = config.d_model, config.d_state // 2
    decay, angle = (torch.rand(shape, generator=generator) for _ in range(2))
    A = torch.polar(torch.exp(-0.001 - 0.05 * decay), 3 * angle)
    B, C = (torch.randn(shape, generator=generator, dtype=torch.complex64) for _ in range(2))
    return FlashConvDiagonal(*(m.to(device).requires_grad_() for m in (A, B, C / config.d_state)))


def plain_fft(op: DiagonalLTI, u: Tensor) -> Tensor:
    """irfft(rfft(u, 2 L) rfft(K, 2 L))[:L], whole, as torch.fft has it."""
    length = u.shape[1]
    K = op.impulse_response(length)
    spectrum = torch.fft.rfft(u.mT, n=2 * length) * torch.fft.rfft(K, n=2 * length)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length].mT


def attend(u: Tensor, n_heads: int) -> Tensor:
    """Causal attention of u with itself, without projections, as the convolutions have none."""
    heads = u.unflatten(2, (n_heads, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)


def trials(config: FlashConvSettings, work: Work) -> dict[str, Job]:
    return job_for_each_length(measure_length, config)


def measure_length(config: FlashConvSettings, length: int, batch: int, reporter: Reporter) -> dict[str, Any]:
    device = choose_device(config.device)
    op, generator = system(config, device), torch.Generator().manual_seed(1)
    u, grad = (torch.randn(batch, length, config.d_model, generator=generator).to(device) for _ in range(2))
    u.requires_grad_()
    forms = forms_at(length)
    outputs: dict[str, Callable[[], Tensor]] = {
        ATTENTION: lambda: attend(u, config.n_heads),
        PLAIN: lambda: plain_fft(op, u),
        **{name: lambda form=form: op(u, form=form)[0] for name, form in forms.items()},  # type: ignore[misc]
    }
    parameters = (op.A, op.B, op.C)
    state = op.initial_state(batch, device=device)

    def both(name: str) -> None:
        inputs = (u,) if name == ATTENTION else (u, *parameters)
        torch.autograd.grad(outputs[name](), inputs, grad)

    def both_from_a_state(form: str) -> None:
        y, final = op(u, state, form=form)
        torch.autograd.grad((y, final.h), (u, *parameters), (grad, torch.ones_like(final.h)))

    with torch.no_grad():
        want = outputs[PLAIN]()
        apart = {name: float((outputs[name]() - want).abs().max() / want.abs().max()) for name in forms}
    actions = {name: partial(both, name) for name in outputs}
    carried = {f"{name}, from a state": partial(both_from_a_state, FORMS[name]) for name in FROM_A_STATE}
    for action in (*actions.values(), *carried.values()):
        action()
    found = compare({**actions, **carried}, config.rounds, device, reporter, memory_of=actions)
    from_a_state = {name: found["seconds"].pop(f"{name}, from a state") for name in FROM_A_STATE}
    return {"batch": batch, **found, "seconds_from_a_state": from_a_state, "apart": apart}


def published(length: int) -> str:
    """What the paper says of its kernels at a length, against the FFT that was there; it gives no table."""
    if length <= 512:
        return "fused 3.4x"
    if length <= 8192:
        return "block FFT 2x"
    return "state passing 2.3x"


def report(config: FlashConvSettings, found: Found) -> Report:
    device, figures = choose_device(config.device), {}
    for length in config.lengths:
        part = found[f"length-{length}"]
        ms = (units := in_units(part))["ms"]
        speed = {name: ms[PLAIN] / ms[name] for name in forms_at(length)}
        carried = {name: milliseconds(seconds) for name, seconds in part["seconds_from_a_state"].items()}
        over = ms[ATTENTION] / min(ms[name] for name in speed)
        figures[length] = {**units, "over_plain_fft": speed, **part, "over_attention": over, "ms_from_a_state": carried}
    rounds = [
        seconds
        for part in figures.values()
        for seconds in (*part["seconds"].values(), *part["seconds_from_a_state"].values())
    ]
    rows = [
        {
            **part,
            "length": n,
            "published": published(n),
            "ratio": part["ms_from_a_state"][OURS] / part["ms_from_a_state"][PASSING],
        }
        for n, part in figures.items()
    ]

    least, most = min(config.batches), max(config.batches)
    lines = []
    for name in NAMES:
        there = {n: part["ms"][name] / part["batch"] for n, part in figures.items() if name in part["ms"]}
        lines += [Curve([*there], [*there.values()], name, MARKED)] if there else []
    panel = Panel(lines, log="y", ticks=config.lengths, x="length", y="milliseconds a row of the batch")
    return told(
        "flashconv",
        {
            **vars(config),
            "type": device.type,
            "spread": max(map(_spread, rounds)),
            "apart": max(value for part in figures.values() for value in part["apart"].values()),
            "CHUNK": CHUNK,
            "short": min(config.lengths) <= CHUNK,
            "sizes": f"batch {most}" if least == most else f"batches of {least} to {most}",
            "on_a_cpu": " A CPU has none for float32." if device.type == "cpu" else "",
        },
        rows,
        rows,
        rows,
        rows,
        [{"model": model, "speed": speed} for model, speed in PUBLISHED_LRA.items()],
        figures={str(length): part for length, part in figures.items()},
        plots=[curves("flashconv", "Forward and backward against length", panel)],
    )


def _spread(seconds: list[float]) -> float:
    """How far the nearer half of the rounds is from their median, as a fraction of it."""
    middle = statistics.median(seconds)
    return statistics.median(abs(one - middle) for one in seconds) / middle


CLAIM = Claim(
    summary="forward and backward of a long convolution at lengths 256 to 32,768, five ways",
    duration="7 minutes",
    source="Fu et al. 2023 (H3), arXiv:2212.14052",
    settings=FlashConvSettings,
    quick="lengths=[256,8192] batches=[1,1] d_model=64 d_state=16 rounds=2",
    trials=trials,
    report=report,
)
