"""Images as sequences of pixels, row by row: CIFAR-10 in grey, and Pathfinder and Path-X from their official files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from statewise.data.cifar import find_cifar10
from statewise.data.long_range.config import SIDES, TASKS, LongRangeDataConfig
from statewise.data.long_range.division import published_division
from statewise.data.long_range.files import locate
from statewise.data.long_range.store import Items, Stored, Write, identity, stored_rows
from statewise.data.progress import Progress, tell
from statewise.data.sequences import Found
from statewise.errors import DataError, excerpt, reason
from statewise.files.opening import read_file
from statewise.files.pictures import read_picture

LEVEL = "curv_contour_length_14"  # of three in the release, the hardest and the published one
MEAN, DEVIATION = 122.6, 61.0  # of CIFAR-10 in grey, as the published runs round them
N_LEAST = 10  # images, of which one is for validation and one for the test
LONGEST_NAME = 200  # of an image below the folder
N_COLUMNS = 4  # that are read of a line of metadata: folder, file, number, label


def find_grey_cifar(config: LongRangeDataConfig, progress: Progress | None) -> tuple[Found, np.ndarray]:
    """CIFAR-10 in grey from any of its forms (:func:`statewise.data.cifar.find_cifar10`), and the parts of its 50,000
    training rows: the last 5,000 of a random order are for validation.
    """
    folder = None if config.folder is None else Path(config.folder).expanduser()
    found: Found | None = None
    problem: DataError | None = None
    for name in TASKS[config.task].folders:
        place = None if folder is None else folder / name
        if found is None and (place is None or place.exists()):
            try:
                found = find_cifar10(place, "grey", progress)
            except DataError as error:
                problem = problem or error
    if found is None:
        raise problem or DataError(f"data.folder={config.folder!r} does not exist; give the folder that CIFAR-10 is in")
    n = len(found.train.lengths)
    return found, published_division(n, n - int(n * 0.9), 0)


def find_pathfinder(config: LongRangeDataConfig, progress: Progress | None) -> Stored:
    """The images of level ``curv_contour_length_14``, in the order of the metadata files, divided as published: 80, 10
    and 10 %. Decoded once into one array.

    Source:  Linsley et al. 2018, arXiv:1805.08315; Kim et al. 2020 (ICLR); Tay et al. 2021, sec. 2.2.5.
    Cost:    each time the metadata, and a look at the size and time of every image: they are read again if they differ.
    Errors:  DataError if the folder is not there, or an image is missing or of another size.
    """
    folder = locate(config, lambda place: any((place / LEVEL / "metadata").glob("*.npy"))) / LEVEL
    side = SIDES[config.task]
    metadata = sorted((folder / "metadata").glob("*.npy"), key=_number)
    listed = [line for path in metadata for line in _read_metadata(path)]
    if len(listed) < N_LEAST:
        raise DataError(
            f"{folder / 'metadata'} lists {len(listed)} images; expected {N_LEAST} or more, which are divided into "
            "80, 10 and 10 %"
        )

    def make(write: Write) -> Items:
        length = np.array([side * side])
        for done, (name, _) in enumerate(listed, 1):
            write(_decode(folder / name, side), length)
            tell(progress, done, len(listed))
        n_held = int(0.1 * len(listed))
        targets = np.array([label for _, label in listed])
        return Items(targets, published_division(len(listed), n_held, n_held))

    return stored_rows(config, [identity(metadata), _digest_of(folder, listed), side], make)


def _digest_of(folder: Path, listed: list[tuple[str, int]]) -> str:
    """What says whether images are the same: a digest of path, size and time of each."""
    digest = hashlib.sha256()
    for name, _ in listed:
        try:
            status = os.stat(f"{folder}/{name}")
        except OSError as error:
            raise _unreadable(folder / name, error.strerror or str(error)) from error
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _number(path: Path) -> tuple[int, str]:
    return (int(path.stem) if path.stem.isdecimal() else -1), path.name


def _read_metadata(path: Path) -> Iterator[tuple[str, int]]:
    """The image's file below the level's folder, and its label. The files are text, in spite of their name."""
    try:
        lines = read_file(path).decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path} as lines of text: {reason(error)}") from error
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if len(fields) < N_COLUMNS or fields[3] not in ("0", "1"):
            raise DataError(
                f"{path}, line {number} is {excerpt(line)}; expected a folder, a file, a number, a label 0 or 1, "
                "and more"
            )
        name = PurePosixPath(fields[0], fields[1])
        if len(str(name)) > LONGEST_NAME or name.is_absolute() or ".." in name.parts or not line.isprintable():
            raise DataError(f"{path}, line {number}: the image {excerpt(str(name))} is not in the folder")
        yield str(name), int(fields[3])


def _unreadable(path: Path, reason: str) -> DataError:
    return DataError(f"cannot read the image {path}: {reason}; the release has it")


def _decode(path: Path, side: int) -> np.ndarray:
    """(side * side,) uint8."""
    return read_picture(read_file(path), str(path), side=side, mode="L").ravel()
