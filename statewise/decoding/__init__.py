"""Decoding: a language model's step in one call of C code, with weights of 32, 16, 8 or 4 bits."""

from statewise.decoding.decoder import Decoder, dequantised, why_not
from statewise.decoding.layers import refusal
from statewise.decoding.narrow import check_weights, narrowed, with_weights
from statewise.decoding.packing import PRECISIONS, check_precision
from statewise.decoding.running import Running

__all__ = [
    "PRECISIONS",
    "Decoder",
    "Running",
    "check_precision",
    "check_weights",
    "dequantised",
    "narrowed",
    "refusal",
    "why_not",
    "with_weights",
]
