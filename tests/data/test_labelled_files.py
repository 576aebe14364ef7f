"""Labelled sequences from idx files and the UCR archive, real ones or as the originals are."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from labelled import as_stored, needs, opened

from statewise.data.images import FASHION_MNIST_FOLDER, read_idx
from statewise.data.ucr import read_ts
from statewise.errors import DataError

# ---- idx


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    data = header + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def idx_folder(folder: Path, suffix: str = "") -> Path:
    generator = np.random.default_rng(0)
    for prefix, n in (("train", 40), ("t10k", 10)):
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", generator.integers(0, 256, (n, 3, 4), np.uint8))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", (np.arange(n) % 10).astype(np.uint8))
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_of_any_folder(tmp_path: Path, suffix: str) -> None:
    data = opened("mnist", folder=str(idx_folder(tmp_path, suffix)), normalize="none")
    images = read_idx(tmp_path / f"train-images-idx3-ubyte{suffix}")
    split = data.split("train")
    assert (data.max_length, len(data.split("validation")), len(data.split("test"))) == (12, 10, 10)
    row = int(split.begins[0]) // 12
    np.testing.assert_array_equal(split.sequence(0)[:, 0], images[row].reshape(-1))
    assert split.targets[0] == row % 10


@needs(FASHION_MNIST_FOLDER)
def test_fashion_mnist_of_the_debian_package() -> None:
    data = opened("fashion-mnist")
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [54_000, 6_000, 10_000]
    assert (data.d_input, data.max_length, data.classes[9]) == (1, 784, "ankle boot")
    assert np.bincount(data.split("test").targets).tolist() == [1000] * 10
    assert data.split("train").values.dtype == np.uint8
    x = data.split("train").inputs(np.arange(0, 54_000, 10))
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02


def break_magic(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(b"\0\0\x0d\3" + path.read_bytes()[4:])


def cut_short(folder: Path) -> None:
    path = folder / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])


def fewer_labels(folder: Path) -> None:
    write_idx(folder / "train-labels-idx1-ubyte", np.zeros(39, np.uint8))


def no_gzip(folder: Path) -> None:
    (folder / "train-images-idx3-ubyte").rename(folder / "train-images-idx3-ubyte.gz")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_magic, "is not an idx file of bytes: it begins with 00 00 0d 03"),
        (cut_short, "has 17 bytes, expected 18"),
        (fewer_labels, "do not belong together"),
        (no_gzip, "cannot read .*train-images-idx3-ubyte.gz"),
        (lambda folder: (folder / "t10k-images-idx3-ubyte").unlink(), r"looked for t10k-images-idx3-ubyte\(\.gz\)"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(idx_folder(tmp_path))
    with pytest.raises(DataError, match=message) as caught:
        opened("mnist", folder=str(tmp_path))
    assert "\n" not in str(caught.value)


# ---- UCR


@pytest.mark.parametrize("name", ["GunPoint", "ACSF1", "BasicMotions", "JapaneseVowels", "PickupGestureWiimoteZ"])
def test_series_are_read_as_aeon_reads_them(name: str) -> None:
    aeon = pytest.importorskip("aeon", reason="aeon is not installed")
    from aeon.datasets import load_from_ts_file

    data = opened(f"ucr:{name}", validation_fraction=0.0)
    folder = Path(aeon.__file__).parent / "datasets" / "data" / name
    for part in ("train", "test"):
        expected, labels = load_from_ts_file(str(folder / f"{name}_{part.upper()}.ts"))
        rows, targets = as_stored(data, part)
        assert [data.classes[label].lower() for label in targets] == list(labels)  # aeon lowers them
        for row, series in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(row, series.T.astype(np.float32))


def test_a_regression_of_the_archive() -> None:
    pytest.importorskip("aeon", reason="aeon is not installed")
    data = opened("ucr:Covid3Month")
    assert (data.classes, data.d_output, data.d_input, data.max_length) == ((), 1, 1, 84)
    assert data.split("train").targets.dtype == np.float32
    assert len(data.split("train")) + len(data.split("validation")) == 140


TS = """# a comment
@problemName Small
@timeStamps false
@univariate false
@dimensions 2
@equalLength false
@classLabel true b a
@data
1,2,3:4,5,6:a
1,2:0,0:b
"""


def ts_folder(folder: Path, train: str = TS, test: str = TS) -> str:
    (folder / "Small_TRAIN.ts").write_text(train)
    (folder / "Small_TEST.ts").write_text(test)
    return str(folder)


def test_series_of_any_folder(tmp_path: Path) -> None:
    folder = ts_folder(tmp_path)
    data = opened("ucr:Small", folder=folder, validation_fraction=0.0)
    split = data.split("train")
    assert data.classes == ("a", "b")
    assert split.targets.tolist() == [0, 1]
    np.testing.assert_array_equal(split.inputs(np.array([0, 1])), [[[1, 4], [2, 5], [3, 6]], [[1, 0], [2, 0], [0, 0]]])
    scaled = opened("ucr:Small", folder=folder, validation_fraction=0.0, normalize="series").split("train")
    np.testing.assert_allclose(scaled.sequence(1), [[-1, 0], [1, 0]], atol=1e-6)  # a flat channel is zero
    (tmp_path / "Small").mkdir()
    ts_folder(tmp_path / "Small")
    assert opened("ucr:Small", folder=folder).fingerprint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1,2:0,0:b", "1,2:0:b", "line 10: its channels have different lengths: 2, 1"),
        ("1,2:0,0:b", "1,2:0,x:b", "line 10: value 2 of channel 2, 'x', is not a number"),
        ("1,2:0,0:b", "1,2:0,:b", "line 10: value 2 of channel 2, '', is not a number"),
        ("1,2:0,0:b", "1,2: :b", "line 10: channel 2 has no values"),
        ("1,2:0,0:b", "1,2:0,0", "line 10: there is no label"),
        ("1,2:0,0:b", "1,2:0,0:", "line 10: there is no label"),
        ("1,2:0,0:b", "1,2", "line 10: there is no label"),
        ("1,2:0,0:b", "1,2:0,0:c", "line 10: the label 'c' is not one of @classLabel: b, a"),
        ("@classLabel true b a", "@classLabel", "has no labels"),
        ("1,2:0,0:b", "1,?:0,0:b", "line 10: a missing value"),
        ("1,2:0,0:b", "1,nan:0,0:b", "line 10: a missing or infinite value"),
        ("1,2:0,0:b", "1,2:b", "line 10: 1 channels, but the first row has 2"),
        ("@timeStamps false", "@timeStamps true", "has time stamps, which are not read"),
        ("@classLabel true b a", "@classLabel false", "has no labels"),
        ("@classLabel true b a", "@targetLabel true", "line 9: the target 'a' is not a number"),
        ("@data", "1,2", "line 8: expected a line that begins with @ before @data"),
        ("1,2,3:4,5,6:a\n1,2:0,0:b\n", "", "has no rows"),
    ],
)
def test_damaged_series(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened("ucr:Small", folder=ts_folder(tmp_path, TS.replace(old, new)))


def test_labels_are_told_apart_by_the_list_of_classes(tmp_path: Path) -> None:
    numbers = TS.replace("true b a", "true 1 2").replace("5,6:a", "5,6:1.0").replace("0,0:b", "0,0:2")
    assert opened("ucr:Small", folder=ts_folder(tmp_path, numbers, numbers)).classes == ("1", "2")
    free = TS.replace("true b a", "true")  # no list: whatever the rows have
    assert opened("ucr:Small", folder=ts_folder(tmp_path, free, free)).classes == ("a", "b")


@pytest.mark.parametrize("source", ["mnist", "ucr:Small"])
def test_a_file_in_the_place_of_its_folder(tmp_path: Path, source: str) -> None:
    path = Path(ts_folder(tmp_path)) / "Small_TRAIN.ts"
    with pytest.raises(DataError, match=r"Small_TRAIN\.ts' is a file; give its folder"):
        opened(source, folder=str(path))


def test_missing_series_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"no series Nothing in .*looked for Nothing_TRAIN\.ts"):
        opened("ucr:Nothing", folder=str(tmp_path))
    with pytest.raises(DataError, match="cannot read"):
        read_ts(tmp_path / "x.ts")
    pytest.importorskip("aeon", reason="aeon is not installed")
    with pytest.raises(DataError, match=r"aeon bundles no series Nothing, only ACSF1, .*GunPoint.*; for others set"):
        opened("ucr:Nothing")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "statewise\[tasks\]"'):
        opened("ucr:GunPoint")
