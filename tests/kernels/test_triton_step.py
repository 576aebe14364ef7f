"""A step of a model by kernels is the step of its modules: layer by layer, in the numbers that are left behind too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from interpreted import long_but, long_interpreted, needs_interpreter
from torch import Tensor
from torch.utils._pytree import tree_leaves

import statewise as sw
from statewise import kernels
from statewise.decoding import dequantised, with_weights
from statewise.decoding.gpu_layers import by_kernels
from statewise.decoding.packing import quantise
from statewise.decoding.static import StaticRun
from statewise.kernels import gpu
from statewise.kernels.gpu import canary
from statewise.kernels.step import product, pytorch
from statewise.models.quantised import is_quantised

pytestmark = [needs_interpreter, pytest.mark.usefixtures("poisoned_memory")]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 11
PLAIN = sw.Mamba2Config(d_head=16, d_state=48)
ATTENTION = sw.AttentionConfig(n_heads=2)
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one layer": ((PLAIN,), {}),
    "two layers, odd heads": ((sw.Mamba2Config(d_head=20, d_state=16, n_heads=4),) * 2, {}),
    "groups": ((sw.Mamba2Config(d_head=16, d_state=16, n_heads=4, n_groups=2),), {}),
    "groups of the norm alone": ((sw.Mamba2Config(d_head=16, d_state=16, n_heads=4, norm_groups=4),), {}),
    "biases of projections, none of taps": ((sw.Mamba2Config(d_head=16, bias=True, convolution_bias=False),), {}),
    "limits, two taps": ((sw.Mamba2Config(d_head=16, d_state=16, dt_limit=(0.01, 0.05), n_taps=2),), {}),
    "one tap": ((sw.Mamba2Config(d_head=16, d_state=16, n_taps=1),), {}),
    "a hybrid": ((PLAIN, ATTENTION, PLAIN, sw.MambaConfig(d_state=4), PLAIN), {}),
    "an MLP behind it": ((sw.BlockConfig(mixer=PLAIN, mlp=sw.MLPConfig(expand=2), norm="rms_offset"),), {}),
    "a cap": ((PLAIN,), {"logit_cap": 20.0}),
    "another head": ((PLAIN,), {"norm": "layer", "logit_scale": 0.5, "d_embedding": 8}),
}

INTEGERS = ("groups of the norm alone", "biases of projections, none of taps", "a hybrid")


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of which takes an interpreter milliseconds."""
    if gpu.interprets():
        monkeypatch.setattr(gpu.module("step"), "_PROGRAMS", 1)


def build(name: str, dtype: torch.dtype = torch.float32, d_model: int = 32) -> sw.LanguageModel:
    torch.manual_seed(0)
    layers, options = CASES[name]
    config = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=d_model, layers=layers, embedding_std=1.0, **options)
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)  # biases and norms too
    return model.to(DEVICE, dtype).eval()


def warm(model: sw.LanguageModel, batch: int) -> Any:
    """The state of rows that have read different numbers of tokens."""
    tokens, lengths = torch.randint(VOCABULARY, (batch, 9), device=DEVICE), torch.tensor([9, 4, 0], device=DEVICE)
    return model(tokens, model.initial_state(batch), lengths=lengths[:batch])[1]


