"""Training with a piece of each row on every rank, alone and beside the other ways; long rows; the ring's stand-in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from distributed_cases_sequence import close, summed
from distributed_harness import Place, case
from distributed_models import MIXERS, a_run, parallel, require_close, single, steps, together
from torch import Tensor
from training_runs import train_config, with_train

import statewise as sw
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.errors import ConfigError, InputError
from statewise.mixers.s4d import S4DConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.training import RunConfig, train_run
from statewise.training.distributed import sequence, sequence_attention
from statewise.training.distributed.sequence import apply_sequence_parallel, sequence_parallel
from statewise.training.distributed.several import SeveralRanks
from statewise.training.tasks.language import token_loss

N_LAYERS = 3


def _register(model: str) -> None:
    def equals_one_process(place: Place) -> None:
        together(place, a_run(place, model), sequence=place.size)

    equals_one_process.__name__ = f"sequence_training_{model}"
    case(*((2, 4) if model == "hybrid" else (2,)))(equals_one_process)


for _model in MIXERS:
    _register(_model)


@case(2)
def sequence_training_layers_computed_again(place: Place) -> None:
    together(place, a_run(place, "hybrid", gradient_checkpointing=True, accumulation=2), sequence=2)


@case(2)
def sequence_training_carries_the_state(place: Place) -> None:
    """What the next batch begins with is the state behind whole rows, on every rank."""
    together(place, a_run(place, "mamba2", carry_state=True), sequence=2)
    together(place, a_run(place, "s4d", carry_state=True), sequence=2)


@case(2, 4)
def sequence_training_of_rows_and_steps(place: Place) -> None:
    """One target a row, the rows padded to a length that divides; and targets of which the first pieces have none."""
    layers = (sw.Mamba2Config(d_state=8, d_head=8, chunk_length=8), S4DConfig(d_state=8))
    rows = MemoryDataConfig(task="adding", length=18, n_train=16, n_validation=4, n_test=4)
    regressor = SequenceRegressorConfig(d_input=2, d_output=1, d_model=16, layers=layers)
    steps = MemoryDataConfig(task="copying", length=20, n_copied=4, n_train=16, n_validation=4, n_test=4)
    classifier = SequenceClassifierConfig(vocab_size=10, n_classes=8, d_model=16, layers=layers, pooling=None)
    for data, model in ((rows, regressor), (steps, classifier)):
        run = RunConfig(model=model, data=data, train=train_config(steps=8, batch_size=4, lr=1e-2))
        together(place, run, sequence=place.size)


@case(4)
def sequence_training_beside_ddp(place: Place) -> None:
    together(place, a_run(place, "hybrid"), sequence=2, data="ddp")


@case(4)
def sequence_training_beside_fsdp(place: Place) -> None:
    together(place, a_run(place, "hybrid", gradient_checkpointing=True), sequence=2, data="fsdp")


@case(2)
def sequence_training_beside_fsdp_gathers_whole_layers(place: Place) -> None:
    """Nothing is gathered within a layer, where a rank waits for the one before: also in bfloat16."""
    run = a_run(place, "hybrid", precision="bfloat16")
    ddp, _ = steps(place, parallel(run, sequence=2), SeveralRanks(), 1)
    fsdp, _ = steps(place, parallel(run, sequence=2, data="fsdp"), SeveralRanks(), 1)
    require_close(fsdp, ddp)
    together(place, a_regressor(gradient_checkpointing=True), sequence=2, data="fsdp")
    together(place, a_regressor("batch"), sequence=2, data="fsdp")


@case(2, 4)
def sequence_training_in_pieces(place: Place) -> None:
    """Ranks share each piece of a row: the steps are those of one process that reads whole rows."""
    n = place.size // (1 + (place.size == 4))  # on four, two ranks have half of the rows each
    for mixers, options in (("mamba2", {}), ("s4d", {"carry_state": True, "accumulation": 2})):
        run = a_run(place, mixers, **options)
        found, _ = steps(place, parallel(with_train(run, pieces=4), sequence=n), SeveralRanks())
        require_close(found, single(place, run))
    copying = MemoryDataConfig(task="copying", length=20, n_copied=4, n_train=16, n_validation=4, n_test=4)
    layers = (sw.Mamba2Config(d_state=8, d_head=8, chunk_length=8), S4DConfig(d_state=8))
    classifier = SequenceClassifierConfig(vocab_size=10, n_classes=8, d_model=16, layers=layers, pooling=None)
    answers = RunConfig(model=classifier, data=copying, train=train_config(steps=8, batch_size=4, lr=1e-2))
    for run in (a_regressor(), answers):
        found, _ = steps(place, parallel(with_train(run, pieces=2), sequence=n), SeveralRanks())
        require_close(found, single(place, run))


def a_regressor(norm: str = "layer", **how: Any) -> RunConfig:
    data = MemoryDataConfig(task="adding", length=32, n_train=16, n_validation=4, n_test=4)
    layers = (sw.BlockConfig(mixer=S4DConfig(d_state=8), norm=norm),) * 2
    model = SequenceRegressorConfig(d_input=2, d_output=1, d_model=16, layers=layers, pooling="last")
    return RunConfig(model=model, data=data, train=train_config(steps=8, batch_size=4, lr=1e-2, **how))


@case(2)
def sequence_training_refuses(place: Place) -> None:
    """Before a run is begun, what would not be exact or would wait for ever."""
    norm = a_regressor("batch", gradient_checkpointing=True)
    windows = (sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=4, window=6)),) * 2
    carried = a_run(place, carry_state=True)
    carried = replace(carried, model=replace(carried.model, layers=windows))
    cut = with_train(carried, carry_state=False, pieces=2)
    again = with_train(a_run(place, gradient_checkpointing=True), pieces=2)
    for run, message in (
        (cut, r"train.pieces=2 and train.parallel.sequence=2: a layer of attention"),
        (again, r"train.pieces=2, train.gradient_checkpointing=true and train.parallel.sequence=2: layers"),
        (norm, r"train.gradient_checkpointing=true and train.parallel.sequence=2: batch norm"),
        (carried, r"train.carry_state=true and train.parallel.sequence=2: a layer of attention"),
    ):
        with pytest.raises(ConfigError, match=message):
            train_run(parallel(run, sequence=2), place.folder / "cannot-be-cut")
        assert not (place.folder / "cannot-be-cut" / "run.json").exists()
        dist.barrier()
    model = norm.model.build()
    apply_sequence_parallel(model)
    model.gradient_checkpointing = True
    with pytest.raises(InputError, match="set gradient_checkpointing=False"):
        model(torch.randn(2, 4, 2))


@case(4)
def sequence_training_beside_tensor_parallel(place: Place) -> None:
    together(place, a_run(place, "hybrid"), sequence=2, tensor=2, data="fsdp")


@case(4)
def sequence_of_262_144_tokens(place: Place) -> None:
    """Four ranks, 65,536 tokens each, in float32: loss, gradient norm and features of one process."""
    torch.manual_seed(0)
    layers = (sw.Mamba2Config(d_state=8, d_head=8, chunk_length=256), sw.AttentionConfig(n_heads=1, window=16))
    model = sw.LanguageModelConfig(vocab_size=32, d_model=8, layers=layers).build()
    ids = torch.randint(32, (1, 262_145))
    inputs, targets = ids[:, :-1], ids[:, 1:]
    expected = [torch.zeros(3)]
    if place.rank == 0:
        features, _ = model.features(inputs)
        loss = token_loss(model, features, targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        expected = [torch.stack([loss.detach(), norm(gradients), features[0, -1].norm().detach()])]
    apply_sequence_parallel(model)
    piece = slice(place.rank * 65_536, (place.rank + 1) * 65_536)
    features, _ = model.features(inputs[:, piece])
    loss = token_loss(model, features, targets[:, piece]) / 4
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    last = features[0, -1].norm().detach() * (place.rank == 3)
    found = torch.stack([summed(loss), norm([summed(gradient) for gradient in gradients]), summed(last)])
    dist.broadcast(expected[0], 0)
    close(found, expected[0], "loss, norm of the gradient, norm of the last features", 1e-5)


def norm(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


@contextmanager
def gathered_attention() -> Iterator[None]:
    """What PyTorch's context parallelism makes of ``scaled_dot_product_attention``, by gathering."""
    attention, line = F.scaled_dot_product_attention, sequence.Line()

    def spread(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
        assert is_causal
        lengths = [q.shape[2]] * line.size
        earlier = (sequence_attention._Earlier.apply(x.transpose(1, 2), line, lengths).transpose(1, 2) for x in (k, v))
        k, v = (torch.cat(pair, 2) for pair in zip(earlier, (k, v)))
        step = torch.arange(k.shape[2])
        return attention(q, k, v, attn_mask=step <= step[-q.shape[2] :, None])

    with mock.patch.object(F, "scaled_dot_product_attention", spread):
        yield


@case(2, 4)
def sequence_ring(place: Place) -> None:
    """What is ours of the ring, the call and its gradients, around a stand-in for PyTorch's: CUDA alone has that."""
    torch.manual_seed(0)
    mixer = sw.AttentionConfig(n_heads=4, n_kv_heads=2).build(8).double()
    x = torch.randn(2, 24, 8, dtype=torch.float64)
    y, _ = mixer(x)
    weight = torch.randn_like(y)
    want = torch.autograd.grad((y * weight).sum(), list(mixer.parameters()))
    ring = sequence_attention.ring_attention(gathered_attention)
    here = slice(place.rank * 24 // place.size, (place.rank + 1) * 24 // place.size)
    with mock.patch.object(sequence, "choose_ring", return_value=ring):
        got = sequence_parallel(mixer, x[:, here])
    close(got, y[:, here], "outputs")
    gradients = torch.autograd.grad((got * weight[:, here]).sum(), list(mixer.parameters()))
    for gradient, expected in zip(gradients, want):
        close(summed(gradient), expected, "gradient")
    # Where a document begins on one rank, which alone is told of it, none of them goes round the ring
    starts = torch.zeros(2, 24, dtype=torch.bool)
    starts[1, 22] = True
    own = starts[:, here] if starts[:, here].any() else None
    with mock.patch.object(sequence, "choose_ring", return_value=ring):
        got = sequence_parallel(mixer, x[:, here], starts=own)
    close(got, mixer(x, starts=starts)[0][:, here], "outputs with a start")
    # and neither in float64: keys and values are gathered
    mine = sequence_attention.where_it_works(ring)
    with mock.patch.object(sequence, "choose_ring", return_value=mine):
        close(sequence_parallel(mixer, x[:, here]), y[:, here], "outputs by gathering")
    halves = x[:1].bfloat16().unflatten(-1, (2, 4))
    assert mine(halves, halves, halves) is None  # 24 steps
    assert mine(*(x[:1].repeat(1, 4, 1)[:, :32].unflatten(-1, (2, 4)),) * 3) is None  # float64


class Meeting(torch.autograd.Function):
    """In the middle of a layer a rank waits until the one ahead of it, forward or backward, is a layer further on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: Place, layer: int) -> Tensor:
        ctx.place, ctx.layer = place, layer
        meet(place, "forward", layer, place.rank - 1, layer + 1)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        meet(ctx.place, "backward", ctx.layer, ctx.place.rank + 1, ctx.layer - 1)
        return gradient, None, None


def meet(place: Place, direction: str, layer: int, other: int, other_layer: int) -> None:
    (place.folder / f"{direction}-{place.rank}-{layer}").touch()
    expected, end = place.folder / f"{direction}-{other}-{other_layer}", time.monotonic() + 30
    while 0 <= other < place.size and 0 <= other_layer < N_LAYERS and not expected.exists():
        assert time.monotonic() < end, f"rank {other} does not begin layer {other_layer} while {layer} is at work here"
        time.sleep(0.001)


@case(4)
def sequence_ranks_work_at_once(place: Place) -> None:
    """Each rank is a layer ahead of the one behind: 3 + 4 - 1 layers of a piece one after the other, and not 3 * 4."""
    layers = (sw.Mamba2Config(d_state=4, d_head=4),) * N_LAYERS
    model = sw.LanguageModelConfig(vocab_size=8, d_model=8, layers=layers).build()
    for layer, block in enumerate(model.blocks):
        block.mixer.in_proj.register_forward_pre_hook(
            lambda module, args, layer=layer: (Meeting.apply(args[0], place, layer),)
        )
    apply_sequence_parallel(model)
    model(torch.randint(8, (1, 4)))[0].sum().backward()
