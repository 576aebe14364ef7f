"""Questions of your own: a file of JSON lines with a question, its choices and the answer."""

from __future__ import annotations

from pathlib import Path

from statewise.errors import DataError, excerpt
from statewise.evaluate.questions.question import Question, QuestionTask, asked
from statewise.evaluate.questions.rows import Row, read_rows


def open_question_file(path: Path) -> QuestionTask:
    """The questions of a file, one JSON object a line, named after it.

    "question": a text, which may be empty: then the choices are whole texts
    "choices":  two different texts or more, which follow the question after a space
    "answer":   which of them is right: its number from 0, or its text

    Other fields are ignored. Examples are drawn from the file's other questions.

    Errors:  DataError, with the line, for anything else.
    """
    questions = [_question(row) for row in read_rows(path)]
    return QuestionTask(name=path.stem, questions=questions, examples=questions, source=str(path))


def _question(row: Row) -> Question:
    choices = row.texts("choices")
    if len(choices) < 2:
        raise DataError(f'{row.place}: "choices" has {len(choices)} of them; give at least two')
    for i, choice in enumerate(choices):
        if not choice.strip():
            raise DataError(f"{row.place}: choice {i} is empty; write a text for each")
        if choice in choices[:i]:
            raise DataError(
                f"{row.place}: choices {choices.index(choice)} and {i} are the same text; give each choice once"
            )
    return asked(row.values, row.text("question"), choices, _answer(row, choices))


def _answer(row: Row, choices: list[str]) -> int:
    answer = row.values.get("answer")
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    said = "has no answer" if answer is None else f"has the answer {excerpt(answer)}"
    raise DataError(
        f"{row.place} {said}, which should be one of its {len(choices)} choices: its number from 0, or its text"
    )
