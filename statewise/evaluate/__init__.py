"""Evaluation: how well a model predicts a text, beside general compressors; classifies; regresses; forecasts."""

from statewise.evaluate.forecast_plots import plot_forecasts as plot_forecasts
from statewise.evaluate.forecasting import ForecastEvaluation as ForecastEvaluation
from statewise.evaluate.forecasting import ForecastScores as ForecastScores
from statewise.evaluate.forecasting import evaluate_forecasts as evaluate_forecasts
from statewise.evaluate.labelled.classification import Classification as Classification
from statewise.evaluate.labelled.classification import evaluate_classifier as evaluate_classifier
from statewise.evaluate.labelled.regression import Regression as Regression
from statewise.evaluate.labelled.regression import evaluate_regressor as evaluate_regressor
from statewise.evaluate.questions import QuestionResults as QuestionResults
from statewise.evaluate.questions import evaluate_questions as evaluate_questions
from statewise.evaluate.questions import open_tasks as open_tasks
from statewise.evaluate.text.compression import Compression as Compression
from statewise.evaluate.text.compression import compress as compress
from statewise.evaluate.text.perplexity import Evaluation as Evaluation
from statewise.evaluate.text.perplexity import count_words as count_words
from statewise.evaluate.text.perplexity import evaluate_split as evaluate_split
from statewise.evaluate.text.perplexity import evaluate_text as evaluate_text
from statewise.evaluate.text.perplexity import evaluate_tokens as evaluate_tokens
from statewise.evaluate.text.perplexity import has_bounded_state as has_bounded_state
