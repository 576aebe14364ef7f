"""Labelled sequences: each loader on real data (or files as the originals are), division, scaling, batches, errors."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statewise.data import cifar
from statewise.data.images import FASHION_MNIST_FOLDER, read_idx
from statewise.data.labelled import LabelledData, LabelledDataConfig, open_labelled
from statewise.data.labelled_batches import LabelledBatches, batches_in_order
from statewise.data.sequences import hold_out
from statewise.data.ucr import read_ts
from statewise.errors import ConfigError, DataError

SHARED = Path(__file__).parents[2] / "shared" / "data"
SPOKEN = SHARED / "free_spoken_digits.tar.gz"
JPEG = SHARED / "cifar10_jpeg.tar.gz"


def opened(source: str = "digits", **options: Any) -> LabelledData:
    return open_labelled(LabelledDataConfig(source=source, **options))


def as_stored(data: LabelledData, name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The rows of a split and their targets in the order of the file."""
    split = data.split(name)
    order = np.argsort(split.begins)
    return [split.sequence(int(i)) for i in order], split.targets[order]


def needs(path: Path | str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not Path(path).exists(), reason=f"{Path(path).name} is not here")


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
    with pytest.raises(ConfigError, match="there is no split 'dev'"):
        data.split("dev")


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
        (break_magic, "is no idx file of bytes: it begins with 00 00 0d 03"),
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
        ("1,2:0,0:b", "1,2:0:b", "line 10: its channels have unlike lengths: 2, 1"),
        ("1,2:0,0:b", "1,2:0,x:b", "line 10: value 2 of channel 2, 'x', is no number"),
        ("1,2:0,0:b", "1,2:0,:b", "line 10: value 2 of channel 2, '', is no number"),
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
        ("@classLabel true b a", "@targetLabel true", "line 9: the target 'a' is no number"),
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


# ---- spoken digits


def write_wave(path: Path, samples: list[int], rate: int = 8000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.array(samples, "<i2").tobytes())


def test_recordings_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for n in range(8):
        for digit in range(2):
            write_wave(folder / f"{digit}_ann_{n}.wav", [digit, 100 * n, -5][: 2 + digit])
    (folder / "notes.txt").write_text("not a recording")
    for place in (tmp_path, folder):
        data = opened("spoken-digits", folder=str(place), normalize="none", validation_fraction=0.0)
        rows, targets = as_stored(data, "test")
        assert data.split("test").values.dtype == np.int16
        assert [rows[i][:, 0].tolist() for i in (1, 6)] == [[0, 100], [1, 100, -5]]
        assert targets.tolist() == [0] * 5 + [1] * 5
        assert len(data.split("train")) == 6
    cut = opened("spoken-digits", folder=str(tmp_path), max_length=2)
    assert cut.max_length == 2
    assert "cut        8 rows at their end, to 2 steps" in cut.describe()
    write_wave(folder / "3_ann_0.wav", [1, 2], rate=16000)
    with pytest.raises(DataError, match=r"3_ann_0\.wav has 16000 samples a second, 16 bits, 1 channels"):
        opened("spoken-digits", folder=str(tmp_path))
    (folder / "3_ann_0.wav").write_bytes(b"RIFF")
    with pytest.raises(DataError, match=r"3_ann_0\.wav is no WAV file"):
        opened("spoken-digits", folder=str(tmp_path))


