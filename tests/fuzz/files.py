"""Good small files of every kind that is read, and what reads them, to the end."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import wave
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from questions import QUESTION, write_superglue

from fuzz import model_files, own_files
from fuzz.text_files import read_texts, write_columns, write_records
from fuzz.tokenizer_files import (
    PUBLISHED_FILES,
    read_conventions,
    read_corpus,
    read_tokenizer,
    write_conventions,
    write_tokenizer,
)
from statewise.data import cifar
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.data.long_range import LongRangeDataConfig, open_long_range
from statewise.data.series import SeriesDataConfig, open_series

cifar.N_IMAGES = {"train": 5, "test": 5}


@dataclass(frozen=True)
class Kind:
    """write: a good folder; read: it, and all that is in it; archive: the file that its files are packed into first;
    changed: the only files of it that are changed."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    archive: str | None = None
    changed: tuple[str, ...] = ()


# ---- sequences with labels


def read_labelled(folder: Path, source: str, name: str = ".", **options: Any) -> None:
    data = open_labelled(LabelledDataConfig(source=source, folder=str(folder / name), **options))
    data.describe()
    for split in data.splits.values():
        split.read(np.arange(min(2, len(split))))


def write_npz(folder: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(
        folder / "a.npz", train_x=draw.normal(size=(6, 5, 2)), train_y=np.array(list("abcabc")),
        train_lengths=np.array([5, 4, 3, 2, 1, 5]), test_x=draw.integers(0, 9, (4, 5, 2)),
        test_y=np.array(list("abca")),
    )  # fmt: skip
    with zipfile.ZipFile(folder / "a.npz") as archive:
        archive.extractall(folder)
    (folder / "a.npz").unlink()


def write_idx(folder: Path, suffix: str) -> None:
    for prefix, n in (("train", 12), ("t10k", 10)):
        for stem, array in (("images-idx3", np.ones((n, 3, 4), np.uint8)), ("labels-idx1", np.arange(n) % 10)):
            data = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            data += array.astype(np.uint8).tobytes()
            path = folder / f"{prefix}-{stem}-ubyte{suffix}"
            path.write_bytes(gzip.compress(data) if suffix else data)


def write_cifar(folder: Path, form: str) -> None:
    planes = np.random.default_rng(0).integers(0, 256, (10, 3072), np.uint8)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = planes[i : i + 1] if i < 5 else planes[5:]
        labels = list(range(10))[: len(rows)]
        if form == "binary":
            (folder / f"{name}.bin").write_bytes(
                np.concatenate([np.array(labels, np.uint8)[:, None], rows], 1).tobytes()
            )
        else:
            (folder / name).write_bytes(pickle.dumps({b"labels": labels, b"data": rows, b"batch_label": b"x"}, 2))


def write_pictures(folder: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    for i in range(10):
        path = folder / ("train" if i < 5 else "test") / cifar.CLASSES[i] / f"{i}.{'png' if i % 2 else 'jpg'}"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels).save(path)


def write_waves(folder: Path) -> None:
    for n in (0, 1, 6, 7):
        with wave.open(str(folder / f"1_ann_{n}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", "none"))
            file.writeframes(np.arange(20, dtype="<i2").tobytes())


def write_ts(folder: Path) -> None:
    text = "@problemName S\n@timeStamps false\n@classLabel true b a\n@data\n1,2,3:4,5,6:a\n1,2:0,0:b\n"
    for part in ("TRAIN", "TEST"):
        (folder / f"S_{part}.ts").write_text(text if part == "TRAIN" else text.replace("6:a", "-6.5e0:a"))


# ---- series, documents, lists


def write_series(folder: Path) -> None:
    rows = [f"20{20 + i // 12}-{1 + i % 12:02}-01,{i % 7}.5,{-i},a" for i in range(40)]
    (folder / "s.csv").write_text("time,y,z,name\n" + "\n".join(rows) + "\n")


def read_csv(folder: Path) -> None:
    config = SeriesDataConfig(
        source=str(folder / "s.csv"), targets=("y",), covariates=("z",), series="name", horizon=2, history=4
    )
    open_series(config).describe()


def write_listops(folder: Path) -> None:
    for part in ("train", "val", "test"):
        (folder / f"basic_{part}.tsv").write_text(
            "Source\tTarget\n( ( [MAX 4 ) 3 ] )\t4\n[SM 1 2 [MIN 3 4 ] ]\t6\n" * 1
        )


def write_papers(folder: Path) -> None:
    for part in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{part}.tsv").write_text("1.0\ta\tb\tone text\tand two\n0.0\tc\td\tother\tthing\n" * 2)


def write_reviews(folder: Path) -> None:
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            (folder / part / label).mkdir(parents=True)
            for i in range(3):
                (folder / part / label / f"{i}_7.txt").write_text(f"It is {label}, {i} of them: été. " * 5)


def write_pathfinder(folder: Path) -> None:
    from PIL import Image

    level = folder / "curv_contour_length_14"
    (level / "metadata").mkdir(parents=True)
    (level / "imgs" / "0").mkdir(parents=True)
    for j in range(10):
        Image.fromarray(np.full((32, 32), 9 * j, np.uint8)).save(level / "imgs" / "0" / f"sample_{j}.png")
    lines = [f"imgs/0 sample_{j}.png {j} {j % 2} 1.0 14 4 2 0.5 1 1\n" for j in range(10)]
    (level / "metadata" / "0.npy").write_text("".join(lines))


def read_long_range(folder: Path, task: str) -> None:
    data = open_long_range(LongRangeDataConfig(task=task, folder=str(folder)))
    data.describe()
    for split in data.splits.values():
        split.read(np.arange(min(2, len(split))))


# ---- questions


def write_questions(folder: Path) -> None:
    write_superglue(folder / "superglue", n_validation=2, n_train=2)
    (folder / "own.jsonl").write_text(f"{json.dumps(QUESTION)}\n{json.dumps({**QUESTION, 'answer': 'c'})}\n")
    (folder / "lambada_test.jsonl").write_text('{"text": "a b c"}\n{"text": "It was the end"}\n')


def read_questions(folder: Path) -> None:
    from statewise.evaluate.questions import open_tasks

    for form in ("official", "columns"):
        for name in ("superglue", "lambada"):
            place = folder / "superglue" / form if name == "superglue" else folder
            open_tasks([name], place, n_shots=2 * (name == "superglue"))
    open_tasks([str(folder / "own.jsonl")])


def write_blimp(folder: Path) -> None:
    row = {"sentence_good": "a b", "sentence_bad": "b a"}
    (folder / "causative.jsonl").write_text(f"{json.dumps(row)}\n" * 3)


def read_blimp(folder: Path) -> None:
    from statewise.evaluate.questions import open_tasks

    open_tasks(["blimp_causative"], folder)


cifar_reader = partial(read_labelled, source="cifar10")
KINDS: dict[str, Kind] = {
    "npz": Kind(write_npz, partial(read_labelled, source="arrays", name="a.npz"), "a.npz"),
    "tables": Kind(own_files.write_csv, own_files.read_tables),
    "parquet": Kind(own_files.write_parquet, own_files.read_tables),
    "json lines": Kind(own_files.write_json_lines, own_files.read_tables),
    "pictures": Kind(own_files.write_pictures, own_files.read_labelled),
    "sounds": Kind(own_files.write_sounds, own_files.read_labelled),
    "idx": Kind(partial(write_idx, suffix=""), partial(read_labelled, source="mnist")),
    "idx.gz": Kind(partial(write_idx, suffix=".gz"), partial(read_labelled, source="mnist")),
    "cifar binary": Kind(partial(write_cifar, form="binary"), cifar_reader, cifar.ARCHIVES[0]),
    "cifar python": Kind(partial(write_cifar, form="python"), cifar_reader, cifar.ARCHIVES[1]),
    "cifar pictures": Kind(write_pictures, cifar_reader),
    "cifar JPEG": Kind(write_pictures, cifar_reader, cifar.ARCHIVES[2]),
    "waves": Kind(write_waves, partial(read_labelled, source="spoken-digits")),
    "waves in tar": Kind(write_waves, partial(read_labelled, source="spoken-digits"), "free_spoken_digits.tar.gz"),
    "ts": Kind(write_ts, partial(read_labelled, source="ucr:S")),
    "series": Kind(write_series, read_csv),
    "listops": Kind(write_listops, partial(read_long_range, task="listops")),
    "retrieval": Kind(write_papers, partial(read_long_range, task="retrieval")),
    "text": Kind(write_reviews, partial(read_long_range, task="text")),
    "pathfinder": Kind(write_pathfinder, partial(read_long_range, task="pathfinder")),
    "tokenizer": Kind(write_tokenizer, read_tokenizer, changed=("tokenizer.json",)),
    "chat": Kind(write_conventions, read_conventions, changed=PUBLISHED_FILES),
    "corpus": Kind(write_tokenizer, read_corpus),
    "records": Kind(write_records, read_texts),
    "records in columns": Kind(write_columns, read_texts),
    "questions": Kind(write_questions, read_questions),
    "blimp": Kind(write_blimp, read_blimp, "blimp.zip"),
    "published": Kind(model_files.write_published, model_files.load),
    "shards": Kind(model_files.write_index, model_files.load),
    "torch": Kind(partial(model_files.write_torch, form="zip"), model_files.read_torch, "pytorch_model.pt"),
    "torch legacy": Kind(
        partial(model_files.write_torch, form="legacy"), model_files.load, changed=("m/pytorch_model.bin",)
    ),
    "checkpoint": Kind(model_files.write_checkpoint, model_files.load),
    "fla": Kind(model_files.write_fla, model_files.load),
    "rwkv": Kind(model_files.write_blinkdl, model_files.load),
    "gguf": Kind(model_files.write_gguf, model_files.read_gguf),
    "two files": Kind(model_files.write_two_files, model_files.read_two_files, changed=("vocab.json", "merges.txt")),
    "state": Kind(model_files.write_state, model_files.read_state),
}
