"""Evaluation: how well a model predicts a text, beside general compressors; classifies; regresses; forecasts."""

from statewise.evaluate.choice import QuestionResults, evaluate_questions, open_tasks
from statewise.evaluate.classification import Classification, evaluate_classifier
from statewise.evaluate.compression import Compression, compress
from statewise.evaluate.forecasting import ForecastEvaluation, ForecastScores, evaluate_forecasts, plot_forecasts
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
    "ForecastEvaluation",
    "ForecastScores",
    "QuestionResults",
    "Regression",
    "compress",
    "count_words",
    "evaluate_classifier",
    "evaluate_forecasts",
    "evaluate_questions",
    "evaluate_regressor",
    "evaluate_split",
    "evaluate_text",
    "evaluate_tokens",
    "has_bounded_state",
    "open_tasks",
    "plot_forecasts",
]
