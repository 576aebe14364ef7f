"""Synthetic languages: a language model is asked for tokens that it has seen before."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.data.base import DataConfig
from statewise.data.memory_tasks import IGNORED
from statewise.data.splits import SPLITS
from statewise.data.synthetic_languages import SyntheticLanguageConfig, open_synthetic_language
from statewise.data.synthetic_languages.batches import RecallBatch, RecallBatches
from statewise.errors import ConfigError, InputError, NotFiniteError
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.plots.style import figure
from statewise.training.config import RunConfig
from statewise.training.tasks.base import Table, Task
from statewise.training.tasks.language import token_loss

EVALUATE_TOKENS = 1 << 16  # read at once, where a row is not longer
EVALUATE_LOGITS = 1 << 24  # made at once


class RecallTask(Task[LanguageModel, RecallBatch]):
    """Cross-entropy of the targets that count; the accuracy of the answers says which checkpoint is best."""

    models = (LanguageModelConfig,)
    metric = "accuracy"
    higher_is_better = True
    progress_line = "loss {loss:.3f}"
    evaluation_line = "accuracy {accuracy:.2%}, all answers of a row {accuracy_of_examples:.2%}, loss {loss:.4f}"
    plot_of = "the accuracy over the distance from the answer in the input"

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        model, self.config = cast(LanguageModelConfig, run.model), cast(SyntheticLanguageConfig, run.data)
        self.data = open_synthetic_language(self.config)
        needed = self.data.vocab_size
        if model.vocab_size != needed:
            raise ConfigError(
                f"model.vocab_size={model.vocab_size}, but the language {self.config.task!r} has {needed} tokens; "
                f"set model.vocab_size={needed}"
            )

    @classmethod
    def model_fields(cls, data: DataConfig) -> Mapping[str, Any]:
        return {"vocab_size": cast(SyntheticLanguageConfig, data).vocab_size}

    @property
    def fingerprint(self) -> str:
        return self.data.fingerprint

    def describe(self) -> str:
        return self.data.describe()

    def sizes(self) -> dict[str, int]:
        counts = {name: getattr(self.config, f"n_{name}") for name in SPLITS}
        return {name: count for name, count in counts.items() if count}

    @cached_property
    def batches(self) -> RecallBatches:
        train = self.run.train
        return RecallBatches(self.data.split("train"), train.batch_size, train.seed, train.drop_last)

    def loss(self, model: LanguageModel, batch: RecallBatch, state: Any) -> tuple[Tensor, Any]:
        """The mean cross-entropy in nats of the targets that count."""
        features, state = model.features(batch.inputs, state)
        return token_loss(model, _at(features, batch.positions), batch.targets), state

    def n_targets(self, batch: RecallBatch) -> int:
        return int((batch.targets != IGNORED).sum())

    def evaluate(
        self, model: LanguageModel, split: str, *, max_items: int | None = None, **options: Any
    ) -> dict[str, Any]:
        """Loss and accuracy are those of the answers, whatever the loss of training counts.

        accuracy_of_examples: the share of rows whose answers are all right
        by_distance:          the accuracy by how many steps before the answer is due it is in the input
        """
        part = self.data.split(split)
        if max_items is not None and max_items < 1:
            raise InputError(f"max_items={max_items} is out of range; use at least 1")
        n_rows = len(part) if max_items is None else min(max_items, len(part))
        length, n_answers = part.shape
        rows_at_once = min(EVALUATE_TOKENS // length, EVALUATE_LOGITS // (n_answers * self.data.vocab_size))
        device = model.embedding.weight.device
        nats, right, distances, begin = 0.0, [], [], time.perf_counter()
        with evaluation_mode(model), torch.no_grad():
            for drawn in part.in_parts(n_rows, max(1, rows_at_once)):
                inputs, answers, positions = (torch.from_numpy(np.array(x)).to(device) for x in drawn[:3])
                logits = model.head(_at(model.features(inputs)[0], positions))
                if not torch.isfinite(logits).all():
                    raise NotFiniteError(f"the model's predictions on the {split} split are not finite")
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
                nats += float(F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum"))
                right.append((logits.argmax(-1) == answers).cpu().numpy())
                distances.append(drawn.positions - drawn.sources)
        correct, distance = np.concatenate(right), np.concatenate(distances)
        return {
            "loss": nats / correct.size,
            "accuracy": float(correct.mean()),
            "accuracy_of_examples": float(correct.all(1).mean()),
            "chance": self.data.chance,
            "sequences": n_rows,
            "answers": correct.size,
            "seconds": time.perf_counter() - begin,
            "by_distance": by_distance(correct, distance),
        }

    def tables(self, record: Mapping[str, Any]) -> list[Table]:
        """The figures, and the accuracy by distance."""
        rows = [
            ("accuracy", f"{record['accuracy']:.2%}"),
            ("all answers of a row", f"{record['accuracy_of_examples']:.2%}"),
            ("chance", f"{record['chance']:.2%}"),
            ("loss of the answers", f"{record['loss']:.4f}"),
        ]
        distances = [
            (_interval(row["from"], row["to"]), f"{row['accuracy']:.2%}", f"{row['answers']:,}")
            for row in record["by_distance"]
        ]
        notes = (f"{record['sequences']:,} sequences in {record['seconds']:.1f} s by {record['checkpoint']}",)
        return [
            Table(f"{record['split']} split", ("", ""), rows, notes),
            Table("by the distance of the answer", ("steps before", "accuracy", "n"), distances),
        ]

    def plot(self, path: Path, *, model: LanguageModel, split: str, record: Mapping[str, Any]) -> None:
        rows = record["by_distance"]
        with figure(path) as drawn:
            axes = drawn.subplots()
            axes.bar([_interval(row["from"], row["to"]) for row in rows], [row["accuracy"] for row in rows])
            axes.axhline(record["chance"], color="black", linestyle="--", label="chance")
            axes.set(xlabel="steps from the answer in the input", ylabel="accuracy", ylim=(0, 1))
            axes.set_title(f"{self.config.task}, {split}: accuracy {record['accuracy']:.2%}")
            axes.legend()


def by_distance(right: np.ndarray, distances: np.ndarray) -> list[dict[str, Any]]:
    """The accuracy of the answers at distances of 1, 2 to 3, 4 to 7 and so on, where there are any."""
    octaves = np.frexp(distances)[1] - 1  # 2^octave <= distance
    found = []
    for octave in np.unique(octaves):
        here = right[octaves == octave]
        found.append(
            {
                "from": 1 << int(octave),
                "to": (2 << int(octave)) - 1,
                "accuracy": float(here.mean()),
                "answers": int(here.size),
            }
        )
    return found


def _interval(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _at(features: Tensor, positions: Tensor | None) -> Tensor:
    """(batch, n, d_model): the features at these positions, (batch, n); None: all."""
    if positions is None:
        return features
    return features.gather(1, positions[..., None].expand(-1, -1, features.shape[-1]))
