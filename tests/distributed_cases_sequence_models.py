"""Models of which every rank reads a piece of each row: outputs, gradients, states, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_cases_sequence import close, cut, own, summed
from distributed_harness import Place, case
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.mixers.s4d import S4DConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.language_model import LanguageModel
from statewise.training.distributed.sequence import apply_sequence_parallel

MAMBA2 = sw.Mamba2Config(d_state=4, d_head=4, chunk_length=4)
MLP = sw.MLPConfig(expand=2)
HYBRID = (
    sw.BlockConfig(mixer=MAMBA2, mlp=MLP),
    sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2, n_taps=3), mlp=MLP),
    sw.H3Config(d_state=4),
)


def language_model(layers: tuple[Any, ...] = HYBRID, **fields: Any) -> LanguageModel:
    torch.manual_seed(0)
    return sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=layers, **fields).build().double()


def classifier(**fields: Any) -> Any:
    torch.manual_seed(0)
    config = {"n_classes": 3, "d_input": 2, "d_model": 8, "layers": (MAMBA2, S4DConfig(d_state=4)), **fields}
    return SequenceClassifierConfig(**config).build().double()


def tokens(rows: int = 3) -> Tensor:
    return torch.randint(11, (rows, 23), generator=torch.Generator().manual_seed(2))


def some_starts() -> Tensor:
    starts = torch.zeros(3, 23, dtype=torch.bool)
    starts[0, 3] = starts[0, 11] = starts[1, 0] = starts[2, 5] = True
    return starts


def check(model: Any, x: Tensor, here: slice | None = None, **masks: Tensor) -> Tensor:
    """Outputs and gradients of the pieces are those of whole rows; gives the outputs of whole rows."""
    here = own() if here is None else here
    pooled = getattr(model, "pooling", None) is not None
    y, _ = model(x, **masks)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    if "lengths" in masks and not pooled:
        weight = weight * (torch.arange(x.shape[1]) < masks["lengths"][:, None])[..., None]
    learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    want = torch.autograd.grad((y * weight).sum(), list(learned.values()), materialize_grads=True)
    applied = apply_sequence_parallel(model)
    here_or_all = slice(None) if pooled else here
    part, expected = weight[:, here_or_all], y[:, here_or_all]
    with torch.no_grad():
        alone, _ = model(x[:, here], **cut(masks, here))
    got, state = model(x[:, here], **cut(masks, here))
    assert state is None
    close(got * (part != 0), expected * (part != 0), "outputs")
    close(alone * (part != 0), expected * (part != 0), "outputs without gradients")
    gradients = torch.autograd.grad((got * part).sum(), list(learned.values()), materialize_grads=True)
    n_alike = dist.get_world_size() if pooled else 1
    for name, gradient, expected in zip(learned, gradients, want):
        close(summed(gradient) / n_alike, expected, f"gradient of {name}", 1e-9)
    applied.remove()
    return y


@case(2, 4)
def sequence_language_models(place: Place) -> None:
    """Documents begin and rows end within pieces; positions are learned; layers are computed again for gradients."""
    model = language_model(max_positions=23)
    check(model, tokens(), lengths=torch.tensor([23, 4, 12]))
    model.gradient_checkpointing = True
    check(model, tokens())
    check(model, tokens(), starts=some_starts(), lengths=torch.tensor([23, 4, 12]))


@case(2)
def sequence_layers_that_hand_on_values(place: Place) -> None:
    first = sw.RWKV7Config(d_head=4, decay_rank=2, rate_rank=2, gate_rank=2)
    model = language_model((first, sw.ChannelMixConfig(), replace(first, value_rank=2)), embedding_norm="layer")
    check(model, tokens(), starts=some_starts(), lengths=torch.tensor([23, 4, 12]))


@case(2, 4)
def sequence_classifiers(place: Place) -> None:
    """With each pooling every rank has the outputs of whole rows, ragged or not; without one those of its steps."""
    x = torch.randn(3, 23, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    lengths = torch.tensor([23, 4, 12])
    for pooling in ("mean", "last", "attention", None):
        check(classifier(pooling=pooling), x, lengths=lengths)
    check(classifier(), x)
    check(classifier(pooling=None), x, starts=some_starts())
    check(classifier(d_input=None, vocab_size=11), tokens(), lengths=lengths)


@case(2, 4)
def sequence_frames(place: Place) -> None:
    """Pieces of whole frames; a row's last samples that fill none are not read, as in one process."""
    x = torch.randn(2, 24, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    piece = 24 // place.size
    here = slice(place.rank * piece, (place.rank + 1) * piece)
    check(classifier(frame_length=3), x, here)
    check(classifier(frame_length=3), x, here, lengths=torch.tensor([24, 8]))


@case(2, 4)
def sequence_batch_norm(place: Place) -> None:
    """Statistics over the whole rows, in training; the running ones follow them."""
    x = torch.randn(3, 23, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    layers = (sw.BlockConfig(mixer=S4DConfig(d_state=4), mlp=MLP, norm="batch"),) * 2
    alone, model = classifier(layers=layers), classifier(layers=layers)
    alone(x)
    for lengths in (None, torch.tensor([23, 4, 12])):
        check(classifier(layers=layers), x, **({} if lengths is None else {"lengths": lengths}))
    apply_sequence_parallel(model)
    model(x[:, own()])
    for (name, one), other in zip(alone.named_buffers(), model.buffers()):
        close(other, one, name)


@case(2, 4)
def sequence_state_of_whole_rows(place: Place) -> None:
    """A state given is that before the whole rows, one that comes back that behind them, the same on every rank."""
    layers = (MAMBA2, S4DConfig(d_state=4))
    for model, x in (
        (language_model(layers, max_positions=60), tokens()),
        (classifier(pooling="mean", d_input=None, vocab_size=11), tokens()),
    ):
        starts = {"starts": some_starts()} if isinstance(model, LanguageModel) else {}
        _, state = model(x, model.initial_state(3), **starts)
        y, after = model(x, state)
        weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
        apply_sequence_parallel(model)
        here = own()
        _, state = model(x[:, here], model.initial_state(3), **cut(starts, here))
        got, found = model(x[:, here], state)
        for one, other in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(after)):
            close(one, other, "state")
        expected = y if getattr(model, "pooling", None) is not None else y[:, here]
        close(got, expected, "outputs")
        (got * weight[:, : got.shape[1]]).sum().backward()


@case(2, 4)
def sequence_frozen_parameters(place: Place) -> None:
    """The first rank has reached a layer from no parameter that learns, the others have: all hear of the gradients."""
    model = language_model()
    for module in (model.embedding, model.blocks[0], model.blocks[2].mixer):
        module.requires_grad_(False)
    check(model, tokens())


@case(2)
def sequence_two_passes_at_once(place: Place) -> None:
    """Two passes forward before one backward pass of both, layers computed again: none takes the other's states."""
    model, here = language_model(), own()
    model.gradient_checkpointing = True
    first, second = tokens(), tokens().flip(1)
    loss = model(first)[0].square().sum() + 2 * model(second)[0].square().sum()
    want = torch.autograd.grad(loss, list(model.parameters()))
    apply_sequence_parallel(model)
    one, two = (model(x[:, here])[0].square().sum() for x in (first, second))
    for gradient, expected in zip(torch.autograd.grad(one + 2 * two, list(model.parameters())), want):
        close(summed(gradient), expected, "gradient", 1e-9)


@case(2)
def sequence_disabled_and_removed(place: Place) -> None:
    """A model reads whole rows by itself within ``disabled``, as a copy of it does, and when the pieces are over."""
    model, x, here = language_model(), tokens(), own()
    names = set(vars(model))
    y = model(x)[0].detach()
    applied = apply_sequence_parallel(model)
    with applied.disabled():
        close(model(x)[0], y, "alone")
        close(model.freeze()(x)[0], y, "frozen")
        close(copy.deepcopy(model)(x)[0], y, "copied")
    close(copy.deepcopy(model)(x[:, here])[0], y[:, here], "a copy reads pieces too")
    applied.remove()
    close(model(x)[0], y, "removed")
    assert set(vars(model)) == names
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@case(2)
def sequence_refusals(place: Place) -> None:
    """On every rank, so that none waits for another."""
    both = classifier(layers=(S4DConfig(d_state=4), S4DConfig(d_state=4, bidirectional=True)))
    with pytest.raises(ConfigError, match=r"layers\[1\] reads in both directions.*bidirectional=False"):
        apply_sequence_parallel(both)
    forecaster = sw.ForecasterConfig(horizon=2, d_model=8, layers=(MAMBA2,)).build()
    with pytest.raises(ConfigError, match="not a Forecaster"):
        apply_sequence_parallel(forecaster)
    with pytest.raises(ConfigError, match="runs on CUDA only"):
        apply_sequence_parallel(language_model(), attention="ring")
    with pytest.raises(ConfigError, match="'rings' is unknown"):
        apply_sequence_parallel(language_model(), attention="rings")
    model = language_model()
    apply_sequence_parallel(model)
    with pytest.raises(InputError, match="no state is carried"):
        model(tokens(), model.initial_state(3))
    with pytest.raises(InputError, match="at least one in each"):
        model(tokens()[:, : 5 * place.rank])
    carried = language_model((MAMBA2,))
    apply_sequence_parallel(carried)
    with pytest.raises(InputError, match=r"needs states of one form.*the state given to it is float32"):
        carried(tokens(), carried.initial_state(3, dtype=torch.float32))
    framed = classifier(frame_length=3)
    apply_sequence_parallel(framed)
    with pytest.raises(InputError, match="cuts a frame of frame_length=3"):
        framed(torch.randn(1, 10, 2, dtype=torch.float64))
    with pytest.raises(InputError, match="must be a SequenceState"):
        framed(torch.randn(1, 9, 2, dtype=torch.float64), model.initial_state(1))
