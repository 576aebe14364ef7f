"""What `statewise info` says of a published model, of whose files it reads the headers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statewise import native
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS, bits
from statewise.checkpoints.convert.headers import Headers, counted, read_headers
from statewise.cli.facts import parts
from statewise.decoding.layers import layer_refusal, matrices, parts_refusal
from statewise.decoding.packing import PRECISIONS, packed_bytes
from statewise.mixers.base import Dynamics
from statewise.models.base import Model
from statewise.models.block import Block
from statewise.models.language_model import LanguageModel
from statewise.models.registry import model_to_dict
from statewise.models.shapes import build_shapes


def describe_published(path: Path) -> dict[str, Any]:
    """A record: ``architecture`` and ``format``, the ``types`` that its tensors are in, ``loads`` and, if it does not,
    the ``reason`` and its ``layers`` as its own files name them; else its ``configuration``, ``parts`` with the step in
    C of each layer, and ``memory`` in bytes: of the model in float32 and bfloat16, and of the weights that the C step
    reads.

    Errors:  CheckpointError if there is no model whose headers can be read.
    """
    headers = read_headers(path)
    record: dict[str, Any] = {
        "checkpoint": str(headers.source.path),
        "format": headers.format,
        "architecture": headers.architecture,
        "types": counted(headers.types.values()),
        "file_parameters": sum(map(math.prod, headers.shapes.values())),
        "loads": headers.config is not None,
        "reason": headers.reason,
    }
    if headers.config is None:
        numbers = {kind: kind_bytes(headers, kind) for kind in ("float32", "bfloat16")}
        return record | {"layers": headers.layers(), "memory": numbers}
    model = build_shapes(headers.config)
    found = parts(model)
    blocks = iter(model.blocks)
    for part in found:
        if "mixer" in part:
            part["step_in_c"] = step_in_c(model, next(blocks))
    return record | {
        "configuration": model_to_dict(headers.config),
        "parts": found,
        "generates": generates(model),
        "memory": memory(model) | stored_memory(headers, model),
    }


def step_in_c(model: Model, block: Block) -> str:
    """ "yes", or why not."""
    if not isinstance(model, LanguageModel):
        return f"a {type(model).__name__} does not generate tokens"
    return layer_refusal(block) or "yes"


def generates(model: Model) -> str:
    """In which way tokens are generated on a CPU, in a sentence."""
    if not isinstance(model, LanguageModel):
        return f"a {type(model).__name__} does not generate tokens"
    if (reason := parts_refusal(model)) is not None:
        return f"generate reads tokens by PyTorch: {reason}"
    if not native.available():
        return f"generate reads tokens by PyTorch: the C kernels are not available: {native.why_not()}"
    return "generate reads tokens by C: there is a step for every layer"


def memory(model: Model) -> dict[str, int]:
    """Bytes of the weights: of the model in float32 and in bfloat16; and, if every layer has a step in C, of what the
    step reads in int8 and in int4."""
    sizes = {id(tensor): tensor.numel() for tensor in (*model.parameters(), *model.buffers())}
    wide = {id(p) for module in model.modules() if isinstance(module, Dynamics) for p in module.parameters()}
    found = {
        "float32": 4 * sum(sizes.values()),
        "bfloat16": sum(n * (4 if i in wide else 2) for i, n in sizes.items()),
    }
    if isinstance(model, LanguageModel) and parts_refusal(model) is None:
        packed = matrices(model)
        rest = 4 * (sum(sizes.values()) - sum(sizes[id(weight)] for weight in packed))
        for precision in PRECISIONS[2:]:
            found[precision] = rest + sum(experts_bytes(w.shape, precision) for w in packed)
    return found


def experts_bytes(shape: Sequence[int], precision: str) -> int:
    """What a packed matrix takes, or the matrices of all experts, which lie along a first axis."""
    *n_experts, n_rows, n_columns = shape
    return math.prod(n_experts) * packed_bytes(n_rows, n_columns, precision)


def kind_bytes(headers: Headers, dtype: str) -> int:
    return (4 if dtype == "float32" else 2) * sum(map(math.prod, headers.shapes.values()))


def stored_memory(headers: Headers, model: Model) -> dict[str, int]:
    """Bytes of a GGUF file's model with quantised matrices: as it stays in memory, ``kept``, and of the weights that
    the C step then reads, ``stored``."""
    kept = stored = 0
    for name, shape in headers.shapes.items():
        kind, n = headers.types[name], math.prod(shape)
        form = QUANTISATIONS.get(kind) if len(shape) in (2, 3) else None
        kept += n * 4 if form is None else round(n * bits(kind) / 8)
        width = 0.0 if form is None else int(form.packed[3:]) / 8 + 4 * (1 + form.offset) / form.group
        stored += (
            n * 4 if form is None else round(math.prod(shape[:-2]) * math.ceil(shape[-2] / 16) * 16 * shape[-1] * width)
        )
    if not any(kind in QUANTISATIONS for kind in headers.types.values()):
        return {}
    return {"kept": kept, "stored": stored} if "int8" in memory(model) else {"kept": kept}
