"""A decoding step as an ONNX model, by PyTorch's exporter, and its check by onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from statewise.errors import InputError, importing
from statewise.export.quiet import quiet

OPSET = 20  # the first with Gelu
ONE_FILE = 1_500_000_000  # bytes of weights beyond which they lie in a file beside: protobuf ends at 2 GB


def require_onnx(model: nn.Module) -> None:
    """Errors: InputError where a package of the extra "onnx" is missing, and for a model that is not float32 on the
    CPU."""
    for name, tensor in model.named_parameters():
        if (tensor.dtype, tensor.device.type) != (torch.float32, "cpu"):
            raise InputError(
                f"{name} is {tensor.dtype} on {tensor.device.type}, and an ONNX file is written of float32 on the CPU; "
                "use model.float().cpu(), or first statewise convert FOLDER OTHER --dtype float32"
            )
    for package in ("onnx", "onnxscript", "onnxruntime"):
        with importing(package, "onnx", "an ONNX file needs"):
            importlib.import_module(package)


def onnx_step(program: ExportedProgram, names: Sequence[str], metadata: Mapping[str, str]) -> Any:
    """The step as PyTorch's ``ONNXProgram``; ``names`` are those of the state's leaves."""
    with quiet():
        exported = torch.onnx.export(
            program,
            (),
            input_names=["tokens", *names],
            output_names=["logits", *(f"next.{name}" for name in names)],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert exported is not None  # as it is where no file was asked for
    exported.model.metadata_props.update(metadata)
    return exported


def save_onnx(exported: Any, path: Path) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """Writes it, large weights to a file beside it, ``path`` with ".data" behind it: the first names the second without
    a folder, so that both can be moved. Returns the step of what was written, in onnxruntime."""
    import onnx
    import onnxruntime

    n_bytes = sum(value.const_value.nbytes for value in exported.model.graph.initializers.values())
    exported.save(path, external_data=n_bytes > ONE_FILE)
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def step(inputs: Sequence[Tensor]) -> list[Tensor]:
        outputs = session.run(None, dict(zip(names, (x.numpy() for x in inputs))))
        return [torch.from_numpy(output) for output in outputs]

    return step
