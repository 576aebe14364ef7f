"""What cannot be resumed is refused by name; what may change may change."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_runs import (
    GROUP_OF,
    Recorder,
    small_model,
    small_run,
    train_config,
    train_path,
    train_setting,
    with_train,
)

from statewise import checkpoints
from statewise.checkpoints.manifest import TRAINER_DATA, encode_json, read_manifest, record_file
from statewise.errors import CheckpointError, ConfigError, DataError
from statewise.training import RunConfig, train_run
from statewise.training.config import CHANGEABLE_ON_RESUME
from statewise.training.run_folder import open_run, read_run


# What is refused
def begun(tmp_path: Path, **train_fields: Any) -> tuple[RunConfig, Path]:
    config = small_run(tmp_path, steps=2, **train_fields)
    train_run(config, tmp_path / "run")
    return config, tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    before = contents(run)
    with pytest.raises(CheckpointError, match=r"already holds a run.*--resume"):
        train_run(config, run)
    assert contents(run) == before


def test_a_folder_that_is_not_a_runs_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("x")
    for resume in (False, True):
        with pytest.raises(CheckpointError, match=r"chapter\.tex"):
            train_run(small_run(tmp_path), folder, resume=resume)
    assert contents(folder) == {"chapter.tex": b"x"}
    with pytest.raises(CheckpointError, match="is a file"):
        train_run(small_run(tmp_path), folder / "chapter.tex")


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no run at .* to resume"):
        train_run(small_run(tmp_path), tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="start it again"):
        train_run(None, tmp_path / "empty", resume=True)
    assert train_run(small_run(tmp_path, steps=1), tmp_path / "empty", resume=True).step == 1


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    with open_run(run, None, resume=True), pytest.raises(CheckpointError, match="another process"):
        train_run(config, run, resume=True)
    assert train_run(config, run, resume=True).step == 2


def test_unfinished_writes_are_cleared_away(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    (run / "checkpoints" / ".step-00000003.writing-1-0123abcd").mkdir()
    (run / "checkpoints" / ".step-00000003.writing-1-0123abcd" / "model.safetensors").write_bytes(b"half")
    train_run(config, run, resume=True)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000002"]


@pytest.mark.parametrize(
    ("field", "value"), [("lr", 0.5), ("batch_size", 3), ("seed", 1), ("kind", "wsd"), ("precision", "bfloat16")]
)
def test_another_configuration_is_refused_by_field(tmp_path: Path, field: str, value: Any) -> None:
    config, run = begun(tmp_path)
    other = with_train(config, **{field: value})
    before = contents(run)
    with pytest.raises(ConfigError, match=re.escape(train_path(field))) as caught:
        train_run(other, run, resume=True)
    assert repr(value) in str(caught.value)
    assert contents(run) == before


def test_another_model_or_text_is_refused_by_field(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.layers\.2"):
        train_run(
            replace(config, model=small_model(layers=config.model.layers + config.model.layers[:1])), run, resume=True
        )
    with pytest.raises(ConfigError, match=r"data\.validation_fraction"):
        train_run(replace(config, data=replace(config.data, validation_fraction=0.2)), run, resume=True)


def test_what_may_change_may_change(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "steps": 4,
        "minutes": 10.0,
        "epochs": 100.0,
        "evaluate_every": 2,
        "evaluate_minutes": 1.0,
        "save_every": 1,
        "save_minutes": 1.0,
        "keep_last": 1,
        "keep_best": False,
        "log_every": 2,
        "device": "cpu",
        "threads": 1,
        "gradient_checkpointing": True,
        "pieces": 2,
        "check_memory": False,
    }
    others = {"train.compile", "data.source", "data.folder", "train.reporting.log"}  # the last: see test_logs.py
    others |= {f"train.parallel.{name}" for name in ("data", "tensor", "sequence")}  # see test_distributed.py
    assert {train_path(name) for name in changes} | others == CHANGEABLE_ON_RESUME
    assert all(train_setting(train_config(steps=1), name) != value for name, value in changes.items())
    config, run = begun(tmp_path)
    assert train_run(with_train(config, **changes), run, resume=True).step == 4


def test_a_damaged_line_of_metrics_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    path = run / "metrics.jsonl"
    path.write_bytes(b"half a li\n" + path.read_bytes())
    reporter = Recorder()
    train_run(config, run, resume=True, reporter=reporter)
    assert [event["kind"] for event in reporter.events][:2] == ["warning", "start"]
    assert "metrics.jsonl.damaged" in reporter.events[0]["message"]
    assert (run / "metrics.jsonl.damaged").read_bytes().startswith(b"half a li\n")


def test_a_text_that_has_moved_is_found_at_its_new_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_run(tmp_path, steps=2)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    train_run(replace(config, data=replace(config.data, source="text.txt")), "run")
    assert read_run("run").data.source == str(tmp_path / "text.txt")
    (tmp_path / "text.txt").rename(tmp_path / "elsewhere" / "text.txt")
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = replace(read_run("../run"), data=replace(config.data, source="*.txt"))
    assert train_run(with_train(moved, steps=4), "../run", resume=True).step == 4
    assert read_run("../run").data.source == str(tmp_path / "elsewhere" / "*.txt")
    (tmp_path / "elsewhere" / "text.txt").write_text("another text\n" * 900)
    with pytest.raises(DataError, match="not the one"):
        train_run(None, "../run", resume=True)


def test_a_text_that_has_changed_is_noticed(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    with open(tmp_path / "text.txt", "a") as file:
        file.write("one more line\n")
    with pytest.raises(DataError, match="not the one"):
        train_run(config, run, resume=True)


def edit(run: Path, part: str, **fields: Any) -> None:
    """Changes fields of a run.json, as somebody does in an editor."""
    data = json.loads((run / "run.json").read_text())
    for name, value in fields.items():
        (data[part][GROUP_OF[name]] if name in GROUP_OF else data[part])[name] = value
    (run / "run.json").write_text(json.dumps(data))


def forget(run: Path) -> None:
    """Makes the checkpoints of a run like those that did not say what they were trained with."""
    for folder in (checkpoint.path for checkpoint in checkpoints.list_checkpoints(run)):
        manifest, path = read_manifest(folder), folder / TRAINER_DATA
        data = json.loads(path.read_text())
        del data["run"]
        path.write_bytes(encode_json(data))
        manifest = replace(manifest, files={**manifest.files, TRAINER_DATA: record_file(path)})
        (folder / "config.json").write_bytes(manifest.encode())


@pytest.mark.parametrize(
    ("part", "field", "value", "was"),
    [("train", "lr", 0.5, 0.001), ("train", "batch_size", 3, 2), ("train", "seed", 7, 0)]
    + [("model", "norm_eps", 0.1, 1e-05), ("data", "validation_fraction", 0.2, 0.05)],
)
def test_an_edited_run_json_is_refused_by_field(tmp_path: Path, part: str, field: str, value: Any, was: Any) -> None:
    config, run = begun(tmp_path)
    edit(run, part, **{field: value})
    before, path = contents(run), train_path(field) if part == "train" else f"{part}.{field}"
    with pytest.raises(ConfigError, match=f"run.json was edited: {path} ") as caught:
        train_run(None, run, resume=True)
    assert f"is {value!r} there, and {was!r} in what step-00000002 was trained with" in str(caught.value)
    assert "put it back" in str(caught.value)
    assert contents(run) == before
    assert train_run(config, run, resume=True).step == 2  # given as it was, the file is put back
    assert read_run(run) == config


def test_what_may_change_may_change_in_run_json_and_is_told(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    edit(run, "train", steps=4, log_every=2)
    reporter = Recorder()
    assert train_run(None, run, resume=True, reporter=reporter).step == 4
    assert reporter.events[0]["kind"] == "changed"
    assert reporter.events[0]["fields"] == {"train.reporting.log_every": [1, 2], "train.budget.steps": [2, 4]}
    assert reporter.events[0]["message"].endswith(
        "train.budget.steps is now 4 (was 2), train.reporting.log_every is now 2 (was 1)"
    )
    for steps, told in ((4, []), (5, ["changed"])):  # as given by --set, which is told alike; and once
        reporter = Recorder()
        again = with_train(config, steps=steps, log_every=2)
        train_run(again, run, resume=True, reporter=reporter)
        assert [event["kind"] for event in reporter.events if event["kind"] == "changed"] == told


def test_checkpoints_that_do_not_say_what_they_were_trained_with_go_on(tmp_path: Path) -> None:
    config, run = begun(tmp_path)
    forget(run)
    with pytest.raises(ConfigError, match=r"begun with another train\.optimizer\.lr"):
        train_run(with_train(config, lr=0.5), run, resume=True)
    edit(run, "train", steps=3)
    assert train_run(None, run, resume=True).step == 3
    edit(run, "train", lr=0.5)  # the new checkpoint says it
    with pytest.raises(ConfigError, match=r"train\.optimizer\.lr is 0\.5 there, and 0\.001"):
        train_run(None, run, resume=True)


def test_a_checkpoint_of_another_architecture_is_noticed(tmp_path: Path) -> None:
    _, run = begun(tmp_path)
    data = json.loads((run / "run.json").read_text())
    edit(run, "model", layers=data["model"]["layers"][:1])
    with pytest.raises(ConfigError, match=r"run\.json was edited: model\.layers\.1"):
        train_run(None, run, resume=True)
    forget(run)
    with pytest.raises(CheckpointError, match="a different architecture"):
        train_run(None, run, resume=True)


@pytest.mark.parametrize("damage", ["{", "[]", '{"model": {}}', '{"train": {"stepps": 3}}'])
def test_a_damaged_run_json_is_one_line(tmp_path: Path, damage: str) -> None:
    _, run = begun(tmp_path)
    (run / "run.json").write_text(damage)
    with pytest.raises((CheckpointError, ConfigError), match=r"run\.json") as caught:
        train_run(None, run, resume=True)
    assert "\n" not in str(caught.value)
