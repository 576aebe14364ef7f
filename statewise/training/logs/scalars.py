"""The records of a run as what a log draws: numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {"lr": "learning_rate"}


def scalars(record: Mapping[str, Any], unit: str) -> dict[str, float]:
    """The numbers of a record of the kind "train" or "evaluation", by names in groups; of others nothing.

    How far the run was, in units and in seconds, is under "progress".

    >>> scalars({"kind": "train", "step": 2, "seconds": 0.5, "loss": 1.5, "lr": 1e-3, "tokens": 64}, "tokens")
    {'train/loss': 1.5, 'train/learning_rate': 0.001, 'progress/seconds': 0.5, 'progress/tokens': 64}
    >>> scalars({"kind": "evaluation", "step": 2, "seconds": 0.5, "accuracy": 0.9, "best": True}, "sequences")
    {'validation/accuracy': 0.9}
    """
    kind = record["kind"]
    if kind not in ("train", "evaluation"):
        return {}
    apart = ("step", "seconds", unit)
    group = "train" if kind == "train" else "validation"
    found = {
        f"{group}/{NAMES.get(name, name)}": value
        for name, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in apart
    }
    if kind == "train":  # a look at the validation split counts what it has read itself
        found |= {f"progress/{name}": record[name] for name in ("seconds", unit) if name in record}
    return found
