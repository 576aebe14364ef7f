"""`statewise evaluate`: what it prints, and of what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import TRAIN, Run

from statewise.evaluate import compress

pytestmark = pytest.mark.usefixtures("in_workplace")


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
        with monkeypatch.context() as terminal:
            terminal.setattr(sys.stdout, "isatty", lambda: True)
            out = run("evaluate", "run").out
        assert "xz -9" in out
        assert " per word" in out
        (record,) = run("evaluate", "run", "--json").records
        assert f"{record['bits_per_byte']:.4f}" in out
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


def test_other_classes_are_refused(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    for file, names in (("own", "ab"), ("same", "ab"), ("other", "cd")):
        x, y = np.random.default_rng(0).normal(size=(20, 8, 1)).astype(np.float32), np.array([*names] * 10)
        np.savez(tmp_path / f"{file}.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    small = ("--preset", "digits", "--steps", "1", "--set", "model.d_model=4", "--set", "train.batch_size=4")
    out = tmp_path / "out"
    result = run("train", *small, "--data", "arrays", "--data-dir", tmp_path / "own.npz", "--out", out)
    assert result.code == 0, result.err
    assert run("evaluate", out, "--data-dir", tmp_path / "same.npz").code == 0
    assert "the class 'c' is not one that the model was trained on: a, b" in refused(
        "evaluate", out, "--data-dir", tmp_path / "other.npz"
    )
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
    (tmp_path / "own.csv").write_text("t,sales,promo\n" + rows + "200,1,0\n")
    assert "own.csv' is not the one that" in refused("evaluate", out)
    (record,) = run("evaluate", out, "--data", tmp_path / "own.csv").records
    assert record["split"] == "test"


@pytest.mark.parametrize("n", [1, 24])
def test_texts_that_have_grown(run: Run, refused: Callable[..., str], tmp_path: Path, n: int) -> None:
    """Where each document has its own place, the others stay in theirs; a few are cut in order."""
    (tmp_path / "text").mkdir()
    for i in range(n):
        (tmp_path / "text" / f"{i}.txt").write_text(f"number {i} is a line of the text\n" * (960 // n))
    words = [*TRAIN, "--data", tmp_path / "text", "--steps", "1", "--out", tmp_path / "run"]
    assert run(*words).code == 0
    (tmp_path / "text" / "more.txt").write_text("and one more\n" * 40)
    if n == 1:
        assert "text' is not the one that" in refused("evaluate", tmp_path / "run")
    again = () if n > 1 else ("--data", tmp_path / "text")
    assert run("evaluate", tmp_path / "run", *again).records[0]["split"] == "test"
