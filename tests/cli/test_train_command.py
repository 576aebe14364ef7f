"""`statewise train`: a run, its folder, what goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT, TRAIN, Run, save_tokenizer
from forked_programs import program

import statewise as sw
from statewise.training.presets import GENERAL, PRESETS

pytestmark = pytest.mark.usefixtures("in_workplace")


class TestTrain:
    def test_json_lines_and_folder(self, run: Run) -> None:
        result = run(*TRAIN, "--steps", "4", "--seed", "3", "--out", "first")
        assert (result.code, result.err) == (0, "")
        kinds = [record["kind"] for record in result.records]
        assert [kinds[0], kinds[-1]] == ["start", "end"]
        assert {"train", "evaluation", "checkpoint"} <= set(kinds)
        written = json.loads(Path("first/run.json").read_text())
        budget = written["train"]["budget"]
        assert (written["train"]["seed"], budget["steps"], budget["minutes"]) == (3, 4, None)
        assert sw.load("first/checkpoints/step-00000004").config.d_model == 32

    def test_presets_are_listed_by_a_command(self, run: Run, refused: Callable[..., str]) -> None:
        lines = run("train", "--list-presets").out.splitlines()
        assert [line.split()[0] for line in lines] == [*GENERAL, *PRESETS]
        assert all(len(line.split()) > 3 for line in lines)
        said = refused("train", "--preset", "clasifier")
        assert "did you mean 'classifier'" in said
        assert "statewise train --list-presets" in said
        assert len(said) < 200

    def test_progress_bar_on_a_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "140")
        result = run(*TRAIN, "--steps", "4", "--out", "bar")
        assert (result.code, result.err) == (0, "")
        assert "bits/byte" in result.out
        assert not result.out.startswith("{")

    def test_resume(self, run: Run) -> None:
        shutil.copytree("run", "resumed")
        assert run("train", "--resume", "resumed", "--steps", "8").code == 0
        assert Path("resumed/checkpoints/step-00000008").is_dir()

    def test_print_config_is_a_config(self, run: Run) -> None:
        first = run(*TRAIN, "--set", "model.layers.0.d_state=8", "--lr", "0.5", "--print-config")
        Path("printed.json").write_text(first.out)
        second = run("train", "--config", "printed.json", "--set", "train.optimizer.lr=0.25", "--print-config")
        one, two = json.loads(first.out), json.loads(second.out)
        assert one["model"]["layers"][0]["d_state"] == 8
        assert (one["train"]["optimizer"].pop("lr"), two["train"]["optimizer"].pop("lr")) == (0.5, 0.25)
        assert one == two

    def test_flags_replace_the_budget(self, run: Run) -> None:
        def budget(*flags: str) -> tuple[object, object]:
            train = json.loads(run("train", "--preset", "tiny", *flags, "--print-config").out)["train"]
            return train["budget"]["steps"], train["budget"]["minutes"]

        assert budget("--minutes", "2") == (None, 2.0)
        assert budget("--steps", "2") == (2, None)
        assert budget("--steps", "2", "--minutes", "3") == (2, 3.0)
        assert budget("--steps", "2", "--set", "train.budget.minutes=3") == (2, 3.0)
        assert budget("--steps", "2", "--set", "train.minutes=3") == (2, 3.0)  # as it was named

    def test_preset_takes_the_vocabulary_of_the_tokenizer(self, run: Run, tmp_path: Path) -> None:
        path = save_tokenizer(tmp_path)
        config = json.loads(run("train", "--preset", "tiny", "--tokenizer", path, "--print-config").out)
        assert config["model"]["vocab_size"] == sw.FileTokenizer(path).vocab_size

    def test_interrupted_training_is_saved(self, workplace: Path) -> None:
        words = ["-m", "statewise", *TRAIN, "--steps", "100000", "--out", "stopped"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                if json.loads(line)["kind"] == "train":
                    break
            process.send_signal(signal.SIGINT)
            last = json.loads(process.stdout.readlines()[-1])
            assert (process.wait(60), process.stderr.read()) == (130, b"")
        assert last["kind"] == "stop"
        assert "--resume stopped" in last["message"]
        assert list(Path("stopped/checkpoints").glob("step-*"))


def test_a_run_keeps_the_tokenizer_that_it_learned(
    workplace: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "run"
    assert run(*TRAIN, "--tokenizer", "bpe:400", "--steps", "4", "--out", out).code == 0
    assert json.loads((out / "run.json").read_text("utf-8"))["model"]["vocab_size"] == 400
    score = run("evaluate", out, "--json").records[-1]["bits_per_byte"]
    assert run("train", "--resume", out, "--steps", "6").code == 0
    shutil.rmtree(tmp_path / "cache")
    assert run("evaluate", out, "--checkpoint", "latest", "--json").records[-1]["bits_per_byte"] != score
    other = tmp_path / "other.txt"
    other.write_text("quite another text, with other words\n" * 200, "utf-8")
    assert run("evaluate", out, "--data", other, "--json").records[-1]["bits_per_byte"] > 0


@pytest.mark.usefixtures("forked_workers")
def test_a_run_without_a_name_gets_the_next_free_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (1, 2):
        assert run(*TRAIN, "--steps", "1").code == 0
        assert Path("runs", f"tiny-{n}", "run.json").is_file()
    Path("mine.json").write_text(run(*TRAIN, "--print-config").out, "utf-8")
    assert run("train", "--config", "mine.json", "--steps", "1").code == 0
    assert Path("runs/mine-1/run.json").is_file()
    assert run(*TRAIN, "--steps", "1", "--seeds", "2").code == 0
    assert len(list(Path("runs/tiny-3").glob("*/run.json"))) == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    refusal = run(*TRAIN, "--steps", "1")
    assert refusal.code == 2
    assert "--out" in refusal.err
    shutil.rmtree("runs")


def test_what_is_wrong_comes_first_with_what_may_be_meant(refused: Callable[..., str]) -> None:
    assert "did you mean 'tiny'?" in refused("train", "--preset", "tinny")
    for name, meant in (("lr", "train.optimizer.lr"), ("d_state", "model.layers.0.d_state"), ("optimizer", None)):
        assert f"did you mean '{meant or 'train.optimizer'}'?" in refused(*TRAIN, "--set", f"{name}=1")
    assert "leave out --out" in refused("train", "--resume", "run", "--out", "other")
    with pytest.raises(AttributeError, match="did you mean 'Mamba2Config'"):
        _ = sw.Mamba2


def test_a_shell_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"_STATEWISE_COMPLETE": "complete_bash", "COMP_WORDS": "statewise tr", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from statewise.cli import main; main()"]
    done = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True)
    assert done.stdout.split() == ["train"]
