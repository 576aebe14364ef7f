"""Which form of an operator runs: one pure function over one table, and how to ask it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Rule(NamedTuple):
    """The first rule of a family whose condition holds decides."""

    family: str
    form: str
    condition: str
    holds: Callable[[int], bool]
    reason: str


class Plan(NamedTuple):
    form: str
    reason: str


RULES: tuple[Rule, ...] = (
    Rule("DiagonalLTI", "recurrent", "length <= 1", lambda length: length <= 1, "a single step has nothing to gain"),
    Rule(
        "DiagonalLTI", "scan", "otherwise", lambda length: True, "O(sqrt(length)) vectorised steps instead of O(length)"
    ),
    Rule(
        "CausalConvolution", "direct", "always", lambda length: True, "one multiply-add over the sequence for each tap"
    ),
    Rule("SSD", "recurrent", "length <= 1", lambda length: length <= 1, "a single step has nothing to gain"),
    Rule("SSD", "quadratic", "length <= 16", lambda length: length <= 16, "one small chunk, no state in between"),
    Rule("SSD", "chunked", "otherwise", lambda length: True, "matrix products inside chunks, linear in length"),
)


def plan(family: str, *, length: int) -> Plan:
    """The form that a family runs in at a length, and why. A family without rules (one of your own) runs as written."""
    for rule in RULES:
        if rule.family == family and rule.holds(length):
            return Plan(rule.form, rule.reason)
    return Plan("recurrent", "no rule for this family, so the definition runs")


def table() -> str:
    """The rules as a Markdown table, in the order in which they are tried."""
    lines = ["| family | when | form | why |", "|---|---|---|---|"]
    lines += [f"| `{rule.family}` | {rule.condition} | `{rule.form}` | {rule.reason} |" for rule in RULES]
    return "\n".join(lines)


class Explanation(NamedTuple):
    """What ran and why; printing it gives one line."""

    operator: str
    form: str
    reason: str
    forms: tuple[str, ...]

    def __str__(self) -> str:
        others = ", ".join(form for form in self.forms if form != self.form) or "none"
        return f"{self.operator} runs as {self.form!r}: {self.reason} (other forms: {others})"


def explain(operator: Any, u: Tensor) -> Explanation:
    """The form that ``operator(u)`` runs in at this length, and the reason.

    >>> import torch
    >>> import statewise as sw
    >>> B = C = torch.ones(1, 512, 1, 4)
    >>> print(sw.explain(sw.SSD(-torch.ones(1, 512, 2), B, C), torch.ones(1, 512, 2, 8)))
    SSD runs as 'chunked': matrix products inside chunks, linear in length (other forms: recurrent, quadratic)
    """
    family = type(operator).__name__
    chosen = plan(family, length=u.shape[1])
    return Explanation(family, chosen.form, chosen.reason, operator.forms)
