"""What this machine can do at most: reading memory, products, exponentials. Any speed is a share of one of them."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statewise.native as native
from statewise.benchmark.case import Action, Case, Missing
from statewise.benchmark.processor import file_name, processor
from statewise.benchmark.timing import Progress, time_case
from statewise.data.made_once import cache_folder
from statewise.decoding import PRECISIONS
from statewise.decoding.packing import Packed
from statewise.decoding.product import Product, large
from statewise.decoding.reading import WAYS, Way
from statewise.errors import DataError
from statewise.memory import available_memory
from statewise.native.memory import gives_huge_pages, in_huge_pages, in_small_pages
from statewise.reproduce.hardware import today

FORMAT = 3  # of the kept file; in 2 some products of torch.mm stood as ours
SECONDS = 0.25  # for each ceiling
READ = 2**29  # bytes: more than caches hold, and about what a model of 130M parameters has in float32
SIDE_BY_SIDE = (1, 2, 8)  # rows; which is fastest depends on the processor
ROWS = (2048, 1)  # a batch of tokens, and one
COLUMNS, OUTPUTS = 768, 3072  # the projection into a layer of 130M parameters
EXPONENTIALS = 2**20  # for PyTorch
IN_CACHE, TIMES = 2048, 512  # for ours: numbers in the first cache, and how often they are computed
PAYS = 1.5  # below it, casting eats up what faster products of bfloat16 gain
SMALL_PAGES, HUGE_PAGES = "small pages", "huge pages"


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One of them: the fastest of its ways to do the same.

    amount:  bytes, operations or exponentials of one call
    unit:    "GB/s", "GF/s" (a multiplication and an addition are two operations) or "G/s"
    ways:    by name, what prepares one
    """

    name: str
    setting: str
    unit: str
    amount: float
    ways: Mapping[str, Callable[[], Action]]

    def record(self, *, seconds: float, progress: Progress | None = None) -> dict[str, Any]:
        """JSON data: ``value`` in ``unit`` and ``way`` (the fastest), or None and ``why``."""
        head = {"name": self.name, "setting": self.setting, "unit": self.unit}
        times = time_case(Case(name=self.name, setting=self.setting, sides=self.ways), seconds=seconds)
        if not times.milliseconds:
            return {**head, "value": None, "why": "; ".join(dict.fromkeys(times.missing.values()))}
        way = min(times.milliseconds, key=lambda name: times.milliseconds[name])
        value = float(f"{self.amount / times.milliseconds[way] / 1e6:.4g}")
        if progress is not None:
            progress(f"{self.name}: {value:g} {self.unit}")
        return {**head, "value": value, "way": way}


def reading_name(threads: str, pages: str) -> str:
    return f"reading memory, {threads}, {pages}"


def product_name(precision: str, n_rows: int) -> str:
    return f"product in {precision}, {'one row' if n_rows == 1 else f'{n_rows:,} rows'}"


READING = tuple(reading_name("all threads", pages) for pages in (SMALL_PAGES, HUGE_PAGES))
PRODUCT = (product_name("float32", ROWS[0]),)
EXP = ("exp, PyTorch", "exp, ours")


def all_ceilings(quick: bool = False) -> list[Ceiling]:
    """Each of them. quick: small sizes, to see that they run."""
    return [*_readings(quick), *_decodings(quick), *_products(quick), *_exponentials(quick)]


# -- reading memory ----------------------------------------------------------------------------------------------------


def read_memory(words: Tensor, n_rows: int, n_threads: int) -> Tensor:
    """The sums of each thread's part of the words (int32), modulo 2^32, read as ``n_rows`` rows side by side."""
    sums = torch.empty(n_threads, dtype=torch.int32)
    native.function("read_memory", None, "pplll")(words, sums, words.numel(), n_rows, n_threads)
    return sums


