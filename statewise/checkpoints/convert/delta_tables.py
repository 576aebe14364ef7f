"""Which tensors of theirs are which of ours: layers of the delta rule, gated and latent attention, the layers of LFM2,
RecurrentGemma and xLSTM. As ``layer_tables``, whose are the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, affine, require_shape, reshaped, same
from statewise.checkpoints.convert.layer_tables import convolution, output_bias, separate_attention, stacked
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.delta_net import GatedDeltaNetConfig
from statewise.mixers.gated_convolution import GatedConvolutionConfig
from statewise.mixers.head_widths import head_widths
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig
from statewise.mixers.mlstm import MLSTMConfig
from statewise.mixers.rg_lru import RGLRUConfig


def separate_maps(
    theirs: str, names: Sequence[str], ours: str, sizes: Sequence[int], d_model: int, *, bias: bool
) -> list[Entry]:
    parts = (("weight", (d_model,)), ("bias", ()))[: 1 + bias]
    return [
        stacked([f"{theirs}{name}.{part}" for name in names], f"{ours}.{part}", sizes, *inner) for part, inner in parts
    ]


# -- attention ---------------------------------------------------------------------------------------------------------
def normed_attention(
    config: AttentionConfig,
    theirs: str,
    ours: str,
    d_model: int,
    *,
    output: str = "o_proj",
    norms: tuple[str, str] = ("q_norm", "k_norm"),
) -> list[Entry]:
    """A map for each of queries, keys and values, and norms of the first two where there are."""
    table = separate_attention(config, theirs, ours, d_model, output=output)
    return table + _norms(config, theirs, ours, norms)


def gated_attention(config: AttentionConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As Qwen3-Next's: head by head its queries and its gate in one map; ours has all queries first, all gates last."""
    d_head, n_heads = config.head_width(d_model), config.n_heads
    d_kv = d_head * (n_heads if config.n_kv_heads is None else config.n_kv_heads)
    sizes = [n_heads * d_head, d_kv, d_kv, n_heads * d_head]

    def to_ours(part: str, *maps: Tensor) -> Tensor:
        for letter, one, size in zip("qkv", maps, (2 * sizes[0], d_kv, d_kv)):
            require_shape(f"{theirs}{letter}_proj.{part}", one, (size, d_model)[: 1 + (part == "weight")])
        qg, k, v = maps
        q, gate = qg.unflatten(0, (n_heads, 2, d_head)).unbind(1)
        return torch.cat((q.flatten(0, 1), k, v, gate.flatten(0, 1)))

    def to_theirs(tensor: Tensor) -> tuple[Tensor, ...]:
        q, k, v, gate = tensor.split(sizes)
        q, gate = (part.unflatten(0, (n_heads, d_head)) for part in (q, gate))
        return torch.stack((q, gate), 1).flatten(0, 2), k, v

    table = affine(f"{theirs}o_proj", f"{ours}out_proj", bias=output_bias(config))
    for part in ("weight", "bias")[: 1 + config.bias]:
        names = tuple(f"{theirs}{letter}_proj.{part}" for letter in "qkv")
        table.append(Entry(names, (f"{ours}in_proj.{part}",), partial(to_ours, part), to_theirs))
    return table + _norms(config, theirs, ours, ("q_norm", "k_norm"))


def _norms(config: AttentionConfig, theirs: str, ours: str, norms: tuple[str, str]) -> list[Entry]:
    names = () if config.qk_norm is None else zip(norms, ("q_norm", "k_norm"))
    return [same(f"{theirs}{name}.weight", f"{ours}{own}.weight") for name, own in names]


