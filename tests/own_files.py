"""Small files as people have them: folders of pictures and sounds, tables in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statewise.data.labelled import LabelledData, LabelledDataConfig, open_labelled

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def own(path: Path, **options: Any) -> LabelledData:
    return open_labelled(LabelledDataConfig(source="files", folder=str(path), **options))


def rows_of(data: LabelledData, *splits: str) -> list[np.ndarray]:
    """The rows as they were stored, in the order of the files."""
    found = []
    for name in splits or data.splits:
        split = data.split(name)
        found += [(split.begins[i], split.raw.sequence(i)) for i in range(len(split))]
    return [row for _, row in sorted(found, key=lambda item: item[0])]


def pictures(n: int = 24, size: tuple[int, int] = (5, 4), mode: str = "L") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shape = size if mode == "L" else (*size, 3)
    return [rng.integers(0, 100, shape).astype(np.uint8) + np.uint8(100 * (i % 2)) for i in range(n)]


def write_pictures(folder: Path, n: int = 24, ending: str = "png", **options: Any) -> Path:
    """Two classes, cat and dog, by turns; dogs are brighter."""
    for i, pixels in enumerate(pictures(n, **options)):
        (place := folder / ("cat", "dog")[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i:02}.{ending}")
    return folder


def tone(rate: int, hertz: float, length: float = 0.02, channels: int = 1) -> np.ndarray:
    t = np.arange(round(rate * length)) / rate
    return np.stack([np.sin(2 * np.pi * hertz * t + k) * 0.3 for k in range(channels)], 1)


def write_sounds(
    folder: Path, n: int = 24, ending: str = "wav", rates: tuple[int, ...] = (8000,), channels: int = 1
) -> Path:
    """Two classes, high and low."""
    for i in range(n):
        (place := folder / ("high", "low")[i % 2]).mkdir(parents=True, exist_ok=True)
        rate = rates[i // 2 % len(rates)]
        sound = tone(rate, (1000, 100)[i % 2] + i, 0.02 + 0.001 * (i % 3), channels)
        soundfile.write(place / f"{i:02}.{ending}", sound, rate)
    return folder


def wide(n: int = 24, length: int = 6) -> Any:
    """A sequence a row, far from mean 0; steps t0, t1, ... and the label kind."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, length)).cumsum(1) * 20 + 1000
    frame = pandas.DataFrame({f"t{i}": column for i, column in enumerate(x.T)})
    frame["kind"] = np.where(x[:, -1] > 1000, "up", "down")
    return frame


def long(n: int = 24) -> Any:
    """A step a row, sequences of unlike lengths, in no order."""
    rng = np.random.default_rng(0)
    parts = []
    for i in range(n):
        x = rng.normal(size=(4 + i % 3, 2)).cumsum(0) * 20 + 1000
        kind = "up" if x[-1, 0] > 1000 else "down"
        steps = {"id": f"s{i:02}", "time": np.arange(len(x)), "left": x[:, 0], "right": x[:, 1], "kind": kind}
        parts.append(pandas.DataFrame(steps))
    return pandas.concat(parts).sample(frac=1, random_state=0).reset_index(drop=True)


def lists(n: int = 24) -> Any:
    rng = np.random.default_rng(0)
    x = [(rng.normal(size=4 + i % 3).cumsum() * 20 + 1000).tolist() for i in range(n)]
    return pandas.DataFrame({"s": x, "kind": ["up" if one[-1] > 1000 else "down" for one in x]})


def write_json(frame: Any, path: Path) -> None:
    """Every digit; pandas writes fifteen."""
    import json

    lines = [json.dumps(row) + "\n" for row in frame.to_dict("records")]
    path.write_text("".join(lines), "utf-8")


FORMATS: dict[str, Callable[[Any, Path], object]] = {
    "a.csv": lambda frame, path: frame.to_csv(path, index=False),
    "b.csv": lambda frame, path: frame.to_csv(path, sep=";", decimal=","),
    "c.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "d.csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    "e.csv.zst": lambda frame, path: frame.to_csv(path, index=False),
    "f.parquet": lambda frame, path: frame.to_parquet(path),
    "g.jsonl": write_json,
}
