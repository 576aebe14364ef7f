"""`statewise evaluate --questions`, and published perplexities beside a text's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from questions import write_superglue
from scored_models import MODELS

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.cli import run
from statewise.data.tokenizers import ByteTokenizer
from statewise.evaluate.questions.published import PERPLEXITY, SUPERGLUE, WEIGHTS, row_of
from statewise.models.presets import PRESETS


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    sw.save(MODELS["mamba"], folder / "model", tokenizer=ByteTokenizer())
    write_superglue(folder / "data", n_validation=3, n_train=4)
    (folder / "own.jsonl").write_text('{"question": "one", "choices": ["two", "three"], "answer": "two"}\n' * 3)
    (folder / "text.txt").write_text("Some text to be read. " * 20)
    return folder


def test_questions(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    words = ["evaluate", "model", "--data-dir", "data/official", "--questions"]
    assert run([*words, "superglue, own.jsonl", "--limit", "2", "--output", "out.json", "--max-length", "4000"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in record["results"] if row["metric"] == "acc"][-1] == "own"
    assert (record["groups"][0]["task"], record["document_token"]) == ("superglue", True)
    published = record["published"]["rows"]
    assert published["Hybrid H3-125M"]["superglue"] == 53.9
    assert published["this model"]["superglue"] == pytest.approx(100 * record["groups"][0]["value"])
    whole = json.loads(Path("out.json").read_text())
    assert whole["results"] == record["results"]
    assert len(whole["questions"]["own"]) == 2

    options = ["--shots", "3", "--normalize", "--no-document-token", "--batch-size", "4"]
    assert run([*words, "rte,copa,multirc", *options, "--no-json"]) == 0
    shown = capsys.readouterr().out
    for part in ("acc_norm", "3 shots", "Hybrid H3-2.7B", "77.0", "majority", "“yes” as right where", "not published"):
        assert part in shown
    assert "average" not in shown
    assert run([*words, "own.jsonl", "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "majority" not in shown
    assert "Hybrid" not in shown


def test_what_sets_a_row_apart_from_the_published_ones(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    words = ["evaluate", "model", "--data-dir", "data/official", "--normalize", "--limit", "1"]
    assert run([*words, "--questions", "copa"]) == 0
    notes = json.loads(capsys.readouterr().out)["published"]["notes"]
    assert notes == ["length-normalised (--normalize)", "not of the whole validation split: COPA 1 of 100"]
    assert run([*words, "--questions", "copa", "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "this model *" in shown
    assert "* length-normalised" in shown
    for name in ("boolq", "blimp_mine"):
        Path(f"{name}.jsonl").write_text(Path("own.jsonl").read_text())
    assert run(["evaluate", "model", "--questions", "boolq.jsonl,blimp_mine.jsonl", "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "Hybrid" not in shown
    assert "by set" not in shown
    assert "chance" in shown
    Path("causative.jsonl").write_text('{"sentence_good": "a b", "sentence_bad": "b a"}\n' * 3)
    words = ["evaluate", "model", "--data-dir", ".", "--questions", "blimp_causative", "--no-json"]
    assert run([*words, "--normalize"]) == 0
    shown = capsys.readouterr().out
    assert "length-normalised" in shown
    assert " n " in shown


def test_published_perplexities(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    words = ["evaluate", "model", "--text-file", "text.txt", "--no-compressors", "--published", "wikitext103"]
    assert run(words) == 0
    record = json.loads(capsys.readouterr().out)
    rows = record["published"]["rows"]
    assert rows["this model"]["wikitext103"] == record["perplexity_per_token"]
    assert (rows["Hybrid H3-125M"]["wikitext103"], len(rows)) == (23.7, 11)
    assert run([*words, "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "not of another" in shown
    assert "at hand" not in shown
    assert (record["published"]["at_hand"], record["published"]["sizes_of"]) == ({}, None)


def test_rows_that_can_be_measured_here(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights in a folder of their published name beside the model's, and in the hub's cache."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    plain = sw.AttentionConfig(n_heads=12, positions=None, bias=True)
    layers = (sw.BlockConfig(mixer=plain, mlp=sw.MLPConfig(expand=0.01), norm="layer"),) * 12
    config = sw.LanguageModelConfig(vocab_size=257, d_model=768, layers=layers, norm="layer", max_positions=16)
    tokenizer = ByteTokenizer()
    save_as(config.build(), tmp_path / "gpt2", "transformers", dtype=torch.bfloat16)
    other = replace(config, layers=layers[:2])  # of other sizes than its name says
    save_as(other.build(), tmp_path / "gpt2-medium", "transformers", dtype=torch.bfloat16)
    snapshot = tmp_path / "cache" / "models--EleutherAI--gpt-neo-1.3B" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "pytorch_model.bin").write_bytes(b"")
    sw.save(MODELS["mamba"], tmp_path / "mine", tokenizer=tokenizer)
    (tmp_path / "text.txt").write_text("Some text.")
    words = ["--text-file", str(tmp_path / "text.txt"), "--no-compressors", "--published", "wikitext103"]
    assert run(["evaluate", str(tmp_path / "mine"), *words]) == 0
    found = json.loads(capsys.readouterr().out)["published"]
    neo = "hub:EleutherAI/gpt-neo-1.3B"
    assert found["at_hand"] == {"GPT-2 small (125M)": str(tmp_path / "gpt2"), "GPT-Neo-1.3B": neo}
    assert found["sizes_of"] is None
    assert run(["evaluate", str(tmp_path / "gpt2"), *words, "--tokenizer", "bytes", "--no-json"]) == 0
    shown = capsys.readouterr().out
    assert "this model, as GPT-2 small (125M)" in shown
    assert f"at hand: GPT-Neo-1.3B, {neo}" in shown


def test_the_row_of_a_model() -> None:
    plain = sw.AttentionConfig(n_heads=16, positions=None, bias=True)
    neo = replace(plain, bias=False, output_bias=True, scale=1.0)
    fields = {"vocab_size": 99, "norm": "layer", "max_positions": 16}

    def row(mixer: sw.AttentionConfig, d_model: int, n_layers: int, **more: Any) -> str | None:
        return row_of(sw.LanguageModelConfig(d_model=d_model, layers=(mixer,) * n_layers, **(fields | more)))

    assert row(plain, 1600, 48) == "GPT-2 XL (1.5B)"
    assert row(plain, 1024, 24) == "GPT-2 medium (355M)"
    assert row(neo, 2560, 32) == "GPT-Neo-2.7B"
    assert row(neo, 1024, 24) is None
    assert row(plain, 1024, 24, position_offset=2) == "OPT-350M"
    assert row(plain, 2048, 24, position_offset=2) == "OPT-1.3B"
    assert row(plain, 2048, 24, max_positions=None) is None
    assert row_of(PRESETS["h3-1.3b"]()) == "Hybrid H3-1.3B"
    assert row_of(PRESETS["mamba-130m"]()) is None
    rows = {*PERPLEXITY["pile"], *SUPERGLUE[0]}
    assert rows == WEIGHTS.keys()


def test_where_nothing_may_be_written_is_told_before_the_questions(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != place)  # root may write anywhere
    for words in (["--questions", "no-such.jsonl"], ["--tasks", "no-such"]):
        for output in ("unwritten.json", "new/folder/out.json"):
            assert run(["evaluate", "no-such", *words, "--output", output]) == 2
            said = capsys.readouterr().err
            assert f"cannot write {output}: you may not write into {place}; give another name" in said
    assert not (place / "new").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--questions", "own.jsonl", "--tasks", "x"], "--questions"),
        (["--questions", "own.jsonl", "--split", "test"], "has no place with --questions"),
        (["--questions", "own.jsonl", "--include-path", "data"], "has no place with --questions"),
        (["--questions", "own.jsonl", "--published", "pile"], "has no place with --questions"),
        (["--tasks", "x", "--normalize"], "has no place with --tasks"),
        (["--tasks", "x", "--data-dir", "data"], "has no place with --tasks"),
        (["--limit", "4"], "goes with --tasks or --questions"),
        (["--normalize"], "goes with --questions"),
        (["--questions", "own.jsonl", "--output", "text.txt"], "text.txt exists already"),
        (["--questions", "own.jsonl", "--output", "text.txt/out.json"], "text.txt is not a folder; give another name"),
        (["--questions", "bolq", "--data-dir", "data"], "did you mean boolq?"),
        (["--questions", "boolq", "--data-dir", "model"], "BoolQ/val.jsonl is not in model; get it with: curl"),
        (["--questions", " , "], "no questions are named"),
        (["--text-file", "text.txt", "--published", "ptb"], "ptb is none of pile, openwebtext, wikitext103"),
    ],
)
def test_bad_words(
    words: list[str], named: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert run(["evaluate", "model", *words]) == 2
    told = capsys.readouterr().err
    assert named in told
    assert told.count("\n") == 1
