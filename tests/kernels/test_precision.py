"""Float32 products where the process lets their factors be rounded: systems keep their digits all the same.

Whether anything is rounded depends on the processor (bfloat16 with AMX) and the device (TF32); where nothing is, the
comparisons hold without any doing of ours.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import statewise as sw
from statewise import precision
from statewise.kernels import backend, registration
from statewise.systems import discretize_dense

LENGTH = 300


@pytest.fixture(params=["medium", "high"])
def rounding(request: pytest.FixtureRequest) -> Iterator[str]:
    with precision.products_at(request.param):
        yield request.param
    assert torch.get_float32_matmul_precision() == "highest"


def operators() -> Iterator[tuple[str, Any, torch.Tensor]]:
    torch.manual_seed(0)
    u = torch.randn(2, LENGTH, 8)
    for name, config in (
        ("S4", sw.S4Config(d_state=32)),
        ("S4D", sw.S4DConfig(d_state=32)),
        ("LSSL", sw.LSSLConfig(d_state=32)),
        ("GSS", sw.GSSConfig(d_state=32, bottleneck=1)),
    ):
        yield name, config.build(8).operators[0], u
    log_a, B, C = -torch.rand(2, LENGTH, 8), torch.randn(2, LENGTH, 2, 16), torch.randn(2, LENGTH, 2, 16)
    yield "SSD", sw.SSD(log_a, B, C), torch.randn(2, LENGTH, 8, 4)
    dt, A = torch.rand(2, LENGTH, 8) / 10, -torch.rand(8, 16) - 0.1
    B, C = torch.randn(2, LENGTH, 1, 16), torch.randn(2, LENGTH, 1, 16)
    yield "SelectiveDiagonal", sw.SelectiveDiagonal(dt, A, B, C), u


CASES = [(name, form) for name, operator, _ in operators() for form in operator.forms]


def values_and_gradients(name: str, form: str) -> list[torch.Tensor]:
    """The system is made from its parameters here too."""
    operator, u = next((operator, u) for found, operator, u in operators() if found == name)
    u = u.requires_grad_()
    y, _ = operator(u, form=form)
    (gradient,) = torch.autograd.grad(y.square().sum(), u)
    return [y.detach(), gradient]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_systems_keep_their_digits(name: str, form: str, kernels: str, rounding: str) -> None:
    with backend.use(kernels):
        found = values_and_gradients(name, form)
        with precision.products_at("highest"):
            expected = values_and_gradients(name, form)
    for one, other in zip(found, expected):
        assert (one - other).norm() < 1e-4 * other.norm(), "rounded factors are off by 2e-3 in a single product"


def test_discretisation_keeps_its_digits(rounding: str) -> None:
    A, B = torch.randn(3, 24, 24) / 5 - torch.eye(24), torch.randn(3, 24)
    for method, alpha in (("gbt", 0.3), ("bilinear", None), ("zoh", None)):
        found = discretize_dense(A, B, 0.1, method, alpha=alpha)
        assert found[0].dtype == torch.float32
        with precision.products_at("highest"):
            expected = discretize_dense(A, B, 0.1, method, alpha=alpha)
        for one, other in zip(found, expected):
            assert (one - other).norm() < 1e-5 * other.norm()


def test_exactly_widens_where_it_has_to(rounding: str) -> None:
    seen = []

    def function(x: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        seen.extend([x.dtype, options["n"].dtype])
        return x, options["n"]

    for dtype, inside in (
        (torch.float32, torch.float64),
        (torch.complex64, torch.complex128),
        (torch.float64, torch.float64),
    ):
        x, n = precision.exactly(function, torch.ones(2, dtype=dtype), {"n": torch.ones(1, dtype=torch.int64)})
        assert seen == [inside, torch.int64]
        assert n.dtype == torch.int64
        assert x.dtype == dtype
        seen.clear()
    x, n = precision.exactly(function, torch.ones(2), {"n": torch.ones(1, dtype=torch.float64)})
    assert (x.dtype, n.dtype) == (torch.float32, torch.float64)  # wide as it is, and stays
    seen.clear()
    with precision.products_at("highest"):
        precision.exactly(function, torch.ones(2), {"n": torch.ones(1)})
    assert seen == [torch.float32, torch.float32]


def test_kernels_put_their_own_precision_around_themselves(rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(x: torch.Tensor) -> str:
        return torch.get_float32_matmul_precision()

    x = torch.ones(1)
    assert registration._in_its_own_precision(inside, False)(x) == "highest"
    assert registration._in_its_own_precision(inside, True)(x) == rounding  # a projection follows the process
    monkeypatch.setattr(registration, "rounds_projections", lambda device: True)
    assert registration._in_its_own_precision(inside, True)(x) == "high"
    assert torch.get_float32_matmul_precision() == rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_time_scales_stay_wide_in_a_narrow_model(dtype: torch.dtype) -> None:
    """In eight bits two of H3's time scales are one, and its outputs were 6 % off."""
    torch.manual_seed(0)
    mixer = sw.H3Config(d_state=64).build(16)
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.mul_(10)
        x = torch.randn(2, 70, 16)
        want = copy.deepcopy(mixer).double()(x.double())[0]
        narrow = copy.deepcopy(mixer).to(dtype)
        assert {p.dtype for p in narrow.dynamics.parameters()} == {torch.float32}
        assert {p.dtype for p in narrow.out_proj.parameters()} == {dtype}
        y, _ = narrow(x.to(dtype))
        assert y.dtype == dtype
        assert (y - want).abs().max() <= 0.02 * want.abs().max()
        again = narrow.double()
        assert {p.dtype for p in again.parameters()} == {torch.float64}
        assert {p.dtype for p in again.to(dtype).dynamics.parameters()} == {torch.float32}
        stored = {name: p.to(dtype) for name, p in mixer.state_dict().items()}
        mixer.load_state_dict(stored, assign=True)  # somebody's own choice, which a mere move leaves as it is
        assert {p.dtype for p in mixer.to("cpu").share_memory().parameters()} == {dtype}


def test_fast_projections_are_for_cuda() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert not precision.rounds_projections(cuda)
    with precision.fast_projections():
        assert precision.rounds_projections(cuda)
        assert not precision.rounds_projections(cpu)
        assert torch.get_float32_matmul_precision() == "highest"
    assert not precision.rounds_projections(cuda)
