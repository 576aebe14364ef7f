"""A model that is exact by itself: its calls, its gradients outside of any block, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from exact_cases import HYBRIDS, differing
from torch import Tensor

import statewise as sw
from statewise import native
from statewise.decoding import Decoder, why_not
from statewise.kernels.exact import is_exact

pytestmark = pytest.mark.skipif(not native.available(), reason="exact mode needs the C kernels")


def model_and_tokens() -> tuple[sw.LanguageModel, Tensor]:
    torch.manual_seed(0)
    return HYBRIDS["Mamba-2 and attention"].build().eval(), torch.randint(23, (3, 17))


def gradients(model: sw.LanguageModel, tokens: Tensor, slope: Tensor) -> list[Tensor]:
    y, _ = model(tokens)
    return [y, *torch.autograd.grad(y, [*model.parameters()], slope)]


def test_it_is_exact_without_a_block() -> None:
    model, tokens = model_and_tokens()
    slope = torch.randn(3, 17, 23)
    with sw.exact():
        wanted = gradients(model, tokens, slope)
    assert differing(gradients(model, tokens, slope), wanted)
    model.exact = True
    assert not differing(gradients(model, tokens, slope), wanted)
    assert not is_exact()
    with torch.no_grad():
        features, _ = model.features(tokens)
        assert not differing(model.head(features), wanted[0])
        assert not differing(model(tokens[1:2])[0], wanted[0][1:2])
    model.exact = False
    assert differing(gradients(model, tokens, slope), wanted)


def test_pieces_in_one_graph_have_its_gradients() -> None:
    torch.manual_seed(0)
    mixer = sw.AttentionConfig(n_heads=2).build(16).eval()
    mixer.exact = True
    x, slope = torch.randn(2, 1, 12, 16)
    found = []
    for size in (12, 5):
        z, state, outputs = x.clone().requires_grad_(), mixer.initial_state(1), []
        for piece in z.split(size, 1):
            y, state = mixer(piece, state)
            outputs.append(y)
        found.append(torch.autograd.grad(torch.cat(outputs, 1), z, slope))
    assert not differing(*found)


def test_buffers_are_freed_as_usual() -> None:
    model, tokens = model_and_tokens()
    model.exact = True
    loss = model(tokens)[0].square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with pytest.raises(sw.InputError, match="no second derivative"):
        torch.autograd.grad(model(tokens)[0].sum(), [*model.parameters()], create_graph=True)


def test_it_generates_and_goes_back_exactly() -> None:
    model, tokens = model_and_tokens()
    with sw.exact():
        wanted = [token.log_probabilities for token in sw.generate(model, tokens, max_new_tokens=20, temperature=0)]
    model.exact = True
    found = [token.log_probabilities for token in sw.generate(model, tokens, max_new_tokens=20, temperature=0)]
    assert not differing(found, wanted)
    assert "exact" not in str(model.config)
    assert "exact=True" in repr(model)
    assert why_not(model) is not None
    with pytest.raises(sw.InputError, match="exact mode takes no step in C"):
        Decoder(model)
    with torch.no_grad():
        _, state = model(tokens, sw.rewindable(model.initial_state(3), last=8))
        _, wanted_state = model(tokens[:, :-3], model.initial_state(3))
    assert not differing(state.at(3).layers[0], wanted_state.layers[0])


def test_a_rewindable_state_refuses_a_gradient_elsewhere() -> None:
    model, tokens = model_and_tokens()
    model.exact = True
    y, _ = model(tokens, sw.rewindable(model.initial_state(3), last=4))
    with pytest.raises(sw.InputError, match="would not be exact here"):
        y.sum().backward()


def test_copies_keep_it() -> None:
    model, _ = model_and_tokens()
    model.exact = True
    assert copy.deepcopy(model).exact
    assert model.freeze().exact
    assert all(layer.exact for layer in model.blocks)
    with pytest.raises(sw.InputError, match="expected True or False"):
        model.exact = 1  # type: ignore[assignment]
