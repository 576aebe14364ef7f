"""ListOps: its grammar, the drawn rows, and the official files."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from statewise.data.labelled_batches import LabelledBatches
from statewise.data.long_range import LongRangeData, LongRangeDataConfig, open_long_range
from statewise.data.long_range.listops import EOS, VOCABULARY, draw_expression, value_of
from statewise.data.long_range.listops_drawn import draw_expressions
from statewise.errors import ConfigError, DataError

PUBLISHED = {"min_length": 500, "max_length": 2000, "max_depth": 10, "max_args": 10}
SMALL = {"min_length": 10, "max_length": 60, "max_depth": 4, "max_args": 4}


def small(**changes: object) -> LongRangeDataConfig:
    fields = {**SMALL, "n_train": 300, "n_validation": 40, "n_test": 50, **changes}
    return LongRangeDataConfig(task="listops-gen", **fields)  # type: ignore[arg-type]


def rows_of(data: LongRangeData, name: str) -> list[tuple[int, ...]]:
    split = data.split(name)
    return [tuple(split.sequence(i).tolist()) for i in range(len(split))]


@pytest.mark.parametrize(
    ("tokens", "value"),
    [
        ("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]", 5),
        ("[MED 3 6 ]", 4),  # 4.5 rounded down
        ("[MED 9 0 5 ]", 5),
        ("[SM 9 9 5 ]", 3),
        ("[SM [SM 1 2 ] [MAX 0 9 ] ]", 2),
        ("7", 7),
    ],
)
def test_values(tokens: str, value: int) -> None:
    assert value_of(tokens.split()) == value


@pytest.mark.parametrize("tokens", ["[MAX 1 2", "1 2", "]", "[MAX ]", "[AVG 1 2 ]", "12", ""])
def test_what_is_no_list_of_operations(tokens: str) -> None:
    with pytest.raises(DataError, match="list of operations"):
        value_of(tokens.split())


@pytest.mark.parametrize("limits", [PUBLISHED, SMALL, {**SMALL, "max_depth": 2, "max_args": 12}])
def test_drawn_expressions_are_in_the_grammar_and_have_their_values(limits: dict[str, int]) -> None:
    found = draw_expressions(np.random.default_rng(0), 300, **limits)
    assert len(found.lengths) > 20
    assert found.lengths.sum() == len(found.tokens)
    ends = np.cumsum(found.lengths)
    most_args = deepest = 0
    for begin, end, value in zip(ends - found.lengths, ends, found.values):
        tokens = [VOCABULARY[token] for token in found.tokens[begin:end]]
        assert limits["min_length"] < len(tokens) < limits["max_length"]
        assert value_of(tokens) == value
        counts: list[int] = []
        for token in tokens:
            if token == "]":
                most_args = max(most_args, counts.pop())
                continue
            if counts:
                counts[-1] += 1
            if token.startswith("["):
                counts.append(0)
            deepest = max(deepest, len(counts) + (not token.startswith("[")))
    assert most_args == limits["max_args"]
    assert deepest == limits["max_depth"]


def test_drawn_expressions_have_the_distribution_of_the_grammar() -> None:
    """Lengths, values and shares of the tokens beside those of the recursive definition."""
    generator = random.Random(3)
    defined = [draw_expression(generator, 5, 6) for _ in range(12_000)]
    defined = [tokens for tokens in defined if len(tokens) > 1]
    found = draw_expressions(
        np.random.default_rng(1), 4 * len(defined), min_length=1, max_length=1 << 40, max_depth=5, max_args=6
    )
    assert ks_2samp([len(tokens) for tokens in defined], found.lengths).pvalue > 0.01
    assert ks_2samp([value_of(tokens) for tokens in defined], found.values).pvalue > 0.01
    counts = np.bincount(found.tokens, minlength=len(VOCABULARY)) / len(found.tokens)
    total = sum(map(len, defined))
    for i, token in enumerate(VOCABULARY):
        assert abs(sum(tokens.count(token) for tokens in defined) / total - counts[i]) < 0.006, token


def test_rows_without_duplicates_and_with_an_end() -> None:
    data = open_long_range(small())
    rows = {name: rows_of(data, name) for name in ("train", "validation", "test")}
    assert {name: len(found) for name, found in rows.items()} == {"train": 300, "validation": 40, "test": 50}
    together = [row for found in rows.values() for row in found]
    assert len(set(together)) == len(together)
    assert all(row[-1] == EOS and row.count(EOS) == 1 for row in together)
    for name, found in rows.items():
        values = [value_of([VOCABULARY[token] for token in row[:-1]]) for row in found]
        assert values == data.split(name).targets.tolist()
    assert (data.vocab_size, len(data.classes), data.d_input, data.is_pairs) == (18, 10, None, False)


def test_held_out_rows_do_not_hang_on_the_others(tmp_path: Path) -> None:
    first, more = open_long_range(small()), open_long_range(small(n_train=500))
    for name in ("validation", "test"):
        assert rows_of(first, name) == rows_of(more, name)
    other = open_long_range(small(seed=1))
    assert not set(rows_of(first, "test")) & set(rows_of(other, "test"))
    assert len({data.fingerprint for data in (first, more, other)}) == 3
    assert open_long_range(small()).fingerprint == first.fingerprint


def test_no_duplicates_where_the_grammar_is_small() -> None:
    """Two digits under one of four operators: 400 lists."""
    tiny = {"min_length": 1, "max_length": 5, "max_depth": 2, "max_args": 2}
    data = open_long_range(small(**tiny, n_train=300, n_validation=0, n_test=100))
    assert len({*rows_of(data, "train"), *rows_of(data, "test")}) == 400
    with pytest.raises(DataError, match=r"only 400 different lists with min_length=1, .* ask for fewer rows"):
        open_long_range(small(**tiny, n_train=301, n_validation=0, n_test=100))
    with pytest.raises(DataError, match="there is no validation split"):
        data.split("validation")


def test_limits_that_no_list_meets() -> None:
    with pytest.raises(DataError, match=r"drew no list with .*max_args=300: nearly all .*; set max_length higher, or"):
        open_long_range(small(max_args=300, min_length=55))


def test_rows_are_made_once(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    config = small(folder=str(tmp_path), n_train=1000)
    data = open_long_range(config, progress=lambda *at: told.append(at))
    assert told == [(500, 1090), (1000, 1090)]
    (folder,) = (tmp_path / "long-range-rows").iterdir()
    assert isinstance(data.split("train").values, np.memmap)
    assert folder.name.startswith("listops-gen-")
    again = open_long_range(config, progress=lambda *at: pytest.fail("made again"))
    assert again.fingerprint == data.fingerprint
    values = folder / "values.bin"
    values.write_bytes(values.read_bytes()[:-1])  # damaged
    assert open_long_range(config).fingerprint == data.fingerprint
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(DataError, match=r"cannot write the rows in \S+: .*; set data.folder to a folder with room"):
        open_long_range(small(folder=str(blocked)))


def test_batches_of_like_lengths() -> None:
    batches = LabelledBatches(open_long_range(small()).split("train"), 16, seed=0)
    for step in range(batches.steps_per_epoch):
        inputs, _, lengths = batches[step]
        for row, length in zip(inputs, [inputs.shape[1]] * 16 if lengths is None else lengths.tolist()):
            assert row[length - 1] == EOS
            assert not row[length:].any()
            assert (row[:length] > 0).all()


# ---- the official files


def write_files(folder: Path, n: int = 30) -> list[tuple[str, int]]:
    """As the published generator writes them: every argument adds a pair of parentheses."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    rows = []
    for name in ("train", "val", "test"):
        with open(folder / f"basic_{name}.tsv", "w", newline="") as file:
            writer = csv.writer(file, delimiter="\t")
            writer.writerow(["Source", "Target"])
            for _ in range(n):
                tokens = draw_expression(generator, 5, 5)
                rows.append((" ".join(tokens), value_of(tokens)))
                opened = " ".join(f"( {token} )" if token.isdecimal() else token for token in tokens)
                writer.writerow([f"( {opened} )", value_of(tokens)])
    return rows


