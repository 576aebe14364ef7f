"""The first layer with a number that is not finite is found, and is the right one."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from training_runs import small_model

from statewise.training.diagnose import first_non_finite, is_finite, non_finite


class Breaks(torch.autograd.Function):
    """The identity, with a NaN in the output or in the gradient."""

    @staticmethod
    def forward(ctx, x, in_output):  # type: ignore[no-untyped-def]
        ctx.in_output = in_output
        return x * math.nan if in_output else x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad * (1.0 if ctx.in_output else math.nan), None


class Bad(nn.Module):
    def __init__(self, in_output: bool) -> None:
        super().__init__()
        self.in_output = in_output

    def forward(self, x: Tensor) -> Tensor:
        return Breaks.apply(x, self.in_output)


def stack(bad: nn.Module | None) -> nn.Sequential:
    middle = [] if bad is None else [bad]
    inner = nn.Sequential(nn.Linear(4, 4), *middle, nn.Tanh())
    return nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(4, 1))


@pytest.mark.parametrize("in_output", [True, False])
def test_the_smallest_part_is_named(in_output: bool) -> None:
    model = stack(Bad(in_output))
    text = first_non_finite(model, lambda: model(torch.ones(2, 4)).sum())
    assert text is not None
    assert "1.1 (Bad)" in text
    assert ("output" in text) if in_output else ("backward" in text)
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_data_that_are_not_finite_are_told_from_layers() -> None:
    model = stack(None)
    text = first_non_finite(model, lambda: model(torch.full((2, 4), math.nan)).sum())
    assert text == "the first layer whose output is not finite is 0 (Linear); its input was not finite either"


def test_none_if_all_is_well() -> None:
    model = stack(None)
    assert first_non_finite(model, lambda: model(torch.ones(2, 4)).sum()) is None
    assert all(p.grad is not None for p in model.parameters())


def test_a_parameter_that_was_bad_before() -> None:
    model = stack(None)
    with torch.no_grad():
        model[2].bias[0] = math.inf
    assert non_finite(dict(model.named_parameters())) == "2.bias"
    text = first_non_finite(model, lambda: model(torch.ones(2, 4)).sum())
    assert text is not None
    assert "2.bias" in text


def test_the_loss_itself() -> None:
    model = stack(None)
    text = first_non_finite(model, lambda: model(torch.ones(2, 4)).sum() * math.inf)
    assert text is not None
    assert "loss" in text


def test_a_gradient_that_only_a_parameter_has() -> None:
    """The input of the first layer has no gradient, so only its parameters' can show it."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.sqrt()  # the slope at 0 is infinite

    model = nn.Sequential(Scale(), nn.Linear(4, 1))
    text = first_non_finite(model, lambda: model(torch.ones(2, 4)).sum())
    assert text is not None
    assert "0.weight (Scale)" in text


def test_in_a_language_model_by_its_own_name() -> None:
    model = small_model(dropout=0.0).build()
    model.layers[1].mixer.out_proj.register_forward_hook(lambda module, args, output: output * math.nan)
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = first_non_finite(model, lambda: model(tokens)[0].sum())
    assert text is not None
    assert "layers.1.mixer.out_proj (Linear)" in text


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_a_language_model(checkpointing: bool) -> None:
    model = small_model(dropout=0.1).build()
    model.gradient_checkpointing = checkpointing
    model.layers[0].mixer.norm = Around(model.layers[0].mixer.norm, Bad(in_output=False))
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    text = first_non_finite(model, lambda: model(tokens)[0].sum())
    assert text is not None
    assert "layers.0.mixer.norm.bad (Bad)" in text


class Around(nn.Module):
    def __init__(self, norm: nn.Module, bad: nn.Module) -> None:
        super().__init__()
        self.norm, self.bad = norm, bad

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return self.bad(self.norm(y, z))


def test_is_finite_looks_into_trees() -> None:
    assert is_finite((torch.ones(2), None, [torch.tensor([1, 2])], "text"))
    assert not is_finite({"a": (torch.ones(2), torch.tensor([math.inf]))})
    assert not is_finite(torch.tensor([complex(math.nan, 0)]))
