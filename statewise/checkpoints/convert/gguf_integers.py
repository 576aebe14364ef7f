"""GGUF's quantised matrices as whole numbers with scales: from the bits of a block, nothing is rounded.

Source:  the layouts of ``ggml-common.h`` and the functions ``dequantize_row_*`` of ``ggml-quants.c``, llama.cpp; where
         numbers come from a table of patterns (IQ1 to IQ3) or in base 3, the ``gguf`` package unpacks them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from statewise.checkpoints.convert.gguf_file import StoredTensor, widened
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS
from statewise.models.quantised import Blocks, Integers

Array = np.ndarray
Parts = tuple[Array, Array, Array | None]  # of n blocks: q (n, block), scales (n, groups), offsets alike
E2M1 = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)  # doubled
IQ4 = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)

LARGEST_E8M0 = 252  # of MXFP4's scales: 12 times what the next one says is no float32
# At which bytes of a block its halves begin; MXFP4 and NVFP4 have scales of their own, IQ1_M one in pieces
HALVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


class GGUFBlocks(Blocks):
    """A matrix of a file, in memory of its own."""

    def __init__(self, stored: StoredTensor) -> None:
        self.kind, (n_rows, n_columns) = stored.type, stored.shape
        self.shape = n_rows, n_columns
        self._raw = np.array(stored.data.reshape(n_rows, -1))
        self.n_bytes = self._raw.nbytes
        form = QUANTISATIONS[self.kind]
        self.bits, self.group, self.has_offsets = int(form.packed.removeprefix("int")), form.group, form.offset

    def widened(self, rows: slice | Tensor) -> Tensor:
        raw = self._raw[rows if isinstance(rows, slice) else rows.reshape(-1).numpy()]
        shape, in_parts = (len(raw), self.shape[1]), self.kind in PARTS
        found = self._products(raw).view(shape) if in_parts else widened(StoredTensor(self.kind, shape, raw))
        return found if isinstance(rows, slice) else found.view(*rows.shape, self.shape[1])

    def are_finite(self) -> bool:
        blocks = self._raw.reshape(-1, QUANTISATIONS[self.kind].n_bytes)
        if self.kind == "MXFP4":
            return bool((blocks[:, 0] <= LARGEST_E8M0).all())
        found = [_iq1_m(blocks)] if self.kind == "IQ1_M" else [_half(blocks, at) for at in HALVES.get(self.kind, ())]
        return all(bool(np.isfinite(scales).all()) for scales in found)

    def _products(self, raw: Array) -> Tensor:
        """Each number times its scale: what the package computes, in less than half the time."""
        x = self._integers(raw)
        out = x.q.view(*x.scales.shape, x.group) * x.scales[..., None]
        return out if x.offsets is None else out.add_(x.offsets[..., None])

    def integers(self, rows: slice) -> Integers:
        return self._integers(self._raw[rows])

    def _integers(self, raw: Array) -> Integers:
        form = QUANTISATIONS[self.kind]
        blocks = raw.reshape(-1, form.n_bytes)
        with np.errstate(all="ignore"):  # what is not finite is refused when the model is loaded
            q, scales, offsets = PARTS[self.kind](blocks) if self.kind in PARTS else _quotients(self.kind, blocks)
        by_row = [None if x is None else torch.from_numpy(x.reshape(len(raw), -1)) for x in (q, scales, offsets)]
        assert by_row[0] is not None
        assert by_row[1] is not None
        return Integers(by_row[0].to(torch.int8), by_row[1], by_row[2], form.group, self.bits)


def _half(b: Array, at: int) -> Array:
    """(n, 1)"""
    return np.ascontiguousarray(b[:, at : at + 2]).view(np.float16).astype(np.float32)


def _fields(b: Array, width: int, run: int) -> Array:
    """Numbers of ``width`` bits, 8 / width of them in a byte: of ``run`` bytes first all lowest, then the next ones."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    found: Array = (b.reshape(len(b), -1, 1, run) >> shifts & np.uint8(2**width - 1)).reshape(len(b), -1)
    return found


def _signed(q: Array, zero: int) -> Array:
    return q.astype(np.int8) - np.int8(zero)


def _fifth_bits(b: Array) -> Array:
    """Bit i of 4 bytes: of number i."""
    return np.unpackbits(np.ascontiguousarray(b), axis=1, bitorder="little") << 4


def _scales_and_mins(b: Array) -> tuple[Array, Array]:
    """Scales and offsets of Q4_K and Q5_K: 8 each of 6 bits in 12 bytes, times their halves."""
    d, dmin, low, least, high = _half(b, 0), _half(b, 2), b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.concatenate([low & 63, high & 15 | low >> 2 & 48], 1)
    mins = np.concatenate([least & 63, high >> 4 | least >> 2 & 48], 1)
    return d * scales.astype(np.float32), -dmin * mins.astype(np.float32)


def _q4_0(b: Array) -> Parts:
    return _signed(_fields(b[:, 2:], 4, 16), 8), _half(b, 0), None


def _q4_1(b: Array) -> Parts:
    return _fields(b[:, 4:], 4, 16), _half(b, 0), _half(b, 2)


def _q5_0(b: Array) -> Parts:
    return _signed(_fields(b[:, 6:], 4, 16) | _fifth_bits(b[:, 2:6]), 16), _half(b, 0), None


