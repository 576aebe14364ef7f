"""A model that is exact by itself: its calls, its gradients outside of any block, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from exact_cases import HYBRIDS, differing
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import statewise as sw
from statewise import native
from statewise.decoding import Decoder, why_not
from statewise.evaluate.text.likelihood import score
from statewise.kernels.exact import is_exact
from statewise.serve.model import ServedModel

pytestmark = pytest.mark.skipif(not native.available(), reason="exact mode needs the C kernels")


def model_and_tokens() -> tuple[sw.LanguageModel, Tensor]:
    torch.manual_seed(0)
    return HYBRIDS["Mamba-2 and attention"].build().eval(), torch.randint(23, (3, 17))


def gradients(model: sw.LanguageModel, tokens: Tensor, slope: Tensor) -> list[Tensor]:
    y, _ = model(tokens)
    with sw.exact():
        return [y, *torch.autograd.grad(y, [*model.parameters()], slope)]


def test_it_is_exact_without_a_block() -> None:
    model, tokens = model_and_tokens()
    slope = torch.randn(3, 17, 23)
    with sw.exact():
        wanted = gradients(model, tokens, slope)
    with torch.no_grad():
        assert differing(model(tokens)[0], wanted[0])
    model.exact = True
    assert not differing(gradients(model, tokens, slope), wanted)
    assert not is_exact()
    with torch.no_grad():
        features, _ = model.features(tokens)
        assert not differing(model.head(features), wanted[0])
        assert not differing(model(tokens[1:2])[0], wanted[0][1:2])
    model.exact = False
    with torch.no_grad():
        assert differing(model(tokens)[0], wanted[0])


def test_a_gradient_elsewhere_is_refused() -> None:
    """Also of what a hook keeps of a layer, and of a state that can be rewound; a parameter's own hook runs once."""
    model, tokens = model_and_tokens()
    model.exact = True
    kept: list[Tensor] = []
    model.layers[0].register_forward_hook(lambda module, args, output: kept.append(output[0]))
    y, state = model(tokens, sw.rewindable(model.initial_state(3), last=4))
    refused = pytest.raises(sw.InputError, match=r"would not be exact here; run it within statewise.exact\(\)")
    behind = next(m for m in pytree.tree_leaves(state.state) if isinstance(m, Tensor) and m.requires_grad)
    for loss in (y.sum(), kept[0].sum(), behind.sum()):
        with refused:
            loss.backward(retain_graph=True)
    model.zero_grad()
    calls: list[Tensor] = []
    weight: Any = cast("Any", model.blocks[0].mixer).out_proj.weight
    weight.register_hook(calls.append)
    with sw.exact():
        model(tokens)[0].sum().backward()
    assert len(calls) == 1
    assert weight.grad is not None


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


def test_a_layer_alone_counts_for_what_reads_the_whole_model() -> None:
    model, tokens = model_and_tokens()
    model.blocks[1].exact = True
    assert not model.exact
    assert why_not(model) is not None
    with sw.exact():
        wanted = [token.log_probabilities for token in sw.generate(model, tokens, max_new_tokens=20, temperature=0)]
    found = [token.log_probabilities for token in sw.generate(model, tokens, max_new_tokens=20, temperature=0)]
    assert not differing(found, wanted)


def test_what_is_computed_beside_its_calls_is_exact_too() -> None:
    model, tokens = model_and_tokens()
    requests = [(tokens[i, :9].tolist(), tokens[i, 9 : 12 + i].tolist()) for i in range(3)]
    with sw.exact():
        wanted = score(model, requests)
    model.exact = True
    assert score(model, requests) == wanted
    options: dict[str, Any] = {"max_new_tokens": 12, "seed": 1}
    with sw.exact():
        drawn = [token.log_probabilities for token in sw.generate(model, tokens, **options)]
    found = [token.log_probabilities for token in sw.generate(model=model, prompt=tokens, **options)]
    assert not differing(found, drawn)
    assert not is_exact()


def test_a_run_does_not_take_it_in_silence(tmp_path: Path) -> None:
    model = sw.SequenceClassifierConfig(d_input=1, d_model=8, n_classes=2, layers=(sw.S4DConfig(d_state=4),)).build()
    model.exact = True
    data = torch.randn(12, 20, 1).numpy(), [0, 1] * 6
    with pytest.raises(sw.ConfigError, match=r"set=.*train\.exact"):
        sw.train(model, data, steps=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_traces_and_other_weights_are_refused() -> None:
    mixer = sw.AttentionConfig(n_heads=2).build(8).eval()
    x = torch.randn(1, 5, 8)
    with torch.no_grad(), sw.exact(), pytest.raises(sw.InputError, match="being traced"):
        torch.jit.trace(lambda z: mixer(z)[0], x, check_trace=False)
    with torch.no_grad(), sw.exact(), pytest.raises(sw.InputError, match="being traced"):
        make_fx(lambda z: mixer(z)[0])(x)
    model = sw.LanguageModelConfig(vocab_size=257, d_model=8, layers=(sw.S4DConfig(d_state=4),)).build().eval()
    with sw.exact(), pytest.raises(sw.InputError, match="leave weights out"):
        ServedModel(model, sw.ByteTokenizer(), weights="int8")


def test_copies_keep_it() -> None:
    model, _ = model_and_tokens()
    model.exact = True
    assert copy.deepcopy(model).exact
    assert model.freeze().exact
    assert all(layer.exact for layer in model.blocks)
    with pytest.raises(sw.InputError, match="expected True or False"):
        model.exact = 1  # type: ignore[assignment]
