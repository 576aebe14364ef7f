"""Published tables and claims, measured here: one file each, with its settings, its run and its report.

``statewise reproduce NAME`` on the command line; ``docs/reproduce.md`` says what each does.
"""

from statewise.reproduce.registry import PLACES, Outcome, Reproduction, find, listed, reproduce, settings
from statewise.reproduce.report import Bar, Plot, Report, print_report

__all__ = [
    "PLACES",
    "Bar",
    "Outcome",
    "Plot",
    "Report",
    "Reproduction",
    "find",
    "listed",
    "print_report",
    "reproduce",
    "settings",
]