def cut_header(data: bytes) -> bytes:
    """The data chunk and its file one byte longer: half a sample more."""
    sizes = (struct.pack("<I", len(data) + less) for less in (-7, -43))
    return data[:4] + next(sizes) + data[8:40] + next(sizes) + data[44:] + b"\1"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "is cut short: 199 bytes of samples, but its header has 100 samples of 2 bytes"),
        (lambda data: data[:-60], "is cut short: 140 bytes of samples"),
        (lambda data: data[:44], "is cut short: 0 bytes of samples"),
        (cut_header, "is cut short: 201 bytes of samples"),
        (lambda data: data[:4] + struct.pack("<I", 36) + data[8:40] + bytes(4), "has no samples, only a header"),
        (lambda data: data[:16] + b"\xff\xff\0\0" + data[20:], "is no WAV file of plain samples: it is cut short$"),
        (lambda data: data[:30], "is no WAV file of plain samples: .*[a-z]$"),
        (lambda data: b"", "is no WAV file of plain samples: it is cut short$"),
        (lambda data: b"junk" * 20, "is no WAV file of plain samples: .*RIFF"),
    ],
)
def test_damaged_recordings(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    for n in (0, 9):
        write_wave(tmp_path / f"1_ann_{n}.wav", list(range(100)))
    path = tmp_path / "1_ann_9.wav"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        opened("spoken-digits", folder=str(tmp_path))
    assert "1_ann_9.wav" in str(caught.value)
    assert "\n" not in str(caught.value)


@needs(SPOKEN)
def test_the_free_spoken_digits() -> None:
    data = opened("spoken-digits", folder=str(SPOKEN))
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [2430, 270, 300]
    assert np.bincount(data.split("test").targets).tolist() == [30] * 10
    assert data.max_length == 18_262
    row = data.split("test").sequence(7).astype(np.float64)
    assert abs(row.mean()) < 1e-5
    assert row.std() == pytest.approx(1, abs=1e-5)
    batches = LabelledBatches(data.split("train"), 16, seed=0)
    shares = []
    for step in range(40):
        batch = batches[step]
        assert batch.lengths is not None
        shares.append(float(batch.lengths.sum() / batch.inputs.shape[0] / batch.inputs.shape[1]))
    assert np.mean(shares) > 0.95  # of the steps in a batch are real


def test_spoken_digits_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"spoken-digits needs recordings .*free-spoken-digit-dataset"):
        opened("spoken-digits")
    with pytest.raises(DataError, match="no recordings in"):
        opened("spoken-digits", folder=str(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        opened("spoken-digits", folder=str(tmp_path / "x"))
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8b\x08 not a gzip")
    with pytest.raises(DataError, match="cannot read") as caught:
        opened("spoken-digits", folder=str(tmp_path / "broken.tar.gz"))
    assert "\n" not in str(caught.value)


# ---- CIFAR-10, at a hundredth of its size


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """60 images and classes, 50 of them for training; the cache is the test's own."""
    monkeypatch.setattr(cifar, "N_IMAGES", {"train": 50, "test": 10})
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (60, 1024, 3), np.uint8), np.arange(60) % 10


def batches_of(images: np.ndarray, labels: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """The five training batches and the test's: number, (10, 3072) planes, labels."""
    return [
        (i, images[10 * i : 10 * i + 10].transpose(0, 2, 1).reshape(10, -1), labels[10 * i :][:10]) for i in range(6)
    ]


def binary_form(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "batches.meta.txt").write_text("airplane")
    for i, planes, own in batches_of(images, labels):
        name = f"data_batch_{i + 1}.bin" if i < 5 else "test_batch.bin"
        (folder / name).write_bytes(np.concatenate([own[:, None].astype(np.uint8), planes], 1).tobytes())


def python_form(folder: Path, images: np.ndarray, labels: np.ndarray, protocol: int = 2) -> None:
    folder = folder / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["airplane"]}))
    for i, planes, own in batches_of(images, labels):
        batch = {b"batch_label": b"one", b"labels": own.tolist(), b"data": planes, b"filenames": [b"a.png"] * 10}
        name = f"data_batch_{i + 1}" if i < 5 else "test_batch"
        (folder / name).write_bytes(pickle.dumps(batch, protocol))


