"""What a run is said to take is what it takes, and one that cannot fit does not begin."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from places import TESTS
from toy_task import toy, toy_run
from training import small_run, train_config, with_train
from typer.testing import CliRunner

import statewise as sw
from statewise import cli, kernels
from statewise.checkpoints.empty import TooLargeError, build_empty
from statewise.cli import app
from statewise.configuration import assign
from statewise.data.synthetic_languages import InductionHeadConfig
from statewise.errors import ConfigError
from statewise.memory import available_memory
from statewise.models import shapes
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.train import RunConfig, memory_check, memory_estimate, train
from statewise.train.config import ParallelConfig
from statewise.train.memory_check import require_memory
from statewise.train.memory_estimate import estimate_memory
from statewise.train.presets import PRESETS
from statewise.train.rehearsal import rehearsing
from statewise.train.tasks import open_task, run_types

LAYERS: dict[str, Any] = {
    "mamba": sw.MambaConfig(),
    "mamba2": sw.Mamba2Config(),
    "s4d": sw.S4DConfig(),
    "h3": sw.H3Config(),
    "attention": BlockConfig(mixer=sw.AttentionConfig(n_heads=4), mlp=MLPConfig(expand=4)),
}


def run_of(folder: Path, layer: Any, n_layers: int = 2, **settings: Any) -> RunConfig:
    model = sw.LanguageModelConfig(vocab_size=257, d_model=128, layers=(layer,) * n_layers)
    return small_run(folder, model=model, **{"batch_size": 8, "length": 512, **settings})


# -- the estimate beside what a process takes ------------------------------------------------------------------------


def measured(config: RunConfig) -> int:
    """How far a micro-batch, forwards and backwards, raises the resident memory of a process of its own."""
    here = TESTS
    done = subprocess.run(
        [sys.executable, here / "resident_memory.py"],
        input=pickle.dumps(config),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux, where the peak can be begun anew")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "plain") for name in LAYERS),
        *((name, "gradient_checkpointing") for name in ("mamba", "attention")),
        ("mamba2", "bfloat16"),
    ],
)
def test_the_estimate_is_what_a_process_takes(tmp_path: Path, name: str, how: str) -> None:
    settings: dict[str, Any] = {"gradient_checkpointing": how == "gradient_checkpointing"}
    config = run_of(tmp_path, LAYERS[name], precision="bfloat16" if how == "bfloat16" else "float32", **settings)
    found = estimate_memory(config)
    step = found.peak - found.parameters - found.moments
    # Tables made on first use and, in bfloat16, oneDNN's own copies are not among the tensors that are counted
    assert 0.8 < step / measured(config) < 1.05


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


# -- the refusal -----------------------------------------------------------------------------------------------------


def refuse_beyond(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    monkeypatch.setattr(memory_estimate, "available_memory", lambda device: n_bytes)


def test_a_run_that_cannot_fit_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_beyond(monkeypatch, 60_000_000)
    config = run_of(tmp_path, sw.MambaConfig(), steps=1)
    with pytest.raises(ConfigError, match=r"needs 7\d\.\d MB of memory, and 60 MB are free on cpu") as caught:
        train(config, tmp_path / "run")
    said = str(caught.value)
    assert "\n" not in said
    for what in ("parameters", "gradients", "moments", "activations", "temporary", "train.check_memory=false"):
        assert what in said
    assert "train.gradient_checkpointing=true (" in said
    assert "train.batch_size=4 with train.accumulation=2 (" in said
    assert not (tmp_path / "run" / "run.json").exists()
    # what it says to do is enough
    task = open_task(config)
    require_memory(with_train(config, gradient_checkpointing=True), task)
    smaller = with_train(config, batch_size=4, accumulation=2)
    require_memory(smaller, open_task(smaller))
    refuse_beyond(monkeypatch, 1_000_000)
    with pytest.raises(ConfigError, match=r"use a smaller model, or train\.check_memory=false"):
        require_memory(config, task)


def test_no_smaller_micro_batches_where_the_last_rows_are_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sw.LanguageModelConfig(vocab_size=20, d_model=64, layers=(sw.MambaConfig(),))
    train = train_config(steps=1, batch_size=64, drop_last=False)
    config = RunConfig(model=model, data=InductionHeadConfig(n_train=100), train=train)
    refuse_beyond(monkeypatch, estimate_memory(config).peak - 1)
    said = []
    for drop_last in (True, False):
        run = replace(config, train=replace(train, drop_last=drop_last))
        with pytest.raises(ConfigError) as caught:
            require_memory(run, open_task(run))
        said.append("train.batch_size=32 with train.accumulation=2" in str(caught.value))
    assert said == [True, False]


def test_what_the_parameters_alone_refuse_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a tensor is larger than any that the machine has room for; the estimate has its numbers too."""
    config = run_of(tmp_path, sw.MambaConfig(), 1)
    task = open_task(config)
    n_bytes = sum(4 * p.numel() for p in config.model.build().parameters())
    refuse_beyond(monkeypatch, 4 * n_bytes - 1)
    monkeypatch.delattr(memory_check, "rehearse")
    with pytest.raises(ConfigError, match=r"for its parameters \([\d,.]+ \w+\), their gradients and moments alone"):
        require_memory(config, task)
    huge = replace(config, model=replace(config.model, vocab_size=2**50))
    with pytest.raises(TooLargeError, match=r"it has a tensor of [\d.e+]+ GB, which this machine has no room for"):
        build_empty(huge.model)
    with pytest.raises(ConfigError, match=r"the run needs [\d,]+ TB of memory for its parameters .* a smaller model"):
        require_memory(huge, task)
    found = estimate_memory(config, task)
    monkeypatch.setattr(memory_estimate, "build_empty", _no_room)
    assert estimate_memory(config, task) == found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"d_model": 10**12}, r"a model of 5e\+11 TB or more \(with a tensor of 62,500,000,032 x 2,000,000,000,000\)"),
        (
            {"vocab_size": 2**50},
            r"needs 576,461 TB of memory for its parameters, and 1 GB are free on cpu",
        ),
        ({"vocab_size": 10**400}, r"vocab_size is an integer of 1329 bits"),
        ({"d_model": 2**63}, "or more"),
        ({"layers": (sw.S4Config(),), "d_model": 10**6}, r"needs 8 TB of memory"),
        ({"layers": (sw.S4DConfig(d_state=10**7, n_systems=1),)}, r"needs 5\.2 GB of memory"),
        ({"layers": (sw.LSSLConfig(d_state=10**7),)}, "or more|needs"),
        ({"layers": (sw.AttentionConfig(n_heads=2**40),)}, r"AttentionConfig\.n_heads=1099511627776"),
        ({"layers": (BlockConfig(mixer=sw.MambaConfig(), mlp=MLPConfig(expand=1e30)),)}, "or more"),
    ],
)
def test_a_model_too_large_is_refused_by_number_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(shapes, "available_memory", lambda device: 10**9)
    settings: dict[str, Any] = {"vocab_size": 257, "d_model": 128, "layers": (sw.MambaConfig(),), **fields}
    with pytest.raises(ConfigError, match=said) as caught:
        sw.LanguageModelConfig(**settings).build()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_asking_for_room_changes_nothing_of_a_model(tmp_path: Path) -> None:
    config = run_of(tmp_path, sw.S4DConfig(B="normal"), 1).model
    torch.manual_seed(5)
    model, drawn = config.build(), torch.rand(1)
    torch.manual_seed(5)
    with shapes.unchecked():
        again = config.build()
    assert torch.equal(torch.rand(1), drawn)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
    with torch.device("meta"):  # where nothing has memory, anything may be built
        huge = replace(config, vocab_size=2**40).build()
    of_shapes = shapes.build_shapes(replace(config, vocab_size=2**40))
    assert {n: t.shape for n, t in huge.state_dict().items()} == {n: t.shape for n, t in of_shapes.state_dict().items()}


