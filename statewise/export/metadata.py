"""What an exported file says of itself, so that it can be used without this package."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from statewise.configuration import to_dict
from statewise.export.parts import Part, rest_of
from statewise.models.base import Model
from statewise.models.encoder import SequenceModel
from statewise.models.registry import model_to_dict

FORMAT_VERSION = 1


def metadata(model: Model, part: Part) -> dict[str, str]:
    """Texts, most of them JSON, by names that begin with "statewise."."""
    config: Any = model.config
    outputs = [name for name in part.outputs if not name.startswith("next.")]
    found: dict[str, Any] = {
        "part": part.name,
        "inputs": [_described(part, name) for name in part.inputs if name not in part.leaves],
        "outputs": outputs,
        "model": model_to_dict(config),
        "format_version": FORMAT_VERSION,
    }
    if part.leaves:
        state = [
            {**_described(part, name), "output": f"next.{name}", "rest": rest_of(part.inputs[name])}
            for name in part.leaves
        ]
        found["state"] = state
    if part.name == "step":
        found["batch"] = len(next(iter(part.inputs.values())))
    if getattr(config, "vocab_size", None) is not None:
        found["vocab_size"] = config.vocab_size
    if isinstance(model, SequenceModel):
        if hasattr(config, "classes"):
            found["classes"] = config.classes
        for name in ("input", "text"):
            if getattr(config, name) is not None:
                found[name] = to_dict(getattr(config, name))
    return {f"statewise.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def _described(part: Part, name: str) -> dict[str, Any]:
    """Sizes that may be any by their names."""
    example: Tensor = part.inputs[name]
    free = part.axes.get(name, {})
    shape = [free.get(axis, size) for axis, size in enumerate(example.shape)]
    return {"name": name, "shape": shape, "dtype": str(example.dtype).split(".")[-1]}
