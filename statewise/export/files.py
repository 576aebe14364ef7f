"""An exported part of a model as a file of torch.export or ONNX, which is compared with the model before it gets its
name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from statewise.checkpoints.atomic import take_free_name, write_file
from statewise.errors import CheckpointError, InputError
from statewise.export.comparison import Run, largest_difference
from statewise.export.metadata import metadata
from statewise.export.onnx_file import onnx_program, require_onnx, save_onnx
from statewise.export.parts import Part
from statewise.export.program import trace
from statewise.export.step import build_part, default_part, require_program
from statewise.models.base import Model

# Of the largest output: far above the rounding of float32, or of narrower numbers, and far below another model's.
TOLERANCE, NARROW_TOLERANCE = 1e-3, 5e-2


class ExportedFile(NamedTuple):
    """n_bytes: of the file, and of the weights beside it, if there are any
    n_operations: nodes of the graph   largest_difference: of the first outputs from the model's, relative to the
    largest   part: "step", "prefill", "stream" or "whole" """

    path: Path
    n_bytes: int
    n_operations: int
    largest_difference: float
    part: str = "step"


def export_file(model: Model, path: str | Path, *, part: str | None = None, batch: int | None = None) -> ExportedFile:
    """:func:`export_onnx` for a name that ends in ".onnx"; for a name that ends in ".pt2", what ``torch.export.save``
    writes of :func:`~statewise.export.step.export_step`, with the same metadata in its extra file "statewise.json".

    Errors:  InputError for another ending, and for a FILE.pt2 of any part but the step; otherwise as these two.
    """
    path = Path(path)
    _require_ending(path, ".onnx", ".pt2")
    if path.suffix == ".onnx":
        return export_onnx(model, path, part=part, batch=batch)
    if part not in (None, "step"):
        raise InputError(f'{path}: a FILE.pt2 holds a step, which has fixed shapes; write part="{part}" as FILE.onnx')
    _require_free(path, _beside(path))
    require_program(model)
    step = build_part(model, "step", batch)
    program = trace(step)
    extra = {"statewise.json": json.dumps(metadata(model, step))}

    def save(hidden: Path) -> Run:
        torch.export.save(program, hidden, extra_files=extra)
        module = torch.export.load(hidden).module()
        return lambda inputs: module(*inputs)

    n_operations = sum(node.op == "call_function" for node in program.graph.nodes)
    return _write(model, step, path, n_operations, save)


def export_onnx(model: Model, path: str | Path, *, part: str | None = None, batch: int | None = None) -> ExportedFile:
    """Writes a part of a float32 model as ONNX, for onnxruntime and other runtimes.

    part:  "step": one step of each of ``batch`` rows, on a state (see :func:`~statewise.export.step.export_step`)
           "prefill": for a language model: any number of rows of tokens, of any length, from a state to a state
           "stream": the same for a classifier or regressor, which reads rows as they arrive
           "whole": for a classifier or regressor: any number of whole rows, of any length
           None: the step for a language model, whole rows for all others
    batch: rows of a step, which are fixed (1 if not given)

    Inputs:   "tokens" int64, or "x", raw numbers, which the graph scales as the model does: float64 if they are scaled,
              else float32. (batch,) or (batch, d_input) of a step, else (batch, length) or (batch, length,
              d_input). "lengths" (batch,) int64, the steps of each right-padded row; not for a step, and not if
              all rows have one length. Each leaf of the state by its name (:func:`state_names`), if there is one
    Outputs:  "logits" float32, for a language model those after the last token of each row; for a classifier
              "probabilities" as well; for a regressor "values". Then each leaf, with "next." before its name
    Metadata: "statewise.part"; "statewise.inputs", "statewise.outputs" and "statewise.state", JSON: the name, shape and
              dtype of each, a variable size as a name, and for a leaf its output and its numbers at rest;
              "statewise.classes", the names of a classifier's classes; "statewise.input" or "statewise.text", what the
              model's config says of raw numbers, or of texts; "statewise.batch", "statewise.vocab_size",
              "statewise.model" (the configuration, in JSON) and "statewise.format_version".

    Weights above 1.5 GB are in a second file, ``path`` with ".data" added, which has to stay beside the first. The
    files appear under their names complete, after a check that onnxruntime gives the model's own outputs: over 16
    steps, over three pieces of ragged lengths, or on two batches of whole rows, but never beyond ``max_positions``.
    An existing file with one of the names is not changed.

    Cost:    seconds for each layer; memory for the parameters and for the file. In onnxruntime the recurrences are
             loops over steps, or over chunks of 32 in time-invariant layers, and attention holds (batch, n_heads,
             length, length) scores.
    Errors:  InputError for an unknown part, for one that the model does not have
             (:func:`~statewise.export.step.refusal`), for a name that does not end in ".onnx", for a model that is not
             float32 on the CPU, and if a package of the extra "onnx" is missing. NotFiniteError if the model's own
             outputs are not finite. CheckpointError if there is a file already, if it cannot be written, or if
             onnxruntime computes something different. An error leaves neither file, unless both are complete.
    """
    path = Path(path)
    _require_ending(path, ".onnx")
    _require_free(path, _beside(path))
    built = build_part(model, default_part(model) if part is None else part, batch)
    require_onnx(model)
    exported = onnx_program(trace(built), built, metadata(model, built))
    n_operations = sum(1 for _ in exported.model.graph)
    return _write(model, built, path, n_operations, lambda hidden: save_onnx(exported, hidden))


def _write(model: Model, part: Part, path: Path, n_operations: int, save: Callable[[Path], Run]) -> ExportedFile:
    """In a hidden folder, with all its weights, and under its own name once what was written is as the model."""
    difference = 0.0
    found: dict[Path, os.stat_result] = {}  # the files, by the names that they are to have
    head: torch.nn.Linear = model.head  # type: ignore[assignment]
    tolerance = NARROW_TOLERANCE if head.weight.dtype.itemsize < 4 else TOLERANCE
    weights = _beside(path)

    def write(hidden: Path) -> None:
        nonlocal difference
        difference = largest_difference(model, part, save(hidden))
        if not difference <= tolerance:
            what = "values" if part.outputs[0] == "values" else "logits"
            raise CheckpointError(
                f"{path}: the exported {part.name}'s {what} differ from the model's by {difference:.1e} relative to "
                "the largest; nothing was written"
            )
        for place, file in ((path, hidden), (weights, _beside(hidden))):
            if file.exists():
                with file.open("rb+") as written:
                    os.fsync(written.fileno())
                found[place] = file.stat()
        if weights in found and not take_free_name(_beside(hidden), weights):  # the file is never there without them
            _refuse(weights)

    try:
        write_file(path, sum(p.numel() * p.element_size() for p in model.parameters()), write, may_replace=_refuse)
    except BaseException:
        if not _is(path, found.get(path)) and _is(weights, found.get(weights)):
            weights.unlink()
        raise
    n_bytes = sum(file.st_size for file in found.values())
    return ExportedFile(path, n_bytes, n_operations, difference, part.name)


def _require_ending(path: Path, *endings: str) -> None:
    if path.suffix not in endings:
        which = " or ".join(f"FILE{ending}" for ending in endings)
        raise InputError(f"{path}: a model is exported as {which}; give a name with that ending")


def _require_free(*places: Path) -> None:
    for place in places:
        if os.path.lexists(place):
            _refuse(place)


def _refuse(place: Path) -> None:
    raise CheckpointError(f"{place} exists and is not overwritten; choose another name, or remove it")


def _is(place: Path, file: os.stat_result | None) -> bool:
    """Whether it is this file that has the name."""
    return file is not None and os.path.lexists(place) and os.path.samestat(place.lstat(), file)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".data")