def _q5_1(b: Array) -> Parts:
    return _fields(b[:, 8:], 4, 16) | _fifth_bits(b[:, 4:8]), _half(b, 0), _half(b, 2)


def _q8_0(b: Array) -> Parts:
    return b[:, 2:].view(np.int8), _half(b, 0), None


def _q2_k(b: Array) -> Parts:
    scales, mins = (b[:, :16] & 15).astype(np.float32), (b[:, :16] >> 4).astype(np.float32)
    return _fields(b[:, 16:80], 2, 32), _half(b, 80) * scales, -_half(b, 82) * mins


def _q3_k(b: Array) -> Parts:
    low, high = _fields(b[:, 96:104], 4, 8), _fields(b[:, 104:108], 2, 4)
    q = _signed(_fields(b[:, 32:96], 2, 32) | _fields(b[:, :32], 1, 32) << 2, 4)
    return q, _half(b, 108) * _signed(low | high << 4, 32).astype(np.float32), None


def _q4_k(b: Array) -> Parts:
    return _fields(b[:, 16:], 4, 32), *_scales_and_mins(b)


def _q5_k(b: Array) -> Parts:
    return _fields(b[:, 48:], 4, 32) | _fields(b[:, 16:48], 1, 32) << 4, *_scales_and_mins(b)


def _q6_k(b: Array) -> Parts:
    q = _signed(_fields(b[:, :128], 4, 64) | _fields(b[:, 128:192], 2, 32) << 4, 32)
    return q, _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32), None


def _iq4_nl(b: Array) -> Parts:
    return IQ4[_fields(b[:, 2:], 4, 16)], _half(b, 0), None


def _iq4_xs(b: Array) -> Parts:
    high = np.ascontiguousarray(b[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], 2).reshape(len(b), 8)
    scales = _signed(low | high.astype(np.uint8) << 4, 32).astype(np.float32)
    return IQ4[_fields(b[:, 8:], 4, 16)], _half(b, 0) * scales, None


def _mxfp4(b: Array) -> Parts:
    e = b[:, :1].astype(np.uint32)
    scale = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23)).astype(np.uint32)
    return E2M1[_fields(b[:, 1:], 4, 16)], scale.view(np.float32), None


def _tq2_0(b: Array) -> Parts:
    return _signed(_fields(b[:, :64], 2, 32), 1), _half(b, 64), None


PARTS: dict[str, Callable[[Array], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "TQ2_0": _tq2_0,
}


def _quotients(kind: str, b: Array) -> Parts:
    """Where each value is its scale times a whole number, without rounding: the values by the scales."""
    values = widened(StoredTensor(kind, (len(b), QUANTISATIONS[kind].block), b)).numpy()
    scales = SCALES[kind](b)
    groups = values.reshape(*scales.shape, -1)
    q = np.rint(groups / np.where(scales == 0, 1, scales)[..., None])
    return q.reshape(len(b), -1).astype(np.int8), scales, None


def _four_bits(b: Array, last: int) -> Array:
    """The scales in these bytes up to ``last``: of each byte first the lower half."""
    n = len(b)
    return np.stack([b[:, last - 8 : last] & 15, b[:, last - 8 : last] >> 4], 2).reshape(n, -1).astype(np.float32)


def _upper(b: Array, first: int, step: int) -> Array:
    """The upper four bits of 32, the first word at a byte, the next ``step`` bytes on."""
    found = np.stack([b[:, at + 3] >> 4 for at in range(first, first + 8 * step, step)], 1)
    return found.astype(np.float32)


def _iq1_s(b: Array) -> Array:
    return _half(b, 0) * (2 * (b[:, 35:50:2] >> 4 & 7) + 1).astype(np.float32) / 8


def _iq1_m(b: Array) -> Array:
    words = np.ascontiguousarray(b[:, 48:]).view(np.uint16)
    upper = words >> np.array([12, 8, 4, 0], np.uint16) & np.array([0xF, 0xF0, 0xF00, 0xF000], np.uint16)
    d = np.bitwise_or.reduce(upper, 1, keepdims=True).view(np.float16).astype(np.float32)
    scales = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)).reshape(len(b), -1)
    return d * (2 * scales + 1).astype(np.float32) / 8


def _nvfp4(b: Array) -> Array:
    exponent, mantissa = (b[:, :4] >> 3 & 15).astype(np.float32), (b[:, :4] & 7).astype(np.float32)
    found = np.where(exponent == 0, mantissa * 2**-9, (1 + mantissa / 8) * 2 ** (exponent - 7)).astype(np.float32)
    return np.where((b[:, :4] == 0) | (b[:, :4] == 0x7F), 0, found / 2).astype(np.float32)


SCALES: dict[str, Callable[[Array], Array]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": lambda b: _half(b, 0) * (0.5 + _upper(b, 6, 8)) / 4,
    "IQ2_XS": lambda b: _half(b, 0) * (0.5 + _four_bits(b, 74)) / 4,
    "IQ2_S": lambda b: _half(b, 0) * (0.5 + _four_bits(b, 82)) / 4,
    "IQ3_XXS": lambda b: _half(b, 0) * (0.5 + _upper(b, 66, 4)) / 2,
    "IQ3_S": lambda b: _half(b, 0) * (1 + 2 * np.stack([b[:, 106:] & 15, b[:, 106:] >> 4], 2).reshape(len(b), 8)),
    "TQ1_0": lambda b: _half(b, 52),
    "NVFP4": _nvfp4,
}