def png_form(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for i, (image, label) in enumerate(zip(images, labels)):
        path = folder / ("train" if i < 50 else "test") / cifar.CLASSES[label] / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(image.reshape(32, 32, 3)).save(path)


def archived(folder: Path, name: str) -> None:
    files = list(folder.iterdir())
    with tarfile.open(folder / name, "w:gz") as archive:
        for file in files:
            archive.add(file, file.name)
    for file in files:
        file.rename(folder.parent / f"{name}-{file.name}")


@pytest.mark.parametrize("form", [binary_form, python_form, png_form])
@pytest.mark.parametrize("archive", [False, True])
def test_cifar_in_all_its_forms(
    tmp_path: Path, small_cifar: tuple[np.ndarray, np.ndarray], form: Callable[..., None], archive: bool
) -> None:
    images, labels = small_cifar
    folder = tmp_path / "images"
    folder.mkdir()
    form(folder, images, labels)
    if archive:
        names = dict(zip([binary_form, python_form, png_form], cifar.ARCHIVES))
        archived(folder, names[form])
    seen: list[tuple[int, int]] = []
    config = LabelledDataConfig(
        source="cifar10", folder=str(folder), channels="rgb", normalize="none", validation_fraction=0.0
    )
    data = open_labelled(config, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(60, 60)]
    (train, of_train), (test, of_test) = (as_stored(data, name) for name in ("train", "test"))
    rows, targets = np.stack(train + test), np.concatenate([of_train, of_test])
    order = np.lexsort((labels, np.arange(60) >= 50)) if form is png_form else np.arange(60)
    np.testing.assert_array_equal(targets, labels[order])
    np.testing.assert_array_equal(rows, images[order])
    again = open_labelled(config, progress=lambda done, total: pytest.fail("decoded again"))
    assert again.fingerprint == data.fingerprint
    grey = opened("cifar10", folder=str(folder), normalize="none", validation_fraction=0.0)
    assert grey.d_input == 1
    expected = np.rint(images[order][:50].astype(np.float64) @ [0.299, 0.587, 0.114])
    assert np.abs(grey.split("train").inputs(np.arange(50))[..., 0] - expected).max() <= 1  # of a tie
    assert ("re-encoded" in grey.describe()) is (form is png_form)


def test_a_damaged_image_cache_is_built_again(tmp_path: Path, small_cifar: tuple[np.ndarray, np.ndarray]) -> None:
    binary_form(tmp_path, *small_cifar)
    data = opened("cifar10", folder=str(tmp_path))
    fingerprint = data.fingerprint
    for path in (tmp_path / "cache" / "images").glob("*/pixels.npy"):
        path.unlink()
        path.write_bytes(b"")
    assert opened("cifar10", folder=str(tmp_path)).fingerprint == fingerprint
    assert [path.name[0] for path in (tmp_path / "cache" / "images").iterdir()] == ["c"]  # nothing hidden is left


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("/nowhere/never").write_text, ("x",))


def test_cifar_that_is_not_what_it_should_be(tmp_path: Path, small_cifar: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(DataError, match=r"cifar10 has no folder of its own; set data\.folder to cifar-10-binary"):
        opened("cifar10")
    with pytest.raises(DataError, match="no CIFAR-10 in"):
        opened("cifar10", folder=str(tmp_path))
    python_form(tmp_path, *small_cifar)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    good = path.read_bytes()
    path.write_bytes(pickle.dumps(Malicious(), 2))
    with pytest.raises(DataError, match=r"data_batch_3 is no batch of cifar-10-python: it asks for \S+"):
        opened("cifar10", folder=str(tmp_path))
    path.write_bytes(good[:500])
    with pytest.raises(DataError, match="data_batch_3 is no batch"):
        opened("cifar10", folder=str(tmp_path))
    path.write_bytes(pickle.dumps({b"labels": [1], b"data": np.zeros((1, 5), np.uint8)}, 2))
    with pytest.raises(DataError, match=r"it holds uint8 \(1, 5\)"):
        opened("cifar10", folder=str(tmp_path))
    path.unlink()
    with pytest.raises(DataError, match="has 40 train images, expected 50; it is not complete"):
        opened("cifar10", folder=str(tmp_path))
    assert not list((tmp_path / "cache" / "images").iterdir())


@needs(JPEG)
def test_the_real_images_decode() -> None:
    """The first hundred; all of them take twenty seconds."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    images = []
    with tarfile.open(JPEG) as archive:
        for member in archive:
            if member.name.endswith(".jpg"):
                file = archive.extractfile(member)
                assert file is not None
                images.append(cifar._decode(member.name, file.read()))
            if len(images) == 100:
                break
    assert np.stack(images).std() > 30
    with pytest.raises(DataError, match=r"x\.jpg is no image"):
        cifar._decode("x.jpg", b"no image")
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (5, 4)).save(buffer, "PNG")
    with pytest.raises(DataError, match="has 5 x 4 pixels, expected 32 x 32"):
        cifar._decode("x.png", buffer.getvalue())


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
    with pytest.raises(ConfigError, match="batch_size=0 must be at least 1"):
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
        ({"channels": "rgb"}, "channels is for cifar10, not for digits"),
        ({"source": "cifar10", "channels": "rgba"}, "channels='rgba' is unknown"),
        ({"source": "mnist", "test_fraction": 0.1}, "mnist has test rows of its own"),
        ({"folder": "x"}, "the digits come with scikit-learn"),
        ({"normalize": "z"}, r"normalize='z' is unknown; use one of \['dataset', 'series', 'none'\]"),
        ({"max_length": 0}, "max_length=0 is too small"),
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
