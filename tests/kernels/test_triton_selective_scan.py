"""The selective scan in Triton, under its interpreter: against the definition in float64, and cut anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreted import TOLERANCE, long_but, needs_interpreter
from selective_scans import D, assert_near, case, everything, ids
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.selective_scan import selective_scan, selective_scan_reference

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory", "in_triton")]
SHAPES = [(1, 1, 1, 1, 1), (2, 37, 6, 2, 2), (1, 33, 34, 1, 1), (2, 5, 4, 3, 4), (1, 71, 9, 16, 1), (1, 13, 3, 100, 1)]
HELD = [(2, 5, 4, 2, 4), (1, 33, 6, 1, 2), (1, 11, 2, 3, 1)]
MANY = [(1, 3, 2, 64, 2), (1, 2, 2, 300, 1), (1, 3, 1, 1000, 1)]


def narrowed(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """u, dt and gate as they are stored, all else in float32."""
    kinds = {name: dtype if name in ("u", "dt", "gate") else torch.float32 for name in inputs}
    return {name: m.detach().to(kinds[name]).requires_grad_() for name, m in inputs.items()}


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("shape", long_but((SHAPES[0], *SHAPES[2:4], SHAPES[5]), SHAPES), ids=str)
def test_equal_to_the_definition(shape: tuple[int, ...], options: bool) -> None:
    check(shape, torch.float32, 2e-5, options=options, packed=options)


@pytest.mark.parametrize("shape", MANY, ids=str)
def test_many_states(shape: tuple[int, ...]) -> None:
    check(shape, torch.float32, 2e-5, options=True, packed=True)


@pytest.mark.parametrize("length", long_but((1, 2, 15, 16, 17), [*range(1, 19), 31, 32, 64, 65]))
def test_lengths_that_no_group_of_steps_divides(length: int) -> None:
    check((1, length, 2, 3, 1), torch.float32, 2e-5, options=True, packed=False)


@pytest.mark.parametrize("begin", long_but((15, 32), [*range(1, 19), 31, 32, 33, 35]))
def test_a_document_that_begins_anywhere_sees_nothing_of_what_is_before(begin: int) -> None:
    """Not even a NaN or an infinity, and gives none back; as if each document were alone."""
    length = 36
    inputs = {name: m.detach() for name, m in narrowed(case(1, length, 3, 3, 1), torch.float32).items()}
    alone = {name: m[:, begin:] if name in ("u", "dt", "gate", "B", "C") else m for name, m in inputs.items()}
    alone["h0"] = torch.zeros_like(inputs["h0"])
    for bad in (torch.nan, torch.inf):
        spoilt = {name: m.clone() for name, m in inputs.items()}
        spoilt["u"][:, :begin] = bad
        spoilt["h0"] += bad
        tensors = [m.requires_grad_() for m in spoilt.values()]
        segments = (torch.arange(length) >= begin).long()[None]
        y, state = selective_scan(**dict(zip(spoilt, tensors)), softplus=True, segments=segments)
        want, last = selective_scan(**alone, softplus=True)
        torch.testing.assert_close(y[:, begin:].detach(), want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(state.detach(), last, atol=1e-5, rtol=1e-5)
        d_u, d_dt = torch.autograd.grad(y[:, begin:].sum() + state.sum(), tensors[:2])
        assert d_u.isfinite().all()
        assert d_dt[:, begin:].isfinite().all()


@pytest.mark.parametrize("shape", long_but((HELD[0], HELD[2]), HELD), ids=str)
def test_the_exact_hold(shape: tuple[int, ...]) -> None:
    check(shape, torch.float32, 2e-5, options=True, packed=True, method="zoh")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inputs_that_are_stored_narrower(dtype: torch.dtype) -> None:
    check((1, 5, 6, 2, 2), dtype, TOLERANCE[dtype], options=True, packed=False)


def test_the_exact_hold_of_slow_and_of_fast_states() -> None:
    """Delta A from far below to far above where the quotient takes over from the series."""
    inputs = {name: m.detach() for name, m in narrowed(case(1, 9, 6, 2, 1, options=False), torch.float32).items()}
    inputs["dt"] = torch.logspace(-4, 1, 54).view(1, 9, 6)
    inputs["A"] = torch.tensor([[-1e-6, -1.0], [0.0, -0.99], [0.3, -30.0], [-1e-3, 1e-3], [-5.0, -1.01], [-8.0, -2.0]])
    inputs = {name: m.requires_grad_() for name, m in inputs.items()}
    exact = {name: m.detach().to(D).requires_grad_() for name, m in inputs.items()}
    want = everything(selective_scan_reference, exact, method="zoh")
    assert_near(everything(selective_scan, inputs, method="zoh"), want, 2e-5)


def check(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
    *,
    options: bool,
    packed: bool,
    method: str = "mamba",
) -> None:
    inputs = narrowed(case(*shape, options=options), dtype)
    if not options:
        inputs["dt"] = inputs["dt"].detach().abs().requires_grad_()
    given = {"method": method, "softplus": options, "segments": ids(*shape[:2]) if packed else None}
    exact = {name: m.detach().to(D).requires_grad_() for name, m in inputs.items()}
    want = everything(selective_scan_reference, exact, **given)
    assert_near(everything(selective_scan, inputs, **given), want, tolerance)


def test_it_is_itself_cut_anywhere() -> None:
    inputs = {name: m.detach() for name, m in narrowed(case(1, 40, 3, 2, 1), torch.float32).items()}
    y, state = selective_scan(**inputs, softplus=True)
    for cut in (1, 32):
        first, rest = (
            {name: m[:, part] if name in ("u", "dt", "gate", "B", "C") else m for name, m in inputs.items()}
            for part in (slice(cut), slice(cut, None))
        )
        begin, h = selective_scan(**first, softplus=True)
        end, last = selective_scan(**{**rest, "h0": h}, softplus=True)
        torch.testing.assert_close(torch.cat([begin, end], 1), y, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(last, state, atol=1e-5, rtol=1e-5)


def test_a_step_without_time_is_the_identity_and_a_document_does_not_see_another() -> None:
    inputs = {name: m.detach() for name, m in narrowed(case(1, 6, 3, 2, 1), torch.float32).items()}
    stopped = {**inputs, "dt": torch.full_like(inputs["dt"], -torch.inf)}
    assert torch.equal(selective_scan(**stopped, softplus=True)[1], inputs["h0"])
    inputs["u"][:, 2] = torch.nan
    y, state = selective_scan(**inputs, softplus=True, segments=torch.tensor([[0, 0, 0, 1, 1, 1]]))
    assert y[:, :2].isfinite().all()
    assert y[:, 3:].isfinite().all()
    assert state.isfinite().all()


def test_what_it_does_not_take_is_said() -> None:
    inputs = {name: m.detach() for name, m in case(1, 3, 2, 2, 1, is_complex=True, dtype=torch.float32).items()}
    with pytest.raises(InputError, match="its states are complex"):
        selective_scan(**inputs)
    inputs = {name: m.detach() for name, m in narrowed(case(1, 3, 2, 2, 1), torch.float32).items()}
    with pytest.raises(InputError, match="float64"):
        selective_scan(**{name: m.double() for name, m in inputs.items()})
