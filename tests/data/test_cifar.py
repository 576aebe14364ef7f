"""CIFAR-10 in all its forms, at a hundredth of its size, and the real images."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelled import JPEG, as_stored, needs, opened

from statewise.data import cifar
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.errors import DataError

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
    with pytest.raises(DataError, match=r"cifar10 needs its files; set data\.folder to cifar-10-binary"):
        opened("cifar10")
    with pytest.raises(DataError, match="no CIFAR-10 in"):
        opened("cifar10", folder=str(tmp_path))
    python_form(tmp_path, *small_cifar)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    good = path.read_bytes()
    path.write_bytes(pickle.dumps(Malicious(), 2))
    with pytest.raises(DataError, match=r"data_batch_3 is not a batch of cifar-10-python: it asks for \S+"):
        opened("cifar10", folder=str(tmp_path))
    path.write_bytes(good[:500])
    with pytest.raises(DataError, match="data_batch_3 is not a batch"):
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
    with pytest.raises(DataError, match=r"x\.jpg is not an image"):
        cifar._decode("x.jpg", b"no image")
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (5, 4)).save(buffer, "PNG")
    with pytest.raises(DataError, match="has 5 x 4 pixels, expected 32 x 32"):
        cifar._decode("x.png", buffer.getvalue())
