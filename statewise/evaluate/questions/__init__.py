"""Questions by likelihood: SuperGLUE, LAMBADA, BLiMP and files of your own, beside what others published."""

from statewise.evaluate.questions.find import GROUPS as GROUPS
from statewise.evaluate.questions.find import TASKS as TASKS
from statewise.evaluate.questions.find import open_tasks as open_tasks
from statewise.evaluate.questions.published import PERPLEXITY as PERPLEXITY
from statewise.evaluate.questions.published import SUPERGLUE as SUPERGLUE
from statewise.evaluate.questions.published import SUPERGLUE_ORDER as SUPERGLUE_ORDER
from statewise.evaluate.questions.published import SUPERGLUE_SIZES as SUPERGLUE_SIZES
from statewise.evaluate.questions.published import WEIGHTS as WEIGHTS
from statewise.evaluate.questions.published import has_sizes_of as has_sizes_of
from statewise.evaluate.questions.published import row_of as row_of
from statewise.evaluate.questions.published import superglue_rows as superglue_rows
from statewise.evaluate.questions.question import ACCURACY as ACCURACY
from statewise.evaluate.questions.question import Answered as Answered
from statewise.evaluate.questions.question import Metric as Metric
from statewise.evaluate.questions.question import Question as Question
from statewise.evaluate.questions.question import QuestionTask as QuestionTask
from statewise.evaluate.questions.question_file import open_question_file as open_question_file
from statewise.evaluate.questions.run import Measure as Measure
from statewise.evaluate.questions.run import QuestionResults as QuestionResults
from statewise.evaluate.questions.run import evaluate_questions as evaluate_questions
