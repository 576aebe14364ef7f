"""Files as people have them, and what reads them: tables in every format, folders of pictures and sounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import soundfile
from PIL import Image

from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.files.sniffing import kind_of, kind_within
from statewise.files.tables import read_table


def frame() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    steps = {"id": [i // 3 for i in range(12)], "x": rng.normal(size=12), "n": range(12)}
    return pandas.DataFrame({**steps, "label": [f'"{i // 6}", ü' for i in range(12)]})


def write_csv(folder: Path) -> None:
    frame().to_csv(folder / "a.csv", sep=";", decimal=",")
    frame().to_csv(folder / "b.csv.gz", index=False)
    frame().to_csv(folder / "c.csv.zst", index=False)


def write_parquet(folder: Path) -> None:
    own = frame()
    own["lists"] = [[1.0] * (i + 1) for i in range(12)]
    own.to_parquet(folder / "a.parquet")


def write_json_lines(folder: Path) -> None:
    rows = [{**row, "s": [1, 2.5, None]} for row in frame().to_dict("records")]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def read_tables(folder: Path) -> None:
    """To the end, as long tables and as columns."""
    for path in sorted(folder.iterdir()):
        kind_of(path)
        kind_within(path)
        table = read_table(path, text=["label"])
        table.at(len(table) - 1)
        read_labelled(path, row_field="id", ignored_fields=tuple({"lists", "s"} & set(table.columns)))


def write_pictures(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)
    for i, (ending, picture) in enumerate(zip(("png", "jpg", "gif", "bmp"), pixels)):
        (place := folder / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(picture).save(place / f"{i}.{ending}")


def write_sounds(folder: Path) -> None:
    sound = np.random.default_rng(0).normal(size=(200, 2)) * 0.1
    for i, ending in enumerate(("wav", "flac", "ogg", "wav")):
        (place := folder / "ab"[i % 2]).mkdir(exist_ok=True)
        soundfile.write(place / f"{i}.{ending}", sound, 8000 + 3025 * (i == 3))


def read_labelled(path: Path, **options: object) -> None:
    data = open_labelled(LabelledDataConfig(source="files", folder=str(path), **options))  # type: ignore[arg-type]
    data.describe()
    for split in data.splits.values():
        split.read(np.arange(min(2, len(split))))
