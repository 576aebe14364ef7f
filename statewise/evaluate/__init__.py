"""Evaluation: how well a model predicts a text, beside what general compressors make of it; classifies; regresses."""

from statewise.evaluate.classification import Classification, evaluate_classifier
from statewise.evaluate.compression import Compression, compress
from statewise.evaluate.perplexity import (
    Evaluation,
    count_words,
    evaluate_split,
    evaluate_text,
    evaluate_tokens,
    has_bounded_state,
)
from statewise.evaluate.regression import Regression, evaluate_regressor

__all__ = [
    "Classification",
    "Compression",
    "Evaluation",
    "Regression",
    "compress",
    "count_words",
    "evaluate_classifier",
    "evaluate_regressor",
    "evaluate_split",
    "evaluate_text",
    "evaluate_tokens",
    "has_bounded_state",
]
