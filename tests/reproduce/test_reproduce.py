"""Reproductions: kept part by part, refused where they do not belong, and what their reports say."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from statewise.cli import run as command_line
from statewise.errors import CheckpointError, ConfigError, DataError, InputError
from statewise.reproduce import PLACES, find, listed, print_report, reproduce, settings
from statewise.reproduce.hardware import cpu_model, environment
from statewise.reproduce.progress import Watcher
from statewise.reproduce.settings import Rates, Settings
from statewise.reproduce.work import Stopped, open_work

needs_plot = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot")
SMALL = ["orders=[4,8]", "measures=['legs','legt']", "window=64", "cycles=2", "n_signals=2"]
SMALL = [text.replace("'", '"') for text in SMALL]


class Heard(Watcher):
    """Keeps all it hears; ``stop_after`` parts were computed it sends the signal that a terminal sends for Ctrl-C."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self.stop_after = stop_after

    def event(self, record: Any) -> None:
        self.records.append(dict(record))
        if record["kind"] == "part" and record["done"] == self.stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    def parts(self, found: bool) -> list[str]:
        return [record["part"] for record in self.records if record["kind"] == "part" and record["found"] is found]


def small_hippo() -> Any:
    return settings("hippo", quick=True, assignments=SMALL)


class TestWork:
    def test_a_part_is_computed_once(self, tmp_path: Path) -> None:
        calls = []

        def compute() -> dict[str, Any]:
            calls.append(1)
            return {"x": [1.0, float("nan"), float("inf")], "by": {3: (1, 2)}}

        for _ in range(2):
            work = open_work(tmp_path / "run", "hippo", small_hippo())
            work.begin(1)
            assert work.part("one", compute) == {"x": [1.0, None, None], "by": {"3": [1, 2]}}
        assert len(calls) == 1
        assert work.environments == [environment()]

    def test_a_part_that_fails_or_is_stopped_leaves_nothing(self, tmp_path: Path) -> None:
        work = open_work(tmp_path / "run", "hippo", small_hippo())
        for error in (RuntimeError("no"), Stopped(2)):

            def fail(error: BaseException = error) -> dict[str, Any]:
                raise error

            with pytest.raises(type(error)):
                work.part("one", fail)
        assert list((tmp_path / "run" / "parts").iterdir()) == []

    def test_damaged_part(self, tmp_path: Path) -> None:
        work = open_work(tmp_path / "run", "hippo", small_hippo())
        work.part("one", lambda: {"x": 1})
        path = tmp_path / "run" / "parts" / "one.json"
        for text in ('{"x": 1}', path.read_text()[:-9]):
            path.write_text(text)
            with pytest.raises(CheckpointError, match=r"one\.json"):
                work.part("one", lambda: {"x": 2})

    def test_what_a_killed_process_left_is_removed(self, tmp_path: Path) -> None:
        open_work(tmp_path / "run", "hippo", small_hippo())
        left = tmp_path / "run" / "parts" / ".one.json.writing-999999999-0123abcd"
        left.mkdir()
        open_work(tmp_path / "run", "hippo", small_hippo())
        assert not left.exists()

    def test_parts_of_several_machines_are_all_told(self, tmp_path: Path) -> None:
        work = open_work(tmp_path / "run", "hippo", small_hippo())
        work.part("one", lambda: {})
        path = tmp_path / "run" / "parts" / "one.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "environment": {**record["environment"], "cpu": "another"}}))
        work = open_work(tmp_path / "run", "hippo", small_hippo())
        work.part("one", lambda: {})
        work.part("two", lambda: {})
        assert [place["cpu"] for place in work.environments] == ["another", cpu_model()]

    def test_refused_folders(self, tmp_path: Path) -> None:
        config = small_hippo()
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="is a file"):
            open_work(tmp_path / "file", "hippo", config)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "thesis.tex").write_text("")
        with pytest.raises(CheckpointError, match=r"thesis\.tex"):
            open_work(tmp_path / "other", "hippo", config)
        assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]
        open_work(tmp_path / "run", "hippo", config)
        open_work(tmp_path / "run", "hippo", config).part("done", dict)  # the same: it goes on
        with pytest.raises(ConfigError, match=r"another .*orders, window .*was"):
            open_work(tmp_path / "run", "hippo", settings("hippo"))
        with pytest.raises(ConfigError, match="'hippo', not 'delay'"):
            open_work(tmp_path / "run", "delay", settings("delay"))
        (tmp_path / "run" / "reproduction.json").write_text("[]")
        with pytest.raises(CheckpointError, match="was not written by a reproduction"):
            open_work(tmp_path / "run", "hippo", config)

    def test_how_it_is_done_may_change(self, tmp_path: Path) -> None:
        def opened(*assignments: str) -> Any:
            return open_work(tmp_path, "h3-synthetics", settings("h3-synthetics", quick=True, assignments=assignments))

        opened().part("done", dict)
        assert opened("workers=3", "bars=true").config.workers == 3
        with pytest.raises(ConfigError, match=r"another n_test \(n_test was 64, now 32\)"):
            opened("workers=3", "n_test=32")

    def test_a_field_that_an_older_folder_does_not_know_had_its_default(self, tmp_path: Path) -> None:
        def opened(*assignments: str) -> None:
            open_work(tmp_path, "trained", settings("digits", assignments=assignments)).part("done", dict)

        opened()
        path = tmp_path / "reproduction.json"
        record = json.loads(path.read_text())
        del record["settings"]["dtw_windows"], record["settings"]["dtw"]
        path.write_text(json.dumps(record))
        opened()
        with pytest.raises(ConfigError, match=r"another dtw \(dtw was False, now True\)"):
            opened("dtw=true")

    @pytest.mark.parametrize("name", ["h3-language", "mqar"])
    def test_or_what_held_before_there_was_the_field(self, name: str, tmp_path: Path) -> None:
        """All projections began with 0.02, which is not the default: such a folder is not gone on with otherwise."""
        open_work(tmp_path, name, settings(name)).part("done", dict)
        path = tmp_path / "reproduction.json"
        record = json.loads(path.read_text())
        del record["settings"]["weight_std"]
        path.write_text(json.dumps(record))
        with pytest.raises(ConfigError, match=r"another weight_std \(weight_std was 0.02, now None\)"):
            open_work(tmp_path, name, settings(name))
        open_work(tmp_path, name, settings(name, assignments=["weight_std=0.02"]))

    @pytest.mark.parametrize("name", ["flashconv", "lssl-vs-s4", "s4-vs-transformer", "lra"])
    def test_a_device_that_is_not_there(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ConfigError, match=r"device.*'foo' is unknown.*auto.*cpu.*cuda"):
            settings(name, quick=True, assignments=["device=foo"])
        with pytest.raises(ConfigError, match="no CUDA device"):
            settings(name, quick=True, assignments=["device=cuda"])

    @pytest.mark.parametrize("name", PLACES)
    def test_a_quick_look_is_in_one_process(self, name: str) -> None:
        assert getattr(settings(name, quick=True), "workers", 1) == 1


