"""Several reporters as one: all hear everything, and one that fails ends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from training_runs import Recorder, small_run

from statewise.training import Reporter, Reporters, train_run


class Fails(Recorder):
    """At its n-th event, or at a call by its name."""

    def __init__(self, at: int | None = None, method: str = "") -> None:
        super().__init__()
        self.at, self.method = at, method

    def begin(self, task: Any) -> None:
        self._perhaps("begin")

    def event(self, record: Mapping[str, Any]) -> None:
        super().event(record)
        if self.at == len(self.events):
            raise OSError(28, "No space left on device")

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        self._perhaps("progress")

    def close(self) -> None:
        self._perhaps("close")

    def _perhaps(self, method: str) -> None:
        if method == self.method:
            raise RuntimeError("two\nlines")


def test_all_hear_everything_of_a_run(tmp_path: Path) -> None:
    one, other, essential = Recorder(), Recorder(), Recorder()
    train_run(small_run(tmp_path, steps=3), tmp_path / "run", reporter=Reporters(one, other, essential=essential))
    assert one.events == other.events == essential.events
    assert one.fractions == other.fractions == essential.fractions == [1 / 3, 2 / 3, 1.0]
    assert one.closed
    assert other.closed
    assert essential.closed


def test_one_that_fails_is_left_out_and_the_others_hear_why() -> None:
    one, other = Fails(at=2), Recorder()
    reporters = Reporters(one, other)
    for step in (1, 2, 3):
        reporters.event({"kind": "train", "step": step, "run": "seed-1"})
    assert [record["step"] for record in one.events] == [1, 2]
    assert [(record["kind"], record["step"]) for record in other.events] == [
        ("train", 1),
        ("warning", 2),
        ("train", 2),
        ("train", 3),
    ]
    assert other.events[1]["message"] == (
        "Fails failed and is left out from now on; the run continues (OSError: No space left on device)"
    )
    assert other.events[1]["run"] == "seed-1"


@pytest.mark.parametrize("method", ["begin", "progress", "close"])
def test_at_every_call(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    for others in ([Recorder()], []):
        reporters = Reporters(Fails(method=method), *others)
        for _ in range(2):
            reporters.begin(None)  # type: ignore[arg-type]
            reporters.progress(0.5, {"step": 4})
            reporters.close()
        for other in others:
            (warning,) = other.events
            assert warning["message"].endswith("(RuntimeError: two lines)")
            assert warning.get("step") == (4 if method == "progress" else None)
    assert capsys.readouterr().err.count("warning: Fails failed") == 1


def test_failures_at_hearing_of_a_failure_end() -> None:
    reporters = Reporters(Fails(at=1), Fails(at=1), heard := Recorder(), Fails(at=2))
    reporters.event({"kind": "train", "step": 1})
    assert [record["kind"] for record in heard.events] == ["warning", "warning", "warning", "train"]
    assert reporters.reporters == [heard]


def test_the_essential_one_ends_the_run() -> None:
    class Broken(Reporter):
        def event(self, record: Mapping[str, Any]) -> None:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Reporters(Recorder(), essential=Broken()).event({"kind": "train", "step": 1})
    with pytest.raises(KeyboardInterrupt):
        Reporters(Interrupts(), essential=Recorder()).event({"kind": "train", "step": 1})


class Interrupts(Reporter):
    def event(self, record: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt
