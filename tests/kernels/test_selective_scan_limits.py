"""The selective scan at its limits: holds near zero, infinities, gradients nobody announced, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from selective_scans import LAUNCHED, PATHS, D, assert_near, case, everything, ids, on

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.selective_scan import (
    METHODS,
    selective_scan,
    selective_scan_reference,
)
from statewise.kernels.selective_scan.reference import hold, hold_slope

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_exact_hold_near_zero(path: str, is_complex: bool) -> None:
    """At A = 0 the hold is Delta, with a derivative; around it no digits are lost."""
    inputs = case(1, 6, 13, 1, 1, is_complex=is_complex, options=False)
    sizes = torch.tensor([0.0, 1e-300, 1e-20, 1e-9, 1e-5, 1e-3, 0.1, 0.4, 0.9, 1.1, 2.0, 8.0, 30.0], dtype=D)
    A = -sizes.unsqueeze(1)
    inputs["A"] = (torch.complex(A, A.flip(0) / 4) if is_complex else A).requires_grad_()
    inputs["dt"] = (inputs["dt"].detach().abs() + 0.01).requires_grad_()
    want = everything(selective_scan_reference, inputs, method="zoh")
    with on(path):
        got = everything(selective_scan, inputs, method="zoh")
    assert all(m.isfinite().all() for m in got.values())
    assert_near(got, want, 1e-13)


def test_the_hold_and_its_slope_to_rounding() -> None:
    import mpmath

    for z in (0.0, 1e-20, 1e-9, -1e-4, 0.3, -0.49, 0.51, -0.51, -3.0, 2.0, -40.0):
        with mpmath.workdps(60):
            value, slope = mpmath.mpf(1), mpmath.mpf(1) / 2
            if z:
                m = mpmath.mpf(z)
                value = (mpmath.exp(m) - 1) / m
                slope = (mpmath.exp(m) - value) / m
        x = torch.tensor(z, dtype=D)
        one = torch.ones_like(x)  # of this step the hold is phi_1
        assert abs(hold(one, x).item() - float(value)) <= 1e-15 * float(value)
        assert abs(hold_slope(one, x).item() - float(slope)) <= 3e-15 * float(slope)
        leaf = x.clone().requires_grad_()
        hold(one, leaf).backward()
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, hold_slope(one, x), atol=0, rtol=1e-13)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_minus_infinity_under_softplus_is_the_identity(path: str, is_complex: bool, method: str) -> None:
    inputs = case(2, 70, 18, 5, 1, is_complex=is_complex, dtype=torch.float32)
    masked = inputs["dt"].detach().clone()
    masked[:, 5:] = -torch.inf
    inputs["dt"] = masked.requires_grad_()
    with on(path):
        y, state = selective_scan(**inputs, softplus=True, method=method)
        rest = {k: m[:, 5:] if k in ("u", "dt", "B", "C", "gate") else m for k, m in inputs.items()}
        _, after = selective_scan(**(rest | {"h0": state.detach()}), softplus=True, method=method)
        assert torch.equal(after, state)
        found = dict(zip(inputs, torch.autograd.grad(y.sum() + state.sum(), list(inputs.values()))))
    assert all(g.isfinite().all() for g in found.values())
    assert not found["dt"][:, 5:].any()
    assert not found["B"][:, 5:].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("path", PATHS)
def test_nan_and_infinity_stay_in_their_row_channel_and_document(path: str, bad: float) -> None:
    """The boundary lies inside a chunk, and in the new document there are whole ones."""
    inputs = {k: m.detach() for k, m in case(2, 130, 19, 4, 1, dtype=torch.float32).items()}
    inputs["u"][0, 5, 3] = bad
    segments = (torch.arange(130) >= 40).long().expand(2, -1)
    with on(path):
        y, state = selective_scan(**inputs, softplus=True, segments=segments)
    assert not y[0, 5:40, 3].isfinite().any()
    y[0, 5:40, 3] = 0
    assert y.isfinite().all()
    assert state.isfinite().all()


@pytest.mark.parametrize("name", ["dt", "h0"])
@pytest.mark.parametrize("path", PATHS)
def test_nan_in_dt_and_in_the_state_ends_with_its_document(path: str, name: str) -> None:
    inputs = case(2, 130, 19, 4, 1)
    with torch.no_grad():
        inputs[name][(0, 35, 3) if name == "dt" else (0, 3)] = torch.nan
    segments = (torch.arange(130) >= 40).long().expand(2, -1)
    with on(path):
        y, state = selective_scan(**inputs, softplus=True, segments=segments)
        gradients = torch.autograd.grad(y[:, 40:].sum() + state.sum(), [inputs[k] for k in ("u", "B", "C")])
    assert y[0, 35:40, 3].isnan().all()
    assert y[:, 40:].isfinite().all()
    assert state.isfinite().all()
    assert all(g[:, 40:].isfinite().all() for g in gradients)


@pytest.mark.parametrize("path", PATHS)
def test_a_gradient_that_nobody_announced(path: str) -> None:
    """Without kept states (the operator was called with keep=False) the backward pass computes them."""
    inputs = case(1, 70, 5, 3, 1)
    order = ("u", "dt", "A", "B", "C", "h0", "D", "gate", "dt_bias")
    operator = torch.ops.statewise.selective_scan.default
    with on(path):
        y, state, _ = operator(*(inputs[k] for k in order), None, True, False, False)
        got = torch.autograd.grad(y.sum() + state.sum(), list(inputs.values()))
        y, state = selective_scan(**inputs, softplus=True)
        want = torch.autograd.grad(y.sum() + state.sum(), list(inputs.values()))
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.parametrize("path", ["torch", LAUNCHED, *native.instruction_sets()[-1:]])
def test_pieces_with_the_state_passed_on(path: str) -> None:
    inputs = {k: m.detach() for k, m in case(2, 100, 9, 3, 3).items()}
    along_time = ("u", "dt", "B", "C", "gate")
    with on(path):
        y, state = selective_scan(**inputs, softplus=True)
        h, outputs = inputs["h0"], []
        for start, stop in ((0, 1), (1, 33), (33, 33), (33, 100)):
            piece = {k: m[:, start:stop] if k in along_time else m for k, m in inputs.items()} | {"h0": h}
            out, h = selective_scan(**piece, softplus=True)
            outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, 1), y, atol=1e-13, rtol=0)
    torch.testing.assert_close(h, state, atol=1e-13, rtol=0)


def test_opcheck() -> None:
    torch.use_deterministic_algorithms(False)  # opcheck compares memory that an operator is free to leave as it is
    inputs = case(2, 7, 4, 3, 2)
    tensors = [inputs[k] for k in ("u", "dt", "A", "B", "C", "h0", "D", "gate", "dt_bias")]
    operator, backward = torch.ops.statewise.selective_scan.default, torch.ops.statewise.selective_scan_backward.default
    _, _, kept = operator(*tensors, ids(2, 7), True, False, True)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    for arguments in (
        (*tensors, ids(2, 7), True, False, True),
        (*tensors[:6], None, None, None, None, False, True, True),
    ):
        assert set(torch.library.opcheck(operator, arguments, test_utils=checks).values()) == {"SUCCESS"}
    arguments = (*tensors, ids(2, 7), True, False, True)
    assert torch.library.opcheck(operator, arguments, test_utils="test_aot_dispatch_dynamic")
    given = (
        torch.randn(2, 7, 4, dtype=D),
        torch.randn(2, 4, 3, dtype=D),
        kept.detach(),
        *tensors,
        ids(2, 7),
        True,
        False,
    )
    assert set(torch.library.opcheck(backward, given, test_utils=checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dt": torch.ones(1, 2, 4)}, "needs u, dt and gate"),
        ({"B": torch.ones(1, 3, 3, 2)}, "groups dividing d"),
        ({"h0": torch.ones(1, 4, 3)}, "needs h0"),
        ({"A": torch.ones(4, 2, dtype=torch.complex64)}, r"needs h0 of shape \(1, 4, 2, 2\)"),
        ({"D": torch.ones(3)}, "needs D"),
        ({"dt_bias": torch.ones(3)}, "needs dt_bias"),
        ({"segments": torch.ones(1, 2)}, "needs segments"),
        ({"method": "euler"}, "method 'euler' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], complaint: str) -> None:
    inputs: dict[str, Any] = case(1, 3, 4, 2, 1, options=False, dtype=torch.float32)
    with pytest.raises(InputError, match=complaint) as error:
        selective_scan(**(inputs | change))
    assert "\n" not in str(error.value)


def test_c_asked_for_by_name_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "why_not", lambda: "no compiler")
    inputs = case(1, 3, 4, 2, 1)
    with kernels.use("c"), pytest.raises(InputError, match=r"selective_scan: .* no compiler"):
        selective_scan(**inputs)
    with kernels.use("auto"):
        selective_scan(**inputs)
