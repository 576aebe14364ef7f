"""Linear attention: the laws, the sums of the paper by loops, the quadratic form, each feature map and both sums."""

from __future__ import annotations

import copy
import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from law_signals import gradients, prepared, same
from laws import check_mixer_laws
from torch import Tensor

from statewise.errors import ConfigError, InputError
from statewise.mixers.feature_maps import FEATURE_MAPS, taylor
from statewise.mixers.linear_attention import LinearAttention, LinearAttentionConfig, denominator
from statewise.models.language_model import LanguageModelConfig
from statewise.operators.ssd import SSDState
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

CASES = list(product(FEATURE_MAPS, (True, False)))


def build(**options: Any) -> LinearAttention:
    torch.manual_seed(0)
    return LinearAttentionConfig(**{"n_heads": 2, "chunk_length": 5, **options}).build(8)


def by_hand(name: str, x: Tensor) -> Tensor:
    """A feature map of one vector, entry by entry."""
    if name == "taylor":
        d = len(x)
        pairs = [x[i] * x[j] / math.sqrt(2 * d) for i in range(d) for j in range(d)]
        return torch.stack([torch.ones((), dtype=x.dtype), *(x[i] / d**0.25 for i in range(d)), *pairs])
    return {
        "elu": torch.where(x > 0, x + 1, x.clamp(max=0).exp()),
        "relu": x * (x > 0),
        "identity": x,
    }[name]


def published(mixer: LinearAttention, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """S and z of each row and head, step by step, from the weights alone; the state as the mixer lays it out."""
    c, d_model = mixer.config, mixer.d_model
    width = d_model // c.n_heads if c.d_feature is None else c.d_feature
    Q, K, V = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias).split(
        [c.n_heads * width, c.n_heads * width, d_model], -1
    )
    rows, states = [], []
    for row in range(x.shape[0]):
        heads = []
        for head in range(c.n_heads):
            q, k = (m[row, :, head * width : (head + 1) * width] for m in (Q, K))
            v = V[row, :, head * mixer.d_head : (head + 1) * mixer.d_head]
            n = len(by_hand(c.feature_map, torch.zeros(width, dtype=x.dtype)))
            S, z = torch.zeros(n, mixer.d_head, dtype=x.dtype), torch.zeros(n, dtype=x.dtype)
            if h is not None:
                S, z = h[row, head, : mixer.d_head].T, h[row, head, -1] if c.normalize else z
            outputs = []
            for t in range(x.shape[1]):
                phi_q, phi_k = by_hand(c.feature_map, q[t]), by_hand(c.feature_map, k[t])
                S, z = S + torch.outer(phi_k, v[t]), z + phi_k
                outputs.append(phi_q @ S / (phi_q @ z if c.normalize else 1))
            heads.append(torch.stack(outputs))
            states.append(torch.cat([S.T, z[None]]) if c.normalize else S.T)
        rows.append(torch.cat(heads, -1))
    y = F.linear(torch.stack(rows), mixer.out_proj.weight, mixer.out_proj.bias)
    return y, torch.stack(states).unflatten(0, (x.shape[0], c.n_heads))


@pytest.mark.parametrize(("name", "normalize"), CASES)
@pytest.mark.parametrize(("batch", "length"), [(1, 13), (3, 21)])
def test_equal_to_the_published_sums(name: str, normalize: bool, batch: int, length: int) -> None:
    """Outputs, the state, and all gradients, from rest and from a state."""
    mixer = prepared(build(feature_map=name, normalize=normalize, d_feature=3, bias=batch == 1))
    if name in ("identity", "relu"):  # positive queries and keys: no denominator near 0
        with torch.no_grad():
            mixer.in_proj.weight[:12] = mixer.in_proj.weight[:12].abs()
    x = torch.rand(batch, length, 8, dtype=torch.float64) + 0.1
    probe = torch.rand(batch, 4, 8, dtype=torch.float64).requires_grad_()
    x.requires_grad_()
    y, state = mixer(x, mixer.initial_state(batch))
    z, last = mixer(probe, state)
    expected, h = published(mixer, x)
    following, final = published(mixer, probe, h)
    ours = torch.cat([m.flatten() for m in (y, z, last.h, mixer(x)[0])])
    theirs = torch.cat([m.flatten() for m in (expected, following, final, expected)])
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)
    inputs = (x, probe)
    same(gradients(mixer, ours, inputs), gradients(mixer, theirs, inputs), 1e-10, "gradients")


