"""Which form of an operator runs: one pure function over one table, and how to ask it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from statewise.errors import InputError


class Call(NamedTuple):
    """What the rules look at. n_taps: of a ``CausalConvolution``"""

    length: int
    n_taps: int = 0


class Rule(NamedTuple):
    """The first rule of a family whose condition holds decides."""

    family: str
    form: str
    condition: str
    holds: Callable[[Call], bool]
    reason: str


class Plan(NamedTuple):
    form: str
    reason: str


def _always(call: Call) -> bool:
    return True


def _up_to(most: int) -> Callable[[Call], bool]:
    return lambda call: call.length <= most


_SINGLE = "a single step has nothing to gain"
_FEW = "fewer operations than the powers of A that the chunks need"
_CONVOLVE = "from rest one FFT convolution, from a state chunks of matrix products: near-linear in length"

RULES: tuple[Rule, ...] = (
    Rule("DenseLTI", "recurrent", "length <= 16", _up_to(16), _FEW),
    Rule("DenseLTI", "convolve", "otherwise", _always, _CONVOLVE),
    Rule("DiagonalPlusLowRank", "recurrent", "length <= 8", _up_to(8), _FEW),
    Rule("DiagonalPlusLowRank", "convolve", "otherwise", _always, _CONVOLVE),
    Rule("DiagonalLTI", "recurrent", "length <= 1", _up_to(1), _SINGLE),
    Rule("DiagonalLTI", "scan", "length <= 16", _up_to(16), "a few vectorised steps over a small array of states"),
    Rule("DiagonalLTI", "convolve", "otherwise", _always, _CONVOLVE),
    Rule(
        "CausalConvolution",
        "direct",
        "n_taps <= 16 or length <= 8",
        lambda call: call.n_taps <= 16 or call.length <= 8,
        "one multiply-add over the sequence for each tap",
    ),
    Rule("CausalConvolution", "fft", "otherwise", _always, "O(log n_taps) for each step instead of O(n_taps)"),
    Rule("SelectiveDiagonal", "scan", "always", _always, "one kernel over all steps, without an array of states"),
    Rule("SSD", "recurrent", "length <= 1", _up_to(1), _SINGLE),
    Rule("SSD", "quadratic", "length <= 16", _up_to(16), "one small chunk, no state in between"),
    Rule("SSD", "chunked", "otherwise", _always, "matrix products inside chunks, linear in length"),
)


def plan(family: str, *, length: int, n_taps: int = 0) -> Plan:
    """The form that a family runs in at a length, and why. A family without rules (one of your own) runs as written.

    n_taps: see :class:`Call`.
    """
    call = Call(length, n_taps)
    for rule in RULES:
        if rule.family == family and rule.holds(call):
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


def explain(operator: Any, u: Tensor, state: Any = None) -> Explanation:
    """The form that ``operator(u, state)`` runs in, and the reason.

    Errors: InputError for what is no operator, and as the call itself.

    >>> import torch
    >>> import statewise as sw
    >>> B = C = torch.ones(1, 512, 1, 4)
    >>> print(sw.explain(sw.SSD(-torch.ones(1, 512, 2), B, C), torch.ones(1, 512, 2, 8)))
    SSD runs as 'chunked': matrix products inside chunks, linear in length (other forms: recurrent, quadratic)
    """
    if isinstance(operator, type) or not hasattr(operator, "_plan"):
        given = f"the class {operator.__name__}" if isinstance(operator, type) else f"a {type(operator).__name__}"
        raise InputError(
            f"explain: {given} has no forms to choose from; give an operator (of one that reads in both directions its "
            ".forward and .backward)"
        )
    operator.check(u, state)
    chosen = operator._plan(u)
    return Explanation(type(operator).__name__, chosen.form, operator._why(chosen, u, state), operator.forms)
