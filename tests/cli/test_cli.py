"""The command line: what the commands do, and that every mistake is one line and exit code 2."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import statewise as sw
from statewise import cli
from statewise.evaluate import compress
from statewise.mixers.s4d import S4DConfig
from statewise.models.classifier import SequenceClassifierConfig

ROOT = Path(sw.__file__).parent.parent
TRAIN = [
    "train",
    "--preset",
    "tiny",
    "--length",
    "64",
    "--set",
    "train.reporting.log_every=2",
    "--data",
    "text",
    "--set",
    "data.validation_fraction=0.2",
    "--set",
    "data.test_fraction=0.2",
]


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process; paths in the arguments may be Path objects."""

    def call(*arguments: object) -> Result:
        capfd.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Runs what must be refused: exit code 2, nothing on standard output, one line on standard error: that line."""

    def call(*arguments: object) -> str:
        result = run(*arguments)
        assert (result.code, result.out) == (2, ""), result
        assert result.err.startswith("statewise: error: ")
        assert result.err.count("\n") == 1
        assert result.err.endswith("\n")
        return result.err

    return call


def write_corpus(folder: Path) -> None:
    """Thirty files of the source of this package, so that there are three splits."""
    folder.mkdir()
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "statewise").rglob("*.py"))]
    text = "".join(texts)[:60_000]
    for i in range(30):
        (folder / f"{i}.txt").write_text(text[2_000 * i : 2_000 * (i + 1)], "utf-8")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a corpus, `text`, and a finished run, `run`: the working directory of every test here."""
    folder = tmp_path_factory.mktemp("cli")
    write_corpus(folder / "text")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert cli.run([*TRAIN, "--steps", "6", "--out", "run"]) == 0
        yield folder
    finally:
        os.chdir(before)


@pytest.fixture(autouse=True)
def _in_workplace(workplace: Path) -> Iterator[None]:
    before = contents(workplace / "run")
    yield
    assert contents(workplace / "run") == before  # no test, and above all no refusal, changes the finished run


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder and its hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def in_subprocess(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    words = [sys.executable, "-m", "statewise", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, env=environment, timeout=120, check=False, **options)


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
            (["train"], "--out"),
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
        words = [sys.executable, "-m", "statewise", "generate", "run", "--max-new-tokens", "100000"]
        words += ["--temperature", "0"]  # a token drawn could end the text before the pipe is closed
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(5)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 141


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
        words = [sys.executable, "-m", "statewise", *TRAIN, "--steps", "100000", "--out", "stopped"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
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
        assert "other weights" in refused("generate", "other", "--state-in", "c.state")
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


class TestEvaluate:
    def test_split_beside_compressors(self, run: Run) -> None:
        (record,) = run("evaluate", "run", "--chunk-length", "50").records
        (again,) = run("evaluate", "run").records
        assert record["bits_per_byte"] == pytest.approx(again["bits_per_byte"], rel=1e-5)
        assert 2 < record["zlib_bits_per_byte"] < 5 < record["bits_per_byte"] < 9
        assert record["xz_difference"] == record["bits_per_byte"] - record["xz_bits_per_byte"]
        (validation,) = run("evaluate", "run", "--split", "validation", "--no-compressors", "--streams", "2").records
        assert validation["n_bytes"] != record["n_bytes"]
        assert "xz_bytes" not in validation

    def test_other_texts(self, run: Run) -> None:
        (record,) = run("evaluate", "run/checkpoints/step-00000006", "--text-file", "text/0.txt").records
        assert (record["n_bytes"], record["n_tokens"]) == (2000, 2000)
        (windows,) = run("evaluate", "run", "--text-file", "text/0.txt", "--window", "100", "--stride", "50").records
        assert windows["bits_per_byte"] == pytest.approx(record["bits_per_byte"], rel=0.1)
        (part,) = run("evaluate", "run", "--data", "text/[1-9]*.txt", "--max-tokens", "100").records
        assert part["n_tokens"] == 99

    def test_state_across_documents(self, run: Run) -> None:
        (alone,) = run("evaluate", "run", "--split", "train", "--no-compressors").records
        (carried,) = run("evaluate", "run", "--split", "train", "--no-compressors", "--across-documents").records
        assert carried["bits_per_byte"] != alone["bits_per_byte"]
        assert carried["bits_per_byte"] == pytest.approx(alone["bits_per_byte"], rel=0.1)

    def test_compressors_get_the_bytes_that_are_scored(self, run: Run) -> None:
        """Also where the last token ends within a character, here after its first byte of two."""
        text = ("\u00e9" * 10 + "\n") * 100
        Path("accents.txt").write_text(text, "utf-8")
        options = ("--data", "accents.txt", "--split", "train", "--max-tokens", "101")
        (record,) = run("evaluate", "run", *options).records
        assert record["n_bytes"] == 99 + 1  # the document token is no text
        assert record["zlib_bits_per_byte"] == compress(text.encode()[:100]).zlib_bits_per_byte

    def test_table_on_a_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        out = run("evaluate", "run").out
        assert "xz -9" in out
        assert " per word" in out
        (record,) = run("evaluate", "run", "--json").records
        assert f"{record['bits_per_byte']:.4f}" in out
        monkeypatch.undo()
        assert "xz -9" in run("evaluate", "run", "--no-json", "--max-tokens", "50").out

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            (["run", "--split", "tests"], "tests"),
            (["run", "--text-file", "no-such.txt"], "no-such.txt"),
            (["run", "--window", "0"], "window"),
            (["run/checkpoints/step-00000006"], "--text-file"),
            (["run/checkpoints"], "run/checkpoints"),
            (["no-such-run"], "no-such-run"),
            (["run", "--data", "no-such-text"], "no-such-text"),
        ],
    )
    def test_bad_options(self, refused: Callable[..., str], words: list[str], named: str) -> None:
        assert named in refused("evaluate", *words)