@pytest.mark.parametrize(
    "how", [["--out", "run"], ["--estimate"], ["--out", "run", "--set", "train.check_memory=false"]]
)
@pytest.mark.parametrize("field", ["model.d_model=1000000000000", "model.vocab_size=9223372036854775807"])
def test_the_command_line_refuses_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], field: str, how: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_run(tmp_path)
    assert cli.run(["train", "--preset", "demo", "--data", str(config.data.source), "--set", field, *how]) == 2
    said = capfd.readouterr().err
    assert said.startswith("statewise: error: ")
    assert said.count("\n") == 1
    assert re.search(r"\d [TG]B", said)


def test_what_ulimit_leaves(tmp_path: Path) -> None:
    limits = "Limit            Soft Limit    Hard Limit   Units\nMax address space         {}   unlimited     bytes\n"
    status = "Name:\tpython\nVmSize:\t  2000 kB\n"
    files = {"proc/meminfo": MEMINFO, "proc/self/status": status}
    assert system(tmp_path, {**files, "proc/self/limits": limits.format("unlimited")}) == 50_000_000 * 1024
    assert system(tmp_path, {**files, "proc/self/limits": limits.format(3_000_000)}) == 3_000_000 - 2_048_000


def _no_room(config: Any) -> Any:
    raise TooLargeError("no room")


