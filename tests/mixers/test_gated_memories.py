"""Gated linear attention, mLSTM and the RG-LRU: the laws, the published equations in loops, transformers' layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from laws import check_mixer_laws
from test_delta_layers import _of_transformers, drawn
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError
from statewise.mixers.mlstm import scales

D = torch.float64
CONFIGS: dict[str, sw.MixerConfig] = {
    "GLA": sw.GLAConfig(n_heads=2, d_value=4, rank=3, bias=True),
    "mLSTM": sw.MLSTMConfig(n_heads=2, d_value=4, bias=True),
    "RG-LRU": sw.RGLRUConfig(d_inner=6, n_blocks=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_laws(name: str) -> None:
    torch.manual_seed(0)
    check_mixer_laws(CONFIGS[name].build(8), length=19)


def test_gla_equals_the_published_equations() -> None:
    mixer = drawn(CONFIGS["GLA"], 8)
    h, n, p = 2, mixer.d_key, 4
    x = torch.randn(2, 9, 8, dtype=D)
    q, k, v, z, raw = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias).split([h * n, h * n, h * p, h * p, 3], -1)
    a = mixer.decay_proj(raw).sigmoid() ** (1 / 16)
    out = torch.zeros(2, 9, h * p, dtype=D)
    for row in range(2):
        for head in range(h):
            keys, values = slice(head * n, (head + 1) * n), slice(head * p, (head + 1) * p)
            S = torch.zeros(p, n, dtype=D)
            for t in range(9):
                S = S @ torch.diag(a[row, t, keys]) + torch.outer(v[row, t, values], k[row, t, keys])
                o = S @ q[row, t, keys] / n**0.5
                out[row, t, values] = o / (o.square().mean() + 1e-5).sqrt() * mixer.norm.weight
    torch.testing.assert_close(mixer(x)[0], mixer.out_proj(out * F.silu(z)), atol=1e-12, rtol=1e-10)


def test_mlstm_equals_the_equations_without_a_scale() -> None:
    """C and n as they are defined; with the scale the layer's denominator has its eps beside e^-m of them."""
    mixer = drawn(CONFIGS["mLSTM"], 8)
    h, n, p = 2, mixer.d_key, 4
    x = torch.randn(2, 9, 8, dtype=D)
    q, k, v, z = mixer.in_proj(x).split([h * n, h * n, h * p, h * p], -1)
    raw_i, raw_f = (15 * (mixer.gate_proj(x) / 15).tanh()).chunk(2, -1)
    out = torch.zeros(2, 9, h * p, dtype=D)
    for row in range(2):
        for head in range(h):
            keys, values = slice(head * n, (head + 1) * n), slice(head * p, (head + 1) * p)
            C, total = torch.zeros(p, n, dtype=D), torch.zeros(n, dtype=D)
            for t in range(9):
                i, f = raw_i[row, t, head].exp(), raw_f[row, t, head].sigmoid()
                C = f * C + i * torch.outer(v[row, t, values], k[row, t, keys])
                total = f * total + i * k[row, t, keys]
                query = q[row, t, keys] / n**0.5
                o = C @ query / torch.clamp((total @ query).abs(), min=1)
                out[row, t, values] = F.layer_norm(o, (p,), eps=1e-6)
    out = out * mixer.norm.weight + mixer.norm.bias
    torch.testing.assert_close(mixer(x)[0], mixer.out_proj(z.sigmoid() * out), atol=1e-3, rtol=1e-3)


def test_scales_are_the_recurrence() -> None:
    log_f, log_i = -torch.rand(2, 30, 3, dtype=D), 20 * torch.randn(2, 30, 3, dtype=D)
    starts = torch.rand(2, 30) < 0.2
    m, want = torch.randn(2, 3, dtype=D), []
    found = scales(log_f, log_i, m, starts)
    for t in range(30):
        m = torch.maximum(log_f[:, t] + m.masked_fill(starts[:, t, None], 0), log_i[:, t])
        want.append(m)
    torch.testing.assert_close(found, torch.stack(want, 1), atol=1e-9, rtol=0)


