"""CIFAR-10 as sequences of 1,024 pixels, from any form it comes in; decoded once, then kept beside the token cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from statewise.data.cifar_batch import read_batch
from statewise.data.made_once import cache_folder, made_once
from statewise.data.progress import Progress, tell
from statewise.data.sequences import Found, Rows
from statewise.errors import DataError
from statewise.files.arrays import map_npy
from statewise.files.opening import read_file, refusing, tar_members
from statewise.files.pictures import read_picture

FORMAT = 1
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
N_IMAGES = {"train": 50_000, "test": 10_000}
SIDE = 32
PIXELS = SIDE * SIDE
BINARY_FILES = {f"data_batch_{i}.bin": "train" for i in range(1, 6)} | {"test_batch.bin": "test"}
PYTHON_FILES = {f"data_batch_{i}": "train" for i in range(1, 6)} | {"test_batch": "test"}
FORMS = (
    "cifar-10-binary.tar.gz or cifar-10-python.tar.gz of www.cs.toronto.edu/~kriz/cifar.html, the folder that one "
    "unpacks to, cifar10_jpeg.tar.gz, or a folder with train/<class>/NNNN.jpg and test/<class>/NNNN.jpg"
)
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "cifar10_jpeg.tar.gz")
SUBFOLDERS = (".", "cifar-10-batches-bin", "cifar-10-batches-py")

Image = tuple[str, int, np.ndarray]  # "train" or "test", class, (1024, 3) uint8


class _Images(NamedTuple):
    pixels: np.ndarray  # (n, 1024, 3) uint8, a memory map
    labels: np.ndarray  # (n,) uint8
    n_train: int  # the training images come first


def find_cifar10(folder: Path | None, channels: str, progress: Progress | None = None) -> Found:
    """The images in grey or in colour, 50,000 for training and 10,000 for the test.

    ``folder`` is one of: an archive (binary, python or JPEG), a folder that holds one, an unpacked one, or a tree of
    JPEG files. Images re-encoded as JPEG are not the published pixels, so results on them are not quite those of the
    published task; the notes say so. The python archive is a pickle: no object that it names is made.

    Source:  Krizhevsky 2009, "Learning multiple layers of features from tiny images".
    Cost:    about 20 seconds for JPEG the first time, and 185 MB in the cache.
    Errors:  DataError if nothing is there, or it is not all 60,000 images.
    """
    if folder is None:
        raise DataError(f"cifar10 needs its files; set data.folder to {FORMS}")
    place = _locate(folder)
    images = _open_or_build(place, progress)
    pixels: np.ndarray = images.pixels
    if channels == "grey":
        pixels = _to_grey(images.pixels)
    width = pixels.shape[-1]
    rows = [
        Rows(part.reshape(-1, width), np.full(len(part), PIXELS, np.int64), labels.astype(np.int64))
        for part, labels in (
            (pixels[: images.n_train], images.labels[: images.n_train]),
            (pixels[images.n_train :], images.labels[images.n_train :]),
        )
    ]
    is_jpeg = (place.is_dir() and (place / "train").is_dir()) or place.name == ARCHIVES[2]
    notes: tuple[str, ...] = (f"32 x 32 pixels in {'grey' if channels == 'grey' else 'colour'}, row by row",)
    if is_jpeg:
        notes += ("re-encoded as JPEG, so not the published pixels",)
    return Found("cifar10", rows[0], rows[1], CLASSES, "dataset", notes)


def _locate(folder: Path) -> Path:
    """The archive, or the folder in which the files lie."""
    if folder.is_file():
        return folder
    for name in SUBFOLDERS:
        if any((folder / name / file).is_file() for file in ("data_batch_1.bin", "data_batch_1")):
            return folder / name
    if (folder / "train" / CLASSES[0]).is_dir():
        return folder
    for name in ARCHIVES:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"no CIFAR-10 in {folder}; expected {FORMS}")


def _to_grey(pixels: np.ndarray) -> np.ndarray:
    """(n, 1024, 1) uint8, by ITU-R BT.601."""
    grey = np.empty((*pixels.shape[:2], 1), np.uint8)
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    for low in range(0, len(pixels), 1024):
        grey[low : low + 1024, :, 0] = np.rint(pixels[low : low + 1024].astype(np.float32) @ weights)
    return grey


# -- the cache -------------------------------------------------------------------------------------------------------


def _open_or_build(place: Path, progress: Progress | None) -> _Images:
    return made_once(
        cache_folder() / "images" / _key(place),
        load=_open,
        build=lambda folder: _build(folder, place, progress),
        noun="image cache",
    )


def _key(place: Path) -> str:
    """Names what the images are made from, by path, size and time."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    about = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return f"cifar10-{hashlib.sha256(json.dumps([FORMAT, about]).encode()).hexdigest()[:24]}"


