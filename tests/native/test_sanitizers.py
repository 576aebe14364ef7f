"""The kernels' own tests once more, over a library built with the address and undefined-behaviour sanitizers.

What reads or writes outside its arrays, overflows an integer or misaligns an access ends the process, and the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.sanitized import NoSanitizer
from fuzz.sanitized import environment as sanitized_environment
from places import TESTS

HERE = TESTS
# Those that run every kernel over the shapes of the laws, on every instruction set and several threads.
PATTERNS = (
    "*/test_*native*.py",
    "kernels/test_fused*.py",
    "kernels/test_linear.py",
    "kernels/test_selective_scan*.py",
    "decoding/test_decoding.py",
    "decoding/test_decoding_law.py",
)
SUITES = {pattern: sorted(str(path.relative_to(HERE)) for path in HERE.glob(pattern)) for pattern in PATTERNS}


def test_every_suite_is_there() -> None:
    assert all(SUITES.values()), SUITES


def environment(library: Path, *, only: tuple[str, ...] = ()) -> dict[str, str]:
    """Of a process that loads a checked library, which is built here."""
    try:
        return {**os.environ, **sanitized_environment(library, only=only)}
    except NoSanitizer as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(tmp_path_factory.mktemp("sanitized") / "kernels.so")


@pytest.mark.slow
@pytest.mark.parametrize("suite", [suite for found in SUITES.values() for suite in found])
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
