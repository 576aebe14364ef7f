"""Labelled sequences: division, scaling, batches, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled import as_stored, opened

from statewise.data.divided_rows import hold_out
from statewise.data.labelled import LabelledDataConfig
from statewise.data.labelled_batches import LabelledBatches, batches_in_order
from statewise.errors import ConfigError, DataError

# ---- digits, and what all sources share


def test_digits_are_divided_by_class_and_seed() -> None:
    from sklearn.datasets import load_digits

    data = opened()
    pixels, labels = load_digits(return_X_y=True)
    rows = {name: data.split(name).begins // 64 for name in ("train", "validation", "test")}
    assert sorted(np.concatenate(list(rows.values()))) == list(range(1797))
    assert len(rows["test"]) == 359
    for label in range(10):
        n = int((labels == label).sum())
        assert (labels[rows["test"]] == label).sum() == round(n / 5)
        assert (labels[rows["validation"]] == label).sum() == round(0.1 * (n - round(n / 5)))
    for name, chosen in rows.items():
        split = data.split(name)
        assert (split.targets == labels[chosen]).all()
        x = np.stack([split.sequence(i) for i in range(5)])
        mean, deviation = pixels[rows["train"]].mean(), pixels[rows["train"]].std()
        np.testing.assert_allclose(x[..., 0], (pixels[chosen[:5]] - mean) / deviation, atol=1e-6)
        assert x.dtype == np.float32
    assert data.split("train").values.dtype == np.uint8
    other = opened(seed=1)
    assert set(other.split("test").begins) != set(data.split("test").begins)
    assert opened().fingerprint == data.fingerprint != other.fingerprint
    assert opened(test_fraction=0.5).split("test").begins.size == pytest.approx(898, abs=5)
    with pytest.raises(DataError, match=r"there is no test split: data\.test_fraction is 0"):
        opened(test_fraction=0.0).split("test")
    with pytest.raises(DataError, match=r"there is no validation split: data\.validation_fraction is 0"):
        opened(validation_fraction=0.0).split("validation")
    with pytest.raises(ConfigError, match="the split 'dev' is unknown"):
        data.split("dev")


@pytest.mark.parametrize("normalize", ["dataset", "series", "none"])
def test_all_rows_are_those_of_the_splits(tmp_path: Path, normalize: str) -> None:
    """Also of a file whose test rows are an array of their own; the first of them are a fair sample."""
    rng = np.random.default_rng(0)
    parts = {f"{part}_x": rng.normal(size=(n, 7, 2)) for part, n in (("train", 20), ("test", 5))}
    np.savez(tmp_path / "a.npz", **parts, train_y=np.repeat(["a", "b"], 10), test_y=np.repeat(["a"], 5))
    for data in (opened(normalize=normalize), opened("arrays", folder=str(tmp_path / "a.npz"), normalize=normalize)):
        rows: dict[str, list[bytes]] = {"all": [], "apart": []}
        for name in ("all", *data.splits):
            split = data.split(name)
            x, y = split.read(np.arange(len(split)))
            rows["all" if name == "all" else "apart"] += [a.tobytes() + bytes([b]) for a, b in zip(x, y)]
        assert sorted(rows["all"]) == sorted(rows["apart"])
        assert set(data.split("all").targets[:12]) != {0}


def test_the_permutation_is_one_for_all_rows() -> None:
    plain, permuted = opened(), opened(permuted=True)
    order = np.random.default_rng(0).permutation(64)
    for name in ("train", "test"):
        a, b = plain.split(name), permuted.split(name)
        np.testing.assert_array_equal(a.inputs(np.arange(9))[:, order], b.inputs(np.arange(9)))
    assert permuted.fingerprint != plain.fingerprint
    assert "permuted" in permuted.describe()


def test_normalisation() -> None:
    raw = opened(normalize="none").split("train")
    series = opened(normalize="series").split("train")
    x = raw.inputs(np.arange(20)).astype(np.float64)
    assert x.min() == 0
    assert x.max() == 16
    expected = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    np.testing.assert_allclose(series.inputs(np.arange(20)), expected, atol=1e-5)


def test_hold_out_keeps_a_row_of_each_class_on_either_side() -> None:
    targets = np.repeat([0, 1, 2], [2, 1, 30])
    held = hold_out(targets, 0.1, seed=3)
    assert [int(held[targets == c].sum()) for c in range(3)] == [1, 0, 3]
    assert (hold_out(targets, 0.1, seed=3) == held).all()
    assert not hold_out(targets, 0.0, seed=3).any()
    assert hold_out(np.zeros((10, 2), np.float32), 0.2, seed=0).sum() == 2


def test_the_first_rows_of_a_split_are_a_fair_sample(tmp_path: Path) -> None:
    path = tmp_path / "sorted.npz"
    x = np.arange(900)[:, None] * np.ones((1, 2))
    np.savez(path, train_x=x, train_y=np.arange(900) // 90, test_x=x, test_y=np.arange(900) // 90)
    data = opened("arrays", folder=str(path), validation_fraction=0.5)
    for name in ("validation", "test"):
        split = data.split(name)
        counts = np.bincount(split.targets[:100], minlength=10)
        assert counts.min() >= 3
        assert counts.max() <= 20
        rows, targets = as_stored(data, name)
        assert [int(row) // 90 for row in np.sort(split.begins) // 2] == targets.tolist()
        assert (np.diff([row[0, 0] for row in rows]) > 0).all()
        again = opened("arrays", folder=str(path), validation_fraction=0.5)
        np.testing.assert_array_equal(again.split(name).begins, split.begins)
        other = opened("arrays", folder=str(path), validation_fraction=0.5, seed=1)
        assert (other.split(name).begins != split.begins).any()
    assert (np.diff(data.split("train").begins) > 0).all()
    split = data.split("test")  # the order of the rows is not a part of the fingerprint
    order = np.argsort(split.begins)
    sorted_split = replace(
        split, begins=split.begins[order], lengths=split.lengths[order], targets=split.targets[order]
    )
    assert replace(data, splits={**data.splits, "test": sorted_split}).fingerprint == data.fingerprint
    scaled = [
        opened("arrays", folder=str(path), normalize="series", seed=seed, validation_fraction=0) for seed in (0, 1)
    ]
    assert scaled[0].fingerprint == scaled[1].fingerprint


def test_describe_tells_the_sizes() -> None:
    text = opened().describe()
    assert "10 classes, 1 number a step" in text
    assert "test       359 sequences of 64 steps" in text


# ---- batches


def test_batches_are_a_function_of_seed_and_step() -> None:
    split = opened().split("train")
    batches, again, other = (LabelledBatches(split, 32, seed) for seed in (0, 0, 1))
    assert batches.steps_per_epoch == len(split) // 32
    steps = [0, 7, batches.steps_per_epoch, 3, 500, 7]
    for step in steps:
        a, b = batches[step], LabelledBatches(split, 32, 0)[step]
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, again[step].targets)
        assert a.lengths is None
        assert (a.inputs.dtype, a.inputs.shape) == (torch.float32, (32, 64, 1))
        assert (a.targets.dtype, a.targets.shape) == (torch.int64, (32,))
    assert not torch.equal(batches[0].inputs, other[0].inputs)
    assert not torch.equal(batches[0].inputs, batches[batches.steps_per_epoch].inputs)


@pytest.mark.parametrize("source", ["digits", "ucr:JapaneseVowels"])
def test_an_epoch_reads_every_row_once(source: str) -> None:
    if source != "digits":
        pytest.importorskip("aeon", reason="aeon is not installed")
    split = opened(source).split("train")
    batches = LabelledBatches(split, 16, seed=0)
    whole = {split.sequence(i).tobytes(): i for i in range(len(split))}
    seen = []
    for step in range(batches.steps_per_epoch):
        batch = batches[step]
        lengths = [batch.inputs.shape[1]] * 16 if batch.lengths is None else batch.lengths.tolist()
        for x, y, n in zip(batch.inputs.numpy(), batch.targets.tolist(), lengths):
            i = whole[x[:n].tobytes()]
            assert split.targets[i] == y
            assert not x[n:].any()
            seen.append(i)
    assert len(seen) == len(set(seen)) == len(split) // 16 * 16


@pytest.mark.parametrize("source", ["digits", "ucr:JapaneseVowels"])
def test_an_epoch_can_have_every_row(source: str) -> None:
    """The full batches are those that there are without; what remains comes last."""
    if source != "digits":
        pytest.importorskip("aeon", reason="aeon is not installed")
    split = opened(source).split("train")
    batches, without = (LabelledBatches(split, 48, seed=0, drop_last=drop_last) for drop_last in (False, True))
    n_full, rest = divmod(len(split), 48)
    assert rest
    assert (batches.steps_per_epoch, without.steps_per_epoch) == (n_full + 1, n_full)
    for epoch in range(2):
        made = [batches[epoch * (n_full + 1) + step] for step in range(n_full + 1)]
        assert [len(batch.targets) for batch in made] == [48] * n_full + [rest]
        assert all(torch.equal(made[i].inputs, without[epoch * n_full + i].inputs) for i in range(n_full))
        targets = torch.cat([batch.targets for batch in made])
        assert torch.equal(targets.sort().values, torch.from_numpy(np.sort(split.targets)))
    one = LabelledBatches(split, len(split) + 1, seed=0, drop_last=False)
    assert one.steps_per_epoch == 1
    assert len(one[3].targets) == len(split)


def test_rows_in_order() -> None:
    pytest.importorskip("aeon", reason="aeon is not installed")
    split = opened("ucr:JapaneseVowels").split("test")
    batches = list(batches_in_order(split, 64))
    assert sum(len(batch.targets) for batch in batches) == len(split)
    assert (
        torch.bincount(torch.cat([batch.targets for batch in batches])).tolist() == np.bincount(split.targets).tolist()
    )
    assert sum(len(batch.targets) for batch in batches_in_order(split, 64, 70)) == 70


def test_batches_are_checked() -> None:
    split = opened().split("validation")
    with pytest.raises(DataError, match="the validation split has 143 sequences, fewer than batch_size 200"):
        LabelledBatches(split, 200, 0)
    with pytest.raises(ConfigError, match="batch_size=0 is out of range; use at least 1"):
        LabelledBatches(split, 0, 0)
    with pytest.raises(IndexError, match="step -1"):
        LabelledBatches(split, 2, 0)[-1]


# ---- configs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "digit"}, "source='digit' is unknown; use one of digits, fashion-mnist"),
        ({"source": "ucr:"}, "source='ucr:' is unknown"),
        ({"source": "ucr:../x"}, "has a slash"),
        ({"source": "ucr:ACSF1", "permuted": True}, "permuted is for images"),
        ({"channels": "rgb"}, "channels is for cifar10 and files, not for digits"),
        ({"source": "cifar10", "channels": "rgba"}, "channels='rgba' is unknown"),
        ({"source": "mnist", "test_fraction": 0.1}, "mnist has its own test rows"),
        ({"folder": "x"}, "the digits, which come with scikit-learn"),
        ({"normalize": "z"}, "normalize='z' is unknown; use one of: dataset, series, none"),
        ({"max_length": 0}, "max_length=0 is out of range; expected an integer of at least 1 or None"),
        ({"permuted": True, "max_length": 5}, "would drop pixels at random"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0 is out of range"),
        ({"seed": -1}, "seed=-1 is out of range"),
    ],
)
def test_configs_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LabelledDataConfig(**fields)


def test_paths_become_absolute() -> None:
    config = LabelledDataConfig(source="mnist", folder="some/folder")
    assert config.with_absolute_paths().folder == str(Path("some/folder").absolute())
    assert LabelledDataConfig().with_absolute_paths() == LabelledDataConfig()
    with pytest.raises(DataError, match=r"mnist needs its four idx files .*set data\.folder"):
        opened("mnist")
