"""The table of docs/data.md: each row makes its file, and is trained, evaluated and asked by its own commands."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ROOT

from statewise import cli

ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in (ROOT / "docs" / "data.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and "`statewise train" in line
]
QUICK = ["--steps", "2", "--set", "train.reporting.evaluate_items=200", "--set", "train.check_memory=false"]
RNG = np.random.default_rng(0)
WORDS = ["the", "state", "is", "all", "that", "we", "keep", "of", "what", "was", "read", "before", "and", "now"]


def text(n: int) -> str:
    return " ".join(RNG.choice(WORDS, n)) + "\n"


def pictures(at: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for name, level in (("cat", 60), ("dog", 180)):
        (at / name).mkdir(parents=True)
        for i in range(12):
            pixels = np.clip(RNG.normal(level, 20, (8, 8)), 0, 255).astype(np.uint8)
            image.fromarray(pixels).save(at / name / f"{i}.png")


def sounds(at: Path) -> None:
    for name, period in (("high", 10), ("low", 40)):
        (at / name).mkdir(parents=True)
        for i in range(12):
            samples = (8000 * np.sin(np.arange(300 + i) * 2 * np.pi / period)).astype("<i2")
            with wave.open(str(at / name / f"{i}.wav"), "wb") as file:
                file.setparams((1, 2, 8000, 0, "NONE", ""))
                file.writeframes(samples.tobytes())


def reviews(at: Path) -> None:
    for name in ("good", "bad"):
        (at / name).mkdir(parents=True)
        for i in range(12):
            (at / name / f"{i}.txt").write_text(f"{name} {text(12)}")


def frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(RNG.normal(size=(60, 12)).round(3), columns=[f"t{i}" for i in range(12)])
    return table.assign(kind=np.repeat(["a", "b", "c"], 20), price=100_000 * table.sum(axis=1).to_numpy() + 0.5)


def table(at: Path) -> None:
    frame().drop(columns="price").to_csv(at, index=False)


def tsv(at: Path) -> None:
    frame().drop(columns="price").to_csv(at, index=False, sep="\t", decimal=",")


def parquet(at: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame().drop(columns="kind").to_parquet(at)


def steps(at: Path) -> None:
    rows = [(i, s, "ab"[i % 2], RNG.normal(), RNG.normal()) for i in range(30) for s in range(10 + i % 3)]
    lines = [f"{i},{s},{kind},{x:.3f},{y:.3f}" for i, s, kind, x, y in rows]
    at.write_text("\n".join(["id,second,kind,x,y", *lines]) + "\n")


def signals(at: Path) -> None:
    rows = [{"signal": RNG.normal(size=10 + i % 4).tolist(), "kind": "ab"[i % 2]} for i in range(40)]
    at.write_text("".join(json.dumps(row) + "\n" for row in rows))


def npz(at: Path) -> None:
    np.savez(at, x=RNG.normal(size=(40, 15)), y=np.arange(40) % 2)


def npy(at: Path) -> None:
    np.save(at, RNG.normal(size=(40, 15)))
    np.save(at.with_name("y.npy"), np.arange(40) % 2)


def labelled_lines(at: Path) -> None:
    at.write_text("".join(json.dumps({"text": text(12), "stars": i % 3}) + "\n" for i in range(60)))


def documents() -> str:
    return "".join(json.dumps({"text": text(40), "source": "here"}) + "\n" for _ in range(60))


def packed(at: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    at.write_bytes(zstandard.compress(documents().encode()))


def corpus(at: Path) -> None:
    at.mkdir()
    (at / "a.jsonl").write_text(documents())
    (at / "b.jsonl.gz").write_bytes(gzip.compress(documents().encode()))


def books(at: Path) -> None:
    at = at.parent if "*" in at.name else at
    at.mkdir()
    for i in range(25):
        (at / f"{i}.txt").write_text(text(60))


def saved(at: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.Dataset.from_dict({"text": [text(40) for _ in range(60)]}).save_to_disk(at)


def series(at: Path) -> None:
    days = np.arange("2023-01-01", "2024-02-01", dtype="datetime64[D]")
    sold = 10 + np.sin(np.arange(len(days)) * 2 * np.pi / 7) + 0.1 * RNG.normal(size=len(days))
    at.write_text("\n".join(["date,sold", *(f"{day},{value:.3f}" for day, value in zip(days, sold))]) + "\n")


def stores(at: Path) -> None:
    days = np.arange("2023-01-01", "2023-09-01", dtype="datetime64[D]")
    lines = [f"{store},{day},{RNG.normal(10):.3f}" for store in ("north", "south") for day in days]
    at.write_text("\n".join(["store,date,sold", *lines]) + "\n")


MAKERS: dict[str, Callable[[Path], None]] = {
    "photos": pictures,
    "sounds": sounds,
    "reviews": reviews,
    "table.csv": table,
    "table.tsv": tsv,
    "table.parquet": parquet,
    "steps.csv": steps,
    "signals.jsonl": signals,
    "arrays.npz": npz,
    "x.npy": npy,
    "reviews.jsonl": labelled_lines,
    "book.txt": lambda at: at.write_text("".join(text(20) for _ in range(100))) and None,
    "books": books,
    "books/*.txt": books,
    "corpus.jsonl": lambda at: at.write_text(documents()) and None,
    "corpus.jsonl.zst": packed,
    "corpus": corpus,
    "saved": saved,
    "sales.csv": series,
    "stores.csv": stores,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))

    def call(words: list[str]) -> str:
        code = cli.run(words)
        shown = capfd.readouterr()
        assert code == 0, shown.err
        return shown.out

    return call


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1].strip("`").removeprefix("statewise train "))
def test_a_row_trains_evaluates_and_answers(row: list[str], run: Callable[..., str]) -> None:
    _, command, taken_for, ask = row
    words = shlex.split(command.strip("`"))[1:]
    source = words[words.index("--data") + 1]
    MAKERS[source](Path(source))
    Path("lines.txt").write_text("a line\nanother line\n")
    told = [json.loads(line) for line in run([*words, *QUICK]).splitlines()]
    assert told[0]["kind"] == "recognised"
    assert f"{source} is read as" in told[0]["message"]
    assert taken_for in told[0]["message"]
    folder = told[1]["folder"]
    assert re.fullmatch(r"runs/[a-z-]+-1", folder)
    assert json.loads(run(["evaluate", folder, "--json", "--max-items", "200"]))["split"] == "test"
    answers = run([folder if word == "RUN" else word for word in shlex.split(ask.strip("`"))[1:]])
    assert answers.strip()


def test_the_table_has_what_people_have() -> None:
    assert len(ROWS) >= 20
    assert {shlex.split(row[1].strip("`"))[shlex.split(row[1].strip("`")).index("--data") + 1] for row in ROWS} == {
        *MAKERS
    }
