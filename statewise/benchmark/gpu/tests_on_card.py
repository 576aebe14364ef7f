"""The tests marked ``cuda``, the laws and the tests of the Triton kernels, on the card: one process a file."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from statewise.benchmark.gpu.stages import Item, Settings, Skipped

ROOT = Path(__file__).resolve().parents[3]  # of a checkout
LIMIT = 180.0  # seconds for one file, or a part of one
# Of files that one process does not end in time, what chooses the laws of each part; together all of them
PARTS = {
    "tests/operators/test_operators.py": (
        "test_laws and -13] and not DenseLTV",
        "past_65",
        "test_laws and -2]",
        "DenseLTV-13]",
        "test_laws and -1]",
    ),
    "tests/mixers/test_attention.py": ("many_blocks", "test_laws and [17-3-", "test_laws and [1-1-"),
}
QUICK = ("tests/hippo/test_hippo_projection.py",)
NEEDED = ("pytest", "hypothesis")
MARK = re.compile(r"^@?\s*(pytestmark = )?pytest\.mark\.cuda", re.MULTILINE)


def marked(settings: Settings) -> dict[str, Item]:
    """Every file with a test that is marked so."""
    _require_tests()
    files = sorted(
        path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.cuda" in path.read_text("utf-8")
    )
    names = QUICK if settings.quick else [str(path.relative_to(ROOT)) for path in files]
    return {name: partial(run_file, name, ["-m", "cuda"], {}) for name in names}


def laws(settings: Settings) -> dict[str, Item]:
    """The batteries of operators and mixers, and the tests that Triton's interpreter runs elsewhere.

    What takes longest comes first, since several run at once.
    """
    _require_tests()
    found: dict[str, Item] = {}
    # fixtures ask for deterministic algorithms, which cuBLAS has with this alone
    on_device = {"STATEWISE_TEST_DEVICE": settings.device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if settings.quick:
        operators = "tests/operators/test_operators.py"
        return {operators: partial(run_file, operators, ["-k", "test_laws and DenseLTV-2"], on_device)}
    for name, parts in PARTS.items():
        for part in parts:
            found[f"{name}, {part}"] = partial(run_file, name, ["-k", part], on_device)
    if importlib.util.find_spec("triton") is not None:
        files = sorted((ROOT / "tests/kernels").glob("test_triton_*.py"))
        for path in files:
            if path.name != "test_triton_canary.py":  # it is about the CPU
                name = str(path.relative_to(ROOT))
                found[name] = partial(run_file, name, [], {**on_device, "STATEWISE_KERNELS": "triton"})
    for path in sorted((ROOT / "tests/mixers").glob("test_*.py")):
        if "check_mixer_laws" in path.read_text("utf-8"):
            name = str(path.relative_to(ROOT))
            if name not in PARTS:
                found[name] = partial(run_file, name, ["-k", "laws"], on_device)
    return found


def run_file(name: str, options: list[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """How many tests passed, and of those that did not the names and the first lines of what they said."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", name, "-p", "no:cacheprovider", f"--junitxml={report}", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {LIMIT:.0f} s"}
        if not report.exists():
            return {"error": f"pytest ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"}
        return _counted(ElementTree.parse(report))


def _counted(report: ElementTree.ElementTree[Any]) -> dict[str, Any]:
    passed, skipped, failures = 0, 0, {}
    for case in report.iter("testcase"):
        fault = next((part for part in case if part.tag in ("failure", "error")), None)
        if fault is not None:
            said = re.sub(r"\s+", " ", fault.get("message") or "")
            failures[f"{case.get('classname')}.{case.get('name')}"] = said[:300]
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "skipped": skipped, "failed": len(failures), "failures": failures}


def _require_tests() -> None:
    if not (ROOT / "tests" / "conftest.py").exists():
        raise Skipped("the tests are not here; run it in a checkout of the repository")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Skipped(f"{' and '.join(missing)} not installed; pip install {' '.join(missing)}")
