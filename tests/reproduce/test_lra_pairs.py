"""Retrieval in ``reproduce lra``: pairs of documents, and the model that compares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import train_config

from statewise.data.labelled_batches import LabelledBatches, batches_in_order
from statewise.data.long_range import LongRangeDataConfig, TokenRowsSplit
from statewise.errors import ConfigError
from statewise.evaluate.labelled.classification import evaluate_classifier
from statewise.mixers.s4d import S4DConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.reproduce import reproduce, settings
from statewise.training import RunConfig
from statewise.training.tasks import open_task, task_type
from statewise.training.tasks.pairs import PairClassificationTask


class TestPairs:
    """The task of pairs, on rows in memory."""

    def split(self, n: int = 7) -> TokenRowsSplit:
        generator = np.random.default_rng(0)
        lengths = generator.integers(1, 12, (n, 2))
        begins = np.cumsum(lengths.ravel()).reshape(n, 2) - lengths
        values = generator.integers(1, 11, int(lengths.sum())).astype(np.uint8)
        return TokenRowsSplit("test", values, begins, lengths, generator.integers(0, 3, n))

    def config(self, **options: Any) -> PairClassifierConfig:
        return PairClassifierConfig(n_classes=3, vocab_size=11, d_model=8, layers=(S4DConfig(d_state=4),), **options)

    def test_evaluated_like_each_pair_alone(self) -> None:
        torch.manual_seed(0)
        model, split = self.config().build().eval(), self.split()
        found = evaluate_classifier(model, split, batch_size=3)  # type: ignore[arg-type]
        right = 0
        for i in range(len(split)):
            pair = [torch.from_numpy(split.sequence(i))[j, : int(split.lengths[i, j])] for j in range(2)]
            u, v = (model.features(document[None])[0].mean(1) for document in pair)
            logits = model.head(torch.cat([u, v]))
            right += int(logits.argmax()) == int(split.targets[i])
        assert found.n_predictions == len(split)
        assert found.accuracy == pytest.approx(right / len(split))

    def test_batches_hold_both_documents(self) -> None:
        split = self.split()
        for batch in (LabelledBatches(split, 3, seed=0)[0], next(batches_in_order(split, 3))):
            assert (batch.inputs.shape[0], batch.targets.shape) == (6, (3,))
            assert batch.lengths is not None
            assert batch.lengths.shape == (6,)

    def test_which_task_it_is(self) -> None:
        data, train = LongRangeDataConfig(task="retrieval"), train_config(steps=1)
        assert task_type(RunConfig(model=self.config(), data=data, train=train)) is PairClassificationTask

    def test_a_model_of_the_other_kind_is_refused(self, cache: Path, tmp_path: Path) -> None:
        lists = LongRangeDataConfig(min_length=5, max_length=30, n_train=4, n_validation=2, n_test=2)
        with pytest.raises(ConfigError, match="rows of the data are single sequences; use a SequenceClassifierConfig"):
            open_task(RunConfig(model=self.config(), data=lists, train=train_config(steps=1)))
        for name, text in {"a": "one two", "b": "three", "c": "four five six"}.items():
            (tmp_path / "documents" / name).mkdir(parents=True)
            for i in range(25):
                (tmp_path / "documents" / name / f"{i}.txt").write_text(f"{text} {i}")
        own = LongRangeDataConfig(task="retrieval-folder", folder=str(tmp_path / "documents"))
        single = SequenceClassifierConfig(n_classes=2, vocab_size=11, d_model=8, layers=(S4DConfig(d_state=4),))
        with pytest.raises(ConfigError, match="rows of the data are pairs of documents; use a PairClassifierConfig"):
            open_task(RunConfig(model=single, data=own, train=train_config(steps=1)))

    def test_own_documents_are_learned_to_be_told_apart(self, tmp_path: Path, cache: Path) -> None:
        """Through reproduce: what the model reads is fitted to the documents."""
        generator = np.random.default_rng(0)
        for letters in ("abcd", "wxyz"):
            folder = tmp_path / "documents" / letters
            folder.mkdir(parents=True)
            for i in range(40):
                (folder / f"{i}.txt").write_text("".join(generator.choice(list(letters), 12)))
        few = ['tasks=["retrieval-folder"]', 'models=["s4d"]', "minutes=null", "steps=60", "lr=0.01"]
        sizes = ["d_model=16", "n_layers=1", "d_state=4", "batch_size=16", "evaluate_items=null", "workers=1"]
        folder_given = f"folder={json.dumps(str(tmp_path / 'documents'))}"
        config = settings("lra", assignments=[*few, *sizes, folder_given])
        outcome = reproduce("lra", tmp_path / "run", config, plots=False)
        assert outcome.record is not None
        found = outcome.record["figures"]["runs"]["retrieval-folder-s4d"]["0"]
        assert max(found["course"]) == 1.0
        assert found["accuracy"] > 0.9
