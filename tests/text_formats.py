"""Texts in every format that people have them in, written by the libraries that write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Records = Sequence[dict[str, Any]]


def some_texts(n: int = 60) -> list[str]:
    """Of several lines, with quotes, separators, and letters of two to four bytes."""
    rng = np.random.default_rng(0)
    words = ["state", "kept,", 'said "no"', "naïve", "日本", "🙂", "a;b", "line\nend", "the", "of"]
    return [f"{i} " + " ".join(rng.choice(words, rng.integers(5, 40))) for i in range(n)]


def json_lines(records: Records) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=i % 2 == 0) + "\n" for i, record in enumerate(records)).encode()


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard", reason="zstandard is not installed").compress(data))


def frame(records: Records) -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed").DataFrame(list(records))


def write_jsonl(path: Path, records: Records) -> Path:
    (path / "a.jsonl").write_bytes(json_lines(records))
    return path / "a.jsonl"


def write_jsonl_gz(path: Path, records: Records) -> Path:
    (path / "a.jsonl.gz").write_bytes(gzip.compress(json_lines(records)))
    return path / "a.jsonl.gz"


def write_zst_folder(path: Path, records: Records) -> Path:
    (path / "shards" / "more").mkdir(parents=True)
    half = len(records) // 2
    (path / "shards" / "0.jsonl.zst").write_bytes(zstd(json_lines(records[:half])))
    (path / "shards" / "more" / "1.jsonl.zst").write_bytes(zstd(json_lines(records[half:])))
    return path / "shards"


def write_csv(path: Path, records: Records) -> Path:
    frame(records).to_csv(path / "a.csv", index=False)
    return path / "a.csv"


def write_tsv_gz(path: Path, records: Records) -> Path:
    frame(records).to_csv(path / "a.tsv.gz", index=False, sep="\t")
    return path / "a.tsv.gz"


def write_parquet(path: Path, records: Records) -> Path:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame(records).to_parquet(path / "a.parquet", row_group_size=17)
    return path / "a.parquet"


def write_saved(path: Path, records: Records) -> Path:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(list(records)).save_to_disk(str(path / "saved"))
    return path / "saved"


RECORDS: dict[str, Callable[[Path, Records], Path]] = {
    "jsonl": write_jsonl,
    "jsonl.gz": write_jsonl_gz,
    "folder of jsonl.zst": write_zst_folder,
    "csv": write_csv,
    "tsv.gz": write_tsv_gz,
    "parquet": write_parquet,
    "saved data set": write_saved,
}


def write_class_folders(path: Path, records: Records) -> Path:
    for i, record in enumerate(records):
        place = path / "tree" / str(record["label"])
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:03}.txt").write_text(record["text"], "utf-8")
    return path / "tree"
