"""DeltaNet, Gated DeltaNet, KDA and RWKV-7: the laws, the published equations in loops, and transformers' layers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import check_mixer_laws
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError
from statewise.mixers.delta_layer import DeltaLayer
from statewise.mixers.rwkv7 import RWKV7

D = torch.float64


def drawn(config: Any, d_model: int, seed: int = 0) -> Any:
    """Built in float64, all parameters moved from where they began."""
    torch.manual_seed(seed)
    mixer = config.build(d_model).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return mixer


CONFIGS: dict[str, sw.MixerConfig] = {
    "DeltaNet": sw.DeltaNetConfig(n_heads=2),
    "DeltaNet gated": sw.DeltaNetConfig(n_heads=3, d_key=5, d_value=2, gate=True, negative_eigenvalues=True, bias=True),
    "Gated DeltaNet": sw.GatedDeltaNetConfig(n_heads=4, n_key_heads=2, d_key=3, d_value=5, norm_eps=1e-3),
    "Gated DeltaNet, no gate": sw.GatedDeltaNetConfig(n_heads=2, d_key=3, d_value=4, gate=False, n_taps=2),
    "KDA": sw.KDAConfig(n_heads=2, d_key=5, d_value=3, rank=4),
    "KDA with options": sw.KDAConfig(n_heads=2, d_key=2, d_value=3, gate_bias=True, negative_eigenvalues=True),
}


def published(mixer: DeltaLayer, x: Tensor) -> Tensor:
    """The block by a loop over steps and heads, from the parameters alone."""
    h, g, n, p = mixer.n_heads, mixer.n_key_heads, mixer.d_key, mixer.d_value
    rows = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias)
    qkv, rest = rows[..., : 2 * g * n + h * p], rows[..., 2 * g * n + h * p :]
    taps = mixer.convolution.weight.flip(1).unsqueeze(1)
    qkv = F.silu(F.conv1d(F.pad(qkv.mT, (taps.shape[2] - 1, 0)), taps, groups=len(taps)).mT)
    q, k, v = qkv.split([g * n, g * n, h * p], -1)
    beta = torch.sigmoid(rest[..., -h:]) * (2 if mixer.config.negative_eigenvalues else 1)
    gate = log_a = None
    if isinstance(mixer.config, sw.KDAConfig):
        rank = mixer.decay_proj.in_features
        raw = F.linear(rest[..., :rank], mixer.decay_proj.weight) + mixer.dynamics.dt_bias
        log_a = -mixer.dynamics.A_log.exp().repeat_interleave(n) * torch.log1p(raw.exp())
        log_a = log_a.unflatten(-1, (h, n))
        gate = F.linear(rest[..., rank : 2 * rank], mixer.gate_proj.weight, mixer.gate_proj.bias).sigmoid()
    elif isinstance(mixer.config, sw.GatedDeltaNetConfig):
        raw = rest[..., -2 * h : -h] + mixer.dynamics.dt_bias
        log_a = (-mixer.dynamics.A_log.exp() * torch.log1p(raw.exp())).unsqueeze(-1).expand(-1, -1, -1, n)
        gate = F.silu(rest[..., : h * p]) if mixer.config.gate else None
    else:
        gate = F.silu(rest[..., : h * p]) if mixer.config.gate else None
    out = torch.zeros(*x.shape[:2], h, p, dtype=x.dtype)
    for row in range(len(x)):
        for head in range(h):
            at, of = slice(head * p, (head + 1) * p), slice(head // (h // g) * n, (head // (h // g) + 1) * n)
            S = torch.zeros(p, n, dtype=x.dtype)
            for t in range(x.shape[1]):
                key, query = (m[row, t, of] / (m[row, t, of].square().sum() + 1e-6).sqrt() for m in (k, q))
                a = torch.ones(n, dtype=x.dtype) if log_a is None else log_a[row, t, head].exp()
                eye, b = torch.eye(n, dtype=x.dtype), beta[row, t, head]
                S = S @ torch.diag(a) @ (eye - b * torch.outer(key, key)) + b * torch.outer(v[row, t, at], key)
                out[row, t, head] = S @ query / n**0.5
    out = out / (out.square().mean(-1, keepdim=True) + mixer.config.norm_eps).sqrt() * mixer.norm.weight
    out = out.flatten(2) if gate is None else out.flatten(2) * gate
    return F.linear(out, mixer.out_proj.weight, mixer.out_proj.bias)


@pytest.mark.parametrize("name", CONFIGS)
def test_equal_to_the_published_block(name: str) -> None:
    mixer, x = drawn(CONFIGS[name], 6), torch.randn(2, 11, 6, dtype=D)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], published(mixer, x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ["DeltaNet gated", "Gated DeltaNet", "KDA with options"])
def test_laws(name: str) -> None:
    torch.manual_seed(0)
    check_mixer_laws(CONFIGS[name].build(6), length=19)


def test_laws_of_rwkv7() -> None:
    torch.manual_seed(0)
    check_mixer_laws(sw.RWKV7Config(d_head=3, decay_rank=2, rate_rank=3, gate_rank=2).build(6), length=19)


def test_laws_of_rwkv7_behind_another() -> None:
    torch.manual_seed(0)
    config = sw.RWKV7Config(d_head=2, decay_rank=2, rate_rank=3, gate_rank=2, value_rank=2)
    check_mixer_laws(config.build(6), length=19)


def test_rwkv7_equals_the_published_equations() -> None:
    mixer: RWKV7 = drawn(sw.RWKV7Config(d_head=4, decay_rank=3, rate_rank=2, gate_rank=5), 8)
    x, d = torch.randn(2, 9, 8, dtype=D), 4
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    mixed = {name: x + mixer.mu[name] * (before - x) for name in mixer.mu}

    def net(small: Any, value: Tensor, inner: Any) -> Tensor:
        return small.up(inner(small.down(value)))

    w = (
        -torch.exp(torch.tensor(-0.5, dtype=D))
        * (mixer.dynamics.bias + net(mixer.decay_net, mixed["w"], torch.tanh)).sigmoid()
    )
    a = net(mixer.rate_net, mixed["a"], lambda m: m).sigmoid()
    g = net(mixer.gate_net, mixed["g"], torch.sigmoid)
    r, k, v = mixer.r_proj(mixed["r"]), mixer.k_proj(mixed["k"]), mixer.v_proj(mixed["v"])
    y = torch.zeros_like(x)
    for row in range(2):
        S = torch.zeros(2, d, d, dtype=D)
        for t in range(9):
            parts = []
            for head in range(2):
                at = slice(head * d, (head + 1) * d)
                kappa = F.normalize(k[row, t, at] * mixer.xi[at], dim=0)
                rate = a[row, t, at]
                key = k[row, t, at] * (1 + (rate - 1) * mixer.alpha[at])
                transition = torch.diag(w[row, t, at].exp()) - torch.outer(kappa, rate * kappa)
                S[head] = S[head] @ transition + torch.outer(v[row, t, at], key)
                o = S[head] @ r[row, t, at]
                o = (o - o.mean()) / (o.var(unbiased=False) + d * 1e-5).sqrt() * mixer.norm.weight[
                    at
                ] + mixer.norm.bias[at]
                parts.append(o + (r[row, t, at] * mixer.rho[at] * key).sum() * v[row, t, at])
            y[row, t] = torch.cat(parts) * g[row, t]
    torch.testing.assert_close(mixer(x)[0], mixer.out_proj(y), atol=1e-12, rtol=1e-10)


def _of_transformers(model: str, layer: str, config: str, first: int | None = 0, **options: Any) -> Any:
    """A layer of transformers with drawn parameters; ``first`` is its place, None for a layer that has none."""
    pytest.importorskip("transformers")
    try:
        module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    except ImportError:
        pytest.skip(f"this transformers has no {model}")
    torch.manual_seed(1)
    settings = importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    config_of = getattr(settings, config)(**options)
    made = getattr(module, layer)(config_of, *(() if first is None else (first,)))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) / 3)
    return made


def _by_head(weight: Tensor, n_groups: int, sizes: list[int]) -> list[Tensor]:
    """Rows that lie group by group -> those of each kind together."""
    parts = weight.unflatten(0, (n_groups, sum(sizes))).split(sizes, 1)
    return [part.flatten(0, 1) for part in parts]


def test_gated_delta_net_is_qwen3_next() -> None:
    theirs = _of_transformers(
        *("qwen3_next", "Qwen3NextGatedDeltaNet", "Qwen3NextConfig"),
        **{"hidden_size": 12, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6},
        **{"linear_value_head_dim": 5, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "num_hidden_layers": 1},
    )
    config = sw.GatedDeltaNetConfig(n_heads=4, n_key_heads=2, d_key=6, d_value=5, norm_eps=1e-6)
    ours = config.build(12)
    q, k, v, z = _by_head(theirs.in_proj_qkvz.weight, 2, [6, 6, 10, 10])
    b, a = _by_head(theirs.in_proj_ba.weight, 2, [2, 2])
    with torch.no_grad():
        ours.in_proj.weight.copy_(torch.cat([q, k, v, z, a, b]))
        ours.convolution.weight.copy_(theirs.conv1d.weight.squeeze(1).flip(1))
        ours.dynamics.A_log.copy_(theirs.A_log)
        ours.dynamics.dt_bias.copy_(theirs.dt_bias)
        ours.norm.weight.copy_(theirs.norm.weight)
        ours.out_proj.weight.copy_(theirs.out_proj.weight)
        x = torch.randn(2, 70, 12)
        torch.testing.assert_close(ours(x)[0], theirs(x), atol=2e-5, rtol=1e-4)


def test_kda_is_kimi_linear() -> None:
    theirs = _of_transformers(
        *("kimi_linear", "KimiLinearDeltaAttention", "KimiLinearConfig"),
        **{"hidden_size": 12, "linear_num_heads": 2, "linear_head_dim": 6, "linear_conv_kernel_dim": 4},
        **{"rms_norm_eps": 1e-6, "num_hidden_layers": 1},
    )
    ours = sw.KDAConfig(n_heads=2, d_key=6, d_value=6, norm_eps=1e-6).build(12)
    gate = dict(theirs.forget_gate.named_parameters())
    down, up = (gate[name] for name in ("f_a_proj.weight", "f_b_proj.weight"))
    rows = [theirs.q_proj, theirs.k_proj, theirs.v_proj]
    with torch.no_grad():
        both = [down, theirs.g_a_proj.weight, theirs.b_proj.weight]
        ours.in_proj.weight.copy_(torch.cat([*(m.weight for m in rows), *both]))
        ours.decay_proj.weight.copy_(up)
        ours.gate_proj.weight.copy_(theirs.g_b_proj.weight)
        ours.convolution.weight.copy_(theirs.conv1d.weight.squeeze(1).flip(1))
        ours.dynamics.A_log.copy_(gate["A_log"].flatten())
        ours.dynamics.dt_bias.copy_(gate["dt_bias"].flatten())
        ours.norm.weight.copy_(theirs.o_norm.weight)
        ours.out_proj.weight.copy_(theirs.o_proj.weight)
        x = torch.randn(2, 70, 12)
        torch.testing.assert_close(ours(x)[0], theirs(x), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (sw.GatedDeltaNetConfig(n_heads=4, n_key_heads=3), ["n_key_heads=3", "n_heads=4"]),
        (sw.DeltaNetConfig(n_heads=3), ["n_heads=3", "d_model=8"]),
        (sw.RWKV7Config(d_head=3), ["d_head=3", "d_model=8"]),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(config: sw.MixerConfig, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        config.build(8)
    assert all(word in str(error.value) for word in words), str(error.value)
