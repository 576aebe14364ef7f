"""`make gpu-day`: every stage at tiny sizes on the CPU; what is done stays done, what fails stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark.expression import Expression
from forked_programs import in_forks
from on_device import OnDevice

from statewise.benchmark.gpu import __main__ as day
from statewise.benchmark.gpu import science, stages, tests_on_card, timing
from statewise.benchmark.gpu.kernels_on_card import _cases, times
from statewise.benchmark.gpu.models_on_card import _config, build, model_operations
from statewise.benchmark.gpu.stages import Settings, Skipped, Stage, run_stage, run_stages
from statewise.mixers.mamba2 import Mamba2Config

ITEMS = ("ceilings", "kernels", "decoding", "training", "memory")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings("cpu", True, tmp_path)


def read(settings: Settings, name: str) -> dict[str, Any]:
    return json.loads((settings.folder / f"{name}.json").read_text("utf-8"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert day.main([]) == 3
    assert capsys.readouterr().out.startswith("no GPU here: PyTorch finds no CUDA device")


@pytest.mark.parametrize("name", ITEMS)
def test_every_stage_runs(name: str, settings: Settings) -> None:
    run_stage(next(stage for stage in day.DAY if stage.name == name), settings)
    record = read(settings, name)
    assert record["state"] == "done"
    assert record["items"]
    for label, item in record["items"].items():
        assert "error" not in item, (label, item)
    if name == "kernels":
        ours = [item for label, item in record["items"].items() if "PyTorch" in label]
        assert len(ours) == 14
        assert all(item["difference_from_pytorch"] == 0 for item in ours)
        listing = [item for label, item in record["items"].items() if "published listing" in label]
        assert all(item["difference_from_pytorch"] < 2e-2 for item in listing)
    if name == "decoding":
        assert all({"generate", "launched from Python"} <= set(item) for item in record["items"].values())


def test_the_whole_command_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [stage for stage in day.DAY if stage.name in ("canary", "tests")]
    monkeypatch.setattr(day, "DAY", tuple(chosen))
    monkeypatch.setattr(stages, "subprocess", in_forks())
    given = ["--device", "cpu", "--quick", "--out", str(tmp_path)]
    assert day.main(given) == 0
    record = json.loads((tmp_path / "gpu-day-cpu.json").read_text("utf-8"))
    assert {name: stage["state"] for name, stage in record["stages"].items()} == dict.fromkeys(
        ("canary", "tests"), "done"
    )
    tests = record["stages"]["tests"]["items"]["tests/hippo/test_hippo_projection.py"]
    assert tests["failed"] == 0
    assert tests["passed"] + tests["skipped"] >= 1
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json") if "gpu-day" not in path.name}
    assert day.main(given) == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "nothing was done again"


def test_an_item_that_fails_or_is_not_here_stops_nothing(settings: Settings) -> None:
    def fails() -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory\nand more")

    def absent() -> dict[str, Any]:
        raise Skipped("no such package")

    run_stage(Stage("one", 9, lambda _: {"a": fails, "b": absent, "c": lambda: {"found": 1}}), settings)
    items = read(settings, "one")["items"]
    assert items["a"]["error"] == "OutOfMemoryError: CUDA out of memory"
    assert items["b"]["skipped"] == "no such package"
    assert items["c"]["found"] == 1

    def none(_: Settings) -> dict[str, Any]:
        raise Skipped("nothing is here")

    run_stage(Stage("two", 9, none), settings)
    assert read(settings, "two")["skipped"] == "nothing is here"


def test_a_stage_goes_on_where_it_stopped(settings: Settings) -> None:
    asked: list[str] = []

    def item(name: str, **found: Any) -> dict[str, Any]:
        asked.append(name)
        return found

    def some(_: Settings) -> dict[str, Any]:
        return {"a": partial(item, "a"), "b": partial(item, "b", unfinished=len(asked) < 2)}

    for state in ("not done", "done"):
        run_stage(Stage("one", 9, some), settings)
        assert read(settings, "one")["state"] == state
    assert asked == ["a", "b", "b"]
    other = Settings("cpu", False, settings.folder)  # other sizes: all again
    run_stage(Stage("one", 9, some), other)
    assert asked == ["a", "b", "b", "a", "b"]


def test_a_stage_that_hangs_is_ended(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(stages.subprocess, "Popen", lambda command, **options: real(sleeping, **options))
    begun, told = time.monotonic(), []
    found = run_stages([Stage("slow", 1.0, lambda _: {}), Stage("next", 1.0, lambda _: {})], settings, told.append)
    assert time.monotonic() - begun < 20
    assert found["slow"]["state"] == "not done"
    assert "ran out of its 1 s" in found["slow"]["why"]
    assert len(told) == 2
    found = run_stages(
        [Stage("slow", 1.0, lambda _: {}), Stage("other", 1.0, lambda _: {})], settings, told.append, most=1
    )
    assert found["other"] == {}


def test_the_stages_fit_into_ten_minutes() -> None:
    assert sum(stage.seconds for stage in day.DAY) < 600
    assert all(stage.seconds < 600 for stage in science.stages())


def test_failures_of_tests_are_counted(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_some.py"
    path.write_text("def test_a(): pass\ndef test_b(): assert 1 == 2, 'not equal'\n", "utf-8")
    monkeypatch.setattr(tests_on_card, "ROOT", tmp_path)
    found = tests_on_card.run_file(str(path), [], {})
    assert (found["passed"], found["failed"]) == (1, 1)
    assert "not equal" in next(iter(found["failures"].values()))
    with pytest.raises(Skipped, match="the tests are not here"):
        tests_on_card.marked(settings)


def test_every_file_that_is_marked_is_found(settings: Settings) -> None:
    files = tests_on_card.marked(Settings("cuda", False, settings.folder))
    assert "tests/decoding/test_static.py" in files
    laws = tests_on_card.laws(Settings("cuda", False, settings.folder))
    assert {"tests/operators/test_operators.py, past_65", "tests/mixers/test_mamba2.py"} <= set(laws)
    parts = [f"{name}, {part}" for name, parts in tests_on_card.PARTS.items() for part in parts]
    assert list(laws)[: len(parts)] == parts, "the longest come first"
    assert not set(laws) & set(tests_on_card.PARTS), "what is divided does not run whole as well"


@pytest.mark.parametrize("name", tests_on_card.PARTS)
def test_the_parts_of_a_file_are_all_its_laws(name: str) -> None:
    command = [sys.executable, "-m", "pytest", name, "-p", "no:cacheprovider", "--collect-only", "-q", "-v"]
    done = in_forks().run(command, cwd=tests_on_card.ROOT, capture_output=True, text=True, check=True)
    tests = [line.lower() for line in done.stdout.splitlines() if line.startswith(name)]

    def chosen(words: str) -> list[str]:
        """As pytest's -k, which would take two seconds each time."""
        rule = Expression.compile(words)

        def has(test: str) -> bool:
            return rule.evaluate(lambda word, **_: word.lower() in test.partition("::")[2])

        return [test for test in tests if has(test)]

    found = [chosen(part) for part in tests_on_card.PARTS[name]]
    assert all(found)
    assert sorted(test for part in found for test in part) == sorted(chosen("laws"))


