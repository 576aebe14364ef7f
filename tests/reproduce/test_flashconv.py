"""FlashConv: the block FFT against its definition and torch.fft, and the convolution through it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from lti_kernels import autocast_rounds_no_second_derivative
from operator_laws import check_agreement, check_none_is_rest, check_operator_laws, close, random_state, with_gradients
from torch import Tensor

from statewise.errors import ConfigError, InputError
from statewise.kernels.fft_convolution import fft_convolution, fft_convolution_reference
from statewise.operators import DenseLTI, DiagonalLTI, DiagonalPlusLowRank, Operator
from statewise.operators.diagonal import DiagonalState
from statewise.reproduce import flashconv as reproduction
from statewise.reproduce import reproduce, settings
from statewise.reproduce.long_convolution import block_fft as definition
from statewise.reproduce.long_convolution import block_fft_convolution, block_sizes, forms, state_passing

D = torch.float64
SPLITS = [*product((1, 2, 3, 4, 5, 8, 16), (1, 2, 3, 4, 7, 8, 32)), (64, 512), (33, 100)]


def draw(*shape: int, dtype: torch.dtype = D) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("n1", "n2"), SPLITS)
def test_the_split_is_the_transform(n1: int, n2: int) -> None:
    x = draw(2, n1 * n2)
    scale = 1e-15 * n1 * n2 * max(1, math.log2(n1 * n2))
    want = torch.fft.rfft(x)
    torch.testing.assert_close(definition.block_fft(x, n1, n2), torch.fft.fft(x), atol=scale, rtol=0)
    torch.testing.assert_close(definition.block_rfft(x, n1, n2), want, atol=scale, rtol=0)
    torch.testing.assert_close(definition.block_irfft(want, n1, n2), x, atol=1e-13, rtol=0)
    blocks = definition.real_blocks(x, n1, n2)
    assert blocks.shape == (2, n2 // 2 + 1, n1)  # nothing of the conjugate half
    folded = definition.fold_spectrum(definition.unfold_spectrum(blocks, n1, n2), n1, n2)
    torch.testing.assert_close(folded, blocks, atol=scale, rtol=0)


def test_the_factors_written_out() -> None:
    """F_N = P (I x F_N1) P^T D (I x F_N2) P with every factor as a matrix of its own."""
    n1, n2 = 3, 4
    order = torch.arange(n1 * n2).reshape(n2, n1).T.flatten()  # from time to (n1, n2)
    P = torch.eye(n1 * n2, dtype=torch.complex128)[order]
    D_ = torch.diag(definition.twiddles(n1, n2).T.flatten())  # by (n1, k2)
    inner = torch.kron(torch.eye(n1), definition.dft_matrix(n2))
    outer = torch.kron(torch.eye(n2), definition.dft_matrix(n1))
    swap = torch.eye(n1 * n2, dtype=torch.complex128)[torch.arange(n1 * n2).reshape(n1, n2).T.flatten()]
    back = torch.eye(n1 * n2, dtype=torch.complex128)[torch.arange(n1 * n2).reshape(n2, n1).T.flatten()]
    F = back @ outer @ swap @ D_ @ inner @ P
    torch.testing.assert_close(F, definition.dft_matrix(n1 * n2), atol=1e-14, rtol=0)


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("columns", [((), ()), ((2,), ()), ((), (2,)), ((2,), (3,))])
def test_the_convolution_and_its_gradients(columns: tuple[tuple[int, ...], tuple[int, ...]], history: bool) -> None:
    """Against the sum itself: shorter and longer filters than the input, and overlap-save."""
    p, trailing = columns
    for length, taps in ((0, 3), (1, 1), (2, 5), (37, 37), (37, 5), (20, 50), (150, 3)):
        u, K = draw(2, length, 3, *trailing), draw(3, *p, taps)
        inputs = (u, K, draw(2, taps - 1, 3, *trailing)) if history else (u, K)
        results = []
        for run in (block_fft_convolution, fft_convolution_reference):
            leaves = [m.clone().requires_grad_() for m in inputs]
            y = run(*leaves)
            weight = torch.sin(torch.arange(y.numel(), dtype=D) + 1).reshape(y.shape)
            unused = 0 * sum(m.sum() for m in leaves)
            results.append((y, *torch.autograd.grad((y * weight).sum() + unused, leaves)))
        for got, want in zip(*results):
            torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


def test_blocks_of_channels_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    u, K, history = draw(3, 40, 5), draw(5, 40), draw(3, 39, 5)
    want, grad = block_fft_convolution(u, K, history), draw(3, 40, 5)
    gradients = torch.ops.statewise.block_fft_convolution_backward(
        grad[:, :, :, None, None], u[..., None], K[:, None], history[..., None]
    )
    for columns in (1, 2, 7):
        monkeypatch.setattr(block_sizes, "_BLOCK", 1)
        monkeypatch.setattr(block_sizes, "_COLUMNS", columns)
        torch.testing.assert_close(block_fft_convolution(u, K, history), want)
        again = torch.ops.statewise.block_fft_convolution_backward(
            grad[:, :, :, None, None], u[..., None], K[:, None], history[..., None]
        )
        torch.testing.assert_close(again, gradients)


def test_splits() -> None:
    for n in [*range(1, 200), 4097, 65_536]:
        n1, n2 = block_sizes.split(n)
        assert n <= n1 * n2 <= max(1.5 * n, n + 16)
        assert n2 % 2 == 0
    n1, n2 = block_sizes.best_split(10**5, 64)
    assert n1 * n2 < 4096  # overlap-save


def test_second_derivatives() -> None:
    inputs = [m.requires_grad_() for m in (draw(2, 6, 2), draw(2, 4), draw(2, 3, 2))]
    assert torch.autograd.gradcheck(block_fft_convolution, inputs)
    assert torch.autograd.gradgradcheck(block_fft_convolution, inputs)


@pytest.mark.parametrize("adjoint", [False, True])
def test_opcheck(adjoint: bool) -> None:
    arguments = (draw(2, 7, 3, 2), draw(3, 2, 4), draw(2, 3, 3, 2))
    operator = torch.ops.statewise.block_fft_convolution.default
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if adjoint:
        operator, arguments = (
            torch.ops.statewise.block_fft_convolution_backward.default,
            (draw(2, 7, 3, 2, 2), *arguments),
        )
        checks.pop()
    else:
        arguments = tuple(m.requires_grad_() for m in arguments)
    assert set(torch.library.opcheck(operator, arguments, test_utils=checks).values()) == {"SUCCESS"}


def test_several_models_at_once() -> None:
    u, K = draw(4, 2, 20, 3), draw(4, 3, 20)
    got = torch.func.vmap(block_fft_convolution)(u, K)
    torch.testing.assert_close(got, torch.stack([block_fft_convolution(a, b) for a, b in zip(u, K)]))


def test_as_accurate_as_it_says() -> None:
    """Also beside large values, and for every dtype."""
    for length in (100, 1024, 8192):
        u, K = draw(1, length, 2), draw(2, length)
        u[:, length // 2] *= 1e3
        scale = K.abs().sum(1) * u.abs().amax((0, 1))
        want = fft_convolution(u, K)
        for dtype, limit in ((torch.float32, 2e-6), (D, 4e-15)):
            error = (block_fft_convolution(u.to(dtype), K.to(dtype)).to(D) - want).abs().amax((0, 1))
            assert (error <= limit * scale).all(), (length, dtype, error / scale)
    narrow = block_fft_convolution(u.bfloat16(), K.bfloat16())
    assert narrow.dtype == torch.bfloat16


def test_errors_name_the_function() -> None:
    with pytest.raises(InputError, match="block_fft_convolution needs u"):
        block_fft_convolution(draw(2, 5, 3), draw(2, 5))
    with pytest.raises(InputError, match=r"block_fft_convolution needs a history of shape \(2, 4, 3\)"):
        block_fft_convolution(draw(2, 5, 3), draw(3, 5), draw(2, 5, 3))


def test_autocast_rounds_no_second_derivative() -> None:
    autocast_rounds_no_second_derivative(block_fft_convolution)


class FlashConvDense(forms.FlashConv, DenseLTI):
    forms = (*DenseLTI.forms, *forms.FORMS)


class FlashConvLowRank(forms.FlashConv, DiagonalPlusLowRank):
    forms = (*DiagonalPlusLowRank.forms, *forms.FORMS)


WITH_BOTH = {DiagonalLTI: forms.FlashConvDiagonal, DenseLTI: FlashConvDense, DiagonalPlusLowRank: FlashConvLowRank}
FAMILY = tuple(name for name in FAMILIES if name.startswith(("DiagonalLTI", "DenseLTI", "DiagonalPlusLowRank")))


def drawn(family: str, *sizes: Any) -> tuple[Operator, Tensor]:
    """One of the battery's operators, with both forms."""
    op, u = FAMILIES[family](*sizes)
    return WITH_BOTH[type(op)](**vars(op)), u  # type: ignore[index]


