"""An exported step as a file: of torch.export, or of ONNX; compared with the model before it gets its name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.checkpoints.atomic import take_free_name, write_file
from statewise.errors import CheckpointError, InputError, NotFiniteError
from statewise.export.onnx_file import onnx_step, require_onnx, save_onnx
from statewise.export.step import export_step, state_names
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel
from statewise.models.registry import model_to_dict

FORMAT_VERSION = 1
CHECKED_STEPS = 16
# Of the largest logit: far above the rounding of float32, or of narrower numbers, and far below another step's.
TOLERANCE, NARROW_TOLERANCE = 1e-3, 5e-2

Step = Callable[[Sequence[Tensor]], Sequence[Tensor]]  # from tokens and leaves to logits and leaves


class ExportedFile(NamedTuple):
    """n_bytes: of the file, and of the weights beside it where there are any
    n_operations: nodes of the graph   largest_difference: of the first steps' logits from the model's, relative to the
    largest"""

    path: Path
    n_bytes: int
    n_operations: int
    largest_difference: float


def export_file(model: LanguageModel, path: str | Path, *, batch: int = 1) -> ExportedFile:
    """:func:`export_onnx` for a name that ends in ".onnx"; for one in ".pt2" what ``torch.export.save`` writes of
    :func:`~statewise.export.step.export_step`, with the metadata of the former in its extra file "statewise.json".

    Errors:  InputError for another ending; else as these.
    """
    path = Path(path)
    _require_ending(path, ".onnx", ".pt2")
    if path.suffix == ".onnx":
        return export_onnx(model, path, batch=batch)
    _require_free(path, _beside(path))
    program = export_step(model, batch=batch)
    extra = {"statewise.json": json.dumps(_metadata(model, batch))}

    def save(hidden: Path) -> Step:
        torch.export.save(program, hidden, extra_files=extra)
        module = torch.export.load(hidden).module()
        return lambda inputs: module(*inputs)

    n_operations = sum(node.op == "call_function" for node in program.graph.nodes)
    return _write(model, path, batch, n_operations, save)


def export_onnx(model: LanguageModel, path: str | Path, *, batch: int = 1) -> ExportedFile:
    """Writes :func:`~statewise.export.step.export_step` of a float32 model as ONNX, for onnxruntime and others.

    Inputs:   "tokens" (batch,) int64, and each leaf of the state by its name (:func:`state_names`)
    Outputs:  "logits" (batch, vocab_size) float32, and each leaf after the step, "next." before its name
    Metadata: "statewise.state" is JSON: the name, output, shape and dtype of each leaf, in order. A state at rest is
              all zeros. Beside it "statewise.batch", "statewise.vocab_size", "statewise.model" (the configuration, in
              JSON) and "statewise.format_version".

    Weights above 1.5 GB lie in a second file, ``path`` with ".data" behind it, which has to stay beside the first. The
    files appear under their names complete, after onnxruntime has given the model's own logits over 16 steps, or over
    ``max_positions`` if these are fewer: the file reads no further positions either. A file that has one of the names
    by then stays as it is.

    Cost:    of ``export_step``, and as much again; memory for the parameters, and for the file.
    Errors:  as ``export_step``; InputError for a name that does not end in ".onnx", for a model that is not float32 on
             the CPU, and where a package of the extra "onnx" is missing; NotFiniteError if the model's own logits are
             not finite; CheckpointError if there is a file already, if it cannot be written, or if onnxruntime
             computes something else. Unless both files are complete by then, an error leaves neither of them.
    """
    path = Path(path)
    _require_ending(path, ".onnx")
    _require_free(path, _beside(path))
    require_onnx(model)
    program = export_step(model, batch=batch)
    names = state_names(model)
    exported = onnx_step(program, names, _metadata(model, batch))
    n_operations = sum(1 for _ in exported.model.graph)
    return _write(model, path, batch, n_operations, lambda hidden: save_onnx(exported, hidden))


def _write(
    model: LanguageModel, path: Path, batch: int, n_operations: int, save: Callable[[Path], Step]
) -> ExportedFile:
    """In a hidden folder, with all its weights, and under its own name once what was written is as the model."""
    difference = 0.0
    found: dict[Path, os.stat_result] = {}  # the files, by the names that they are to have
    tolerance = NARROW_TOLERANCE if model.head.weight.dtype.itemsize < 4 else TOLERANCE
    weights = _beside(path)

    def write(hidden: Path) -> None:
        nonlocal difference
        difference = largest_difference(model, save(hidden), batch)
        if not difference <= tolerance:
            raise CheckpointError(
                f"{path}: the exported step's logits differ from the model's by {difference:.1e} of the largest; "
                "nothing was written"
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
    return ExportedFile(path, sum(file.st_size for file in found.values()), n_operations, difference)


def largest_difference(model: LanguageModel, step: Step, batch: int, *, n_steps: int = CHECKED_STEPS) -> float:
    """Of a step's logits over random tokens from those of the model, which reads them at once; relative to the largest
    logit. NaN or infinite if one of the step's logits is. At most ``max_positions`` tokens are read.

    Errors:  NotFiniteError if the model's own logits are not finite.
    """
    n_steps = min(n_steps, model.config.max_positions or n_steps)
    generator = torch.Generator().manual_seed(0)
    device = model.embedding.weight.device
    tokens = torch.randint(model.config.vocab_size, (batch, n_steps), generator=generator).to(device)
    leaves: Sequence[Tensor] = tree_leaves(model.initial_state(batch))
    differences = []
    with evaluation_mode(model), torch.no_grad():
        expected = model(tokens)[0].double()
        if not expected.isfinite().all():
            raise NotFiniteError(
                "the model's own logits are not finite, so that no step can be compared with them; nothing was "
                "written: export a model whose logits are finite"
            )
        for now, right in zip(tokens.unbind(1), expected.unbind(1)):
            logits, *leaves = step([now, *leaves])
            differences.append((logits.double() - right).abs().max())
    largest = float(torch.stack(differences).max())  # of tensors: Python's max() passes over NaN
    return largest / max(float(expected.abs().max()), torch.finfo(torch.float32).tiny)


def _metadata(model: LanguageModel, batch: int) -> dict[str, str]:
    leaves = tree_leaves(model.initial_state(batch, device="meta"))
    state = [
        {"name": name, "output": f"next.{name}", "shape": list(leaf.shape), "dtype": str(leaf.dtype).split(".")[-1]}
        for name, leaf in zip(state_names(model), leaves)
    ]
    return {
        "statewise.format_version": str(FORMAT_VERSION),
        "statewise.batch": str(batch),
        "statewise.vocab_size": str(model.config.vocab_size),
        "statewise.state": json.dumps(state),
        "statewise.model": json.dumps(model_to_dict(model.config)),
    }


def _require_ending(path: Path, *endings: str) -> None:
    if path.suffix not in endings:
        which = " or ".join(f"FILE{ending}" for ending in endings)
        raise InputError(f"{path}: the step is exported as {which}; give a name that ends so")


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