class TestSettings:
    """What is theirs beyond the laws of all configs (test_config_laws.py)."""

    def test_rates_have_names_of_their_own(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Some(Settings):
            lr: Rates = (1e-3,)

        assert Some(lr=(1e-3, 2e-3)).lr == (1e-3, 2e-3)
        for given, message in (
            ((2e-3, 2.0000001e-3), "has two with one name, .* apart in their first six digits"),
            ((), "is empty"),
            ((2e-3, 0.0), "out of range"),
        ):
            with pytest.raises(ConfigError, match=rf"^Some\.lr.*{message}"):
                Some(lr=given)

    def test_an_item_of_each(self) -> None:
        with pytest.raises(ConfigError, match=r"lengths=\(64,\), batches=\(1, 2\) differ in length"):
            settings("flashconv", assignments=["lengths=[64]", "batches=[1,2]"])

    def test_a_folder_is_a_whole_path(self) -> None:
        assert settings("fashion-mnist", assignments=["folder=d"]).folder == str(Path("d").absolute())


class TestReproduce:
    def test_stopped_and_continued(self, tmp_path: Path) -> None:
        whole = reproduce("hippo", tmp_path / "whole", small_hippo(), plots=False)
        heard = Heard(stop_after=2)
        before = signal.getsignal(signal.SIGINT)
        stopped = reproduce("hippo", tmp_path / "run", small_hippo(), plots=False, watcher=heard)
        assert (stopped.report, stopped.signal, stopped.exit_code) == (None, signal.SIGINT, 130)
        assert signal.getsignal(signal.SIGINT) is before
        assert "SIGINT" in heard.records[-1]["message"]
        assert not (tmp_path / "run" / "result.json").exists()
        heard = Heard()
        outcome = reproduce("hippo", tmp_path / "run", small_hippo(), plots=False, watcher=heard)
        assert heard.parts(found=True) == ["legs-4", "legs-8"]
        assert heard.parts(found=False) == ["legt-4", "legt-8"]
        assert outcome.exit_code == 0
        assert outcome.record is not None
        assert whole.record is not None
        assert outcome.record["figures"] == whole.record["figures"]

    def test_result_and_report(self, tmp_path: Path) -> None:
        outcome = reproduce("hippo", tmp_path / "run", small_hippo(), plots=False)
        record = json.loads((tmp_path / "run" / "result.json").read_text())
        assert record == outcome.record
        assert record["settings"]["orders"] == [4, 8]
        assert record["environments"][0]["torch"] == torch.__version__
        assert record["environments"][0]["threads"] == torch.get_num_threads()
        assert record["date"].endswith("UTC")
        page = (tmp_path / "run" / "report.md").read_text()
        assert find("hippo").source == record["source"]
        for expected in (
            record["source"],
            "| LegS |",
            "N = 8",
            "differs from the published",
            torch.__version__,
            '"window": 64',
        ):
            assert expected in page
        stream = StringIO()
        assert outcome.report is not None
        print_report(outcome.report, record, outcome.folder, stream=stream)
        printed = json.loads(stream.getvalue())
        assert (printed["kind"], printed["figures"]) == ("result", record["figures"])
        stream = StringIO()
        print_report(outcome.report, record, outcome.folder, as_json=False, stream=stream)
        assert "LegS" in stream.getvalue()
        assert "result.json" in stream.getvalue()
        assert record["source"] in stream.getvalue().replace("\n", " ")

    @needs_plot
    def test_plots(self, tmp_path: Path) -> None:
        outcome = reproduce("hippo", tmp_path / "run", small_hippo())
        assert outcome.record is not None
        assert {"hippo-memory.png", "hippo-noise.png"} <= set(outcome.record["plots"])
        for name in outcome.record["plots"]:
            assert (tmp_path / "run" / name).read_bytes().startswith(b"\x89PNG")
        assert "![" in (tmp_path / "run" / "report.md").read_text()

    def test_without_matplotlib(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
        with pytest.raises(DataError, match=r'which --no-plots leaves out, need matplotlib.*"statewise\[plot\]"'):
            reproduce("hippo", tmp_path / "run", small_hippo())
        assert not (tmp_path / "run").exists()
        assert reproduce("hippo", tmp_path / "run", small_hippo(), plots=False).exit_code == 0

    def test_errors(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="use one of hippo, delay"):
            find("hipo")
        with pytest.raises(ConfigError, match="did you mean 'window'"):
            settings("hippo", assignments=["windw=3"])
        with pytest.raises(ConfigError, match="needs a HippoSettings, got a DelaySettings"):
            reproduce("hippo", tmp_path, settings("delay"), plots=False)

    def test_all_are_listed(self) -> None:
        assert [name for name, _, _ in listed()] == list(PLACES)
        for name in PLACES:
            found = find(name)
            assert type(found.small()) is type(found.full())
            assert found.small() != found.full()
            assert settings(name) == found.full()

    def test_command_line(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        words = ["reproduce", "hippo", "--quick", "--no-plots", "--out", str(tmp_path / "run")]
        words += [word for text in SMALL for word in ("--set", text)]
        assert command_line(words) == 0
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines] == ["start", *["part"] * 4, "result"]
        assert lines[0]["settings"]["orders"] == [4, 8]
        assert command_line(["reproduce"]) == 0
        assert set(json.loads(capfd.readouterr().out)) == set(PLACES)
        assert command_line(["reproduce", "hippo", "--out", str(tmp_path / "run"), "--no-plots"]) == 2
        assert "continue with its settings" in capfd.readouterr().err
        assert command_line(["reproduce", "hippo", "--data-dir", "d"]) == 2
        assert "--data-dir is not for hippo" in capfd.readouterr().err

    def test_seeds_by_number_and_by_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """``delay`` counts them, all others name them."""
        asked: list[Any] = []

        def refuse(name: str, folder: Path, config: Any, **_: Any) -> Any:
            asked.append(config.seeds)
            raise InputError("enough")

        monkeypatch.setattr("statewise.reproduce.reproduce", refuse)
        for name in ("delay", "h3-synthetics"):
            assert command_line(["reproduce", name, "--seeds", "2", "--out", str(tmp_path / name)]) == 2
        assert asked == [2, (0, 1)]
        assert command_line(["reproduce", "hippo", "--seeds", "2"]) == 2
        assert len(asked) == 2
