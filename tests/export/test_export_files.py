"""An exported file: compared with the model to the last step, there with all its weights or not at all, in no other's
place."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from exported_models import build
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

import statewise as sw
from statewise.errors import CheckpointError, NotFiniteError
from statewise.export import ExportedFile, export_file, export_onnx, onnx_file
from statewise.export import files as export_files
from statewise.export.comparison import largest_difference
from statewise.export.step import build_part

Step = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    torch.manual_seed(0)
    return build((sw.LinearAttentionConfig(n_heads=4),))


def own_step(model: sw.LanguageModel, at: int | None = None, value: float = 0.0) -> Step:
    """The model's, but that in step ``at`` one logit is ``value``."""
    structure, n_steps = tree_structure(model.initial_state(1)), iter(range(99))

    def step(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        tokens, *leaves = inputs
        logits, state = model(tokens[:, None], tree_unflatten(leaves, structure))
        if next(n_steps) == at:
            logits[0, 0, 7] = value
        return [logits[:, 0], *tree_leaves(state)]

    return step


def write(model: sw.LanguageModel, path: Path, step: Step | None = None) -> ExportedFile:
    """Stands for an exporter: a file, and weights beside it."""

    def save(hidden: Path) -> Step:
        hidden.write_bytes(b"step")
        hidden.with_name(hidden.name + ".data").write_bytes(b"weights")
        return own_step(model) if step is None else step

    return export_files._write(model, build_part(model, "step"), path, 1, save)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 9, 15])
def test_logits_that_are_not_finite(model: sw.LanguageModel, tmp_path: Path, at: int, value: float) -> None:
    """Of the exported step, in one of the steps."""
    with pytest.raises(
        CheckpointError, match=r"differ from the model's by (nan|inf) relative to the largest; nothing was"
    ) as told:
        write(model, tmp_path / "m.onnx", own_step(model, at, value))
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_the_models_own_logits_that_are_not_finite(tmp_path: Path) -> None:
    broken = build((sw.LinearAttentionConfig(n_heads=4),))
    with torch.no_grad():
        broken.norm.weight[3] = float("nan")
    with pytest.raises(NotFiniteError, match="the model's own logits are not finite") as told:
        export_file(broken, tmp_path / "m.pt2")
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("links", [True, False])
def test_both_files(model: sw.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Each on the disk before it has its name, and the weights have theirs first."""
    synced, named = set(), []
    fsync, link, replace = os.fsync, os.link, os.replace

    def watched(move: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def moved(file: Path, place: Path) -> None:
            assert file.stat().st_ino in synced
            named.append(place.name)
            move(file, place)

        return moved

    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.add(os.fstat(descriptor).st_ino), fsync(descriptor)))
    monkeypatch.setattr(os, "link", watched(link) if links else no_links)
    monkeypatch.setattr(os, "replace", watched(replace))
    file = write(model, tmp_path / "m.onnx")
    assert content(tmp_path) == {"m.onnx": b"step", "m.onnx.data": b"weights"}
    assert file.n_bytes == 11
    assert list(dict.fromkeys(named)) == ["m.onnx.data", "m.onnx"]


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("name", ["m.onnx", "m.onnx.data"])
def test_a_file_that_appeared_meanwhile_stays(
    model: sw.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, links: bool
) -> None:
    own = own_step(model)

    def step(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        (tmp_path / name).write_bytes(b"another's")
        return own(inputs)

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(CheckpointError, match=rf"{name} exists and is not overwritten"):
        write(model, tmp_path / "m.onnx", step)
    assert content(tmp_path) == {name: b"another's"}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("after", [False, True])
def test_stopped_between_the_names(
    model: sw.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, links: bool
) -> None:
    """When the weights have their name and the file has none yet, or just has it: then both stay."""
    name = "link" if links else "replace"
    move = getattr(os, name)

    def stopped(file: Path, place: Path) -> None:
        if place.name == "m.onnx" and not after:
            raise KeyboardInterrupt
        move(file, place)
        if place.name == "m.onnx":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, name, stopped)
    with pytest.raises(KeyboardInterrupt):
        write(model, tmp_path / "m.onnx")
    assert set(content(tmp_path)) == ({"m.onnx", "m.onnx.data"} if after else set())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_stopped_in_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """Of an ONNX file with large weights, which has them beside it by then; the next export is free to write."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason='needs pip install "statewise[onnx]"')
    import onnxruntime

    model = build((sw.LinearAttentionConfig(n_heads=4),))
    path = tmp_path / "m.onnx"
    monkeypatch.setattr(onnx_file, "ONE_FILE", 1000)
    with monkeypatch.context() as stopped:

        def run(*_: object) -> None:
            assert not path.exists()
            (hidden,) = tmp_path.iterdir()
            assert {file.name for file in hidden.iterdir()} == {"m.onnx", "m.onnx.data"}
            raise error

        stopped.setattr(onnxruntime.InferenceSession, "run", run)
        with pytest.raises(error):
            export_onnx(model, path)
    assert not list(tmp_path.iterdir())
    export_onnx(model, path)
    assert set(content(tmp_path)) == {"m.onnx", "m.onnx.data"}


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
@pytest.mark.parametrize("max_positions", [1, 5])
def test_few_positions(tmp_path: Path, ending: str, max_positions: int) -> None:
    if ending == "onnx":
        pytest.importorskip("onnxruntime", reason='needs pip install "statewise[onnx]"')
        pytest.importorskip("onnxscript", reason='needs pip install "statewise[onnx]"')
    model = build((sw.LinearAttentionConfig(n_heads=4),), max_positions=max_positions)
    file = export_file(model, tmp_path / f"m.{ending}")
    assert file.largest_difference < 1e-5
    assert file.path.exists()


def test_every_position_is_compared() -> None:
    """A step that is wrong at the last of few positions alone."""
    model = build((sw.LinearAttentionConfig(n_heads=4),), max_positions=5)
    for at, found in ((4, True), (5, False)):
        assert (largest_difference(model, build_part(model, "step"), own_step(model, at, 1e9)) > 1) == found
