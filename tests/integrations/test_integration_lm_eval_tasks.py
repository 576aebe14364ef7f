"""lm-eval's tasks on local files of real data: the numbers of lm-eval's own "hf" model, the command line, the page."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import ConfigError, DataError

pytest.importorskip("lm_eval", reason='lm-eval is not installed; pip install "statewise[eval]"')

import datasets
import lm_eval
from lm_eval.tasks import TaskManager

from statewise.cli import run as run_command
from statewise.integrations.lm_eval import StatewiseLM
from statewise.integrations.lm_eval.tasks import evaluate_tasks, task_tables

DATA = ROOT.parent / "shared" / "data"
N_ITEMS = 12

LOCAL = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
metadata: {{version: 1.0}}
"""
LAMBADA = """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' ' + text.split(' ')[-1]}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
BLIMP = """
output_type: multiple_choice
num_fewshot: 0
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[sentence_good, sentence_bad]}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
CHOICE = """
output_type: multiple_choice
fewshot_split: test
fewshot_config: {sampler: first_n}
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""


def local_task(folder: Path, name: str, rest: str, rows: list[dict[str, Any]]) -> None:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.yaml").write_text(LOCAL.format(name=name, file=file) + rest)


def choices_of(text: str) -> list[dict[str, Any]]:
    """Which of four lines comes next in a text?"""
    lines = [line for line in text.splitlines() if len(line) > 20]
    rows = []
    for i in range(N_ITEMS):
        at = 20 + 9 * i
        order = [lines[(at + 37 * k) % len(lines)][:24] for k in range(4)]
        answer = i % 4
        order[0], order[answer] = order[answer], order[0]
        rows.append({"question": "\n".join(lines[at - 6 : at]), "choices": order, "answer": answer})
    return rows


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = (sw.MambaConfig(d_state=4), sw.AttentionConfig(n_heads=4), sw.MambaConfig(d_state=4))
    return sw.LanguageModelConfig(vocab_size=257, d_model=32, layers=layers).build().double().eval()


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions from the text of this repository; LAMBADA and BLiMP where they are."""
    folder = tmp_path_factory.mktemp("tasks")
    questions = choices_of((ROOT / "README.md").read_text("utf-8"))
    local_task(folder, "next_line", CHOICE, questions)
    local_task(folder, "rolling", ROLLING, questions)
    if (DATA / "lambada_test.jsonl").exists():
        with open(DATA / "lambada_test.jsonl", encoding="utf-8") as file:
            local_task(
                folder, "lambada_file", LAMBADA, [{"text": json.loads(next(file))["text"]} for _ in range(N_ITEMS)]
            )
    if (DATA / "blimp.zip").exists():
        with zipfile.ZipFile(DATA / "blimp.zip") as archive:
            name = next(name for name in archive.namelist() if name.endswith("anaphor_gender_agreement.jsonl"))
            lines = archive.read(name).decode().splitlines()[: 2 * N_ITEMS]
        rows = [{key: json.loads(line)[key] for key in ("sentence_good", "sentence_bad")} for line in lines]
        local_task(folder, "blimp_file", BLIMP, rows)
    return folder


def test_examples_are_no_questions_that_are_asked(model: sw.LanguageModel, tmp_path: Path) -> None:
    """lm-eval leaves the question asked out of its examples only where the file names the split of both."""
    rows = choices_of((ROOT / "README.md").read_text("utf-8"))
    lm = StatewiseLM(model, tokenizer="bytes")
    without = CHOICE.replace("fewshot_split: test\n", "")
    local_task(tmp_path, "leaking", without, rows)
    local_task(tmp_path, "as_it_says", without + "num_fewshot: 1\n", rows)
    local_task(tmp_path, "apart", CHOICE, rows)
    for name, shots in (("leaking", 2), ("as_it_says", None)):
        with pytest.raises(DataError, match=f"the task {name} .*draws its examples from the questions that it asks"):
            evaluate_tasks(lm, [name], include_path=tmp_path, n_shots=shots, limit=1)
    evaluate_tasks(lm, ["leaking", "as_it_says"], include_path=tmp_path, n_shots=0, limit=1)
    local_task(tmp_path, "none", without + "num_fewshot: 0\n", rows)
    evaluate_tasks(lm, ["none"], include_path=tmp_path, n_shots=2, limit=1)  # of which lm-eval draws none
    found = evaluate_tasks(lm, ["apart"], include_path=tmp_path, n_shots=2, limit=2, log_samples=True)
    for sample in found["lm_eval"]["samples"]["apart"]:
        context = sample["arguments"][0][0]
        assert context.count(sample["doc"]["question"]) == 1


