"""Every bar, with the C kernels and, where they are promised something of their own, without."""

from __future__ import annotations

import functools
from typing import Any

from statewise.benchmark import accuracy
from statewise.benchmark.bars import Bar, Work, growth, memory, share, speed
from statewise.benchmark.case import OURS, OURS_WITHOUT_C, Missing, case_name
from statewise.benchmark.ceilings import EXP, PRODUCT, READING
from statewise.benchmark.measured import Measured
from statewise.benchmark.processor import processor
from statewise.benchmark.workloads import kalman, models, scan, ssd, streaming
from statewise.benchmark.workloads import time_invariant as lti

BOTH = (False, True)
LLAMA = {"float32": 1.1, "bfloat16": 1.3, "int8": 1.3, "int4": 1.3}  # times as fast as llama.cpp
READING_SHARE = {"float32": 0.7, "bfloat16": 0.7, "int8": 0.55, "int4": 0.45}


def scan_bars() -> list[Bar]:
    """Selective scan, batch 1, 1536 channels, N = 16."""
    found = []
    for gradients in BOTH:
        case = case_name("L=2,048", gradients)
        what = "forward and backward" if gradients else "forward"
        work: Any = {"ceilings": EXP, "amount": functools.partial(scan.exponentials, 2048, gradients)}
        found += [
            speed(f"scan: {what}, against mambapy", "scan", case, "mambapy", OURS, 30, **work),
            speed(f"scan: {what}, against eager chunks", "scan", case, "chunked, eager", OURS, 12, **work),
            memory(f"scan: memory {what}, of mambapy's", "scan", case, OURS, "mambapy", 0.05),
            growth(
                f"scan: cost of a token, {what}",
                "scan",
                [case_name(f"L={length:,}", gradients) for length in scan.LONG],
                OURS,
                1.3 if gradients else 1.4,
                "largest over smallest, L=4,096 to 131,072",
            ),
            speed(
                f"scan without C: {what}, against mambapy",
                "scan",
                case,
                "mambapy",
                OURS_WITHOUT_C,
                2 if gradients else 3,
                **work,
            ),
        ]
    found += [_scan_error(OURS, ""), _scan_error(OURS_WITHOUT_C, " without C")]
    found.append(
        Bar(
            name="scan: float32 error of any shape",
            setting="worst of N 1..64, L 1..257, batches, groups, initial and final states",
            bar=3e-6,
            measure=lambda measured: accuracy.scan_error_of_any_shape(OURS, measured.quick),
            at_most=True,
        )
    )
    return found


def _scan_error(side: str, suffix: str) -> Bar:
    return Bar(
        name=f"scan{suffix}: float32 error",
        setting="relative to the float64 definition, L=2,048",
        bar=3e-6,
        measure=lambda measured: accuracy.scan_error(side, measured.quick),
        at_most=True,
    )


def ssd_bars() -> list[Bar]:
    """SSD, batch 1, 24 heads of 64, N = 128."""
    found = []
    for gradients in BOTH:
        case = case_name("L=2,048", gradients)
        what = "forward and backward" if gradients else "forward"
        listing = "published listing"
        work: Any = {"ceilings": PRODUCT, "amount": functools.partial(ssd.operations, ssd.LISTING, gradients)}
        bar = 4 if gradients else 6
        found.append(speed(f"ssd: {what}, against the listing", "ssd", case, listing, OURS, bar, **work))
        if not gradients:
            found.append(
                speed("ssd: forward, against batched matmul", "ssd", case, "batched matmul", OURS, 2.5, **work)
            )
        for length in ssd.LENGTHS:
            found.append(
                speed(
                    f"ssd: {what}, against causal attention",
                    "ssd",
                    case_name(f"L={length:,}", gradients),
                    ssd.ATTENTION,
                    OURS,
                    25 if length == 8192 else 1,
                    ceilings=PRODUCT,
                    amount=functools.partial(ssd.operations, length, gradients),
                )
            )
        found.append(
            growth(
                f"ssd: cost of a token, {what}",
                "ssd",
                [case_name(f"L={length:,}", gradients) for length in ssd.LONG],
                OURS,
                1.3 if gradients else 1.4,
                "largest over smallest, L=4,096 to 65,536",
            )
        )
        name = f"ssd without C: {what}, against the listing"
        found.append(speed(name, "ssd", case, listing, OURS_WITHOUT_C, 1.6, **work))
    return found


