"""Questions by likelihood: what is right, what chance is, the data in every form."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path

import pytest
import torch
from places import SHARED
from questions import MAKERS, QUESTION, write_rows
from scored_models import MODELS, defined

from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import DataError
from statewise.evaluate.questions import (
    GROUPS,
    PERPLEXITY,
    SUPERGLUE,
    SUPERGLUE_ORDER,
    TASKS,
    Answered,
    QuestionTask,
    evaluate_questions,
    open_tasks,
    superglue_rows,
)
from statewise.evaluate.questions.lambada import lambada_task
from statewise.evaluate.questions.rows import Row
from statewise.evaluate.questions.run import measure
from statewise.evaluate.questions.superglue import MACRO_F1, PROMPTS, superglue_task, word_f1
from statewise.evaluate.text.likelihood import Score

DATA = SHARED
TOKENIZER = ByteTokenizer()


def test_the_answer_is_the_likeliest_choice(tmp_path: Path) -> None:
    """By the definition: each choice alone, in one call of the model."""
    rows = [{"question": f"{i} is", "choices": ["even", "odd", "a number"], "answer": "odd"} for i in range(5)]
    path = write_rows(tmp_path / "parity.jsonl", ["", *rows])
    model, (task,) = MODELS["hybrid"], open_tasks([str(path)])
    told: list[tuple[int, int]] = []
    results = evaluate_questions(model, TOKENIZER, [task], progress=lambda done, total: told.append((done, total)))
    n_right = 0
    for row, answered in zip(rows, results.answers["parity"], strict=True):
        context = [256, *TOKENIZER.encode(row["question"])]
        values = [defined(model, context, TOKENIZER.encode(f" {choice}"))[0] for choice in row["choices"]]
        assert [score.log_probability for score in answered.scores] == pytest.approx(values, rel=1e-5)
        assert answered.predicted == max(range(3), key=values.__getitem__)
        n_right += answered.predicted == 1
    (accuracy,) = results.tasks
    assert (accuracy.value, accuracy.n_samples, accuracy.chance) == (n_right / 5, 5, pytest.approx(1 / 3))
    assert told[-1] == (5, 5)
    assert json.loads(json.dumps(results.questions()))["parity"][0]["choices"] == rows[0]["choices"]
    assert results.record()["results"][0]["interval"] == "wilson"


def test_examples_come_from_the_other_questions(tmp_path: Path) -> None:
    from statewise.evaluate.questions.shots import contexts

    rows = [{"question": f"Q{i}", "choices": ["A", "B"], "answer": i % 2} for i in range(6)]
    (task,) = open_tasks([str(write_rows(tmp_path / "letters.jsonl", rows))], n_shots=3)
    for i, context in enumerate(contexts(task, task.questions, 3)):
        *examples, question = context.split("\n\n")
        assert question == f"Q{i}"
        assert len(set(examples)) == 3
        assert all(example in {f"Q{j} {'AB'[j % 2]}" for j in range(6) if j != i} for example in examples)
    first = list(contexts(task, task.questions[:2], 3))
    assert first == list(contexts(task, task.questions, 3))[:2]
    with pytest.raises(DataError, match=r"6 examples before each question of letters .* there are 6 to draw from"):
        evaluate_questions(MODELS["mamba"], TOKENIZER, [task], n_shots=6)
    same = open_tasks([str(write_rows(tmp_path / "same.jsonl", [QUESTION] * 4))])
    with pytest.raises(DataError, match="only 0 are a different question"):
        evaluate_questions(MODELS["mamba"], TOKENIZER, same, n_shots=1)


def answered(task: QuestionTask, predictions: list[int]) -> list[Answered]:
    nothing = Score(0.0, False)
    return [
        Answered(question, (nothing,) * len(question.choices), predicted)
        for question, predicted in zip(task.questions, predictions, strict=True)
    ]


def test_metrics_by_hand() -> None:
    rows = [{"premise": "p", "hypothesis": "h", "label": label} for label in (0, 0, 0, 2)]
    task = superglue_task("cb", [Row(row, "here") for row in rows], None, "")
    accuracy, f1 = (measure(task, metric, answered(task, [0, 0, 1, 1]), 0, False) for metric in task.metrics)
    assert (accuracy.value, accuracy.majority, accuracy.chance) == (0.5, 0.75, pytest.approx(1 / 3))
    assert f1.value == pytest.approx((2 * 2 / (2 * 2 + 1) + 0 + 0) / 3)  # of class 0; the others are never right
    assert (f1.chance, f1.interval) == (None, "bootstrap")
    assert MACRO_F1.combine(torch.tensor([[0.0, 0], [1, 1]]).numpy()) == pytest.approx(2 / 3)
    record = {
        "passage": "x",
        "query": "@placeholder y",
        "entities": ["the Navy", "US Navy", "Ann"],
        "answers": ["Navy"],
    }
    task = superglue_task("record", [Row(record, "here")], None, "")
    for predicted, em, f1_value in ((2, 1.0, 1.0), (1, 0.0, 2 / 3), (0, 0.0, 0.0)):  # in order of their names
        found = [measure(task, metric, answered(task, [predicted]), 0, False) for metric in task.metrics]
        assert [one.value for one in found] == pytest.approx([em, f1_value])
        assert [one.chance for one in found] == pytest.approx([1 / 3, (1 + 2 / 3) / 3])
        assert found[0].standard_error is None
    assert word_f1("the", "a") == 1.0
    assert word_f1("the", "b") == 0.0


def test_lambada_by_hand() -> None:
    model = MODELS["mamba"]
    rows = [Row({"text": "she said, Anna, so I asked Anna"}, "here"), Row({"text": "one two"}, "here")]
    task = lambada_task(rows, "")
    results = evaluate_questions(model, TOKENIZER, [task], document_token=False)
    accuracy, perplexity = results.tasks
    nats = [
        defined(model, TOKENIZER.encode(context), TOKENIZER.encode(word))
        for context, word in (("she said, Anna, so I asked", " Anna"), ("one", " two"))
    ]
    assert perplexity.value == pytest.approx(math.exp(-sum(value for value, _ in nats) / 2), rel=1e-5)
    assert accuracy.value == sum(greedy for _, greedy in nats) / 2
    assert accuracy.chance == pytest.approx((1 / 6 + 0) / 2)
    assert not perplexity.higher_is_better
    normalized = evaluate_questions(model, TOKENIZER, [task], document_token=False, normalize=True)
    assert normalized.tasks == results.tasks  # there is nothing to choose from
    for text in ("one", "ends with a space ", " word"):
        with pytest.raises(DataError, match='here: "text" has no last word'):
            lambada_task([Row({"text": text}, "here")], "")


def test_official_files_and_columns_are_the_same_questions(superglue: Path) -> None:
    names = list(MAKERS)
    official, columns = (open_tasks(names, superglue / form, n_shots=1) for form in ("official", "columns"))
    for one, other in zip(official, columns, strict=True):
        for attribute in ("questions", "examples"):
            for a, b in zip(getattr(one, attribute), getattr(other, attribute), strict=True):
                assert dict(a.row) == dict(b.row)
                assert (a.prompt, a.choices, a.answers, a.target) == (b.prompt, b.choices, b.answers, b.target)
    assert open_tasks(["superglue"], superglue)[0].name == "wsc"  # also where a folder lies one deeper


def test_a_span_that_the_text_has_otherwise_is_made_to_fit() -> None:
    target = {"span1_text": "The mill.", "span1_index": 3, "span2_text": "it", "span2_index": 6}
    row = Row({"text": "He saw that the mill , it fell", "target": target, "label": True}, "here")
    (question,) = superglue_task("wsc", [row], None, "").questions
    assert 'refer to "*the mill*"' in question.prompt
    assert question.prompt.startswith("Passage: He saw that the mill, *it* fell\n")


def test_groups_are_means_of_all_their_tasks(superglue: Path) -> None:
    model = MODELS["mamba"]
    results = evaluate_questions(model, TOKENIZER, open_tasks(["superglue"], superglue / "official", limit=2))
    (average,) = results.groups
    first = [one for one in results.tasks if one.metric in ("acc", "em")]
    assert len(first) == 8
    assert average.value == pytest.approx(sum(one.value for one in first) / 8)
    assert average.standard_error == pytest.approx(math.sqrt(sum(one.standard_error**2 for one in first)) / 8)
    assert (average.task, average.n_samples) == ("superglue", 16)
    assert any("multirc: lm-eval's file" in note for note in results.notes)
    assert average.low < average.value < average.high
    (one,) = evaluate_questions(model, TOKENIZER, open_tasks(["superglue"], superglue / "official", limit=1)).groups
    assert one.standard_error is None
    assert one.high - one.low > 0.5
    few = evaluate_questions(model, TOKENIZER, open_tasks(["rte", "wsc", "rte"], superglue / "official"))
    assert [one.task for one in few.tasks] == ["rte", "wsc"]
    assert few.groups == ()


def test_a_file_of_ones_own_is_in_no_mean(tmp_path: Path) -> None:
    names = [name.removeprefix("blimp_") for name in GROUPS["blimp_semantics"]]
    for name in names:
        write_rows(tmp_path / f"{name}.jsonl", [{"sentence_good": "a b", "sentence_bad": "b a"}])
    own = str(write_rows(tmp_path / f"blimp_{names[0]}.jsonl", [QUESTION]))
    model = MODELS["mamba"]
    results = evaluate_questions(model, TOKENIZER, open_tasks([own, *GROUPS["blimp_semantics"][1:]], tmp_path))
    assert (results.groups, results.tasks[0].official) == ((), False)
    (mean,) = evaluate_questions(model, TOKENIZER, open_tasks(["blimp_semantics"], tmp_path)).groups
    assert (mean.n_samples, mean.standard_error, mean.official) == (9, None, True)
    assert mean.high - mean.low > 0.2


def test_the_sets_of_blimp() -> None:
    assert len(GROUPS["blimp"]) == 67
    assert sorted(
        len(GROUPS[f"blimp_{name}"]) for name in ("morphology", "semantics", "syntax", "syntax_semantics")
    ) == [
        9,
        14,
        18,
        26,
    ]
    assert set(GROUPS["blimp"]) <= set(TASKS)


@pytest.mark.skipif(not (DATA / "blimp.zip").exists(), reason="shared/data is not here")
def test_all_of_blimp_from_its_archive(tmp_path: Path) -> None:
    tasks = open_tasks(["blimp"], DATA, limit=2)
    results = evaluate_questions(MODELS["mamba"], TOKENIZER, tasks)
    assert len(results.tasks) == 67
    assert {group.task: group.chance for group in results.groups} == {
        name: 0.5 for name in GROUPS if name != "superglue"
    }
    with zipfile.ZipFile(DATA / "blimp.zip") as archive:
        for task in tasks[:3]:
            name = task.name.removeprefix("blimp_")
            archive.extract(f"data/{name}.jsonl", tmp_path)
            rows = [json.loads(line) for line in archive.read(f"data/{name}.jsonl").splitlines()]
            assert {row["field"].replace("/", "_") for row in rows} <= {
                field.removeprefix("blimp_") for field in GROUPS if task.name in GROUPS[field]
            }
            (unpacked,) = open_tasks([task.name], tmp_path, limit=2)
            assert [q.choices for q in unpacked.questions] == [q.choices for q in task.questions]
    with pytest.raises(DataError, match=r"and 56 more are not in .*git clone .*blimp"):
        open_tasks(["blimp"], tmp_path)


def test_a_long_prompt_loses_its_beginning(tmp_path: Path) -> None:
    model = MODELS["positions"]
    rows = [{"question": "x" * n, "choices": ["ab", "cd"], "answer": 1} for n in (500, 450)]
    results = evaluate_questions(model, TOKENIZER, open_tasks([str(write_rows(tmp_path / "long.jsonl", rows))]))
    one, other = results.answers["long"]
    assert one.scores[0].log_probability == pytest.approx(other.scores[0].log_probability, rel=1e-5)
    (note,) = results.notes
    reach = model.config.max_positions
    assert note.startswith(f"long: 2 of 2 questions are longer than the {reach} tokens that the model reads")
    short = evaluate_questions(
        model, TOKENIZER, open_tasks([str(write_rows(tmp_path / "s.jsonl", [{**rows[0], "question": "x"}]))])
    )
    assert short.notes == ()


def test_published_rows() -> None:
    """Each average as printed is that of its row."""
    for n_shots, rows in SUPERGLUE.items():
        assert len(rows) == 12
        for model, (*values, average) in rows.items():
            assert len(values) == len(SUPERGLUE_ORDER) == 8
            assert sum(values) / 8 == pytest.approx(average, abs=0.0501), (n_shots, model)
    assert set(SUPERGLUE_ORDER) == set(PROMPTS)
    assert superglue_rows(5, {"copa": 0}) == {}
    assert superglue_rows(0, {"lambada": 0}) == {}
    assert {name: len(rows) for name, rows in PERPLEXITY.items()} == {"pile": 10, "openwebtext": 10, "wikitext103": 10}
