"""Blocks of any bits, of every type that a GGUF file has."""

from __future__ import annotations

import numpy as np

from statewise.checkpoints.convert.gguf_types import QUANTISATIONS, bits

# Where in a block its halves lie
HALVES: dict[str, tuple[int, ...]] = dict.fromkeys(
    ("Q4_0", "Q5_0", "Q8_0", "IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)
)
HALVES |= {"IQ4_NL": (0,), "IQ4_XS": (0,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}


def random_blocks(kind: str, n_rows: int, n_columns: int, seed: int = 0) -> np.ndarray:
    """Rows of any bits: all are numbers, but for scales that are none, which are made small."""
    generator = np.random.default_rng(seed)
    if kind in ("F32", "F64"):
        return generator.normal(size=(n_rows, n_columns)).astype(kind.replace("F", "float"))
    n_bytes = int(bits(kind) * n_columns / 8)
    raw: np.ndarray = generator.integers(0, 256, (n_rows, n_bytes), dtype=np.uint8)
    if kind not in QUANTISATIONS:  # of each number the upper byte's sign and exponent below 1
        raw[:, 1::2] &= 0xBB if kind == "F16" else 0xBF
        return raw.view(np.float16) if kind == "F16" else raw
    blocks = raw.reshape(-1, QUANTISATIONS[kind].n_bytes)
    for at in HALVES.get(kind, ()):
        blocks[:, at + 1] &= 0x3B  # of a half in two bytes, the exponent
    if kind == "MXFP4":
        blocks[:, 0] = 100 + blocks[:, 0] % 40
    if kind == "IQ1_M":
        blocks[:, 55] &= 0x3F
    return raw
