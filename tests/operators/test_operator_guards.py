"""Operators called directly: states however they lie in memory, under autocast, compiled, and under vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from families import FAMILIES
from lti_kernels import autocast_rounds_no_second_derivative
from operator_laws import coefficients
from torch import Tensor

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.pairs import as_complex
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.operators import SSD, DenseLTV, DiagonalLTI, Operator

PATHS = ("torch", "c") if native.available() else ("torch",)
COMPLEX = ["DiagonalLTI complex", "DiagonalPlusLowRank", "SelectiveDiagonal complex"]


@pytest.fixture
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layouts(m: Tensor) -> Iterator[Tensor]:
    """The same numbers at an odd offset, at odd strides, and with the parts apart."""
    buffer = torch.zeros(m.numel() + 1, dtype=m.dtype)
    buffer[1:] = m.reshape(-1)
    yield buffer[1:].view(m.shape)
    wide = torch.zeros(*m.shape[:-2], m.shape[-2], 3, dtype=m.dtype)
    wide[..., :2] = m
    yield wide[..., :2]
    yield m.movedim(-1, 0).contiguous().movedim(0, -1)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [0, 1, 9, 40])
@pytest.mark.parametrize("name", COMPLEX)
def test_a_complex_state_may_lie_anywhere(name: str, length: int, path: str) -> None:
    op, u = FAMILIES[name](2, length, torch.float32, 0)
    state = op.initial_state(2)
    h = torch.randn_like(state.h)
    with kernels.use(path), torch.no_grad():
        for form in op.forms:
            want = op(u, state._replace(h=h), form=form)
            for laid in layouts(h):
                y, after = op(u, state._replace(h=laid), form=form)
                torch.testing.assert_close(y, want[0])
                torch.testing.assert_close(after.h, want[1].h)


@pytest.mark.parametrize("shape", [(0, 3, 4, 2), (1, 1, 1, 2), (2, 0, 4, 2)])
def test_pairs_of_odd_strides(shape: tuple[int, ...]) -> None:
    """Beside an axis of size 0 or 1 ``contiguous`` is content with any stride."""
    m = torch.arange(60.0).as_strided(shape, (5, 3, 7, 1), 1)
    assert m.is_contiguous()
    torch.testing.assert_close(as_complex(m), torch.complex(m[..., 0], m[..., 1]))


@pytest.mark.parametrize("name", FAMILIES)
def test_autocast_rounds_no_recurrence(name: str) -> None:
    op, u = FAMILIES[name](2, 70, torch.float32, 0)
    rest = op.initial_state(2, trailing=tuple(u.shape[2 + len(op.channels) :]))
    for form in op.forms:
        for state in (None, rest):
            want = op(u, state, form=form)
            with torch.autocast("cpu", torch.bfloat16):
                got = op(u, state, form=form)
            torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["DenseLTI", "DiagonalPlusLowRank", "DiagonalLTI complex"])
def test_autocast_rounds_no_impulse_response_and_no_step(name: str) -> None:
    op, u = FAMILIES[name](2, 1, torch.float32, 0)
    want = op.impulse_response(300), op.step(u[:, 0], op.initial_state(2))  # type: ignore[attr-defined]
    with torch.autocast("cpu", torch.bfloat16):
        got = op.impulse_response(300), op.step(u[:, 0], op.initial_state(2))  # type: ignore[attr-defined]
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_autocast_rounds_no_second_derivative() -> None:
    autocast_rounds_no_second_derivative(kernels.fft_convolution.fft_convolution)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("length", [1, 5, 70])
@pytest.mark.parametrize("name", ["DiagonalLTI", "H3", "GSS"])
def test_from_a_state_without_graph_breaks(name: str, length: int) -> None:
    if name == "DiagonalLTI":
        op, u = FAMILIES["DiagonalLTI complex"](2, length, torch.float32, 0)
        call: Callable[..., Any] = op.__call__
        state = op.initial_state(2)
    else:
        mixer = (H3Config(d_state=4, d_head=2) if name == "H3" else GSSConfig()).build(4)
        call, state, u = mixer, mixer.initial_state(2), torch.randn(2, length, 4)
    with torch.no_grad():
        _, state = call(u, state)
        got = torch.compile(lambda x, s: call(x, s), fullgraph=True, backend="eager")(u, state)
        torch.testing.assert_close(got, call(u, state))


@pytest.mark.parametrize("name", [name for name in FAMILIES if "Dense" in name or "LowRank" in name])
def test_vmap_is_a_loop_over_models(name: str) -> None:
    members = [FAMILIES[name](2, 20, torch.float32, seed) for seed in range(3)]
    op, u = members[0]
    mapped = {key: torch.stack([coefficients(o)[key] for o, _ in members]) for key in coefficients(op)}
    if isinstance(op, DenseLTV):
        members = [(replace(op, C=o.C), x) for o, x in members]  # type: ignore[attr-defined]
        mapped = {"C": mapped["C"]}
    for form in op.forms:
        for rest in (None, op.initial_state(2, trailing=tuple(u.shape[3:]))):

            def run(own: dict[str, Tensor], x: Tensor, form: str = form, rest: Any = rest) -> Tensor:
                some: Operator = replace(op, **own)  # type: ignore[type-var]
                return some(x, rest, form=form)[0]

            got = torch.func.vmap(run)(mapped, torch.stack([x for _, x in members]))
            want = torch.stack([o(x, rest, form=form)[0] for o, x in members])
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_vmap_over_what_the_matrix_exponential_depends_on_is_refused() -> None:
    op, u = FAMILIES["DenseLTV"](2, 5, torch.float32, 0)
    with pytest.raises(InputError, match="under vmap needs the same A and B"):
        torch.func.vmap(lambda A: replace(op, A=A)(u)[0])(torch.stack([op.A, 2 * op.A]))  # type: ignore[attr-defined,type-var]
    rest = op.initial_state(2)
    with pytest.raises(InputError, match="under vmap needs the same steps"):
        torch.func.vmap(lambda steps: op(u, rest._replace(steps=steps))[0])(torch.stack([rest.steps, rest.steps + 1]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [0, 1, 70])
@pytest.mark.parametrize(("heads", "d_head", "d_state"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_ssd_of_nothing(heads: int, d_head: int, d_state: int, length: int, path: str) -> None:
    B, C, D = torch.randn(1, length, 1, d_state), torch.randn(1, length, 1, d_state), torch.randn(heads)
    log_a, u = -torch.rand(1, length, heads), torch.randn(1, length, heads, d_head, requires_grad=True)
    op = SSD(log_a, B, C, D=D)
    with kernels.use(path):
        for form in op.forms:
            y, after = op(u, op.initial_state(1, trailing=(d_head,)), form=form)
            torch.testing.assert_close(y, u * D[:, None])
            assert after.h.shape == (1, heads, d_head, d_state)
            if length:
                (slope,) = torch.autograd.grad(y.sum(), u)
                torch.testing.assert_close(slope, D[:, None].expand_as(u))


def test_a_diagonal_system_of_a_state_without_numbers() -> None:
    nothing = torch.zeros(2, 0, dtype=torch.complex64)
    op, u = DiagonalLTI(nothing, nothing, nothing, torch.ones(2)), torch.randn(1, 9, 2)
    for form in op.forms:
        torch.testing.assert_close(op(u, op.initial_state(1), form=form)[0], u)
