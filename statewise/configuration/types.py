"""The types that fields of configs are declared with: a Python type, and what its values keep to.

They are ``typing.Annotated``, so a type checker sees ``int`` where ``Count`` stands. The conditions can be combined
with any type: ``Annotated[tuple[int, ...], NOT_EMPTY, EACH_ONCE]``, ``Annotated[str, OneOf(TABLE)]``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Condition:
    """What a value of the right type keeps to besides.

    holds:     whether it does
    expected:  in words, after the words for the type: "an integer" + " of at least 1"
    complaint: what is wrong with a value that does not
    """

    holds: Callable[[Any], bool]
    expected: str = ""
    complaint: str = "is out of range"


@dataclass(frozen=True)
class Words:
    """What is expected in other words than those of the type and its conditions."""

    text: str


@dataclass(frozen=True)
class OneOf:
    """One of these names, as ``Literal`` has them, where they are the keys of a table. The type is still ``str``."""

    values: Collection[Any]


def at_least(low: float) -> Condition:
    """
    >>> at_least(2).holds(2), at_least(2).holds(1.5), at_least(2).expected
    (True, False, ' of at least 2')
    """
    return Condition(lambda x: x >= low, f" of at least {low}")


def above(low: float) -> Condition:
    return Condition(lambda x: x > low, f" above {low}")


def at_most(high: float) -> Condition:
    return Condition(lambda x: x <= high, f" and at most {high}")


def from_to(low: float, high: float, words: str = "") -> Condition:
    """Both ends are in. ``words``: how ``high`` is written, where that is not its digits."""
    return Condition(lambda x: low <= x <= high, f" from {low} to {words or high}")


FINITE = Condition(math.isfinite, "", "is not finite")
EVEN = Condition(lambda x: x % 2 == 0, ", even", "is odd")
NOT_EMPTY = Condition(bool, ", not empty", "is empty")
RISING = Condition(lambda xs: all(a < b for a, b in itertools.pairwise(xs)), ", rising")
EACH_ONCE = Condition(lambda xs: len(set(xs)) == len(xs), ", each once", "has a value twice")

# Integers
Count = Annotated[int, at_least(1)]
AtLeastTwo = Annotated[int, at_least(2)]
Width = Annotated[int, from_to(1, 2**20)]  # of a layer that is built, without memory, to see whether it can be
Depth = Annotated[int, from_to(1, 10_000)]  # how many layers are made of a number: each is there in memory
Natural = Annotated[int, at_least(0)]
EvenCount = Annotated[int, at_least(2), EVEN]
EvenWidth = Annotated[Width, EVEN]
Seed = Annotated[int, from_to(0, 2**32 - 1, "2**32 - 1")]
LongSeed = Annotated[int, from_to(0, 2**63 - 1, "2**63 - 1")]

# Numbers. A plain ``float`` may be infinite; none may be NaN
Finite = Annotated[float, FINITE]
Positive = Annotated[float, FINITE, above(0)]
Limit = Annotated[float, above(0)]  # which may be infinite
NonNegative = Annotated[float, FINITE, at_least(0)]
Ratio = Annotated[float, from_to(0, 1)]
Fraction = Annotated[float, Condition(lambda x: 0 <= x < 1, " of at least 0 and below 1")]
Share = Annotated[float, Condition(lambda x: 0 < x <= 1, " above 0 and at most 1")]

# Tuples, as ``Distinct[Seed]``
NonEmpty = Annotated[tuple[T, ...], NOT_EMPTY]
Distinct = Annotated[tuple[T, ...], NOT_EMPTY, EACH_ONCE]

# Names and paths
Name = Annotated[str, NOT_EMPTY]

# Ranges: the lower end, and the upper one
PositiveRange = Annotated[
    tuple[float, float],
    Condition(lambda ends: 0 < ends[0] <= ends[1] < math.inf),
    Words("two numbers, 0 < low <= high"),
]
OpenRange = Annotated[
    tuple[float, float], Condition(lambda ends: 0 <= ends[0] < ends[1]), Words("two numbers, 0 <= low < high")
]
