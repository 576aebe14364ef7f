"""Sounds, decoded by libsndfile and brought to one sampling rate by scipy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.errors import DataError, excerpt, importing
from statewise.files.limits import require_within
from statewise.files.opening import open_file, refusing

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG")
BEGINNINGS = (b"RIFF", b"RF64", b"fLaC", b"OggS")  # what libsndfile is asked about: it knows dozens of formats
FASTEST = 384_000  # samples a second: the filter between two rates has up to 20 times as many numbers
BYTES = 4  # of a sample
STREAMED = (0, 0xFFFFFFFF)  # what a WAV file says of its size that was written to a pipe


class Heard(NamedTuple):
    """What a sound's header says: samples a second, channels, and samples of each."""

    rate: int
    channels: int
    samples: int


def look_at_sound(path: Path) -> Heard:
    """By its header.

    Errors:  DataError as :func:`read_sound`.
    """
    with _opened(path) as file:
        return _checked(file, path)


def read_sound(path: Path, *, rate: int, mono: bool) -> np.ndarray:
    """(length, 1), the mean of its channels, or (length, channels): float32 from -1 to 1, ``rate`` samples a second.

    Numerics: what has the rate already is read as it is, 16 and 24 bits exactly; another rate is changed in float64 by
              scipy.signal.resample_poly, to ceil(length * rate / its rate) samples.
    Errors:   DataError for what is none of WAV, FLAC and OGG, damaged, cut short, empty, or expands to more than
              its size allows; for values that are not finite; if soundfile or scipy is not installed.
    """
    with _opened(path) as file:
        heard = _checked(file, path)
        up, down = rate // math.gcd(rate, heard.rate), heard.rate // math.gcd(rate, heard.rate)
        n_samples = -(-heard.samples * up // down) * heard.channels
        require_within(f"{path}, at {rate:,} samples a second,", BYTES * n_samples, path.stat().st_size)
        sound: np.ndarray = file.read(dtype="float32", always_2d=True)
    if len(sound) != heard.samples:
        raise DataError(f"{path} is cut short: {len(sound):,} samples, but its header says {heard.samples:,}")
    if not np.isfinite(sound).all():
        raise DataError(f"{path} has samples that are not finite; repair it or leave it out")
    if mono and heard.channels > 1:
        sound = sound.mean(1, keepdims=True, dtype=np.float64).astype(np.float32)
    if up == down:
        return sound
    with importing("scipy", "files", f"{path}: another sampling rate needs", DataError):
        from scipy.signal import resample_poly
    resampled: np.ndarray = resample_poly(sound.astype(np.float64), up, down, axis=0)
    return resampled.astype(np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with importing("soundfile", "files", f"{path}: sounds need", DataError):
        import soundfile
    with refusing(f"{path} is not a sound"):
        with open_file(path) as raw:  # a regular file
            head = raw.peek(12)[:12]
        if not head.startswith(BEGINNINGS):
            raise DataError(f"{path} is not a WAV, FLAC or OGG file; convert it")
        claimed = int.from_bytes(head[4:8], "little")
        if head[:4] == b"RIFF" and claimed not in STREAMED and claimed + 8 > path.stat().st_size + 1:
            raise DataError(f"{path} is cut short: its header says {claimed + 8:,} bytes; get it again")
        with soundfile.SoundFile(str(path)) as file:
            if file.format not in FORMATS:
                raise DataError(f"{path} is {excerpt(file.format)}; expected WAV, FLAC or OGG: convert it")
            yield file


def _checked(file: Any, path: Path) -> Heard:
    heard = Heard(file.samplerate, file.channels, file.frames)
    if not 0 < heard.rate <= FASTEST:
        raise DataError(f"{path} has {heard.rate:,} samples a second; expected 1 to {FASTEST:,}")
    if heard.samples < 1:
        raise DataError(f"{path} has no samples, only a header; get it again, or leave it out")
    require_within(str(path), BYTES * heard.samples * heard.channels, path.stat().st_size)
    return heard