def test_mlstm_is_xlstms() -> None:
    theirs = _of_transformers(
        *("xlstm", "xLSTMLayer", "xLSTMConfig"),
        first=None,
        **{"hidden_size": 16, "num_heads": 2, "qk_dim_factor": 0.5, "v_dim_factor": 1.0, "use_bias": False},
        **{"weight_mode": "single", "chunkwise_kernel": "chunkwise--native_autograd", "mode": "inference"},
        **{"sequence_kernel": "native_sequence__native", "step_kernel": "native", "return_last_states": True},
    )
    ours = sw.MLSTMConfig(n_heads=2).build(16)
    with torch.no_grad():
        rows = (theirs.q, theirs.k, theirs.v, theirs.ogate_preact)
        ours.in_proj.weight.copy_(torch.cat([m.weight for m in rows]))
        ours.gate_proj.weight.copy_(torch.cat([theirs.igate_preact.weight, theirs.fgate_preact.weight]))
        ours.gate_proj.bias.copy_(torch.cat([theirs.igate_preact.bias, theirs.fgate_preact.bias]))
        ours.norm.weight.copy_(theirs.multihead_norm.weight)
        ours.out_proj.weight.copy_(theirs.out_proj.weight)
        x = torch.randn(2, 23, 16)
        torch.testing.assert_close(ours(x)[0], theirs(x)[0], atol=2e-4, rtol=1e-3)


def test_rg_lru_is_recurrent_gemmas() -> None:
    theirs = _of_transformers(
        *("recurrent_gemma", "RecurrentGemmaRecurrentBlock", "RecurrentGemmaConfig"),
        **{"hidden_size": 8, "lru_width": 8, "num_attention_heads": 2, "conv1d_width": 4},
    )
    ours = sw.RGLRUConfig(n_blocks=2).build(8)
    with torch.no_grad():
        ours.in_proj.weight.copy_(torch.cat([theirs.linear_y.weight, theirs.linear_x.weight]))
        ours.in_proj.bias.copy_(torch.cat([theirs.linear_y.bias, theirs.linear_x.bias]))
        ours.convolution.weight.copy_(theirs.conv_1d.weight.squeeze(1).flip(1))
        ours.convolution.bias.copy_(theirs.conv_1d.bias)
        ours.dynamics.Lambda.copy_(theirs.rg_lru.recurrent_param)
        for block in range(2):
            for gates, name in ((ours.input_gates, "input_gate"), (ours.recurrence_gates, "recurrent_gate")):
                gates[block].weight.copy_(getattr(theirs.rg_lru, f"{name}_weight")[block].mT)
                gates[block].bias.copy_(getattr(theirs.rg_lru, f"{name}_bias")[block])
        ours.out_proj.weight.copy_(theirs.linear_out.weight)
        ours.out_proj.bias.copy_(theirs.linear_out.bias)
        x = torch.randn(2, 23, 8)
        places = torch.arange(23).expand(2, -1)
        want, _ = theirs(x, places, attention_mask=None, use_cache=False)
        torch.testing.assert_close(ours(x)[0], want, atol=2e-5, rtol=1e-4)


def test_the_first_step_of_each_document_counts_in_full() -> None:
    mixer = drawn(CONFIGS["RG-LRU"], 8)
    x, starts = torch.randn(1, 12, 8, dtype=D), torch.zeros(1, 12, dtype=torch.bool)
    starts[0, 5] = True
    together: Tensor = mixer(x, starts=starts)[0]
    torch.testing.assert_close(together, torch.cat([mixer(x[:, :5])[0], mixer(x[:, 5:])[0]], 1))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (sw.GLAConfig(n_heads=3), ["d_model=8", "n_heads=3", "d_key"]),
        (sw.MLSTMConfig(n_heads=3, d_key=2), ["d_model=8", "n_heads=3", "d_value"]),
        (sw.RGLRUConfig(n_blocks=3), ["n_blocks=3", "d_inner=8"]),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(config: sw.MixerConfig, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        config.build(8)
    assert all(word in str(error.value) for word in words), str(error.value)
