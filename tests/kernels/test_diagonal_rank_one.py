"""The diagonal-plus-rank-one recurrence: both paths against the definition, hard cases, and the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from families import MIXERS
from torch import Tensor

from statewise import kernels, native
from statewise.errors import InputError
from statewise.export.recurrences import diagonal_rank_one as diagonal_rank_one_of_export
from statewise.kernels.diagonal_rank_one import Arguments, diagonal_rank_one, diagonal_rank_one_reference

D = torch.float64
PATHS = ["torch", *(["c"] if native.available() else [])]
SHAPES = [  # batch, length, heads, d_value, d_key
    (2, 0, 3, 2, 3),
    (2, 1, 3, 2, 3),
    (1, 4, 2, 7, 16),
    (2, 5, 2, 3, 1),
    (1, 16, 1, 5, 17),
    (2, 33, 2, 1, 5),
    (1, 64, 2, 16, 4),
    (1, 130, 3, 9, 20),
    (1, 197, 1, 33, 33),
]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN
    yield
    torch.use_deterministic_algorithms(False)


Inputs = dict[str, Tensor]
MODES = ("delta", "one key", "two keys")


def case(shape: tuple[int, ...], kind: str = "channel", mode: str = "delta") -> Inputs:
    """A delta rule with unit keys and beta in 0 .. 2; the same in the general form; or with a key of its own for v."""
    b, length, h, p, n = shape
    random = torch.Generator().manual_seed(length)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=D)

    keys = F.normalize(draw(b, length, h, n), dim=-1)
    beta = 2 * torch.rand(b, length, h, 1, generator=random, dtype=D)
    log_a = -draw(b, length, h, n if kind == "channel" else 1).abs() / 5
    inputs = {"v": draw(b, length, h, p), "q": draw(b, length, h, n), "log_a": log_a, "S0": draw(b, h, p, n)}
    if mode == "delta":
        inputs |= {"k": keys, "beta": beta.squeeze(-1)}
    elif mode == "one key":
        inputs |= {"k": beta * keys, "read": log_a.exp() * keys}
    else:
        inputs |= {"k": draw(b, length, h, n), "read": keys, "erase": beta * log_a.exp() * keys}
    return {name: m.requires_grad_() for name, m in inputs.items()}


def outputs_and_gradients(run: Callable[..., tuple[Tensor, Tensor]], named: Inputs) -> list[Tensor]:
    """y, the state, and the gradients of a product with fixed numbers."""
    outputs, inputs = run(**named), [*named.values()]
    total = sum((m * torch.sin(torch.arange(m.numel())).reshape(m.shape)).sum() for m in outputs)
    total = total + 0 * sum(m.sum() for m in inputs)
    return [*outputs, *torch.autograd.grad(total, inputs)]


def errors(path: str, inputs: Inputs, dtype: torch.dtype, **options: int) -> list[float]:
    """The largest error of y, the state and each gradient, beside its largest number."""
    wanted = outputs_and_gradients(diagonal_rank_one_reference, inputs)
    with kernels.use(path):
        copies = {name: m.detach().to(dtype).requires_grad_() for name, m in inputs.items()}
        found = outputs_and_gradients(lambda **m: diagonal_rank_one(**m, **options), copies)
    pairs = [(got.detach(), want.detach()) for got, want in zip(found, wanted) if want.numel()]
    return [float((a.double() - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (D, 1e-13)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_to_the_definition(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, path: str) -> None:
    for kind in ("channel", "head"):
        for mode in MODES:
            worst = max(errors(path, case(shape, kind, mode), dtype), default=0.0)
            assert worst <= tolerance, (kind, mode)


@pytest.mark.skipif(not native.available(), reason="no C kernels")
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (D, 1e-13)], ids=str)
def test_every_instruction_set(instructions: str, dtype: torch.dtype, tolerance: float) -> None:
    for shape in ((1, 130, 2, 9, 20), (1, 40, 1, 5, 3), (1, 3, 2, 5, 9)):
        for kind in ("channel", "head"):
            for mode in MODES:
                with native.forced(instructions):
                    assert max(errors("c", case(shape, kind, mode), dtype)) <= tolerance


@pytest.mark.skipif(not native.available(), reason="no C kernels")
def test_the_same_bits_on_any_number_of_threads() -> None:
    drawn = case((3, 70, 4, 5, 9), mode="two keys")
    inputs = {name: m.detach().float().requires_grad_() for name, m in drawn.items()}
    before, results = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 3, 1):
            torch.set_num_threads(n_threads)
            with kernels.use("c"):
                results.append(outputs_and_gradients(diagonal_rank_one, inputs))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (D, 1e-13)], ids=str)
@pytest.mark.parametrize("decay", [5.0, 100.0, 1e4, 1e30, torch.inf])
def test_strong_decays_beside_weak_ones(decay: float, dtype: torch.dtype, tolerance: float, path: str) -> None:
    """Of the recurrence: in gradients too, a mild decay is as right beside a strong one as alone."""
    for mode in MODES:
        inputs = case((1, 130, 2, 8, 8), mode=mode)
        with torch.no_grad():
            inputs["log_a"][:] = -1e-3
            inputs["log_a"][:, ::8, :, ::2] = -decay
        assert max(errors(path, inputs, dtype)) <= tolerance


@pytest.mark.parametrize("path", PATHS)
def test_derivatives_by_differences(path: str) -> None:
    for mode in MODES:
        named = case((1, 6, 2, 2, 3), mode=mode)

        def run(*values: Tensor, names: tuple[str, ...] = tuple(named)) -> tuple[Tensor, Tensor]:
            return diagonal_rank_one(**dict(zip(names, values)))

        with kernels.use(path):
            assert torch.autograd.gradcheck(run, [*named.values()], fast_mode=True)
            assert torch.autograd.gradgradcheck(run, [*named.values()], fast_mode=True)


@pytest.mark.parametrize("path", PATHS)
def test_a_nan_stays_in_its_row_and_head(path: str) -> None:
    given = {name: m.detach() for name, m in case((2, 150, 2, 3, 4)).items()}
    with kernels.use(path):
        clean, _ = diagonal_rank_one(**given)
        given["v"][0, 100, 1] = torch.nan
        y, S = diagonal_rank_one(**given)
    assert y[0, 100:, 1].isnan().all()
    assert S[0, 1].isnan().all()
    assert torch.equal(y[1], clean[1])
    assert torch.equal(y[0, :, 0], clean[0, :, 0])
    assert torch.equal(y[0, :64, 1], clean[0, :64, 1])


@pytest.mark.parametrize("path", PATHS)
def test_the_chunk_length_of_the_caller_changes_no_value(path: str) -> None:
    for chunk_length in (1, 7, 64, 500):
        assert max(errors(path, case((1, 75, 2, 3, 5), mode="two keys"), D, chunk_length=chunk_length)) <= 1e-13


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(0, 70, 2, 3, 4), (2, 70, 0, 3, 4), (2, 70, 2, 0, 4), (2, 70, 2, 3, 0)], ids=str)
def test_empty_axes(shape: tuple[int, ...], path: str) -> None:
    for mode in MODES:
        assert max(errors(path, case(shape, mode=mode), D), default=0.0) == 0


@pytest.mark.parametrize("name", ["KDA", "RWKV-7", "GLA"])
@pytest.mark.parametrize("path", ["auto", "torch"])
def test_a_compiled_layer_has_the_same_gradients(name: str, path: str) -> None:
    torch.manual_seed(0)
    mixer, x = MIXERS[name].build(8).double(), torch.randn(2, 9, 8, dtype=torch.float64)

    def gradients(run: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(x)[0].square().sum(), tuple(mixer.parameters()))

    with kernels.use(path):
        compiled = gradients(torch.compile(mixer, backend="aot_eager", fullgraph=True))
        torch.testing.assert_close(compiled, gradients(mixer))


@pytest.mark.parametrize("mode", MODES)
def test_what_leaves_in_an_export_is_the_same(mode: str) -> None:
    inputs = {name: m.detach() for name, m in case((2, 9, 2, 3, 4), mode=mode).items()}
    given = Arguments(**{"read": None, "erase": None, "beta": None, **inputs}, chunk_length=64)
    for got, want in zip(diagonal_rank_one_of_export(*given), diagonal_rank_one_reference(**inputs)):
        torch.testing.assert_close(got, want)


def test_arguments_that_do_not_fit_are_refused() -> None:
    given = {name: m.detach() for name, m in case((1, 5, 2, 3, 4)).items()}
    for name, value in (("q", given["q"][..., :3]), ("v", given["v"][:, :4]), ("v", given["v"][:, :, :1])):
        with pytest.raises(InputError, match="diagonal_rank_one needs v"):
            diagonal_rank_one(**{**given, name: value})
    with pytest.raises(InputError, match="needs S0 of shape"):
        diagonal_rank_one(**{**given, "S0": given["S0"].mT})
    with pytest.raises(InputError, match="needs beta of shape"):
        diagonal_rank_one(**{**given, "beta": given["beta"][..., :1]})
    with pytest.raises(InputError, match="chunk_length >= 1"):
        diagonal_rank_one(**given, chunk_length=0)
    with pytest.raises(InputError, match="real floating-point"):
        diagonal_rank_one(**{**given, "q": given["q"].long()})
    for more in ({"read": given["k"]}, {"beta": None}, {"erase": given["k"]}):
        with pytest.raises(InputError, match="either read, with or without erase, or beta"):
            diagonal_rank_one(**{**given, **more})
