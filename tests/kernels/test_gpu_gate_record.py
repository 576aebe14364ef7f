"""The gate's record is of today's kernels: without Triton, and so wherever the tests run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from statewise import kernels
from statewise.kernels import gpu
from statewise.kernels.gpu import gate, sources

RECORD = Path(__file__).parents[2] / "experiments/results/gpu-gate.json"


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_the_gate_has_seen_this_kernel(kernel: str) -> None:
    found = json.loads(RECORD.read_text("utf-8"))[kernel]
    assert found["sources"] == sources.digest(sources.sources(kernel)), (
        f"the Triton files of {kernel} have changed since they passed the gate; "
        "run `make gpu-check` and commit experiments/results/gpu-gate.json"
    )
    assert found["builds"] > 0
    assert found["faulty"] == 0


def test_a_kernel_is_made_of_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(kernel: str) -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in sources.sources(kernel)}

    assert names("gated_rms_norm") >= {"gated_rms_norm/triton.py", "rms_norm/triton.py"}
    assert names("vandermonde") == {
        "gpu/triton_products.py",
        "vandermonde/triton.py",
        "vandermonde/triton_kernels.py",
    }
    rooms = tmp_path / "kernels"
    shutil.copytree(Path(kernels.__file__).parent, rooms, ignore=shutil.ignore_patterns("*.c", "*.h", "__pycache__"))
    monkeypatch.setattr(sources, "_ROOMS", rooms)
    before = {kernel: sources.digest(sources.sources(kernel)) for kernel in gpu.KERNELS}
    with (rooms / "rms_norm/triton.py").open("a") as file:
        file.write("# changed\n")
    changed = {kernel for kernel in gpu.KERNELS if sources.digest(sources.sources(kernel)) != before[kernel]}
    assert changed == {"rms_norm", "gated_rms_norm"}


def test_a_short_run_builds_all_of_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = json.loads(RECORD.read_text("utf-8"))
    kept["ssd"]["sources"] = "of another day"
    del kept["step"]
    (tmp_path / "record.json").write_text(json.dumps(kept), "utf-8")
    same = gate.recorded(tmp_path / "record.json", ["ssd", "cauchy", "step", "vandermonde"])
    assert same == ["cauchy", "vandermonde"]
    targets = [("ahead", None), ("ahead", None), ("back", ("sm_80",)), ("back", ("sm_90",)), ("back", None)]
    builds = [SimpleNamespace(name=name, targets=only) for name, only in targets]
    monkeypatch.setattr(gate, "module", lambda kernel: SimpleNamespace(builds=lambda: builds))
    chosen = gate._chosen(["ssd", "cauchy"], ["sm_90", "gfx942"], same)
    assert [task[1:] for task in chosen if task[0] == "cauchy"] == [
        (0, "sm_90"),
        (0, "gfx942"),
        (3, "sm_90"),
        (4, "gfx942"),
    ]
    assert len([task for task in chosen if task[0] == "ssd"]) == 7
