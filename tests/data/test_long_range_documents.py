"""Text and retrieval: the official files, and documents of one's own."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from statewise.data.labelled_batches import LabelledBatches, batches_in_order
from statewise.data.long_range import LongRangeData, LongRangeDataConfig, open_long_range
from statewise.data.long_range.retrieval import draw_pairs
from statewise.errors import DataError

WORDS = ["a", "fine", "film,", "née", "\x96", "<br", "/>", "Terrible!", "WONDERFUL\tfoo\nbar"]


def sentences(generator: random.Random, n: int) -> list[str]:
    return [" ".join(generator.choices(WORDS, k=generator.randint(3, 30))) for _ in range(n)]


def decoded(data: LongRangeData, tokens: np.ndarray) -> list[str]:
    return [data.vocabulary[token] for token in tokens]


def vocabulary_of(texts: list[str], least: int) -> list[str]:
    """The published rule, written out: specials, then characters by falling count, of equal ones in their order."""
    counts = Counter("".join(texts))
    kept = [character for character in sorted(counts) if counts[character] >= least]
    return ["<pad>", "<unk>", "<eos>", *sorted(kept, key=lambda character: -counts[character])]


def as_published(text: str, vocabulary: list[str], limit: int) -> list[str]:
    return [character if character in vocabulary else "<unk>" for character in text[: limit - 1]] + ["<eos>"]


# ---- text


@pytest.fixture
def reviews(tmp_path: Path) -> dict[str, list[tuple[str, int]]]:
    """aclImdb with 20 reviews a folder, and reviews without a label, which are not read."""
    generator = random.Random(0)
    found: dict[str, list[tuple[str, int]]] = {}
    for part in ("train", "test"):
        for label, name in enumerate(("neg", "pos")):
            folder = tmp_path / "aclImdb" / part / name
            folder.mkdir(parents=True)
            for i, text in enumerate(sentences(generator, 20)):
                (folder / f"{i:02}_7.txt").write_bytes(text.encode())
                found.setdefault(part, []).append((text, label))
    (tmp_path / "aclImdb" / "train" / "unsup").mkdir()
    (tmp_path / "aclImdb" / "train" / "unsup" / "0_0.txt").write_text("ZZZ" * 50)
    return found


@pytest.mark.parametrize("limit", [4096, 60])
def test_text_is_prepared_as_published(tmp_path: Path, reviews: dict[str, list[tuple[str, int]]], limit: int) -> None:
    data = open_long_range(LongRangeDataConfig(task="text", folder=str(tmp_path), max_length=limit))
    vocabulary = vocabulary_of([text[: limit - 1] for text, _ in reviews["train"]], 15)
    assert list(data.vocabulary) == vocabulary
    assert data.classes == ("neg", "pos")
    split = data.split("train")
    for i, (text, label) in enumerate(reviews["train"]):
        assert decoded(data, split.sequence(i)) == as_published(text, vocabulary, limit)
        assert split.targets[i] == label
    expected = sorted((as_published(text, vocabulary, limit), label) for text, label in reviews["test"])
    for name in ("validation", "test"):
        split = data.split(name)
        assert sorted((decoded(data, split.sequence(i)), int(split.targets[i])) for i in range(40)) == expected
    assert "validation is the test split, as published" in data.describe()


def test_validation_reviews_may_be_held_out(tmp_path: Path, reviews: dict[str, list[tuple[str, int]]]) -> None:
    config = LongRangeDataConfig(task="text", folder=str(tmp_path), validation_fraction=0.1)
    data = open_long_range(config)
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [36, 4, 40]
    assert np.bincount(data.split("validation").targets).tolist() == [2, 2]
    note = "4 training rows are held out for validation; published runs train on them"
    assert data.caveats[0] == note
    assert "the vocabulary has" in data.caveats[-1]
    begins = np.concatenate([data.split(name).begins for name in ("train", "validation", "test")])
    assert len(set(begins.tolist())) == 80
    path = tmp_path / "aclImdb" / "test" / "pos" / "00_7.txt"
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"00_7.txt is not UTF-8 at byte 0"):
        open_long_range(config)
    with pytest.raises(DataError, match=r"no text in .* for train/pos/\*.txt, .* they come from aclImdb_v1.tar.gz of"):
        open_long_range(LongRangeDataConfig(task="text", folder=str(tmp_path / "aclImdb" / "train")))
    for path in (tmp_path / "aclImdb" / "train" / "neg").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"train/neg has no \*.txt files; expected the reviews of aclImdb"):
        open_long_range(config)


# ---- documents of one's own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = random.Random(1)
    for name in ("b", "a", "c"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i, text in enumerate(sentences(generator, 20)):
            (tmp_path / "own" / name / f"{i}.txt").write_bytes(f"{name} {text}".encode())
    return tmp_path / "own"


def test_bytes_of_documents(folder: Path) -> None:
    config = LongRangeDataConfig(task="text-folder", folder=str(folder), max_length=50)
    data = open_long_range(config)
    assert data.classes == ("a", "b", "c")
    assert data.vocab_size == 258
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [48, 6, 6]
    seen = set()
    for name in ("train", "validation", "test"):
        split = data.split(name)
        for i in range(len(split)):
            tokens = split.sequence(i)
            assert tokens[-1] == 1
            assert tokens[0] - 2 == ord(data.classes[split.targets[i]])
            seen.add(bytes((tokens[:-1] - 2).astype(np.uint8)))
    assert seen == {path.read_bytes()[:49] for path in folder.glob("*/*.txt")}
    assert open_long_range(config).fingerprint == data.fingerprint
    reseeded = open_long_range(LongRangeDataConfig(task="text-folder", folder=str(folder), max_length=50, seed=1))
    assert reseeded.fingerprint != data.fingerprint


def test_documents_with_a_test_of_their_own(folder: Path, tmp_path: Path) -> None:
    divided = tmp_path / "divided"
    divided.mkdir()
    folder.rename(divided / "train")
    (divided / "test" / "b").mkdir(parents=True)
    (divided / "test" / "b" / "x.txt").write_text("b b")
    config = LongRangeDataConfig(task="text-folder", folder=str(divided), validation_fraction=0.2)
    data = open_long_range(config)
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [48, 12, 1]
    assert data.split("test").targets.tolist() == [1]
    with pytest.raises(DataError, match=r"data.test_fraction: the folder has its own test documents"):
        open_long_range(LongRangeDataConfig(task="text-folder", folder=str(divided), test_fraction=0.2))
    (divided / "test" / "d").mkdir()
    (divided / "test" / "d" / "x.txt").write_text("d")
    with pytest.raises(DataError, match=r"test has the class 'd', which has no training documents"):
        open_long_range(config)
    (divided / "test" / "d" / "x.txt").rename(divided / "train" / "a" / "x.txt")
    (divided / "train" / "a" / "x.txt").write_text("")
    with pytest.raises(DataError, match=r"1 of the 62 documents in .* are empty, first .*x.txt; fill them"):
        open_long_range(config)
    (divided / "train" / "a" / "x.txt").unlink()
    (divided / "train" / "a" / "x.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"x.txt"):
        open_long_range(config)
    with pytest.raises(DataError, match=r"has 0 classes of documents; expected two folders or more"):
        open_long_range(LongRangeDataConfig(task="text-folder", folder=str(divided / "train" / "a")))
    with pytest.raises(DataError, match=r"no text-folder in .*: looked there for <class>/\*.txt"):
        open_long_range(LongRangeDataConfig(task="text-folder", folder=str(tmp_path / "nowhere")))


def documents(folder: Path, counts: dict[str, int]) -> str:
    for name, n in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(n):
            (folder / name / f"{i}.txt").write_text(f"{name}{i}")
    return str(folder)


def test_too_few_documents_to_hold_some_out(tmp_path: Path) -> None:
    one = LongRangeDataConfig(task="text-folder", folder=documents(tmp_path / "one", {"a": 1, "b": 1}))
    with pytest.raises(DataError, match=r"data.test_fraction=0.1 holds out nothing: .* or set data.test_fraction=0"):
        open_long_range(one)
    with pytest.raises(DataError, match=r"text-folder: there is no test split: data.test_fraction=0; set it above 0"):
        open_long_range(replace(one, test_fraction=0.0, validation_fraction=0.0)).split("test")
    rare = LongRangeDataConfig(task="text-folder", folder=documents(tmp_path / "rare", {"a": 9, "b": 9, "c": 1}))
    assert "note       test has no documents of 1 of the 3 classes, as of 'c'" in open_long_range(rare).describe()
    pairs = LongRangeDataConfig(task="retrieval-folder", folder=documents(tmp_path / "pairs", {"a": 10, "b": 10}))
    with pytest.raises(
        DataError, match=r"the 2 validation documents of \S+ make no pairs, .* or set data.n_validation"
    ):
        open_long_range(pairs)
    assert set(open_long_range(replace(pairs, n_validation=0, n_test=1)).splits) == {"train", "test"}


# ---- pairs


def test_pairs_of_documents(folder: Path) -> None:
    config = LongRangeDataConfig(task="retrieval-folder", folder=str(folder), n_train=100, max_length=30)
    data = open_long_range(config)
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [100, 6, 6]
    used: dict[str, set[int]] = {}
    for name in ("train", "validation", "test"):
        split = data.split(name)
        assert split.targets.sum() == len(split) // 2
        assert len({frozenset(pair) for pair in split.begins.tolist()}) == len(split)
        used[name] = set(split.begins.ravel().tolist())
        for i in range(len(split)):
            first, second = split.sequence(i)
            assert (first[0] == second[0]) == split.targets[i]  # a document begins with its class
    assert not used["train"] & used["test"]
    assert not used["train"] & used["validation"]
    with pytest.raises(DataError, match=r"data.n_test=200 needs 100 pairs of one class, but 6 documents make 3; ask"):
        open_long_range(LongRangeDataConfig(task="retrieval-folder", folder=str(folder), n_test=200))


def test_every_pair_is_as_likely_as_another() -> None:
    """Classes of 1, 2, 3 and 4 documents: 10 pairs of one class and 35 of two, each drawn by itself 4,000 times."""
    labels = np.array([3, 0, 1, 1, 2, 3, 2, 2, 3, 3])
    generator = np.random.default_rng(0)
    counts: Counter[tuple[int, ...]] = Counter()
    first = 0
    for _ in range(4000):
        pairs, same = draw_pairs(generator, labels, 2)
        for pair, is_same in zip(pairs.tolist(), same):
            assert (labels[pair[0]] == labels[pair[1]]) == is_same
            assert pair[0] != pair[1]
            counts[tuple(sorted(pair))] += 1
            first += pair[0] < pair[1]
    of_one = [n for pair, n in counts.items() if labels[pair[0]] == labels[pair[1]]]
    of_two = [n for pair, n in counts.items() if labels[pair[0]] != labels[pair[1]]]
    assert len(of_one) == 10
    assert len(of_two) == 35
    assert max(abs(n - 400) for n in of_one) < 100
    assert max(abs(n - 4000 / 35) for n in of_two) < 50
    assert abs(first - 4000) < 250
    pairs, same = draw_pairs(generator, labels, 20)  # all of one class that there are
    assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == 20
    assert same.sum() == 10
    assert len(draw_pairs(generator, np.array([0, 1]), None)[0]) == 0


def test_batches_of_pairs(folder: Path) -> None:
    data = open_long_range(LongRangeDataConfig(task="retrieval-folder", folder=str(folder), n_train=60))
    split = data.split("train")
    batches = LabelledBatches(split, 8, seed=0)
    assert batches.steps_per_epoch == 7
    for batch in [batches[0], *batches_in_order(split, 8, 20)]:
        n = len(batch.targets)
        assert batch.lengths is not None
        assert batch.inputs.dtype == torch.int64
        assert batch.inputs.shape == (2 * n, int(batch.lengths.max()))
        assert batch.lengths.shape == (2 * n,)
        same = batch.inputs[0::2, 0] == batch.inputs[1::2, 0]
        assert torch.equal(same.long(), batch.targets)
    assert torch.equal(batches[3].inputs, LabelledBatches(split, 8, seed=0)[3].inputs)


# ---- papers


def write_papers(folder: Path) -> dict[str, list[tuple[int, str, str]]]:
    """Three files of pairs among few texts, one of them longer than Python's csv takes by default."""
    generator = random.Random(2)
    texts = [text.replace("\t", " ").replace("\n", " ") for text in sentences(generator, 12)] + ["long " * 30_000]
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in ("train", "eval", "test"):
        own = texts if name != "train" else texts[:10]
        found[name] = [(generator.randint(0, 1), *generator.choices(own, k=2)) for _ in range(15)]
        lines = [f"{float(label)}\tP1\tP2\t{first}\t{second}\n" for label, first, second in found[name]]
        (folder / f"new_aan_pairs.{name}.tsv").write_text("".join(lines), "utf-8")
    return found


