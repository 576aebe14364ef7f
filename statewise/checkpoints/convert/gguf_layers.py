"""Which tensors of a GGUF file are which of ours, for one mixer or MLP: as ``layer_tables``, by llama.cpp's names.

Matrices stay in their few bits where they are only put together or reordered. A is stored as it is, not its logarithm.

Source:  ``conversion`` and ``src/models`` of llama.cpp; the ``gguf`` package, 0.19.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, affine, require_shape, reshaped, same
from statewise.checkpoints.convert.layer_tables import output_bias
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.delta_net import GatedDeltaNetConfig
from statewise.mixers.gated_convolution import GatedConvolutionConfig
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig
from statewise.mixers.mamba import NORMED, MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig
from statewise.models.quantised_parts import head_by_head, side_by_side, stack_rows, take_columns, take_rows

Order = Callable[[], Tensor]  # made when a tensor has the size that it is for: a file may claim any size


def rows(theirs: Sequence[str], ours: str, sizes: Sequence[int], order: Order | None = None) -> Entry:
    """Several tensors that are one of ours, one below the other.

    sizes: how many rows each has    order: row i of ours is row order()[i] of theirs; None: as they are
    """

    def to_ours(*parts: Tensor) -> Tensor:
        for name, part, size in zip(theirs, parts, sizes):
            require_shape(name, part, (size, *parts[0].shape[1:]))
        whole = stack_rows(parts) if parts[0].ndim == 2 else torch.cat(parts)
        return whole if order is None else take_rows(whole, order())

    def to_theirs(tensor: Tensor) -> tuple[Tensor, ...]:
        return (tensor if order is None else tensor[order().argsort()]).split(list(sizes))

    return Entry(tuple(theirs), (ours,), to_ours, to_theirs)


# -- numbers that are stored in another form ---------------------------------------------------------------------------
def log_of_A(A: Tensor) -> Tensor:
    """A_log = log(-A), in float32.

    Errors:  CheckpointError where A is not below 0.
    """
    if not bool((A < 0).all()):
        raise CheckpointError("ssm_a has values of 0 or more, so -ssm_a has no logarithm")
    return (-A).double().log().float()


def A_of_log(A_log: Tensor) -> Tensor:
    """A = -exp(A_log), in float32.

    Errors:  CheckpointError where float32 has no such A but 0 or an infinity.
    """
    A = -A_log.double().exp().float()
    if not bool(((A < 0) & A.isfinite()).all()):
        raise CheckpointError(
            f"A = -exp(A_log) is 0 or infinite in float32 where A_log is {A_log.min():.4g} or {A_log.max():.4g}; "
            "GGUF stores A itself, so use another format"
        )
    return A


def system(theirs: str, ours: str, shape: Sequence[int], order: Order | None = None, *, flat: bool = True) -> Entry:
    """shape: of theirs; order: as of :func:`rows`; flat: ours has one number a head, not one a channel and state"""

    def to_ours(A: Tensor) -> Tensor:
        logarithms = log_of_A(A).flatten() if flat else log_of_A(A)
        if order is None:
            return logarithms
        require_shape(f"{theirs}ssm_a", A, shape)
        return logarithms[order()]

    def to_theirs(A_log: Tensor) -> Tensor:
        return A_of_log(A_log if order is None else A_log[order().argsort()]).reshape(tuple(shape))

    return Entry((f"{theirs}ssm_a",), (f"{ours}dynamics.A_log",), to_ours, to_theirs)


def norm(theirs: str, ours: str, *, offset: bool = False) -> Entry:
    """offset: ours is stored less 1, theirs as it is"""
    names = (theirs,), (f"{ours}.weight",)
    return Entry(*names, lambda weight: weight - 1, lambda weight: weight.float() + 1) if offset else Entry(*names)


def taps(
    theirs: str, ours: str, *, bias: bool, n_channels: int | None = None, order: Order | None = None
) -> list[Entry]:
    """Theirs are oldest first, ours newest first. order: of the ``n_channels`` channels, as of :func:`rows`"""

    def to_ours(weight: Tensor) -> Tensor:
        if order is None:
            return weight.flip(-1)
        require_shape(f"{theirs}.weight", weight, (n_channels or 0, *weight.shape[1:]))
        return weight[order()].flip(-1)

    def to_theirs(weight: Tensor) -> Tensor:
        return (weight if order is None else weight[order().argsort()]).flip(-1)

    weight = Entry((f"{theirs}.weight",), (f"{ours}convolution.weight",), to_ours, to_theirs)
    return [weight, same(f"{theirs}.bias", f"{ours}convolution.bias")] if bias else [weight]


# -- attention ---------------------------------------------------------------------------------------------------------
def attention(
    config: AttentionConfig, theirs: str, ours: str, d_model: int, *, neighbours: bool = False, offset: bool = False
) -> list[Entry]:
    """neighbours: features that are turned together lie side by side in each head of queries and keys; ours are half a
    head apart. offset: the norms' weights are stored less 1 here. A gate lies with the queries, head by head."""
    n_heads, d_head = config.n_heads, config.head_width(d_model)
    n_kv_heads = n_heads if config.n_kv_heads is None else config.n_kv_heads
    sizes = [n_heads * d_head * (1 + config.gate), n_kv_heads * d_head, n_kv_heads * d_head]
    if neighbours and d_head % 2:
        raise CheckpointError(f"heads of {d_head} features have one that is turned with no other; use an even number")

    def order() -> Tensor:
        q, k, v = torch.arange(sum(sizes)).split(sizes)
        gate = q[:0]
        if config.gate:
            q, gate = (part.flatten() for part in q.view(n_heads, 2, d_head).unbind(1))
        if neighbours:
            q, k = _halves(q, d_head), _halves(k, d_head)
        return torch.cat((q, k, v, gate))

    table = affine(f"{theirs}attn_output", f"{ours}out_proj", bias=output_bias(config))
    for part in ("weight", "bias")[: 1 + config.bias]:
        names = [f"{theirs}attn_{letter}.{part}" for letter in "qkv"]
        table.append(rows(names, f"{ours}in_proj.{part}", sizes, order if config.gate or neighbours else None))
    if config.qk_norm is not None:
        table += [norm(f"{theirs}attn_{letter}_norm.weight", f"{ours}{letter}_norm", offset=offset) for letter in "qk"]
    return table


