"""Exported files as somebody has them who has onnxruntime and numpy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


class Loaded:
    """``file(name=array, ...)`` gives the outputs by their names; the state, if there is one, is carried on."""

    def __init__(self, path: Path, batch: int = 1) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.leaves = json.loads(self.metadata.get("statewise.state", "[]"))
        self.state = rest(self.leaves, batch)

    def __call__(self, **given: Any) -> dict[str, Any]:
        found = dict(zip(self.outputs, self.session.run(None, {**given, **self.state})))
        self.state = {leaf["name"]: found[leaf["output"]] for leaf in self.leaves}
        return found


def rest(leaves: list[dict[str, Any]], batch: int) -> dict[str, Any]:
    """The state before the first step: a size that may be any is the batch, or a history without any step."""
    sizes = [[batch if n == "batch" else 0 if isinstance(n, str) else n for n in leaf["shape"]] for leaf in leaves]
    return {leaf["name"]: np.full(size, leaf["rest"], leaf["dtype"]) for leaf, size in zip(leaves, sizes)}


def difference(got: Any, want: Any) -> float:
    """The largest, relative to the largest wanted; infinite where something is no number."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    found = np.abs(got - want).max() / np.abs(want).max()
    return float(found) if np.isfinite(found) else float("inf")
