"""The kernels' own tests once more, over a library built with the address and undefined-behaviour sanitizers.

What reads or writes outside its arrays, overflows an integer or misaligns an access ends the process, and the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from statewise.native import build

HERE = Path(__file__).resolve().parent
# Those that run every kernel over the shapes of the laws, on every instruction set and several threads.
SUITES = sorted(path.name for path in HERE.glob("test_*native*.py")) + [
    "test_decoding.py",
    "test_fused.py",
    "test_linear.py",
    "test_selective_scan.py",
]


def runtime_of(sanitizer: str) -> str | None:
    """The shared library of a sanitizer, which has to be loaded before anything else."""
    try:
        command = [*build.compiler(), f"-print-file-name=lib{sanitizer}.so"]
        found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except (build.BuildError, OSError):
        return None
    return found if os.path.isabs(found) else None


def environment(library: Path, *, only: tuple[str, ...] = ()) -> dict[str, str]:
    """Of a process that loads a checked library, which is built here."""
    preload = runtime_of("asan")
    if preload is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no compiler with an address sanitizer here")
    build.build(library, only=only, sanitize=True)
    return {
        **os.environ,
        "STATEWISE_LIBRARY": str(library),
        "LD_PRELOAD": f"{preload}:{runtime_of('stdc++') or ''}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(tmp_path_factory.mktemp("sanitized") / "kernels.so")


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_kernels_stay_inside_their_arrays(suite: str, sanitized: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider", str(HERE / suite)]
    done = subprocess.run(command, env=sanitized, capture_output=True, text=True, cwd=HERE.parent)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_the_sanitizer_sees_a_mistake(tmp_path: Path) -> None:
    """A kernel told of one number more than there is: were this to pass, the test above would mean nothing."""
    checked = environment(tmp_path / "kernels.so", only=("elementary.c",))
    script = (
        "import torch\n"
        "from statewise import native\n"
        "x, y = torch.ones(1000), torch.empty(1000)\n"
        "native.function('elementary_exp2', torch.float32, 'ppl')(x, y, 1001)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=checked, capture_output=True, text=True, cwd=HERE.parent)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