def test_the_check_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_beyond(monkeypatch, 1000)
    config = small_run(tmp_path, steps=1, batch_size=1)
    with pytest.raises(ConfigError, match="memory"):
        train(config, tmp_path / "run")
    assert train(with_train(config, check_memory=False), tmp_path / "run").step == 1


def test_several_runs_side_by_side_need_several_times_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_of(tmp_path, sw.MambaConfig(), 2)
    needed = estimate_memory(config).peak
    refuse_beyond(monkeypatch, 2 * needed)
    task = open_task(config)
    require_memory(config, task, copies=2)
    with pytest.raises(ConfigError, match="for each of 3 runs"):
        require_memory(config, task, copies=3)


def test_a_small_run_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_run(tmp_path)
    task = open_task(config)
    monkeypatch.delattr(memory_check, "rehearse")
    require_memory(config, task)


def test_what_cannot_be_found_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_run(tmp_path)
    task = open_task(config)

    def by_numbers(*arguments: Any) -> Any:
        x = torch.rand(4)
        return x[x > 0.5].sum(), None  # as many as there are

    task.loss = by_numbers  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="cannot be estimated"):
        estimate_memory(config, task)
    refuse_beyond(monkeypatch, memory_check._least(config.model.build(), config.train.optimizer))
    require_memory(config, task)
    monkeypatch.setattr(memory_estimate, "available_memory", lambda device: None)
    require_memory(config, open_task(config))


def test_the_bound_is_one(tmp_path: Path) -> None:
    for layer in (sw.MambaConfig(), LAYERS["attention"], sw.S4Config(), sw.LSSLConfig(d_state=32)):
        model = sw.LanguageModelConfig(vocab_size=257, d_model=32, layers=(layer,))
        config = small_run(tmp_path, model=model, length=48, batch_size=1)
        bound = memory_check._bound(config.model.build(), open_task(config).batches[0])
        assert 2 * estimate_memory(config).peak < bound


# -- what is free ----------------------------------------------------------------------------------------------------


def system(folder: Path, files: dict[str, str]) -> int | None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return available_memory(torch.device("cpu"), proc=folder / "proc", groups=folder / "groups")


MEMINFO = "MemTotal:       64000000 kB\nMemFree:         1000000 kB\nMemAvailable:   50000000 kB\n"


def test_what_the_machine_has(tmp_path: Path) -> None:
    assert system(tmp_path, {"proc/other": ""}) is None
    assert system(tmp_path, {"proc/meminfo": MEMINFO}) == 50_000_000 * 1024
    assert system(tmp_path, {"proc/self/cgroup": "4:memory:/gone\nnonsense\n"}) == 50_000_000 * 1024


def test_what_a_control_group_may_take(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/jobs/mine\n",
        "groups/jobs/memory.max": "9000000\n",
        "groups/jobs/memory.current": "5000000\n",
        "groups/jobs/memory.stat": "anon 100\ninactive_file 200000\nactive_file 7\n",
        "groups/jobs/mine/memory.max": "max\n",
        "groups/jobs/mine/memory.current": "10\n",
    }
    assert system(tmp_path, files) == 4_200_000  # of the group above
    assert system(tmp_path, {"groups/jobs/mine/memory.max": "3000\n"}) == 2990
    assert system(tmp_path, {"groups/jobs/mine/memory.current": "4000\n"}) == 0


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "12:cpu,cpuacct:/a\n4:memory:/a/b\n",
        "groups/memory/memory.limit_in_bytes": "7000\n",  # in a container, where /a/b is not there
        "groups/memory/memory.usage_in_bytes": "1000\n",
        "groups/memory/memory.stat": "cache 4\ntotal_inactive_file 500\n",
    }
    assert system(tmp_path, files) == 6500


# -- the command -----------------------------------------------------------------------------------------------------


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
