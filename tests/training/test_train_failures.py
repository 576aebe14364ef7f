"""What stops a run: numbers that are not finite, and a full disk; each is one line, and nothing good is lost."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from training_runs import curve, small_model, small_run, with_train

from statewise import checkpoints
from statewise.errors import CheckpointError, ConfigError, TrainingError
from statewise.mixers.attention import AttentionConfig
from statewise.training import TrainResult, train_run
from statewise.training import run_state as run_state_module
from statewise.training.run_folder import read_run


def test_a_run_that_failed_before_its_first_checkpoint_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_it(model: Any) -> None:
        model.layers[0].register_forward_hook(lambda module, args, output: (output[0] * math.nan, *output[1:]))

    config, run = small_run(tmp_path, steps=4), tmp_path / "run"
    broken_at(3, monkeypatch, break_it)
    with pytest.raises(TrainingError, match=r"statewise train --resume \S+run --lr 0\.00033$"):
        train_run(config, run)
    monkeypatch.undo()
    first = {name: (run / name).read_bytes() for name in ("run.json", "metrics.jsonl")}
    other = with_train(config, lr=0.00033)
    with pytest.raises(CheckpointError, match="--resume"):
        train_run(other, run)
    assert train_run(other, run, resume=True).step == 4
    assert {name: (run / f"{name}.failed").read_bytes() for name in first} == first
    train_run(other, tmp_path / "straight")
    assert curve(run) == curve(tmp_path / "straight")
    assert read_run(run).train.optimizer.lr == 0.00033


def broken_at(step: int, monkeypatch: pytest.MonkeyPatch, break_it: Any) -> None:
    """Calls ``break_it(model)`` when the model is in that step, before it runs."""
    build = run_state_module.RunState

    class Broken(build):  # type: ignore[valid-type, misc]
        def __init__(self, run: Any, **options: Any) -> None:
            super().__init__(run, **options)
            features = self.model.features

            def broken(*args: Any, **kwargs: Any) -> Any:
                if self.progress.step == step - 1 and torch.is_grad_enabled():
                    break_it(self.model)
                return features(*args, **kwargs)

            self.model.features = broken

    from statewise.training import loop

    monkeypatch.setattr(loop, "RunState", Broken)


def test_carried_positions_must_reach_to_the_end_of_every_document(tmp_path: Path) -> None:
    """Before the first step, and not at the batch that goes too far."""
    layer = AttentionConfig(n_heads=2, window=8, positions="learned", max_positions=300)
    config = small_run(tmp_path, model=small_model(layers=(layer,)), carry_state=True)
    with pytest.raises(ConfigError, match=r"the longest document has [\d,]+ tokens, .* up to max_positions=300"):
        train_run(config, tmp_path / "run")


def test_a_loss_that_is_not_finite_names_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_it(model: Any) -> None:
        projection = model.layers[1].mixer.out_proj
        if not projection._forward_hooks:
            projection.register_forward_hook(lambda module, args, output: output * math.nan)

    broken_at(4, monkeypatch, break_it)
    config = small_run(tmp_path, save_every=1, accumulation=2, carry_state=True)
    with pytest.raises(TrainingError, match=r"step 4: the loss is nan.*layers\.1\.mixer\.out_proj") as caught:
        train_run(config, tmp_path / "run")
    assert "step-00000003" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1
    monkeypatch.undo()
    assert train_run(config, tmp_path / "run", resume=True).step == 8
    train_run(config, tmp_path / "straight")
    assert curve(tmp_path / "run") == curve(tmp_path / "straight")


def test_a_gradient_that_is_not_finite_names_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad * math.inf

    def break_it(model: Any) -> None:
        norm = model.layers[0].mixer.norm
        if not norm._forward_hooks:
            norm.register_forward_hook(lambda module, args, output: Poison.apply(output))

    broken_at(2, monkeypatch, break_it)
    with pytest.raises(TrainingError, match=r"step 2: the norm of the gradient is (nan|inf).*layers\.0\.mixer\.norm"):
        train_run(small_run(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_dropout_repeats_when_the_layer_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what dropout let through is broken, so another draw would find nothing, or something else."""
    seen: list[Tensor] = []

    def break_it(model: Any) -> None:
        layer = model.layers[0]
        if not layer.dropout._forward_hooks:

            def hook(module: Any, args: Any, output: Tensor) -> Tensor:
                seen.append(output == 0)
                return torch.where(output == 0, math.nan, output)

            layer.dropout.register_forward_hook(hook)

    broken_at(3, monkeypatch, break_it)
    with pytest.raises(TrainingError, match=r"layers\.0\.dropout \(Dropout\)"):
        train_run(small_run(tmp_path), tmp_path / "run")
    assert len(seen) == 2
    assert torch.equal(*seen)


def test_no_bad_checkpoint_is_written(tmp_path: Path) -> None:
    """The first step throws the parameters out of range: its loss was finite, they are not."""
    config = small_run(tmp_path, lr=1e38, warmup=0.0, weight_decay=1e3, save_every=1, clip_norm=None)
    with pytest.raises(TrainingError, match="is not finite after step 1; no checkpoint was written"):
        train_run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_parameter_that_is_not_finite_is_named(tmp_path: Path) -> None:
    config = small_run(tmp_path, lr=1e38, warmup=0.0, weight_decay=1e3, clip_norm=None)
    with pytest.raises(TrainingError, match=r"step 2: the loss is nan; the parameter \S+ was not finite"):
        train_run(config, tmp_path / "run")


@pytest.mark.parametrize("how", ["full", "too large"])
def test_a_full_disk_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    resource = pytest.importorskip("resource")
    save = checkpoints.save

    def on_a_full_disk(model: Any, folder: Any, **rest: Any) -> Any:
        if Path(folder).name != "step-00000004":
            return save(model, folder, **rest)
        if how == "full":
            monkeypatch.setattr(os, "fsync", full)
            return save(model, folder, **rest)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # the system itself refuses the write
        try:
            return save(model, folder, **rest)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoints, "save", on_a_full_disk)
    config = small_run(tmp_path, save_every=1)
    with pytest.raises(CheckpointError, match=r"step-00000004.*step-00000003") as caught:
        train_run(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    monkeypatch.undo()
    assert checkpoints.resolve(tmp_path / "run", "latest").name == "step-00000003"
    assert train_run(config, tmp_path / "run", resume=True).step == 8
    train_run(config, tmp_path / "straight")
    assert curve(tmp_path / "run") == curve(tmp_path / "straight")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_while_writing_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statewise.training.metrics import MetricsFile

    write = MetricsFile.write

    def on_a_full_disk(self: MetricsFile, record: Any) -> None:
        if record["step"] == 5:
            self._file.close()
            self._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
        write(self, record)

    monkeypatch.setattr(MetricsFile, "write", on_a_full_disk)
    config = small_run(tmp_path, save_every=2)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: No space left.*step-00000004"):
        train_run(config, tmp_path / "run")
    monkeypatch.undo()
    result: TrainResult = train_run(config, tmp_path / "run", resume=True)
    assert result.step == 8
    assert [line["step"] for line in curve(tmp_path / "run", "train")] == list(range(1, 9))
