"""Several models side by side: each is what it would be alone."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map
from training import small_model, small_run

import statewise.train.stacked_dropout  # noqa: F401 (registers an operator)
from statewise import kernels
from statewise.data.labelled import LabelledDataConfig
from statewise.data.labelled_batches import LabelledBatch
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.series import SeriesDataConfig
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.mixers.lmu import LMUConfig
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.mamba3 import Mamba3Config
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.mixers.s5 import S5Config
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.mlp import MLPConfig
from statewise.train import RunConfig, TrainConfig
from statewise.train.course import learning_rate
from statewise.train.run_folder import open_run
from statewise.train.run_state import RunState
from statewise.train.stack import Member, Stack
from statewise.train.stack_folder import seeds_and_rates
from statewise.train.stacked_dropout import RandomNumbers
from statewise.train.update import loss_function, update

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Doubled:
    """Batches with their numbers in float64."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.steps_per_epoch = batches, batches.steps_per_epoch

    def __getitem__(self, step: int) -> Any:
        return tree_map(lambda x: x.double() if torch.is_tensor(x) and x.is_floating_point() else x, self.batches[step])


@contextmanager
def members(runs: Mapping[str, RunConfig], folder: Path) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        made = []
        for name, run in runs.items():
            state = RunState(stack.enter_context(open_run(folder / name, run, resume=False)))
            if torch.get_default_dtype() == torch.float64:
                state.batches = Doubled(state.batches)  # type: ignore[assignment]
            made.append(Member(name, state, RandomNumbers(state.device)))
        yield made


def language(folder: Path) -> RunConfig:
    """Dropout, packed documents, gradients of two micro-batches, clipping that acts."""
    layers = (
        BlockConfig(mixer=Mamba2Config(d_state=8, d_head=8, chunk_length=16), dropout=0.2),
        BlockConfig(mixer=AttentionConfig(n_heads=2, n_kv_heads=1, dropout=0.3), mlp=MLPConfig(), dropout=0.1),
    )
    return small_run(folder, model=small_model(layers=layers), steps=25, accumulation=2, clip_norm=0.5, lr=1e-2)


def carried(folder: Path) -> RunConfig:
    return small_run(folder, steps=25, carry_state=True, lr=1e-2)


def classifier(folder: Path) -> RunConfig:
    layer = BlockConfig(mixer=S4DConfig(d_state=8, dropout=0.1), norm="batch", dropout=0.2)
    model = SequenceClassifierConfig(n_classes=10, d_input=1, d_model=16, layers=(layer, layer))
    train = TrainConfig(steps=25, batch_size=8, lr=1e-2, dynamics_lr_max=1e-3, save_minutes=None)
    return RunConfig(model=model, data=LabelledDataConfig(), train=train)


def classifier_of_every_row(folder: Path) -> RunConfig:
    """The last batch of an epoch, here of 14 steps, has fewer rows than the others."""
    run = classifier(folder)
    return replace(run, train=replace(run.train, batch_size=100, drop_last=False))


