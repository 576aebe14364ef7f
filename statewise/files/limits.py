"""How much a file may claim, or expand to, beside the bytes that it has.

A real file of any size passes, since the limit grows with the file; a small one that expands to all of the memory does
not. docs/security.md names the ratios of real files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from statewise.errors import ConfigError, DataError, excerpt

VARIABLE = "STATEWISE_MAX_EXPANSION"
EXPANSION = 100.0
LEAST = 64 << 20  # bytes that any file may expand to, however small
MOST_TOKENS = 1 << 20  # that a vocabulary may have, however short its file; of a longer one as many as it has bytes


def most(n_bytes: int, least: int = LEAST) -> int:
    """How much a file of ``n_bytes`` may expand to: 100 times as much, or ``$STATEWISE_MAX_EXPANSION`` times, and
    ``least`` in any case.

    >>> most(10), most(10_000_000)
    (67108864, 1000000000)

    Errors:  ConfigError if the variable is not a number of at least 1.
    """
    text = os.environ.get(VARIABLE)
    try:
        expansion = EXPANSION if not text else float(text)
    except ValueError:
        expansion = math.nan
    if not 1 <= expansion < 1e12:
        raise ConfigError(
            f"{VARIABLE}={excerpt(text or '')} is not a number from 1 to 1e12; the default is {EXPANSION:g}"
        )
    return max(least, int(n_bytes * expansion))


def require_within(what: str, n: int, n_bytes: int, least: int = LEAST, unit: str = "bytes") -> None:
    """DataError if ``n`` is more than a file of ``n_bytes`` may expand to."""
    if n > most(n_bytes, least):
        raise DataError(too_much(what, f"{n:,} {unit}" if n < 1 << 80 else f"more than 2^80 {unit}", n_bytes))


def too_much(what: str, how_much: str, n_bytes: int) -> str:
    return (
        f"{what} expands to {how_much} from {n_bytes:,} bytes, which looks like an attack on the memory; "
        f"if you trust it, set {VARIABLE} to more than {most(100, 0) / 100:g}"
    )


def check_ids(name: object, vocabulary: Mapping[str, int], size: int) -> None:
    """Errors:  DataError if the largest id is beyond all proportion to a file of ``size`` characters."""
    largest = max(vocabulary.values(), default=0)
    if largest >= max(MOST_TOKENS, size):
        raise DataError(
            f"{name} has the id {largest:,} for {len(vocabulary):,} tokens; expected ids without large gaps: each is a "
            "row of the model's embedding"
        )