def _readings(quick: bool) -> Iterator[Ceiling]:
    n_bytes = _n_bytes(quick)
    for threads, n_threads in (("one thread", 1), ("all threads", torch.get_num_threads())):
        for pages in (SMALL_PAGES, HUGE_PAGES):
            filled = functools.cache(functools.partial(_filled, n_bytes // 4, pages))
            ways = {_way(n): functools.partial(_reading, filled, n, n_threads) for n in SIDE_BY_SIDE}
            if not native.available():
                ways = {"PyTorch's sum": functools.partial(_summing, filled, n_threads)}
            setting = f"{n_bytes / 2**20:,.0f} MiB"
            name = reading_name(threads, pages)
            yield Ceiling(name=name, setting=setting, unit="GB/s", amount=n_bytes // 4 * 4, ways=ways)


def _n_bytes(quick: bool) -> int:
    free = available_memory()
    return 2**20 if quick else READ if free is None else min(READ, max(2**20, free // 4))


def _way(n_rows: int) -> str:
    return "row after row" if n_rows == 1 else f"{n_rows} rows side by side"


def _filled(n_words: int, pages: str) -> Tensor:
    if pages == HUGE_PAGES and not gives_huge_pages():
        raise Missing("the system does not give huge pages on request")
    ask = in_huge_pages if pages == HUGE_PAGES else in_small_pages
    return ask(torch.empty(n_words, dtype=torch.int32)).fill_(1)


def _reading(filled: Callable[[], Tensor], n_rows: int, n_threads: int) -> Action:
    words = filled()
    return lambda: read_memory(words, n_rows, n_threads)


def _summing(filled: Callable[[], Tensor], n_threads: int) -> Action:
    numbers = filled().view(torch.float32)

    def sum_up() -> Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(n_threads)
        try:
            return numbers.sum()
        finally:
            torch.set_num_threads(before)

    return sum_up


# -- reading weights ---------------------------------------------------------------------------------------------------


def _decodings(quick: bool) -> Iterator[Ceiling]:
    """A decoder's product with one row: every weight read and used once, by each way that a step can ask for them."""
    n_bytes = _n_bytes(quick)
    for precision in PRECISIONS:
        packed = functools.cache(functools.partial(_packed, n_bytes, precision))
        amount = large(COLUMNS, 1, precision).n_bytes  # of its fewest rows, of which the matrix is a multiple
        yield Ceiling(
            name=f"decoding's product, {precision}",
            setting=f"{n_bytes / 2**20:,.0f} MiB, {COLUMNS} columns",
            unit="GB/s",
            amount=max(1, n_bytes // amount) * amount,
            ways={str(way): functools.partial(_decoding, packed, way) for way in WAYS},
        )


def _packed(n_bytes: int, precision: str) -> Packed:
    if not native.available():
        raise Missing(f"the C kernels are not available: {native.why_not()}")
    return large(COLUMNS, n_bytes, precision)


def _decoding(packed: Callable[[], Packed], way: Way) -> Action:
    product, x = Product(packed()), torch.randn(1, COLUMNS)
    return lambda: product(x, way)


# -- products ----------------------------------------------------------------------------------------------------------


def _products(quick: bool) -> Iterator[Ceiling]:
    columns, outputs = (64, 128) if quick else (COLUMNS, OUTPUTS)
    for precision in ("float32", "bfloat16", "int8"):
        for n_rows in ROWS:
            shown = min(n_rows, 32) if quick else n_rows
            sizes = (shown, columns, outputs)
            ways = {"torch.mm": functools.partial(_their_product, *sizes, precision)}
            if precision == "int8":
                ways = {"torch._int_mm": functools.partial(_integer_product, *sizes)}
            if precision == "float32":  # all that our C code multiplies: the rest would be torch.mm under our name
                ways["ours"] = functools.partial(_our_product, *sizes)
            yield Ceiling(
                name=product_name(precision, n_rows),
                setting=f"{shown:,} x {columns} by {columns} x {outputs:,}",
                unit="GF/s",
                amount=2.0 * math.prod(sizes),
                ways=ways,
            )


def _their_product(n_rows: int, columns: int, outputs: int, precision: str) -> Action:
    dtype = getattr(torch, precision)
    x, weight = torch.randn(n_rows, columns).to(dtype), torch.randn(outputs, columns).to(dtype)
    return torch.inference_mode()(lambda: torch.mm(x, weight.t()))


def _our_product(n_rows: int, columns: int, outputs: int) -> Action:
    """The C code itself: ``linear`` leaves small products to PyTorch."""
    from statewise.kernels.linear.native import product

    if not native.available():
        raise Missing(f"the C kernels are not available: {native.why_not()}")
    x, weight = torch.randn(n_rows, columns), torch.randn(outputs, columns)
    return torch.inference_mode()(lambda: product(x, weight, None))


def _integer_product(n_rows: int, columns: int, outputs: int) -> Action:
    x, weight = (torch.randint(-127, 128, (n, columns), dtype=torch.int8) for n in (n_rows, outputs))
    return torch.inference_mode()(lambda: torch._int_mm(x, weight.t()))


# -- exponentials ------------------------------------------------------------------------------------------------------


def repeat_exp2(x: Tensor, n_times: int, n_threads: int) -> Tensor:
    """2^x of float32, computed n_times by each thread: a row each."""
    y = torch.empty(n_threads, x.numel())
    native.function("repeat_exp2", None, "pplll")(x, y, x.numel(), n_times, n_threads)
    return y


def _exponentials(quick: bool) -> Iterator[Ceiling]:
    theirs, n_times = (2**12, 2) if quick else (EXPONENTIALS, TIMES)
    n_threads = torch.get_num_threads()
    for name, amount, setting, way, prepare in (
        (EXP[0], theirs, f"{theirs:,} numbers", "torch.exp", functools.partial(_their_exp, theirs)),
        (
            EXP[1],
            IN_CACHE * n_times * n_threads,
            "in the first cache",
            "exp2 in C",
            functools.partial(_our_exp, n_times),
        ),
    ):
        yield Ceiling(name=name, setting=f"float32, {setting}", unit="G/s", amount=amount, ways={way: prepare})


def _their_exp(length: int) -> Action:
    x = torch.linspace(-20, 0, length)
    y = torch.empty_like(x)
    return lambda: torch.exp(x, out=y)


def _our_exp(n_times: int) -> Action:
    if not native.available():
        raise Missing(f"the C kernels are not available: {native.why_not()}")
    x, n_threads = torch.linspace(-20, 0, IN_CACHE), torch.get_num_threads()
    return lambda: repeat_exp2(x, n_times, n_threads)


# -- measured once, kept, found again ----------------------------------------------------------------------------------


def measure_ceilings(
    *, quick: bool = False, seconds: float = SECONDS, progress: Progress | None = None
) -> dict[str, Any]:
    """All of them as JSON data, with the processor, the threads and the versions.

    quick: small sizes, one call each: whether everything runs, and no figure to trust
    """
    ceilings = all_ceilings(quick)
    found = []
    while ceilings:
        found.append(ceilings.pop(0).record(seconds=0.0 if quick else seconds, progress=progress))  # lets its memory go
    return {**_here(), "quick": quick, "measured": today(), "ceilings": found}


def keep(record: Mapping[str, Any]) -> Path:
    """Writes it into the cache folder, in place of an older one of the same kind of processor and number of threads.

    Errors: DataError if it cannot be written
    """
    path = _path()
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(record, indent=2), "utf-8")
        os.replace(aside, path)
    except OSError as error:
        raise DataError(
            f"cannot save the ceilings in {path.parent}: {error.strerror or error}; "
            "set STATEWISE_CACHE to a folder with room that you may write to"
        ) from error
    return path


def kept() -> dict[str, Any] | None:
    """What was measured before on this kind of processor, with as many threads and as many kernels; else None. A file
    that lacks what readers of the record use counts as none."""
    try:
        record = json.loads(_path().read_text("utf-8"))
        here = _here()
        fits = {name: record[name] for name in here} == here and not record["quick"]
        fits &= isinstance(record["measured"], str) and isinstance(record["ceilings"], list)
        fits &= bool(record["ceilings"]) and all(_is_whole(ceiling) for ceiling in record["ceilings"])
    except (OSError, ValueError, KeyError, TypeError, DataError):  # none, or not of ours
        return None
    return record if fits else None


def _is_whole(ceiling: Mapping[str, Any]) -> bool:
    """Errors: KeyError or TypeError for anything but the record of a ceiling."""
    value = ceiling["value"]
    texts = ("name", "setting", "unit", "why" if value is None else "way")
    return all(isinstance(ceiling[key], str) for key in texts) and (value is None or value > 0)


def highest(ceilings: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[str, float] | None:
    """The highest of those named, its name and its value a second (bytes, operations, exponentials); None if none of
    them was measured."""
    known = [(one["value"], one["name"]) for one in ceilings if one["name"] in names and one["value"] is not None]
    if not known:
        return None
    value, name = max(known)
    return name, 1e9 * value


def bfloat16_gain(record: Mapping[str, Any] | None) -> float | None:
    """How many times as fast as in float32 products of many tokens are in bfloat16; None where that is not known."""
    ceilings = [] if record is None else record["ceilings"]
    found = [highest(ceilings, [product_name(precision, ROWS[0])]) for precision in ("bfloat16", "float32")]
    narrow, full = (None if one is None else one[1] for one in found)
    return None if narrow is None or full is None else narrow / full


def pays(gain: float) -> bool:
    return gain >= PAYS


def whether_bfloat16_pays(record: Mapping[str, Any] | None) -> str:
    """In a line, for whoever decides about ``train.precision``."""
    gain = bfloat16_gain(record)
    if gain is None:
        return "it is unknown whether train.precision=bfloat16 pays here; run: statewise benchmark ceilings"
    speed = f"products in bfloat16 run {gain:.1f}x as fast here as in float32"
    if not pays(gain):
        return f"train.precision=bfloat16 does not pay: {speed}"
    return f"train.precision=bfloat16 pays in wide models, where products take most of a step: {speed}"


def _here() -> dict[str, Any]:
    c_kernels = native.instruction_set() if native.available() else None
    versions = {"format": FORMAT, "torch": torch.__version__, "c_kernels": c_kernels}
    return {"processor": processor(), "threads": torch.get_num_threads(), **versions}


def _path() -> Path:
    return cache_folder() / "ceilings" / file_name(processor(), torch.get_num_threads())
