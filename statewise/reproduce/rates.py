"""Learning rates to choose from: their names, and the one with which a model did best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statewise.errors import ConfigError

__all__ = ["choose_rate", "rate_name", "require_apart"]


def rate_name(rate: float) -> str:
    """As parts, folders and tables have it, in six digits.

    >>> rate_name(2e-3)
    '0.002'
    """
    return f"{rate:g}"


def require_apart(field: str, rates: Sequence[float]) -> None:
    """Errors: ConfigError for no rate, and for two with one name, whose parts would be the same files."""
    names = [rate_name(rate) for rate in rates]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{field}={tuple(rates)}; give at least one rate, each once and apart in its first six digits"
        )


def choose_rate(tuned: Mapping[float, Mapping[str, Any]]) -> float | None:
    """The learning rate with the least loss on the validation split, of those at which the run did not diverge; None if
    it diverged at every one.
    """
    losses = {rate: found["validation_loss"] for rate, found in tuned.items() if found.get("diverged") is None}
    return min(losses, key=losses.__getitem__, default=None)
