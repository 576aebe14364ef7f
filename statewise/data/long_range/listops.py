"""ListOps: nested operations on lists of digits, and their value. The grammar, and the official files.

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]   has the value 5

Source:  Nangia & Bowman 2018, arXiv:1804.06028; Tay et al. 2021, arXiv:2011.04006, sec. 2.2.1, whose generator
         (``lra_benchmarks/data/listops.py``) has the probabilities and limits.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from statewise.data.long_range.config import LongRangeDataConfig
from statewise.data.long_range.files import locate
from statewise.data.long_range.store import Items, Stored, Write, identity, stored_rows
from statewise.data.progress import Progress
from statewise.errors import DataError, excerpt, reason

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
END = "]"
VOCABULARY = ("<pad>", "<unk>", "<eos>", *map(str, range(10)), *OPERATORS, END)
INDEX = {token: i for i, token in enumerate(VOCABULARY)}
WRITTEN = {token: i for token, i in INDEX.items() if not token.startswith("<")}  # what a file may have
PAD, EOS, DIGIT, OPERATOR = 0, INDEX["<eos>"], INDEX["0"], INDEX[OPERATORS[0]]
OPERATOR_PROBABILITY = 0.25
FILES = ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv")
PARENTHESES = str.maketrans("", "", "()")
FLAT: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(np.median(values)),  # of an even number the mean of the middle two, rounded down
    "[SM": lambda values: sum(values) % 10,
}


def draw_expression(generator: random.Random, max_depth: int, max_args: int, depth: int = 1) -> list[str]:
    """The tokens of a random expression: an operator with probability 1/4 above the last depth, else a digit; an
    operator has 2 to ``max_args`` arguments, each an expression.
    """
    if depth == max_depth or generator.random() > OPERATOR_PROBABILITY:
        return [str(generator.randrange(10))]
    arguments = [
        draw_expression(generator, max_depth, max_args, depth + 1) for _ in range(generator.randint(2, max_args))
    ]
    return [generator.choice(OPERATORS), *(token for argument in arguments for token in argument), END]


def value_of(tokens: Sequence[str]) -> int:
    """The value, 0 to 9, of the tokens of one expression.

    >>> value_of("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]".split())
    5

    Errors:  DataError for tokens that are not an expression.
    """
    operators: list[str] = []
    arguments: list[list[int]] = [[]]
    for token in tokens:
        if token in FLAT:
            operators.append(token)
            arguments.append([])
        elif token == END and operators and arguments[-1]:
            value = FLAT[operators.pop()](arguments.pop())
            arguments[-1].append(value)
        elif token.isdecimal() and len(token) == 1:
            arguments[-1].append(int(token))
        else:
            raise DataError(
                f"{excerpt(token)} does not fit here in a list of operations; expected {' '.join(VOCABULARY[3:])}"
            )
    if operators or len(arguments[0]) != 1:
        raise DataError(f"{len(tokens)} tokens are not one single list of operations: {excerpt(' '.join(tokens[:8]))}")
    return arguments[0][0]


def find_listops(config: LongRangeDataConfig, progress: Progress | None) -> Stored:
    """The rows of the official files: column Source, an expression with parentheses that say nothing, and Target.

    As in the published runs the tokens are cut to ``max_length`` - 1, and an end token is put behind.

    Errors:  DataError if a file is missing, or a line is not this.
    """
    folder = locate(config, lambda place: all((place / name).is_file() for name in FILES))
    paths = [folder / name for name in FILES]
    limit = config.resolved("max_length") - 1
    files = identity(paths)
    total = sum(size for _, size, _ in files)

    def make(write: Write) -> Items:
        targets: list[int] = []
        parts: list[int] = []
        done = 0
        for part, path in enumerate(paths):
            for number, (source, target) in _lines(path):
                try:
                    tokens = [WRITTEN[token] for token in source.translate(PARENTHESES).split()][:limit]
                except KeyError as error:
                    raise DataError(
                        f"{path}, line {number}: {excerpt(error.args[0])} is not a token of ListOps"
                    ) from None
                if not tokens:
                    raise DataError(f"{path}, line {number}: Source is empty; expected a list of operations")
                write(np.array([*tokens, EOS], np.uint8), np.array([len(tokens) + 1]))
                if target not in VOCABULARY[DIGIT : DIGIT + 10]:
                    raise DataError(f"{path}, line {number}: the target is {excerpt(target)}; expected a digit")
                targets.append(int(target))
                parts.append(part)
                done += len(source)
                if progress is not None and len(targets) % 1000 == 0:
                    progress(done, total)
        return Items(np.array(targets), np.array(parts), vocabulary=VOCABULARY)

    return stored_rows(config, [files, limit], make)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Their numbers, Source and Target."""
    number = 1
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, "excel-tab")
            if next(lines, None) != ["Source", "Target"]:
                raise DataError(f"{path} does not begin with the columns Source and Target; expected a file of ListOps")
            for number, fields in enumerate(lines, 2):
                if len(fields) != 2:
                    raise DataError(f"{path}, line {number} has {len(fields)} fields, expected Source and Target")
                yield number, fields
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error
    if number == 1:
        raise DataError(f"{path} has no rows below its header; expected a file of ListOps")
