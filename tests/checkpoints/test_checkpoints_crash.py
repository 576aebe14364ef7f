"""Whatever happens while a checkpoint is written, a complete one is there: kills, full disks, other writers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from checkpoint_examples import WIDE, refusal, same_tensors, tiny_model
from crashed import in_child
from disks import small_disk  # noqa: F401

import statewise as sw
from statewise import checkpoints
from statewise.checkpoints import atomic
from statewise.checkpoints.atomic import MACHINE
from statewise.checkpoints.convert import source
from statewise.errors import CheckpointError
from statewise.files import disk


def fill(model: sw.LanguageModel, value: float) -> sw.LanguageModel:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def require_whole(folder: Path) -> int:
    """Loads a checkpoint, whose tensors all have to be of one step; the step."""
    values = {value for tensor in sw.load(folder).state_dict().values() for value in tensor.unique().tolist()}
    tensors, data = checkpoints.read_trainer(folder)
    assert values | set(tensors["moments"].tolist()) == {data["step"]}
    return int(data["step"])


@pytest.mark.parametrize("kind", ["overwrite", "run"])
def test_kill_at_random_moments(tmp_path: Path, kind: str) -> None:
    """A process killed with -9 in a loop of saves, ten times, each going on where the one before was killed."""
    place = tmp_path / kind
    if kind == "run":
        (place / "checkpoints").mkdir(parents=True)
        (place / "run.json").write_text("{}")
    model, choose, step, n_unfinished = tiny_model(0, WIDE), random.Random(0), 0, 0
    for _ in range(10):
        reader, writer = os.pipe()

        def save_on(step: int = step, writer: int = writer) -> None:
            for n in range(step + 1, step + 10_000):
                trainer = ({"moments": torch.full((9,), float(n))}, {"step": n})
                folder = place if kind == "overwrite" else place / "checkpoints" / f"step-{n:08d}"
                sw.save(fill(model, n), folder, overwrite=kind == "overwrite", trainer=trainer)
                os.write(writer, b".")

        child = in_child(save_on)
        os.close(writer)
        assert os.read(reader, 1) == b"."  # the first save of this process
        time.sleep(choose.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        n_saved = 1 + len(os.read(reader, 10_000))
        os.close(reader)
        parent = tmp_path if kind == "overwrite" else place / "checkpoints"
        n_unfinished += any(path.name.startswith(".") for path in parent.iterdir())
        if kind == "run":
            found = checkpoints.list_checkpoints(place)
            now = require_whole(found[-1].path)
            assert [checkpoint.step for checkpoint in found][-n_saved:] == list(range(now - n_saved + 1, now + 1))
            checkpoints.clean_unfinished(place)
            checkpoints.prune(place, keep_last=2)
            assert len(list(parent.iterdir())) <= 2
        else:
            now = require_whole(checkpoints.resolve(place))
        assert now - step in (n_saved, n_saved + 1), "what was saved is there; a save that was cut off may be"
        step = now
    assert n_unfinished > 0, "no kill came while something was being written"


def each_moment(monkeypatch: pytest.MonkeyPatch, save: Callable[[], object]) -> Iterator[int]:
    """Runs ``save`` again and again; the n-th time every call that changes a name or syncs raises from the n-th on."""

    class Killed(BaseException):
        pass

    n = 0
    while True:
        n += 1
        left = n

        def dying(call: Callable[..., object]) -> Callable[..., object]:
            def wrapper(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left <= 0:  # and stays dead, also for what cleans up
                    raise Killed
                return call(*arguments, **options)

            return wrapper

        with monkeypatch.context() as patch:
            for module, name in ((os, "fsync"), (os, "rename"), (os, "mkdir"), (shutil, "rmtree")):
                patch.setattr(module, name, dying(getattr(module, name)))
            try:
                save()
            except Killed:
                pass
            else:
                return
        yield n


def test_death_at_each_step_of_replacing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the two renames, which a kill seldom meets: the old one or the new one is found, whole."""
    folder, new = tmp_path / "model", fill(tiny_model(), 2.0)
    data = ({"moments": torch.full((9,), 2.0)}, {"step": 2})
    seen = set()
    before = ({"moments": torch.full((9,), 1.0)}, {"step": 1})
    sw.save(fill(tiny_model(), 1.0), folder, trainer=before)
    for _ in each_moment(monkeypatch, lambda: sw.save(new, folder, overwrite=True, trainer=data)):
        step = require_whole(folder)
        assert step == require_whole(checkpoints.resolve(folder))
        hidden = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
        seen.add((step, folder.exists(), len(hidden)))
        assert "exists already" in refusal(sw.save, new, folder), "it is protected, wherever it is"
        checkpoints.clean_unfinished(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert require_whole(folder) == step
        sw.save(fill(tiny_model(), 1.0), folder, trainer=before, overwrite=True)
    assert (1, False, 2) in seen, "no death between the renames"
    assert (1, True, 1) in seen
    assert (2, True, 1) in seen


def test_what_the_dead_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead = int(child.stdout)
    sw.save(tiny_model(0), tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / f".model.replaced-{dead}-00000000")
    (tmp_path / f".model.writing-{dead}-00000001").mkdir()
    (tmp_path / f".model.writing-{MACHINE}-{dead}-00000004").mkdir()
    another = f".model.writing-{'0' * 8}-{dead}-00000005"  # of a machine that shares the disk, where it may live
    alive = f".model.writing-{MACHINE}-{os.getppid()}-00000006"
    kept = (f".model.writing-{os.getppid()}-00000002", f".other.writing-{dead}-00000003", ".model.writing", ".git")
    kept += (another, alive)
    for name in kept:
        (tmp_path / name).mkdir()
    assert same_tensors(dict(sw.load(tmp_path / "model").state_dict()), dict(tiny_model(0).state_dict()))
    sw.save(tiny_model(1), tmp_path / "model", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["model", *kept])
    assert same_tensors(dict(sw.load(tmp_path / "model").state_dict()), dict(tiny_model(1).state_dict()))


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sw.save(tiny_model(0), tmp_path / "model")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sw.save(tiny_model(1), tmp_path / "model", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert same_tensors(dict(sw.load(tmp_path / "model").state_dict()), dict(tiny_model(0).state_dict()))


def test_of_many_writers_one_wins(tmp_path: Path) -> None:
    results: list[object] = []
    barrier = threading.Barrier(8)

    def write(value: int) -> None:
        model = fill(tiny_model(), value)
        barrier.wait()
        try:
            sw.save(model, tmp_path / "model", trainer=({"moments": torch.full((9,), value * 1.0)}, {"step": value}))
            results.append(value)
        except CheckpointError as error:
            results.append(str(error))

    threads = [threading.Thread(target=write, args=(value,)) for value in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = (result for result in results if isinstance(result, int))
    assert require_whole(tmp_path / "model") == winner
    assert sum("exists already" in str(result) for result in results) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_writers_and_a_reader_of_one_folder(tmp_path: Path) -> None:
    """Two processes that overwrite it all the time, and a reader who always finds it whole."""
    folder = tmp_path / "model"
    model = fill(tiny_model(), 1.0)
    sw.save(model, folder, trainer=({"moments": torch.full((9,), 1.0)}, {"step": 1}))
    writers = []
    for number in (1000, 2000):

        def overwrite(number: int = number) -> None:
            for n in range(number, number + 40):
                data = ({"moments": torch.full((9,), float(n))}, {"step": n})
                sw.save(fill(model, n), folder, overwrite=True, trainer=data)

        writers.append(in_child(overwrite))
    seen, running = set(), set(writers)
    while running:
        found = sw.load(folder)
        assert len({value for tensor in found.state_dict().values() for value in tensor.unique().tolist()}) == 1
        seen.add(checkpoints.read_trainer(folder)[1]["step"])
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0, "a writer failed"
                running.discard(child)
    assert len(seen) > 3
    assert require_whole(folder) in (1039, 2039)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_replaced_while_it_is_asked_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its weights and its config a writer takes it away, and puts another in its place soon after."""
    folder, other, old = tmp_path / "model", tmp_path / "other", tmp_path / "old"
    for place, value in ((folder, 1.0), (other, 2.0)):
        sw.save(fill(tiny_model(), value), place)
    look, looks = source._weights_in, []

    def look_and_move(path: Path) -> bool:
        found = look(path)
        looks.append(found)
        if len(looks) == 1:
            folder.rename(old)
            other.rename(other.with_name("next"))
        return found

    def put(path: Path) -> tuple[int, int, int] | None:
        there = atomic.identity(path)
        if there is None:
            other.with_name("next").rename(folder)
        return there

    monkeypatch.setattr(source, "_weights_in", look_and_move)
    monkeypatch.setattr(source, "identity", put)
    assert {value for tensor in sw.load(folder).state_dict().values() for value in tensor.unique().tolist()} == {2.0}
    assert looks == [True, True]
