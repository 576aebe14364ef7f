"""Spoken digits as raw waveforms: 8 kHz recordings ``<digit>_<speaker>_<n>.wav`` of a folder or a tar.gz."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from statewise.data.sequences import Found, join
from statewise.errors import DataError, reason
from statewise.files.opening import read_file, tar_members

ARCHIVE = "free_spoken_digits.tar.gz"
RATE = 8000
N_TEST = 5  # recordings 0 to 4 of each speaker and digit are the test, as the collection has it
NAME = re.compile(r"(\d)_([^_/]+)_(\d+)\.wav")


def find_spoken_digits(folder: Path | None, label: str = "digit") -> Found:
    """The recordings, 16 bits a sample as they are stored; test: those numbered below 5. label: "digit" or "speaker".

    ``folder`` holds the .wav files (or a folder ``recordings`` with them, or ``free_spoken_digits.tar.gz``), or is such
    an archive itself.

    Source:  Jackson et al., Free Spoken Digit Dataset, github.com/Jakobovski/free-spoken-digit-dataset
    Errors:  DataError if there are none, or one is cut short, empty, or not 8 kHz, 16 bits, one channel.
    """
    how = "get github.com/Jakobovski/free-spoken-digit-dataset and set data.folder (--data-dir) to its folder or tar.gz"
    if folder is None:
        raise DataError(f"spoken-digits needs recordings <digit>_<speaker>_<n>.wav; {how}")
    found = [(match, data) for name, data in _files(folder) if (match := NAME.fullmatch(name))]
    if not found:
        raise DataError(
            f"there are no recordings in {folder}: looked for <digit>_<speaker>_<n>.wav, also in recordings/; {how}"
        )
    found.sort(key=lambda item: (item[0][1], item[0][2], int(item[0][3])))
    waves = [_read_wave(f"{folder}: {match[0]}", data) for match, data in found]
    names = [match[1] if label == "digit" else match[2] for match, _ in found]
    classes = tuple(map(str, range(10))) if label == "digit" else tuple(sorted(set(names)))
    labels = np.array([classes.index(name) for name in names], np.int64)
    is_test = np.array([int(match[3]) < N_TEST for match, _ in found])
    if is_test.all() or not is_test.any():
        raise DataError(f"{folder} has {int(is_test.sum())} test recordings (n < {N_TEST}) of {len(is_test)}; {how}")
    train, test = (join([waves[i] for i in np.flatnonzero(part)], labels[part]) for part in (~is_test, is_test))
    speakers = len({match[2] for match, _ in found})
    notes = (f"{speakers} speakers, {RATE} samples a second; test: the recordings n < {N_TEST} of each",)
    return Found("spoken-digits", train, test, classes, "series", notes, RATE)


def _files(place: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the .wav files."""
    if place.is_dir() and (place / ARCHIVE).is_file() and not any(place.glob("*.wav")):
        place = place / ARCHIVE
    if place.is_file():
        for member in tar_members(place):
            if member.name.endswith(".wav"):
                yield Path(member.name).name, member.read()
        return
    for path in [*place.glob("*.wav"), *place.glob("recordings/*.wav")]:
        yield path.name, read_file(path)


def _read_wave(name: str, data: bytes) -> np.ndarray:
    """(samples, 1) int16."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            form = (file.getframerate(), file.getsampwidth(), file.getnchannels())
            n_samples = file.getnframes()
            samples = file.readframes(n_samples + 1)  # one more: what is left of the data if they are no whole samples
    except Exception as error:  # the module raises RuntimeError for a chunk that ends behind the file's end, and more
        why = reason(error) if str(error) else "it is cut short"
        raise DataError(f"{name} is not a WAV file of plain samples: {why}") from error
    if form != (RATE, 2, 1):
        raise DataError(
            f"{name} has {form[0]} samples a second, {8 * form[1]} bits, {form[2]} channels; "
            f"expected {RATE}, 16 and 1: convert it first"
        )
    if len(samples) != 2 * n_samples:
        raise DataError(
            f"{name} is cut short: {len(samples):,} bytes of samples, but its header has {n_samples:,} samples of 2 "
            "bytes; get it again"
        )
    if not samples:
        raise DataError(f"{name} has no samples, only a header; get it again, or leave it out")
    return np.frombuffer(samples, "<i2").reshape(-1, 1)
