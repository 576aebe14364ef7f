"""A GGUF model in several files is the model of the one file; what is missing or of another model is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_examples import build, in_parts, write

import statewise as sw
from statewise.checkpoints.convert.gguf_file import read_file
from statewise.checkpoints.convert.gguf_parts import beside, one_of_each, part_of
from statewise.checkpoints.convert.source import needed_files
from statewise.cli import run
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModel

TOKENS = torch.arange(12)[None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "model.gguf"
    return write(build("mamba"), path, type="Q8_0", tokenizer=ByteTokenizer())


@pytest.fixture(scope="module")
def kept(whole: Path) -> list[Path]:
    return in_parts(whole, 8)


@pytest.fixture
def parts(kept: list[Path], tmp_path: Path) -> list[Path]:
    """Three files, to be changed."""
    return [Path(shutil.copy(path, tmp_path)) for path in kept]


def logits(path: Path, **options: bool) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = sw.load(path, **options)(TOKENS)[0]  # type: ignore[arg-type]
    return found


def test_any_part_and_their_folder_are_the_model_of_one_file(whole: Path, kept: list[Path]) -> None:
    assert [path.name for path in kept] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    one, known = read_file(whole), logits(whole)
    for path in (*kept, kept[0].parent):
        assert torch.equal(logits(path), known)
        assert torch.equal(logits(path, keep_quantised=True), known)
    joined = read_file(kept[2])
    assert joined.tensors.keys() == one.tensors.keys()
    assert {key: joined.metadata[key] for key in one.metadata} == one.metadata
    assert joined.path == kept[0]


def test_the_commands_read_all_parts(
    whole: Path, kept: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for path in (whole, kept[1], kept[0].parent):
        assert run(["info", str(path), "--json"]) == 0
        said.append({**json.loads(capsys.readouterr().out), "checkpoint": None})
    assert said[0] == said[1] == said[2]
    assert said[0]["memory"]["kept"] > 0
    written = []
    for path in (whole, kept[0]):
        options = ["--prompt", "ab", "--max-new-tokens", "6", "--temperature", "0"]
        assert run(["generate", str(path), *options]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    assert run(["convert", str(kept[2]), str(tmp_path / "ours")]) == 0
    assert torch.equal(logits(tmp_path / "ours"), logits(whole))


def test_llama_cpp_reads_them_too(kept: list[Path]) -> None:
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    model = sw.load(kept[0])
    assert isinstance(model, LanguageModel)
    with torch.inference_mode():
        known = model(TOKENS)[0][0, -1].numpy()
    found = LlamaCpp.of_file(kept[0], 1, 48).read(TOKENS[0].tolist())
    assert np.abs(found - known).max() < 5e-2 * np.abs(known).max()


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("given", ["folder", 0, 2])
def test_a_missing_part_is_named(missing: int, given: str | int, parts: list[Path]) -> None:
    parts[missing].unlink()
    path = parts[0].parent if isinstance(given, str) else parts[given]
    if given == missing:
        path = parts[1]
    with pytest.raises(CheckpointError, match=rf"model-0000{missing + 1}-of-00003\.gguf is missing: .* 3 files"):
        sw.load(path)


def test_a_part_of_another_model_is_refused(parts: list[Path], tmp_path: Path) -> None:
    again = [Path(shutil.copy(path, tmp_path / f"kept{i}")) for i, path in enumerate(parts)]
    shutil.copy(again[2], parts[1])  # a part twice
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf is not a part of .*: split\.no=2, expected 1"):
        sw.load(parts[0])
    with pytest.raises(CheckpointError, match=r"is a part of a model, split\.no=2 .* which its name does not say"):
        sw.load(parts[1])
    shutil.copy(again[1], parts[1])
    larger = tmp_path / "larger" / "model.gguf"
    larger.parent.mkdir()
    other = in_parts(write(build("mamba", tied=False), larger, tokenizer=ByteTokenizer()), 8)
    assert len(other) == 3
    shutil.copy(other[1], parts[1])
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf is not a part of .*: split\.tensors\.count="):
        sw.load(tmp_path / parts[2].name)


def test_a_part_under_another_name_is_refused(parts: list[Path], tmp_path: Path) -> None:
    alone = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"renamed\.gguf is a part .* give all parts the names that they had"):
        sw.load(alone)


def test_a_folder_of_two_models_is_refused(parts: list[Path], whole: Path) -> None:
    shutil.copy(whole, parts[0].parent)
    with pytest.raises(CheckpointError, match=r"several models, model-00001-of-00003\.gguf, model\.gguf; give one"):
        sw.load(parts[0].parent)


def test_links_may_not_lead_to_parts_elsewhere(parts: list[Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    parts[1].rename(elsewhere / parts[1].name)
    parts[1].symlink_to(elsewhere / parts[1].name)
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in parts:
        path.rename(folder / path.name)
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf is a link that leads out of the folder"):
        sw.load(folder / parts[0].name)


def test_the_hub_is_asked_for_all_parts() -> None:
    names = ["README.md", "a-00002-of-00002.gguf", "a-00001-of-00002.gguf"]
    assert sorted(needed_files(names, "here")) == sorted(names[1:])
    names.append("b.gguf")
    assert sorted(needed_files(names, "here", "a-00002-of-00002.gguf")) == sorted(names[1:3])
    assert needed_files(names, "here", "b.gguf") == ["b.gguf"]


def test_names() -> None:
    part = part_of("x-00001-of-00010.gguf")
    assert part is not None
    assert part.name(10) == "x-00010-of-00010.gguf"
    for name in ("x.gguf", "x-1-of-2.gguf", "-00001-of-00002.gguf", "x-00001-of-00002.bin"):
        assert part_of(name) is None
        assert one_of_each([name]) == [name]
        assert beside(name, [name, "y-00001-of-00002.gguf"]) == []
    assert one_of_each(["x-00002-of-00002.gguf", "x-00001-of-00002.gguf", "x-00001-of-00003.gguf"]) == [
        "x-00001-of-00002.gguf",
        "x-00001-of-00003.gguf",
    ]
