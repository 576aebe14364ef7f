"""Plain quantisers for types of GGUF that the ``gguf`` package only widens: numbers (rows, columns) to the bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

K_VALUES = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32)


def halves(x: np.ndarray) -> np.ndarray:
    """(n, 1) -> (n, 2) bytes"""
    return x.astype(np.float16).view(np.uint8)


def half(x: np.ndarray) -> np.ndarray:
    """What float16 holds of it, in float32."""
    return x.astype(np.float16).astype(np.float32)


def nonzero(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(x == 0, 1, x), np.float32)


def scales_and_mins(x: np.ndarray, group: int, most: int, deepest: int) -> tuple[np.ndarray, ...]:
    """Of blocks (n, 256): d, dmin (n, 1), sc, m (n, groups) whole numbers up to ``most``, q (n, groups, group)."""
    parts = x.reshape(len(x), -1, group)
    low = np.minimum(parts.min(2), 0)
    step = (parts.max(2) - low) / deepest
    d, dmin = (half(v.max(1, keepdims=True) / most) for v in (step, -low))
    sc, m = (np.round(v / nonzero(w)).clip(0, most).astype(np.uint8) for v, w in ((step, d), (-low, dmin)))
    q = np.round((parts + (dmin * m)[..., None]) / nonzero(d * sc)[..., None]).clip(0, deepest).astype(np.uint8)
    return d, dmin, sc, m, q


def six_bits(sc: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Eight scales and eight mins of 6 bits in 12 bytes."""
    first = (sc[:, :4] & 63) | ((sc[:, 4:] >> 4) << 6)
    second = (m[:, :4] & 63) | ((m[:, 4:] >> 4) << 6)
    third = (sc[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)
    return np.concatenate([first, second, third], 1)


def q2_k(x: np.ndarray) -> np.ndarray:
    d, dmin, sc, m, q = scales_and_mins(x, 16, 15, 3)
    q = q.reshape(-1, 2, 4, 32)
    packed = q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6
    return np.concatenate([sc | m << 4, packed.reshape(-1, 64), halves(d), halves(dmin)], 1)


def q3_k(x: np.ndarray) -> np.ndarray:
    parts = x.reshape(-1, 16, 16)
    largest = np.take_along_axis(parts, np.abs(parts).argmax(2)[..., None], 2)[..., 0] / -4
    d = half(np.abs(largest).max(1, keepdims=True) / 31)
    sc = np.round(largest / nonzero(d)).clip(-32, 31)
    q = (np.round(parts / nonzero(d * sc)[..., None]).clip(-4, 3) + 4).astype(np.uint8)
    low = (q & 3).reshape(-1, 2, 4, 32)
    packed = low[:, :, 0] | low[:, :, 1] << 2 | low[:, :, 2] << 4 | low[:, :, 3] << 6
    high = (q >> 2).reshape(-1, 8, 32)
    mask = np.bitwise_or.reduce(high << np.arange(8, dtype=np.uint8)[:, None], 1)
    s = (sc + 32).astype(np.uint8)
    lower = (s[:, :8] & 15) | ((s[:, 8:] & 15) << 4)
    upper = np.bitwise_or.reduce((s >> 4).reshape(-1, 4, 4) << np.array([[0], [2], [4], [6]], np.uint8), 1)
    return np.concatenate([mask, packed.reshape(-1, 64), lower, upper, halves(d)], 1)


def q4_k(x: np.ndarray) -> np.ndarray:
    d, dmin, sc, m, q = scales_and_mins(x, 32, 63, 15)
    q = q.reshape(-1, 4, 2, 32)
    return np.concatenate(
        [halves(d), halves(dmin), six_bits(sc, m), (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)], 1
    )


def q5_k(x: np.ndarray) -> np.ndarray:
    d, dmin, sc, m, q = scales_and_mins(x, 32, 63, 31)
    high = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], 1)
    low = (q & 15).reshape(-1, 4, 2, 32)
    packed = (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([halves(d), halves(dmin), six_bits(sc, m), high, packed], 1)


def q6_k(x: np.ndarray) -> np.ndarray:
    parts = x.reshape(-1, 16, 16)
    largest = np.take_along_axis(parts, np.abs(parts).argmax(2)[..., None], 2)[..., 0] / -32
    d = half(np.abs(largest).max(1, keepdims=True) / 127)
    sc = np.round(largest / nonzero(d)).clip(-128, 127)
    q = (np.round(parts / nonzero(d * sc)[..., None]).clip(-32, 31) + 32).astype(np.uint8)
    low = (q & 15).reshape(-1, 2, 2, 64)
    high = (q >> 4).reshape(-1, 2, 4, 32)
    packed = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    lower = (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([lower, packed.reshape(-1, 64), sc.astype(np.int8).view(np.uint8), halves(d)], 1)


def nearest(x: np.ndarray) -> np.ndarray:
    """Which of the 16 values is nearest."""
    return np.abs(x[..., None] - K_VALUES).argmin(-1).astype(np.uint8)


def iq4_nl(x: np.ndarray) -> np.ndarray:
    parts = x.reshape(-1, 32)
    d = half(np.abs(parts).max(1, keepdims=True) / 120)
    q = nearest(parts / nonzero(d))
    return np.concatenate([halves(d), q[:, :16] | q[:, 16:] << 4], 1)


def iq4_xs(x: np.ndarray) -> np.ndarray:
    parts = x.reshape(-1, 8, 32)
    step = np.abs(parts).max(2) / 120
    d = half(step.max(1, keepdims=True) / 31)
    s = np.round(step / nonzero(d)).clip(-32, 31)
    q = nearest(parts / nonzero(d * s)[..., None])
    s = (s + 32).astype(np.uint16)
    upper = np.bitwise_or.reduce((s >> 4) << (2 * np.arange(8, dtype=np.uint16)), 1).astype(np.uint16)[:, None]
    lower = ((s & 15)[:, ::2] | (s & 15)[:, 1::2] << 4).astype(np.uint8)
    return np.concatenate(
        [halves(d), upper.view(np.uint8), lower, (q[..., :16] | q[..., 16:] << 4).reshape(-1, 128)], 1
    )


def rows_of(quantise: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: quantise(x.reshape(-1, 256)).reshape(len(x), -1)


QUANTISERS = {
    "Q2_K": rows_of(q2_k),
    "Q3_K": rows_of(q3_k),
    "Q4_K": rows_of(q4_k),
    "Q5_K": rows_of(q5_k),
    "Q6_K": rows_of(q6_k),
    "IQ4_NL": rows_of(iq4_nl),
    "IQ4_XS": rows_of(iq4_xs),
}
