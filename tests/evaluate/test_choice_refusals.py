"""Questions by likelihood: one line for data that are wrong, damaged or missing, and for bad requests."""

from __future__ import annotations

import json
import logging
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from places import SHARED
from questions import QUESTION, write_rows
from scored_models import MODELS

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import ConfigError, DataError, InputError
from statewise.evaluate.questions import (
    QuestionTask,
    evaluate_questions,
    open_tasks,
)
from statewise.evaluate.questions.question import asked

DATA = SHARED
TOKENIZER = ByteTokenizer()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "own.jsonl is empty"),
        (["{'a': 1}"], r"own.jsonl, line 1 is not JSON \(Expecting property name"),
        ([QUESTION, "", "[1]"], r"line 3 is \[1\]; write one object a line"),
        ([{"choices": ["b", "c"], "answer": 0}], 'line 1 has no "question"; it has choices, answer'),
        ([{**QUESTION, "question": 3}], 'line 1: "question" is 3; expected a text'),
        ([{**QUESTION, "choices": "ab"}], 'line 1: "choices" is "ab"; expected a list'),
        ([{**QUESTION, "choices": ["b", 1]}], r"line 1: choices\[1\] is 1; expected a text"),
        ([{**QUESTION, "choices": ["b"]}], 'line 1: "choices" has 1 of them; give at least two'),
        ([{**QUESTION, "choices": ["b", ""]}], "line 1: choice 1 is empty"),
        ([{**QUESTION, "choices": [" \t", "b"]}], "line 1: choice 0 is empty"),
        ([{**QUESTION, "choices": ["b", "c", "b"]}], "line 1: choices 0 and 2 are the same text"),
        ([QUESTION, "[" * 100_000], "line 2 has brackets too deep to be read"),
        ([{**QUESTION, "question": "a \ud800"}], 'line 1: "question" is not valid Unicode: surrogates not allowed at'),
        ([{**QUESTION, "choices": ["b", "\ud800"]}], r"line 1: choices\[1\] is not valid Unicode"),
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
        ("wic", {**WIC, "end1": 7, "label": 1}, "word of sentence1 is given as characters 2 to 7 of 6; expected"),
        ("wic", {**WIC, "start2": -4, "label": 1}, "line 1: the word of sentence2 is given as characters -4 to"),
        ("wsc", {**WSC, "span2_index": 2}, 'line 1: "span2_index" is 2; expected the number of one of its 2 words'),
        ("wsc", {**WSC, "span2_index": -1}, '"span2_index" is -1'),
        ("record", {**RECORD, "query": "who sat"}, 'line 1: "query" has no @placeholder'),
        ("record", {**RECORD, "answers": ["Bo"]}, "line 1 has the answer 'Bo', which is not one of its 1 entities"),
        ("record", {"passage": PASSAGE, "qas": []}, r"passage, entities\[0\] is from character 0 to 7 of 7; expected"),
        ("boolq", {"question": "q", "label": True}, 'line 1 has no "passage"'),
        ("boolq", {"question": "q", "passage": "p"}, "has no label; expected one of False, True"),
        ("rte", {"premise": "p", "hypothesis": "h", "label": "yes"}, "has the label 'yes'; expected one of entailment"),
        ("cb", {"premise": "p", "hypothesis": "h", "label": -1}, "the answers of the test files are not published"),
        ("multirc", {"passage": {"text": "t", "questions": [3]}}, r"passage, questions\[0\] is 3; expected"),
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
        (
            ["copa"],
            0,
            r"COPA/val.jsonl is not in .*; get it with: curl .*COPA.zip && mkdir -p \S+ && unzip COPA.zip -d",
        ),
        (["superglue"], 0, r"WSC/val.jsonl, .*COPA/val.jsonl are not in .*combined.zip"),
        (["lambada"], 0, "lambada_test.jsonl is not in .*curl -L --create-dirs"),
        (["blimp_causative"], 0, r"BLiMP's causative.jsonl is not in .*git clone"),
        (["no/such.jsonl"], 0, "cannot read no/such.jsonl: No such file"),
        (["no/such.JSONL"], 0, "cannot read no/such.JSONL: No such file"),
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


def test_the_commands_for_what_is_missing_can_be_pasted(tmp_path: Path) -> None:
    """Into a folder that is not there yet, has a space in its name, or holds other files already."""
    folder = tmp_path / "my data"
    with pytest.raises(DataError) as error:
        open_tasks(["lambada", "blimp_causative", "rte", "wic"], folder)
    assert str(error.value) == (
        f"lambada_test.jsonl, BLiMP's causative.jsonl, RTE/val.jsonl, WiC/val.jsonl are not in {folder}, which does "
        "not exist; get them with: curl -LO https://dl.fbaipublicfiles.com/glue/superglue/data/v2/combined.zip && "
        f"mkdir -p '{folder}' && unzip combined.zip -d '{folder}' && "
        f"curl -L --create-dirs -o '{folder}'/lambada_test.jsonl "
        "https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl && git clone "
        f"https://github.com/alexwarstadt/blimp '{folder}'/blimp"
    )
    (folder / "blimp" / "data").mkdir(parents=True)  # as that repository has it
    row = {"sentence_good": "a b", "sentence_bad": "b a", "UID": "causative"}
    write_rows(folder / "blimp" / "data" / "causative.jsonl", [row])
    write_rows(folder / "lambada_test.jsonl", [{"text": "a b"}])
    assert [task.name for task in open_tasks(["lambada", "blimp_causative"], folder)] == ["lambada", "blimp_causative"]
    with pytest.raises(DataError, match=rf"is not in .*lambada_test.jsonl; .* -d '{tmp_path}/my data'$"):
        open_tasks(["copa"], folder / "lambada_test.jsonl")


def test_bad_requests(superglue: Path, tmp_path: Path) -> None:
    for names, options, reason in (
        ([], {}, "no questions are named"),
        (["blimq"], {}, r"no task called 'blimq' \(did you mean blimp\?\); known names:"),
        (["zzz"], {}, "no task called 'zzz'; known names:"),
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
        (small, {}, "257 ids and the model only 20"),
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
        with pytest.raises(
            DataError, match=r"cannot be fetched by datasets \(ConnectionError: no network here\); fetch"
        ):
            open_tasks([name])
    calls.clear()
    with pytest.raises(DataError, match=r"combined.zip -d DIR .* DIR/lambada_test.jsonl .* DIR/blimp,"):
        open_tasks(["lambada", "superglue", "blimp"])
    assert len(calls) <= 1  # the first attempt says it for all
    assert "Retrying" not in caplog.text
    logging.getLogger("huggingface_hub.utils._http").warning("Retrying of others")
    assert "Retrying of others" in caplog.text
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "statewise\[eval\]"; fetch the files yourself with: curl'):
        open_tasks(["rte"])