def test_the_laws_run_on_a_device_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests_on_card, "subprocess", in_forks())
    found = next(iter(tests_on_card.laws(settings).values()))()
    assert found["failed"] == 0
    assert found["passed"] >= 1


def test_what_a_test_makes_is_made_on_the_device() -> None:
    generator = torch.Generator().manual_seed(0)
    want = torch.randn(3, generator=torch.Generator().manual_seed(0))
    with OnDevice("meta") as mode:
        assert torch.randn(3).is_meta
        assert torch.tensor([1, 2]).is_meta
        assert torch.arange(3).is_meta
        assert torch.zeros(2, device="cpu").device.type == "cpu"
        assert torch.randn(3, generator=generator).is_meta
        assert mode.n_moved == 4
    with OnDevice("cpu"):
        assert torch.randn(3, generator=torch.Generator().manual_seed(0)).equal(want)


def test_sizes_and_operations() -> None:
    sizes = {name: _config(f"mamba2-{name}", False) for name in ("130m", "370m", "1.3b")}
    for name, (least, most) in {"130m": (128e6, 131e6), "370m": (365e6, 372e6), "1.3b": (1.3e9, 1.36e9)}.items():
        with torch.device("meta"):
            n = sum(m.numel() for m in sizes[name].build().parameters())
        assert least < n < most
        assert {type(block.mixer) for block in sizes[name].blocks} == {Mamba2Config}
    model = build("mamba2-130m", Settings("cpu", True, Path()))
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert model_operations(model) > 6 * weights
    assert next(iter(_cases(False))).startswith("SSD, 128 heads of 64, N=128")
    assert len(times(Settings("cpu", True, Path()))) == 2 * sum(2 + len(case.others) for case in _cases(True).values())
    assert timing.share(50, 100, 500) == 1.0


@pytest.mark.parametrize("name", ["h3-language"])
def test_a_long_training_is_a_command(name: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(science, "subprocess", in_forks())
    found = science.h3_language(settings)
    assert found["exit_code"] == 0, found
    assert (settings.folder / "run-h3-language" / "run.json").exists()
    assert science.h3_language(settings)["command"][:2] == ["train", "--resume"]


def test_a_training_that_takes_longer_saves_and_goes_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []

    class Process:
        def __init__(self, command: list[str]) -> None:
            pass

        def wait(self, seconds: float | None = None) -> int:
            if seconds is not None:
                raise subprocess.TimeoutExpired("statewise", seconds)
            return 130

        def send_signal(self, number: int) -> None:
            signals.append(number)

    monkeypatch.setattr(science.subprocess, "Popen", Process)
    for item in (science.lra, science.h3_synthetics, science.induction_heads):
        found = item(settings)
        assert found["unfinished"]
        assert found["command"][0] == "reproduce"
    assert len(signals) == 3
    with pytest.raises(Skipped, match="ListOps's files are not here"):
        science.lra(Settings("cpu", False, settings.folder))


def test_the_makefile_runs_it() -> None:
    text = (tests_on_card.ROOT / "Makefile").read_text("utf-8")
    assert "-m statewise.benchmark.gpu" in text
    assert os.path.exists(tests_on_card.ROOT / "docs" / "gpu.md")
