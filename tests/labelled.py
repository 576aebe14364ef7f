"""Labelled sequences for tests: opened, as stored, and where the real files are."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import SHARED

from statewise.data.labelled import LabelledData, LabelledDataConfig, open_labelled

SPOKEN = SHARED / "free_spoken_digits.tar.gz"
JPEG = SHARED / "cifar10_jpeg.tar.gz"


def opened(source: str = "digits", **options: Any) -> LabelledData:
    return open_labelled(LabelledDataConfig(source=source, **options))


def as_stored(data: LabelledData, name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The rows of a split and their targets in the order of the file."""
    split = data.split(name)
    order = np.argsort(split.begins)
    return [split.sequence(int(i)) for i in order], split.targets[order]


def write_wave(path: Path, samples: list[int], rate: int = 8000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.array(samples, "<i2").tobytes())


def needs(path: Path | str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not Path(path).exists(), reason=f"{Path(path).name} is not here")
