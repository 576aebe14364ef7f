"""`statewise generate`: what it prints, and from what."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import TRAIN, Run

pytestmark = pytest.mark.usefixtures("in_workplace")


class TestGenerate:
    def text(self, run: Run, *words: object) -> str:
        result = run("generate", "run", "--max-new-tokens", "20", "--seed", "5", *words)
        assert (result.code, result.err) == (0, "")
        return result.out

    def test_seed(self, run: Run) -> None:
        first = self.text(run, "--prompt", "def ")
        assert first.endswith("\n")
        assert self.text(run, "--prompt", "def ") == first
        assert self.text(run, "--prompt", "def ", "--seed", "6") != first

    def test_echo_and_file_and_standard_input(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = self.text(run, "--prompt", "clé\n")
        Path("prompt.txt").write_bytes("clé\n".encode())
        assert self.text(run, "--prompt-file", "prompt.txt") == plain
        assert self.text(run, "--prompt-file", "prompt.txt", "--echo") == "clé\n" + plain
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("clé\n".encode())))
        assert self.text(run, "--prompt-file", "-") == plain

    def test_several_prompts(self, run: Run) -> None:
        both = self.text(run, "--prompt", "def ", "--prompt", "a longer prompt ")
        assert both.startswith("==> 1 <==\n" + self.text(run, "--prompt", "def "))
        assert "\n\n==> 2 <==\n" in both

    def test_options_of_sampling_arrive(self, run: Run) -> None:
        greedy = self.text(run, "--prompt", "x", "--temperature", "0")
        assert self.text(run, "--prompt", "x", "--top-k", "1") == greedy
        assert self.text(run, "--prompt", "x", "--top-p", "1e-9") == greedy
        assert self.text(run, "--prompt", "x", "--min-p", "1") == greedy
        penalised = ("--prompt", "x", "--temperature", "0", "--repetition-penalty", "9")
        varied = self.text(run, *penalised)  # a greedy text may be one character again and again
        assert varied != greedy
        end = varied[5]
        assert self.text(run, *penalised, "--stop", end).rstrip("\n") == varied.split(end)[0].rstrip("\n")

    def test_a_draft_changes_no_greedy_text(self, run: Run, refused: Callable[..., str]) -> None:
        run(*TRAIN, "--steps", "2", "--seed", "8", "--out", "small")
        greedy = ("--prompt", "def ", "--prompt", "x", "--temperature", "0", "--stop", "zz")
        assert self.text(run, *greedy, "--draft", "small", "--draft-tokens", "3") == self.text(run, *greedy)
        assert len(self.text(run, "--prompt", "x", "--draft", "small", "--draft-weights", "int8")) > 1
        assert "draft_tokens=0" in refused(
            "generate", "run", "--prompt", "x", "--draft", "small", "--draft-tokens", "0"
        )
        assert "give draft=" in refused("generate", "run", "--prompt", "x", "--draft-tokens", "2")
        assert "no-such" in refused("generate", "run", "--prompt", "x", "--draft", "no-such")

    def test_several_continuations_of_a_prompt(self, run: Run, refused: Callable[..., str]) -> None:
        prompts = ("--prompt", "def ", "--prompt", "x")
        every = self.text(run, *prompts, "--n", "2")
        assert every == self.text(run, "--prompt", "def ", *prompts[:2], *prompts[2:], "--prompt", "x")
        assert self.text(run, "--prompt", "x", "--n", "2", "--echo").count("\nx") == 2
        assert self.text(run, *prompts, "--best-of", "3").count("==>") == 2
        assert self.text(run, "--prompt", "x", "--beams", "1") == self.text(run, "--prompt", "x", "--temperature", "0")
        assert self.text(run, "--prompt", "x", "--beams", "3", "--n", "2", "--length-penalty", "0").count("==>") == 2
        assert "n=4 of beams=3" in refused("generate", "run", "--prompt", "x", "--beams", "3", "--n", "4")

    def test_log_probabilities(self, run: Run) -> None:
        text = self.text(run, "--prompt", "x")
        records = [json.loads(line) for line in self.text(run, "--prompt", "x", "--log-probabilities").splitlines()]
        assert "".join(record["text"] for record in records) + "\n" == text
        assert len(records) == 20
        assert all(record["log_probability"] < 0 and record["row"] == 0 for record in records)

    def test_a_document_is_read_once(self, run: Run) -> None:
        whole = self.text(run, "--prompt", "import os\n")
        assert self.text(run, "--prompt", "import os\n", "--state-out", "a.state", "--max-new-tokens", "0") == "\n"
        assert self.text(run, "--state-in", "a.state") == whole
        assert self.text(run, "--prompt", "import os\n", "--state-out", "b.state") == whole
        longer = self.text(run, "--prompt", "import os\nimport re\n")
        assert self.text(run, "--state-in", "a.state", "--prompt", "import re\n") == longer

    def test_states_are_refused(self, run: Run, refused: Callable[..., str]) -> None:
        self.text(run, "--prompt", "import", "--state-out", "c.state", "--max-new-tokens", "0")
        before = Path("c.state").read_bytes()
        assert "c.state exists" in refused("generate", "run", "--prompt", "x", "--state-out", "c.state")
        assert "c.state is not a folder" in refused("generate", "run", "--prompt", "x", "--state-out", "c.state/d")
        assert Path("c.state").read_bytes() == before
        run(*TRAIN, "--steps", "2", "--seed", "9", "--out", "other")
        assert "different weights" in refused("generate", "other", "--state-in", "c.state")
        assert "no-such" in refused("generate", "run", "--state-in", "no-such.state")
        for name, data in {
            "cut": before[:-10],
            "flipped": before[:-1] + bytes([before[-1] ^ 1]),
            "words": b"not a state",
            "nothing": b"",
        }.items():
            Path(name).write_bytes(data)
            assert name in refused("generate", "run", "--state-in", name)

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            (["--temperature", "-1"], "temperature"),
            (["--top-p", "2"], "top_p"),
            (["--seed", "-1"], "seed"),
            (["--max-new-tokens", "-1"], "max_new_tokens"),
            (["--prompt-file", "no-such.txt"], "no-such.txt"),
            (["--checkpoint", "worst"], "--checkpoint"),
            (["--device", "tpu"], "--device"),
            (["--prompt", "x", "--prompt", "y", "--state-in", "one.state"], "2 rows"),
        ],
    )
    def test_bad_options(self, run: Run, refused: Callable[..., str], words: list[str], named: str) -> None:
        if "one.state" in words and not Path("one.state").exists():
            self.text(run, "--prompt", "x", "--state-out", "one.state")
        assert named in refused("generate", "run", *words)