def test_a_relative_text_is_found_from_another_directory(
    run: Run, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("evaluate", workplace / "run", "--max-tokens", "64", "--no-compressors")
    assert result.code == 0, result


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


def save_tokenizer(folder: Path, extra: str = "") -> Path:
    """A tokenizer.json of bytes and one document token; ``extra`` makes it another one."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *extra])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


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
        limit = 40_000  # less than a checkpoint
        result = in_subprocess(
            "train",
            "--resume",
            "full",
            "--steps",
            "8",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
        error = result.stderr.decode()
        assert (result.returncode, error.count("\n")) == (2, 1), error
        assert error.startswith("statewise: error: ")
        assert "File too large" in error
        assert contents(Path("full/checkpoints")) == before
        assert run("train", "--resume", "full", "--steps", "8").code == 0


def test_other_classes_are_refused(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    for file, names in (("own", "ab"), ("same", "ab"), ("other", "cd")):
        x, y = np.random.default_rng(0).normal(size=(20, 8, 1)).astype(np.float32), np.array([*names] * 10)
        np.savez(tmp_path / f"{file}.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    small = ("--preset", "digits", "--steps", "1", "--set", "model.d_model=4", "--set", "train.batch_size=4")
    out = tmp_path / "out"
    result = run("train", *small, "--data", "arrays", "--data-dir", tmp_path / "own.npz", "--out", out)
    assert result.code == 0, result.err
    assert run("evaluate", out, "--data-dir", tmp_path / "same.npz").code == 0
    assert "has the classes c, d, but" in refused("evaluate", out, "--data-dir", tmp_path / "other.npz")
    for wrong in ("-1", "0"):
        assert "--max-items" in refused("evaluate", out, "--max-items", wrong)


def test_columns_of_the_run_are_kept(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 7},{i % 2}\n" for i in range(200))
    (tmp_path / "own.csv").write_text("t,sales,promo\n" + rows)
    (tmp_path / "other.csv").write_text("t,sales\n" + "".join(f"{i},{i % 7}\n" for i in range(200)))
    out = tmp_path / "out"
    words = ["data.horizon=4", "data.history=8", "data.calendar=[]", 'data.covariates=["promo"]', "train.batch_size=4"]
    sets = [word for text in (*words, "model.scaling_steps=4") for word in ("--set", text)]
    result = run("train", "--preset", "co2", "--data", tmp_path / "own.csv", *sets, "--steps", "1", "--out", out)
    assert result.code == 0, result.err
    told = refused("evaluate", out, "--data", tmp_path / "other.csv")
    assert "the run's own columns were kept (data.covariates=['promo'])" in told
