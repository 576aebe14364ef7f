"""A part of a model as an ONNX file, by PyTorch's exporter, and what onnxruntime makes of it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from statewise.errors import InputError, importing
from statewise.export.comparison import Run
from statewise.export.parts import Part
from statewise.export.quiet import quiet

OPSET = 20  # the first with Gelu
ONE_FILE = 1_500_000_000  # bytes of weights beyond which they lie in a file beside: protobuf ends at 2 GB


def require_onnx(model: nn.Module) -> None:
    """Errors: InputError where a package of the extra "onnx" is missing, and for a model that is not float32 on the
    CPU."""
    for name, tensor in model.named_parameters():
        if (tensor.dtype, tensor.device.type) != (torch.float32, "cpu"):
            raise InputError(
                f"{name} is {tensor.dtype} on {tensor.device.type}, and ONNX files are written from float32 on the "
                "CPU; use model.float().cpu(), or first statewise convert FOLDER OTHER --dtype float32"
            )
    for package in ("onnx", "onnxscript", "onnxruntime"):
        with importing(package, "onnx", "an ONNX file needs"):
            importlib.import_module(package)


def onnx_program(program: ExportedProgram, part: Part, metadata: Mapping[str, str]) -> Any:
    """The part as PyTorch's ``ONNXProgram``, a size that may be any by the name that the part has for it."""
    with quiet():
        exported = torch.onnx.export(
            program,
            (),
            input_names=list(part.inputs),
            output_names=list(part.outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert exported is not None  # as it is where no file was asked for
    _without_unused(exported.model)
    _name_sizes(exported.model.graph, part)
    _forget_sources(exported.model.graph)
    exported.model.metadata_props.update(metadata)
    return exported


def _without_unused(model: Any) -> None:
    """Numbers that the exporter has folded into others: onnxruntime would warn of each."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    RemoveUnusedNodesPass()(model)


def _name_sizes(graph: Any, part: Part) -> None:
    """Names sizes, instead of symbols such as "s27"."""
    names: dict[str, str | int] = {}
    for given in graph.inputs:
        for axis, size in part.axes.get(given.name, {}).items():
            names[str(given.shape[axis].value)] = size
    values = [*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)]
    for value in values:
        for axis, size in enumerate(value.shape or ()):
            symbols = str(getattr(size, "value", None))
            if symbols in names:
                value.shape[axis] = names[symbols]
            elif symbols != "None":  # of several
                value.shape[axis] = re.sub(r"\bs\d+\b", lambda found: str(names.get(found[0], found[0])), symbols)


def _forget_sources(graph: Any) -> None:
    """Without the lines of this machine's files that each operator was written by: twice as much as the graph."""
    for node in graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()


def save_onnx(exported: Any, path: Path) -> Run:
    """Writes it, large weights to a file beside it, ``path`` with ".data" behind it: the first names the second without
    a folder, so that both can be moved. Returns what was written, in onnxruntime."""
    import onnx
    import onnxruntime

    n_bytes = sum(value.const_value.nbytes for value in exported.model.graph.initializers.values())
    exported.save(path, external_data=n_bytes > ONE_FILE)
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = session.run(None, dict(zip(names, (x.numpy() for x in inputs))))
        return [torch.from_numpy(output) for output in outputs]

    return run
