"""Whole runs: stopped by a signal on any rank, taken up by any number of ranks, refused alike by all of them."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from distributed_harness import Place, case
from distributed_killed import killed_config
from distributed_models import ATTENTION, MAMBA2, a_run, parallel, steps, together
from distributed_runs import Heard, copied, require_equal, require_that_it_goes_on, trained
from resident_memory import give_back_at_once
from training_runs import curve, with_train

from statewise import checkpoints, cli
from statewise.benchmark.memory import raised_by
from statewise.checkpoints.empty import build_empty
from statewise.configuration import to_dict
from statewise.data.text import TextDataConfig
from statewise.errors import CheckpointError, ConfigError, DataError, StatewiseError, TrainingError
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.training import RunConfig, run_state, train_run
from statewise.training.distributed import tensors as parted
from statewise.training.distributed.several import SeveralRanks
from statewise.training.metrics import MetricsFile
from statewise.training.run_folder import RunFolder
from statewise.training.run_state import RunState
from statewise.training.tasks import open_task
from statewise.training.update import loss_function, update

SAVED, STRAIGHT = "saved-by-two", "straight-by-two"


def long_run(place: Place, **how: Any) -> RunConfig:
    """Eight steps on windows, half of which are saved by two ranks; and looks at the validation split between."""
    return parallel(a_run(place, "hybrid", evaluate_every=3), **how)


@case(2)
def a_run_is_saved_by_two(place: Place) -> None:
    """The signal comes to the last rank only; rank 0 writes, and speaks alone."""
    heard = Heard()
    result = trained(place, long_run(place, data="fsdp"), SAVED, stop=4, reporter=heard)
    assert (result.step, result.signal, result.exit_code) == (4, signal.SIGTERM, 143)
    assert ("stop" in heard.kinds) == (place.rank == 0)
    latest = checkpoints.resolve(place.folder / SAVED, "latest")
    names = {name for name, _ in long_run(place).model.build().named_parameters()}
    assert set(checkpoints.load(latest).state_dict()) >= names
    trained(place, long_run(place, data="fsdp"), STRAIGHT)


@case(2)
def two_go_on_bit_for_bit(place: Place) -> None:
    copied(place, SAVED, "on-two")
    result = trained(place, long_run(place, data="fsdp"), "on-two", resume=True)
    assert (result.step, result.signal) == (8, None)
    require_equal(place.folder / "on-two", place.folder / STRAIGHT)


@case(4)
def four_go_on_from_two(place: Place) -> list[dict[str, Any]]:
    """By other meshes than it was saved by; what the losses have to be, test_distributed.py compares."""
    curves = []
    for number, how in enumerate(({"data": "ddp"}, {"data": "fsdp", "tensor": 2})):
        copied(place, SAVED, f"on-four-{number}")
        trained(place, long_run(place, **how), f"on-four-{number}", resume=True)
        curves.append({"how": how, "curve": curve(place.folder / f"on-four-{number}", "train")})
    return curves


@case(2)
def dropout_and_carried_states_go_on_bit_for_bit(place: Place) -> None:
    window = replace(ATTENTION, window=6)
    layers = tuple(BlockConfig(mixer=mixer, dropout=0.2) for mixer in (MAMBA2, window))
    run = a_run(place, carry_state=True, accumulation=2, steps=6)
    run = replace(run, model=replace(run.model, layers=layers))
    require_that_it_goes_on(place, run, "dropout", 3)


@case(2)
def histories_of_several_sizes_come_together(place: Place) -> None:
    """With a window they have as many slots as they needed, and ranks read other documents."""
    torch.manual_seed(0)
    mixer = replace(ATTENTION, window=6).build(16)
    pasts = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0)).split(1)
    histories = [mixer(past[:, : 4 + 5 * i], mixer.initial_state(1))[1] for i, past in enumerate(pasts)]
    assert histories[0].keys.shape != histories[1].keys.shape
    both = parted.gather_rows((histories[place.rank],), dist.group.WORLD)[0]
    for i, history in enumerate(histories):
        own = parted.rows(both, i, 2)
        torch.testing.assert_close(mixer(pasts[0][:, :3], own)[0], mixer(pasts[0][:, :3], history)[0])


@case(4)
def carried_states_go_on_with_a_divided_model(place: Place) -> None:
    """Also of layers whose system is made of parameters, of which each rank has a part."""
    run = parallel(a_run(place, carry_state=True, steps=4), data="fsdp", tensor=2)
    layers = (MAMBA2, S4DConfig(d_state=8), S4Config(d_state=8), LSSLConfig(d_state=8))
    run = replace(run, model=replace(run.model, layers=layers))
    require_that_it_goes_on(place, run, "divided", 2)


@case(2)
def what_is_drawn_and_not_learned_is_rank_zeros(place: Place) -> None:
    """A B that stays as it was drawn is a buffer, of which every rank has all."""
    run = a_run(place)
    layers = (S4DConfig(d_state=8, B="normal", learn_B=False), BlockConfig(mixer=MAMBA2, dropout=0.0))
    run = replace(run, model=replace(run.model, layers=layers))
    for how in ({"data": "ddp"}, {"data": "fsdp"}, {"tensor": 2}):
        together(place, run, **how)


@case(4)
def no_rank_has_all_of_a_divided_model(place: Place) -> None:
    """But the first, once, which draws it: saving takes a tensor at a time, and so does a part for each rank."""
    if not Path("/proc/self/clear_refs").exists():
        return
    run = parallel(a_run(place, steps=1), data="fsdp")
    steps(place, run, SeveralRanks())  # what is loaded on first use does not count
    run = replace(run, model=replace(run.model, d_model=512, layers=(MAMBA2,) * 6))
    n_bytes = sum(4 * parameter.numel() for parameter in build_empty(run.model).parameters())
    ranks, states = SeveralRanks(), list[RunState]()
    give_back_at_once()
    folder = RunFolder(place.folder / "divided-memory", run)
    begin, _ = raised_by(lambda: states.append(RunState(folder, ranks=ranks)))
    state = states[0]
    eager = loss_function(state)
    update(state, run.train.optimizer.lr, ranks.loss_function(eager), eager)
    unlocked = mock.patch.object(RunFolder, "require_own")
    with unlocked, mock.patch.object(RunState, "_prune", return_value=None):  # there is no lock, and no run.json
        save, _ = raised_by(lambda: state.save(lambda: None) and None)
    give_back_at_once(1 << 25)  # as it is by itself in the long run
    assert save < 0.6 * n_bytes, f"saving took {save / n_bytes:.2f} models of rank {place.rank}"
    assert begin < (2 if place.rank == 0 else 0.6) * n_bytes, f"to begin took {begin / n_bytes:.2f} models"


@case(2)
def a_disk_that_is_full_while_the_parts_are_gathered(place: Place) -> None:
    """Rank 0 can write no more after some tensors: no rank waits for it, and the last good checkpoint stays."""
    run = parallel(a_run(place, steps=2, save_every=1), data="fsdp")
    whole = parted.Gathering.whole
    asked: list[parted.Gathering] = []

    def fails_later(self: parted.Gathering, tensor: torch.Tensor) -> torch.Tensor:
        if asked.count(self) == 5 and self is not asked[0]:  # within the second save
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        asked.append(self)
        return whole(self, tensor)

    refused = pytest.raises(CheckpointError, match=r"No space left on device; .*last good checkpoint is .*00000001")
    with mock.patch.object(parted.Gathering, "whole", fails_later), refused:
        train_run(run, place.folder / "full")
    dist.barrier()
    assert os.listdir(place.folder / "full" / "checkpoints") == ["step-00000001"]
    result = trained(place, run, "full", resume=True)
    trained(place, run, "not-full")
    assert result.step == 2
    require_equal(place.folder / "full", place.folder / "not-full")


@case(2)
def the_clock_is_rank_zeros(place: Place) -> None:
    """A budget in minutes ends all ranks at one step, also where their clocks differ."""
    run = a_run(place, steps=None, minutes=0.01)
    with mock.patch("time.monotonic", side_effect=clock(1000.0 * place.rank)):
        result = train_run(run, place.folder / "minutes")
    steps: list[Any] = [None] * place.size
    dist.all_gather_object(steps, (result.step, result.seconds))
    assert len(set(steps)) == 1


def clock(begin: float) -> Iterator[float]:
    """Each look is 0.1 s later, and the ranks' clocks are apart and run at different speeds."""
    now = begin
    while True:
        now += 0.1 + begin / 1e4
        yield now


