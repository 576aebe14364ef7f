"""Questions of our own beside lm-eval: its files' prompts, its examples, its hf model over the same weights."""

from __future__ import annotations

import json
import sys
import types
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from places import SHARED
from questions import MAKERS, write_superglue

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.evaluate.questions import QuestionResults, evaluate_questions, open_tasks
from statewise.evaluate.questions.shots import contexts

pytest.importorskip("lm_eval", reason='lm-eval is not installed; pip install "statewise[eval]"')
pytest.importorskip("transformers", reason='transformers is not installed; pip install "statewise[hf]"')

import datasets
import lm_eval
from lm_eval import evaluator
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from statewise.integrations.transformers import fast_tokenizer, from_statewise

FILES = Path(lm_eval.__file__).parent / "tasks"
DATA = SHARED
NORMALIZED = {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = (sw.MambaConfig(d_state=4), sw.AttentionConfig(n_heads=2))
    return sw.LanguageModelConfig(vocab_size=257, d_model=16, layers=layers, embedding_std=0.3).build().double().eval()


@pytest.fixture(scope="module")
def wrapped(model: sw.LanguageModel) -> HFLM:
    return HFLM(
        from_statewise(model),
        tokenizer=fast_tokenizer(ByteTokenizer()),
        batch_size=8,
        max_length=100_000,
        add_bos_token=False,
    )


@pytest.fixture(scope="module")
def superglue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("superglue")
    write_superglue(folder)
    return folder


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    # It asks pip and git what is installed, each time and for seconds.
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None, raising=False)
    monkeypatch.setattr(evaluator, "get_git_commit_hash", lambda: None, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def squad_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's ReCoRD imports them from transformers, which dropped them in version 5: the definitions, once more."""
    module = types.ModuleType("transformers.data.metrics.squad_metrics")

    def words(text: str) -> list[str]:
        kept = "".join(
            letter if letter.isalnum() or letter.isspace() or not letter.isascii() else "" for letter in text
        )
        return [word for word in kept.lower().split() if word not in ("a", "an", "the")]

    def compute_f1(one: str, other: str) -> float:
        a, b = Counter(words(one)), Counter(words(other))
        shared = sum((a & b).values())
        precision, recall = shared / max(b.total(), 1), shared / max(a.total(), 1)
        return 0.0 if shared == 0 else 2 * precision * recall / (precision + recall)

    vars(module).update(compute_f1=compute_f1, compute_exact=lambda one, other: int(words(one) == words(other)))
    monkeypatch.setitem(sys.modules, "transformers.data.metrics", types.ModuleType("transformers.data.metrics"))
    monkeypatch.setitem(sys.modules, "transformers.data.metrics.squad_metrics", module)


def theirs(lm: HFLM, file: Path, data_files: dict[str, str], shots: int | None, **changes: Any) -> dict[str, Any]:
    """One of lm-eval's own task files over local data."""
    config = load_yaml(file, resolve_func=True)
    config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": data_files}, **changes}
    config.pop("tag", None)
    if isinstance(config.get("metric_list"), list) and config.get("process_results") is None:
        config["metric_list"] = [*config["metric_list"], NORMALIZED]
    task = ConfigurableTask(config=config)
    result = lm_eval.simple_evaluate(
        lm,
        tasks=[task],
        num_fewshot=shots,
        bootstrap_iters=20,
        task_manager=TaskManager(include_defaults=False),  # else it reads the head of all its files
    )
    assert result is not None
    (name,) = result["results"]
    return {"results": result["results"][name], "samples": result["samples"][name]}


def ours(
    model: sw.LanguageModel, name: str, folder: Path, shots: int = 0, limit: int | None = None, **options: Any
) -> QuestionResults:
    tasks = open_tasks([name], folder, n_shots=shots, limit=limit)
    return evaluate_questions(model, ByteTokenizer(), tasks, n_shots=shots, document_token=False, **options)


def require_same_requests(results: QuestionResults, name: str, told: list[str], samples: list[dict[str, Any]]) -> None:
    """Texts to the letter, log-probabilities to rounding."""
    for answered, context, sample in zip(results.answers[name], told, samples, strict=True):
        asked = [(context, f" {choice}") for choice in answered.question.choices]
        assert asked == [tuple(given) for given in sample["arguments"]]
        for one, ((other, is_greedy),) in zip(answered.scores, sample["resps"], strict=True):
            assert one.log_probability == pytest.approx(other, rel=1e-9)
            assert one.is_greedy == is_greedy


@pytest.mark.parametrize("shots", [0, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_superglue_has_the_numbers_of_lm_eval(
    name: str, shots: int, superglue: Path, model: sw.LanguageModel, wrapped: HFLM
) -> None:
    files = {split: str(superglue / "columns" / name / f"{split}.jsonl") for split in ("train", "validation")}
    expected = theirs(wrapped, FILES / "super_glue" / name / "default.yaml", files, shots)
    (task,) = open_tasks([name], superglue / "official", n_shots=shots)
    told = list(contexts(task, task.questions, shots))
    assert shots == 0 or told[0].count("\n\n") >= 3
    for normalize in (False, True):
        results = ours(model, name, superglue / "official", shots, normalize=normalize)
        if not normalize:
            require_same_requests(results, name, told, expected["samples"])
        for measure in results.tasks:
            if normalize and name in ("cb", "record") and measure.metric != "acc_norm":
                continue  # lm-eval has these by the sum alone
            assert measure.value == expected["results"][f"{measure.metric},none"], measure.metric
            error = expected["results"][f"{measure.metric}_stderr,none"]
            if error != "N/A":  # it has none for CB's F1
                assert measure.standard_error == pytest.approx(error, rel=1e-12)


def test_record_normalized(superglue: Path, model: sw.LanguageModel, wrapped: HFLM) -> None:
    """lm-eval's ReCoRD knows no normalisation; as a question with several right choices it does."""

    def right(row: dict[str, Any]) -> list[int]:
        return [i for i, entity in enumerate(row["entities"]) if entity in row["answers"]]

    files = {split: str(superglue / "columns" / "record" / f"{split}.jsonl") for split in ("train", "validation")}
    changes = {"process_results": None, "doc_to_target": right, "metric_list": [NORMALIZED]}
    expected = theirs(wrapped, FILES / "super_glue" / "record" / "default.yaml", files, 0, **changes)
    em, f1 = ours(model, "record", superglue / "official", normalize=True).tasks
    assert (em.metric, f1.metric) == ("em_norm", "f1_norm")
    assert em.value == expected["results"]["acc_norm,none"]
    assert f1.value >= em.value


def test_with_the_document_token_before_every_context(superglue: Path, model: sw.LanguageModel) -> None:
    begun = HFLM(from_statewise(model), tokenizer=fast_tokenizer(ByteTokenizer()), batch_size=8, max_length=100_000)
    files = {split: str(superglue / "columns" / "rte" / f"{split}.jsonl") for split in ("train", "validation")}
    expected = theirs(begun, FILES / "super_glue" / "rte" / "default.yaml", files, 3)
    results = evaluate_questions(
        model, ByteTokenizer(), open_tasks(["rte"], superglue / "columns", n_shots=3), n_shots=3, document_token=True
    )
    assert results.tasks[0].value == expected["results"]["acc,none"]
    told = list(contexts(open_tasks(["rte"], superglue / "columns", n_shots=3)[0], [], 3))
    assert told == []
    for answered, sample in zip(results.answers["rte"], expected["samples"], strict=True):
        for one, ((other, _),) in zip(answered.scores, sample["resps"], strict=True):
            assert one.log_probability == pytest.approx(other, rel=1e-9)


@pytest.mark.skipif(not (DATA / "blimp.zip").exists(), reason="shared/data is not here")
@pytest.mark.parametrize("name", ["anaphor_gender_agreement", "principle_A_case_2"])
def test_blimp_has_the_numbers_of_lm_eval(name: str, tmp_path: Path, model: sw.LanguageModel, wrapped: HFLM) -> None:
    with zipfile.ZipFile(DATA / "blimp.zip") as archive:
        lines = archive.read(f"data/{name}.jsonl").decode().splitlines(keepends=True)[:24]
    (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    template = FILES / "blimp" / "_template_yaml"
    expected = theirs(wrapped, template, {"train": str(tmp_path / f"{name}.jsonl")}, None, task=name)
    for normalize, metric in ((False, "acc"), (True, "acc_norm")):
        results = ours(model, f"blimp_{name}", DATA, limit=24, normalize=normalize)
        assert results.tasks[0].value == expected["results"][f"{metric},none"]
        assert results.tasks[0].standard_error == pytest.approx(expected["results"][f"{metric}_stderr,none"])
        assert results.tasks[0].chance == 0.5
    require_same_requests(results, f"blimp_{name}", [""] * 24, expected["samples"])


@pytest.mark.skipif(not (DATA / "lambada_test.jsonl").exists(), reason="shared/data is not here")
def test_lambada_has_the_numbers_of_lm_eval(tmp_path: Path, model: sw.LanguageModel, wrapped: HFLM) -> None:
    lines = (DATA / "lambada_test.jsonl").read_text("utf-8").splitlines(keepends=True)[:12]
    (tmp_path / "lambada_test.jsonl").write_text("".join(lines))
    file = FILES / "lambada" / "lambada_openai.yaml"
    expected = theirs(wrapped, file, {"test": str(tmp_path / "lambada_test.jsonl")}, None)
    results = ours(model, "lambada", DATA, limit=12)
    accuracy, perplexity = results.tasks
    assert accuracy.value == expected["results"]["acc,none"]
    assert perplexity.value == pytest.approx(expected["results"]["perplexity,none"], rel=1e-9)
    require_same_requests(
        results, "lambada", [json.loads(line)["text"].rpartition(" ")[0] for line in lines], expected["samples"]
    )


@pytest.mark.parametrize("shots", [0, 2])
def test_a_file_of_questions_has_the_numbers_of_lm_eval(
    shots: int, tmp_path: Path, model: sw.LanguageModel, wrapped: HFLM
) -> None:
    rows = [
        {"question": f"{i} and {i + 1} make", "choices": [str(2 * i + k) + "!" * k for k in range(4)], "answer": i % 4}
        for i in range(10)
    ]
    rows[7] = dict(rows[2])  # drawn for each other, and then drawn again
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(
        'task: sums\noutput_type: multiple_choice\ntest_split: test\nfewshot_split: test\ndoc_to_text: "{{question}}"\n'
        'doc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\n'
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    expected = theirs(wrapped, tmp_path / "sums.yaml", {"test": str(tmp_path / "sums.jsonl")}, shots)
    path = str(tmp_path / "sums.jsonl")
    (task,) = open_tasks([path], n_shots=shots)
    for normalize, metric in ((False, "acc"), (True, "acc_norm")):
        results = evaluate_questions(
            model, ByteTokenizer(), [task], n_shots=shots, document_token=False, normalize=normalize
        )
        assert results.tasks[0].value == expected["results"][f"{metric},none"]
    require_same_requests(results, "sums", list(contexts(task, task.questions, shots)), expected["samples"])
