"""The fused kernels as operators and in modules: several models at once, what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_kernels import CASES, D, leaf, results
from torch import Tensor, nn

from statewise import kernels, native
from statewise.errors import ConfigError, InputError
from statewise.kernels.gated_rms_norm import gated_rms_norm
from statewise.kernels.gelu_tanh import _gelu, gelu_tanh
from statewise.kernels.linear_cross_entropy import linear_cross_entropy
from statewise.kernels.linear_cross_entropy.pytorch import NO_TARGET
from statewise.kernels.rms_norm import rms_norm
from statewise.kernels.short_convolution import short_convolution
from statewise.mixers.rms_norm import RMSNorm
from statewise.mixers.short_convolution import ShortConvolution

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def operators() -> dict[str, list[Any]]:
    torch.manual_seed(0)
    x, z, weight = leaf(2, 3, 5), leaf(2, 3, 5), leaf(5)
    targets, share = torch.tensor([1, NO_TARGET, 2]), torch.rand(3, dtype=D)
    return {
        "rms_norm": [x, weight, 1e-5],
        "gelu_tanh": [x],
        "gated_rms_norm": [x, z, weight, 1e-5, 1, True],
        "linear_cross_entropy": [leaf(3, 4), leaf(6, 4), targets],
        "linear_cross_entropy_sum": [leaf(3, 4), leaf(6, 4), targets, share, True],
    }


@pytest.mark.parametrize("name", operators())
def test_opcheck(name: str) -> None:
    torch.use_deterministic_algorithms(False)  # opcheck compares memory that an operator is free to leave as it is
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    operator = getattr(torch.ops.statewise, name).default
    results = torch.library.opcheck(operator, tuple(operators()[name]), test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    "name", ["norm", "gelu", "gated norm, groups", "convolution, odd width", "loss, mean", "loss, each"]
)
def test_several_models_at_once(name: str, path: str) -> None:
    torch.manual_seed(0)
    fast, _, _ = CASES[name](D)
    models = [CASES[name](D)[2] for _ in range(3)]
    stacked = [torch.stack([m.detach() for m in parts]).requires_grad_() for parts in zip(*models)]
    y = torch.func.vmap(fast)(*stacked)
    gradients = torch.autograd.grad(y.sum(), stacked)
    for i, inputs in enumerate(models):
        own = fast(*inputs)
        torch.testing.assert_close(y[i], own, atol=1e-12, rtol=1e-12)
        for all_models, alone in zip(gradients, torch.autograd.grad(own.sum(), inputs)):
            torch.testing.assert_close(all_models[i], alone, atol=1e-12, rtol=1e-12)


def test_gelu_is_pytorchs_whatever_runs_it(path: str) -> None:
    for size in (10, 40_000):
        x, slope = torch.linspace(-40.0, 40.0, size, requires_grad=True), torch.randn(size)
        for run in (gelu_tanh, _gelu):
            got = results(run, [x], slope)
            want = results(lambda x: F.gelu(x, approximate="tanh"), [x], slope)
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_the_norm_module_is_pytorchs() -> None:
    ours, theirs = RMSNorm(20, eps=1e-6), nn.RMSNorm(20, eps=1e-6)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 7, 20)
    torch.testing.assert_close(ours(x), theirs(x))
    assert isinstance(ours, nn.RMSNorm)


@pytest.mark.parametrize("n_taps", [4, 20])
def test_the_convolution_module_has_its_activation_in_every_form(n_taps: int) -> None:
    plain, activated = ShortConvolution(6, n_taps), ShortConvolution(6, n_taps, activation="silu")
    activated.load_state_dict(plain.state_dict())
    x, starts = torch.randn(2, 33, 6), torch.zeros(2, 33, dtype=torch.bool)
    starts[1, 9] = True
    (y, before), (z, after) = (m(x, m.initial_state(2), starts=starts) for m in (plain, activated))
    torch.testing.assert_close(F.silu(y), z)
    torch.testing.assert_close(before.inputs, after.inputs)
    with pytest.raises(ConfigError, match="got 'relu'"):
        ShortConvolution(6, 4, activation="relu")


X = torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: short_convolution(X, torch.ones(4, 2), torch.ones(2, 1, 4), bias=torch.ones(3)),
        lambda: short_convolution(X, torch.ones(4, 2), torch.ones(2, 1, 4), torch.ones(2, 2, dtype=torch.int64)),
        lambda: short_convolution(X, torch.ones(4, 2), torch.ones(2, 1, 4), activation="relu"),
        lambda: rms_norm(X, torch.ones(3)),
        lambda: gated_rms_norm(X, X[:1], torch.ones(4)),
        lambda: gated_rms_norm(X, X, torch.ones(4), n_groups=3),
        lambda: linear_cross_entropy(X, torch.ones(5, 4), torch.ones(2, dtype=torch.int64)),
        lambda: linear_cross_entropy(X[0], torch.ones(5, 4), torch.tensor([1, 2, 5])),
        lambda: linear_cross_entropy(X[0], torch.ones(5, 4), torch.tensor([1, 2, -1])),
        lambda: linear_cross_entropy(X[0], torch.ones(5, 4), torch.ones(3)),
        lambda: linear_cross_entropy(X[0], torch.ones(5, 4), torch.tensor([1, 2, 3]), reduction="median"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Tensor]) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not native.available(), reason="no C kernels")
def test_c_by_name_says_what_it_cannot_take() -> None:
    half = X.half()
    with kernels.use("c"), pytest.raises(InputError, match="float16"):
        rms_norm(half, torch.ones(4))
    assert rms_norm(half, torch.ones(4)).dtype == torch.float16