@case(2)
def all_refuse_alike(place: Place) -> None:
    """What one rank, or rank 0 alone, cannot do is one error for all, and leaves no run."""
    run = a_run(place)
    other = with_train(run, lr=run.train.optimizer.lr * (1 + place.rank))
    with pytest.raises(ConfigError, match=r"train.optimizer.lr is 0.01 on rank 0 and 0.02 on rank 1"):
        train_run(other, place.folder / "refused")
    with pytest.raises(ConfigError, match=r"out is 'refused0' on rank 0 and 'refused1' on rank 1"):
        train_run(run, place.folder / f"refused{place.rank}")
    missing = replace(run, data=TextDataConfig(source=str(place.folder / "no-such-text")))
    with pytest.raises(DataError, match="no-such-text"):
        train_run(missing, place.folder / "refused")
    unmounted, full = DataError("the disk is not mounted"), CheckpointError("the disk is full")
    refused = pytest.raises(DataError, match="rank 1: the disk is not mounted")
    with only_on(1, place, run_state, "open_task", unmounted), refused:
        train_run(run, place.folder / "refused")
    with pytest.raises(ConfigError, match="does not divide the 2 processes"):
        train_run(parallel(run, tensor=3), place.folder / "refused")
    assert not (place.folder / "refused" / "run.json").exists()
    dist.barrier()
    train_run(with_train(run, steps=1), place.folder / "refused")
    with pytest.raises(CheckpointError, match="already holds a run"):
        train_run(run, place.folder / "refused")
    refused = pytest.raises(CheckpointError, match=r"the disk is full; the last good checkpoint is .*00000001")
    with only_on(0, place, checkpoints, "save", full), refused:
        train_run(run, place.folder / "refused", resume=True)
    refused = pytest.raises(CheckpointError, match=r"the disk is full; the last good checkpoint is .*00000001")
    with only_on(0, place, MetricsFile, "write", full), refused:
        train_run(run, place.folder / "refused", resume=True)


