"""Exponentials, sine and cosine in C: within two units in the last place over their whole range, in every kernel."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

from statewise import native
from statewise.benchmark.errors import (
    ELEMENTARY,
    TURNED,
    Elementary,
    apply_elementary,
    elementary_error,
    in_last_places,
)
from statewise.kernels import backend
from statewise.kernels.selective_scan import selective_scan
from statewise.kernels.ssd import ssd

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
every_instruction_set = pytest.mark.parametrize("instructions", native.instruction_sets())

EXACT = {
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.power(2, x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "sine": mpmath.sin,
    "cosine": mpmath.cos,
}
MOST = {"exp": 708.0, "exp2": 1022.0, "sigmoid": 708.0, "softplus": 708.0, "sine": TURNED, "cosine": TURNED}


@every_instruction_set
@pytest.mark.parametrize("function", ELEMENTARY, ids=lambda function: function.name)
def test_float32_over_all_patterns_of_bits(function: Elementary, instructions: str) -> None:
    with native.forced(instructions):
        largest, mean = elementary_error(function, 49_999)
    assert largest <= 2.0
    assert mean <= 0.2


@every_instruction_set
@pytest.mark.parametrize("name", EXACT)
def test_float64_beside_many_digits(name: str, instructions: str) -> None:
    torch.manual_seed(0)
    spread = 10.0 ** torch.linspace(-300, 1, 200, dtype=torch.float64)
    x = torch.cat([torch.rand(300, dtype=torch.float64) * 2 - 1, torch.randn(200, dtype=torch.float64) * spread])
    x[:300] *= MOST[name]
    with native.forced(instructions):
        found = apply_elementary(name, x).tolist()
    with mpmath.workprec(160):
        for value, y in zip(x.tolist(), found):
            exact = EXACT[name](mpmath.mpf(value))
            size = max(abs(exact), mpmath.mpf(0.5) if name in ("sine", "cosine") else mpmath.mpf(2) ** -1022)
            assert abs(y - exact) <= 2 * mpmath.mpf(2) ** (mpmath.floor(mpmath.log(size, 2)) - 52), (value, y)


@every_instruction_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends(dtype: torch.dtype, instructions: str) -> None:
    inf, nan = torch.inf, torch.nan
    most = torch.finfo(dtype).max
    x = torch.tensor(
        [0.0, -0.0, inf, -inf, nan, 1e30, -1e30, 200.0 if dtype == torch.float32 else 2000.0, most], dtype=dtype
    )
    with native.forced(instructions):
        found = {name: apply_elementary(name, x).tolist() for name in EXACT}
    for name in ("exp", "exp2"):
        assert found[name][:4] == [1, 1, inf, 0]
        assert found[name][5:] == [inf, 0, inf, inf]
    assert found["sigmoid"][:3] == [0.5, 0.5, 1]
    assert 0 <= found["sigmoid"][3] < torch.finfo(dtype).tiny, "which is zero within a kernel"
    assert found["softplus"][2:4] == [inf, 0]
    assert found["softplus"][5:7] == [x[5].item(), 0]
    assert found["sine"][:2] == [0, 0]
    assert found["cosine"][:2] == [1, 1]
    assert all(values[4] != values[4] for values in found.values())
    for name in ("sine", "cosine"):
        assert all(v != v for v in found[name][2:4]), "of an infinity there is none"
        assert all(abs(v) <= 1 for v in found[name][5:]), "beyond their range they are still on the circle"


def decayed(delta: Tensor, A: Tensor) -> Tensor:
    """exp(Delta A), which is what one step of a scan without input makes of a state of 1."""
    d, n = A.shape
    rest = torch.zeros(1, 1, d), delta.view(1, 1, d), A, torch.zeros(1, 1, 1, n), torch.zeros(1, 1, 1, n)
    h0 = torch.ones(1, d, n)
    if A.is_complex():
        h0 = torch.stack([h0, torch.zeros_like(h0)], -1)
    return selective_scan(*rest, h0)[1][0]


@every_instruction_set
def test_a_scan_rounds_no_exponent(instructions: str) -> None:
    """Delta A itself, rounded to float32, would be off by 30 units in the last place at e^-87."""
    torch.manual_seed(0)
    delta, A = torch.rand(64) * 5, -torch.rand(64, 32) * 17.4
    exact = torch.exp(delta.double()[:, None] * A.double())
    with native.forced(instructions), backend.use("c"):
        assert in_last_places(decayed(delta, A), exact, 1e-37).max() <= 2


@every_instruction_set
@pytest.mark.parametrize("phase", [1.0, 100.0, TURNED])
def test_a_scan_rounds_no_phase(phase: float, instructions: str) -> None:
    torch.manual_seed(0)
    delta, A = torch.rand(64), torch.complex(torch.zeros(64, 32), (torch.rand(64, 32) * 2 - 1) * phase)
    angles = delta.double()[:, None] * A.imag.double()
    exact = torch.stack([angles.cos(), angles.sin()], -1)
    with native.forced(instructions), backend.use("c"):
        assert (decayed(delta, A).double() - exact).abs().max() <= 2 * 2.0**-24


@every_instruction_set
def test_ssd_rounds_no_sum_of_exponents(instructions: str) -> None:
    torch.manual_seed(0)
    log_a = -torch.rand(1, 40, 8) * torch.linspace(0.1, 3.5, 8)
    x, B, C = torch.zeros(1, 40, 8, 2), torch.zeros(1, 40, 1, 16), torch.ones(1, 40, 1, 16)
    exact = torch.exp(log_a.double().cumsum(1))[..., None].expand_as(x)
    with native.forced(instructions), backend.use("c"):
        y, h = ssd(x, log_a, B, C, torch.full((1, 8, 2, 16), 1 / 16))
    assert in_last_places(y, exact, 1e-37).max() <= 3  # of a sum of 16 products
    assert in_last_places(h[0, :, 0, 0] * 16, exact[0, -1, :, 0], 1e-37).max() <= 2
