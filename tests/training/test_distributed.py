"""Several processes train as one does: the cases of distributed_cases_*.py, which run in one set of processes."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed_harness import load_cases, outcome_of, run_killed, run_program
from places import ROOT
from training_runs import curve, train_config, with_train

from statewise import checkpoints
from statewise.configuration import to_dict
from statewise.errors import ConfigError
from statewise.training import read_run, train_run
from statewise.training.config import ParallelConfig
from statewise.training.distributed import launch
from statewise.training.distributed.several import own_gpu

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not hasattr(os, "fork"), reason="needs gloo and fork"
)
ALL = [(world, name) for name, (_, worlds) in load_cases().items() for world in worlds]


@pytest.fixture(scope="session")
def distributed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the cases left, which ran when the first test asked for them; one folder for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "distributed"
    run_program(folder)
    return folder


@pytest.mark.parametrize(("world", "name"), ALL, ids=[f"{name}-on-{world}" for world, name in ALL])
def test_distributed(distributed_folder: Path, world: int, name: str) -> None:
    outcome = outcome_of(distributed_folder, world, name)
    assert outcome.failure is None, f"{outcome.failure}\n{(distributed_folder / 'done').read_text()[-4000:]}"


def test_distributed_runs_go_on_with_any_number_of_processes(distributed_folder: Path, tmp_path: Path) -> None:
    """Two ranks saved it at step 4: one process, four ranks by two layouts, and one that trains alone, all agree."""
    saved, alone = distributed_folder / "saved-by-two", tmp_path / "alone"
    config = replace(read_run(saved), train=replace(read_run(saved).train, parallel=ParallelConfig()))
    train_run(config, alone)
    shutil.copytree(saved, tmp_path / "on-one")
    result = train_run(config, tmp_path / "on-one", resume=True)
    assert result.checkpoint is not None
    assert checkpoints.load(result.checkpoint).config == config.model
    curves = {"on one": curve(tmp_path / "on-one", "train")}
    curves["by two"] = curve(distributed_folder / "straight-by-two", "train")
    by_four = outcome_of(distributed_folder, 4, "four_go_on_from_two").returned[0]
    curves |= {f"by four, {found['how']}": found["curve"] for found in by_four}
    expected = curve(alone, "train")
    assert len(expected) == 8
    for name, lines in curves.items():
        assert len(lines) == 8, name
        for line, other in zip(lines, expected):
            for key in ("loss", "gradient_norm", "lr"):
                assert math.isclose(line[key], other[key], rel_tol=1e-5), (name, line["step"], key)


def test_distributed_options_need_processes(tmp_path: Path, distributed_folder: Path) -> None:
    config = read_run(distributed_folder / "saved-by-two")
    run = with_train(config, parallel=ParallelConfig(tensor=2, sequence=2))
    with pytest.raises(ConfigError, match="there is one process; start the run with torchrun --nproc-per-node 4"):
        train_run(run, tmp_path / "run")


@pytest.mark.parametrize(("cuda", "nccl", "expected"), [(False, False, "gloo"), (True, True, "cpu:gloo,cuda:nccl")])
def test_distributed_backends(monkeypatch: pytest.MonkeyPatch, cuda: bool, nccl: bool, expected: str) -> None:
    """What the ranks agree on is on the CPU, also where the model is not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    assert launch.choose_backends() == expected


def test_distributed_group_without_a_cpu_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(ConfigError, match="the backends 'cuda:nccl', none of them for the CPU; start it with"):
        launch.require_cpu_backend()


@pytest.mark.parametrize(
    ("n_gpus", "n_local", "visible", "expected"),
    [(4, 4, None, 3), (8, 4, None, 3), (1, 4, "3", 0), (1, 4, None, None), (2, 4, None, None)],
)
def test_distributed_gpu_of_each_process(
    monkeypatch: pytest.MonkeyPatch, n_gpus: int, n_local: int, visible: str | None, expected: int | None
) -> None:
    """NCCL refuses two processes on one GPU, in words that nobody would understand."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(n_local))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if expected is not None:
        assert own_gpu() == torch.device("cuda", expected)
        return
    with pytest.raises(ConfigError, match=f"4 processes on this machine with {n_gpus} GPUs; start at most one"):
        own_gpu()


@pytest.mark.parametrize("wrong", [{"data": "dp"}, {"tensor": 0}, {"sequence": -1}])
def test_distributed_options_out_of_range(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"ParallelConfig.{next(iter(wrong))}="):
        train_config(steps=1, parallel=ParallelConfig(**wrong))  # type: ignore[arg-type]


def test_distributed_run_goes_on_after_killed_ranks(distributed_folder: Path, tmp_path: Path) -> None:
    """kill -9 between saves, of rank 0 in a save, and of another rank in a save: the agent of torchrun starts all anew,
    and the run is to the bit what it is when nobody disturbs it."""
    undisturbed = outcome_of(distributed_folder, 2, "nobody_disturbs_it").returned[0]
    found = run_killed(tmp_path, 2, [(1, "step", 3), (0, "save", 6), (1, "save", 4)])
    assert found == {"steps": [12, 12], "before": [0, 2, 2, 2], "dead": [True, True, True]}
    assert curve(tmp_path / "killed") == undisturbed


def test_distributed_command(distributed_folder: Path, tmp_path: Path) -> None:
    """torchrun itself, with the command of docs/distributed.md."""
    run = with_train(read_run(distributed_folder / "saved-by-two"), steps=2, parallel=ParallelConfig())
    file = tmp_path / "run.json"
    file.write_text(json.dumps(to_dict(run)))
    words = ["-m", "statewise", "train", "--config", str(file), "--out", str(tmp_path / "run")]
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        + [*words, "--set", "train.parallel.data=fsdp"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        },
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    kinds = [json.loads(line)["kind"] for line in result.stdout.splitlines()]
    assert kinds == ["start", "train", "train", "evaluation", "checkpoint", "end"]
