"""Exact mode beside the plain one: operations with options, in place and into ``out=``, and right gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from exact_cases import differing
from families import MIXERS
from torch import Tensor

import statewise as sw
from statewise import native
from statewise.kernels.exact import is_exact
from statewise.models.pooling import build_pooling

pytestmark = pytest.mark.skipif(not native.available(), reason="exact mode needs the C kernels")

torch.manual_seed(0)
x, y, eye = torch.randn(4, 6), torch.randn(4, 6), torch.eye(6)
c, d = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 2, dtype=torch.complex64)


def in_place(change: Callable[[Tensor], object]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        z = x.clone()
        change(z)
        return z

    return run


def into(write: Callable[[Tensor], object], *shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    def run() -> Tensor:
        out = torch.full(shape or (4, 6), 7.0, dtype=dtype)
        write(out)
        return out

    return run


OPERATIONS: dict[str, Callable[[], Tensor]] = {
    "var, biased": lambda: x.var(-1, unbiased=False),
    "var, biased, keepdim": lambda: x.var(-1, unbiased=False, keepdim=True),
    "var of all, biased": lambda: x.var(unbiased=False),
    "var, correction": lambda: x.var(-1, correction=0, keepdim=True),
    "rsub": lambda: torch.rsub(x, y, alpha=2),
    "rsub of a number": lambda: torch.rsub(x, 1.0, alpha=2),
    "sub": lambda: torch.sub(x, y, alpha=2),
    "add of a number": lambda: torch.add(x, 2.0, alpha=3),
    "add_": in_place(lambda z: z.add_(y, alpha=0.5)),
    "add, out": into(lambda out: torch.add(x, y, alpha=2, out=out)),
    "elu_": in_place(lambda z: F.elu(z, inplace=True)),
    "silu_": in_place(lambda z: F.silu(z, inplace=True)),
    "gelu_": in_place(lambda z: torch.ops.aten.gelu_(z)),
    "pow_ of 0": in_place(lambda z: z.pow_(0)),
    "pow_ of 2": in_place(lambda z: z.pow_(2)),
    "rsqrt_": in_place(lambda z: z.abs_().rsqrt_()),
    "lerp_": in_place(lambda z: z.lerp_(y, 0.3)),
    "addcmul_": in_place(lambda z: z.addcmul_(y, y, value=0.5)),
    "addmm_": in_place(lambda z: z.addmm_(y, eye)),
    "baddbmm_": in_place(lambda z: z.view(1, 4, 6).baddbmm_(y[None], eye[None])),
    "cumsum_": in_place(lambda z: z.cumsum_(-1)),
    "index_add_": in_place(lambda z: z.index_add_(0, torch.tensor([0, 0, 2, 3]), y)),
    "index_put_, adding": in_place(lambda z: z.index_put_((torch.tensor([0, 0, 2, 3]),), y, accumulate=True)),
    "index_put_": in_place(lambda z: z.index_put_((torch.tensor([1, 0, 2, 3]),), y)),
    "index_put, adding": lambda: torch.index_put(x, (torch.tensor([0, 0, 2, 3]),), y, accumulate=True),
    "mean, dtype": lambda: x.mean(1, dtype=torch.float64),
    "norm, dtype": lambda: torch.linalg.vector_norm(x, 2, 1, dtype=torch.float64),
    "mm, out": into(lambda out: torch.mm(x, eye, out=out)),
    "exp, out": into(lambda out: torch.exp(x, out=out)),
    "sum, out": into(lambda out: torch.sum(x, 1, out=out), 4),
    "sum, out of another shape": into(lambda out: torch.sum(x, 1, out=out), 0),
    "softplus with a threshold": lambda: F.softplus(x * 10, threshold=1),
    "softplus": lambda: F.softplus(torch.tensor([100.0, -100.0, 16.9, 17.1, 20.0, 21.0])),
    "a conjugate times": lambda: torch.view_as_real(c.conj() @ d),
    "times a conjugate": lambda: torch.view_as_real(c @ d.conj()),
    "both": lambda: torch.view_as_real(d.mH @ c.mH),
    "batches of conjugates": lambda: torch.view_as_real(torch.bmm(c.conj()[None], d[None])),
    "an imaginary part": lambda: c.conj().imag @ d.real,
    "complex, out": into(lambda out: torch.mul(c, c, out=out), 3, 4, dtype=torch.complex64),
    "sgn": lambda: torch.view_as_real(torch.sgn(c)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_itself(name: str) -> None:
    wanted = OPERATIONS[name]()
    for around in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with sw.exact(), around():
            found = OPERATIONS[name]()
        torch.testing.assert_close(found.clone(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MIXERS)
def test_gradients_are_right(name: str) -> None:
    """Not only always the same: as without exact mode, whose gradients are those of the definitions."""
    torch.manual_seed(1)
    mixer = MIXERS[name].build(8).eval()
    if not mixer.is_causal or mixer.reads_memory:
        pytest.skip("exact mode refuses it")
    found: list[tuple[Tensor | None, ...]] = []
    for on in (False, True):
        z = x[:, :2].reshape(1, 1, 8) * torch.linspace(-1, 1, 22).view(2, 11, 1)
        z.requires_grad_()
        with sw.exact(on):
            out, _ = mixer(z)
            found.append(torch.autograd.grad(out.square().sum(), [z, *mixer.parameters()], allow_unused=True))
    for wanted, exact in zip(*found, strict=True):
        assert (exact is None) == (wanted is None)
        if exact is not None and wanted is not None:
            assert (exact - wanted).norm() <= 2e-3 * wanted.norm() + 1e-5


def test_an_embedding_by_frequency_is_refused() -> None:
    rows = torch.nn.Embedding(9, 4, scale_grad_by_freq=True)
    with sw.exact(), pytest.raises(sw.InputError, match="scale_grad_by_freq"):
        rows(torch.tensor([1, 1, 2])).sum().backward()


def test_four_active_experts_have_one_gradient_on_any_number_of_threads() -> None:
    """A token's gradient is the sum of those of its experts, and is to have one order."""
    torch.manual_seed(0)
    experts = sw.MoEConfig(n_experts=8, n_active=4, expand=1.0, gated=True).build(128)
    experts.reset_parameters()
    inputs, slope = torch.randn(2, 400, 128), torch.randn(2, 400, 128)

    def gradient(n_threads: int, length: int) -> Tensor:
        torch.set_num_threads(n_threads)
        z = inputs.clone().requires_grad_()
        with sw.exact():
            out = torch.cat([experts(piece) for piece in z.split(length, 1)], 1)
            return torch.autograd.grad((out * slope).sum(), z)[0]

    before = torch.get_num_threads()
    try:
        wanted = gradient(1, 400)
        assert [differing(wanted, gradient(2, length)) for length in (400, 150)] == [0, 0]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["mean", "attention", "last"])