ROLLING = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
"""


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("name", ["next_line", "rolling", "lambada_file", "blimp_file"])
def test_the_numbers_of_the_transformers_wrapper(name: str, begin: bool, tasks: Path, model: sw.LanguageModel) -> None:
    if not (tasks / f"{name}.yaml").exists():
        pytest.skip("shared/data is not here")
    pytest.importorskip("transformers")
    from lm_eval.models.huggingface import HFLM

    from statewise.integrations.transformers import fast_tokenizer, from_statewise

    shots = 3 if name == "next_line" else None
    ours = evaluate_tasks(
        StatewiseLM(model, tokenizer="bytes", batch_size=5, add_bos_token=begin),
        [name],
        include_path=tasks,
        n_shots=shots,
        log_samples=True,
    )["lm_eval"]
    told = None if begin and name != "rolling" else False  # theirs asks for the token that begins a text, too
    wrapped = HFLM(
        from_statewise(model),
        tokenizer=fast_tokenizer(ByteTokenizer()),
        batch_size=4,
        max_length=100_000,
        add_bos_token=told,
    )
    theirs = lm_eval.simple_evaluate(
        wrapped,
        tasks=[name],
        num_fewshot=shots,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=10,
    )
    for a, b in zip(ours["samples"][name], theirs["samples"][name], strict=True):
        assert a["arguments"] == b["arguments"]
        for (one,), (other,) in zip(a["resps"], b["resps"], strict=True):
            if name == "rolling":
                assert one == pytest.approx(other, rel=1e-9)
                continue
            assert one[0] == pytest.approx(other[0], rel=1e-9)
            assert one[1] == other[1]
    for metric in ("acc,none", "acc_stderr,none", "acc_norm,none"):
        assert ours["results"][name].get(metric) == theirs["results"][name].get(metric)
    for metric in ("perplexity,none", "bits_per_byte,none"):
        expected = theirs["results"][name].get(metric)
        assert ours["results"][name].get(metric) == (None if expected is None else pytest.approx(expected, rel=1e-9))


def test_record_and_table(tasks: Path, model: sw.LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    lm = StatewiseLM(model, tokenizer="bytes")
    record = evaluate_tasks(lm, [str(tasks / "next_line.yaml")], limit=8)
    first, second = record["results"]
    assert (first["task"], first["metric"], second["metric"]) == ("next_line", "acc", "acc_norm")
    p = first["value"]
    assert first["standard_error"] == pytest.approx((p * (1 - p) / 7) ** 0.5)
    assert (first["n_samples"], first["n_shots"], first["higher_is_better"]) == (8, 0, True)
    (table,) = task_tables(record)
    assert [row[:2] for row in table.rows] == [("next_line", "acc"), ("next_line", "acc_norm")]
    assert capsys.readouterr().out == ""


def test_what_cannot_be_evaluated(tasks: Path, model: sw.LanguageModel, tmp_path: Path) -> None:
    lm = StatewiseLM(model, tokenizer="bytes")
    (tmp_path / "gone.yaml").write_text(LOCAL.format(name="gone", file=tmp_path / "gone.jsonl") + CHOICE)
    for error, reason, arguments in (
        (DataError, "the task gone cannot be loaded", {"tasks": ["gone"], "include_path": tmp_path}),
        (DataError, "there is no folder", {"tasks": ["next_line"], "include_path": tmp_path / "none"}),
        (ConfigError, "no task is named", {"tasks": []}),
        (ConfigError, "limit=0", {"tasks": ["next_line"], "limit": 0}),
        (ConfigError, "n_shots=-1", {"tasks": ["next_line"], "n_shots": -1}),
    ):
        with pytest.raises(error, match=reason):
            evaluate_tasks(lm, **arguments)


QUESTION = {"question": "a", "choices": ["b", "c"], "answer": 0}


@pytest.mark.parametrize(
    ("rows", "change", "n_shots", "reason"),
    [
        ([], ("", ""), None, r"the task own cannot be loaded: its file \S+own\.jsonl is empty"),
        (None, ("", ""), None, r"cannot be loaded from \S+own\.jsonl: .*; caused by .*JSON parse error"),
        (
            [{**QUESTION, "answer": 7}],
            ("", ""),
            None,
            "question 1 of the task own .*the answer 7, which is not one of its 2",
        ),
        ([QUESTION, {**QUESTION, "answer": 2}], ("", ""), None, "question 2 of the task own .*the answer 2"),
        ([QUESTION, {**QUESTION, "answer": "z"}], ("", ""), None, "question 2 of the task own .*the answer 'z'"),
        ([{**QUESTION, "choices": ["", "c"]}], ("", ""), None, "question 1 of the task own .*has an empty choice"),
        (
            [QUESTION] * 2,
            ("", ""),
            5,
            r"evaluating own failed: AssertionError: .*\(5 examples .*there are 2 to draw from",
        ),
        ([QUESTION] * 2, ("metric: acc,", "metric: nosuch,"), None, "asks for the metric 'nosuch'"),
        ([QUESTION] * 2, ("metric: acc,", "metric: perplexity,"), None, r"no value: none of its metrics \(perplexity"),
    ],
)
def test_bad_tasks_are_one_line(
    rows: list[dict[str, Any]] | None,
    change: tuple[str, str],
    n_shots: int | None,
    reason: str,
    model: sw.LanguageModel,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = CHOICE.replace("  - {metric: acc_norm, aggregation: mean, higher_is_better: true}\n", "").replace(*change)
    local_task(tmp_path, "own", text, rows or [])
    if rows is None:
        (tmp_path / "own.jsonl").write_text('{"question": ')
    with pytest.raises(DataError, match=reason) as caught:
        evaluate_tasks(StatewiseLM(model, tokenizer="bytes"), ["own"], include_path=tmp_path, n_shots=n_shots)
    assert "\n" not in str(caught.value)
    assert "fatal: not a git repository" not in capfd.readouterr().err  # lm-eval asks git where it is


def test_a_broken_task_file_is_named(model: sw.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text("task: [own\n  x: : y\n")
    empty = TaskManager(include_defaults=False)
    monkeypatch.setattr("statewise.integrations.lm_eval.tasks.TaskManager", lambda **options: empty)  # theirs are many
    with pytest.raises(ConfigError, match=r"no task 'own', nor in .*own\.yaml is not valid YAML: line 2: expected"):
        evaluate_tasks(StatewiseLM(model, tokenizer="bytes"), ["own"], include_path=tmp_path)


def test_command_line(tasks: Path, model: sw.LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sw.save(model, tmp_path / "model", tokenizer=ByteTokenizer())
    words = ["evaluate", "model", "--tasks", "next_*", "--include-path", str(tasks), "--limit", "4", "--shots", "2"]
    assert run_command([*words, "--output", "out.json", "--document-token", "--max-length", "5000"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["metric"] for row in record["results"]] == ["acc", "acc_norm"]
    whole = json.loads((tmp_path / "out.json").read_text())
    assert whole["results"] == record["results"]
    assert len(whole["lm_eval"]["samples"]["next_line"]) == 4
    assert run_command([*words, "--no-json"]) == 0
    assert "±" in capsys.readouterr().out
    for wrong, named in (
        ([*words, "--output", "out.json"], "out.json exists already"),
        ([*words, "--split", "test"], "--split"),
        (["evaluate", "model", "--limit", "4"], "goes with --tasks"),
        (["evaluate", "model", "--tasks", "next_line", "--include-path", "none"], "there is no folder none"),
    ):
        assert run_command(wrong) == 2
        assert named in capsys.readouterr().err


def test_the_page_runs(tasks: Path, tmp_path: Path, model: sw.LanguageModel) -> None:
    """Its blocks that need lm-eval are marked py, so that the other pages' test leaves them out."""
    sw.save(model, tmp_path / "runs" / "demo", tokenizer=ByteTokenizer())
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
    (yaml,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (lines,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "capitals.yaml").write_text(yaml)
    (tmp_path / "tasks" / "capitals.jsonl").write_text(lines)
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(block, namespace)
