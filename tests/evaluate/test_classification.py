"""Figures of classification and regression against scikit-learn's, and the plot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.data.labelled_batches import batches_in_order
from statewise.data.memory_tasks import MemoryDataConfig, open_memory_task
from statewise.errors import InputError
from statewise.evaluate.labelled.classification import (
    confusion_matrix,
    cross_entropy,
    evaluate_classifier,
    f1_scores,
    macro_f1,
)
from statewise.evaluate.labelled.regression import evaluate_regressor, squared_error
from statewise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from statewise.models.regressor import SequenceRegressor, SequenceRegressorConfig
from statewise.plots.confusion import draw_confusion

MAMBA = sw.Mamba2Config(d_state=4, d_head=8, chunk_length=8)


def classifier(n_classes: int, **options: Any) -> SequenceClassifier:
    torch.manual_seed(0)
    config = SequenceClassifierConfig(n_classes=n_classes, d_model=8, layers=(MAMBA,), **options)
    return config.build()


def regressor(d_output: int, **options: Any) -> SequenceRegressor:
    torch.manual_seed(0)
    return SequenceRegressorConfig(d_output=d_output, d_model=8, layers=(MAMBA,), **options).build()


@pytest.mark.parametrize("classes", [[0, 1, 2, 3, 4], [0, 2, 2, 2, 3]])
def test_f1_and_confusion_are_those_of_scikit_learn(classes: list[int]) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(0)
    targets = generator.choice(classes[:4], 300)
    predictions = np.where(generator.random(300) < 0.6, targets, generator.choice(classes, 300))
    confusion = confusion_matrix(targets, predictions, 6)  # the sixth class does not occur
    np.testing.assert_array_equal(confusion, metrics.confusion_matrix(targets, predictions, labels=range(6)))
    assert macro_f1(confusion) == pytest.approx(metrics.f1_score(targets, predictions, average="macro"))
    seen = np.union1d(targets, predictions)
    np.testing.assert_allclose(f1_scores(confusion)[seen], metrics.f1_score(targets, predictions, average=None))
    assert np.isnan(f1_scores(confusion)[5])


def test_a_classifier_on_ragged_rows() -> None:
    pytest.importorskip("aeon", reason="aeon is not installed")
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    split = open_labelled(LabelledDataConfig(source="ucr:JapaneseVowels")).split("test")
    model = classifier(9, d_input=12)
    seen: list[tuple[int, int]] = []
    result = evaluate_classifier(model, split, batch_size=50, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (370, 370)
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(torch.from_numpy(split.sequence(i))[None])[0] for i in range(len(split))])
    predictions = logits.argmax(-1).numpy()
    assert (result.n_sequences, result.n_predictions) == (370, 370)
    assert result.accuracy == pytest.approx(metrics.accuracy_score(split.targets, predictions))
    assert result.macro_f1 == pytest.approx(metrics.f1_score(split.targets, predictions, average="macro"))
    assert result.loss == pytest.approx(metrics.log_loss(split.targets, logits.double().softmax(-1)), rel=1e-4)
    np.testing.assert_array_equal(result.confusion, metrics.confusion_matrix(split.targets, predictions))
    few = evaluate_classifier(model, split, max_sequences=33)
    assert few.n_sequences == 33
    assert few.accuracy == pytest.approx(float((predictions[:33] == split.targets[:33]).mean()))


def test_only_the_answers_of_copying_count() -> None:
    data = open_memory_task(MemoryDataConfig(task="copying", length=30, n_copied=4, n_test=20))
    model = classifier(8, vocab_size=10, pooling=None)
    result = evaluate_classifier(model, data.split("test"), batch_size=7)
    assert (result.n_sequences, result.n_predictions) == (20, 80)
    x, y = data.split("test").read(np.arange(20))
    logits = model(torch.from_numpy(x))[0][:, -4:]
    targets = torch.from_numpy(y[:, -4:])
    assert result.accuracy == pytest.approx(float((logits.argmax(-1) == targets).float().mean()))
    assert result.loss == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).detach())
    )
    assert cross_entropy(logits.bfloat16(), targets).dtype == torch.float32


@pytest.mark.parametrize("d_output", [1, 5])
def test_a_regressor(d_output: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    data = open_memory_task(
        MemoryDataConfig(
            task="reconstruction", length=30, n_points=d_output, window=20, each_step=d_output > 1, n_test=50
        )
    )
    model = regressor(d_output, d_input=1, pooling=None if d_output > 1 else "last")
    result = evaluate_regressor(model, data.split("test"), batch_size=16)
    x, y = data.split("test").read(np.arange(50))
    with torch.no_grad():
        predictions = model(torch.from_numpy(x))[0].flatten(0, -2).numpy()
    y = y.reshape(-1, d_output)
    assert result.n_predictions == y.size
    assert result.mse == pytest.approx(metrics.mean_squared_error(y, predictions), rel=1e-5)
    assert result.mae == pytest.approx(metrics.mean_absolute_error(y, predictions), rel=1e-5)
    r2 = metrics.r2_score(y, predictions, multioutput="variance_weighted")
    assert result.r2 == pytest.approx(r2, rel=1e-4)
    assert result.nrmse == pytest.approx((1 - r2) ** 0.5, rel=1e-4)
    assert squared_error(torch.ones(3).bfloat16(), torch.zeros(3)).item() == 1


def test_targets_that_do_not_vary_have_no_relative_error() -> None:
    data = open_memory_task(MemoryDataConfig(task="delay", length=10, delay=9, n_test=3))
    split = data.split("test")

    class Flat:
        name, lengths = "test", split.lengths

        def __len__(self) -> int:
            return 3

        def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x, y = split.read(rows)
            return x, np.full_like(y, 2.0)

    result = evaluate_regressor(regressor(1, d_input=1, pooling=None), Flat())
    assert result.r2 is None
    assert result.nrmse is None
    assert result.mse > 0


def test_what_does_not_fit_is_told() -> None:
    copying = open_memory_task(MemoryDataConfig(task="copying", length=30, n_test=4)).split("test")
    adding = open_memory_task(MemoryDataConfig(task="adding", length=30, n_test=4)).split("test")
    with pytest.raises(InputError, match=r"logits \(4, 8\) do not fit targets .* needs pooling=None"):
        evaluate_classifier(classifier(8, vocab_size=10), copying)
    with pytest.raises(InputError, match=r"outputs \(4, 30, 1\) do not fit targets \(4, 1\)"):
        evaluate_regressor(regressor(1, d_input=2, pooling=None), adding)
    broken = classifier(8, vocab_size=10, pooling=None)
    with torch.no_grad():
        broken.head.bias.fill_(torch.nan)
    with pytest.raises(InputError, match="the model's outputs are not finite"):
        evaluate_classifier(broken, copying)
    assert broken.training  # as it was


def test_evaluation_is_without_dropout_and_leaves_the_mode() -> None:
    split = open_memory_task(MemoryDataConfig(task="copying", length=30, n_test=8)).split("test")
    model = classifier(8, vocab_size=10, pooling=None, dropout=0.5)
    assert evaluate_classifier(model, split).loss == evaluate_classifier(model, split).loss
    assert model.training
    assert len(list(batches_in_order(split, 3))) == 3


def test_the_confusion_matrix_is_drawn() -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    confusion = np.array([[5, 1, 0], [0, 0, 2], [0, 0, 0]])
    small, large = figures.Figure(), figures.Figure()
    draw_confusion(small, confusion, ["a", "b", "c"], title="small")
    axes = small.axes[0]
    assert [text.get_text() for text in axes.texts] == ["5", "1", "2"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[5 / 6, 1 / 6, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    draw_confusion(large, np.eye(40, dtype=np.int64), list(map(str, range(40))))
    assert not large.axes[0].texts


def test_at_least_one_row_is_read() -> None:
    data = open_memory_task(MemoryDataConfig(task="adding", length=8, n_test=4))
    with pytest.raises(InputError, match=r"max_sequences=-1 .* at least 1"):
        evaluate_regressor(regressor(1, d_input=2), data.split("test"), max_sequences=-1)
