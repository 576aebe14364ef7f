"""The primitives on the card: the canary of each, and the times of Triton, PyTorch and others beside the limits."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from statewise.benchmark.case import forward_and_backward
from statewise.benchmark.gpu import peers, timing
from statewise.benchmark.gpu.stages import Item, Settings, Skipped
from statewise.benchmark.peers.ssd import paper_listing
from statewise.kernels import backend, gpu
from statewise.kernels.fft_convolution import fft_convolution
from statewise.kernels.gated_rms_norm import gated_rms_norm
from statewise.kernels.linear_cross_entropy import linear_cross_entropy
from statewise.kernels.rms_norm import rms_norm
from statewise.kernels.selective_scan import selective_scan
from statewise.kernels.short_convolution import short_convolution
from statewise.kernels.ssd import ssd

Function = Callable[..., Tensor]


@functools.cache
def limits(device: torch.device, quick: bool) -> tuple[float, float]:
    """Bytes and operations in bfloat16 a second that the card reaches."""
    return timing.bandwidth(device, 2**20 if quick else 2**31), timing.products(device, 64 if quick else 8192)


def ceilings(settings: Settings) -> dict[str, Item]:
    device = torch.device(settings.device)

    def measured() -> dict[str, Any]:
        n_bytes, operations = limits(device, settings.quick)
        return {"gigabytes_per_second": n_bytes / 1e9, "teraflops_bfloat16": operations / 1e12}

    return {"copy and torch.mm": measured}


def canaries(settings: Settings) -> dict[str, Item]:
    """Every kernel's verdict, and how long the first check and the second, with what is compiled already, take."""
    reason = gpu.why_not()
    if reason is not None:
        raise Skipped(reason)
    if settings.device != "cuda" and not gpu.interprets():
        raise Skipped("Triton's kernels need a GPU, or TRITON_INTERPRET=1")
    from statewise.kernels.gpu import canary

    def check(kernel: str) -> dict[str, Any]:
        seconds = []
        for _ in range(2):
            begun = time.perf_counter()
            fault = canary.check(kernel, torch.device(settings.device))
            seconds.append(time.perf_counter() - begun)
        return {"trusted": fault is None, "failed": fault, "first_ms": 1e3 * seconds[0], "again_ms": 1e3 * seconds[1]}

    return {kernel: partial(check, kernel) for kernel in gpu.KERNELS}


@dataclass(frozen=True)
class Case:
    """inputs: of the device; ours: called under ``kernels.use``; others: by name; n_bytes and operations: of a forward
    call, the least that any way of doing it has; both are about 2.5 and 3 times as many with the gradients"""

    kernel: str
    tokens: int
    inputs: Callable[[torch.device], Sequence[Tensor]]
    ours: Function
    others: dict[str, Function]
    n_bytes: float
    operations: float = 0.0
    prepared: dict[str, Callable[..., Sequence[Tensor]]] = field(default_factory=dict)  # inputs of others, by name


def times(settings: Settings) -> dict[str, Item]:
    """Each case, side and direction."""
    found: dict[str, Item] = {}
    for name, case in _cases(settings.quick).items():
        for gradients in (False, True):
            way = "forward and backward" if gradients else "forward"
            for side in ("PyTorch", "Triton", *case.others):
                found[f"{name}: {side}, {way}"] = partial(_measure, settings, name, side, gradients)
    return found


@functools.lru_cache(maxsize=1)
def _inputs(name: str, device: torch.device, quick: bool) -> Sequence[Tensor]:
    torch.manual_seed(0)
    return _cases(quick)[name].inputs(device)


def _measure(settings: Settings, name: str, side: str, gradients: bool) -> dict[str, Any]:
    case, device = _cases(settings.quick)[name], torch.device(settings.device)
    if side == "Triton":
        if case.kernel not in gpu.KERNELS:
            raise Skipped("no Triton kernel of it yet")
        if gpu.why_not() is not None or (device.type != "cuda" and not gpu.interprets()):
            raise Skipped(gpu.why_not() or "Triton's kernels need a GPU")
    tensors = _inputs(name, device, settings.quick)
    given = case.prepared[side](*tensors) if side in case.prepared else tensors
    function = case.others.get(side, case.ours)
    chosen = "triton" if side == "Triton" else "torch"

    def action() -> Any:
        with backend.use(chosen):
            return forward_and_backward(function, given) if gradients else torch.no_grad()(function)(*given)

    with backend.use("torch"), torch.no_grad():
        want = case.ours(*tensors).double()
    got = action()
    y = (got[0] if gradients else got).detach().double()
    error = float((y - want).abs().max() / want.abs().max().clamp(min=1e-9))
    del got, y, want
    taken = timing.milliseconds(action, device, seconds=0.0 if settings.quick else 0.4)
    n_bytes, operations = case.n_bytes * (2.5 if gradients else 1), case.operations * (3 if gradients else 1)
    per_second = limits(device, settings.quick)
    shares = [timing.share(n_bytes, per_second[0], taken), timing.share(operations, per_second[1], taken)]
    return {
        "milliseconds": taken,
        "tokens_per_second": case.tokens / taken * 1e3,
        "roofline_share": max(shares),
        "bound": "bytes" if shares[0] >= shares[1] else "products",
        "difference_from_pytorch": error,
        "peak_bytes": timing.peak_bytes(action, device),
    }