def test_a_pooling_has_one_answer(kind: str) -> None:
    pool, features = build_pooling(kind, 8), torch.randn(3, 31, 8)
    lengths = torch.tensor([31, 12, 0])
    plain, _ = pool(features, lengths=lengths)

    def read(size: int) -> tuple[Tensor, object, Tensor]:
        z = features.clone().requires_grad_()
        state = pool.initial_state(3)
        for first in range(0, 31, size):
            here = z[:, first : first + size]
            out, state = pool(here, state, lengths=(lengths - first).clamp(0, here.shape[1]))
        (slope,) = torch.autograd.grad(out.square().sum(), z)
        return out, state, slope

    with sw.exact():
        whole = read(31)
        for size in (1, 7, 13, 30):
            assert differing(read(size), whole) == 0
        alone, _ = pool(features[1:2, :12])
    torch.testing.assert_close(whole[0], plain)
    assert differing(alone, whole[0][1:2]) == 0


def test_what_it_decorates_stays_exact_where_it_is_taken() -> None:
    @sw.exact()
    def switches() -> Iterator[bool]:
        yield is_exact()
        yield is_exact()

    assert list(switches()) == [True, True]
    assert not is_exact()
    with pytest.raises(sw.InputError, match="asked is a coroutine"):

        @sw.exact()
        async def asked() -> None: ...


def test_a_stream_that_begins_in_it_stays_exact() -> None:
    model = sw.LanguageModelConfig(
        vocab_size=17, d_model=32, layers=(sw.Mamba2Config(d_state=16, d_head=8), sw.AttentionConfig(n_heads=4))
    ).build()
    prompt = torch.randint(17, (1, 40))
    with sw.exact():
        stream = sw.generate(model, prompt, max_new_tokens=6, temperature=0)
        within = list(sw.generate(model, prompt, max_new_tokens=6, temperature=0))
    assert not is_exact()
    for one, other in zip(stream, within, strict=True):
        assert differing(one.log_probabilities, other.log_probabilities) == 0
