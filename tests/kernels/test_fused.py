"""The fused kernels: short convolution, RMSNorm, gated RMSNorm and the loss over a vocabulary, against definitions."""

from __future__ import annotations

from typing import cast

import pytest
import torch
import torch.nn.functional as F
from fused_kernels import CASES, PATHS, D, loss, results
from on_device import OnDevice

from statewise import kernels, native
from statewise.data.batches import Batch
from statewise.kernels.linear_cross_entropy import blocks, linear_cross_entropy
from statewise.kernels.short_convolution import pytorch as convolution_in_pytorch
from statewise.kernels.short_convolution import short_convolution
from statewise.models import presets
from statewise.training.tasks.language import LanguageTask

TOLERANCE = {D: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_definition(name: str, dtype: torch.dtype, path: str) -> None:
    torch.manual_seed(0)
    fast, definition, inputs = CASES[name](dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    slope = torch.randn(definition(*exact).shape, dtype=D).to(inputs[0].dtype)
    tolerance = TOLERANCE[dtype]
    for got, want in zip(results(fast, inputs, slope), results(definition, exact, slope)):
        largest = max(1.0, float(want.detach().abs().max()) if want.numel() else 0.0)
        torch.testing.assert_close(got.double(), want, atol=4 * tolerance * largest, rtol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_case_lies_on_the_device_that_a_test_names(name: str) -> None:
    """As with STATEWISE_TEST_DEVICE=cuda, which says so only while a test runs."""
    with OnDevice("meta"):
        _, definition, inputs = CASES[name](torch.float32)
        y = definition(*inputs)
        assert all(m.is_meta for m in (*inputs, *results(definition, inputs, torch.ones_like(y))))


@pytest.mark.parametrize("path", PATHS[-1:], indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        "convolution, trailing axis, packed",
        "norm",
        "gelu",
        "gated norm, groups",
        "gated norm, norm first, groups",
        "loss, mean",
        "loss, sum",
        "loss, each",
    ],
)
def test_first_and_second_derivatives(name: str, path: str) -> None:
    torch.manual_seed(0)
    fast, _, inputs = CASES[name](D)
    assert torch.autograd.gradcheck(lambda *i: fast(*i).sin(), inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *i: fast(*i).sin(), inputs, fast_mode=True)


@pytest.mark.skipif(not native.available(), reason="no C kernels")
@pytest.mark.parametrize(
    "name", ["convolution, several chunks", "norm, odd", "gelu, several blocks", "gated norm, groups", "loss, each"]
)
def test_the_same_bits_for_any_number_of_threads(name: str) -> None:
    found = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            fast, _, inputs = CASES[name](torch.float32)
            with kernels.use("c"):
                found.append(results(fast, inputs, torch.ones(fast(*inputs).shape)))
    finally:
        torch.set_num_threads(1)
    for other in found[1:]:
        for a, b in zip(found[0], other):
            assert torch.equal(a, b)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_goes_where_the_definition_has_it(bad: float, path: str) -> None:
    torch.manual_seed(0)
    for name in ("convolution, odd width", "norm, odd", "gelu", "gated norm", "gated norm, norm first", "loss, each"):
        fast, definition, inputs = CASES[name](torch.float32)
        with torch.no_grad():
            inputs[0][0, 2] = bad
            got, want = fast(*inputs), definition(*inputs)
        assert torch.equal(got.isfinite(), want.isfinite()), name
        if bad != torch.inf or "loss" not in name:  # with an infinite logit the loss is NaN, as PyTorch's is
            assert torch.equal(got.isnan(), want.isnan()), name
        assert got.isfinite().any()


def test_a_document_does_not_see_what_is_not_finite_in_another() -> None:
    x = torch.randn(1, 6, 20)
    x[:, 2] = torch.nan
    ids = torch.tensor([[0, 0, 0, 1, 1, 1]])
    if native.available():
        with kernels.use("c"):
            y = short_convolution(x, torch.ones(20, 4), torch.zeros(1, 3, 20), ids)
        assert y[:, 3:].isfinite().all()


@pytest.mark.parametrize("vocab", [3, 5000])
def test_the_loss_over_several_blocks_of_tokens(vocab: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statewise.kernels.linear_cross_entropy.blocks.LOGITS", 4 * vocab)
    torch.manual_seed(0)
    fast, definition, inputs = loss(10, 6, vocab, "mean")(D)
    for got, want in zip(results(fast, inputs, torch.ones(())), results(definition, inputs, torch.ones(()))):
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


def test_the_loss_is_that_of_pytorch_also_under_autocast(path: str) -> None:
    torch.manual_seed(0)
    x, weight, targets = torch.randn(30, 16), torch.randn(100, 16), torch.randint(100, (30,))
    plain = F.cross_entropy(x @ weight.t(), targets)
    torch.testing.assert_close(linear_cross_entropy(x, weight, targets), plain)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = linear_cross_entropy(x, weight, targets)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, plain, atol=0.02, rtol=0.02)


def test_the_loss_under_autocast_to_float16_has_all_of_its_gradient(path: str) -> None:
    """Slopes p / n of a vocabulary of 50,000 would lie below what float16 can hold."""
    x, weight = torch.zeros(400, 4, requires_grad=True), torch.eye(4).repeat(12_500, 1).requires_grad_()
    with torch.autocast("cpu", torch.float16):
        value = linear_cross_entropy(x, weight, torch.zeros(400, dtype=torch.int64))
    (found,) = torch.autograd.grad(value, x)
    slopes = torch.full((4,), 0.25) - torch.tensor([1.0, 0, 0, 0])
    torch.testing.assert_close(found, (slopes / 400).expand(400, 4), rtol=1e-3, atol=0.0)


def test_the_logits_of_a_block_elsewhere_are_made_in_place() -> None:
    """The path of a device that is not a CPU, as far as one without numbers can go it."""
    x, weight, targets = (m.to("meta") for m in (torch.empty(5, 3), torch.empty(9, 3), torch.arange(5)))
    losses, grad_x, grad_weight = blocks.losses_and_gradients(x, weight, targets, torch.empty(5, device="meta"))
    assert (losses.shape, grad_x.shape, grad_weight.shape) == ((5,), x.shape, weight.shape)
    logits = torch.empty(4, 9)
    blocks._make_logits(logits, torch.ones(4, 3), torch.ones(9, 3))
    assert (logits == 3).all()


def test_blocks_are_for_the_caches_of_a_cpu() -> None:
    """Elsewhere each block is a launch of its own: as few as the memory allows."""
    weight = torch.empty(9000, 2)
    assert [len(blocks._pieces(w)) for w in (weight, weight.to("meta"))] == [3, 1]
    assert blocks._pieces(torch.empty(0, 2, device="meta")) == []
    x = torch.empty(7, 5, 3)
    assert [convolution_in_pytorch._rows_at_once(u) for u in (x, x.to("meta"), x[:0].to("meta"))] == [1, 7, 1]


@pytest.mark.parametrize("has_segments", [False, True])
def test_the_convolutions_adjoint_over_any_number_of_rows(has_segments: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, grad = torch.randn(5, 12, 3, dtype=D), torch.randn(5, 12, 3, dtype=D)
    taps, history, bias = torch.randn(3, 4, dtype=D), torch.randn(5, 3, 3, dtype=D), torch.randn(3, dtype=D)
    segments = (torch.rand(5, 12) < 0.2).cumsum(1) if has_segments else None
    found = []
    for n_rows in (1, 2, 5):
        monkeypatch.setattr(convolution_in_pytorch, "_rows_at_once", lambda x, n_rows=n_rows: n_rows)
        found.append(convolution_in_pytorch.backward(grad, x, taps, history, bias, segments, True))
    for other in found[1:]:
        for one, two in zip(found[0], other):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_the_training_loss_is_the_same_with_and_without_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = presets.tiny().build()
    tokens = torch.randint(257, (2, 33))
    batch = Batch(tokens[:, :-1], tokens[:, 1:], torch.zeros(2, 32, dtype=torch.bool))
    found = []
    for many in (0, 2**23):
        monkeypatch.setattr("statewise.training.tasks.language.MANY_LOGITS", many)
        value, _ = LanguageTask.loss(cast(LanguageTask, None), model, batch, None)
        found.append([value, *torch.autograd.grad(value, [*model.parameters()])])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-4)
