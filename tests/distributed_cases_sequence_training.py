"""Training with a piece of each row on every rank, alone and beside the other ways; long rows; the ring's stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from distributed_cases_sequence import close, summed
from distributed_harness import Place, case
from distributed_models import MIXERS, a_run, together
from torch import Tensor

import statewise as sw
from statewise.train.distributed import sequence, sequence_attention
from statewise.train.distributed.sequence import apply_sequence_parallel, sequence_parallel
from statewise.train.tasks.language import token_loss


def _register(model: str) -> None:
    def equals_one_process(place: Place) -> None:
        together(place, a_run(place, model), sequence=place.size)

    equals_one_process.__name__ = f"sequence_training_{model}"
    case(2, 4)(equals_one_process)


for _model in MIXERS:
    _register(_model)


@case(2)
def sequence_training_layers_computed_again(place: Place) -> None:
    together(place, a_run(place, "hybrid", gradient_checkpointing=True, accumulation=2), sequence=2)


@case(4)
def sequence_training_beside_ddp(place: Place) -> None:
    together(place, a_run(place, "hybrid"), sequence=2, data="ddp")


@case(4)
def sequence_training_beside_fsdp(place: Place) -> None:
    together(place, a_run(place, "hybrid", gradient_checkpointing=True), sequence=2, data="fsdp")


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
        k, v = (sequence_attention._Gather.apply(x.transpose(1, 2), line, lengths).transpose(1, 2) for x in (k, v))
        time = torch.arange(k.shape[2])
        return attention(q, k, v, attn_mask=time <= time[-q.shape[2] :, None])

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
