"""Other weights than the model's own, for the tokens behind a prompt: where they can be, and what reads with them."""

from __future__ import annotations

import copy
import warnings

from torch import Tensor, nn

from statewise.decoding.decoder import dequantised
from statewise.decoding.layers import matrices, refusal
from statewise.decoding.packing import LARGEST, check_precision, quantise
from statewise.errors import InputError
from statewise.kernels import gpu
from statewise.kernels.step import DTYPES, MAX_ROWS
from statewise.kernels.step.pytorch import pack
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.integer_blocks import IntegerBlocks
from statewise.models.language_model import LanguageModel
from statewise.models.quantised import QuantisedTensor

ON_ITS_OWN = ("cuda", "meta")  # devices on which no step in C is needed


def check_weights(model: LanguageModel, weights: object) -> None:
    """Errors: InputError for an unknown precision; on the CPU for a model without a step in C; on a GPU, which needs no
    such step, for anything but integers."""
    check_precision(weights, None)
    device = model.embedding.weight.device.type
    if device not in ON_ITS_OWN:
        if (reason := refusal(model)) is not None:
            raise InputError(f"weights={weights!r} needs a model with a step in C: {reason}; leave weights out")
    elif weights not in LARGEST:
        raise InputError(
            f"weights={weights!r} on {device}: use int8 or int4, or convert the model, as model.to(torch.bfloat16)"
        )


def with_weights(model: LanguageModel, weights: str, n_rows: int = 1) -> LanguageModel:
    """The model in evaluation mode, ready for steps, that reads with matrices in this precision without C.

    It is :func:`narrowed` where a GPU's kernels are in force and this many rows read integers, else
    :func:`~statewise.decoding.dequantised`.
    """
    changed = (narrowed if _narrow(model, weights, n_rows) else dequantised)(model, weights).eval()
    return freeze(changed) if has_operators_to_prepare(changed) else changed


def _narrow(model: LanguageModel, weights: str, n_rows: int) -> bool:
    first = model.embedding.weight
    if weights not in LARGEST or first.dtype not in DTYPES or n_rows > MAX_ROWS or not gpu.in_force(first.device):
        return False
    refusal = gpu.refusal_of("step", [first], ())
    if refusal is not None:
        warnings.warn(f"{weights} is rounded to, but not multiplied as it is: {refusal}", RuntimeWarning, stacklevel=4)
    return refusal is None


def narrowed(model: LanguageModel, weights: str) -> LanguageModel:
    """A copy of the model whose matrices stay in 8 or 4 bits, where the model is: "int8" or "int4".

    Their numbers are those of :func:`~statewise.decoding.dequantised`, in float32. Where Triton's kernels are in force,
    a linear layer reads the bits for a step of up to 8 rows. Any other operation makes the matrix, in the model's
    dtype, for itself. The copy cannot be converted or trained.

    Shapes:  parameters and their dtype as in the model; the matrices are :class:`QuantisedTensor`
    Cost:    the memory of the bits and their scales, 1 byte a number or 0.5625; of the rest, a copy
    Errors:  InputError for another precision, for a model in float64, and for weights that are not finite.
    """
    check_precision(weights, None)
    if weights not in LARGEST:
        raise InputError(f"weights={weights!r} has no integers; use int8 or int4")
    if model.embedding.weight.dtype not in DTYPES:
        raise InputError(f"{weights} needs a model in float32, bfloat16 or float16, not {model.embedding.weight.dtype}")
    held: dict[int, object] = {id(matrix): _integers(matrix.detach(), weights) for matrix in matrices(model)}
    return copy.deepcopy(model, held)


def _integers(weight: Tensor, precision: str) -> nn.Parameter:
    found = quantise(weight.flatten(0, -2), precision)
    blocks = IntegerBlocks(pack(found.q, found.scales, 8 if precision == "int8" else 4), weight.dtype)
    n = len(weight) if weight.ndim == 3 else None
    return nn.Parameter(QuantisedTensor(blocks, n), requires_grad=False)
