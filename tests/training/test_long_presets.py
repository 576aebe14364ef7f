"""Presets of long sequences, made small: what they train, in pieces, from short rows to long ones."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled import write_wave
from training_runs import curve, with_train

import statewise as sw
from statewise.configuration import assign
from statewise.data import sources
from statewise.data.labelled_batches import LabelledBatch, LabelledBatches
from statewise.data.memory_tasks import MemoryDataConfig, open_memory_task
from statewise.errors import ConfigError, DataError
from statewise.evaluate.labelled import classification
from statewise.evaluate.labelled.classification import evaluate_classifier
from statewise.models.classifier import SequenceClassifierConfig
from statewise.training import RunConfig, train_run
from statewise.training.memory_estimate import Share, estimate_memory, largest_batch
from statewise.training.presets import PRESETS
from statewise.training.tasks import open_task, run_types

SMALL = ["model.d_model=16", "train.check_memory=false", "train.matmul=default"]
RETRIEVAL = [*SMALL, "data.length=512", "data.shortest=32", "data.n_train=64", "data.n_validation=4", "data.n_test=8"]


def small(name: str, *assignments: str) -> RunConfig:
    return assign(PRESETS[name](), [*SMALL, *assignments], types=run_types())


def retrieval(*assignments: str) -> RunConfig:
    return small("long-retrieval-262k", *RETRIEVAL, "train.batch_size=8", "train.pieces=8", *assignments)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for s, speaker in enumerate("abcdef"):
        for n in range(10):
            noise = (1000 * generator.normal(size=300 + 10 * n)).astype(int) // (s + 1)
            write_wave(folder / f"0_{speaker}_{n}.wav", noise.tolist())
    return folder


# -- the genome ------------------------------------------------------------------------------------------------------


def test_the_genome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.fna.gz"
    path.write_bytes(gzip.compress(b">a\n" + "".join(random.Random(0).choices("ACGT", k=20_000)).encode()))
    monkeypatch.setattr(sources, "GENOME", path)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    run = small("genome", 'train.budget={"steps": 2}', "train.length=64", "train.batch_size=4")
    assert run.train.carry_state
    train_run(run, tmp_path / "run")
    model = sw.load(tmp_path / "run")
    assert model.config.vocab_size == 16  # type: ignore[attr-defined]
    assert [line["bits_per_byte"] < 5 for line in curve(tmp_path / "run", "evaluation")] == [True]
    monkeypatch.setattr(sources, "GENOME", tmp_path / "none")
    with pytest.raises(DataError, match="apt install bowtie-examples"):
        open_task(run)


# -- retrieval -------------------------------------------------------------------------------------------------------


def test_retrieval_asks_for_the_symbol_behind_a_key() -> None:
    config = MemoryDataConfig(task="retrieval", length=200, n_pairs=4, n_symbols=5, n_train=100, n_test=100)
    task = open_memory_task(config)
    assert (task.classes, task.vocab_size, task.each_step) == (("0", "1", "2", "3", "4"), 17, False)
    inputs, targets = task.split("test").read(np.arange(100))
    for row, target in zip(inputs, targets):
        place, last = np.flatnonzero(row == row[-1])
        assert last == 199
        assert place < 50
        assert row[place + 1] == 4 + target
        assert sorted(row[:199][row[:199] < 4].tolist()) == [0, 1, 2, 3]
        assert row[60:199].min() >= 4
    assert len(set(targets.tolist())) == 5


def test_retrieval_refuses_what_has_no_room() -> None:
    with pytest.raises(ConfigError, match=r"n_pairs=9 is out of range for length 64; use at most 8"):
        MemoryDataConfig(task="retrieval", length=64, n_pairs=9)
    with pytest.raises(ConfigError, match=r"n_pairs=8 is out of range"):
        MemoryDataConfig(task="retrieval", length=640, shortest=32, n_pairs=8)
    with pytest.raises(ConfigError, match=r"MemoryDataConfig.shortest is not for the task 'copying'"):
        MemoryDataConfig(task="copying", shortest=32)


def test_rows_drawn_before_there_were_these_fields_have_the_same_fingerprint() -> None:
    """Of a run that began under an earlier version, which is to be resumed."""
    copying = open_memory_task(MemoryDataConfig(task="copying", length=60, n_copied=5)).fingerprint
    assert copying == FINGERPRINT


FINGERPRINT = "c6e636200393a79e59d277fb814352c1d80bc20f1146a9fdd1cff89c6ae6d5b0"


def test_retrieval_is_trained_in_pieces_from_short_rows_to_long_ones(tmp_path: Path) -> None:
    run = retrieval()
    train_run(run, tmp_path / "pieces")
    train_run(with_train(run, pieces=1), tmp_path / "whole")
    one, other = ([line["loss"] for line in curve(tmp_path / name, "train")] for name in ("pieces", "whole"))
    assert one == pytest.approx(other, rel=1e-3)
    task = open_task(run)
    lengths = [task.batches[step].inputs.shape[1] for step in range(8)]
    assert lengths == sorted(lengths)
    assert lengths[-1] > 256
    assert [task.n_pieces(task.batches[step]) for step in (0, 7)] == [1, 8]


def test_the_estimate_is_that_of_the_longest_rows() -> None:
    run = retrieval()
    task = open_task(run)
    assert largest_batch(task, Share()).inputs.shape[1] == task.batches[7].inputs.shape[1]
    pieces, whole = estimate_memory(run), estimate_memory(with_train(run, pieces=1))
    assert pieces.activations < whole.activations / 4


# -- sounds ----------------------------------------------------------------------------------------------------------


def test_the_speaker_of_long_sounds(recordings: Path, tmp_path: Path) -> None:
    run = small(
        "long-audio-262k",
        f"data.folder={recordings}",
        'data.join={"length": 2000, "shortest": 200, "n_train": 48, "n_validation": 6, "n_test": 6}',
        "train.pieces=4",
    )
    train_run(run, tmp_path / "run")
    model = sw.load(tmp_path / "run")
    assert model.config.classes == tuple("abcdef")  # type: ignore[attr-defined]
    assert open_task(run).evaluate(model, "test")["sequences"] == 6


@pytest.mark.parametrize("name", ["long-retrieval-262k", "long-retrieval-1m", "long-audio-262k", "long-audio-1m"])
def test_presets_have_the_lengths_of_their_names(name: str) -> None:
    run: Any = PRESETS[name]()
    length = run.data.length if "retrieval" in name else run.data.join.length
    assert length == {"262k": 2**18, "1m": 2**20}[name.rsplit("-", 1)[1]]
    assert length % run.train.pieces == 0
    assert run.train.short_first


# -- what they rest on -----------------------------------------------------------------------------------------------


def test_short_rows_first() -> None:
    split = open_memory_task(MemoryDataConfig(task="retrieval", length=400, shortest=32, n_train=30)).split("train")
    for drop_last, n in ((True, 7), (False, 8)):
        batches = LabelledBatches(split, 4, 0, drop_last, short_first=True)
        assert batches.steps_per_epoch == n
        seen = [batches[step].inputs.shape[1] for step in range(n)]
        assert seen == sorted(seen)
        assert seen[-1] == split.lengths.max()
        assert batches[n].inputs.shape[1] == seen[0]  # another epoch


def test_short_first_is_for_rows_of_their_own_lengths() -> None:
    with pytest.raises(ConfigError, match=r"train\.short_first=true is for sequences of their own lengths, not for"):
        open_task(with_train(PRESETS["mqar"](), short_first=True))


@pytest.mark.parametrize("pooling", ["mean", "last", "attention", None])
@pytest.mark.parametrize("ragged", [False, True])
def test_long_rows_are_evaluated_in_pieces(pooling: str | None, ragged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = (sw.Mamba2Config(d_state=8, d_head=8), sw.S4DConfig(d_state=8))
    torch.manual_seed(0)
    model = SequenceClassifierConfig(n_classes=3, d_input=2, d_model=16, layers=layers, pooling=pooling).build().eval()
    lengths = torch.tensor([100, 7, 41]) if ragged else None
    batch = LabelledBatch(torch.randn(3, 100, 2), torch.zeros(3, dtype=torch.int64), lengths)
    with torch.no_grad():
        whole, _ = classification.predict(model, batch)
        monkeypatch.setattr(classification, "LONG_ROW", 64)
        monkeypatch.setattr(classification, "PIECE", 16)
        pieces, _ = classification.predict(model, batch)
    if ragged and pooling is None:
        whole, pieces = whole[1, :7], pieces[1, :7]
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)


def test_a_model_without_a_state_reads_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "LONG_ROW", 8)
    layers = (sw.S4DConfig(d_state=8, bidirectional=True),)
    model = SequenceClassifierConfig(n_classes=8, vocab_size=20, d_model=16, layers=layers).build().eval()
    split = open_memory_task(MemoryDataConfig(task="retrieval", length=64, n_test=4)).split("test")
    assert evaluate_classifier(model, split).n_sequences == 4
