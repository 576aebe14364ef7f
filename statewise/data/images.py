"""Images read as sequences of pixels, row by row: scikit-learn's digits, and idx files (Fashion-MNIST, MNIST)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from statewise.data.sequences import Found, Rows
from statewise.errors import DataError, importing
from statewise.files.opening import unfolded

FASHION_MNIST_FOLDER = "/usr/share/datasets/fashion-mnist"  # where Debian's package dataset-fashion-mnist puts it
FASHION_MNIST_CLASSES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
DIGITS = tuple(map(str, range(10)))


def find_digits() -> Found:
    """The 1,797 handwritten digits of 8 x 8 pixels (0 to 16) that come with scikit-learn: sequences of 64.

    Source:  Alpaydin & Kaynak 1998, UCI, "Optical recognition of handwritten digits" (its test half).
    Errors:  DataError if scikit-learn is not installed.
    """
    with importing("sklearn", "tasks", "the digits come with", DataError):
        from sklearn.datasets import load_digits
    pixels, labels = load_digits(return_X_y=True)
    train = _rows(pixels.astype(np.uint8).reshape(len(pixels), 64, 1), labels)
    return Found("digits", train, None, DIGITS, "dataset", ("8 x 8 pixels, row by row",))


def find_idx(name: str, folder: Path | None) -> Found:
    """The training and test images of four idx files, gzipped or not: "fashion-mnist" or "mnist".

    Errors:  DataError if a file is missing or is not an idx file of bytes, and if there are not as many labels as
             images.
    """
    if folder is None and name == "mnist":
        raise DataError(
            "mnist needs its four idx files (train-images-idx3-ubyte.gz, ...); set data.folder to their folder"
        )
    where = Path(FASHION_MNIST_FOLDER) if folder is None else folder
    if where.is_file():
        raise DataError(f"data.folder={str(where)!r} is a file; give its folder, with the four idx files")
    train, test = (_read_pair(name, where, prefix) for prefix in ("train", "t10k"))
    if train.lengths[0] != test.lengths[0]:
        raise DataError(f"{where}: training images have {train.lengths[0]} pixels and test images {test.lengths[0]}")
    classes = FASHION_MNIST_CLASSES if name == "fashion-mnist" else DIGITS
    return Found(name, train, test, classes, "dataset", (f"{train.lengths[0]} pixels, row by row",))


def _read_pair(name: str, folder: Path, prefix: str) -> Rows:
    images = read_idx(_find(name, folder, f"{prefix}-images", 3))
    labels = read_idx(_find(name, folder, f"{prefix}-labels", 1))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not images.size or labels.max() > 9:
        raise DataError(
            f"{folder}: {prefix}-images {images.shape} and {prefix}-labels {labels.shape} do not belong together; "
            "expected (n, height, width) images and n labels 0 to 9"
        )
    return _rows(images.reshape(len(images), -1, 1), labels)


def _find(name: str, folder: Path, stem: str, n_axes: int) -> Path:
    for separator in ("-", "."):
        for suffix in ("", ".gz"):
            path = folder / f"{stem}{separator}idx{n_axes}-ubyte{suffix}"
            if path.is_file():
                return path
    how = "on Debian: apt install dataset-fashion-mnist; elsewhere " if name == "fashion-mnist" else ""
    raise DataError(
        f"no {name} in {folder}: looked for {stem}-idx{n_axes}-ubyte(.gz); {how}set data.folder to a folder with the "
        "four idx files"
    )


def read_idx(path: Path) -> np.ndarray:
    """The array of bytes in an idx file (00 00 08, the number of axes, the sizes, the bytes), gzipped or not.

    Errors:  DataError if it is anything else, or cut short.
    """
    with unfolded(path, gzipped=path.suffix == ".gz") as file:
        data = file.read()
    n_axes = data[3] if len(data) > 3 else 0
    if data[:3] != b"\0\0\x08" or not 1 <= n_axes <= 3 or len(data) < 4 + 4 * n_axes:
        raise DataError(f"{path} is not an idx file of bytes: it begins with {data[:4].hex(' ')}; expected 00 00 08 0n")
    shape = np.frombuffer(data, ">u4", n_axes, 4).tolist()
    expected = 4 + 4 * n_axes + int(np.prod(shape, dtype=object))
    if len(data) != expected:
        raise DataError(
            f"{path} has {len(data):,} bytes, expected {expected:,} for {shape}; it is cut short or damaged, get it "
            "again"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def _rows(images: np.ndarray, labels: np.ndarray) -> Rows:
    """From (n, pixels, channels)."""
    n, length, channels = images.shape
    return Rows(images.reshape(-1, channels), np.full(n, length, np.int64), labels.astype(np.int64))