def recorder(call: Callable[[], None], warm_up: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """As CUDA's, of which each replay computes again."""
    warm_up()
    return call


def assert_near(got: Tensor, want: Tensor, tolerance: float) -> None:
    got, want = got.double(), want.double()
    if want.numel():
        assert float((got - want).abs().max()) <= tolerance * max(1.0, float(want.abs().max()))


@pytest.mark.parametrize("batch", long_but([1], [1, 3]))
@pytest.mark.parametrize("dtype", long_but([torch.float32], [torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_steps_by_kernels_are_the_models(name: str, dtype: torch.dtype, batch: int) -> None:
    model, tolerance = build(name, dtype), 2e-5 if dtype == torch.float32 else 4e-2
    with kernels.use("torch"):
        state = warm(model, batch)
    with kernels.use("triton"):
        run = StaticRun(model, state, recorder=recorder)
    assert run._kernels is not None
    assert run._kernels.by_kernels == tuple(type(block.mixer) is sw.mixers.mamba2.Mamba2 for block in model.blocks)
    assert run._kernels.head_by_kernel == (name != "another head")
    addresses = [leaf.data_ptr() for leaf in tree_leaves(run.passing_state())]
    for n in range(4):
        tokens = torch.randint(VOCABULARY, (batch, 1), device=DEVICE)
        # rows that take no part, and documents that begin, go by the modules on the same state
        lengths = torch.tensor([1, 0, 1], device=DEVICE)[:batch] if n == 1 else None
        starts = torch.tensor([[True], [False], [False]], device=DEVICE)[:batch] if n in (1, 2) else None
        with kernels.use("torch"):
            want, state = model(tokens, state, lengths=lengths, starts=starts)
            got = run.step(tokens, lengths=lengths, starts=starts)
        read = slice(None) if lengths is None else lengths > 0
        assert_near(got[read], want[read, -1], tolerance)
        assert run._kernels is not None, "it fell back"
    assert [leaf.data_ptr() for leaf in tree_leaves(run.passing_state())] == addresses, "in place"
    for got, want in zip(tree_leaves(run.passing_state().layers), tree_leaves(state.layers), strict=True):
        if got.shape == want.shape and got.is_floating_point():  # an attention's buffers, and where its slots begin
            assert_near(got, want, tolerance)
    assert run.passing_state().position.equal(state.position)


@pytest.mark.parametrize("batch", long_but([1], [1, 3]))
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", long_but(INTEGERS[:1], INTEGERS))
@torch.inference_mode()
def test_steps_with_integers_are_the_rounded_models(name: str, weights: str, batch: int) -> None:
    """Layers with kernels of a step, and those of which only the products have one."""
    model = build(name, d_model=48)
    want = dequantised(model, weights)
    with kernels.use("torch"):
        state = warm(want, batch)
    with kernels.use("triton"):
        run = StaticRun(with_weights(model, weights), state, recorder=recorder)
        assert is_quantised(run._model)
        assert run._kernels is not None
        assert run._kernels.by_kernels == tuple(type(block.mixer) is sw.mixers.mamba2.Mamba2 for block in model.blocks)
        assert run._kernels.head_by_kernel
    for n in range(3):
        tokens = torch.randint(VOCABULARY, (batch, 1), device=DEVICE)
        lengths = torch.tensor([1, 0, 1], device=DEVICE)[:batch] if n == 1 else None
        with kernels.use("torch"):
            expected, state = want(tokens, state, lengths=lengths)
        with products_alone():
            got = run.step(tokens, lengths=lengths)
        read = slice(None) if lengths is None else lengths > 0
        assert_near(got[read], expected[read, -1], 1e-4)
        assert run._kernels is not None, "it fell back"


@contextlib.contextmanager
def products_alone() -> Iterator[None]:
    """Triton in force, but for kernels that have tests of their own, which take an interpreter long."""
    with pytest.MonkeyPatch.context() as patch, kernels.use("triton"):
        patch.setattr(gpu, "KERNELS", ("step",))
        yield


@pytest.mark.parametrize("fails", [True, False])
@torch.inference_mode()
def test_kernels_that_are_wrong_are_not_used(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu.module("step").mamba2_step

    def wrong(*given: Any) -> Tensor:
        u = right(*given)
        if fails:
            raise LookupError("no such card\nand more")
        return 2 + u

    model = build("a hybrid")
    for record in (recorder, None):
        state = warm(model, 3)
        with kernels.use("triton"):
            run = StaticRun(model, state, recorder=record)
        monkeypatch.setattr(gpu.module("step"), "mamba2_step", wrong)
        with kernels.use("torch"):
            for n in range(3):
                tokens = torch.randint(VOCABULARY, (3, 1), device=DEVICE)
                want, state = model(tokens, state)
                if n == 0:
                    with pytest.warns(RuntimeWarning, match="no such card" if fails else "first replay is off by"):
                        got = run.step(tokens)
                else:
                    got = run.step(tokens)
                assert_near(got, want[:, -1], 2e-5)
        monkeypatch.setattr(gpu.module("step"), "mamba2_step", right)


@torch.inference_mode()
def test_other_layers_and_numbers_go_by_their_modules() -> None:
    model = build("one layer")
    for other in ({"norm": False}, {"norm_before_gate": True}, {"head_pattern": "multi_head"}):
        mixer = sw.Mamba2Config(d_head=16, d_state=16, **other)
        layer = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=32, layers=(mixer,)).build().to(DEVICE).eval()
        with kernels.use("triton"):
            assert by_kernels(layer, layer.initial_state(1)) is None
    for way, batch in (("torch", 1), ("triton", 9), ("triton", 0)):
        with kernels.use(way):
            assert by_kernels(model, model.initial_state(batch)) is None
    with kernels.use("triton"):
        assert by_kernels(model, model.initial_state(8)) is not None
        assert by_kernels(model.double(), model.initial_state(1)) is None
    assert by_kernels(build("one layer"), model.initial_state(1)) is None


@torch.inference_mode()
def test_sizes_that_16_does_not_divide_go_by_the_modules() -> None:
    """Nor do more states or taps than a program holds."""
    parts: dict[str, Any] = {"d_head": 16, "d_state": 16, "n_heads": 3}
    others: tuple[dict[str, Any], ...] = ({"d_head": 20}, {"norm_groups": 4}, {"d_state": 24}, {"d_state": 272})
    for d_model, other in ((24, {}), *((32, other) for other in (*others, {"n_taps": 5}))):
        layers = (sw.Mamba2Config(**{**parts, **other}),)
        model = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=d_model, layers=layers).build().to(DEVICE).eval()
        with kernels.use("triton"):
            assert by_kernels(model, model.initial_state(1)) is None


@pytest.mark.parametrize("weights", ["float32", "int8", "int4"])
@pytest.mark.parametrize("sizes", [(2100, 5, 1, 1), (130, 300, 2, 3), (64, 7, 8, 8)])
def test_a_product_of_any_size(sizes: tuple[int, int, int, int], weights: str) -> None:
    k, n_out, groups, rows = sizes
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, k), matrix(torch.randn(n_out, k).to(DEVICE), weights), torch.randn(n_out)
    norm = pytorch.Norm(torch.randn(k), 1e-5, groups, 1.0)
    residual, projected = torch.randn(rows, n_out), torch.randn(rows, 1200)
    inputs = torch.randn(rows, 3, 1100)
    found = []
    for path in (gpu.module("step"), pytorch):
        state = inputs.clone().to(DEVICE)
        shift = pytorch.Shift(state, projected.to(DEVICE), 60)
        given = [m.to(DEVICE) for m in (bias, residual)]
        moved = norm._replace(weight=norm.weight.to(DEVICE))
        out = torch.empty_like(given[1])
        found.append((path.norm_matvec(x.to(DEVICE), moved, weight, *given, shift, out=out), state))
    (got, shifted), (want, expected) = found
    assert_near(got, want, 2e-5)
    assert shifted.equal(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("sizes", [(2100, 5, 1), (130, 70, 3), (1, 3, 8), (40, 9, 9), (5000, 3, 2)])
def test_a_product_alone(sizes: tuple[int, int, int], weights: str, dtype: torch.dtype) -> None:
    k, n_out, rows = sizes
    torch.manual_seed(0)
    held = matrix(torch.randn(n_out, k).to(DEVICE), weights)
    x, bias = torch.randn(rows, 1, k).to(DEVICE, dtype), torch.randn(n_out).to(DEVICE, dtype)
    with kernels.use("triton"):
        got = product(x, held, bias)
    assert got.dtype == dtype
    want = x.double() @ held.widened().double().T + bias.double()  # type: ignore[union-attr]
    assert_near(got, want, 1e-5 if dtype == torch.float32 else 1e-2)


def matrix(weight: Tensor, weights: str) -> Tensor | pytorch.IntegerMatrix:
    if weights == "float32":
        return weight
    found = quantise(weight, weights)
    return pytorch.pack(found.q, found.scales, int(weights[3:]))


@long_interpreted
def test_the_canary_passes_the_kernels() -> None:
    assert canary.check("step", DEVICE) is None
