"""StatewiseClassifier and StatewiseRegressor among scikit-learn's own tools."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch

import statewise as sw
from statewise.errors import ConfigError

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from statewise.integrations.sklearn.layers import MIXERS

SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_layers": 1,
    "dropout": 0.0,
    "epochs": 12,
    "lr": 0.03,
    "batch_size": 16,
    "random_state": 0,
}


def two_classes(n: int = 48, length: int = 12, names: tuple[Any, Any] = ("low", "high")) -> tuple[np.ndarray, Any]:
    rng = np.random.default_rng(0)
    which = np.arange(n) % 2
    return rng.normal(size=(n, length)) + 2 * which[:, None] + 50, np.array(names)[which]


def classifier(**more: Any) -> sw.StatewiseClassifier:
    return sw.StatewiseClassifier(**(SMALL | more))


def regressor(**more: Any) -> sw.StatewiseRegressor:
    return sw.StatewiseRegressor(**(SMALL | more))


@pytest.fixture(scope="module")
def fitted() -> sw.StatewiseClassifier:
    return classifier().fit(*two_classes())


def test_classes_come_back(fitted: sw.StatewiseClassifier) -> None:
    X, y = two_classes()
    assert is_classifier(fitted)
    assert fitted.classes_.tolist() == ["high", "low"]
    assert fitted.n_features_in_ == 12
    assert fitted.score(X, y) > 0.95
    shares = fitted.predict_proba(X)
    assert shares.shape == (48, 2)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (fitted.classes_[shares.argmax(1)] == fitted.predict(X)).all()
    assert fitted.embed(X[:3]).shape == (3, 8)
    assert fitted.model_.config.classes == ("high", "low")


@pytest.mark.parametrize("names", [(10, 2), (1.0, 0.0), (True, False), ("b", "a")])
def test_classes_of_every_type(names: tuple[Any, Any]) -> None:
    X, y = two_classes(16, names=names)
    found = classifier(epochs=1).fit(X, y)
    assert found.classes_.tolist() == sorted(names)
    assert found.predict(X).dtype == y.dtype
    if names == ("b", "a"):
        assert found.fit(X, y.astype(object)).classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize("kind", ["list", "objects", "cells"])
def test_rows_of_unlike_lengths(kind: str) -> None:
    rng, lengths = np.random.default_rng(0), [5, 9, 12] * 12
    rows: Any = [rng.normal(size=(n, 2)) + 3 * (i % 2) for i, n in enumerate(lengths)]
    y = np.arange(36) % 2
    if kind != "list":
        rows = np.array([*rows, None], object)[:-1]
    if kind == "cells":
        rows = pytest.importorskip("pandas").Series(rows)
    found = classifier().fit(rows, y)
    assert found.score(rows, y) > 0.9
    assert not hasattr(found, "n_features_in_")
    assert found.predict(np.zeros((2, 30, 2))).tolist() == [0, 0]
    assert cross_val_score(classifier(epochs=1), rows, y, cv=2, error_score="raise").shape == (2,)


def test_a_longer_row_is_asked_about_in_a_list(fitted: sw.StatewiseClassifier) -> None:
    rows = [np.full(7, 50.0), np.full(40, 52.0), np.full(12, 50.0)]
    assert fitted.predict(rows).tolist() == ["low", "high", "low"]
    with pytest.raises(ValueError, match="X has 7 features, but StatewiseClassifier is expecting 12 features"):
        fitted.predict(np.full((1, 7), 50.0))
    refitted = clone(fitted).fit(rows, ["a", "b", "a"])
    refitted.fit(np.zeros((4, 3)), list("abab"))
    assert refitted.n_features_in_ == 3
    refitted.fit(rows, ["a", "b", "a"])
    assert not hasattr(refitted, "n_features_in_")


@pytest.mark.parametrize("d_output", [0, 1, 3])
def test_numbers_in_their_own_units(d_output: int) -> None:
    X, _ = two_classes()
    y = 200_000 + 1_000 * X.mean(1)
    y = y if not d_output else y[:, None] * 10.0 ** np.arange(d_output)
    found = regressor(epochs=30).fit(X, y)
    assert is_regressor(found)
    assert found.predict(X).shape == y.shape
    assert found.score(X, y) > 0.8


def test_three_axes() -> None:
    X, y = two_classes()
    X3 = np.stack([X, -X], 2)
    assert classifier().fit(X3, y).score(X3, y) > 0.95


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_every_mixer_by_name(name: str) -> None:
    X, y = two_classes(16, length=8)
    found = classifier(mixer=name, d_model=32, epochs=1).fit(X, y)
    assert type(found.model_.config.layers[0].mixer) is MIXERS[name]
    assert found.predict(X).shape == (16,)


def test_a_layer_that_reads_a_second_sequence_is_refused() -> None:
    X, y = two_classes(16)
    with pytest.raises(ConfigError, match="crossattention"):
        classifier(mixer="crossattention").fit(X, y)
    with pytest.raises(ConfigError, match=r"layers\[0\] reads a memory"):
        classifier(mixer=sw.CrossAttentionConfig(n_heads=2)).fit(X, y)


def test_configs_as_layers() -> None:
    X, y = two_classes(16)
    block = sw.BlockConfig(mixer=sw.Mamba2Config(d_state=8, d_head=8), mlp=sw.MLPConfig())
    found = clone(classifier(mixer=block, n_layers=2, epochs=1)).fit(X, y)
    assert found.model_.config.layers == (block, block)


def test_the_same_seed_the_same_model_and_no_trace() -> None:
    X, y = two_classes(16)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    first, again, other = (classifier(epochs=1, random_state=r).fit(X, y) for r in (3, np.int64(3), 4))
    assert (torch.rand(1), np.random.rand(), random.random()) == expected
    assert (first.predict_proba(X) == again.predict_proba(X)).all()
    assert (first.predict_proba(X) != other.predict_proba(X)).all()


def test_pickled_and_dumped(fitted: sw.StatewiseClassifier, tmp_path: Path) -> None:
    X, _ = two_classes()
    joblib.dump(fitted, tmp_path / "fitted.joblib")
    for again in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "fitted.joblib")):
        assert (again.predict_proba(X) == fitted.predict_proba(X)).all()


def test_search_and_pipeline() -> None:
    X, y = two_classes()
    search = GridSearchCV(classifier(epochs=4), {"d_model": [4, 8], "mixer": ["s4d", sw.GSSConfig()]}, cv=2)
    search.fit(X, y)
    assert search.best_score_ > 0.8
    assert search.cv_results_["mean_test_score"].shape == (4,)
    pipe = make_pipeline(MinMaxScaler(), classifier())
    assert pipe.fit(X, y).score(X, y) > 0.9
    assert pipe.set_params(statewiseclassifier__epochs=1).get_params()["statewiseclassifier__epochs"] == 1


def test_a_run_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = two_classes()
    found = classifier(out=tmp_path / "run", validation_fraction=0.25).fit(X, y)
    kept = sw.predictor(tmp_path / "run").predict(X)
    assert (kept.labels == found.predict(X)).all()
    assert (kept.probabilities == found.predict_proba(X)).all()
    assert capsys.readouterr() == ("", "")
    with pytest.raises(sw.CheckpointError, match="already holds a run"):
        found.fit(X, y)


@pytest.mark.parametrize(
    ("settings", "X", "y", "message"),
    [
        ({}, np.zeros((4, 3)), [1, 1, 1, 1], "y has 1 class, 1; a StatewiseClassifier needs two"),
        ({}, np.zeros((4, 3)), [0.5, 1.5, 2, 3], "Unknown label type: continuous"),
        ({}, np.zeros((4, 3)), [0, 1], "inconsistent numbers of samples"),
        ({}, [np.zeros(3), np.zeros(2)], [0], "inconsistent numbers of samples"),
        ({}, [np.zeros(3), np.zeros(2)], None, "requires y to be passed"),
        ({}, [np.zeros(3), np.full(2, np.nan)], [0, 1], "X holds NaN or infinity"),
        ({}, [np.zeros((3, 2)), np.zeros(2)], [0, 1], "row 1 of X has the shape"),
        ({"mixer": "s4e"}, np.zeros((4, 3)), [0, 1, 0, 1], "mixer='s4e' is unknown; did you mean 's4"),
        ({"mixer": 3}, np.zeros((4, 3)), [0, 1, 0, 1], "mixer=3; give a name"),
        ({"n_layers": 0}, np.zeros((4, 3)), [0, 1, 0, 1], "n_layers=0; expected an integer"),
        ({"d_model": 0}, np.zeros((4, 3)), [0, 1, 0, 1], "d_model"),
        ({"epochs": 0}, np.zeros((4, 3)), [0, 1, 0, 1], "epochs"),
        ({"normalize": "no"}, np.zeros((4, 3)), [0, 1, 0, 1], "normalize"),
        ({"device": "gpu"}, np.zeros((4, 3)), [0, 1, 0, 1], "device='gpu' is unknown"),
        ({"validation_fraction": 2}, np.zeros((4, 3)), [0, 1, 0, 1], "validation_fraction"),
    ],
)
def test_refusals(settings: dict[str, Any], X: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(**settings).fit(X, y)


def test_asked_too_early() -> None:
    for call in ("predict", "predict_proba", "embed"):
        with pytest.raises(NotFittedError):
            getattr(classifier(), call)(np.zeros((1, 3)))


def test_a_callback_of_another_thread_waits() -> None:
    """Runs seed the generators of the process: two at once would draw from each other."""
    X, y = two_classes(16)
    alone = classifier(epochs=3).fit(X, y).predict_proba(X)
    found = joblib.Parallel(n_jobs=3, backend="threading")(
        joblib.delayed(lambda: classifier(epochs=3).fit(X, y).predict_proba(X))() for _ in range(3)
    )
    assert all((one == alone).all() for one in found)


@pytest.mark.cuda
def test_a_pickle_of_another_device_is_read_on_the_cpu() -> None:
    X, y = two_classes()
    found = classifier(device="cuda").fit(X, y)
    assert next(found.model_.parameters()).is_cuda
    again = pickle.loads(pickle.dumps(found))
    assert next(again.model_.parameters()).device.type == "cpu"
    assert (again.predict(X) == found.predict(X)).all()
