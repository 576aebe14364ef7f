"""The types that a GGUF file has its numbers in: what a block of each is, and what it becomes in the C step."""

from __future__ import annotations

from typing import NamedTuple


class Quantisation(NamedTuple):
    """Whole numbers q that share a scale: the values are scale q, or scale q + offset.

    block, n_bytes: numbers that lie together in the file, and the bytes of them
    packed: "int8" or "int4", of the C step, which holds q as it is, and the scale and the offset in float32
    group:  numbers that share a scale
    offset: whether there is one for each group
    """

    block: int
    n_bytes: int
    packed: str
    group: int
    offset: bool = False


QUANTISATIONS: dict[str, Quantisation] = {
    "Q4_0": Quantisation(32, 18, "int4", 32),
    "Q4_1": Quantisation(32, 20, "int4", 32, True),
    "Q5_0": Quantisation(32, 22, "int8", 32),
    "Q5_1": Quantisation(32, 24, "int8", 32, True),
    "Q8_0": Quantisation(32, 34, "int8", 32),
    "Q2_K": Quantisation(256, 84, "int4", 16, True),
    "Q3_K": Quantisation(256, 110, "int4", 16),
    "Q4_K": Quantisation(256, 144, "int4", 32, True),
    "Q5_K": Quantisation(256, 176, "int8", 32, True),
    "Q6_K": Quantisation(256, 210, "int8", 16),
    "IQ1_S": Quantisation(256, 50, "int8", 32),
    "IQ1_M": Quantisation(256, 56, "int8", 16),
    "IQ2_XXS": Quantisation(256, 66, "int8", 32),
    "IQ2_XS": Quantisation(256, 74, "int8", 16),
    "IQ2_S": Quantisation(256, 82, "int8", 16),
    "IQ3_XXS": Quantisation(256, 98, "int8", 32),
    "IQ3_S": Quantisation(256, 110, "int8", 32),
    "IQ4_NL": Quantisation(32, 18, "int8", 32),
    "IQ4_XS": Quantisation(256, 136, "int8", 32),
    "TQ1_0": Quantisation(256, 54, "int4", 256),
    "TQ2_0": Quantisation(256, 66, "int4", 256),
    "MXFP4": Quantisation(32, 17, "int8", 32),
    "NVFP4": Quantisation(64, 36, "int8", 16),
}
PLAIN = ("F32", "F16", "BF16", "F64")
READ = (*PLAIN, *QUANTISATIONS)
NUMBERS = ("I8", "I16", "I32", "I64")  # that are not read, and are no quantisations
# What is written, each with its number in general.file_type: the types that the gguf package can quantise to
WRITTEN = {
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q8_0": 7,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "MXFP4": 38,
}


def bits(name: str) -> float:
    """The bits of a number in the file, with its share of the scales.

    >>> bits("Q4_K")
    4.5
    """
    if name in QUANTISATIONS:
        return 8 * QUANTISATIONS[name].n_bytes / QUANTISATIONS[name].block
    return {"F64": 64.0, "F32": 32.0}.get(name, 16.0)
