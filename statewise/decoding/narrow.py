"""Other weights than the model's own, for the tokens behind a prompt: where they can be, and what reads with them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from statewise.decoding.decoder import dequantised
from statewise.decoding.layers import matrices, refusal
from statewise.decoding.packing import LARGEST, check_precision, quantise
from statewise.errors import InputError
from statewise.kernels import gpu
from statewise.kernels.step.pytorch import pack
from statewise.models.integer_blocks import IntegerBlocks
from statewise.models.language_model import LanguageModel
from statewise.models.quantised import QuantisedTensor


def check_weights(model: LanguageModel, weights: object) -> None:
    """Errors: InputError for an unknown precision, and on the CPU for a model without a step in C."""
    check_precision(weights, None)
    if model.embedding.weight.device.type == "cpu" and (reason := refusal(model)) is not None:
        raise InputError(f"weights={weights!r} needs a model with a step in C: {reason}; leave weights out")


def with_weights(model: LanguageModel, weights: str) -> LanguageModel:
    """The model in evaluation mode that reads with matrices in this precision, without C: :func:`narrowed` where a
    GPU's kernels read integers, else :func:`~statewise.decoding.dequantised`."""
    first = model.embedding.weight
    narrow = weights in LARGEST and first.dtype in (torch.float32, torch.bfloat16, torch.float16)
    make = narrowed if narrow and gpu.in_force(first.device) else dequantised
    return make(model, weights).eval()


def narrowed(model: LanguageModel, weights: str) -> LanguageModel:
    """A copy of the model whose matrices stay in 8 or 4 bits, where the model is: "int8" or "int4".

    Their numbers are those of :func:`~statewise.decoding.dequantised`, in float32. A step of up to 8 rows by Triton
    reads the bits; any other operation makes the matrix, in the model's dtype, for itself.

    Shapes:  parameters and their dtype as in the model; the matrices are :class:`QuantisedTensor`
    Cost:    the memory of the bits and their scales, 1 byte a number or 0.5625; of the rest, a copy
    Errors:  InputError for another precision, and for weights that are not finite.
    """
    check_precision(weights, None)
    if weights not in LARGEST:
        raise InputError(f"weights={weights!r} has no integers; use int8 or int4")
    held: dict[int, object] = {id(matrix): _integers(matrix.detach(), weights) for matrix in matrices(model)}
    return copy.deepcopy(model, held)


def _integers(weight: Tensor, precision: str) -> nn.Parameter:
    found = quantise(weight.flatten(0, -2), precision)
    blocks = IntegerBlocks(pack(found.q, found.scales, 8 if precision == "int8" else 4), weight.dtype)
    n = len(weight) if weight.ndim == 3 else None
    return nn.Parameter(QuantisedTensor(blocks, n), requires_grad=False)