@contextmanager
def only_on(rank: int, place: Place, module: Any, name: str, error: StatewiseError) -> Iterator[None]:
    if place.rank != rank:
        yield
        return
    with mock.patch.object(module, name, side_effect=error):
        yield


@case(2)
def numbers_that_are_not_finite(place: Place) -> None:
    """The rows of one rank go wrong: all stop at that step, and with DDP the layer is named."""
    for data, named in (
        ("ddp", r"the first layer whose output is not finite is layers\.1"),
        ("fsdp", "the layer cannot be found while ranks share the layers"),
    ):
        run = parallel(a_run(place), data=data)
        refused = pytest.raises(TrainingError, match=f"step 3: the loss is nan; .*{named}")
        with mock.patch.object(run_state, "open_task", spoiled(place, run_state.open_task)), refused:
            train_run(run, place.folder / f"not-finite-{data}")
        dist.barrier()


def spoiled(place: Place, open_task: Any) -> Any:
    """A task whose loss is not a number in the third step of the last rank."""

    def spoil(run: RunConfig) -> Any:
        task = open_task(run)
        loss, n_calls = task.loss, 0

        def with_nan(model: Any, batch: Any, state: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            if place.rank == place.size - 1 and n_calls >= 3:
                handle = model.blocks[1].mixer.register_forward_hook(lambda m, i, o: (o[0] * float("nan"), o[1]))
                try:
                    return loss(model, batch, state)
                finally:
                    handle.remove()
            return loss(model, batch, state)

        task.loss = with_nan
        return task

    return spoil


@case(2)
def nobody_disturbs_it(place: Place) -> list[dict[str, Any]]:
    """What the run of distributed_killed.py has to come to."""
    a_run(place)  # writes the text
    train_run(killed_config(place.folder, "fsdp", 12), place.folder / "undisturbed")
    return curve(place.folder / "undisturbed")


@case(2)
def the_command_line_speaks_once(place: Place) -> None:
    """A mistake is one line of rank 0, and one exit code of all; several seeds side by side are one of them."""
    file = place.folder / f"run-{place.rank}.json"
    run = a_run(place, steps=1)
    file.write_text(json.dumps(to_dict(run)))
    out = str(place.folder / "by-command")
    environment = {"RANK": str(place.rank), "WORLD_SIZE": str(place.size)}
    for words, code, message in (
        (["--set", "train.parallel.tensor=3"], 2, "does not divide the 2 processes"),
        (["--set", "train.parallel.data=dp"], 2, "train.parallel.data='dp' is unknown"),
        (["--set", "model.vocab_size=3"], 2, "set model.vocab_size=257"),
        (["--seeds", "2"], 2, "several runs are begun in one process"),
        (["--lr", "1e-3", "--lrs", "1e-3"], 2, "--lr is for one learning rate and --lrs for several"),
        (["--print-config"], 0, '"parallel": {'),
        (["--set", "train.parallel.data=fsdp"], 0, "done after step 1"),
    ):
        errors, said = io.StringIO(), io.StringIO()
        with mock.patch.dict(os.environ, environment), redirect_stderr(errors), redirect_stdout(said):
            assert cli.run(["train", "--config", str(file), "--out", out, *words]) == code
        lines = errors.getvalue().splitlines()
        assert len(lines) == (1 if code and place.rank == 0 else 0)
        assert not lines or message in lines[0]
        assert (message in said.getvalue()) == bool(said.getvalue()) == (code == 0 and place.rank == 0)
        dist.barrier()


@case(2)
def fsdp_in_bfloat16_evaluates_saves_and_goes_on(place: Place) -> None:
    """Its matrices come in bfloat16, which a look at the validation split can use as a step does."""
    for name, matrices in (("adamw", "adamw"), ("muon", "muon")):
        run = a_run(place, "hybrid", precision="bfloat16", evaluate_every=2, steps=4, matrices=matrices)
        run, straight, stopped = parallel(run, data="fsdp"), f"bfloat16-{name}", f"bfloat16-{name}-stopped"
        result = trained(place, run, straight)
        task, model = open_task(run), checkpoints.load(checkpoints.resolve(place.folder / straight, "latest")).eval()
        with torch.no_grad():
            alone = task.validate(model)[task.metric]
        assert result.validation is not None
        assert abs(alone - result.validation) < 0.02 * alone, (alone, result.validation)
        trained(place, run, stopped, stop=2)
        trained(place, run, stopped, resume=True)
        require_equal(place.folder / stopped, place.folder / straight)
