"""A run that cannot fit does not begin; what is free here."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from estimated import run_of
from training_runs import small_run, train_config, with_train

import statewise as sw
from statewise import cli
from statewise.checkpoints.empty import TooLargeError, build_empty
from statewise.data.synthetic_languages import InductionHeadConfig
from statewise.errors import ConfigError
from statewise.memory import available_memory
from statewise.models import shapes
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.training import RunConfig, memory_check, memory_estimate, train_run
from statewise.training.memory_check import require_memory
from statewise.training.memory_estimate import estimate_memory
from statewise.training.tasks import open_task


def refuse_beyond(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    monkeypatch.setattr(memory_estimate, "available_memory", lambda device: n_bytes)


def test_a_run_that_cannot_fit_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_beyond(monkeypatch, 60_000_000)
    config = run_of(tmp_path, sw.MambaConfig(), steps=1)
    with pytest.raises(ConfigError, match=r"needs 7\d\.\d MB of memory, and 60 MB are free on cpu") as caught:
        train_run(config, tmp_path / "run")
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
        train_run(config, tmp_path / "run")
    assert train_run(with_train(config, check_memory=False), tmp_path / "run").step == 1


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