@pytest.mark.parametrize(("name", "normalize"), CASES)
def test_equal_to_the_quadratic_form(name: str, normalize: bool) -> None:
    """(mask * (phi(Q) phi(K)^T)) V, divided by its row sums."""
    mixer = prepared(build(feature_map=name, normalize=normalize))
    x = torch.randn(2, 70, 8, dtype=torch.float64)
    q, k, v = mixer.in_proj(x).unflatten(-1, (3, 2, 4)).unbind(2)
    phi = FEATURE_MAPS[name].apply
    weights = torch.einsum("blhn,bmhn->bhlm", phi(q), phi(k)).tril()
    if normalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total == 0, 1, total)  # relu: a query may find nothing, and gives 0
    expected = mixer.out_proj(torch.einsum("bhlm,bmhp->blhp", weights, v).flatten(2))
    scale = expected.abs().max().item()  # identity: weights cancel
    torch.testing.assert_close(mixer(x)[0], expected, atol=1e-10 * scale, rtol=1e-9)


def test_identity_without_a_denominator_is_masked_attention_without_softmax() -> None:
    mixer = prepared(build(n_heads=1, feature_map="identity", normalize=False))
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    Q, K, V = mixer.in_proj(x).chunk(3, -1)
    torch.testing.assert_close(mixer(x)[0], mixer.out_proj((Q @ K.mT).tril() @ V), atol=1e-11, rtol=1e-11)


def test_taylor_is_the_second_order_expansion_of_the_exponential() -> None:
    q, k = torch.randn(2, 50, 16, dtype=torch.float64).unbind()
    s = (q * k).sum(-1) / 4
    weight = (taylor(q) * taylor(k)).sum(-1)
    torch.testing.assert_close(weight, 1 + s + s * s / 2)
    assert weight.min() >= 0.5
    small = 0.1 * s
    root = 0.1**0.5
    error = (taylor(root * q) * taylor(root * k)).sum(-1) - small.exp()
    assert (error.abs() < small.abs() ** 3 * small.abs().exp()).all()


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_feature_maps(name: str) -> None:
    """Their width, their value entry by entry, and which give weights that are never negative."""
    feature_map = FEATURE_MAPS[name]
    x = 3 * torch.randn(40, 5, dtype=torch.float64)
    features = feature_map.apply(x)
    assert features.shape == (40, feature_map.width(5))
    torch.testing.assert_close(features, torch.stack([by_hand(name, row) for row in x]))
    assert bool((features @ features.T >= 0).all()) == feature_map.nonnegative


@pytest.mark.parametrize(("name", "normalize"), [case for case in CASES if case != ("identity", True)])
def test_laws(name: str, normalize: bool) -> None:
    """13 steps in one call are one chunk; 17 and more are chunks of 5, which the tests above reach."""
    check_mixer_laws(build(feature_map=name, normalize=normalize, d_feature=3, bias=normalize), length=13)


def test_laws_of_identity_with_a_denominator() -> None:
    """With keys and queries that point one way: otherwise a denominator near 0 makes rounding visible."""
    mixer = build(feature_map="identity", d_feature=2, bias=True, n_heads=1)
    with torch.no_grad():
        mixer.in_proj.bias[:4] = 30.0
    check_mixer_laws(mixer, length=9, atol=1e-8, atol_float32=1e-2)


def test_a_query_that_finds_nothing_gives_zero() -> None:
    """Relu: opposite keys, all weights 0, and 0 / eps; with finite gradients. elu + 1 far below 0 likewise."""
    for name, away in (("relu", 1.0), ("elu", 1e3)):
        mixer = build(feature_map=name, n_heads=1)
        with torch.no_grad():
            mixer.in_proj.weight.zero_()
            mixer.in_proj.weight[0, 0] = away  # a query of +x, a key of -x: never both above 0
            mixer.in_proj.weight[8, 0] = -away
            mixer.in_proj.weight[1:8, 1] = mixer.in_proj.weight[9:16, 1] = -away
            mixer.in_proj.weight[16:] = torch.eye(8)
        x = torch.ones(1, 4, 8, requires_grad=True)
        y, _ = mixer(x)
        assert (y == 0).all()
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_a_denominator_near_zero_keeps_its_sign() -> None:
    weight = torch.tensor([0.0, -0.0, 1e-3, -1e-3, 2e-2, -2e-2])
    expected = torch.tensor([1e-2, -1e-2, 1e-2, -1e-2, 2e-2, -2e-2])
    torch.testing.assert_close(denominator(weight, 1e-2, any_sign=True), expected)
    torch.testing.assert_close(denominator(weight[[0, 2, 4]], 1e-2, any_sign=False), expected[[0, 2, 4]])