def _halves(order: Tensor, d_head: int) -> Tensor:
    """Heads whose features 2i and 2i + 1 are turned together: first all 2i of a head, then all others."""
    return order.view(-1, d_head // 2, 2).transpose(1, 2).flatten()


def latent_attention(config: LatentAttentionConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """Keys and values of each head from the latent, a tensor each, the keys' turned."""
    n_heads, d_key, d_value = config.n_heads, config.d_key, config.d_value

    def to_ours(keys: Tensor, values: Tensor) -> Tensor:
        require_shape(f"{theirs}attn_k_b.weight", keys, (n_heads, config.rank, d_key))
        require_shape(f"{theirs}attn_v_b.weight", values, (n_heads, d_value, config.rank))
        return head_by_head(keys, values)

    def to_theirs(both: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = both.unflatten(0, (n_heads, -1)).split((d_key, d_value), 1)
        return keys.mT.contiguous(), values.contiguous()

    names = (f"{theirs}attn_k_b.weight", f"{theirs}attn_v_b.weight")
    table = [
        *affine(f"{theirs}attn_kv_a_mqa", f"{ours}in_proj", bias=config.bias),
        same(f"{theirs}attn_kv_a_norm.weight", f"{ours}norm.weight"),
        Entry(names, (f"{ours}up_proj.weight",), to_ours, to_theirs),
        *affine(f"{theirs}attn_output", f"{ours}out_proj", bias=config.bias),
    ]
    if config.query_rank is None:
        return [*table, same(f"{theirs}attn_q.weight", f"{ours}query_proj.weight")]
    return [
        *table,
        *affine(f"{theirs}attn_q_a", f"{ours}query_down", bias=config.bias),
        same(f"{theirs}attn_q_a_norm.weight", f"{ours}query_norm.weight"),
        same(f"{theirs}attn_q_b.weight", f"{ours}query_proj.weight"),
    ]


# -- recurrences -------------------------------------------------------------------------------------------------------
def mamba(config: MambaConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    d_inner = config.expand * d_model
    table = [
        *_selective(config, theirs, ours),
        reshaped(f"{theirs}ssm_d", f"{ours}dynamics.D", theirs_shape=(d_inner,), ours_shape=(d_inner,)),
        system(theirs, ours, (d_inner, config.d_state), flat=False),
        *(same(f"{theirs}ssm_{name}.weight", f"{ours}{name}_proj.weight") for name in ("x", "dt")),
    ]
    if config.norm_weights:
        names = (name.lower() for name in NORMED)
        table += [same(f"{theirs}ssm_{n}_norm.weight", f"{ours}norm_weights.{own}") for n, own in zip(names, NORMED)]
    return table


def mamba2(config: Mamba2Config, theirs: str, ours: str, d_model: int) -> list[Entry]:
    n_heads = config.heads(d_model)
    d_inner, column = n_heads * config.d_head, (n_heads, 1)
    table = [
        *_selective(config, theirs, ours),
        reshaped(f"{theirs}ssm_d", f"{ours}dynamics.D", theirs_shape=column, ours_shape=(n_heads,)),
        system(theirs, ours, column),
    ]
    if config.norm:
        groups = (config.n_groups, d_inner // config.n_groups)
        names = (f"{theirs}ssm_norm.weight", f"{ours}norm.weight")
        table.append(reshaped(*names, theirs_shape=groups, ours_shape=(d_inner,), drops_ones=True))
    return table


def _selective(config: MambaConfig | Mamba2Config, theirs: str, ours: str) -> list[Entry]:
    return [
        same(f"{theirs}ssm_in.weight", f"{ours}in_proj.weight"),
        same(f"{theirs}ssm_out.weight", f"{ours}out_proj.weight"),
        *taps(f"{theirs}ssm_conv1d", ours, bias=config.convolution_bias),
        same(f"{theirs}ssm_dt.bias", f"{ours}dynamics.dt_bias"),
    ]


def gated_convolution(config: GatedConvolutionConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    maps = (same(f"{theirs}shortconv.{name}.weight", f"{ours}{name}.weight") for name in ("in_proj", "out_proj"))
    return [*maps, *taps(f"{theirs}shortconv.conv", ours, bias=False)]


def delta(config: GatedDeltaNetConfig, theirs: str, ours: str, d_model: int, *, tiled: bool) -> list[Entry]:
    """As Qwen3-Next's and, ``tiled``, Qwen3.5's.

    tiled: heads of values lie in turns, one of each key head, then the next of each; beta and a are a map each. If not,
           those of a key head lie together, as ours do, and beta and a are in one map, key head by key head
    """
    n_heads, n_keys = config.n_heads, config.n_heads if config.n_key_heads is None else config.n_key_heads
    keys, d_value = 2 * n_keys * config.d_key, config.d_value
    wide = n_heads * d_value
    names, sizes = ["attn_qkv", "attn_gate", "ssm_ba"], [keys + wide, wide, 2 * n_heads]
    if tiled:
        names, sizes = [*names[:2], "ssm_alpha", "ssm_beta"], [*sizes[:2], n_heads, n_heads]

    @cache
    def heads() -> Tensor:
        every = torch.arange(n_heads)
        return every.view(-1, n_keys).T.flatten() if tiled else every

    @cache
    def values() -> Tensor:
        return (heads()[:, None] * d_value + torch.arange(d_value)).flatten()

    def channels() -> Tensor:
        return torch.cat((torch.arange(keys), keys + values()))

    def whole() -> Tensor:
        raw = (heads(), n_heads + heads())
        if not tiled:
            both = torch.arange(2 * n_heads).view(n_keys, 2, -1)
            raw = (both[:, 1].flatten(), both[:, 0].flatten())
        first = keys + 2 * wide
        return torch.cat((channels(), keys + wide + values(), *(first + part for part in raw)))

    maps = [f"{theirs}{name}.weight" for name in names]
    order = values if tiled and n_keys < n_heads else None
    return [
        rows(maps, f"{ours}in_proj.weight", sizes, None if tiled and order is None else whole),
        *taps(f"{theirs}ssm_conv1d", ours, bias=False, n_channels=keys + wide, order=channels),
        system(theirs, ours, (n_heads,), heads),
        rows([f"{theirs}ssm_dt.bias"], f"{ours}dynamics.dt_bias", [n_heads], heads),
        same(f"{theirs}ssm_norm.weight", f"{ours}norm.weight"),
        columns(f"{theirs}ssm_out.weight", f"{ours}out_proj.weight", wide, order),
    ]


def columns(theirs: str, ours: str, n_columns: int, order: Order | None) -> Entry:
    """Column i of ours is column order()[i] of theirs; None: as they are."""
    if order is None:
        return same(theirs, ours)

    def to_ours(weight: Tensor) -> Tensor:
        require_shape(theirs, weight, (weight.shape[0], n_columns))
        return take_columns(weight, order())

    return Entry((theirs,), (ours,), to_ours, lambda weight: weight[:, order().argsort()])


def kimi_delta(config: KDAConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    keys, values = config.n_heads * config.d_key, config.n_heads * config.d_value
    rank, n_taps = config.d_value if config.rank is None else config.rank, config.n_taps
    names = [f"{theirs}{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "ssm_f_a", "ssm_g_a", "ssm_beta")]
    sizes = [keys, keys, values]

    def to_ours(*parts: Tensor) -> Tensor:
        return torch.cat([part.reshape(size, n_taps) for part, size in zip(parts, sizes)]).flip(1)

    def to_theirs(weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(part[None, :, None].contiguous() for part in weight.flip(1).split(sizes))

    convolutions = tuple(f"{theirs}ssm_conv1d_{letter}.weight" for letter in "qkv")
    return [
        rows(names, f"{ours}in_proj.weight", [*sizes, rank, rank, config.n_heads]),
        Entry(convolutions, (f"{ours}convolution.weight",), to_ours, to_theirs),
        same(f"{theirs}ssm_f_b.weight", f"{ours}decay_proj.weight"),
        same(f"{theirs}ssm_g_b.weight", f"{ours}gate_proj.weight"),
        system(theirs, ours, (1, 1, config.n_heads, 1)),
        same(f"{theirs}ssm_dt.bias", f"{ours}dynamics.dt_bias"),
        same(f"{theirs}ssm_norm.weight", f"{ours}norm.weight"),
        same(f"{theirs}attn_output.weight", f"{ours}out_proj.weight"),
    ]


# -- MLPs --------------------------------------------------------------------------------------------------------------
def mlp(config: MLPConfig, theirs: str, ours: str, d_model: int, *, suffix: str = "") -> list[Entry]:
    wide, table = config.hidden_width(d_model), affine(f"{theirs}ffn_down{suffix}", f"{ours}out_proj", bias=config.bias)
    for part in ("weight", "bias")[: 1 + config.bias]:
        names = [f"{theirs}ffn_{name}{suffix}.{part}" for name in (("gate", "up") if config.gated else ("up",))]
        table.append(rows(names, f"{ours}in_proj.{part}", [wide] * len(names)))
    return table


def experts(config: MoEConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """All experts in a tensor each of gate, value and output."""
    names = tuple(f"{theirs}ffn_{name}_exps.weight" for name in (("gate", "up") if config.gated else ("up",)))
    d = d_model if config.d_latent is None else config.d_latent

    def to_ours(*parts: Tensor) -> Tensor:
        for name, part in zip(names, parts):
            require_shape(name, part, (config.n_experts, config.hidden_width(d_model), d))
        return side_by_side(parts)

    table = [
        same(f"{theirs}ffn_gate_inp.weight", f"{ours}router.map.weight"),
        Entry(names, (f"{ours}experts.in_proj",), to_ours, lambda whole: whole.chunk(len(names), 1)),
        same(f"{theirs}ffn_down_exps.weight", f"{ours}experts.out_proj"),
    ]
    if config.correction_bias:
        table.append(same(f"{theirs}exp_probs_b.bias", f"{ours}router.bias"))
    if config.shared is not None:
        table += mlp(config.shared, theirs, f"{ours}shared.", d_model, suffix="_shexp")
    if config.shared_gate:
        names = (f"{theirs}ffn_gate_inp_shexp.weight", f"{ours}shared_gate.weight")
        table.append(reshaped(*names, theirs_shape=(d_model,), ours_shape=(1, d_model)))
    if config.d_latent is not None:
        for name, own in (("down", "latent_in"), ("up", "latent_out")):
            table += affine(f"{theirs}ffn_latent_{name}", ours + own, bias=config.latent_bias)
    return table
