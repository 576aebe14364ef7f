"""`statewise plot`: a picture in the run's folder or where it is asked for, and no file replaced unasked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("in_workplace")


def test_a_run_and_what_is_refused(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree("run", own)
    assert run("plot", own).out == f"{own / 'curves.png'}\n"
    picture = (own / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert "curves.png exists already; give a new name, or replace it with --overwrite" in refused("plot", own)
    assert run("plot", "curves", own, "--log-y", "--overwrite").code == 0
    assert (own / "curves.png").read_bytes() != picture
    out = tmp_path / "curves.svg"
    assert run("plot", "--x", "time", "--smooth", "2", "run", own, "--out", out).out == f"{out}\n"
    assert "<svg" in out.read_text("utf-8")
    assert "ends in one of .png, .svg, .pdf" in refused("plot", "run", "--out", tmp_path / "curves.gif")
    assert "there is no folder" in refused("plot", "run", "--out", tmp_path / "none" / "curves.png")
    assert "nothing holds no run" in refused("plot", "nothing")
    assert "there is no picture 'pole' and no such run; did you mean 'poles'?" in refused("plot", "pole", "run")
    assert "Missing argument" in refused("plot")
    assert "'epochs' is not one of" in refused("plot", "run", "--x", "epochs")
    assert not [path.name for path in tmp_path.rglob(".*") if path.name != ".lock"]


def test_help_tells_what_can_be_drawn(run: Run) -> None:
    assert "curves" in run("plot", "--help").out.split("Commands:")[1]
    assert "--log-y" in run("plot", "curves", "-h").out
