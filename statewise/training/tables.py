"""Tables of results on a terminal, no number of which is cut."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from statewise.training.tasks.base import Table

_IN_ONE_LINE = 14  # characters: a cell up to this long stays whole, a longer one may go over several lines


def print_result(table: Table, stream: TextIO | None = None) -> None:
    """Prints a result; where the terminal is narrow headings go over several lines, then as :func:`print_table`."""
    from rich.console import Console

    made = as_rich(table)
    if _least_width(made) > Console(file=sys.stdout if stream is None else stream).width:
        made = as_rich(table, fold_headings=True)
    print_table(made, stream)


def as_rich(table: Table, *, fold_headings: bool = False) -> RichTable:
    """The table for rich to print: names and long cells may go over several lines, numbers do not."""
    from rich.table import Table as RichTable

    made = RichTable(title=table.title, title_justify="left", show_header=any(table.columns))
    for i, column in enumerate(table.columns):
        longest = max((len(row[i]) for row in table.rows if i < len(row)), default=0)
        if i and longest <= _IN_ONE_LINE:
            width = max([1, longest, *map(len, column.split())])
            words = textwrap.wrap(column, width, break_on_hyphens=False) if fold_headings else [column]
            least = max(longest, *map(len, words)) if words else longest
            made.add_column("\n".join(words), justify="right", no_wrap=True, min_width=least)
        else:
            made.add_column(
                column, justify="right" if i else "left", overflow="fold", min_width=min(longest, _IN_ONE_LINE)
            )
    for row in table.rows:
        made.add_row(*row)
    return made


def print_table(table: RichTable, stream: TextIO | None = None) -> None:
    """Prints a table. What does not fit the terminal goes without the spaces between columns, and then beyond it."""
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    console = Console(file=stream)
    if _least_width(table) > console.width:
        table.padding = 0
    console = Console(file=stream, width=max(console.width, _least_width(table)))
    console.print(table, highlight=False, markup=False)


def _least_width(table: RichTable) -> int:
    from rich.console import Console
    from rich.measure import Measurement

    unbounded = Console(width=10_000)
    return Measurement.get(unbounded, unbounded.options, table).minimum
