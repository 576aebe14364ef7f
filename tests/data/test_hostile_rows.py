"""Rows of data that somebody made to do harm: pictures, texts and tables are refused in one line."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hostile import refused
from labelled import opened

from statewise.checkpoints.tensor_files import shown
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.data.long_range import LongRangeDataConfig, open_long_range
from statewise.data.series import SeriesDataConfig, open_series
from statewise.errors import DataError, excerpt
from statewise.evaluate.questions import open_tasks


def png(width: int, height: int, data: bytes = b"", kind: bytes = b"IDAT") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(kind, data) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n"


PICTURES = {
    "a bomb": (png(12_000, 12_000, zlib.compress(bytes(1000))), "has 12000 x 12000 pixels, expected 32 x 32"),
    "a bomb beyond Pillow's limit": (png(1 << 30, 1 << 30, b""), "is not an image"),
    "a broken chunk": (png(32, 32, b"", b"\xff\xff\xff\xff"), "is not an image"),
    "no pixels": (png(32, 32, b""), "is not an image"),
    "a program of PostScript": (EPS, "is not an image"),
    "cut short": (png(32, 32, zlib.compress(bytes(32 * 97)))[:50], "is not an image"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    data, message = PICTURES[name]
    path = tmp_path / "train" / "airplane" / "0.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert message in refused(lambda: opened("cifar10", folder=str(tmp_path)))


@pytest.mark.parametrize("folder", ["/dev", "../../.."])
def test_metadata_may_not_name_an_image_elsewhere(folder: str, tmp_path: Path) -> None:
    metadata = tmp_path / "curv_contour_length_14" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "0.npy").write_text(f"{folder} zero 0 1\n" * 10)
    config = LongRangeDataConfig(task="pathfinder", folder=str(tmp_path))
    assert "is not in the folder" in refused(lambda: open_long_range(config))


def test_hostile_lines_are_not_quoted_at_length(tmp_path: Path) -> None:
    long, config = "x" * 10_000 + "\x1b[2J", LongRangeDataConfig(task="listops", folder=str(tmp_path))
    for part in ("train", "val", "test"):
        (tmp_path / f"basic_{part}.tsv").write_text(f"Source\tTarget\n{long}\t1\n")
    assert "line 2" in refused(lambda: open_long_range(config))
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"S_{part}.ts").write_text(f"@classLabel true {long} b\n@data\n1,2:{long}y\n")
    assert "is not one of @classLabel" in refused(lambda: opened("ucr:S", folder=str(tmp_path)))
    for line in (f'{{"{long[:-4]}": 1}}', f'{{"question": [{"1, " * 9999} 2]}}', f'{{"choices": ["{long[:-4]}", 1]}}'):
        (tmp_path / "own.jsonl").write_text(line)
        refused(lambda: open_tasks([str(tmp_path / "own.jsonl")]))
    assert len(excerpt(long)) <= 80


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    row = '{"question": "a", "choices": ["b", "c"], "answer": 0, "answer": 1}'
    (tmp_path / "own.jsonl").write_text(row)
    assert "line 1: the key 'answer' is there twice" in refused(lambda: open_tasks([str(tmp_path / "own.jsonl")]))


def test_few_bytes_do_not_become_many_choices(tmp_path: Path) -> None:
    passage = {"text": "a" * 100_000, "entities": [{"start": 0, "end": i} for i in range(5_000)]}
    query = {"query": "@placeholder " * 5_000, "answers": [{"text": "a"}]}
    (tmp_path / "ReCoRD").mkdir()
    for rows in (
        {"passage": passage, "qas": [query]},
        {
            "passage": "a",
            "entities": ["a" * i for i in range(2_000)],
            "answers": ["a"],
            "query": "@placeholder" * 9000,
        },
    ):
        (tmp_path / "ReCoRD" / "val.jsonl").write_text(json.dumps(rows))
        assert "expands to" in refused(lambda: open_tasks(["record"], tmp_path))


def test_a_target_that_float32_does_not_hold(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_x=np.ones((4, 3)), train_y=np.array([1.0, 2.0, 3.0, 1e300]))
    config = LabelledDataConfig(source="arrays", folder=str(tmp_path / "a.npz"))
    assert "not finite in float32" in refused(lambda: open_labelled(config))


@pytest.mark.parametrize("time", ["0001-01-01", "9999-12-31", "0002-01-01T00:00+23:59", "9999-12-31T23:59-23:59"])
def test_times_at_the_ends_of_the_calendar(time: str, tmp_path: Path) -> None:
    zone = "T00:00+00:00" if "T" in time else ""
    rows = [f"{2020 + i}-01-01{zone},{i}" for i in range(20)]
    (tmp_path / "s.csv").write_text("\n".join(["time,y", f"{time},1", *rows]))
    config = SeriesDataConfig(source=str(tmp_path / "s.csv"), horizon=2, history=4)
    assert "line 2: the time" in refused(lambda: open_series(config))


def test_a_store_of_rows_that_point_elsewhere_is_made_anew(tmp_path: Path) -> None:
    """Rows that were drawn into a folder may come with it, from somebody else."""
    config = LongRangeDataConfig(task="listops-gen", folder=str(tmp_path), n_train=9, n_validation=3, n_test=3)
    good = open_long_range(config).fingerprint
    (path,) = tmp_path.rglob("rows.npz")
    arrays = dict(np.load(path))
    for name, value in (("lengths", -1), ("lengths", 1 << 40), ("targets", None), ("rows", 99)):
        changed = {k: v.copy() for k, v in arrays.items()}
        if value is None:
            del changed[name]
        elif name in changed:
            changed[name][:2] = value, arrays[name][:2].sum() - value
        else:
            changed[name] = np.full(15, value)
        np.savez(path, **changed)
        assert open_long_range(config).fingerprint == good
    assert dict(np.load(path)).keys() == arrays.keys()


def test_one_row_is_not_held_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_x=np.ones((1, 3)), train_y=np.array([1.5]))
    with pytest.raises(DataError, match=r"holds out nothing: a\.npz has only one row; give more"):
        opened("arrays", folder=str(tmp_path / "a.npz"))
    data = opened("arrays", folder=str(tmp_path / "a.npz"), test_fraction=0.0)
    assert list(data.splits) == ["train"]
    assert "validation none: too few training rows" in data.describe()
    assert "1 sequences of 3 steps" in data.describe()
    with pytest.raises(DataError, match="there is no validation split: too few training rows"):
        data.split("validation")


def test_a_class_for_each_row_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_x=np.ones((80, 3)), train_y=np.array([f"w{i}" for i in range(80)]))
    with pytest.raises(DataError, match=r"holds out nothing: no class in a\.npz has two .*80 rows, 80 classes"):
        opened("arrays", folder=str(tmp_path / "a.npz"))


def test_one_class_is_refused_wherever_it_lies(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_x=np.ones((8, 3)), train_y=np.array(["w"] * 8))
    with pytest.raises(DataError, match=r"a\.npz, label 0: all labels are 'w'; expected two classes or more"):
        opened("arrays", folder=str(tmp_path / "a.npz"))


def test_a_name_that_is_escaped_stays_short() -> None:
    for name in ("é" * 300, "\U0001f600" * 200, "a\n" * 90):
        assert len(shown(name)) <= 203
        assert shown(name).isascii()
        assert shown(name).isprintable()
    assert shown("a" * 200) == "a" * 200