def time_invariant_bars() -> list[Bar]:
    """S4D layer 256 x 4096, batch 8; the Cauchy sums of S4; without C half of each."""
    found = []
    layer = case_name(f"S4D layer, L={lti.LAYER:,}", True)
    for side, suffix, part in ((OURS, "", 1.0), (OURS_WITHOUT_C, " without C", 0.5)):
        plain = "everything in memory"
        found += [
            speed(f"S4D layer{suffix}: against the plain one", "filters", layer, plain, side, 8 * part),
            speed(f"S4D layer{suffix}: against two levels", "filters", layer, "two-level", side, 1.3 * part),
        ]
        for gradients in BOTH:
            sums = case_name(f"S4 Cauchy sums, {lti.CAUCHY_NODES:,} nodes", gradients)
            found.append(speed(f"S4 Cauchy sums{suffix}", "filters", sums, plain, side, 50 * part))
        whole = case_name("S4 filter, L=4,096", False)
        found.append(speed(f"S4 whole filter{suffix}", "filters", whole, plain, side, None))
        for gradients in BOTH:
            found.append(_no_large_temporary(side, suffix, gradients))
        found.append(_signal_memory(side, suffix))
    return found


def _no_large_temporary(side: str, suffix: str, gradients: bool) -> Bar:
    """A temporary of (H, N/2, L) complex64 would be of 1 GiB."""
    case = case_name("S4D filter, L=16,384", gradients)

    def measure(measured: Measured) -> float:
        width, length = (8, 256) if measured.quick else (256, 16_384)
        return measured.peak("filters", case, side).above_outputs / (8 * width * lti.PAIRS * length)

    return Bar(
        name=f"S4D filter{suffix}: memory, of one temporary (H, N, L)",
        setting=f"{case}; peak above inputs and outputs, fresh process",
        bar=0.1,
        measure=measure,
        at_most=True,
    )


def _signal_memory(side: str, suffix: str) -> Bar:
    first, last = streaming.SIGNALS[0], streaming.SIGNALS[-1]

    def measure(measured: Measured) -> float:
        peaks = [measured.peak("signal", f"{n:,} steps", side, processes=5).above_outputs for n in (first, last)]
        return peaks[1] / max(1, peaks[0])

    return Bar(
        name=f"S4D layer{suffix}: memory of a long signal in pieces",
        setting=f"no gradient, {last:,} steps over {first:,}; peak above inputs and outputs, least of five processes",
        bar=1.1,
        measure=measure,
        at_most=True,
    )


def decoding_bars() -> list[Bar]:
    """A Mamba of 129 million parameters, one sequence and eight; reading its prompt."""
    found = []
    for weights, types in models.LLAMA_TYPES.items():
        case = models.decoding_name("mamba-130m", weights)
        read: Any = {"ceilings": READING, "amount": functools.partial(models.bytes_read, "mamba-130m", weights)}
        if weights in ("float32", "bfloat16"):
            name = f"decoding {weights}: against Hugging Face"
            found.append(
                speed(name, "decoding", case, models.HUGGING_FACE, OURS, 4, "mamba-130m, one sequence", **read)
            )
        for kind in types:
            name = f"decoding {weights}: against llama.cpp {kind}"
            theirs = f"{models.LLAMA_CPP} {kind}"
            least = LLAMA[weights] if kind == types[0] else 1
            found.append(speed(name, "decoding", case, theirs, OURS, least, "mamba-130m, one sequence", **read))
        work = Work(need=("decoding", case, OURS), **read)
        name = f"decoding {weights}: share of the reading speed"
        found.append(share(name, "mamba-130m, one sequence; bytes of all weights", work, READING_SHARE[weights]))
        found.append(_several(weights))
    found += [_position_time(), _position_memory()]
    against = "prefill: 512 tokens, against"
    products: Any = {"ceilings": PRODUCT, "amount": functools.partial(models.prefill_operations, "mamba-130m")}
    found.append(speed(f"{against} Hugging Face", "prefill", "mamba-130m", models.HUGGING_FACE, OURS, 2, **products))
    found.append(speed(f"{against} llama.cpp", "prefill", "mamba-130m", models.LLAMA_CPP, OURS, None, **products))
    return found


