"""Blocks of any bits, of every type that a GGUF file has."""

from __future__ import annotations

import numpy as np

from statewise.checkpoints.convert.gguf_integers import HALVES
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS, bits


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
