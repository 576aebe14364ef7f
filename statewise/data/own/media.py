"""Pictures and sounds as sequences: all of one size, one kind of colour, one sampling rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from statewise.data.own.folders import wrong_kind
from statewise.data.progress import Progress, tell
from statewise.errors import ConfigError, DataError
from statewise.files.limits import require_within
from statewise.files.pictures import fit_picture, look_at_picture
from statewise.files.sounds import look_at_sound, read_sound
from statewise.models.file_input import CHANNELS, FilesConfig

MODES = {"grey": "L", "rgb": "RGB"}
T = TypeVar("T")


class Wished(NamedTuple):
    """What a user asked for, if anything."""

    channels: str | None = None
    image_size: tuple[int, int] | None = None
    sampling_rate: int | None = None


def decide(paths: Sequence[Path], kind: str, wished: Wished) -> tuple[FilesConfig, str]:
    """The size or rate of "pictures" or "sounds", from their headers, and a sentence that says it.

    It is the most frequent size or rate; if two are as frequent, the larger. Pictures are grey if none of them has
    colour; sounds are brought to one channel.

    Errors:  DataError for a file of another kind; if together they would unfold to more than their bytes allow;
             ConfigError for a wish that the kind does not have.
    """
    other = {"pictures": "sampling_rate", "sounds": "image_size"}[kind]
    if getattr(wished, other) is not None:
        raise ConfigError(f"data.{other} is not for {kind}; leave it out")
    if wished.channels not in (None, *CHANNELS[kind]):
        raise ConfigError(f"data.channels={wished.channels!r} is not for {kind}; use one of {list(CHANNELS[kind])}")
    files, words, n_values = (_decide_pictures if kind == "pictures" else _decide_sounds)(paths, wished)
    asked = wished.image_size is not None or wished.sampling_rate is not None
    n_bytes = sum(path.stat().st_size for path in paths)
    if not asked:
        require_within(f"{len(paths):,} {kind} together", n_values, n_bytes)
    return files, words


def _decide_pictures(paths: Sequence[Path], wished: Wished) -> tuple[FilesConfig, str, int]:
    looks = [_of_kind("pictures", path, look_at_picture) for path in paths]
    sizes = Counter(look.size for look in looks)
    size = wished.image_size or max(sizes, key=lambda size: (sizes[size], size))
    channels = wished.channels or ("grey" if all(look.is_grey for look in looks) else "rgb")
    changed = len(looks) - sizes[size]
    words = f"{size[0]} x {size[1]}, {channels}{f' ({changed:,} resized)' if changed else ''}"
    n_bytes = len(looks) * size[0] * size[1] * (3 if channels == "rgb" else 1)
    return FilesConfig(kind="pictures", channels=channels, image_size=size), words, n_bytes


def _decide_sounds(paths: Sequence[Path], wished: Wished) -> tuple[FilesConfig, str, int]:
    heard = [_of_kind("sounds", path, look_at_sound) for path in paths]
    rates = Counter(one.rate for one in heard)
    rate = wished.sampling_rate or max(rates, key=lambda rate: (rates[rate], rate))
    channels = wished.channels or "mono"
    widths = {one.channels for one in heard}
    if channels == "all" and len(widths) > 1:
        other = next(i for i, one in enumerate(heard) if one.channels != heard[0].channels)
        raise DataError(
            f"{paths[other]} has {heard[other].channels} channels, {paths[0].name} {heard[0].channels}; "
            'use data.channels="mono"'
        )
    changed = len(heard) - rates[rate]
    mixed = max(widths) > 1 and channels == "mono"
    words = f"{rate:,} samples a second{f' ({changed:,} resampled)' if changed else ''}, {channels}"
    words += " (the mean of their channels)" if mixed else ""
    width = 1 if channels == "mono" else max(widths)
    n_bytes = sum(4 * width * one.samples * rate // one.rate for one in heard)
    return FilesConfig(kind="sounds", channels=channels, sampling_rate=rate), words, n_bytes


def read_one(path: Path, files: FilesConfig) -> np.ndarray:
    """A picture as its pixels, row by row: (height * width, 1 or 3) uint8. A sound: (length, channels) float32.

    Errors:  DataError for what cannot be read, or is of another kind.
    """
    assert files.channels is not None
    if files.kind == "pictures":
        size, mode = files.image_size, MODES[files.channels]
        assert size is not None
        pixels = _of_kind("pictures", path, lambda path: fit_picture(path, size=size, mode=mode))
        return pixels.reshape(size[0] * size[1], -1)
    rate = files.sampling_rate
    assert rate is not None
    return _of_kind("sounds", path, lambda path: read_sound(path, rate=rate, mono=files.channels == "mono"))


def read_all(paths: Sequence[Path], files: FilesConfig, progress: Progress | None = None) -> list[np.ndarray]:
    rows = []
    for i, path in enumerate(paths, 1):
        rows.append(read_one(path, files))
        tell(progress, i, len(paths))
    return rows


def _of_kind(kind: str, path: Path, read: Callable[[Path], T]) -> T:
    """What ``read`` gives; where it fails since the file is another kind, that is said, and else what to do."""
    try:
        return read(path)
    except DataError as error:
        other = wrong_kind(path, kind)
        if other is not None:
            raise other from None
        if ";" in str(error):
            raise
        raise DataError(f"{error}; replace it, or move it out") from error
