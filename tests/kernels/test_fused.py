"""The fused kernels: short convolution, RMSNorm, gated RMSNorm and the loss over a vocabulary, against definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise import kernels, native
from statewise.data.batches import Batch
from statewise.errors import ConfigError, InputError
from statewise.kernels.gated_rms_norm import gated_rms_norm, gated_rms_norm_reference
from statewise.kernels.gelu_tanh import _gelu, gelu_tanh, gelu_tanh_reference
from statewise.kernels.linear_cross_entropy import blocks, linear_cross_entropy, linear_cross_entropy_reference
from statewise.kernels.linear_cross_entropy.pytorch import NO_TARGET
from statewise.kernels.rms_norm import rms_norm, rms_norm_reference
from statewise.kernels.short_convolution import pytorch as convolution_in_pytorch
from statewise.kernels.short_convolution import short_convolution, short_convolution_reference
from statewise.mixers.short_convolution import ShortConvolution
from statewise.models import presets
from statewise.models.rms_norm import RMSNorm
from statewise.train.tasks.language import LanguageTask

D = torch.float64
PATHS = ["torch", *native.instruction_sets()]  # PyTorch, and C for each instruction set that is here
TOLERANCE = {D: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}
Case = tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN, so that a kernel that reads what it did not write is found out."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each implementation in turn, asked for by name."""
    if request.param == "torch":
        with kernels.use("torch"):
            yield request.param
    else:
        with native.forced(request.param), kernels.use("c"):
            yield request.param


def leaf(*shape: int, dtype: torch.dtype = D) -> Tensor:
    """Random numbers with gaps between the rows, as the parts of a projection have them."""
    wide = torch.randn(*shape[:-1], shape[-1] + 3, dtype=D)
    return wide.to(dtype)[..., 1 : shape[-1] + 1].detach().requires_grad_()


def documents(batch: int, length: int) -> Tensor:
    return (torch.rand(batch, length, generator=torch.Generator().manual_seed(0)) < 0.3).cumsum(1)


def convolution(
    batch: int, length: int, width: int, n_taps: int, *trailing: int, packed: bool, silu: bool, bias: bool
) -> Callable[[torch.dtype], Case]:
    def make(dtype: torch.dtype) -> Case:
        wide = D if dtype == D else torch.float32
        inputs = [leaf(batch, length, width, *trailing, dtype=dtype), leaf(width, n_taps, dtype=wide)]
        inputs += [leaf(batch, n_taps - 1, width, *trailing, dtype=wide)] + [leaf(width, dtype=wide)] * bias
        ids = documents(batch, length) if packed else None

        def call(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
            activation = "silu" if silu else None
            return lambda x, taps, history, offset=None: run(x, taps, history, ids, bias=offset, activation=activation)

        return call(short_convolution), call(short_convolution_reference), inputs

    return make


def norm(*shape: int) -> Callable[[torch.dtype], Case]:
    return lambda dtype: (rms_norm, rms_norm_reference, [leaf(*shape, dtype=dtype), leaf(shape[-1], dtype=dtype)])


def gelu(*shape: int) -> Callable[[torch.dtype], Case]:
    return lambda dtype: (_gelu, gelu_tanh_reference, [leaf(*shape, dtype=dtype)])


def gated(*shape: int, n_groups: int, norm_before_gate: bool) -> Callable[[torch.dtype], Case]:
    options: dict[str, Any] = {"n_groups": n_groups, "norm_before_gate": norm_before_gate}

    def make(dtype: torch.dtype) -> Case:
        inputs = [leaf(*shape, dtype=dtype), leaf(*shape, dtype=dtype), leaf(shape[-1], dtype=dtype)]
        return (
            lambda x, z, w: gated_rms_norm(x, z, w, **options),
            lambda x, z, w: gated_rms_norm_reference(x, z, w, **options),
            inputs,
        )

    return make


def loss(n: int, d: int, vocab: int, reduction: str) -> Callable[[torch.dtype], Case]:
    targets = torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(n))
    targets[1::5] = -100

    def definition(x: Tensor, weight: Tensor) -> Tensor:
        losses = linear_cross_entropy_reference(x, weight, targets)
        if reduction == "none":
            return losses
        return losses.sum() / ((targets != -100).sum() if reduction == "mean" else 1)

    def make(dtype: torch.dtype) -> Case:
        inputs = [leaf(n, d, dtype=dtype), leaf(vocab, d, dtype=dtype)]
        return (lambda x, w: linear_cross_entropy(x, w, targets, reduction=reduction)), definition, inputs

    return make


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    "convolution, trailing axis, packed": convolution(2, 9, 3, 4, 2, packed=True, silu=True, bias=True),
    "convolution, odd width": convolution(1, 75, 37, 4, packed=False, silu=True, bias=True),
    "convolution, one step": convolution(2, 1, 16, 4, packed=False, silu=False, bias=False),
    "convolution, no step": convolution(2, 0, 5, 4, packed=True, silu=True, bias=True),
    "convolution, no row": convolution(0, 3, 5, 4, packed=False, silu=True, bias=True),
    "convolution, seven taps": convolution(3, 70, 19, 7, packed=True, silu=True, bias=True),
    "convolution, more taps than steps": convolution(2, 5, 40, 9, packed=False, silu=False, bias=True),
    "convolution, one tap": convolution(2, 5, 17, 1, packed=True, silu=False, bias=True),
    "convolution, several chunks": convolution(1, 130, 1030, 4, packed=True, silu=True, bias=True),
    "norm": norm(2, 9, 40),
    "norm, one feature": norm(3, 1),
    "norm, odd": norm(70, 37),
    "norm, no row": norm(0, 2, 5),
    "gelu": gelu(2, 70, 37),
    "gelu, several blocks": gelu(3, 6001),
    "gelu, nothing": gelu(0, 3),
    "gated norm": gated(2, 20, 40, n_groups=1, norm_before_gate=False),
    "gated norm, groups": gated(3, 100, n_groups=4, norm_before_gate=False),
    "gated norm, norm first": gated(35, 19, n_groups=1, norm_before_gate=True),
    "gated norm, norm first, groups": gated(2, 2, 66, n_groups=2, norm_before_gate=True),
    "gated norm, no row": gated(2, 0, 6, n_groups=2, norm_before_gate=True),
    "loss, mean": loss(33, 8, 257, "mean"),
    "loss, sum": loss(7, 4, 3, "sum"),
    "loss, each": loss(50, 16, 1000, "none"),
    "loss, one token of one": loss(1, 1, 1, "sum"),
    "loss, no token": loss(0, 3, 5, "sum"),
}


def results(run: Callable[..., Tensor], inputs: list[Tensor], slope: Tensor) -> list[Tensor]:
    y = run(*inputs)
    return [y, *torch.autograd.grad(y, inputs, slope.to(y.dtype), allow_unused=True, materialize_grads=True)]


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
        monkeypatch.setattr("statewise.train.tasks.language.MANY_LOGITS", many)
        value, _ = LanguageTask.loss(cast(LanguageTask, None), model, batch, None)
        found.append([value, *torch.autograd.grad(value, [*model.parameters()])])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-4)


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