def _open(folder: Path) -> _Images | None:
    """None if it is not there, or not whole."""
    try:
        n_train = json.loads((folder / "meta.json").read_text())["n_train"]
        pixels, labels = (map_npy(folder / name) for name in ("pixels.npy", "labels.npy"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = pixels.shape == (len(labels), PIXELS, 3) and pixels.dtype == np.uint8 and 0 < n_train < len(labels)
    return _Images(pixels, labels, n_train) if whole else None


def _build(folder: Path, place: Path, progress: Progress | None) -> None:
    n_images = sum(N_IMAGES.values())
    pixels = np.lib.format.open_memmap(folder / "pixels.npy", "w+", np.uint8, (n_images, PIXELS, 3))
    labels = np.zeros(n_images, np.uint8)
    next_row = {"train": 0, "test": N_IMAGES["train"]}
    ends = {"train": N_IMAGES["train"], "test": n_images}
    for done, (split, label, image) in enumerate(_read(place), 1):
        row = next_row[split]
        if row >= ends[split]:
            raise DataError(f"{place} has more than {N_IMAGES[split]:,} {split} images; expected CIFAR-10's")
        pixels[row], labels[row] = image, label
        next_row[split] += 1
        tell(progress, done, n_images)
    for split, end in ends.items():
        if next_row[split] != end:
            found = N_IMAGES[split] - (end - next_row[split])
            raise DataError(
                f"{place} has {found:,} {split} images, expected {N_IMAGES[split]:,}; it is not complete, get it again"
            )
    pixels.flush()
    np.save(folder / "labels.npy", labels)
    (folder / "meta.json").write_text(json.dumps({"n_train": N_IMAGES["train"]}))  # last: without it nothing is read


# -- the forms that the images come in -------------------------------------------------------------------------------


def _read(place: Path) -> Iterator[Image]:
    for name, data in _files(place):
        path = Path(name)
        if path.name in BINARY_FILES:
            yield from _read_binary(name, data(), BINARY_FILES[path.name])
        elif path.name in PYTHON_FILES:
            yield from _read_python(name, data(), PYTHON_FILES[path.name])
        elif path.suffix in (".jpg", ".jpeg", ".png") and len(path.parts) >= 3:
            split, label = path.parts[-3:-1]
            if split in N_IMAGES and label in CLASSES:
                yield split, CLASSES.index(label), _decode(name, data())


def _files(place: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names, and how to read the contents: an archive from beginning to end, a folder in the order of its names."""
    if not place.is_dir():
        yield from tar_members(place)
        return
    with refusing(f"cannot read {place}"):
        paths = sorted(path for path in place.rglob("*") if path.is_file())
    for path in paths:
        yield str(path), lambda path=path: read_file(path)  # type: ignore[misc]


def _read_binary(name: str, data: bytes, split: str) -> Iterator[Image]:
    """Records of one byte of class and 3 x 1024 bytes of colour planes."""
    if len(data) % (1 + 3 * PIXELS):
        raise DataError(
            f"{name} has {len(data):,} bytes, not a multiple of {1 + 3 * PIXELS:,}; it is cut short, get it again"
        )
    for record in np.frombuffer(data, np.uint8).reshape(-1, 1 + 3 * PIXELS):
        if record[0] >= len(CLASSES):
            raise DataError(f"{name} has the class {record[0]}; expected 0 to 9")
        yield split, int(record[0]), record[1:].reshape(3, PIXELS).T


def _read_python(name: str, data: bytes, split: str) -> Iterator[Image]:
    images, labels = read_batch(data, name, 3 * PIXELS)
    for label, image in zip(labels, images):
        yield split, label, image.reshape(3, PIXELS).T


def _decode(name: str, data: bytes) -> np.ndarray:
    return read_picture(data, name, side=SIDE, mode="RGB").reshape(PIXELS, 3)