@pytest.mark.parametrize("length", [1, 2, 13])
@pytest.mark.parametrize("family", FAMILY)
def test_laws(family: str, length: int) -> None:
    op, u = drawn(family, 3, length, D, length)
    assert set(forms.FORMS) < set(op.forms)
    check_operator_laws(op, u)


def test_laws_past_65_steps() -> None:
    check_operator_laws(*drawn("DiagonalLTI complex", 1, 131, D, 0))


def test_4099_steps() -> None:
    op, u = drawn("DiagonalLTI complex", 1, 4099, D, 4)
    check_agreement(with_gradients(op), u.requires_grad_(), 1e-10)


@pytest.mark.parametrize("family", FAMILY)
def test_autocast_changes_nothing(family: str) -> None:
    op, u = drawn(family, 2, 70, torch.float32, 0)
    state = random_state(op, u)
    for form in forms.FORMS:
        want = op(u, state, form=form)
        with torch.autocast("cpu", torch.bfloat16):
            got = op(u, state, form=form)
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILY)
def test_float32(family: str) -> None:
    op, u = drawn(family, 2, 257, D, 3)
    narrow = {True: torch.complex64, False: torch.float32}
    rounded = replace(op, **{k: m.to(narrow[m.is_complex()]) for k, m in vars(op).items() if isinstance(m, Tensor)})
    want, _ = op(u, form="recurrent")
    for form in forms.FORMS:
        error = (rounded(u.float(), form=form)[0].double() - want).abs().max() / want.abs().max()
        assert error < (1e-5 if "LowRank" in family else 2e-6), (form, float(error))
    check_operator_laws(rounded, u[:, :11].float(), atol=2e-5)


