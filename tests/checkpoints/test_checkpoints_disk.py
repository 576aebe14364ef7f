"""A disk that is full, or a place that cannot be written: a checkpoint is whole or is not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from checkpoint_examples import TINY, WIDE, refusal, same_tensors, tiny_model
from crashed import in_child
from disks import small_disk  # noqa: F401

import statewise as sw
from statewise import checkpoints
from statewise.files import disk


@pytest.mark.parametrize("limit", [0, 100, 3_000, 60_000, 300_000])
def test_a_file_that_may_not_grow_further(tmp_path: Path, limit: int) -> None:
    """RLIMIT_FSIZE is a disk that is full after so many bytes; it holds for a process, so it is set in one."""
    resource = pytest.importorskip("resource")
    sw.save(tiny_model(0, WIDE), tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_bytes()
    reader, writer = os.pipe()

    def save_both() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for folder, overwrite in ((tmp_path / "model", True), (tmp_path / "new" / "model", False)):
            said = refusal(sw.save, tiny_model(1, WIDE), folder, overwrite=overwrite)
            os.write(writer, f"{said}\n".encode())

    child = in_child(save_both)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reader) as file:
        messages = file.read().splitlines()
    assert len(messages) == 2
    for message, name in zip(messages, ("model", "new/model"), strict=True):
        assert f"cannot save {tmp_path / name}: File too large; it needs 6" in message
        assert "are free there. Nothing was changed; make room, or save elsewhere" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "new"]
    assert list((tmp_path / "new").iterdir()) == []
    assert (tmp_path / "model" / "config.json").read_bytes() == before
    assert same_tensors(dict(sw.load(tmp_path / "model").state_dict()), dict(tiny_model(0, WIDE).state_dict()))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_disk_that_says_so_only_when_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, at: int
) -> None:
    sw.save(tiny_model(0), tmp_path / "model")
    calls = iter(range(1, 100))

    def full(descriptor: int) -> None:
        if next(calls) >= at:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    said = refusal(sw.save, tiny_model(1), tmp_path / "model", overwrite=True)
    assert os.strerror(number) in said
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    sw.load(tmp_path / "model")


def test_a_name_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last rename the new checkpoint is there, and the message may not say that it is not."""
    sync = disk.sync

    def failing(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)

    monkeypatch.setattr(disk, "sync", failing)
    said = refusal(sw.save, tiny_model(), tmp_path / "model")
    assert said.startswith(f"{tmp_path / 'model'} is written, but may not outlive a power failure: Input/output error")
    sw.load(tmp_path / "model")


def test_a_disk_that_is_full(small_disk: Path) -> None:  # noqa: F811
    folder = sw.save(tiny_model(0, WIDE), small_disk / "model")
    for target, overwrite in ((folder, True), (small_disk / "new", False)):
        said = refusal(sw.save, tiny_model(1, WIDE), target, overwrite=overwrite)
        assert f"cannot save {target}: No space left on device; it needs 6" in said
    assert [path.name for path in small_disk.iterdir()] == ["model"]
    assert same_tensors(dict(sw.load(folder).state_dict()), dict(tiny_model(0, WIDE).state_dict()))
    sw.save(tiny_model(), small_disk / "small")
    model = tiny_model(0, TINY)
    state = model.initial_state(20_000)
    said = refusal(checkpoints.save_state, state, small_disk / "state", model=model)
    assert "No space left on device" in said
    assert sorted(path.name for path in small_disk.iterdir()) == ["model", "small"]


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refusal(sw.save, tiny_model(), tmp_path / "file" / "a" / "b")
    assert said == f"cannot save {tmp_path / 'file' / 'a' / 'b'}: Not a directory; nothing was changed"
    assert "File name too long" in refusal(sw.save, tiny_model(), tmp_path / ("a" * 250))
