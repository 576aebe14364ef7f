"""Which checkpoints a run has, which is the best, and which are deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from checkpoint_examples import TINY, refusal, tiny_model

import statewise as sw
from statewise.checkpoints import Manifest, clean_unfinished, list_checkpoints, prune, resolve, run_folder
from statewise.errors import InputError

MODEL = tiny_model(config=TINY)


def make_run(folder: Path, losses: dict[int, float | None]) -> Path:
    """A run with a checkpoint for each step and its validation loss."""
    for step, loss in losses.items():
        data = {"step": step, "validation_bits_per_byte": loss}
        sw.save(MODEL, folder / "checkpoints" / f"step-{step:08d}", trainer=({}, data))
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text("{}")
    return folder


def steps(run: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(run)]


def test_the_checkpoints_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {10: 2.0, 2: None, 100_000_000: 1.5})
    assert [(c.step, c.validation) for c in list_checkpoints(run)] == [
        (2, None),
        (10, 2.0),
        (100_000_000, 1.5),
    ]
    (run / "checkpoints" / ".step-00000011").mkdir()
    (run / "checkpoints" / ".step-00000012.writing-1-00000000").mkdir()
    (run / "checkpoints" / "notes.txt").write_text("mine")
    assert steps(run) == [2, 10, 100_000_000]


@pytest.mark.parametrize(
    ("losses", "best", "latest"),
    [
        ({1: 2.0, 2: 1.0, 3: 1.5}, 2, 3),
        ({1: 2.0, 2: 1.0, 3: None}, 2, 3),
        ({1: 1.0, 2: 1.0, 3: 1.5}, 1, 3),
        ({1: None, 2: None}, 2, 2),
        ({5: 3.0}, 5, 5),
        ({1: 1, 2: 2}, 1, 2),
    ],
)
def test_best_and_latest(tmp_path: Path, losses: dict[int, float | None], best: int, latest: int) -> None:
    run = make_run(tmp_path / "run", losses)
    assert resolve(run) == resolve(run, "best") == run / "checkpoints" / f"step-{best:08d}"
    assert resolve(run, "latest") == run / "checkpoints" / f"step-{latest:08d}"
    assert resolve(resolve(run, "latest"), "best") == resolve(run, "latest"), "a checkpoint is itself"
    sw.load(resolve(run))


def test_what_cannot_be_resolved(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {})
    assert refusal(resolve, run) == f"the run {run} has no checkpoint yet"
    assert "no such folder" in refusal(resolve, tmp_path / "nothing")
    assert "is not a checkpoint" in refusal(resolve, tmp_path)
    assert refusal(resolve, tmp_path / "x.gguf").endswith("no such file")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    assert refusal(resolve, tmp_path / "runs").endswith(f"there are models inside: give {tmp_path / 'runs' / 'mine'}")
    assert refusal(resolve, tmp_path / "runs" / "mind").endswith(f"did you mean {tmp_path / 'runs' / 'mine'}?")
    assert "is not a run folder" in refusal(list_checkpoints, tmp_path)
    with pytest.raises(InputError, match='which=\'worst\' is unknown; use "best" or "latest"'):
        resolve(run, "worst")


def test_a_damaged_checkpoint_is_not_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {1: 2.0, 2: 1.0, 3: 3.0})
    damaged = run / "checkpoints" / "step-00000002"
    state = damaged / "trainer" / "state.json"
    state.write_text(state.read_text().replace("1.0", "9.0"))
    for call in (resolve, list_checkpoints):
        said = refusal(call, run)
        assert str(state) in said
        assert "Remove that checkpoint, or, if you do not want to continue the run, name the one to use" in said
    assert [path.name for path in prune(run, 1)] == []
    assert damaged.exists(), "nor deleted in silence"
    assert resolve(run / "checkpoints" / "step-00000003").name == "step-00000003"


def test_a_checkpoint_that_a_run_deletes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", {1: 1.0, 2: 2.0, 3: 3.0})
    read = run_folder.read_manifest

    def slow(path: Path) -> Manifest:
        if path.name == "step-00000001":
            shutil.rmtree(path)
        return read(path)

    monkeypatch.setattr(run_folder, "read_manifest", slow)
    assert resolve(run).name == "step-00000002"


def test_data_that_has_no_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {1: 2.0})
    for number, data in enumerate(({}, {"step": "1"}, {"step": 1, "validation_bits_per_byte": "low"})):
        sw.save(MODEL, run / "checkpoints" / f"step-{number}", trainer=({}, data))
        assert "has no step, or its validation_bits_per_byte is not a number" in refusal(list_checkpoints, run)
        assert prune(run, 1) == []
        (run / "checkpoints" / f"step-{number}").rename(tmp_path / f"aside-{number}")
    sw.save(MODEL, run / "checkpoints" / "step-9")
    assert "without a trainer's state" in refusal(list_checkpoints, run)


LOSSES: dict[int, float | None] = {1: 3.0, 2: 1.0, 3: None, 4: 2.0, 5: 2.5}


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [
        (1, True, [2, 5]),
        (1, False, [5]),
        (0, False, [5]),
        (2, True, [2, 4, 5]),
        (4, True, [2, 3, 4, 5]),
        (9, True, [1, 2, 3, 4, 5]),
    ],
)
def test_prune(tmp_path: Path, keep_last: int, keep_best: bool, kept: list[int]) -> None:
    run = make_run(tmp_path / "run", LOSSES)
    removed = prune(run, keep_last, keep_best)
    assert steps(run) == kept
    assert [path.name for path in removed] == [f"step-{step:08d}" for step in LOSSES if step not in kept]
    assert len(list((run / "checkpoints").iterdir())) == len(kept), "and nothing hidden is left"
    assert prune(run, keep_last, keep_best) == []


def test_prune_without_any_loss_keeps_the_last(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", dict.fromkeys((1, 2, 3)))
    prune(run, 1)
    assert steps(run) == [3]
    assert prune(make_run(tmp_path / "empty", {}), 1) == []


def test_unfinished_writes_are_cleaned_by_the_owner(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {1: 2.0, 2: 3.0})
    inside = run / "checkpoints"
    for name in (".step-00000003.writing-1-00000000", ".step-00000001.removed-1-0123abcd"):
        (inside / name).mkdir()
        (inside / name / "model.safetensors").write_bytes(b"half")
    (inside / "step-00000002").rename(inside / ".step-00000002.replaced-1-ffffffff")
    (run / ".run.json.writing-7-00000000").mkdir()
    (run / ".lock").write_text("")
    removed = clean_unfinished(run)
    assert sorted(path.name for path in removed) == [
        ".run.json.writing-7-00000000",
        ".step-00000001.removed-1-0123abcd",
        ".step-00000003.writing-1-00000000",
    ]
    assert steps(run) == [1, 2], "what was about to be replaced is back"
    assert (run / ".lock").exists()
    assert json.loads((run / "run.json").read_text()) == {}
    assert clean_unfinished(tmp_path / "nothing") == []
