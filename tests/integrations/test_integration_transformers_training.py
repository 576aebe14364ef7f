"""Trainer, its resume, and gradient checkpointing, around a Statewise model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import build_optimizer, parameter_groups

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import transformers
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments
from wrapped_models import EVERY, build, rows

from statewise.integrations.transformers import StatewiseForCausalLM, from_statewise

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    chosen = {"max_steps": 8, "save_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-2} | options
    return TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1, seed=3, **chosen
    )


def examples(n: int = 24) -> list[dict[str, Tensor]]:
    """Rows that count upwards from a first token: learned within a few steps."""
    return [{"input_ids": (row := (start + torch.arange(12)) % 31), "labels": row} for start in torch.arange(n)]


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_learns_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = Trainer(from_statewise(build("hybrid")), arguments(tmp_path / "whole"), train_dataset=examples())
    whole.train()
    assert losses(whole)[-1] < 0.7 * losses(whole)[0]
    resumed = Trainer(from_statewise(build("hybrid", seed=7)), arguments(tmp_path / "again"), train_dataset=examples())
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert losses(resumed) == losses(whole)
    for (name, expected), found in zip(
        whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, found), name
    assert resumed.model.model.head.weight is resumed.model.model.embedding.weight
    saved = StatewiseForCausalLM.from_pretrained(tmp_path / "whole" / "checkpoint-8")
    assert torch.equal(saved.model.head.weight, whole.model.model.head.weight)


def test_trainer_evaluates(tmp_path: Path) -> None:
    wrapped = from_statewise(build("mamba"))
    trainer = Trainer(wrapped, arguments(tmp_path, per_device_eval_batch_size=8), eval_dataset=examples())
    with torch.no_grad():
        ids = torch.stack([row["input_ids"] for row in examples()])
        expected = float(wrapped(ids, labels=ids).loss)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    logits, labels = trainer.predict(examples())[:2]
    assert (logits.shape, labels.shape) == ((24, 12, 31), (24, 12))


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
def test_accumulated_steps_are_one_large_step(tmp_path: Path) -> None:
    """Trainer divides by the targets of all its small batches: the loss has to take their number."""
    trained = []
    for size, steps in ((8, 1), (2, 4)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 3}
        options["gradient_checkpointing"] = steps > 1
        model = from_statewise(build("mamba", dtype=torch.float64))
        Trainer(model, arguments(tmp_path / str(size), save_strategy="no", **options), train_dataset=examples()).train()
        trained.append(model.model.head.weight)
    torch.testing.assert_close(*trained, rtol=1e-6, atol=1e-7)


def test_trainer_takes_our_optimiser(tmp_path: Path) -> None:
    """Whose groups know which parameters must not decay, which names do not tell."""
    wrapped = from_statewise(build("mamba2"))
    config = OptimizerConfig(lr=1e-2)
    optimizer = build_optimizer(parameter_groups(wrapped.model, config), config)
    trainer = Trainer(
        wrapped,
        arguments(tmp_path, save_strategy="no", weight_decay=0.5),
        train_dataset=examples(),
        optimizers=(optimizer, None),
    )
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0]
    assert trainer.optimizer.optimizer is optimizer


def test_packed_rows_are_their_documents(tmp_path: Path) -> None:
    """DataCollatorWithFlattening lays documents end to end; none knows of the one before."""
    wrapped = from_statewise(build("hybrid", dtype=torch.float64))
    documents = rows(5, 3, 8)
    batch = DataCollatorWithFlattening()([{"input_ids": row.tolist()} for row in documents])
    alone = [wrapped(row[None], labels=row[None]).loss * (len(row) - 1) for row in documents]
    expected = sum(alone) / sum(len(row) - 1 for row in documents)
    torch.testing.assert_close(wrapped(**batch).loss, expected, rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")  # the name that every version 5 knows
@pytest.mark.parametrize("name", EVERY)
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    gradients = []
    for enabled in (False, True):
        wrapped = from_statewise(build(name, dtype=torch.float64)).train()
        if enabled:
            wrapped.gradient_checkpointing_enable()
        assert wrapped.model.gradient_checkpointing == enabled
        ids = torch.stack(rows(9, 9))
        wrapped(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad for parameter in wrapped.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)
    wrapped.gradient_checkpointing_disable()
    assert not wrapped.model.gradient_checkpointing
