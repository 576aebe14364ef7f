"""What a run is said to take is what it takes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from estimated import run_of
from places import TESTS
from toy_task import toy, toy_run
from training_runs import small_run, train_config, with_train
from typer.testing import CliRunner

import statewise as sw
from statewise import kernels
from statewise.cli import app
from statewise.configuration import assign
from statewise.errors import ConfigError
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.training import RunConfig, memory_check, memory_estimate
from statewise.training.config import ParallelConfig
from statewise.training.memory_estimate import estimate_memory
from statewise.training.presets import PRESETS
from statewise.training.rehearsal import rehearsing
from statewise.training.tasks import open_task, run_types

LAYERS: dict[str, Any] = {
    "mamba": sw.MambaConfig(),
    "mamba2": sw.Mamba2Config(),
    "s4d": sw.S4DConfig(),
    "h3": sw.H3Config(),
    "kalman": sw.KalmanConfig(),
    "attention": BlockConfig(mixer=sw.AttentionConfig(n_heads=4), mlp=MLPConfig(expand=4)),
}


def measured(configs: list[RunConfig]) -> list[int]:
    """How far a micro-batch of each, forwards and backwards, raises the resident memory of a process of its own."""
    here = TESTS
    done = subprocess.run(
        [sys.executable, here / "resident_memory.py"],
        input=pickle.dumps(configs),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux, where the peak can be started again"
)
def test_the_estimate_is_what_a_process_takes(tmp_path: Path) -> None:
    cases = [(name, "plain") for name in LAYERS]
    cases += [*((name, "gradient_checkpointing") for name in ("mamba", "attention")), ("mamba2", "bfloat16")]
    configs = []
    for name, how in cases:
        settings: dict[str, Any] = {"gradient_checkpointing": how == "gradient_checkpointing"}
        precision = "bfloat16" if how == "bfloat16" else "float32"
        configs.append(run_of(tmp_path, LAYERS[name], precision=precision, **settings))
    for case, config, taken in zip(cases, configs, measured(configs), strict=True):
        found = estimate_memory(config)
        step = found.peak - found.parameters - found.moments
        # Tables made on first use and, in bfloat16, oneDNN's own copies are not among the tensors that are counted
        assert 0.8 < step / taken < 1.05, case


@pytest.mark.parametrize("backend", ["c", "torch"])
def test_what_operators_take_inside_counts(backend: str) -> None:
    """Beside its outputs an operator has scratch memory in C, or tensors of its own in PyTorch."""
    if backend == "c" and not sw.native.available():
        pytest.skip("needs the C kernels")
    x, log_a = torch.randn(2, 300, 4, 8), -torch.rand(2, 300, 4)
    B, h0 = torch.randn(2, 300, 1, 16), torch.zeros(2, 4, 8, 16)
    with kernels.use(backend), rehearsing(torch.device("cpu")) as rehearsal:
        given = [rehearsal.imagine(m) for m in (x, log_a, B, h0)]
        given[0].requires_grad_()
        before = rehearsal.live
        y, state = kernels.ssd.ssd(given[0], given[1], given[2], given[2], given[3])
        outputs = sum(m.untyped_storage().nbytes() for m in (y, state))
        assert rehearsal.live - before == outputs  # saved tensors are the inputs
        inside = rehearsal.peak - before - outputs
        assert inside > 0
        y.sum().backward()
        assert given[0].grad is not None
        del y, state, given
        assert rehearsal.live == 0


def test_a_rehearsal_by_hand() -> None:
    with rehearsing(torch.device("cpu")) as rehearsal:
        weight = rehearsal.imagine(torch.zeros(100, 50)).requires_grad_()
        assert rehearsal.live == 100 * 50 * 4
        hidden = torch.ones(30, 100) @ weight  # the ones are saved, since the weight's gradient needs them
        assert rehearsal.live == 4 * (100 * 50 + 30 * 100 + 30 * 50)
        y = hidden.relu().sum()
        del hidden
        assert rehearsal.live == 4 * (100 * 50 + 30 * 100 + 30 * 50 + 1)  # relu keeps its output only
        assert rehearsal.peak == 4 * (100 * 50 + 30 * 100 + 2 * 30 * 50 + 1)
        y.backward()
        assert weight.grad is not None
        assert weight.grad.shape == (100, 50)
        assert (torch.arange(6) > 3).nonzero().tolist() == [[4], [5]]  # integers are real
        assert bool(weight.isfinite().all())  # checks pass
        assert not bool(weight.isnan().any())
    assert not sw.native._rehearsing


def test_the_estimate_leaves_all_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    estimate_memory(run_of(tmp_path, BlockConfig(mixer=sw.Mamba2Config(), dropout=0.1), 1))
    assert torch.equal(torch.rand(2), expected)


def test_the_parts(tmp_path: Path) -> None:
    found = estimate_memory(run_of(tmp_path, sw.MambaConfig(), 2))
    model = run_of(tmp_path, sw.MambaConfig(), 2).model.build()
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    assert (found.parameters, found.gradients, found.moments) == (parameters, parameters, 2 * parameters)
    assert found.peak <= found.parameters + found.gradients + found.moments + found.activations + found.temporary
    half = estimate_memory(run_of(tmp_path, sw.MambaConfig(), 2, batch_size=4))
    assert half.activations == pytest.approx(found.activations / 2, rel=0.05)
    again = estimate_memory(run_of(tmp_path, sw.MambaConfig(), 2, accumulation=2))
    assert again.peak > found.peak  # the gradients of the micro-batch before are there as well
    carried = estimate_memory(run_of(tmp_path, sw.MambaConfig(), 2, carry_state=True))
    assert carried.peak > 0.9 * found.peak


def test_several_processes_share(tmp_path: Path) -> None:
    config = run_of(tmp_path, sw.MambaConfig(), 4)

    def of(n_ranks: int, **parallel: Any) -> Any:
        shared = with_train(config, parallel=ParallelConfig(**parallel))
        return estimate_memory(shared, n_ranks=n_ranks)

    alone, by_rows = of(1), of(2)
    assert (by_rows.parameters, by_rows.moments) == (alone.parameters, alone.moments)
    assert by_rows.activations == pytest.approx(alone.activations / 2, rel=0.05)
    pieces = of(2, sequence=2)
    assert pieces.activations == pytest.approx(alone.activations / 2, rel=0.05)
    sharded = of(4, data="fsdp")
    assert sharded.parameters == pytest.approx(alone.parameters / 4, abs=1)
    assert sharded.moments == pytest.approx(alone.moments / 4, abs=4)
    assert alone.moments / 2 < of(2, tensor=2).moments < alone.moments  # the embedding is whole
    # Rank 0 draws the whole beside its part, and each gathers one tensor at a time to save
    assert (alone.begin, alone.save, by_rows.begin, by_rows.save, pieces.save) == (0, 0, 0, 0, 0)
    assert sharded.begin == pytest.approx(alone.parameters / 4, abs=1)
    largest = max(4 * parameter.numel() for parameter in config.model.build().parameters())
    assert sharded.save == of(2, tensor=2).save == 2 * largest
    assert ("share of the beginning", memory_estimate.size(sharded.begin)) in sharded.table().rows
    assert ("to save", memory_estimate.size(sharded.save)) in sharded.table().rows


def test_parameters_that_no_machine_holds_are_not_followed() -> None:
    """A convolution of 10^12 heads is a loop over them."""
    run = assign(
        PRESETS["copying"](),
        ['model.layers=[{"type": "S4DConfig"}]', "model.layers.0.n_heads=1000000000000"],
        types=run_types(),
    )
    with pytest.raises(ConfigError, match=r"TB of parameters, which no machine holds; use a smaller one"):
        estimate_memory(run)


@pytest.mark.usefixtures(toy.__name__)
def test_any_model_can_be_estimated() -> None:
    assert estimate_memory(toy_run()).peak > 0


def test_the_bound_is_one(tmp_path: Path) -> None:
    for layer in (sw.MambaConfig(), LAYERS["attention"], sw.S4Config(), sw.LSSLConfig(d_state=32)):
        model = sw.LanguageModelConfig(vocab_size=257, d_model=32, layers=(layer,))
        config = small_run(tmp_path, model=model, length=48, batch_size=1)
        bound = memory_check._bound(config.model.build(), open_task(config).batches[0])
        assert 2 * estimate_memory(config).peak < bound


def test_the_command_prints_it_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = small_run(tmp_path).data.source  # type: ignore[attr-defined]
    arguments = ["train", "--preset", "tiny", "--data", text, "--estimate"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert '"peak": ' in result.output
    assert '"fits": true' in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_the_table() -> None:
    sizes = {"parameters": 2_000_000, "gradients": 1, "moments": 3, "activations": 4, "temporary": 5}
    found = memory_estimate.MemoryEstimate(device="cpu", **sizes, peak=7_250_000_000, available=5_000_000_000_000)
    table = found.table()
    assert table.rows[0] == ("parameters", "2 MB")
    assert table.rows[-2:] == [("at the peak", "7.25 GB"), ("free now", "5 TB")]
    assert found.fits
    assert not replace(found, available=1).fits
    assert replace(found, available=None).table().rows[-1] == ("free now", "not known")
    assert train_config(steps=1).check_memory
