"""FASTA: sequences as documents, in bytes and in bases."""

from __future__ import annotations

import gzip
import random
import warnings
from pathlib import Path

import pytest

from statewise.data import fasta, sources
from statewise.data.bases import BASES, BasesTokenizer
from statewise.data.recognise import recognise
from statewise.data.splits import SPLITS
from statewise.data.text import Corpus, TextDataConfig, open_corpus
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer
from statewise.errors import DataError
from statewise.generation.prompt import encode_prompt
from statewise.training.presets import run_on

pytestmark = pytest.mark.usefixtures("cache")


def opened(source: Path | str, **fields: object) -> Corpus:
    given = {"validation_fraction": 0.1, "test_fraction": 0.1, **fields}
    return open_corpus(TextDataConfig(source=str(source), **given))  # type: ignore[arg-type]


def letters(n: int, seed: int = 0, of: str = "ACGTacgtN") -> str:
    return "".join(random.Random(seed).choices(of, k=n))


def read_slowly(text: str) -> list[str]:
    """The definition: the lines below each ">", joined."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            found.append("")
        elif not line.startswith(";") and line.strip():
            found[-1] += "".join(line.split())
    return [sequence for sequence in found if sequence]


@pytest.mark.parametrize("buffer", [1, 7, 64, 1 << 20])
def test_sequences_are_what_stands_below_each_header(
    tmp_path: Path, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fasta, "BUFFER", buffer)
    draw = random.Random(buffer)
    for number in range(12):
        end, text = draw.choice(["\n", "\r\n"]), draw.choice(["", "; an old comment > with a mark\n", "\n \n"])
        for i in range(draw.randrange(1, 6)):
            text += f">{i} " + "a long name " * draw.randrange(4) + end
            for _ in range(draw.randrange(4)):
                text += letters(draw.randrange(1, 90), draw.randrange(99), "ACGTacgtN*-") + end
                text += draw.choice(["", "", end, "; between" + end])
        text += draw.choice([">last" + end + "AC", ">last" + end + "AC" + end])
        path = tmp_path / f"{number}.fa.gz"
        path.write_bytes(gzip.compress(text.encode()))
        corpus = opened(path, validation_fraction=0, test_fraction=0)
        found = corpus.split("train")
        assert found.text_bytes().decode() == "".join(read_slowly(text))
        assert found.document_bytes.tolist() == [len(one) for one in read_slowly(text)]
        assert "sequence 1" in fasta.FastaShelf(sources.as_document(path, path.name)).place(1)  # type: ignore[arg-type]


def test_a_genome_is_cut_in_three_in_order(tmp_path: Path) -> None:
    genome = letters(20_000, of="ACGT")
    (tmp_path / "one.fna").write_text(">chromosome\n" + "\n".join(genome[i : i + 70] for i in range(0, 20_000, 70)))
    for tokenizer, document_token in (("bytes", 256), ("bases", 0)):
        corpus = opened(tmp_path / "one.fna", tokenizer=tokenizer)
        parts = [corpus.split(name) for name in SPLITS]
        assert [part.n_bytes for part in parts] == [16_000, 2_000, 2_000]
        assert b"".join(part.text_bytes() for part in parts).decode() == genome
        assert all(part.tokens[0] == document_token and part.n_documents == 1 for part in parts)
        assert corpus.tokenizer.decode(parts[2].tokens) == genome[-2000:]


def test_bases_fold_the_case_and_bytes_keep_it(tmp_path: Path) -> None:
    (tmp_path / "one.fasta").write_text(">a\nACgtNNry\n>b\nttaa\n")
    whole = {"validation_fraction": 0, "test_fraction": 0}
    kept = opened(tmp_path / "one.fasta", **whole).split("train").tokens
    assert bytes(kept[kept < 256].astype("u1")) == b"ACgtNNryttaa"
    folded = opened(tmp_path / "one.fasta", tokenizer="bases", **whole)
    assert folded.split("train").tokens.tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 7, 0, 4, 4, 1, 1]
    assert folded.tokenizer.vocab_size == 16
    assert folded.split("train").n_bytes == 12


def test_only_bases_count_as_bytes_of_a_text_of_bases(tmp_path: Path) -> None:
    """Line ends and case have no token, so nothing that is measured by bytes may count them."""
    (tmp_path / "lines.txt").write_text("acgt\nACGT\r\n N N \n")
    (tmp_path / "tokenizer.json").write_text(BasesTokenizer().json)
    for tokenizer in ("bases", str(tmp_path / "tokenizer.json")):
        text = opened(tmp_path / "lines.txt", tokenizer=tokenizer, validation_fraction=0, test_fraction=0)
        split = text.split("train")
        assert split.n_bytes == split.n_tokens - 1 == 10
        assert split.text_bytes() == b"ACGTACGTNN"


def test_the_vocabulary_of_bases_is_a_tokenizer_json() -> None:
    bases = BasesTokenizer()
    text = letters(3000, of=BASES + BASES.lower() + "\n ")
    assert bases.encode_bytes(text.encode()).tolist() == bases.encode(text)
    assert bases.decode(bases.encode(text)) == "".join(text.split()).upper()
    again = FileTokenizer(bases.json, name="again")
    assert again.fingerprint == bases.fingerprint
    assert again.encode(text) == bases.encode(text)
    assert bases.encode("AxE") == [1, 5, 5]  # of a prompt
    with pytest.raises(DataError, match=r"'E' is not a base, one of ACGT.*data.tokenizer=\"bytes\""):
        bases.encode_bytes(b"ACE")


def test_a_letter_of_a_prompt_that_is_no_base_is_told() -> None:
    bases = BasesTokenizer()
    again = FileTokenizer(bases.json, name="of a checkpoint")
    assert (again.unknown_token, again.unknown_letters("ACEn L\nE")) == ("N", ["E", "L"])
    with pytest.warns(UserWarning, match="no token for the letters 'Ex' of the prompt, and reads each as 'N'"):
        ids, _ = encode_prompt(["ACE", b"aEx"], vocab_size=16, tokenizer=again)
    assert ids.tolist() == [[1, 2, 5], [1, 5, 5]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_prompt(BASES + BASES.lower() + " \n", vocab_size=16, tokenizer=again)
        encode_prompt("né\U0001f600", vocab_size=257, tokenizer=ByteTokenizer())


def test_wrong_files_are_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digit.fa").write_text(">a\nACG\nAC7T\n")
    with pytest.raises(DataError, match=r"digit.fa, line 3: '7' is not a letter of a sequence"):
        opened(tmp_path / "digit.fa")
    (tmp_path / "early.fa").write_text("; a comment\nACG\n>a\nACT\n")
    with pytest.raises(DataError, match=r'early.fa, line 2: letters before the first ">"'):
        opened(tmp_path / "early.fa")
    (tmp_path / "empty.fa").write_text(">a\n>b\n")
    with pytest.raises(DataError, match="no text is left, skipped 2 empty"):
        opened(tmp_path / "empty.fa")
    (tmp_path / "mac.fa").write_text(">a\rACGT\r>b\rACGT\r")
    with pytest.raises(DataError, match=r"mac.fa, line 1: its lines end in .r alone"):
        opened(tmp_path / "mac.fa")
    for letters, told in (("ACGU", "'U' is not a base, .*; in RNA write T"), ("AC-G", "leave gaps out")):
        (tmp_path / "other.fa").write_text(f">a\n{letters}\n" * 30)
        with pytest.raises(DataError, match=told):
            opened(tmp_path / "other.fa", tokenizer="bases")
    (tmp_path / "protein.faa").write_text(">a\nMKVLE\n" * 30)
    with pytest.raises(DataError, match="'L' is not a base"):
        opened(tmp_path / "protein.faa", tokenizer="bases")
    monkeypatch.setattr(sources, "GENOME", tmp_path / "none.fna.gz")
    with pytest.raises(DataError, match=r"apt install bowtie-examples; elsewhere give a FASTA file .*--data"):
        opened("e-coli")


def test_a_mark_before_the_first_header_is_no_letter(tmp_path: Path) -> None:
    (tmp_path / "marked.fa").write_text("\ufeff>a\nACGT\n", "utf-8")
    whole = opened(tmp_path / "marked.fa", tokenizer="bases", validation_fraction=0, test_fraction=0)
    assert whole.split("train").tokens.tolist() == [0, 1, 2, 3, 4]


def test_a_name_reads_the_file_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "there.fna.gz"
    path.write_bytes(gzip.compress(b">a\n" + letters(5000, of="ACGT").encode()))
    monkeypatch.setattr(sources, "GENOME", path)
    assert TextDataConfig(source="e-coli").with_absolute_paths().source == "e-coli"
    assert opened("e-coli", tokenizer="bases").source.n_bytes == 5000


def test_other_text_and_files_as_they_are_written_stay_text(tmp_path: Path) -> None:
    whole = {"validation_fraction": 0, "test_fraction": 0}
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "letter.txt").write_text("> a quotation\nwith an answer\n")
    assert opened(folder / "letter.txt", **whole).split("train").text_bytes().startswith(b"> a quotation\n")
    (folder / "one.fa").write_text(">a\nACGT\n")
    assert opened(folder / "one.fa", as_text=True, **whole).split("train").text_bytes() == b">a\nACGT\n"
    assert opened(folder, **whole).split("train").document_bytes.tolist() == [29, 4]


def test_the_general_preset_learns_no_words_of_it(tmp_path: Path) -> None:
    """Byte-pair encoding would take a chromosome for one word."""
    (tmp_path / "one.fna").write_text(">a\n" + letters(400_000, of="ACGT"))
    (tmp_path / "one.faa").write_text(">a\n" + letters(400_000, of="ACDEFGHIKL"))
    for name, tokenizer, size in (("one.fna", "bases", 16), ("one.faa", "bytes", 257)):
        run = run_on(None, recognise(tmp_path / name))
        assert (run.data.tokenizer, run.model.vocab_size) == (tokenizer, size)  # type: ignore[attr-defined]
