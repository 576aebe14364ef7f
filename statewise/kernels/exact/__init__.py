"""Exact mode: a row's numbers are the same bit for bit, however it is cut, padded, packed and batched."""

from __future__ import annotations

from statewise.kernels.exact.switch import exact, is_exact, of_parameters

__all__ = ["exact", "is_exact", "of_parameters"]
