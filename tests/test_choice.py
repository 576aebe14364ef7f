"""Questions by likelihood: what is right, what chance is, the data in every form, and one line for what is wrong."""

from __future__ import annotations

import json
import logging
import math
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from scored_models import MODELS, defined
from superglue_examples import MAKERS, write_superglue

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import ConfigError, DataError, InputError
from statewise.evaluate.choice import (
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
from statewise.evaluate.choice.lambada import lambada_task
from statewise.evaluate.choice.question import asked
from statewise.evaluate.choice.rows import Row
from statewise.evaluate.choice.run import measure
from statewise.evaluate.choice.superglue import MACRO_F1, PROMPTS, superglue_task, word_f1
from statewise.evaluate.likelihood import Score

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
TOKENIZER = ByteTokenizer()
QUESTION = {"question": "a", "choices": ["b", "c"], "answer": 0}


@pytest.fixture(scope="module")
def superglue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("superglue")
    write_superglue(folder, n_validation=4, n_train=4)
    return folder


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


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
    from statewise.evaluate.choice.shots import contexts

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
    with pytest.raises(DataError, match="only 0 are another question"):
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


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "own.jsonl is empty"),
        (["{'a': 1}"], r"own.jsonl, line 1 is not JSON \(Expecting property name"),
        ([QUESTION, "", "[1]"], r"line 3 is \[1\]; write one object a line"),
        ([{"choices": ["b", "c"], "answer": 0}], 'line 1 has no "question"; it has choices, answer'),
        ([{**QUESTION, "question": 3}], 'line 1: "question" is 3, but has to be a text'),
        ([{**QUESTION, "choices": "ab"}], 'line 1: "choices" is "ab", but has to be a list'),
        ([{**QUESTION, "choices": ["b", 1]}], r"line 1: choices\[1\] is 1, but has to be a text"),
        ([{**QUESTION, "choices": ["b"]}], 'line 1: "choices" has 1 of them; give at least two'),
        ([{**QUESTION, "choices": ["b", ""]}], "line 1: choice 1 is empty"),
        ([{**QUESTION, "choices": [" \t", "b"]}], "line 1: choice 0 is empty"),
        ([{**QUESTION, "choices": ["b", "c", "b"]}], "line 1: choices 0 and 2 are the same text"),
        ([QUESTION, "[" * 100_000], "line 2 has brackets too deep to be read"),
        ([QUESTION, f'{{"answer": {"1" * 5_000}}}'], "line 2 has a number of too many digits to be read"),
        ([QUESTION, {**QUESTION, "answer": 2}], "line 2 has the answer 2, which should be one of its 2 choices"),
        ([{**QUESTION, "answer": "z"}], "line 1 has the answer 'z'"),
        ([{**QUESTION, "answer": True}], "line 1 has the answer True"),
        ([{"question": "a", "choices": ["b", "c"]}], "line 1 has no answer"),
    ],
)
def test_a_wrong_line_is_named(rows: list[Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        open_tasks([str(write_rows(tmp_path / "own.jsonl", rows))])
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps(QUESTION), "utf-8-sig")
    assert open_tasks([str(tmp_path / "own.jsonl")])[0].questions[0].prompt == "a"
    with zipfile.ZipFile(tmp_path / "blimp.zip", "w") as archive:
        archive.writestr("causative.jsonl", "\ufeff" + json.dumps({"sentence_good": "a\u2028b", "sentence_bad": "b"}))
    assert open_tasks(["blimp_causative"], tmp_path)[0].questions[0].choices == ("a\u2028b", "b")


@pytest.mark.parametrize("kind", ["damaged", "locked", "packed otherwise"])
def test_an_archive_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    path, name = tmp_path / "blimp.zip", "causative.jsonl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, json.dumps({"sentence_good": "a b", "sentence_bad": "b a"}) * 9)
    raw = bytearray(path.read_bytes())
    listed = raw.index(b"PK\1\2")  # its flags are 8 bytes on, its kind of packing 10; 6 and 8 of the file itself
    if kind == "damaged":
        raw[30 + len(name) : 40 + len(name)] = b"\xff" * 10
    elif kind == "locked":
        raw[6] |= 1
        raw[listed + 8] |= 1
    else:
        raw[8] = raw[listed + 10] = 97
    path.write_bytes(raw)
    with pytest.raises(
        DataError, match=r"blimp.zip cannot be read for its causative.jsonl \(.*get .* git clone"
    ) as error:
        open_tasks(["blimp_causative"], tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("which", ["good", "bad"])
def test_a_sentence_of_blimp_is_not_empty(which: str, tmp_path: Path) -> None:
    row = {"sentence_good": "a", "sentence_bad": "b", f"sentence_{which}": " "}
    write_rows(tmp_path / "causative.jsonl", [row])
    with pytest.raises(DataError, match=f'causative.jsonl, line 1: "sentence_{which}" is empty'):
        open_tasks(["blimp_causative"], tmp_path)


WIC = {"word": "mill", "sentence1": "a mill", "sentence2": "mill", "start1": 2, "end1": 6, "start2": 0, "end2": 4}
WSC = {"text": "a b", "span1_text": "a", "span1_index": 0, "span2_text": "b", "span2_index": 1, "label": 0}
RECORD = {"passage": "Ann ran", "query": "@placeholder sat", "entities": ["Ann"], "answers": ["Ann"]}
PASSAGE = {"text": "Ann ran", "entities": [{"start": 0, "end": 7}]}


@pytest.mark.parametrize(
    ("task", "row", "reason"),
    [
        ("copa", {"premise": "p", "choice1": "a", "choice2": "b", "question": "why", "label": 0}, "expected cause or"),
        ("cb", {"premise": "p", "hypothesis": "h", "label": True}, "has the label True; expected one of entailment"),
        ("copa", {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": False}, "label False"),
        ("wic", {**WIC, "end1": 7, "label": 1}, "word of sentence1 is said to be from character 2 to 7 of 6; expected"),
        ("wic", {**WIC, "start2": -4, "label": 1}, "line 1: the word of sentence2 is said to be from character -4 to"),
        ("wsc", {**WSC, "span2_index": 2}, 'line 1: "span2_index" is 2; expected the number of one of its 2 words'),
        ("wsc", {**WSC, "span2_index": -1}, '"span2_index" is -1'),
        ("record", {**RECORD, "query": "who sat"}, 'line 1: "query" has no @placeholder'),
        ("record", {**RECORD, "answers": ["Bo"]}, "line 1 has the answer 'Bo', which is none of its 1 entities"),
        ("record", {"passage": PASSAGE, "qas": []}, r"passage, entities\[0\] is from character 0 to 7 of 7; expected"),
        ("boolq", {"question": "q", "label": True}, 'line 1 has no "passage"'),
        ("boolq", {"question": "q", "passage": "p"}, "has no label; expected one of False, True"),
        ("rte", {"premise": "p", "hypothesis": "h", "label": "yes"}, "has the label 'yes'; expected one of entailment"),
        ("cb", {"premise": "p", "hypothesis": "h", "label": -1}, "the answers of the test files are not published"),
        ("multirc", {"passage": {"text": "t", "questions": [3]}}, r"passage, questions\[0\] is 3, but has to be"),
        ("record", {"passage": "t", "query": "q", "entities": [], "answers": ["a"]}, "has 0 entities and 1 answers"),
        ("wsc", {"text": "t", "target": {"span1_text": "t"}, "label": 0}, 'line 1, target has no "span2_text"'),
    ],
)
def test_a_wrong_row_of_superglue_is_named(task: str, row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / task).mkdir()
    write_rows(tmp_path / task / "val.jsonl", [row])
    with pytest.raises(DataError, match=reason):
        open_tasks([task], tmp_path)


def test_what_is_missing_is_said_with_the_command(tmp_path: Path, superglue: Path) -> None:
    for names, shots, reason in (
        (["copa"], 0, r"COPA/val.jsonl is not in .*; get it with: curl -LO https://\S+/COPA.zip && unzip COPA.zip -d"),
        (["superglue"], 0, r"WSC/val.jsonl, .*COPA/val.jsonl are not in .*combined.zip"),
        (["lambada"], 0, "lambada_test.jsonl is not in .*curl -L --create-dirs"),
        (["blimp_causative"], 0, r"BLiMP's causative.jsonl is not in .*git clone"),
        (["no/such.jsonl"], 0, "cannot read no/such.jsonl: No such file"),
    ):
        with pytest.raises(DataError, match=reason):
            open_tasks(names, tmp_path, n_shots=shots)
    (tmp_path / "RTE").mkdir()
    write_rows(tmp_path / "RTE" / "val.jsonl", [{"premise": "p", "hypothesis": "h", "label": 0}])
    assert open_tasks(["rte"], tmp_path)[0].examples == ()
    with pytest.raises(DataError, match=r"RTE/train\.jsonl is not in"):
        open_tasks(["rte"], tmp_path, n_shots=3)
    (tmp_path / "blimp.zip").write_text("no archive")
    with pytest.raises(DataError, match=r"blimp.zip cannot be read"):
        open_tasks(["blimp_causative"], tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        open_tasks(["rte"], tmp_path / "none")


def test_bad_requests(superglue: Path, tmp_path: Path) -> None:
    for names, options, reason in (
        ([], {}, "no questions are named"),
        (["blimq"], {}, r"no questions called 'blimq' \(did you mean blimp\?\); known are"),
        (["zzz"], {}, "no questions called 'zzz'; known are"),
        (["blimp"], {"n_shots": 1}, "blimp_\\w+ has no examples"),
        (["lambada"], {"n_shots": 1}, "lambada has no examples"),
        (["rte"], {"n_shots": -1}, "n_shots=-1"),
        (["rte"], {"limit": 0}, "limit=0"),
    ):
        with pytest.raises(ConfigError, match=reason):
            open_tasks(names, superglue, **options)
    (tmp_path / "rte.jsonl").write_text(json.dumps(QUESTION))
    with pytest.raises(ConfigError, match="both called rte"):
        open_tasks(["rte", str(tmp_path / "rte.jsonl")], superglue)
    (task,) = open_tasks(["rte"], superglue)
    small = sw.LanguageModelConfig(vocab_size=20, d_model=8, layers=(sw.MambaConfig(d_state=4),)).build()
    for model, options, reason in (
        (small, {}, "257 ids and the model 20"),
        (MODELS["mamba"], {"batch_size": 0}, "batch_size=0"),
        (MODELS["mamba"], {"max_length": 0}, "max_length=0"),
    ):
        with pytest.raises(ConfigError, match=reason):
            evaluate_questions(model, TOKENIZER, [task], **options)
    none = QuestionTask(name="none", questions=[], examples=None)
    with pytest.raises(InputError, match="none has no questions"):
        evaluate_questions(MODELS["mamba"], TOKENIZER, [none])
    word = QuestionTask(name="word", questions=[asked({}, "a", ("b",), 0)], examples=None)
    with pytest.raises(ConfigError, match="word has no examples"):
        evaluate_questions(MODELS["mamba"], TOKENIZER, [word], n_shots=1)


def test_by_name(superglue: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A stand-in for the package datasets: what it is asked for, and what becomes of its failure or its absence."""
    calls: list[tuple[str, str, str]] = []
    module: Any = types.ModuleType("datasets")

    def load_dataset(path: str, name: str, split: str) -> list[dict[str, Any]]:
        calls.append((path, name, split))
        if path != "aps/super_glue":
            raise ConnectionError("no network\nhere")
        file = superglue / "columns" / name.removesuffix(".fixed") / f"{split}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def load_dataset_loudly(*args: str, **options: str) -> list[dict[str, Any]]:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s")
        return load_dataset(*args, **options)

    module.load_dataset = load_dataset_loudly
    monkeypatch.setitem(sys.modules, "datasets", module)
    (fetched,) = open_tasks(["wsc"], n_shots=2)
    (local,) = open_tasks(["wsc"], superglue / "columns", n_shots=2)
    assert [q.prompt for q in fetched.questions] == [q.prompt for q in local.questions]
    assert calls == [("aps/super_glue", "wsc.fixed", "validation"), ("aps/super_glue", "wsc.fixed", "train")]
    for name in ("lambada", "blimp_causative"):
        with pytest.raises(DataError, match=r"cannot be fetched by datasets \(ConnectionError: no network here\); get"):
            open_tasks([name])
    assert "Retrying" not in caplog.text
    logging.getLogger("huggingface_hub.utils._http").warning("Retrying of others")
    assert "Retrying of others" in caplog.text
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "statewise\[eval\]"; or get the files with: curl'):
        open_tasks(["rte"])
