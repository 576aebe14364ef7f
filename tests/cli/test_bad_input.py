"""Every mistake at the command line is one line and exit code 2."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import TRAIN, Run, contents, save_tokenizer
from forked_programs import ran

import statewise as sw

pytestmark = pytest.mark.usefixtures("in_workplace")


class TestBadInput:
    """The issue's list: one line that names what is wrong, exit code 2, nothing lost or overwritten."""

    @pytest.mark.parametrize(
        ("assignment", "named"),
        [
            ("train.larning_rate=1", "larning_rate"),
            ("train.warmpu=0.1", "did you mean 'schedule.warmup'"),
            ("model.layers.0.dstate=4", "did you mean 'd_state'"),
            ("train.optimizer.lr=fast", "train.optimizer.lr"),
            ("train.budget.steps=1.5", "train.budget.steps"),
            ("train.steps=true", "train.budget.steps"),
            ("model.layers.7.d_state=4", "layers has no item '7'"),
            ("train.lr", "train.lr"),
            ("train.schedule=quadratic", "train.schedule.kind"),
            ("train.schedule.kind=quadratic", "train.schedule.kind"),
            ("data.source=no-such-text", "no-such-text"),
            ("data.tokenizer=no-such.json", "no-such.json"),
            ("model.vocab_size=100", "vocab_size"),
            ("train.length=1000000", "length"),
        ],
    )
    def test_fields(self, refused: Callable[..., str], assignment: str, named: str) -> None:
        assert named in refused(*TRAIN, "--set", assignment, "--out", "refused")
        assert not list(Path("refused").glob("checkpoints/*"))

    @pytest.mark.parametrize("n", [10**12, 2**63, 10**30])
    @pytest.mark.parametrize(
        ("preset", "field"),
        [
            ("delay", "data.n_train"),
            ("delay", "data.length"),
            ("copying", "data.n_validation"),
            ("induction-head", "data.n_train"),
            ("mqar", "data.n_validation"),
        ],
    )
    def test_rows_and_steps_that_no_memory_holds(
        self, refused: Callable[..., str], preset: str, field: str, n: int
    ) -> None:
        said = refused("train", "--preset", preset, "--set", f"{field}={n}", "--steps", "1", "--out", "refused")
        assert field.split(".")[1] in said or "n_validation" in said

    def test_numbers_that_are_no_sizes(self, run: Run) -> None:
        """Windows and seasons may be any number: beyond what there is, one is as good as all."""
        train = ("train", "--preset", "tiny", "--length", "16", "--data", "text", "--steps", "1")
        train = (*train, "--set", "train.reporting.evaluate_items=40")
        for n in (10**18, 10**30):
            assert run(*train, "--set", f"model.layers.1.window={n}", "--out", f"window-{n}").code == 0
        one, other = (
            run("train", "--preset", "sunspots", "--set", f"data.season={n}", "--steps", "1", "--out", f"season-{n}")
            for n in (10**4, 2**64)
        )
        assert (one.code, other.code) == (0, 0)

    def test_a_message_is_no_longer_than_a_screen(self, refused: Callable[..., str]) -> None:
        for words in (("x" * 5000,), ("generate", "run", "--device", "y" * 5000), ("info", "z" * 200 + "/" * 5000)):
            assert len(refused(*words)) < 620
        said = refused("generate", "run", "--device", "y" * 5000)
        assert said.startswith("statewise: error: --device 'yyy")
        assert "auto, cpu, cuda" in said

    def test_too_many_threads(self, refused: Callable[..., str]) -> None:
        for n in (10**6, 2**40, 10**30):
            assert f"--threads {n} is out of range" in refused("profile", "run", "--threads", n, "--step", "decoding")

    def test_no_memory_is_one_line(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            np.empty(2**57)

        monkeypatch.setattr("statewise.cli.facts.environment", fail)
        result = run("info")
        assert result.code == 1
        assert result.err.startswith("statewise: error: there is not enough memory: Unable to allocate")
        assert result.err.count("\n") == 1

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("{", "bad.json"),
            ('{"model": 1}', "bad.json"),
            ('{"trian": {}}', "did you mean 'train'"),
            ("\x00", "bad.json"),
        ],
    )
    def test_config_file(self, refused: Callable[..., str], text: str, named: str) -> None:
        Path("bad.json").write_text(text)
        assert named in refused("train", "--config", "bad.json", "--out", "refused")
        assert "no-such" in refused("train", "--config", "no-such.json", "--out", "refused")

    def test_data(self, refused: Callable[..., str], tmp_path: Path) -> None:
        (tmp_path / "binary").write_bytes(b"\x00\x01" * 5000)
        (tmp_path / "empty").write_bytes(b"")
        (tmp_path / "folder").mkdir()
        for name in ("binary", "empty", "folder", "no-such"):
            line = refused(*TRAIN, "--data", tmp_path / name, "--out", tmp_path / "refused")
            assert f"{tmp_path / name}" in line
            assert not list((tmp_path / "refused").glob("checkpoints/*"))

    def test_folder_with_another_run(self, refused: Callable[..., str]) -> None:
        assert "--resume" in refused(*TRAIN, "--out", "run")
        Path("mine").mkdir(exist_ok=True)
        Path("mine/letter.txt").write_text("dear")
        assert "mine" in refused(*TRAIN, "--out", "mine")
        assert "text/0.txt" in refused(*TRAIN, "--out", "text/0.txt")
        assert contents(Path("mine")).keys() == {"letter.txt"}

    def test_resume_nothing(self, refused: Callable[..., str]) -> None:
        assert "no-such-run" in refused("train", "--resume", "no-such-run")
        assert not Path("no-such-run").exists()

    def test_another_architecture(self, refused: Callable[..., str]) -> None:
        assert "d_state" in refused("train", "--resume", "run", "--set", "model.layers.0.mixer.d_state=4")
        assert "seed" in refused("train", "--resume", "run", "--seed", "1")

    def test_checkpoint_put_into_a_run_of_another_architecture(self, run: Run, refused: Callable[..., str]) -> None:
        run(*TRAIN, "--steps", "2", "--set", "model.d_model=48", "--out", "wide")
        for path in Path("wide/checkpoints").iterdir():
            shutil.rmtree(path)
        shutil.copytree("run/checkpoints/step-00000006", "wide/checkpoints/step-00000006")
        before = contents(Path("wide/checkpoints"))
        assert "d_model" in refused("train", "--resume", "wide", "--steps", "8")
        assert contents(Path("wide/checkpoints")) == before

    def test_damaged_checkpoint(self, refused: Callable[..., str]) -> None:
        shutil.copytree("run", "damaged", dirs_exist_ok=True)
        path = Path("damaged/checkpoints/step-00000006/model.safetensors")
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        for words in (["generate", "damaged"], ["evaluate", "damaged"], ["info", "damaged"]):
            assert "model.safetensors" in refused(*words)
        assert "damaged" in refused("train", "--resume", "damaged", "--steps", "8")

    def test_tokenizer_that_does_not_match(self, run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
        mine, other = save_tokenizer(tmp_path / "mine"), save_tokenizer(tmp_path / "other", extra="αβ")
        assert "tokenizer" in refused("generate", "run", "--tokenizer", mine)
        assert "tokenizer" in refused("evaluate", "run", "--tokenizer", mine)
        out = tmp_path / "run"
        assert run(*TRAIN, "--tokenizer", mine, "--steps", "2", "--out", out).code == 0
        assert "tokenizer" in refused("train", "--resume", out, "--steps", "3", "--set", f"data.tokenizer={other}")
        assert run("generate", out, "--max-new-tokens", "2").code == 0
        assert run("evaluate", out, "--max-tokens", "50").code == 0
        shutil.copy(other, mine)  # the file itself changed between the runs
        assert "tokenizer" in refused("train", "--resume", out, "--steps", "3")
        assert run("generate", out, "--max-new-tokens", "2").code == 0  # the checkpoint carries its own

    def test_checkpoint_without_a_tokenizer(self, run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
        sw.save(sw.load("run/checkpoints/step-00000006"), tmp_path / "bare")
        assert "--tokenizer" in refused("generate", tmp_path / "bare")
        assert run("generate", tmp_path / "bare", "--tokenizer", "bytes", "--max-new-tokens", "2").code == 0

    def test_full_disk(self, run: Run, workplace: Path) -> None:
        shutil.copytree("run", "full")
        before = contents(Path("full/checkpoints"))
        limited = (  # to less than a checkpoint
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
            "from statewise.cli import main; main()"
        )
        result = ran(["-c", limited, "train", "--resume", "full", "--steps", "8"])
        error = result.stderr
        assert (result.returncode, error.count("\n")) == (2, 1), error
        assert error.startswith("statewise: error: ")
        assert "File too large" in error
        assert contents(Path("full/checkpoints")) == before
        assert run("train", "--resume", "full", "--steps", "8").code == 0
