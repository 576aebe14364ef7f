"""The wheel: built apart from the checkout, installed into an empty environment, and run there, with and without C.

In the ordinary suite the checkout has the C of a few kernels: the one that built the library of the other tests has
compiled the rest, by the same function. `pytest --slow tests/package/test_wheel.py` builds the whole wheel.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from places import ROOT

from statewise import native
from statewise.native import build

KERNELS = ("elementary.c", "ssd_f32.c", "threads.c")  # what RUN needs, in every instruction set
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "statewise")

RUN = """
import json, torch, statewise as sw
from statewise import native
B = C = torch.randn(1, 100, 1, 8)
operator = sw.SSD(-torch.rand(1, 100, 2), B, C)
x = torch.randn(1, 100, 2, 4)
with sw.kernels.use("c" if native.available() else "torch"):
    y, _ = operator(x, form="chunked")
torch.testing.assert_close(y, operator(x, form="recurrent")[0], rtol=1e-4, atol=1e-4)
print(json.dumps({"where": sw.__file__, "why_not": native.why_not(), "sets": native.instruction_sets()}))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that building leaves nothing in the one that is tested."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("these tests run from an installed package, which has no setup.py to build from")
    folder = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "_kernels.*")
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(source, folder)
    return folder


@pytest.fixture(scope="module")
def small_checkout(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with little to compile."""
    folder = tmp_path_factory.mktemp("small") / "checkout"
    shutil.copytree(checkout, folder)
    for path in folder.rglob("*.c"):
        if path.name not in KERNELS:
            path.unlink()
    return folder


def build_wheel(checkout: Path, target: Path, **variables: str) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", str(checkout), "--no-deps", "--wheel-dir", str(target)]
    environment = {
        **os.environ,
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "STATEWISE_CFLAGS": "-O0",
        **variables,
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode and "setuptools" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("an isolated build fetches setuptools, and there is no network")
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


def run_in_empty_environment(wheel: Path, folder: Path) -> dict[str, object]:
    """Nothing but the wheel, and the packages it depends on from where they are installed here."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:  # what installing a wheel without scripts is
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(str(Path(torch.__file__).parent.parent))
    command = [str(folder / "bin" / "python"), "-I", "-c", RUN]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    record: dict[str, object] = json.loads(done.stdout)
    assert Path(str(record["where"])).is_relative_to(packages)
    return record


def has_compiler() -> bool:
    try:
        return bool(build.compiler())
    except build.BuildError:
        return False


@pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")
@pytest.mark.parametrize("which", ["small_checkout", pytest.param("checkout", marks=pytest.mark.slow)])
def test_the_wheel_has_the_kernels_and_runs(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    wheel = build_wheel(request.getfixturevalue(which), tmp_path)
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    assert wheel.stat().st_size < 20e6
    record = run_in_empty_environment(wheel, tmp_path / "environment")
    assert record["why_not"] is None
    assert record["sets"] == list(native.instruction_sets())


def test_the_wheel_without_c_runs_and_says_why(small_checkout: Path, tmp_path: Path) -> None:
    wheel = build_wheel(small_checkout, tmp_path, STATEWISE_NO_C="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    record = run_in_empty_environment(wheel, tmp_path / "environment")
    assert record["why_not"] == "STATEWISE_NO_C was set when statewise was installed"


@pytest.mark.slow
def test_pip_installs_the_wheel_with_its_dependencies(checkout: Path, tmp_path: Path) -> None:
    wheel = build_wheel(checkout, tmp_path)
    venv.create(tmp_path / "environment", with_pip=True)
    python = str(tmp_path / "environment" / "bin" / "python")
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], env=environment, check=True)
    done = subprocess.run([python, "-I", "-c", RUN], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["why_not"] is None
    subprocess.run([str(Path(python).with_name("statewise")), "info"], check=True, cwd=tmp_path)