def _several(weights: str) -> Bar:
    one, several = (models.decoding_name("mamba-130m", weights, batch) for batch in (1, models.ROWS))

    def measure(measured: Measured) -> float:
        found = [measured.times("decoding", case) for case in (one, several)]
        for times in found:
            if OURS in times.missing:
                raise Missing(times.missing[OURS])
        return found[1].milliseconds[OURS] / found[0].milliseconds[OURS]

    return Bar(
        name=f"decoding {weights}: {models.ROWS} sequences",
        setting="mamba-130m, time of a step over that of one sequence",
        bar=2,
        measure=measure,
        at_most=True,
        needs=(("decoding", one, OURS), ("decoding", several, OURS)),
    )


def _position_time() -> Bar:
    first, last = (streaming.position_side(n) for n in (streaming.POSITIONS[0], streaming.POSITIONS[-1]))

    def measure(measured: Measured) -> float:
        return measured.times("position", "positions").ratio(last, first)

    return Bar(
        name="decoding: time of a token after 1,000,000",
        setting="over that after 1,000; Mamba of 2 layers of width 64, those before read, 64 timed",
        bar=1.1,
        measure=measure,
        at_most=True,
        needs=(("position", "positions", first), ("position", "positions", last)),
    )


def _position_memory() -> Bar:
    first, last = (streaming.position_side(n) for n in (streaming.POSITIONS[0], streaming.POSITIONS[-1]))

    def measure(measured: Measured) -> float:
        states = [measured.peak("position", "positions", side).outputs for side in (first, last)]
        return states[1] / states[0]

    return Bar(
        name="decoding: state after 1,000,000 tokens",
        setting="bytes over those after 1,000; Mamba of 2 layers of width 64",
        bar=1.0,
        measure=measure,
        at_most=True,
    )


def demo_bars() -> list[Bar]:
    return [
        speed("demo: tokens per second of training, with C over without", "demo", "demo", OURS_WITHOUT_C, OURS, 1.5)
    ]


def training_bars() -> list[Bar]:
    """A step of 130M parameters in bfloat16; something is promised only where the processor multiplies it in tiles."""
    bar = 2.0 if "amx_bf16" in processor()["extensions"] else None
    return [
        speed(f"training {preset}: bfloat16 over float32", "training", preset, OURS, models.BFLOAT16, bar)
        for preset in ("mamba-130m", "mamba2-130m")
    ]


def kalman_bars() -> list[Bar]:
    """float64; the fastest of others stands for all of them."""
    found = [
        Bar(
            name="kalman: nanoseconds of a step",
            setting="one series of 20,000 steps, 2 states, 1 observation: means, factors and log-likelihood",
            bar=250,
            measure=lambda measured: (
                1e6
                * measured.times("kalman", kalman.ONE).milliseconds[OURS]
                / measured.times("kalman", kalman.ONE).length
            ),
            at_most=True,
            needs=(("kalman", kalman.ONE, OURS),),
        ),
        speed("kalman: one series, against pykalman", "kalman", kalman.SHORT, "pykalman", OURS, 20),
    ]
    for case in (kalman.MANY, kalman.GAPS):
        for peer in ("simdkalman", "torch-kf"):
            found.append(speed(f"kalman: {case}, against {peer}", "kalman", case, peer, OURS, 1))
    loop, dynamax = kalman.LOOP, kalman.DYNAMAX
    return [
        *found,
        speed("kalman: gradients, against a loop", "kalman", kalman.GRADIENTS, loop, OURS, 10),
        speed("kalman: gradients, against dynamax", "kalman", kalman.LONG_GRADIENTS, dynamax, OURS, 10),
        speed("kalman: gradients of 1,000 steps, against dynamax", "kalman", kalman.GRADIENTS, dynamax, OURS, None),
    ]


def all_bars() -> list[Bar]:
    """In the order in which they are reported."""
    first = [*scan_bars(), *ssd_bars(), *time_invariant_bars(), *decoding_bars()]
    return [*first, *training_bars(), *demo_bars(), *kalman_bars()]