def latent_attention(config: LatentAttentionConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As DeepSeek's and Kimi Linear's."""
    table = [
        *affine(f"{theirs}kv_a_proj_with_mqa", f"{ours}in_proj", bias=config.bias),
        same(f"{theirs}kv_a_layernorm.weight", f"{ours}norm.weight"),
        same(f"{theirs}kv_b_proj.weight", f"{ours}up_proj.weight"),
        *affine(f"{theirs}o_proj", f"{ours}out_proj", bias=config.bias),
    ]
    if config.query_rank is None:
        return [*table, same(f"{theirs}q_proj.weight", f"{ours}query_proj.weight")]
    return [
        *table,
        *affine(f"{theirs}q_a_proj", f"{ours}query_down", bias=config.bias),
        same(f"{theirs}q_a_layernorm.weight", f"{ours}query_norm.weight"),
        same(f"{theirs}q_b_proj.weight", f"{ours}query_proj.weight"),
    ]


# -- the delta rule ----------------------------------------------------------------------------------------------------
def grouped_delta(config: GatedDeltaNetConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As Qwen3-Next's: key head by key head its rows of q, k, v and z in one map, those of beta and a in another."""
    n_groups, rows = _delta_rows(config)
    *qkvz, a, beta = (size // n_groups for size in rows)

    def to_ours(first: Tensor, second: Tensor) -> Tensor:
        require_shape(f"{theirs}in_proj_qkvz.weight", first, (n_groups * sum(qkvz), d_model))
        require_shape(f"{theirs}in_proj_ba.weight", second, (n_groups * (a + beta), d_model))
        own = first.unflatten(0, (n_groups, -1)).split(qkvz, 1)
        raw_beta, raw = second.unflatten(0, (n_groups, -1)).split((beta, a), 1)
        return torch.cat([part.flatten(0, 1) for part in (*own, raw, raw_beta)])

    def to_theirs(tensor: Tensor) -> tuple[Tensor, Tensor]:
        *own, raw, raw_beta = (part.unflatten(0, (n_groups, -1)) for part in tensor.split(rows))
        return torch.cat(own, 1).flatten(0, 1), torch.cat((raw_beta, raw), 1).flatten(0, 1)

    names = (f"{theirs}in_proj_qkvz.weight", f"{theirs}in_proj_ba.weight")
    return [
        Entry(names, (f"{ours}in_proj.weight",), to_ours, to_theirs),
        *convolution(theirs, ours, bias=False),
        *_delta_rest(theirs, ours, norm="norm", output="out_proj"),
    ]


def divided_delta(config: GatedDeltaNetConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As Qwen3.5's: a map of q, k and v, and one each of z, a and beta."""
    _, (q, k, v, *rest) = _delta_rows(config)
    names = [f"{theirs}in_proj_{name}.weight" for name in ("qkv", "z", "a", "b")]
    return [
        stacked(names, f"{ours}in_proj.weight", [q + k + v, *rest], d_model),
        *convolution(theirs, ours, bias=False),
        *_delta_rest(theirs, ours, norm="norm", output="out_proj"),
    ]


def separate_delta(config: GatedDeltaNetConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As OLMo-Hybrid's: a map for each, and a convolution for each of q, k and v."""
    _, rows = _delta_rows(config)
    names = [f"{theirs}{name}_proj.weight" for name in "qkvgab"]
    return [
        stacked(names, f"{ours}in_proj.weight", rows, d_model),
        _convolutions(theirs, ours, rows[:3], config.n_taps),
        *_delta_rest(theirs, ours, norm="o_norm", output="o_proj"),
    ]


def kimi_delta(config: KDAConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As Kimi Linear's: a map for each, and the decay's and the gate's through a narrow middle."""
    keys, values = config.n_heads * config.d_key, config.n_heads * config.d_value
    rank = config.d_value if config.rank is None else config.rank
    names = [f"{theirs}{name}_proj.weight" for name in ("q", "k", "v", "f_a", "g_a", "b")]
    heads = (1, 1, config.n_heads, 1)
    return [
        stacked(names, f"{ours}in_proj.weight", [keys, keys, values, rank, rank, config.n_heads], d_model),
        _convolutions(theirs, ours, [keys, keys, values], config.n_taps),
        same(f"{theirs}f_b_proj.weight", f"{ours}decay_proj.weight"),
        *affine(f"{theirs}g_b_proj", f"{ours}gate_proj", bias=config.gate_bias),
        reshaped(f"{theirs}A_log", f"{ours}dynamics.A_log", theirs_shape=heads, ours_shape=heads[2:3], drops_ones=True),
        same(f"{theirs}dt_bias", f"{ours}dynamics.dt_bias"),
        same(f"{theirs}o_norm.weight", f"{ours}norm.weight"),
        same(f"{theirs}o_proj.weight", f"{ours}out_proj.weight"),
    ]


def _delta_rows(config: GatedDeltaNetConfig) -> tuple[int, list[int]]:
    """Key heads, and the rows of q, k, v, z, a and beta."""
    n_groups = config.n_heads if config.n_key_heads is None else config.n_key_heads
    keys, values = n_groups * config.d_key, config.n_heads * config.d_value
    return n_groups, [keys, keys, values, values, config.n_heads, config.n_heads]


def _delta_rest(theirs: str, ours: str, *, norm: str, output: str) -> list[Entry]:
    return [
        *(same(f"{theirs}{name}", f"{ours}dynamics.{name}") for name in ("A_log", "dt_bias")),
        same(f"{theirs}{norm}.weight", f"{ours}norm.weight"),
        same(f"{theirs}{output}.weight", f"{ours}out_proj.weight"),
    ]


def _convolutions(theirs: str, ours: str, rows: Sequence[int], n_taps: int) -> Entry:
    """One each of q, k and v, oldest tap first."""
    whole = convolution(theirs, ours, bias=False)[0]
    assert whole.to_ours is not None
    assert whole.to_theirs is not None
    names = tuple(f"{theirs}{letter}_conv1d.weight" for letter in "qkv")

    def to_ours(*parts: Tensor) -> Tensor:
        for name, part in zip(names, parts):  # of any rows: that library divides one convolution into equal parts
            require_shape(name, part, (*part.shape[:1], 1, n_taps))
        turned = whole.to_ours(torch.cat(parts))  # type: ignore[misc]
        assert isinstance(turned, Tensor)
        return turned

    def to_theirs(taps: Tensor) -> tuple[Tensor, ...]:
        turned = whole.to_theirs(taps)  # type: ignore[misc]
        assert isinstance(turned, Tensor)
        return turned.split(list(rows))

    return Entry(names, whole.ours, to_ours, to_theirs)


# -- other recurrences -------------------------------------------------------------------------------------------------
def gated_convolution(config: GatedConvolutionConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As LFM2's."""
    maps = (affine(theirs + name, ours + name, bias=config.bias) for name in ("in_proj", "out_proj"))
    return [*(entry for each in maps for entry in each), *convolution(theirs, ours, bias=config.bias, name="conv")]


def rg_lru(config: RGLRUConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As RecurrentGemma's: the blocks of a gate's map are stacked, inputs first."""
    d_inner = d_model if config.d_inner is None else config.d_inner
    n, width, table = config.n_blocks, d_inner // config.n_blocks, list[Entry]()
    for name, own in (("input", "input_gates"), ("recurrent", "recurrence_gates")):
        for part, turn, axes in (("weight", _transposed, 2), ("bias", _unchanged, 1)):
            stack, names = f"{theirs}rg_lru.{name}_gate_{part}", tuple(f"{ours}{own}.{i}.{part}" for i in range(n))
            to_ours = partial(_unstack, turn, stack, (n, *(width,) * axes))
            table.append(Entry((stack,), names, to_ours, partial(_stack, turn)))
    return [
        *table,
        *separate_maps(theirs, ("linear_y", "linear_x"), f"{ours}in_proj", [n * width] * 2, d_model, bias=True),
        *convolution(theirs, ours, bias=True, name="conv_1d"),
        same(f"{theirs}rg_lru.recurrent_param", f"{ours}dynamics.Lambda"),
        *affine(f"{theirs}linear_out", f"{ours}out_proj"),
    ]


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous() if tensor.ndim > 1 else tensor


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _unstack(turn: Callable[[Tensor], Tensor], name: str, shape: Sequence[int], tensor: Tensor) -> tuple[Tensor, ...]:
    require_shape(name, tensor, shape)
    return tuple(turn(part) for part in tensor)


def _stack(turn: Callable[[Tensor], Tensor], *parts: Tensor) -> Tensor:
    return torch.stack([turn(part) for part in parts])


def mlstm(config: MLSTMConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As xLSTM's with ``weight_mode`` "single": a map for each."""
    d_key, d_value = head_widths(config, d_model)
    keys, values, n = config.n_heads * d_key, config.n_heads * d_value, config.n_heads
    return [
        *separate_maps(
            theirs,
            ("q", "k", "v", "ogate_preact"),
            f"{ours}in_proj",
            [keys, keys, values, values],
            d_model,
            bias=config.bias,
        ),
        *separate_maps(theirs, ("igate_preact", "fgate_preact"), f"{ours}gate_proj", [n, n], d_model, bias=True),
        *_mlstm_ends(config, theirs, ours),
    ]


def fused_mlstm(config: MLSTMConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """As xLSTM's with ``weight_mode`` "fused"."""
    return [
        *affine(f"{theirs}qkv_opreact", f"{ours}in_proj", bias=config.bias),
        *affine(f"{theirs}ifgate_preact", f"{ours}gate_proj"),
        *_mlstm_ends(config, theirs, ours),
    ]


def _mlstm_ends(config: MLSTMConfig, theirs: str, ours: str) -> list[Entry]:
    names = (("multihead_norm", "norm"), ("out_proj", "out_proj"))
    return [entry for name, own in names for entry in affine(theirs + name, ours + own, bias=config.bias)]
