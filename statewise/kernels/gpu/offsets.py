"""Numbers of 32 bits by which a Triton kernel reads or writes, and which could overflow, found in its TTIR.

What each whole number can be, at least and at most, follows from the lines before it. An argument, a program id and a
number from memory are taken to be no more than ``LARGEST``, a million below 2^31. So constants and the steps of a block
may be added to one, two may be subtracted, one may be divided. Two are not added, and none is multiplied or shifted,
unless a division, a remainder or a minimum has made it small: that is what 64 bits are for. What the kernel itself cuts
to 32 bits (``.to(tl.int32)``, as the coordinates of a descriptor are) is taken at its word, and so is what comes out of
a float. Sums over a tile (``tl.sum``, ``tl.cumsum``) of whole numbers are not followed: none of our offsets has one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

LARGEST = 2**31 - 2**20
_PASSES = 8  # over the text, for what loops carry: a number that has not settled by then may be anything
_OPERATION = re.compile(r'(?:(%\w+)(?::(\d+))? = )?"?([a-z]\w*\.[a-z_.\d]+)"?(.*)')
_NAMES = re.compile(r"%\w+(?:#\d+)?")
_WORDS = {"addi": "a sum", "subi": "a difference", "muli": "a product", "shli": "a shift"}
_CORNERS: dict[str, Callable[[int, int], int]] = {  # a result is between those of the least and the largest operands
    "addi": operator.add,
    "subi": operator.sub,
    "muli": operator.mul,
    "minsi": min,
    "maxsi": max,
    "shli": lambda x, y: x << min(max(y, 0), 64),
    "shrsi": lambda x, y: x >> min(max(y, 0), 64),
    "divsi": lambda x, y: x // max(y, 1),
    "remsi": lambda x, y: max(min(x, y - 1), 1 - y),
    "andi": lambda x, y: min(x, y) if min(x, y) >= 0 else max(x, y),
}
_SAME = {"extsi", "splat", "broadcast", "expand_dims", "reshape", "trans", "join", "cat"}
_TOUCHES = {  # the operands that say which memory is touched, or whether
    "tt.addptr": slice(1, 2),
    "tt.load": slice(1, 2),
    "tt.store": slice(2, None),
    "tt.descriptor_load": slice(1, None),
    "tt.descriptor_store": slice(1, -1),
    "scf.for": slice(1, 4),
    "scf.if": slice(0, 1),
    "scf.condition": slice(0, 1),
}


@dataclass(frozen=True)
class _Number:
    """What it can be, the faults on the way to it, and the numbers carried by loops that it comes from."""

    low: int = -LARGEST
    high: int = LARGEST
    faults: frozenset[str] = frozenset()
    carried: frozenset[tuple[int, int]] = frozenset()


_ANYTHING = _Number(-(2**63), 2**63 - 1)


@dataclass
class _Region:
    """What lies between braces. A loop has turns, and arguments that it carries on from where they start."""

    results: list[str]
    line: int
    arguments: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    starts: list[_Number] = field(default_factory=list)
    turns: int = 0
    ends: list[_Number] = field(default_factory=list)


def narrow_offsets(ttir: str) -> list[str]:
    """What could overflow, each with the name that the kernel gives it: offsets of 32 bits; and sums, differences,
    products and shifts of 32 bits on the way to an offset, a descriptor's coordinates, a mask, a loop's bounds or a
    condition."""
    carried: dict[tuple[int, int], _Number] = {}
    for i in range(_PASSES):
        before, walk = dict(carried), _Walk(carried, last=i == _PASSES - 1)
        for k, line in enumerate(ttir.splitlines()):
            walk.read(k, line.strip())
        if carried == before:
            break
    return sorted(walk.found)


class _Walk:
    """One pass over the text: names of sibling regions repeat, so that a later line's is the one that holds."""

    def __init__(self, carried: dict[tuple[int, int], _Number], last: bool) -> None:
        self.carried, self.last = carried, last
        self.known: dict[str, _Number] = {}
        self.regions: list[_Region] = []
        self.found: set[str] = set()

    def read(self, k: int, line: str) -> None:
        if line.startswith("}"):
            if not line.endswith("{"):  # else the other branch of a condition begins
                region = self.regions.pop()
                self.known |= zip(region.results, region.ends)
            return
        if line.startswith(("tt.func", "^")):
            wide = {"i32": _Number(0), "i64": _Number(0, 2**63 - 1)} if line[0] == "t" else {}
            self.known |= {name: wide.get(kind, _ANYTHING) for name, kind in re.findall(r"(%\w+): ([^ ,)]+)", line)}
        match = _OPERATION.match(line.split(" loc(")[0])
        if match is None:
            self.regions += [_Region([], k)] * line.endswith("{")
            return
        result, count, name, rest = match.groups()
        given = [self.known.get(operand, _ANYTHING) for operand in _NAMES.findall(rest)]
        for number in given[_TOUCHES.get(name, slice(0))]:
            self.found |= number.faults
        results = [] if result is None else [f"{result}#{j}" for j in range(int(count))] if count else [result]
        if line.endswith("{"):
            self.regions.append(_Region(results, k))
            if name == "scf.for":
                self._enter(self.regions[-1], rest, given)
            elif name != "scf.if":
                end = _ANYTHING if name == "scf.while" else _outcome(name, rest, given, "")
                self.regions[-1].ends = [end] * len(results)
        elif name == "scf.yield":
            self._leave(self.regions[-1], given)
        elif name == "tt.addptr" and rest.endswith(("i32", "i32>")):
            self.found.add(f"an offset of 32 bits: {_plain(rest.split()[1])}")
        elif result is not None:
            self.known |= dict.fromkeys(results, _outcome(name, rest, given, _plain(result)))

    def _enter(self, loop: _Region, rest: str, given: Sequence[_Number]) -> None:
        names = _NAMES.findall(rest)  # its number, from, to, step; then each argument and what it begins with
        first, end, step = given[1:4]
        faults = first.faults | end.faults | step.faults
        self.known[names[0]] = _Number(first.low, max(first.low, end.high - 1), faults)
        loop.turns = max(0, -(-(end.high - first.low) // max(1, step.low)))
        loop.arguments, loop.starts = names[4::2], list(given[5::2])
        loop.kinds = rest.partition("-> (")[2].rpartition(")")[0].split(", ")
        for j, (name, start) in enumerate(zip(loop.arguments, loop.starts)):
            now = _either(start, self.carried.get((loop.line, j), start))
            self.known[name] = replace(now, carried=start.carried | {(loop.line, j)})

    def _leave(self, region: _Region, given: Sequence[_Number]) -> None:
        if not region.arguments:
            region.ends = [_either(a, b) for a, b in zip(region.ends, given)] or list(given)
        for j, (name, start, then) in enumerate(zip(region.arguments, region.starts, given)):
            key, now = (region.line, j), self.known[name]
            if key in then.carried:  # each turn is taken to add as much as this one
                down, up = (region.turns * step for step in (min(0, then.low - now.low), max(0, then.high - now.high)))
                then = replace(then, low=start.low + down, high=start.high + up)
            end = _fitted(_either(now, then), region.kinds[j], f"a sum in a loop of 32 bits: {_plain(name)}")
            if self.last and end != self.carried.get(key):
                end = _ANYTHING
            self.carried[key] = end = replace(end, carried=start.carried)
            region.ends.append(end)


def _outcome(name: str, rest: str, given: Sequence[_Number], plain: str) -> _Number:
    """What an operation gives. ``rest``: the line behind its name; ``plain``: the result's name."""
    name, faults = name.split(".")[1], frozenset[str]().union(*(number.faults for number in given))
    if name == "constant":
        value = re.match(r" (?:dense<)?(-?\d+)>? :", rest)
        return _Number(int(value[1]), int(value[1])) if value else _Number()
    if name == "make_range":
        return _Number(0, int(rest.partition("end = ")[2].split()[0]) - 1)
    if name in ("get_program_id", "get_num_programs"):
        return _Number(0)
    if name in _CORNERS:
        a, b = given
        ends = [_CORNERS[name](x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        ends += [0] * (name in ("remsi", "andi"))
        found = _Number(min(ends), max(ends), faults, a.carried | b.carried)
    elif name == "select":
        found = replace(_either(*given[1:]), faults=faults)
    elif name == "trunci":
        found = replace(given[0], low=max(given[0].low, -LARGEST), high=min(given[0].high, LARGEST))
    elif name in _SAME:
        found = given[0]
    else:
        return _Number(faults=faults)
    word = _WORDS.get(name)
    return _fitted(found, rest, word and f"{word} of 32 bits: {plain}")


def _either(a: _Number, b: _Number) -> _Number:
    return _Number(min(a.low, b.low), max(a.high, b.high), a.faults | b.faults, a.carried | b.carried)


def _fitted(number: _Number, kind: str, fault: str | None) -> _Number:
    """Within the whole numbers of its type, and with the fault if it could have been outside and they have 32 bits."""
    match = re.search(r"(?:^|[ x])i(8|16|32)>?$", kind)
    bits = int(match[1]) if match else 64
    limit = 2 ** (bits - 1)
    if -limit <= number.low and number.high < limit:
        return number
    if fault and bits < 64:  # said once, and not of all that is computed from it
        low, high = max(-limit, -LARGEST), min(limit - 1, LARGEST)
        return replace(number, low=low, high=high, faults=number.faults | {fault.replace("32 bits", f"{bits} bits")})
    return replace(number, low=max(-limit, number.low), high=min(limit - 1, number.high))


def _plain(name: str) -> str:
    """As the kernel has it: without what makes names unique."""
    return re.sub(r"_\d+$", "", name.removeprefix("%"))
