"""Spoken digits from folders and archives of recordings."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from labelled import SPOKEN, as_stored, needs, opened, write_wave

from statewise.data.labelled_batches import LabelledBatches
from statewise.errors import DataError

# ---- spoken digits


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
    with pytest.raises(DataError, match=r"3_ann_0\.wav is not a WAV file"):
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
        (lambda data: data[:16] + b"\xff\xff\0\0" + data[20:], "is not a WAV file of plain samples: it is cut short$"),
        (lambda data: data[:30], "is not a WAV file of plain samples: .*[a-z]$"),
        (lambda data: b"", "is not a WAV file of plain samples: it is cut short$"),
        (lambda data: b"junk" * 20, "is not a WAV file of plain samples: .*RIFF"),
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
