"""Tasks other than windows of text, whose parts count differently; and what a batch's rows share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from distributed_harness import Place, case
from distributed_models import MAMBA2, a_run, parallel, require_close, single, steps, together
from training_runs import train_config, with_train

from statewise.data.base import DataConfig
from statewise.data.labelled import LabelledDataConfig
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.series import SeriesDataConfig
from statewise.data.synthetic_languages import MultiQueryRecallConfig
from statewise.errors import ConfigError
from statewise.mixers.s4d import S4DConfig
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.training import RunConfig
from statewise.training.distributed.several import SeveralRanks
from statewise.training.ranks import Ranks

BATCH_NORM = BlockConfig(mixer=S4DConfig(d_state=8, bidirectional=True), norm="batch", placement="post")


def task_run(model: ModelConfig, data: DataConfig, **train: Any) -> RunConfig:
    settings = {"steps": 8, "batch_size": 8, "lr": 1e-2, "save_minutes": None, **train}
    return RunConfig(model=model, data=data, train=train_config(**settings))


def ragged(place: Place) -> LabelledDataConfig:
    """Rows of 5 to 30 steps in two classes."""
    path = place.folder / "rows.npz"
    if place.rank == 0 and not path.exists():
        generator = np.random.default_rng(0)
        lengths = generator.integers(5, 31, 80)
        inputs = generator.normal(size=(80, 30, 2)).astype(np.float32)
        classes = (inputs[:, 0, 0] > 0).astype(np.int64)
        np.savez(path, train_x=inputs, train_y=classes, train_lengths=lengths)
    dist.barrier()
    return LabelledDataConfig(source="arrays", folder=str(path), validation_fraction=0.2, test_fraction=0.2)


@case(2, 4)
def ragged_rows_with_batch_norm(place: Place) -> None:
    """The statistics are those of all rows of the batch, and so are the running ones that evaluation uses."""
    model = SequenceClassifierConfig(n_classes=2, d_input=2, d_model=8, layers=(BATCH_NORM, BATCH_NORM))
    run = task_run(model, ragged(place))
    alone = parallel(run)
    expected = steps(place, alone, Ranks())[1].model.layers[0].mixer_norm
    for how in ({"data": "ddp"}, {"data": "fsdp"}):
        norm = together(place, run, **how).model.layers[0].mixer_norm
        for name in ("running_mean", "running_variance"):
            difference = getattr(norm, name) - getattr(expected, name)
            assert float(difference.abs().max()) < 1e-5


@case(2)
def ragged_rows_in_pieces(place: Place) -> None:
    """Rows are padded to a length that divides; the pooled features of the pieces are those of the rows."""
    model = SequenceClassifierConfig(n_classes=2, d_input=2, d_model=8, layers=(MAMBA2,), pooling="mean")
    together(place, task_run(model, ragged(place)), sequence=2)


@case(2)
def targets_that_do_not_count(place: Place) -> None:
    """Rows with 3 to 10 answers each, of which a rank may have more than another."""
    data = MultiQueryRecallConfig(vocab_size=32, length=24, n_pairs=3, n_train=64, n_validation=8)
    model = LanguageModelConfig(vocab_size=data.vocab_size, d_model=16, layers=(MAMBA2,))
    together(place, task_run(model, data))
    copying = MemoryDataConfig(task="copying", length=24, n_copied=4, n_train=64, n_validation=8, n_test=8)
    classifier = SequenceClassifierConfig(n_classes=8, vocab_size=10, d_model=8, layers=(MAMBA2,), pooling=None)
    together(place, task_run(classifier, copying))
    together(place, task_run(classifier, copying), sequence=2)  # one of the pieces has no target that counts


@case(2)
def regression_and_forecasts(place: Place) -> None:
    adding = MemoryDataConfig(task="adding", length=20, n_train=64, n_validation=8, n_test=8)
    regressor = SequenceRegressorConfig(d_output=1, d_input=2, d_model=8, layers=(MAMBA2,))
    together(place, task_run(regressor, adding), data="fsdp")
    path = place.folder / "series.csv"
    if place.rank == 0:  # with gaps, so that the windows have different numbers of known targets
        rows = [f"{i},{'' if i % 7 == 3 else np.sin(i / 3) + i / 50}" for i in range(160)]
        path.write_text("\n".join(["t,y", *rows]) + "\n")
    dist.barrier()
    series = SeriesDataConfig(source=str(path), horizon=4, history=12, season=2)
    forecaster = ForecasterConfig(horizon=4, d_model=8, layers=(MAMBA2,))
    for how in ({"data": "ddp"}, {"data": "fsdp"}):
        together(place, task_run(forecaster, series), **how)


@case(2)
def carried_states_and_micro_batches(place: Place) -> None:
    run = a_run(place, "mamba2", carry_state=True, accumulation=2)
    for how in ({"data": "ddp"}, {"data": "fsdp"}, {"sequence": 2}, {"tensor": 2}):
        together(place, run, **how)


@case(2)
def layers_computed_again(place: Place) -> None:
    run = a_run(place, "hybrid", gradient_checkpointing=True)
    for how in ({"data": "ddp"}, {"data": "fsdp"}, {"tensor": 2}):
        together(place, run, **how)


@case(2)
def sequences_in_pieces_beside_ddp(place: Place) -> None:
    """The steps are those of one process that reads whole sequences."""
    for options in ({}, {"carry_state": True, "accumulation": 2}):
        run = a_run(place, "mamba2" if options else "hybrid", **options)
        found, _ = steps(place, parallel(with_train(run, pieces=4), data="ddp"), SeveralRanks())
        require_close(found, single(place, run))
    with pytest.raises(ConfigError, match=r"train.pieces=4 with train.parallel.data=fsdp would gather every layer"):
        steps(place, parallel(with_train(run, pieces=4), data="fsdp"), SeveralRanks())


@case(2)
def rows_in_pieces_beside_ddp(place: Place) -> None:
    """Whose one answer is the last piece's; or that have answers at their end, so that a piece has none."""
    model = SequenceClassifierConfig(n_classes=2, d_input=2, d_model=8, layers=(MAMBA2,), pooling="mean")
    copying = MemoryDataConfig(task="copying", length=24, n_copied=4, n_train=64, n_validation=8, n_test=8)
    each = SequenceClassifierConfig(n_classes=8, vocab_size=10, d_model=8, layers=(MAMBA2,), pooling=None)
    for run in (task_run(model, ragged(place)), task_run(each, copying)):
        found, _ = steps(place, parallel(with_train(run, pieces=2), data="ddp"), SeveralRanks())
        require_close(found, single(place, run))


@case(2)
def dropout_differs_between_ranks(place: Place) -> None:
    """Each part of a batch draws numbers of its own; ranks that share tensors draw the same."""
    run = a_run(place)
    layers = tuple(BlockConfig(mixer=MAMBA2, dropout=0.3) for _ in range(2))
    run = replace(run, model=replace(run.model, layers=layers))
    for how, n_different in (({"data": "ddp"}, 2), ({"tensor": 2}, 1)):
        ranks = SeveralRanks()
        steps(place, parallel(run, **how), ranks, n=1)
        drawn = ranks._all(torch.rand(()).item())
        assert len(set(drawn)) == n_different
