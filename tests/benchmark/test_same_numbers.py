"""The script that compares the numbers of two revisions, benchmarks/same_numbers.py."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from places import ROOT

SCRIPT = ROOT / "benchmarks" / "same_numbers.py"


@pytest.fixture(scope="module")
def same_numbers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("same_numbers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["same_numbers"] = module  # where its dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


def test_the_same_revision_has_the_same_numbers(
    same_numbers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "before.json"
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)  # other tests go on in this process
    monkeypatch.setattr(sys, "argv", ["same_numbers.py", "--out", str(path), "--only", "mamba2, float32"])
    assert same_numbers.main() == 0
    monkeypatch.setattr(sys, "argv", ["same_numbers.py", "--against", str(path), "--only", "mamba2, float32"])
    assert same_numbers.main() == 0
    assert "no number differs" in capsys.readouterr().out

    record = json.loads(path.read_text())
    changed = sorted(record["digests"])[0]
    record["digests"][changed]["outputs"] = "another"
    path.write_text(json.dumps(record))
    assert same_numbers.main() == 1
    assert f"{changed}: other outputs" in capsys.readouterr().out


def test_every_preset_is_among_the_cases(same_numbers: ModuleType) -> None:
    names = {name for name, _ in same_numbers.model_cases()}
    assert {f"model {name}" for name in same_numbers.MODEL_PRESETS} <= names
    assert {f"run {name}" for name in same_numbers.RUN_PRESETS} <= names
