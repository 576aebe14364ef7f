"""Questions by likelihood: SuperGLUE, LAMBADA, BLiMP and files of your own, beside what others published."""

from statewise.evaluate.choice.find import GROUPS, TASKS, open_tasks
from statewise.evaluate.choice.published import PERPLEXITY, SUPERGLUE, SUPERGLUE_ORDER, SUPERGLUE_SIZES, superglue_rows
from statewise.evaluate.choice.question import ACCURACY, Answered, Metric, Question, QuestionTask
from statewise.evaluate.choice.question_file import open_question_file
from statewise.evaluate.choice.run import Measure, QuestionResults, evaluate_questions

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