def test_the_normaliser_is_wide_in_narrow_modules() -> None:
    """A count of 1,000 steps in bfloat16 would stop at 256: states and divisions are float32."""
    mixer = build().to(torch.bfloat16)
    with torch.no_grad():
        mixer.in_proj.weight[:8].zero_()  # queries of 0: phi is 1
        mixer.in_proj.weight[8:16].zero_()
        mixer.in_proj.weight[16:] = torch.eye(8)
        mixer.out_proj.weight.copy_(torch.eye(8))
    y, state = mixer(torch.ones(1, 1000, 8, dtype=torch.bfloat16), mixer.initial_state(1, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert state.h.dtype == torch.float32
    assert (state.h[:, :, -1] == 1000).all()
    assert (y == 1).all()
    exact = build()
    x = torch.randn(2, 30, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = exact(x, exact.initial_state(2))
    assert state.h.dtype == torch.float32
    assert (y - exact(x)[0]).abs().max() < 0.05 * exact(x)[0].abs().max()


def test_1000_steps_one_by_one() -> None:
    mixer = build(feature_map="taylor", d_feature=2)
    x = torch.randn(1, 1000, 8)
    with torch.no_grad():
        state, steps = mixer.initial_state(1), []
        for piece in x.split(1, 1):
            y, state = mixer(piece, state)
            steps.append(y)
        torch.testing.assert_close(torch.cat(steps, 1), mixer(x)[0], atol=1e-5, rtol=1e-4)


def test_sizes_and_initialisation() -> None:
    torch.manual_seed(0)
    mixer = LinearAttentionConfig(n_heads=4, d_feature=16, feature_map="taylor", bias=True).build(256)
    assert mixer.in_proj.weight.shape == (2 * 64 + 256, 256)
    assert mixer.initial_state(3).h.shape == (3, 4, 65, 1 + 16 + 256)
    assert LinearAttentionConfig(n_heads=4, normalize=False).build(64).initial_state(3).h.shape == (3, 4, 16, 16)
    assert abs(mixer.in_proj.weight.std() / 0.02 - 1) < 0.05
    assert (mixer.in_proj.bias == 0).all()
    before = mixer.out_proj.weight.std()
    mixer.reset_parameters(residual_scale=0.1)
    assert 0.09 < mixer.out_proj.weight.std() / before < 0.11


def test_weights_decay() -> None:
    model = LanguageModelConfig(vocab_size=5, d_model=8, layers=(LinearAttentionConfig(n_heads=2),)).build()
    groups = {g.name: [name for name, _ in g.parameters] for g in parameter_groups(model, OptimizerConfig())}
    assert groups["maps"] == ["layers.0.mixer.in_proj.weight", "layers.0.mixer.out_proj.weight"]


@pytest.mark.slow
def test_it_compiles_to_one_graph() -> None:
    mixer = build()
    compiled = torch.compile(copy.deepcopy(mixer), fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 20, 8)
    torch.testing.assert_close(compiled(x)[0], mixer(x)[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_heads": 3}, ["n_heads=3", "d_model=8"]),
        ({"n_heads": 0}, ["n_heads=0"]),
        ({"n_heads": True}, ["n_heads=True"]),
        ({"d_feature": 0}, ["d_feature=0"]),
        ({"chunk_length": 0}, ["chunk_length=0"]),
        ({"feature_map": "softmax"}, ["softmax", "taylor"]),
        ({"feature_map": ["elu"]}, ["['elu']", "taylor"]),
        ({"normalize": 1}, ["normalize=1"]),
        ({"bias": "no"}, ["bias='no'"]),
        ({"eps": 0.0}, ["eps=0.0"]),
        ({"eps": float("nan")}, ["eps=NaN"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_wrong_inputs_and_states_are_refused() -> None:
    mixer = build()
    x = torch.randn(2, 5, 8)
    with pytest.raises(InputError, match=r"\(batch, length, 8\)"):
        mixer(x[..., :7])
    with pytest.raises(InputError, match=r"torch\.float64"):
        mixer(x.double())
    with pytest.raises(InputError, match="SSDState"):
        mixer(x, (torch.zeros(2, 2, 5, 4),))
    with pytest.raises(InputError, match=r"\(2, 2, 5, 4\)"):
        mixer(x, SSDState(torch.zeros(2, 2, 4, 4)))  # one without the normaliser
    with pytest.raises(ConfigError, match="d_model=0"):
        LinearAttentionConfig(n_heads=1).build(0)
