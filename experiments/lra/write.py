"""Writes the experiment files of this folder from the published settings in statewise.reproduce.lra.

python experiments/lra/write.py
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from statewise.configuration import to_dict
from statewise.reproduce.lra.published import SETTINGS, TASKS, published_run
from statewise.training.config import RunConfig


def without_defaults(config: Any, data: Any) -> Any:
    """The JSON data of a config without the fields that have their default value."""
    if isinstance(data, list):
        return [without_defaults(part, one) for part, one in zip(config, data)]
    if not dataclasses.is_dataclass(config):
        return data
    kept = {"type": data["type"]} if "type" in data else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            kept[field.name] = without_defaults(value, data[field.name])
    return kept


def as_text(run: RunConfig) -> str:
    """The run as JSON, a layer a line."""
    data = without_defaults(run, to_dict(run))
    layers = data["model"].pop("layers")
    text = json.dumps(data, indent=2)
    lines = ",\n".join(f"      {json.dumps(layer)}" for layer in layers)
    return text.replace('"model": {\n', f'"model": {{\n    "layers": [\n{lines}\n    ],\n', 1) + "\n"


def main() -> None:
    for model in SETTINGS:
        for task in TASKS:
            Path(__file__).with_name(f"{model}-{task}.json").write_text(as_text(published_run(model, task)), "utf-8")


if __name__ == "__main__":
    main()
