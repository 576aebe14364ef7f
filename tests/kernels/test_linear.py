"""The linear layer on each matrix library: values, gradients, every instruction set, the same bits on any threads."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise import native
from statewise.errors import InputError
from statewise.kernels import use
from statewise.kernels.linear import linear, linear_reference, onednn
from statewise.kernels.linear import native as linear_native
from statewise.mixers.projection import Linear

needs_library = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
SHAPES = [(1, 1, 1), (2, 5, 3), (8, 64, 70), (9, 33, 7), (100, 50, 700), (97, 31, 333), (113, 65, 641)]  # m, n, k


def strided(rows: int, columns: int, layout: str) -> Tensor:
    if layout == "rows":
        return torch.randn(rows, columns)
    return torch.randn(columns, rows).t() if layout == "columns" else torch.randn(2 * rows, 3 * columns)[::2, 1::3]


def expect(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    exact = linear_reference(x.double(), weight.double(), None if bias is None else bias.double())
    scale = x.double().abs() @ weight.double().abs().t() + (0 if bias is None else bias.abs())
    assert ((found - exact).abs() <= 3e-7 * scale * max(1, x.shape[1] / 100)).all()


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_c_equals_the_definition(m: int, n: int, k: int, instructions: str) -> None:
    torch.manual_seed(0)
    layouts = ("rows", "columns", "neither")
    with native.forced(instructions), torch.no_grad():
        for first, second in itertools.product(layouts, layouts):
            for bias in (None, torch.randn(n)):
                x, weight = strided(m, k, first), strided(n, k, second)
                expect(linear_native.product(x, weight, bias), x, weight, bias)


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
def test_the_same_bits_on_any_number_of_threads(instructions: str) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(300, 700), torch.randn(129, 700), torch.randn(129)
    found = []
    try:
        with native.forced(instructions):
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                found.append((linear_native.product(x, weight, bias), linear_native.product(x[:5], weight, bias)))
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for some in found for a, b in zip(some, found[0]))


@needs_library
def test_empty_products_and_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def poisoned(*size: int, dtype: torch.dtype | None = None) -> Tensor:
        fresh = empty(*size, dtype=dtype)
        return fresh.fill_(torch.nan) if fresh.is_floating_point() else fresh

    monkeypatch.setattr(torch, "empty", poisoned)
    for m, n, k in [(0, 3, 2), (3, 0, 2), (3, 2, 0), *SHAPES]:
        x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
        expect(linear_native.product(x, weight, bias), x, weight, bias)


@needs_library
def test_not_a_number_stays_in_its_row_and_infinity_is_one() -> None:
    x, weight = torch.randn(40, 70), torch.randn(50, 70)
    x[3, 5], x[7, 9] = torch.nan, torch.inf
    y = linear_native.product(x, weight, None)
    assert y[3].isnan().all()
    torch.testing.assert_close(y[7], weight[:, 9].sign() * torch.inf)
    rest = [i for i in range(40) if i not in (3, 7)]
    expect(y[rest], x[rest], weight, None)


@pytest.mark.skipif(not onednn.available(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (0, 3, 2)])
def test_onednn_equals_the_definition(m: int, n: int, k: int) -> None:
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    expect(onednn.product(x, weight, bias), x, weight, bias)
    expect(onednn.product(x.t().contiguous().t(), weight.t().contiguous().t(), None), x, weight, None)


@pytest.mark.parametrize("library", ["torch", "auto"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients(library: str, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statewise.kernels.linear._WORTH_IT", 0)
    torch.manual_seed(0)
    x, layer = torch.randn(3, 11, 20), Linear(20, 17, bias=with_bias)
    plain = torch.nn.Linear(20, 17, bias=with_bias)
    plain.load_state_dict(layer.state_dict())
    out = torch.randn(3, 11, 17)

    def gradients(module: torch.nn.Module) -> tuple[Tensor, ...]:
        at = x.clone().requires_grad_()
        first = torch.autograd.grad(module(at), [at, *module.parameters()], out, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first[:2]), [at, *list(module.parameters())[:1]])
        return *first, *second

    with use(library):
        for found, expected in zip(gradients(layer), gradients(plain)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_the_operator_leaves_to_pytorch() -> None:
    x, weight = torch.randn(600, 64), torch.randn(128, 64)
    assert torch.equal(linear(x.double(), weight.double()), F.linear(x.double(), weight.double()))
    assert linear(x.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    for bad in ((torch.randn(128, 65), None), (weight, torch.randn(127)), (weight, torch.randn(128).double())):
        with pytest.raises((InputError, RuntimeError)):
            linear(x, *bad)
    compiled = torch.compile(linear, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, weight), F.linear(x, weight))


def test_c_by_name_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statewise.kernels.linear._WORTH_IT", 0)
    monkeypatch.setattr("statewise.native.available", lambda: False)
    monkeypatch.setattr("statewise.native.why_not", lambda: "no C compiler was found")
    with (
        use("c"),
        pytest.raises(
            InputError, match="linear: the C kernel was asked for by name, but the C kernels are not available"
        ),
    ):
        linear(torch.randn(20, 20), torch.randn(20, 20))


@pytest.mark.parametrize("library", ["torch", "auto"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_several_models_at_once(library: str, with_bias: bool) -> None:
    """vmap, whichever of its arguments differ from model to model, small or not."""
    torch.manual_seed(0)
    for m, n, k in [(3, 4, 5), (300, 128, 64)]:
        x, weight = torch.randn(3, 2, m, k, requires_grad=True), torch.randn(3, n, k, requires_grad=True)
        bias = torch.randn(3, n, requires_grad=True) if with_bias else None
        given = [each for each in (x, weight, bias) if each is not None]
        slope = torch.randn(3, 2, m, n)
        with use(library):
            y = torch.func.vmap(linear)(*given)
            found = [y, *torch.autograd.grad(y, given, slope)]
            shared = torch.func.vmap(linear, in_dims=(None, 0))(x[0], weight)
        exact = torch.einsum("s...k,sjk->s...j", x, weight) + (0 if bias is None else bias[:, None, None])
        expected = [exact, *torch.autograd.grad(exact, given, slope)]
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(shared, torch.einsum("...k,sjk->s...j", x[0], weight), atol=2e-4, rtol=1e-4)