def forecaster(folder: Path) -> RunConfig:
    pytest.importorskip("statsmodels")
    data = SeriesDataConfig(source="sunspots", horizon=11, history=33)
    layer = S4DConfig(d_state=8, dropout=0.2)
    model = ForecasterConfig(
        horizon=11, d_model=16, layers=(layer,), quantiles=(0.1, 0.5, 0.9), scaling_steps=22, dropout=0.2
    )
    return RunConfig(model=model, data=data, train=TrainConfig(steps=25, batch_size=8, lr=1e-2, schedule="wsd"))


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("make", [language, carried, classifier, classifier_of_every_row, forecaster])
def test_each_becomes_what_it_would_be_alone(make: Any, tmp_path: Path) -> None:
    """Two seeds with two learning rates: parameters, buffers, moments, losses and norms after 25 steps."""
    runs = seeds_and_rates(make(tmp_path), 2, [1e-2, 3e-3])
    with members(runs, tmp_path / "stacked") as side_by_side, members(runs, tmp_path / "alone") as alone:
        stack = Stack(side_by_side)
        assert stack.refusal() is None
        losses: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(25):
            went, wrong = stack.update()
            assert not wrong
            for step in went:
                losses[step.member.name].append((step.loss, step.norm))
        for member, one in zip(side_by_side, alone):
            state, expected = member.state, []
            loss_of = loss_function(one.state)
            with one.numbers.in_use():
                for _ in range(25):
                    expected.append(update(one.state, learning_rate(one.state), loss_of, loss_of))
            torch.testing.assert_close(torch.tensor(losses[one.name]), torch.tensor(expected), rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(state.model.state_dict(), one.state.model.state_dict(), rtol=1e-7, atol=1e-9)
            assert state.progress.step == 25
            for (name, p), (_, q) in zip(state.model.named_parameters(), one.state.model.named_parameters()):
                ours, theirs = state.optimizer.state[p], one.state.optimizer.state[q]
                assert ours["step"] == theirs["step"] == 25, name
                torch.testing.assert_close(ours["exp_avg"], theirs["exp_avg"], rtol=1e-6, atol=1e-9)


MIXERS: dict[str, MixerConfig] = {
    "attention": AttentionConfig(n_heads=2),
    "attention, window": AttentionConfig(n_heads=2, window=4),
    "lmu": LMUConfig(theta=8.0, d_state=4),
    "gss": GSSConfig(d_state=4, expand=2, bottleneck=2),
    "h3": H3Config(d_state=4),
    "h3, wide heads": H3Config(d_state=4, d_head=2, d_shift=3),
    "linear attention": LinearAttentionConfig(n_heads=2),
    "lmu, parallel": LMUConfig(theta=8.0, d_state=4, parallel=True),
    "lssl": LSSLConfig(d_state=4),
    "lssl, fixed A": LSSLConfig(d_state=4, learn_A=False),
    "mamba": MambaConfig(d_state=4),
    "mamba2": Mamba2Config(d_state=4, d_head=4, n_groups=2),
    "mamba3": Mamba3Config(d_state=4, d_head=4),
    "s4": S4Config(d_state=4),
    "s4d": S4DConfig(d_state=4, n_heads=2),
    "s5": S5Config(d_state=4),
    "s4d, real, both directions": S4DConfig(d_state=4, initialization="real", bidirectional=True),
}


def all_configs(base: type = MixerConfig) -> set[type]:
    """The classes of mixers' configs in the package that can be built."""
    below = {cls for sub in base.__subclasses__() for cls in {sub, *all_configs(sub)}}
    return {c for c in below if c.__module__.startswith("statewise.") and not getattr(c, "__abstractmethods__", None)}


def test_every_mixer_is_tried() -> None:
    assert {type(config) for config in MIXERS.values()} == all_configs()


@pytest.mark.parametrize("length", [1, 7, 20])
@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_stacks(name: str, length: int, tmp_path: Path) -> None:
    """With rows of one length, which text without documents has too; losses as alone."""
    model = SequenceClassifierConfig(n_classes=8, vocab_size=10, d_model=8, layers=(MIXERS[name],), pooling=None)
    data = MemoryDataConfig(task="copying", length=length + 12, n_copied=2)
    run = RunConfig(model=model, data=data, train=TrainConfig(steps=5, batch_size=4, lr=1e-2))
    with members(seeds_and_rates(run, 3), tmp_path / "run") as made:
        alone = [loss_function(m.state)(m.state.batches[0], None)[0].item() for m in made]
        stack = Stack(made)
        assert stack.refusal() is None
        went, _ = stack.update()
        assert [step.loss for step in went] == pytest.approx(alone, rel=1e-5)


def test_every_operator_has_a_rule() -> None:
    """But for those that only a backward pass calls, which is outside of vmap."""
    for module in pkgutil.iter_modules(kernels.__path__, "statewise.kernels."):
        importlib.import_module(module.name)
    names = {
        name.partition("::")[2]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("statewise::") and not re.search(r"_backward$|_adjoint$", name)
    }
    assert {"ssd", "linear", "vandermonde", "selective_scan", "stacked_dropout_noise"} <= names
    without = [
        n for n in names if not torch._C._dispatch_has_kernel_for_dispatch_key(f"statewise::{n}", "FuncTorchBatched")
    ]
    assert not without, f"no vmap rule: {without}; give register() one (statewise/kernels/batching.py)"


def test_a_model_that_vmap_cannot_run_is_refused_in_a_line(tmp_path: Path) -> None:
    base = small_run(tmp_path, steps=2)
    for field in ("compile", "gradient_checkpointing"):
        changed = replace(base, train=replace(base.train, **{field: True}))
        with members(seeds_and_rates(changed, 2), tmp_path / field) as made:
            assert Stack(made).refusal() == f"train.{field}=true works on one model at a time"


def test_attention_with_a_carried_state_is_refused(tmp_path: Path) -> None:
    """Its slots are read on the host, row by row."""
    layer = AttentionConfig(n_heads=2, window=8)
    run = small_run(tmp_path, model=small_model(layers=(layer,)), carry_state=True, steps=2)
    with members(seeds_and_rates(run, 2), tmp_path / "run") as made:
        refusal = Stack(made).refusal()
        assert refusal is not None
        assert "\n" not in refusal


@pytest.mark.parametrize("name", MIXERS)
def test_rows_of_different_lengths(name: str, tmp_path: Path) -> None:
    """Batches of different lengths and paddings, one of them with no padding, side by side."""
    pytest.importorskip("sklearn")
    model = SequenceClassifierConfig(n_classes=10, d_input=1, d_model=8, layers=(MIXERS[name],))
    run = RunConfig(model=model, data=LabelledDataConfig(), train=TrainConfig(steps=4, batch_size=4))
    with members(seeds_and_rates(run, 3), tmp_path / "run") as made:
        for member, lengths in zip(made, ([9, 12, 20, 5], [7, 7, 3, 1], None)):
            batch = member.state.batches[0]
            longest = 17 if lengths is None else max(lengths)
            cut = LabelledBatch(
                batch.inputs[:, :longest], batch.targets, None if lengths is None else torch.tensor(lengths)
            )
            member.state.batches = [cut]
        alone = [loss_function(m.state)(m.state.batches[0], None)[0].item() for m in made]
        went, _ = Stack(made).update()
        assert [step.loss for step in went] == pytest.approx(alone, rel=1e-5)