@pytest.mark.parametrize("below", ["", "listops-1000", "lra_release/lra_release/listops-1000"])
def test_official_files(tmp_path: Path, below: str) -> None:
    rows = write_files(tmp_path / below)
    data = open_long_range(LongRangeDataConfig(task="listops", folder=str(tmp_path), max_length=40))
    expected = [([*(VOCABULARY.index(t) for t in source.split()[:39]), EOS], value) for source, value in rows]
    assert max(len(tokens) for tokens, _ in expected) == 40  # some are cut
    for k, name in enumerate(("train", "validation", "test")):
        split = data.split(name)
        found = [(split.sequence(i).tolist(), int(split.targets[i])) for i in range(len(split))]
        own = expected[30 * k : 30 * k + 30]
        assert found == own if name == "train" else sorted(found) == sorted(own)
    assert "these are not the published rows, which are 96,000, 2,000, 2,000" in data.describe()


def test_official_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    config = LongRangeDataConfig(task="listops", folder=str(tmp_path))
    with pytest.raises(DataError, match=r"no listops in .* for basic_train.tsv, .*; they come from lra_release.gz of"):
        open_long_range(config)
    with pytest.raises(DataError, match=r"the task 'listops' reads basic_train.tsv, .* set data.folder"):
        open_long_range(LongRangeDataConfig(task="listops"))
    write_files(tmp_path, 2)
    path = tmp_path / "basic_val.tsv"
    for text, message in (
        ("Target\tSource\n", "does not begin with the columns Source and Target"),
        ("Source\tTarget\n1\n", "line 2 has 1 fields"),
        ("Source\tTarget\n", "basic_val.tsv has no rows below its header"),
        ("Source\tTarget\n1\t1\n( )\t1\n", "basic_val.tsv, line 3: Source is empty"),
        ("Source\tTarget\n[MAX 1 <pad> ]\t1\n", "line 2: '<pad>' is not a token"),
        ("Source\tTarget\n1\t1\n[AVG 1 2 ]\t1\n", "line 3: '.AVG' is not a token"),
        ("Source\tTarget\n1\t11\n", "line 2: the target is '11'; expected a digit"),
        (b"Source\tTarget\n\xff\t1\n", "cannot read"),
    ):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(DataError, match=message):
            open_long_range(config)
    path.write_text("\ufeffSource\tTarget\n1\t1\n", "utf-8")
    assert len(open_long_range(config).split("validation")) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "list-ops"}, "task='list-ops' is unknown; did you mean 'listops'"),
        ({"task": "image", "max_length": 5}, "max_length is not for the task 'image'"),
        ({"task": "listops", "n_train": 5}, "n_train is not for the task 'listops'"),
        ({"n_train": 0}, "n_train=0 is out of range; expected an integer of at least 1"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"min_length": 1999}, "min_length=1999 and max_length=2000 leave no length between them"),
        ({"task": "text-folder", "test_fraction": 1.0}, "test_fraction=1.0 is out of range"),
    ],
)
def test_configs_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LongRangeDataConfig(**fields)  # type: ignore[arg-type]
