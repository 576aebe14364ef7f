"""Good small corpora of records, and labelled texts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from statewise.data.labelled_text import LabelledTextDataConfig, open_labelled_texts
from statewise.data.text import TextDataConfig, open_corpus
from statewise.errors import StatewiseError

ROWS = [{"text": f'text {i}, "said"\nélan', "meta": {"n": i}, "label": "ab"[i % 2]} for i in range(24)]


def write_records(folder: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    cells = "".join(f'{row["label"]};"{row["text"].replace(chr(34), chr(34) * 2)}"\n' for row in ROWS)
    (folder / "c.csv").write_text(f"label;text\n{cells}", "utf-8")
    (folder / "d.txt.gz").write_bytes(gzip.compress(b"plain text\n" * 30))


def write_columns(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "e.parquet", row_group_size=9)
    with pyarrow.OSFile(str(folder / "f.jsonl.zst"), "wb") as file, pyarrow.CompressedOutputStream(file, "zstd") as out:
        out.write("".join(json.dumps(row) + "\n" for row in ROWS).encode())


def read_texts(folder: Path) -> None:
    """Each file by itself, as a corpus and as labelled texts; what refuses one is told after all of them."""
    refused = None
    for path in sorted(folder.iterdir()):
        field = None if path.name.startswith("d") else "text"
        try:
            open_corpus(TextDataConfig(source=str(path), text_field=field)).describe()
            if field is not None:
                options = {"text_field": field, "label_field": "label", "max_length": 9}
                data = open_labelled_texts(LabelledTextDataConfig(source=str(path), **options))  # type: ignore[arg-type]
                data.split("train").sequence(0)
        except StatewiseError as error:
            refused = error
    if refused is not None:
        raise refused
