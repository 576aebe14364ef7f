"""Which form of an operator runs: one pure function over the rules of its family, which you can ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from statewise.errors import InputError
from statewise.operators.folding import is_any


class Rule(NamedTuple):
    """The first of a family's ``rules`` whose condition holds decides.

    holds:  of the length, and of n_taps, how long the filter of a convolution is; 0 for other families
    """

    form: str
    condition: str
    holds: Callable[[int, int], bool]
    reason: str


LONG = 2**40  # steps
SINGLE = "a single step has nothing to gain"
EXACT = "exact mode: every step is computed from the state before it alone, however the sequence is cut"


class Plan(NamedTuple):
    form: str
    reason: str


def up_to(most: int, form: str, reason: str) -> Rule:
    """A rule for short sequences."""
    return Rule(form, f"length <= {most}", lambda length, n_taps: length <= most, reason)


def otherwise(form: str, reason: str, *, condition: str = "otherwise") -> Rule:
    """The last rule of a family, which always holds."""
    return Rule(form, condition, lambda length, n_taps: True, reason)


def plan(rules: Sequence[Rule], *, length: int, n_taps: int = 0) -> Plan:
    """The form that a family with these rules runs in, and why. A family without rules runs as defined.

    A program that is exported for any length uses the form for long ones.
    """
    length = LONG if is_any(length) else length
    for rule in rules:
        if rule.holds(length, n_taps):
            return Plan(rule.form, rule.reason)
    return Plan("recurrent", "no rule for this family, so the definition runs")


def table(families: Iterable[Any]) -> str:
    """The rules of these families as a Markdown table, in the order in which they are tried."""
    lines = ["| family | when | form | why |", "|---|---|---|---|"]
    for family in families:
        lines += [f"| `{family.__name__}` | {r.condition} | `{r.form}` | {r.reason} |" for r in family.rules]
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


def explain(operator: Any, u: Tensor, state: Any = None) -> Explanation:
    """The form that ``operator(u, state)`` runs in, and the reason.

    Errors: InputError for anything but an operator, and as the call itself.

    >>> import torch
    >>> import statewise as sw
    >>> B = C = torch.ones(1, 512, 1, 4)
    >>> print(sw.explain(sw.SSD(-torch.ones(1, 512, 2), B, C), torch.ones(1, 512, 2, 8)))
    SSD runs as 'chunked': matrix products inside chunks, linear in length (other forms: recurrent, quadratic)
    """
    if isinstance(operator, type) or not hasattr(operator, "_plan"):
        given = f"the class {operator.__name__}" if isinstance(operator, type) else f"a {type(operator).__name__}"
        raise InputError(
            f"explain: {given} has no forms to choose from; give an operator (for one that reads in both directions, "
            "its .forward or .backward)"
        )
    operator.check(u, state)
    chosen = operator._plan(u)
    return Explanation(type(operator).__name__, chosen.form, operator._why(chosen, u, state), operator.forms)