def test_papers_are_prepared_as_published(tmp_path: Path) -> None:
    found = write_papers(tmp_path / "tsv_data")
    data = open_long_range(LongRangeDataConfig(task="retrieval", folder=str(tmp_path), max_length=80))
    vocabulary = vocabulary_of([text[:79] for _, *texts in found["train"] for text in texts], 1)
    assert list(data.vocabulary) == vocabulary
    for name, own in (("train", "train"), ("validation", "eval"), ("test", "test")):
        split = data.split(name)
        pairs = []
        for i in range(15):
            both = split.sequence(i)
            pairs.append((int(split.targets[i]), *(decoded(data, row[:n]) for row, n in zip(both, split.lengths[i]))))
        expected = [(label, *(as_published(text, vocabulary, 80) for text in texts)) for label, *texts in found[own]]
        assert pairs == expected if name == "train" else sorted(pairs) == sorted(expected)
    assert len(np.unique(np.concatenate([split.begins.ravel() for split in data.splits.values()]))) <= 13


def test_papers_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    config = LongRangeDataConfig(task="retrieval", folder=str(tmp_path))
    with pytest.raises(DataError, match=r"no retrieval in .* for new_aan_pairs.train.tsv, .* set data.folder"):
        open_long_range(config)
    write_papers(tmp_path)
    path = tmp_path / "new_aan_pairs.eval.tsv"
    path.write_text("0.0\ta\tb\tc\td\n2.0\ta\tb\tc\td\n")
    with pytest.raises(DataError, match=r"eval.tsv, line 2 has 5 fields, the first \['2.0'\]; expected a label"):
        open_long_range(config)
    path.write_text("")
    with pytest.raises(DataError, match=r"eval.tsv is empty; expected a pair of papers on each line"):
        open_long_range(config)
    path.write_text("\ufeff1.0\ta\tb\tc\td\n", "utf-8")
    assert len(open_long_range(config).split("validation")) == 1
