"""`statewise benchmark errors`: every kernel is in it, and is as near to float64 as float32 can be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import statewise.kernels
from statewise import native
from statewise.benchmark.errors import Elementary, elementary_error, in_last_places
from statewise.benchmark.processor import describe_here
from statewise.benchmark.show import errors_tables
from statewise.cli import run


def test_every_kernel_is_near_its_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["benchmark", "errors", "--quick", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    folders = {path.parent.name for path in Path(statewise.kernels.__file__).parent.glob("*/native.py")}
    assert {one["name"] for one in record["kernels"]} == folders
    for one in record["kernels"]:
        for found in one["sides"].values():
            assert found["mean"] <= found["largest"] <= 2e-6, one
            assert found.get("gradients", 0.0) <= 1e-5, one
    assert len(record["elementary"]) == 6 * len(native.instruction_sets())
    assert all(one["largest"] <= 2 for one in record["elementary"])
    assert record["processor"] == describe_here()
    tables = errors_tables(record)
    assert tables[-1].notes[-1] == f"Measured on {describe_here()}."
    assert len(tables[-1].rows) == sum(len(one["sides"]) for one in record["kernels"])


def test_units_in_the_last_place() -> None:
    exact = torch.tensor([1.0, 1.5, 0.75, 1e-3], dtype=torch.float64)
    found = torch.nextafter(exact.float(), torch.tensor(math.inf))
    assert in_last_places(found, found.double(), 1e-38).tolist() == [0] * 4
    assert in_last_places(found[:3], exact[:3], 1e-38).tolist() == [1, 1, 1]
    assert in_last_places(found[2:3], exact[2:3], 1.0).tolist() == [0.5]


@pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
def test_a_wrong_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Elementary("exp", lambda x: torch.exp(x) * (1 + 2**-21))
    assert 3 <= elementary_error(off, 999_983)[0] <= 10
    assert elementary_error(Elementary("exp", lambda x: torch.exp(x / 2)), 999_983)[0] == math.inf  # not infinite there
