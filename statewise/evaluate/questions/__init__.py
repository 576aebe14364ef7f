"""Questions by likelihood: SuperGLUE, LAMBADA, BLiMP and files of your own, beside what others published."""

from statewise.evaluate.questions.find import GROUPS, TASKS, open_tasks
from statewise.evaluate.questions.published import (
    PERPLEXITY,
    SUPERGLUE,
    SUPERGLUE_ORDER,
    SUPERGLUE_SIZES,
    superglue_rows,
)
from statewise.evaluate.questions.question import ACCURACY, Answered, Metric, Question, QuestionTask
from statewise.evaluate.questions.question_file import open_question_file
from statewise.evaluate.questions.run import Measure, QuestionResults, evaluate_questions

__all__ = [
    "ACCURACY",
    "GROUPS",
    "PERPLEXITY",
    "SUPERGLUE",
    "SUPERGLUE_ORDER",
    "SUPERGLUE_SIZES",
    "TASKS",
    "Answered",
    "Measure",
    "Metric",
    "Question",
    "QuestionResults",
    "QuestionTask",
    "evaluate_questions",
    "open_question_file",
    "open_tasks",
    "superglue_rows",
]
