"""The command line: its help, its process, what a run and a machine are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ROOT, Run
from forked_programs import program

import statewise as sw
from statewise.mixers.s4d import S4DConfig
from statewise.models.classifier import SequenceClassifierConfig

pytestmark = pytest.mark.usefixtures("in_workplace")


class TestHelp:
    @pytest.mark.parametrize("words", [[], ["--help"], ["train", "-h"], ["generate", "-h"], ["evaluate", "-h"]])
    def test_help(self, run: Run, words: list[str]) -> None:
        result = run(*words)
        assert (result.code, result.err) == (0, "")
        assert "Usage: statewise" in result.out

    def test_version(self, run: Run) -> None:
        assert run("--version").out == f"statewise {sw.__version__}\n"

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            (["trian"], "trian"),
            (["train", "--sed", "1"], "--seed"),
            (["train", "--steps", "many", "--out", "x"], "--steps"),
            (["train", "--out", "x", "--resume", "run"], "--out"),
            (["train", "--preset", "tiny", "--config", "x.json", "--out", "x"], "--config"),
            (["train", "--preset", "tiny", "--resume", "run"], "--preset"),
            (["generate"], "SOURCE"),
            (["generate", "run", "--prompt", "a", "--log-probabilities", "--echo"], "--echo"),
            (["evaluate", "run", "--text-file", "text/0.txt", "--split", "test"], "--split"),
            (["evaluate", "run", "--text-file", "text/0.txt", "--max-tokens", "50"], "--max-tokens"),
            (["evaluate", "run", "--data", "text", "--text-file", "text/0.txt"], "--text-file"),
        ],
    )
    def test_usage(self, refused: Callable[..., str], words: list[str], named: str) -> None:
        assert named in refused(*words)
        assert not Path("x").exists()


class TestProcess:
    def test_interrupt(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("statewise.cli.facts.environment", interrupt)
        result = run("info")
        assert (result.code, result.out, result.err) == (130, "", "")

    def test_full_disk_behind_standard_output(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def full() -> None:
            raise OSError(28, "No space left on device", "out.json")

        monkeypatch.setattr("statewise.cli.facts.environment", full)
        assert run("info").err == "statewise: error: out.json: No space left on device\n"

    def test_a_mistake_of_ours_is_not_hidden(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("statewise.cli.facts.environment", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("info")

    def test_debug_shows_where(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STATEWISE_DEBUG", "1")
        result = run("generate", "nowhere")
        assert result.code == 2
        assert result.err.startswith("Traceback")
        assert result.err.splitlines()[-1].startswith("statewise: error: ")

    def test_reader_that_goes_away(self) -> None:
        words = ["-m", "statewise", "generate", "run", "--max-new-tokens", "100000"]
        words += ["--temperature", "0"]  # a token drawn could end the text before the pipe is closed
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(5)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 141


class TestInfo:
    def test_machine(self, run: Run) -> None:
        (record,) = run("info").records
        assert record["statewise"] == sw.__version__
        assert {"linear_scan", "ssd"} <= {kernel["kernel"] for kernel in record["kernels"]}
        assert all(kernel["path"] and all(kernel["others"].values()) for kernel in record["kernels"])

    def test_run(self, run: Run) -> None:
        (record,) = run("info", "run").records
        model = sw.load("run/checkpoints/step-00000006")
        assert sum(part["parameters"] for part in record["parts"]) == sum(p.numel() for p in model.parameters())
        mamba, attention = record["parts"][1:3]
        assert (mamba["mixer"], attention["mixer"]) == ("Mamba2", "Attention")
        state = model.initial_state(1).layers[0]
        assert mamba["state"]["bytes"] == 4 * (state.convolution.inputs.numel() + state.ssm.h.numel())
        assert attention["state"]["per_token"] == 0  # a window of 64
        assert record["configuration"]["d_model"] == 32

    def test_full_attention_grows(self, run: Run, tmp_path: Path) -> None:
        attention = sw.AttentionConfig(n_heads=2, n_kv_heads=1, d_head=8)
        learned = sw.AttentionConfig(n_heads=2, d_head=8, positions="learned", max_positions=40)
        config = sw.LanguageModelConfig(vocab_size=9, d_model=16, layers=(attention, learned), tie_embeddings=False)
        sw.save(config.build(), tmp_path / "model")
        (record,) = run("info", tmp_path / "model").records
        assert record["parts"][1]["state"]["per_token"] == 2 * 8 * 4
        assert record["parts"][2]["state"]["tokens"] == 40
        assert record["parts"][-1]["parameters"] == 9 * 16

    def test_a_layer_that_reads_in_both_directions_has_no_state(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "140")
        layers = (S4DConfig(d_state=4, bidirectional=True), S4DConfig(d_state=4))
        config = SequenceClassifierConfig(n_classes=2, d_input=1, d_model=4, layers=layers)
        sw.save(config.build(), tmp_path / "model")
        (record,) = run("info", tmp_path / "model").records
        both, one = record["parts"][1:3]
        assert both["state"] is None
        assert one["state"]["bytes"] == 4 * 4 * 4 / 2 * 2
        assert "none: it reads in both directions" in run("info", tmp_path / "model", "--no-json").out

    def test_tables_on_a_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "140")
        out = run("info", "run").out
        for expected in ("linear_scan", "layers.0", "Mamba2", "constant", "d_model"):
            assert expected in out
