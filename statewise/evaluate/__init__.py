"""Evaluation: how well a model predicts a text, beside what general compressors make of it."""

from statewise.evaluate.compression import Compression, compress
from statewise.evaluate.perplexity import (
    Evaluation,
    count_words,
    evaluate_split,
    evaluate_text,
    evaluate_tokens,
    has_bounded_state,
)

__all__ = [
    "Compression",
    "Evaluation",
    "compress",
    "count_words",
    "evaluate_split",
    "evaluate_text",
    "evaluate_tokens",
    "has_bounded_state",
]
