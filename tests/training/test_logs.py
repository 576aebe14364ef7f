"""What a run tells TensorBoard and Weights & Biases: the same numbers as metrics.jsonl, each step once."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from training_runs import Recorder, small_run, with_train

from statewise.errors import InputError, TrainingError
from statewise.training import Reporter, read_metrics, train_run
from statewise.training.logs import require_logs
from statewise.training.logs.scalars import scalars
from statewise.training.ranks import Ranks
from statewise.training.several import train_several


class Killed(Reporter):
    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        if record["step"] == 6:
            raise KeyError("the power went")


def expected(run: Path) -> dict[str, dict[int, float]]:
    """The curves that metrics.jsonl has."""
    curves: dict[str, dict[int, float]] = {}
    for record in read_metrics(run / "metrics.jsonl"):
        for name, value in scalars(record, "tokens").items():
            curves.setdefault(name, {})[record["step"]] = value
    return curves


def close_to(curves: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    return {name: pytest.approx(values, rel=1e-6) for name, values in curves.items()}


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def _needed(self) -> None:
        pytest.importorskip("tensorboard")

    @staticmethod
    def read(run: Path) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        return EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()

    def test_a_killed_and_resumed_run_has_each_step_once(self, tmp_path: Path) -> None:
        config = small_run(tmp_path, save_every=4, evaluate_every=2, keep_best=False, log=("tensorboard",))
        run = tmp_path / "run"
        with pytest.raises(KeyError):
            train_run(config, run, reporter=Killed())
        train_run(config, run, resume=True)
        found = self.read(run)
        curves = {}
        for name in found.Tags()["scalars"]:
            events = found.Scalars(name)
            assert [event.step for event in events] == sorted({event.step for event in events})
            curves[name] = {event.step: event.value for event in events}
        assert curves == close_to(expected(run))
        assert list(curves["train/loss"]) == [*range(1, 9)]
        assert list(curves["validation/bits_per_byte"]) == [2, 4, 6, 8]
        assert set(curves) >= {"train/gradient_norm", "train/learning_rate", "train/tokens_per_second"}

    def test_the_configuration_and_what_was_told_are_there(self, tmp_path: Path) -> None:
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        config = small_run(tmp_path, steps=2, log=("tensorboard",))
        train_run(config, tmp_path / "run")
        found = self.read(tmp_path / "run")
        (text,) = found.Tensors("run.json/text_summary")
        written = text.tensor_proto.string_val[0].decode().removeprefix("```json\n").removesuffix("\n```")
        assert json.loads(written)["train"]["budget"]["steps"] == 2
        told = [event.tensor_proto.string_val[0].decode() for event in found.Tensors("events/text_summary")]
        assert "begins" in told[0]
        assert told[-1].startswith("done after step 2")
        content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        settings = HParamsPluginData.FromString(content).session_start_info.hparams
        assert settings["train.optimizer.lr"].number_value == 1e-3
        assert settings["model.d_model"].number_value == 16
        assert not any(".layers.0" in name for name in settings)

    def test_one_that_fails_ends_no_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from torch.utils.tensorboard import SummaryWriter

        def full(self: SummaryWriter, name: str, value: float, step: int) -> None:
            if step == 3:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(SummaryWriter, "add_scalar", full)
        recorder = Recorder()
        config = small_run(tmp_path, steps=5, log=("tensorboard",))
        assert train_run(config, tmp_path / "run", reporter=recorder).step == 5
        warnings = [record for record in recorder.events if record["kind"] == "warning"]
        assert [record["step"] for record in warnings] == [3]
        assert warnings[0]["message"].startswith("TensorBoardReporter failed")
        assert recorder.closed

    def test_of_several_runs_each_has_its_own(self, tmp_path: Path) -> None:
        config = small_run(tmp_path, steps=2, log=("tensorboard",))
        train_several({"a": config, "b": config}, tmp_path / "runs", workers=1)
        for name in ("a", "b"):
            assert len(self.read(tmp_path / "runs" / name).Scalars("train/loss")) == 2

    def test_a_resumed_run_may_begin_to_log(self, tmp_path: Path) -> None:
        config = small_run(tmp_path, steps=2)
        train_run(config, tmp_path / "run")
        recorder = Recorder()
        more = with_train(config, steps=4, log=("tensorboard",))
        train_run(more, tmp_path / "run", resume=True, reporter=recorder)
        assert recorder.events[0]["fields"]["train.reporting.log"] == [[], ["tensorboard"]]
        assert [event.step for event in self.read(tmp_path / "run").Scalars("train/loss")] == [3, 4]

    def test_ranks_but_the_first_do_not_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Second(Ranks):
            rank = 1

        monkeypatch.setattr("statewise.training.loop.open_ranks", lambda: nullcontext(Second()))
        train_run(small_run(tmp_path, steps=2, log=("tensorboard",)), tmp_path / "run")
        assert not (tmp_path / "run" / "tensorboard").exists()


def log_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log format behind a header of 7 bytes: blocks of 32 KiB with pieces of records."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # no piece begins there
            place += 32768 - place % 32768
        length, kind = struct.unpack_from("<HB", content, place + 4)  # behind a checksum
        if place + 7 + length > len(content):  # is being written
            return
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last piece
            yield record
            record = b""


def test_the_option_may_be_repeated(run: Any) -> None:
    printed = run("train", "--preset", "tiny", "--log", "tensorboard", "--log-to", "wandb", "--print-config")
    assert json.loads(printed)["train"]["reporting"]["log"] == ["tensorboard", "wandb"]
    assert "did you mean 'wandb'" in run("train", "--preset", "tiny", "--log", "wandbb", code=2)


class TestWandb:
    """The real package, offline: nothing is asked of the network."""

    @pytest.fixture(autouse=True)
    def _offline(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        pytest.importorskip("wandb")
        for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("WANDB_SILENT", "true")
        monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
        monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))

    @staticmethod
    def read(run: Path) -> list[tuple[Any, dict[str, dict[int, float]], int]]:
        """Of each session what it says of the run, its curves, and the exit code."""
        from wandb.proto.wandb_internal_pb2 import Record

        sessions = []
        for path in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
            found: dict[str, Any] = {}
            curves: dict[str, dict[int, float]] = {}
            deadline = time.monotonic() + 20
            while "exit" not in found and time.monotonic() < deadline:  # its own process writes it a little later
                found.clear()
                for record in map(Record.FromString, log_records(path.read_bytes())):
                    kind = record.WhichOneof("record_type")
                    found.setdefault(kind, getattr(record, kind))
                    if kind == "history":
                        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                        for name in [name for name in items if not name.startswith("_")]:
                            curves.setdefault(name, {})[int(items["_step"])] = json.loads(items[name])
            sessions.append((found["run"], curves, found["exit"].exit_code))
        return sessions

    def test_a_resumed_run_goes_on_under_its_id(self, tmp_path: Path) -> None:
        config = small_run(tmp_path, steps=2, evaluate_every=2, log=("wandb",))
        run = tmp_path / "mine"
        train_run(config, run)
        time.sleep(1 - time.time() % 1)  # W&B names its folders by the second
        train_run(with_train(config, steps=4), run, resume=True)
        (first, before, code), (second, after, _) = self.read(run)
        assert first.run_id == second.run_id == (run / "wandb" / "id.txt").read_text()
        assert (first.project, first.display_name, first.run_group, code) == ("statewise", "mine", "", 0)
        settings = {item.key: item.value_json for item in first.config.update}
        assert json.loads(settings["train"])["budget"]["steps"] == 2
        assert {name: {**before[name], **after[name]} for name in before} == close_to(expected(run))

    def test_environment_group_and_a_run_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from statewise.training.several_folder import begin_folder

        config = small_run(tmp_path, log=("wandb",))
        runs = {"seed-0": config}
        begin_folder(tmp_path / "runs", runs)
        monkeypatch.setenv("WANDB_PROJECT", "ours")
        monkeypatch.setenv("WANDB_RUN_ID", "for-a-single-run")
        with pytest.raises(KeyError):
            train_several(runs, tmp_path / "runs", workers=1, reporter=Killed())
        ((about, curves, code),) = self.read(tmp_path / "runs" / "seed-0")
        assert (about.project, about.display_name, about.run_group, code) == ("ours", "runs/seed-0", "runs", 1)
        assert about.run_id != "for-a-single-run"
        assert list(curves["train/loss"]) == [1, 2, 3, 4, 5]

    def test_steps_that_it_has_are_not_sent_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from statewise.training.logs.wandb import WandbReporter

        reporter = WandbReporter(tmp_path, small_run(tmp_path))
        reporter.first = 4  # W&B says so of a run that it resumes online
        sent = []
        monkeypatch.setattr(reporter.run, "log", lambda numbers, step: sent.append(step))
        for step in (2, 3, 4, 5):
            reporter.event({"kind": "train", "step": step, "seconds": 1.0, "loss": 1.0})
        reporter.close()
        assert sent == [4, 5]

    def test_one_that_cannot_be_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import wandb

        def refuse(**options: Any) -> None:
            raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

        run, config = tmp_path / "run", small_run(tmp_path, steps=2, log=("wandb",))
        with monkeypatch.context() as patched:
            patched.setattr(wandb, "init", refuse)
            with pytest.raises(TrainingError, match=r"--log wandb cannot be opened \(No API key .*--resume .*/run"):
                train_run(config, run)
        assert not read_metrics(run / "metrics.jsonl")
        train_run(with_train(config, log=()), run, resume=True)
        monkeypatch.setattr(wandb, "init", refuse)
        recorder = Recorder()
        train_run(with_train(config, steps=4), run, resume=True, reporter=recorder)
        warning = next(record for record in recorder.events if record["kind"] == "warning")
        assert warning["message"].endswith("the run continues without it")
        assert recorder.events[-1]["step"] == 4


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_package_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for module in [module for module in sys.modules if module.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("statewise.training.loop.RunState", None)
    with pytest.raises(InputError, match=rf'--log {name} needs .*pip install "statewise\[{name}\]"'):
        train_run(small_run(tmp_path, log=(name,)), tmp_path / "run")
    require_logs(())
