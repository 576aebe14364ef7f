"""The commands for any task; runs written before there were others go on."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from places import TESTS
from toy_task import ToyConfig, ToyDataConfig, toy
from training_runs import curve

import statewise as sw
from statewise import checkpoints
from statewise.training import read_run, run_from_dict, train_run

OLD = TESTS / "run_0_1_0"  # a text and a run on it, written by the first version


pytestmark = pytest.mark.usefixtures(toy.__name__)


def test_train_and_evaluate_and_info(run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    records = [json.loads(text) for text in run("train", "--preset", "toy", "--epochs", "2", "--out", "a").splitlines()]
    assert [records[0]["kind"], records[-1]["kind"], records[-1]["step"]] == ["start", "end", 16]
    record = json.loads(run("evaluate", "a"))
    assert (record["split"], record["sequences"], len(record["right"])) == ("test", 64, 64)
    assert record["checkpoint"] == str(checkpoints.resolve("a"))
    few = json.loads(run("evaluate", "a", "--split", "train", "--max-items", "5", "--plot", "right.png"))
    assert (few["split"], few["sequences"]) == ("train", 5)
    assert Path("right.png").read_bytes().startswith(b"\x89PNG")

    info = json.loads(run("info", "a"))
    assert info["configuration"]["type"] == "ToyConfig"
    assert [part["part"] for part in info["parts"]] == ["embedding", "layer", "count", "head"]
    model = ToyConfig().build()
    assert sum(part["parameters"] for part in info["parts"]) == sum(p.numel() for p in model.parameters())

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "140")
    shown = run("evaluate", "a")
    assert f"{record['accuracy']:.4f}" in shown
    assert "ToyConfig" in run("info", "a")
    shown = run("train", "--resume", "a", "--steps", "20")
    assert "64 points" in shown
    assert "validation accuracy" in shown
    assert "seq/s" in shown


def test_flags_of_the_data(run: Callable[..., str], tmp_path: Path) -> None:
    printed = json.loads(run("train", "--preset", "toy", "--data", "space", "--data-dir", "here", "--print-config"))
    assert (printed["data"]["source"], printed["data"]["folder"]) == ("space", "here")
    assert printed["model"]["d_input"] == 3, "it follows from the data"
    own = run("train", "--preset", "toy", "--data", "space", "--set", "model.d_input=7", "--print-config")
    assert json.loads(own)["model"]["d_input"] == 7, "unless it was given"
    Path("toy.json").write_text(json.dumps(printed))
    again = json.loads(run("train", "--config", "toy.json", "--print-config"))
    assert again == printed
    run("train", "--config", "toy.json", "--steps", "2", "--out", "b")
    assert read_run("b").data == ToyDataConfig(source="space", folder=str(tmp_path / "here"))
    budget = json.loads(run("train", "--preset", "toy", "--epochs", "3", "--print-config"))["train"]["budget"]
    assert (budget["steps"], budget["epochs"], budget["minutes"]) == (None, 3.0, None)


def test_mistakes_are_one_line(run: Callable[..., str]) -> None:
    run("train", "--preset", "toy", "--out", "a")
    toy = ("train", "--preset", "toy", "--out", "b")
    for words, named in (
        ((*toy, "--tokenizer", "bytes"), "--tokenizer is not for ToyDataConfig"),
        ((*toy, "--length", "64"), "train.length=64"),
        ((*toy, "--data", "moon"), "data.source='moon' is unknown"),
        ((*toy, "--set", "train.carry_state=true"), "carry_state"),
        ((*toy, "--set", "data.n_pionts=3"), "did you mean 'n_points'"),
        ((*toy, "--set", 'data={"type": "Nothing"}'), "data.type='Nothing' is unknown here"),
        (("train", "--preset", "tiny", "--data-dir", "x", "--out", "b"), "--data-dir is not for TextDataConfig"),
        (("train", "--resume", "a", "--set", "data.n_points=32"), "data.n_points"),
        (("generate", "a", "--prompt", "x"), "holds a Toy, which cannot write text"),
        (("evaluate", "a", "--window", "5"), "--window is not for a Toy on plane"),
        (("evaluate", "a", "--no-compressors"), "--compressors is not for a Toy"),
        (("evaluate", "a", "--across-documents"), "--across-documents is not"),
        (("evaluate", "a", "--tokenizer", "bytes"), "--tokenizer is not for ToyDataConfig"),
        (("evaluate", "a", "--text-file", "toy.txt"), "--text-file is not for a Toy"),
        (("evaluate", "a", "--split", "tests"), "there is no split 'tests'"),
        (("evaluate", "a", "--plot", "a.xyz"), "a.xyz"),
        (("evaluate", "a/checkpoints/step-00000008"), "which data to evaluate it on; give the run folder"),
        (("evaluate", "a", "--data", "space"), "model.d_input has to be 3"),
    ):
        Path("toy.txt").write_text("x")
        assert named in run(*words, code=2), words
        assert not Path("b/run.json").exists()


def test_a_plot_of_text_is_refused(run: Callable[..., str]) -> None:
    shutil.copytree(OLD, "old")
    run("train", "--resume", "old/run", "--set", "data.source=old/text.txt", "--steps", "8")
    line = run("evaluate", "old/run", "--plot", "x.png", code=2)
    assert "--plot: a LanguageModel on text has no picture to draw" in line


# Runs from before
def test_a_run_of_the_first_version(run: Callable[..., str]) -> None:
    """Its run.json has no types, its trainer's data another name for the metric; it resolves, resumes, evaluates."""
    shutil.copytree(OLD, "old")
    raw = json.loads(Path("old/run/run.json").read_text())
    assert "type" not in raw["model"]
    assert "evaluate_tokens" in raw["train"]
    config = read_run("old/run")
    assert isinstance(config.model, sw.LanguageModelConfig)
    assert (config.train.reporting.evaluate_items, config.train.length) == (200, 8)
    assert run_from_dict(raw) == config

    found = checkpoints.list_checkpoints("old/run")
    assert [(c.step, c.metric, c.higher_is_better) for c in found] == [
        (2, "bits_per_byte", False),
        (6, "bits_per_byte", False),
    ]
    assert checkpoints.resolve("old/run").name == "step-00000002"
    assert isinstance(checkpoints.load(checkpoints.resolve("old/run")), sw.LanguageModel)

    before = curve(Path("old/run"))
    record = json.loads(
        run(
            "evaluate",
            "old/run",
            "--data",
            "old/text.txt",
            "--split",
            "validation",
            "--max-tokens",
            "200",
            "--streams",
            "2",
        )
    )
    (best,) = [line["bits_per_byte"] for line in before if line["kind"] == "evaluation" and line["step"] == 2]
    assert record["bits_per_byte"] == pytest.approx(best, rel=1e-5)

    out = run("train", "--resume", "old/run", "--set", "data.source=old/text.txt", "--steps", "8")
    assert json.loads(out.splitlines()[-1])["step"] == 8
    after = curve(Path("old/run"))
    assert after[: len(before)] == before
    scores = [line["bits_per_byte"] for line in after if line["kind"] == "evaluation"]
    assert [line["best"] for line in after if line["kind"] == "evaluation"] == [True, False, False, scores[3] < best]
    assert checkpoints.resolve("old/run").name == ("step-00000008" if scores[3] < best else "step-00000002")
    assert json.loads(Path("old/run/run.json").read_text())["model"]["type"] == "LanguageModelConfig"


def test_the_first_versions_steps_are_done_again(tmp_path: Path) -> None:
    """From its checkpoint at step 2, with everything in it, to the losses that it wrote itself."""
    shutil.copytree(OLD, tmp_path / "old")
    run = tmp_path / "old" / "run"
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    config = read_run(run)
    moved = replace(config, data=replace(config.data, source=str(tmp_path / "old" / "text.txt")))
    train_run(moved, run, resume=True)
    one = [line["loss"] for line in curve(OLD / "run", "train")]
    assert [line["loss"] for line in curve(run, "train")] == pytest.approx(one, rel=1e-3)
    assert torch.is_grad_enabled()
