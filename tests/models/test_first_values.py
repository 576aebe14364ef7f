"""Layers of RWKV-7 that mix their values with those of the first one of their group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import statewise as sw
from statewise import native
from statewise.errors import ConfigError
from statewise.mixers.rwkv7 import RWKV7

FIRST = sw.RWKV7Config(d_head=4, decay_rank=2, rate_rank=2, gate_rank=2)
NEXT = replace(FIRST, value_rank=3)
CHANNELS = sw.ChannelMixConfig(expand=2)


def drawn(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return model.double()


def language_model(*layers: sw.MixerConfig | sw.BlockConfig) -> Any:
    torch.manual_seed(0)
    return drawn(sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=layers, embedding_norm="layer").build())


def values_of(mixer: RWKV7, x: Tensor) -> Tensor:
    before = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
    return mixer.v_proj(x + mixer.mu["v"] * (before - x))


def seen(model: Any, tokens: Tensor) -> list[Tensor]:
    """What each layer's mixer reads."""
    inputs: list[Tensor] = []
    hooks = [block.mixer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for block in model.blocks]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return inputs


@torch.no_grad()
def test_they_are_the_first_layers_of_the_group() -> None:
    """Where the share of these is 1, the layer's own projection of values says nothing."""
    model = language_model(FIRST, CHANNELS, NEXT, FIRST, NEXT, NEXT)
    tokens = torch.randint(11, (2, 9))
    mixers = [block.mixer for block in model.blocks]
    for mixer in mixers:
        if isinstance(mixer, RWKV7) and mixer.value_net is not None:
            mixer.value_net.up.weight.zero_()
            mixer.value_net.up.bias.fill_(1e4)
    inputs, outputs = seen(model, tokens), model(tokens)[0]
    for i, first in ((2, 0), (4, 3), (5, 3)):
        mixer: Any = FIRST.build(8).double()
        mixer.load_state_dict({k: v for k, v in mixers[i].state_dict().items() if "value_net" not in k})
        given = values_of(mixers[first], inputs[first])

        def as_given(x: Tensor, given: Tensor = given) -> Tensor:
            return given

        mixer.v_proj.forward = as_given
        expected, _ = mixer(inputs[i])
        mixers[i].v_proj.weight.normal_()
        torch.testing.assert_close(expected, _output(model, i, tokens))
    torch.testing.assert_close(model(tokens)[0], outputs)


def _output(model: Any, i: int, tokens: Tensor) -> Tensor:
    found: list[Tensor] = []
    hook = model.blocks[i].mixer.register_forward_hook(lambda *args: found.append(args[2][0]))
    model(tokens)
    hook.remove()
    return found[0]


def test_gradients_are_the_same_when_layers_are_read_again() -> None:
    model, tokens = language_model(FIRST, CHANNELS, NEXT, CHANNELS, NEXT), torch.randint(11, (2, 9))
    gradients = []
    for again in (False, True):
        model.gradient_checkpointing = again
        model.zero_grad()
        model(tokens)[0].square().mean().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert all(gradient.abs().max() > 0 for gradient in gradients[0].values())
    torch.testing.assert_close(gradients[1], gradients[0])


def test_gradients_are_those_of_the_function() -> None:
    model, tokens = language_model(FIRST, NEXT, NEXT), torch.randint(11, (1, 5))
    weight = model.blocks[0].mixer.v_proj.weight

    def loss(moved: Tensor) -> Tensor:
        weights = dict(model.named_parameters()) | {"layers.0.mixer.v_proj.weight": moved}
        return torch.func.functional_call(model, weights, (tokens,))[0].square().mean()

    assert torch.autograd.gradcheck(loss, weight.detach().clone().requires_grad_())


@torch.no_grad()
def test_other_models_hand_them_on_too() -> None:
    torch.manual_seed(0)
    fields = {"d_model": 8, "layers": (FIRST, CHANNELS, NEXT)}
    classifier = drawn(sw.SequenceClassifierConfig(d_input=2, n_classes=3, **fields).build())
    forecaster = drawn(sw.ForecasterConfig(d_target=1, horizon=2, **fields).build())
    for model, x in ((classifier, torch.randn(2, 9, 2).double()), (forecaster, torch.randn(2, 9, 1).double())):
        before = model(x)[0]
        state = model.initial_state(2)
        for piece in x.split([4, 1, 4], 1):
            y, state = model(piece, state)
        torch.testing.assert_close(y, before)
        model.blocks[2].mixer.value_net.up.bias.fill_(1e4)
        model.blocks[2].mixer.v_proj.weight.normal_()
        changed = model(x)[0]
        model.blocks[2].mixer.v_proj.weight.normal_()
        torch.testing.assert_close(model(x)[0], changed)


@pytest.mark.parametrize("build", [language_model, lambda *layers: sw.ForecasterConfig(
    d_model=8, d_target=1, horizon=2, layers=layers).build()])  # fmt: skip
def test_a_group_begins_with_a_layer_that_gives_them(build: Any) -> None:
    with pytest.raises(ConfigError, match=r"layers\[0\] mixes its values .*; set value_rank=None for the first"):
        build(NEXT, FIRST)


@torch.no_grad()
def test_generates_and_is_exported_as_any_other(tmp_path: Any) -> None:
    model = language_model(FIRST, CHANNELS, NEXT, CHANNELS).float().eval()
    prompt = torch.randint(11, (1, 6))
    text = [int(token.ids) for token in sw.generate(model, prompt, max_new_tokens=5, temperature=0)]
    read = prompt
    for token in text:
        assert int(model(read)[0][0, -1].argmax()) == token
        read = torch.cat([read, torch.tensor([[token]])], 1)
    sw.save(model, tmp_path / "model")
    torch.testing.assert_close(sw.load(tmp_path / "model")(prompt)[0], model(prompt)[0])
    assert sw.explain(model).way == ("C" if native.available() else "PyTorch")
