"""``torch.func.vmap`` over the parameters of several models: a loop over them."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch
from families import MIXERS
from torch.func import functional_call, stack_module_state, vmap

from statewise import kernels
from statewise.kernels.registration import IMPLEMENTATIONS
from statewise.models.language_model import LanguageModelConfig


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("name", MIXERS)
def test_models_of_every_mixer(name: str, length: int) -> None:
    config = LanguageModelConfig(vocab_size=11, d_model=8, layers=(MIXERS[name],))
    torch.manual_seed(0)
    models = [config.build().eval() for _ in range(3)]
    tokens = torch.randint(0, 11, (3, 2, length))
    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]
    found = vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,))[0])(parameters, buffers, tokens)
    gradients = dict(
        zip(parameters, torch.autograd.grad(found.square().sum(), [*parameters.values()], materialize_grads=True))
    )
    for i, model in enumerate(models):
        own = model(tokens[i])[0]
        torch.testing.assert_close(found[i], own, rtol=1e-4, atol=1e-5)
        named = dict(model.named_parameters())
        for key, slope in zip(
            named, torch.autograd.grad(own.square().sum(), [*named.values()], materialize_grads=True)
        ):
            torch.testing.assert_close(gradients[key][i], slope, rtol=1e-3, atol=1e-4)


def test_every_operator_has_a_rule() -> None:
    for module in pkgutil.iter_modules(kernels.__path__, "statewise.kernels."):
        importlib.import_module(module.name)
    assert {"statewise::ssd", "statewise::linear"} <= IMPLEMENTATIONS.keys()
    for name in IMPLEMENTATIONS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "FuncTorchBatched"), name
