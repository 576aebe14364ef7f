"""Published claims, measured here: one module each, with what was published, its settings, its trials and its report.

``statewise reproduce NAME`` on the command line; ``docs/reproduce.md`` says what each does.
"""

from statewise.reproduce.claim import PLACES, Claim, Outcome, find, listed, reproduce, settings
from statewise.reproduce.report import Bar, Plot, Report, print_report

__all__ = [
    "PLACES",
    "Bar",
    "Claim",
    "Outcome",
    "Plot",
    "Report",
    "find",
    "listed",
    "print_report",
    "reproduce",
    "settings",
]