def test_float32_over_thousands_of_steps_from_a_state() -> None:
    """With |A| almost 1 what is wrong with a power of A is repeated by every chunk."""
    generator = torch.Generator().manual_seed(0)
    A = torch.polar(torch.full((4, 8), 0.9999, dtype=D), 0.3 * torch.rand(4, 8, generator=generator).double())
    narrow = (A.to(torch.complex64), torch.full((4, 8), 0.01 + 0j), torch.full((4, 8), 1 + 0j))
    u, h = torch.randn(1, 16_000, 4, generator=generator), torch.randn(1, 4, 8, 2, generator=generator)
    want = DiagonalLTI(*(m.to(torch.complex128) for m in narrow))(u.double(), DiagonalState(h.double()), form="scan")
    got = forms.FlashConvDiagonal(*narrow)(u.requires_grad_(), DiagonalState(h), form="state_passing")
    for found, expected in ((got[0], want[0]), (got[1].h, want[1].h)):
        assert (found - expected).abs().max() < 5e-6 * expected.abs().max()


def test_state_passing_equals_the_default_form_where_gradients_are_recorded() -> None:
    A = torch.full((2, 3), 0.9, dtype=D)
    op, u = forms.FlashConvDiagonal(A.clone().requires_grad_(), A, A), torch.randn(1, 5000, 2, dtype=D)
    state = op.initial_state(1, dtype=D)
    y, final = op(u, state)
    torch.testing.assert_close(y, op(u, state, form="state_passing")[0], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(final, op(u, state, form="state_passing")[1], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize(("chunk", "stretch", "length"), [(8, 2, 29), (4, 4, 16), (16, 4, 13)])
def test_state_passing_over_many_chunks(
    family: str, chunk: int, stretch: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, final state and gradients, ragged ends, padded rows, cuts within and between chunks."""
    monkeypatch.setattr(forms, "CHUNK", chunk)
    monkeypatch.setattr(state_passing, "STRETCH", stretch)
    op, u = drawn(family, 3, length, D, length)
    op, u = with_gradients(replace(op)), u.clone().requires_grad_()
    check_agreement(op, u, 1e-11)
    check_agreement(op, u, 1e-11, lengths=torch.tensor([length, 0, min(chunk + 1, length)]))
    check_none_is_rest(op, u, 1e-11)
    state = random_state(op, u)
    want = op(u, state, form="recurrent")
    for t in (1, chunk - 1, chunk, length - 1):
        first, between = op(u[:, :t], state, form="state_passing")
        second, final = op(u[:, t:], between, form="state_passing")
        close((torch.cat([first, second], 1), final), want, 1e-11, f"cut at {t}")


def test_the_offsets_of_state_passing() -> None:
    """Row k of M_xy is C A^(k+1), column k of M_ux A^(T-1-k) B, with both matrices made as they are written."""
    A, B, C = torch.linspace(0.3, 0.9, 4, dtype=D)[None], draw(1, 4), draw(1, 4).flip(1)
    op, T = forms.FlashConvDiagonal(A, B, C), 10
    u, h = draw(1, T, 1), draw(1, 1, 4) + 1
    M_xy = torch.stack([(C * A ** (k + 1))[0] for k in range(T)])
    M_ux = torch.stack([(A ** (T - 1 - k) * B)[0] for k in range(T)], 1)
    within = fft_convolution(u, op.impulse_response(T))[0, :, 0]
    for form in ("state_passing", "block_fft"):
        y, final = op(u, DiagonalState(h), form=form)
        torch.testing.assert_close(y[0, :, 0], M_xy @ h[0, 0] + within)
        torch.testing.assert_close(final.h[0, 0], A[0] ** T * h[0, 0] + M_ux @ u[0, :, 0])


def test_long_chunks_in_float32() -> None:
    """Three chunks of 4096 steps with poles next to the unit circle, as near to float64 as the other forms are."""
    log_A = torch.complex(torch.full((2, 3), -1e-4, dtype=D), torch.tensor([[0.01, 0.3, 2.0]] * 2, dtype=D))
    B, C = (torch.complex(draw(2, 3), draw(3, 2).T) for _ in range(2))
    u = draw(1, 10_000, 2)
    exact = DiagonalLTI(log_A.exp(), B, C)
    narrow = forms.FlashConvDiagonal(*(m.to(torch.complex64) for m in (exact.A, B, C)))
    exact = forms.FlashConvDiagonal(*(m.to(torch.complex128) for m in (narrow.A, narrow.B, narrow.C)))
    want, end = exact(u, exact.initial_state(1), form="convolve")
    for form in ("state_passing", "block_fft"):
        close(exact(u, exact.initial_state(1), form=form), (want, end), 1e-10, form)
        y, final = narrow(u.float(), narrow.initial_state(1), form=form)
        close((y.double(), final.h.double()), (want, end.h), 1e-4, form)


def test_systems_that_grow_are_right_in_every_form() -> None:
    A = torch.full((1, 2), 1.02, dtype=D)
    op, u = forms.FlashConvDiagonal(A, torch.ones(1, 2, dtype=D), torch.ones(1, 2, dtype=D)), draw(1, 1500, 1)
    want, _ = op(u, form="recurrent")
    for form in op.forms:
        got, _ = op(u, form=form)
        assert (got - want).abs().max() < 1e-9 * want.abs().max(), form
        assert (got - want)[:, :10].abs().max() < 1e-9, form  # where an FFT of everything would have lost all digits


def test_reproduce_quick(tmp_path: Path) -> None:
    config = settings("flashconv", quick=True, assignments=["lengths=[8,4100]", "d_model=8", "d_state=4", "rounds=1"])
    outcome = reproduce("flashconv", tmp_path / "run", config, plots=False)
    assert outcome.record is not None
    for length, found in outcome.record["figures"].items():
        passes = {reproduction.PASSING} if length == "8" else set()  # is convolve itself there
        assert set(found["ms"]) == set(found["mb"]) == set(reproduction.NAMES) - passes
        assert max(found["apart"].values()) < 1e-5  # the same convolution, however it is computed
        for name, ratio in found["over_plain_fft"].items():
            assert ratio == pytest.approx(found["ms"]["plain FFT"] / found["ms"][name])
    again = reproduce("flashconv", tmp_path / "run", config, plots=False)  # goes on: nothing is measured anew
    assert again.record is not None
    assert again.record["figures"] == outcome.record["figures"]
    page = (tmp_path / "run" / "report.md").read_text()
    assert "5.8" in page
    assert "here on cpu at batch 1 and width 8" in page
    assert "- |" in page
    assert "half of the rounds lie within 0% of the median" in page  # of one
    assert "32,768" not in page  # nothing that was not measured


@pytest.mark.parametrize(
    ("field", "value"),
    [("batches", (1,)), ("lengths", ()), ("lengths", (256,) * 8), ("rounds", 0), ("n_heads", 3), ("d_state", 5)],
)
def test_reproduce_settings(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        reproduction.FlashConvSettings(**{field: value})
