"""Long rows of short ones: what is in them, in which split, and from which seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from labelled import write_wave

from statewise.data.joined_rows import JoinConfig, join_rows
from statewise.data.labelled import LabelledData, LabelledDataConfig, open_labelled
from statewise.data.memory_tasks import growing
from statewise.data.sequences import join
from statewise.errors import ConfigError, DataError

SPEAKERS = ("ann", "bob")


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Samples that say whose they are, and of which recording."""
    for s, speaker in enumerate(SPEAKERS):
        for digit in range(2):
            for n in range(12):
                write_wave(tmp_path / f"{digit}_{speaker}_{n}.wav", [1000 * s + 100 * digit + n] * (3 + n % 4))
    return tmp_path


def opened(folder: Path, **fields: object) -> LabelledData:
    config = LabelledDataConfig(source="spoken-digits", folder=str(folder), label_field="speaker", normalize="none")
    rows = JoinConfig(length=40, n_train=8, n_validation=4, n_test=6)
    return open_labelled(replace(config, **{"join": rows, **fields}))  # type: ignore[arg-type]


def test_a_row_has_one_class_and_the_recordings_of_its_split(recordings: Path) -> None:
    data = opened(recordings)
    assert data.classes == SPEAKERS
    held: dict[str, set[int]] = {}
    for name, n in (("train", 8), ("validation", 4), ("test", 6)):
        split = data.split(name)
        assert split.lengths.tolist() == [40] * n
        assert sorted(split.targets.tolist()) == [0] * (n // 2) + [1] * (n // 2)
        inputs, targets = split.read(np.arange(n))
        samples = inputs[..., 0].astype(int)
        assert (samples // 1000 == targets[:, None]).all()
        held[name] = set(samples.ravel().tolist())
    assert not held["train"] & held["validation"]
    assert all(sample % 100 < 5 for sample in held["test"])
    assert not held["test"] & (held["train"] | held["validation"])
    assert "joined     rows of one class end to end" in data.describe()


def test_each_recording_comes_once_before_any_comes_again() -> None:
    rows = join([np.full((n, 1), i) for i, n in enumerate((3, 1, 4, 2, 5, 5))], np.array([0, 0, 1, 0, 1, 0]))
    joined = join_rows(rows, np.array([0, 1, 2, 3, 4]), JoinConfig(length=12, n_train=2), "train", seed=0)
    first, second = joined.values[:12, 0], joined.values[12:, 0]
    assert sorted(first[:6].tolist()) == [0, 0, 0, 1, 3, 3]  # 5 is not among the chosen
    assert sorted(first[6:].tolist()) == [0, 0, 0, 1, 3, 3]
    assert set(second.tolist()) == {2, 4}
    assert joined.targets.tolist() == [0, 1]


def test_training_rows_grow_and_the_seed_decides(recordings: Path) -> None:
    growth = JoinConfig(length=64, shortest=8, n_train=8, n_validation=0, n_test=2)
    data = opened(recordings, join=growth)
    assert sorted(data.split("train").lengths.tolist()) == growing(8, 8, 64).tolist()
    assert data.split("test").lengths.tolist() == [64, 64]
    with pytest.raises(DataError, match=r"data\.join\.n_validation is 0; set it above 0"):
        data.split("validation")
    again, other = opened(recordings, join=growth), opened(recordings, join=growth, seed=1)
    assert data.fingerprint == again.fingerprint != other.fingerprint
    scaled = opened(recordings, join=growth, normalize="dataset")
    values = np.concatenate([scaled.split("train").sequence(i) for i in range(8)])
    assert abs(values.mean()) < 1e-5
    assert values.std() == pytest.approx(1, abs=1e-4)


def test_few_rows_are_long_and_have_the_most_steps() -> None:
    lengths = growing(100_000, 64, 65_536)
    octaves = [lengths[(low <= lengths) & (lengths < 2 * low)] for low in 64 * 2 ** np.arange(9)]
    for one, other in pairwise(octaves):
        assert len(other) / len(one) == pytest.approx(2**-0.5, rel=0.05)
        assert other.sum() / one.sum() == pytest.approx(2**0.5, rel=0.05)
    assert lengths.mean() == pytest.approx((64 * 65_536) ** 0.5, rel=0.01)
    assert (np.diff(lengths) >= 0).all()


def test_what_cannot_be_joined_is_refused_in_a_line(recordings: Path) -> None:
    with pytest.raises(ConfigError, match=r"shortest=50 is more than length=40"):
        JoinConfig(length=40, shortest=50)
    with pytest.raises(ConfigError, match="leave out max_length and permuted"):
        LabelledDataConfig(source="spoken-digits", join=JoinConfig(), max_length=10)
    with pytest.raises(ConfigError, match=r"data\.label_field='age' is unknown; use digit or speaker"):
        LabelledDataConfig(source="spoken-digits", label_field="age")
    numbers = join([np.zeros((3, 1))] * 2, np.zeros((2, 1), np.float32))
    with pytest.raises(DataError, match="these have numbers to predict"):
        join_rows(numbers, np.arange(2), JoinConfig(), "train", 0)
