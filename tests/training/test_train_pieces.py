"""Training that reads its sequences in pieces: the numbers of training on whole ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from raw_data import run_on, shifted
from test_train_resume import StopAt, assert_same, everything
from training_runs import curve, small_model, small_run, with_train

import statewise as sw
from statewise.data import LabelledDataConfig
from statewise.errors import ConfigError
from statewise.training import train_run
from statewise.training.config import ParallelConfig
from statewise.training.memory_estimate import estimate_memory


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in curve(folder, "train")]


def assert_close(one: Path, other: Path) -> None:
    assert losses(one) == pytest.approx(losses(other), rel=1e-5)
    found, expected = everything(one), everything(other)
    assert found.keys() == expected.keys()
    for name in found:
        if not name.startswith("optimizer.exp_avg_sq"):
            torch.testing.assert_close(found[name], expected[name], rtol=2e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("options", [{}, {"carry_state": True}, {"accumulation": 2}], ids=str)
def test_a_text_in_pieces(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"steps": 4, "model": small_model(dropout=0.0), **options}
    train_run(small_run(tmp_path, **options), tmp_path / "whole")
    train_run(small_run(tmp_path, pieces=4, **options), tmp_path / "pieces")
    assert_close(tmp_path / "pieces", tmp_path / "whole")


def test_rows_in_pieces(tmp_path: Path) -> None:
    run = run_on(LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path))), steps=4)
    train_run(run, tmp_path / "whole")
    train_run(with_train(run, pieces=5), tmp_path / "pieces")
    assert_close(tmp_path / "pieces", tmp_path / "whole")


def test_more_pieces_than_steps_are_refused(tmp_path: Path) -> None:
    run = run_on(LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path))), steps=1)
    with pytest.raises(ConfigError, match=r"train\.pieces=100,000, but the longest row has"):
        train_run(with_train(run, pieces=100_000), tmp_path / "run")


def test_stopped_and_resumed_every_bit_is_the_same(tmp_path: Path) -> None:
    config = small_run(tmp_path, steps=5, pieces=2, carry_state=True)
    train_run(config, tmp_path / "straight")
    for number, stop in enumerate([2, 99]):
        train_run(config, tmp_path / "run", resume=number > 0, reporter=StopAt(stop))
    assert_same(everything(tmp_path / "run"), everything(tmp_path / "straight"))


def test_the_estimate_is_that_of_a_piece(tmp_path: Path) -> None:
    config = with_train(small_run(tmp_path, steps=1), length=512)
    whole, pieces = estimate_memory(config), estimate_memory(with_train(config, pieces=16))
    assert pieces.activations < whole.activations / 8
    assert pieces.parameters == whole.parameters
    by_two = estimate_memory(with_train(config, pieces=8, parallel=ParallelConfig(sequence=2)), n_ranks=2)
    assert by_two.activations == pytest.approx(pieces.activations, rel=0.02)
    half = estimate_memory(with_train(config, pieces=16), n_ranks=2)
    assert half.activations < 0.6 * pieces.activations


def test_errors(tmp_path: Path) -> None:
    config = small_run(tmp_path, steps=1)
    with pytest.raises(ConfigError, match=r"pieces=2 with tensor=2: ranks that share matrices would wait"):
        replace(config.train, pieces=2, parallel=replace(config.train.parallel, tensor=2))
    with pytest.raises(ConfigError, match=r"train.pieces=7 does not divide train.length="):
        train_run(with_train(config, pieces=7), tmp_path / "a")
    rows = run_on(LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path))), steps=1)
    layer = sw.BlockConfig(mixer=sw.S4DConfig(d_state=4, bidirectional=True), norm="layer")
    with pytest.raises(ConfigError, match=r"train.pieces=2 passes states on, and a bidirectional S4D has no state"):
        train_run(with_train(replace(rows, model=replace(rows.model, layers=(layer,))), pieces=2), tmp_path / "b")  # type: ignore[call-arg]
    norm = sw.BlockConfig(mixer=sw.S4DConfig(d_state=4), norm="batch")
    with pytest.raises(ConfigError, match=r"train.pieces=2: .* is a batch norm, whose means are of whole sequences"):
        train_run(with_train(replace(rows, model=replace(rows.model, layers=(norm,))), pieces=2), tmp_path / "c")  # type: ignore[call-arg]
    series = run_on(LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path)), normalize="series"), steps=1)
    with pytest.raises(ConfigError, match=r"train.pieces=2 cuts rows in pieces, which this model does not read"):
        train_run(with_train(series, pieces=2), tmp_path / "d")
    assert not (tmp_path / "b" / "checkpoints").exists()