@functools.cache
def _cases(quick: bool) -> dict[str, Case]:
    b, length = (1, 128) if quick else (4, 4096)
    h, p, n = (2, 16, 16) if quick else (128, 64, 128)
    d, width, vocab = (32, 32, 64) if quick else (1536, 2048, 50_288)
    dtype, tokens = torch.bfloat16, b * length
    few = tokens // 4  # tokens of the loss

    def draw(device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
        return [torch.randn(shape, device=device) for shape in shapes]

    def heads(device: torch.device) -> list[Tensor]:
        x, dt, A, B, C = draw(device, (b, length, h, p), (b, length, h), (h,), (b, length, 1, n), (b, length, 1, n))
        return [x.to(dtype), dt.abs() / 10, -A.abs(), B.to(dtype), C.to(dtype)]

    def our_ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return ssd(x, dt * A, B, C, x.new_zeros(b, h, p, n, dtype=torch.float32), dt=dt)[0]

    def listing(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return paper_listing(x * dt[..., None], dt * A, B.float(), C.float())  # in float32: decays are

    def channels(device: torch.device) -> list[Tensor]:
        u, dt, A, B, C = draw(device, (b, length, d), (b, length, d), (d, 16), (b, length, 1, 16), (b, length, 1, 16))
        return [u.to(dtype), (dt.abs() / 10).to(dtype), -A.abs(), B.to(dtype), C.to(dtype)]

    def our_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return selective_scan(u, dt, A, B, C, A.new_zeros(b, d, 16))[0]

    def rows(device: torch.device) -> list[Tensor]:
        x, z, weight = draw(device, (tokens, width), (tokens, width), (width,))
        return [x.to(dtype), z.to(dtype), weight]

    def steps(device: torch.device) -> list[Tensor]:
        x, taps = draw(device, (b, length, width), (width, 4))
        return [x.to(dtype), taps]

    def our_convolution(x: Tensor, taps: Tensor) -> Tensor:
        return short_convolution(x, taps, taps.new_zeros(b, 3, width), activation="silu")

    def sequences(device: torch.device) -> list[Tensor]:
        x, taps = draw(device, (b, length, width), (width, length))
        return [x.to(dtype), taps * torch.exp(-8 / length * torch.arange(length, device=device))]

    def labelled(device: torch.device) -> list[Tensor]:
        x, weight = draw(device, (few, width), (vocab, width))
        return [x.to(dtype), (weight / width**0.5).to(dtype), torch.randint(vocab, (few,), device=device)]

    their_ssd = {"mamba_ssm": peers.mamba_ssm_ssd, "fla": peers.fla_ssd, "published listing": listing}
    inner = tokens * h * p
    sizes = f"{b} x {length} tokens"
    return {
        f"SSD, {h} heads of {p}, N={n}, {sizes}": Case(
            "ssd",
            tokens,
            heads,
            our_ssd,
            their_ssd,
            4.0 * inner + 4 * tokens * (h + n),
            4.0 * inner * n,
            {"fla": peers.fla_inputs},
        ),
        f"selective scan, {d} channels, N=16, {sizes}": Case(
            "selective_scan",
            tokens,
            channels,
            our_scan,
            {"mamba_ssm": peers.mamba_ssm_scan},
            6.0 * tokens * d,
            prepared={"mamba_ssm": peers.mamba_ssm_inputs},
        ),
        f"short convolution, {width} channels, {sizes}": Case(
            "short_convolution", tokens, steps, our_convolution, {}, 4.0 * tokens * width
        ),
        f"long convolution, {width} channels, {sizes}": Case(
            "fft_convolution", tokens, sequences, fft_convolution, {}, 4.0 * tokens * width + 4.0 * length * width
        ),
        f"RMSNorm, {width}, {sizes}": Case(
            "rms_norm", tokens, lambda device: rows(device)[::2], rms_norm, {}, 4.0 * tokens * width
        ),
        f"gated RMSNorm, {width}, {sizes}": Case(
            "gated_rms_norm", tokens, rows, gated_rms_norm, {}, 6.0 * tokens * width
        ),
        f"linear cross-entropy, {width} to {vocab}, {few} tokens": Case(
            "linear_cross_entropy",
            few,
            labelled,
            linear_cross_entropy,
            {},
            2.0 * width * (few + vocab),
            2.0 * few * width * vocab,
        ),
    }
