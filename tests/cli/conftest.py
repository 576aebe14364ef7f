"""What tests of the command line share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import TRAIN, Result, Run, contents, write_corpus

from statewise import cli


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process; paths in the arguments may be Path objects."""

    def call(*arguments: object) -> Result:
        capfd.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Runs what must be refused: exit code 2, nothing on standard output, one line on standard error: that line."""

    def call(*arguments: object) -> str:
        result = run(*arguments)
        assert (result.code, result.out) == (2, ""), result
        assert result.err.startswith("statewise: error: ")
        assert result.err.count("\n") == 1
        assert result.err.endswith("\n")
        return result.err

    return call


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, `text`, and a finished run, `run`."""
    folder = tmp_path_factory.mktemp("cli")
    write_corpus(folder / "text")
    with contextlib.chdir(folder):
        assert cli.run([*TRAIN, "--steps", "6", "--out", "run"]) == 0
    return folder


@pytest.fixture
def in_workplace(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working directory; no test, and above all no refusal, changes the finished run."""
    monkeypatch.chdir(workplace)
    before = contents(workplace / "run")
    yield
    assert contents(workplace / "run") == before
