"""Places that cannot be written: a full disk and a folder that may only be read."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def mount(place: Path, options: str) -> None:
    """A small file system in memory; the test is skipped where this process may not mount one."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this system does not let root mount a tmpfs")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    mount(place, "size=1m")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def protected(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A folder, and what makes it one that may only be read, for root too."""
    place = tmp_path / "protected"
    if os.geteuid() != 0:
        place.mkdir()
        yield place, lambda: place.chmod(0o500)
        place.chmod(0o700)
        return
    mount(place, "size=1m")
    yield place, lambda: subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    subprocess.run(["umount", str(place)], check=True)
