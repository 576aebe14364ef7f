"""ListOps drawn by its grammar, many expressions at once, level by level."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from statewise.data.long_range.config import LongRangeDataConfig
from statewise.data.long_range.listops import DIGIT, EOS, INDEX, OPERATOR, OPERATOR_PROBABILITY, OPERATORS, VOCABULARY
from statewise.data.long_range.store import Items, Stored, Write, stored_rows
from statewise.data.progress import Progress
from statewise.data.splits import SPLITS
from statewise.errors import DataError

BATCH = 512  # expressions drawn at once
MAX_FRUITLESS = 200  # batches, one after the other, that gave no new expression


class Level(NamedTuple):
    """All nodes of one depth, those of one parent side by side, in the order of the parents.

    is_operator: (nodes,) bool.  operators, n_args: (operators,), of the nodes that are operators.
    values: (nodes,) the digits; for operators unset.
    """

    is_operator: np.ndarray
    operators: np.ndarray
    n_args: np.ndarray
    values: np.ndarray


class Expressions(NamedTuple):
    """tokens: (steps,) uint8, the expressions one after the other.  lengths, values: (n,)."""

    tokens: np.ndarray
    lengths: np.ndarray
    values: np.ndarray


def draw_expressions(
    generator: np.random.Generator, n: int, *, min_length: int, max_length: int, max_depth: int, max_args: int
) -> Expressions:
    """Those of ``n`` random expressions with an operator at the top whose number of tokens lies between the limits,
    which are not part of it. They have the distribution of :func:`~statewise.data.long_range.listops.draw_expression`.

    Cost:    O(tokens) in numpy, all trees of a depth at once; some 500 tokens an expression with the published limits.
    """
    levels = []
    tree = np.arange(n)  # that each node is in
    is_operator = np.ones(n, bool)
    lengths = np.zeros(n, np.int64)
    for depth in range(1, max_depth + 1):
        lengths += np.bincount(tree, np.where(is_operator, 2, 1), minlength=n).astype(np.int64)
        alive = lengths[tree] < max_length  # the others are too long already, and would grow without bound
        tree, is_operator = tree[alive], is_operator[alive]
        n_operators = int(is_operator.sum())
        operators = generator.integers(len(OPERATORS), size=n_operators)
        n_args = generator.integers(2, max_args, size=n_operators, endpoint=True)
        levels.append((tree, Level(is_operator, operators, n_args, generator.integers(10, size=len(tree)))))
        if not n_operators:
            break
        tree = np.repeat(tree[is_operator], n_args)
        is_operator = generator.random(len(tree)) <= OPERATOR_PROBABILITY
        if depth + 1 == max_depth:
            is_operator[:] = False
    kept = (lengths > min_length) & (lengths < max_length)
    return _lay_out([_only(level, kept[tree]) for tree, level in levels], lengths[kept])


def _only(level: Level, kept: np.ndarray) -> Level:
    """The nodes of some trees: a tree is kept with all of its nodes, so that neighbours stay neighbours."""
    is_operator, operators, n_args, values = level
    of_operators = kept[is_operator]
    return Level(is_operator[kept], operators[of_operators], n_args[of_operators], values[kept])


def _lay_out(levels: list[Level], lengths: np.ndarray) -> Expressions:
    """From the leaves to the roots the values and how many tokens each node takes; then back, where each begins."""
    sizes = [np.ones(len(level.values), np.int64) for level in levels]
    values = [level.values.copy() for level in levels]
    for depth in reversed(range(len(levels) - 1)):
        level = levels[depth]
        if len(level.n_args):
            first = np.cumsum(level.n_args) - level.n_args
            values[depth][level.is_operator] = _evaluate(level, values[depth + 1], first)
            sizes[depth][level.is_operator] = 2 + np.add.reduceat(sizes[depth + 1], first)
    tokens = np.empty(int(lengths.sum()), np.uint8)
    begins = np.cumsum(lengths) - lengths
    for depth, level in enumerate(levels):
        tokens[begins[~level.is_operator]] = DIGIT + level.values[~level.is_operator]
        at, size = begins[level.is_operator], sizes[depth][level.is_operator]
        tokens[at] = OPERATOR + level.operators
        tokens[at + size - 1] = INDEX["]"]
        if len(level.n_args):
            before = np.cumsum(sizes[depth + 1]) - sizes[depth + 1]
            first = np.cumsum(level.n_args) - level.n_args
            begins = np.repeat(at + 1 - before[first], level.n_args) + before
        else:
            break
    return Expressions(tokens, lengths, values[0] if levels else lengths)


def _evaluate(level: Level, arguments: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The value of each operator from those of its arguments, which begin at ``first``."""
    n_args = level.n_args
    at = np.arange(int(n_args.max()))
    there = at < n_args[:, None]
    table = np.where(there, arguments[np.minimum(first[:, None] + at, len(arguments) - 1)], 99)
    table.sort(axis=1)
    rows = np.arange(len(table))
    by_operator = {
        "[MIN": table[:, 0],
        "[MAX": table[rows, n_args - 1],
        "[MED": (table[rows, (n_args - 1) // 2] + table[rows, n_args // 2]) // 2,
        "[SM": np.add.reduceat(arguments, first) % 10,
    }
    return np.choose(level.operators, [by_operator[name] for name in OPERATORS])


def draw_listops(config: LongRangeDataConfig, progress: Progress | None) -> Stored:
    """Rows drawn by the published grammar, each with an end token; no expression is in two splits, or twice in one.

    Test rows are drawn first, then validation, then training rows, from a generator of (seed, split) each: the first
    two do not hang on how many training rows there are.

    Errors:  DataError if the grammar has too few expressions between the limits.
    """
    names = ("min_length", "max_length", "max_depth", "max_args")
    limits = {name: config.resolved(name) for name in names}
    counts = [config.resolved(f"n_{name}") for name in SPLITS]

    def make(write: Write) -> Items:
        seen: set[bytes] = set()
        targets: list[int] = []
        parts: list[int] = []
        for part in (2, 1, 0):
            generator = np.random.default_rng([config.seed, part])
            for tokens, value in _distinct(generator, counts[part], limits, seen):
                write(np.append(tokens, np.uint8(EOS)), np.array([len(tokens) + 1]))
                targets.append(value)
                parts.append(part)
                if progress is not None and len(targets) % 500 == 0:
                    progress(len(targets), sum(counts))
        return Items(np.array(targets), np.array(parts), vocabulary=VOCABULARY)

    return stored_rows(config, [limits, counts, config.seed], make)


def _distinct(
    generator: np.random.Generator, n: int, limits: dict[str, int], seen: set[bytes]
) -> Iterator[tuple[np.ndarray, int]]:
    done = fruitless = 0
    while done < n:
        found = draw_expressions(generator, BATCH, **limits)
        before = done
        ends = np.cumsum(found.lengths)
        for begin, end, value in zip(ends - found.lengths, ends, found.values):
            tokens = found.tokens[begin:end]
            key = hashlib.blake2b(tokens.data, digest_size=16).digest()
            if key not in seen:
                seen.add(key)
                yield tokens, int(value)
                done += 1
                if done == n:
                    return
        fruitless = 0 if done > before else fruitless + 1
        if fruitless == MAX_FRUITLESS:
            described = ", ".join(f"{name}={value}" for name, value in limits.items())
            if not seen:
                raise DataError(
                    f"listops-gen drew no list with {described}: nearly all are shorter or longer; set max_length "
                    "higher, or max_args lower"
                )
            raise DataError(
                f"listops-gen found only {len(seen):,} different lists with {described}; ask for fewer rows, or wider "
                "limits"
            )
