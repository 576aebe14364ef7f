"""The package as others install it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from places import ROOT

import statewise

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CORE = {"torch", "numpy", "einops", "safetensors", "tokenizers", "typer", "rich"}


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_-]", requirement)[0].lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))


def test_core_dependencies_are_the_seven_and_are_not_pinned() -> None:
    assert {name_of(requirement) for requirement in PROJECT["dependencies"]} == CORE
    assert not [requirement for requirement in PROJECT["dependencies"] if "==" in requirement or "<" in requirement]


def test_a_release_shows_the_readme_with_absolute_links(tmp_path: Path) -> None:
    """As a package index shows it, which has the README and no other file."""
    (tmp_path / ".github").mkdir()
    for name in (".github/absolute_links.py", "README.md"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    before = (tmp_path / "README.md").read_text("utf-8")
    subprocess.run([sys.executable, tmp_path / ".github/absolute_links.py", "https://x/y", "v1"], check=True)
    after = (tmp_path / "README.md").read_text("utf-8")
    assert "![How many" in before
    assert "](https://x/y/raw/v1/docs/pictures/speed.svg)" in after
    assert "](https://x/y/blob/v1/docs/start.md)" in after
    assert not re.findall(r"\]\((?!https?:)", after)
    assert after.replace("https://x/y/raw/v1/", "").replace("https://x/y/blob/v1/", "") == before


def test_one_version_everywhere() -> None:
    assert PROJECT["version"] == statewise.__version__
    assert f"\nversion: {statewise.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_constraints_pin_whatever_is_asked_for() -> None:
    asked = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
    names = {name_of(requirement) for requirement in asked} - {"statewise"}  # dev asks for our own other extras
    assert names | {"setuptools"} <= pins().keys()
    assert pins()["torch"] == "2.13.0"


def test_ci_calls_make() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    calls = [line for line in lines if "make" in line and not line.startswith("#")]
    assert calls == ["make install-all", "make test", "make gpu-check-few", "make browser", "make docs"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "make test" in (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")


@pytest.mark.slow
def test_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """It brings the core and what that needs, and is imported in under 2.5 seconds. Without any compiler it has its C
    kernels, and trains what `make demo` trains."""
    source, venv = tmp_path / "source", tmp_path / "venv"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    constraints = str(source / "constraints.txt")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")},
        "PIP_CONSTRAINT": constraints,
        "PIP_BUILD_CONSTRAINT": constraints,
    }
    wheels = tmp_path / "wheels"
    words = ["wheel", "-q", "--no-deps", "--wheel-dir", wheels, "."]
    subprocess.run([python, "-m", "pip", *words], cwd=source, env=environment, check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", wheel], cwd=tmp_path, env=environment, check=True)
    environment["PATH"] = str(venv / "bin")
    assert not any(shutil.which(name, path=environment["PATH"]) for name in ("cc", "gcc", "clang"))
    code = (
        "import time; begin = time.perf_counter(); import statewise; seconds = time.perf_counter() - begin; "
        "assert seconds < 2.5, seconds; "
        "import importlib.metadata as m; names = {d.metadata['Name'].lower() for d in m.distributions()}; "
        f"assert {CORE} <= names and not {{'pytest', 'hypothesis', 'ruff', 'mypy'}} & names, names; "
        "print(statewise.Mamba2Config(d_state=16).build(32).d_model)"
    )
    result = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "32\n"), result.stderr
    command = [venv / "bin" / "statewise"]
    subprocess.run([*command, "--version"], cwd=tmp_path, env=environment, check=True)
    subprocess.run([python, source / "tests" / "package" / "installed.py"], cwd=tmp_path, env=environment, check=True)
    words = ["train", "--preset", "demo", "--minutes", "0.5", "--out", "runs/demo"]
    subprocess.run([*command, *words], cwd=tmp_path, env=environment, check=True)
    said = subprocess.run(
        [*command, "evaluate", "runs/demo", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert json.loads(said.stdout)["bits_per_byte"] < 3, said.stdout + said.stderr
