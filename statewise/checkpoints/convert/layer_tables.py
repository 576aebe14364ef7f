"""Which tensors of theirs are which of ours, for one mixer or MLP, as most formats name them.

A table is made for a config, by what the names of the part begin with there and here, both with a dot at their end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, affine, require_shape, same
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba import NORMED, MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

Table = Callable[[Any, str, str, int], list[Entry]]
CORRECTION = "gate.e_score_correction_bias"


def output_bias(config: AttentionConfig | Mamba2Config) -> bool:
    return config.bias if config.output_bias is None else config.output_bias


def stacked(theirs: Sequence[str], ours: str, sizes: Sequence[int], *inner: int) -> Entry:
    """Several tensors that are one of ours, one below the other.

    sizes: how many rows each has    inner: the other axes of all
    """

    def to_ours(*parts: Tensor) -> Tensor:
        for name, part, size in zip(theirs, parts, sizes):
            require_shape(name, part, (size, *inner))
        return torch.cat(parts)

    return Entry(tuple(theirs), (ours,), to_ours, lambda tensor: tensor.split(list(sizes)))


def separate_attention(
    config: AttentionConfig, theirs: str, ours: str, d_model: int, *, output: str = "o_proj", into: str = "in_proj"
) -> list[Entry]:
    """A map for each of queries, keys and values."""
    d_head = config.head_width(d_model)
    n_kv_heads = config.n_heads if config.n_kv_heads is None else config.n_kv_heads
    sizes = [n * d_head for n in (config.n_heads, n_kv_heads, n_kv_heads)]
    table = affine(f"{theirs}{output}", f"{ours}out_proj", bias=output_bias(config))
    for part in ("weight", "bias")[: 1 + config.bias]:
        names, inner = [f"{theirs}{letter}_proj.{part}" for letter in "qkv"], (d_model,) * (part == "weight")
        table.append(stacked(names, f"{ours}{into}.{part}", sizes, *inner))
    return table


def mamba(config: MambaConfig, theirs: str, ours: str, d_model: int = 0) -> list[Entry]:
    """As ``mamba_ssm`` names them, and Jamba its norms."""
    table = [*_selective(config, theirs, ours), same(f"{theirs}dt_proj.bias", f"{ours}dynamics.dt_bias")]
    table += [same(f"{theirs}{name}.weight", f"{ours}{name}.weight") for name in ("x_proj", "dt_proj")]
    if config.norm_weights:
        table += [same(f"{theirs}{n.lower()}_layernorm.weight", f"{ours}norm_weights.{n}") for n in NORMED]
    return table


def mamba2(config: Mamba2Config, theirs: str, ours: str, d_model: int = 0) -> list[Entry]:
    """As ``mamba_ssm`` names them."""
    table = [*_selective(config, theirs, ours), same(f"{theirs}dt_bias", f"{ours}dynamics.dt_bias")]
    return [*table, same(f"{theirs}norm.weight", f"{ours}norm.weight")] if config.norm else table


def _selective(config: MambaConfig | Mamba2Config, theirs: str, ours: str) -> list[Entry]:
    bias = output_bias(config) if isinstance(config, Mamba2Config) else config.bias
    return [
        *affine(f"{theirs}in_proj", f"{ours}in_proj", bias=config.bias),
        *convolution(theirs, ours, bias=config.convolution_bias),
        *affine(f"{theirs}out_proj", f"{ours}out_proj", bias=bias),
        *(same(f"{theirs}{name}", f"{ours}dynamics.{name}") for name in ("A_log", "D")),
    ]


def convolution(theirs: str, ours: str, *, bias: bool, name: str = "conv1d") -> list[Entry]:
    """Theirs is (width, 1, n_taps) with the oldest tap first, ours (width, n_taps) with the newest first."""

    def to_ours(weight: Tensor) -> Tensor:
        if weight.ndim != 3 or weight.shape[1] != 1:
            raise CheckpointError(f"{theirs}{name}.weight has shape {tuple(weight.shape)}, expected (width, 1, n_taps)")
        return weight.squeeze(1).flip(1)

    weight = Entry(
        (f"{theirs}{name}.weight",), (f"{ours}convolution.weight",), to_ours, lambda taps: taps.flip(1).unsqueeze(1)
    )
    return [weight, same(f"{theirs}{name}.bias", f"{ours}convolution.bias")] if bias else [weight]


def gated_mlp(gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Table:
    """Gate and value as two maps."""

    def table(config: MLPConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        entries = affine(f"{theirs}{down}", f"{ours}out_proj", bias=config.bias)
        for part in ("weight", "bias")[: 1 + config.bias]:
            names = (f"{theirs}{gate}.{part}", f"{theirs}{up}.{part}")
            rows, inner = [config.hidden_width(d_model)] * 2, (d_model,) * (part == "weight")
            entries.append(stacked(names, f"{ours}in_proj.{part}", rows, *inner))
        return entries

    return table


def plain_mlp(up: str = "up_proj", down: str = "down_proj") -> Table:
    """One map in, gate and value side by side if there is a gate, and one out."""

    def table(config: MLPConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        return [
            *affine(f"{theirs}{up}", f"{ours}in_proj", bias=config.bias),
            *affine(f"{theirs}{down}", f"{ours}out_proj", bias=config.bias),
        ]

    return table


def stacked_experts(router: str, into: str, out: str, *, within: str = "") -> Table:
    """All experts in two tensors, as ours are. The shared MLP is a part of its own. within: what names begin with"""

    def table(config: MoEConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        return [
            *_routed(config, theirs, ours, within + router),
            same(f"{theirs}{within}{into}", f"{ours}experts.in_proj"),
            same(f"{theirs}{within}{out}", f"{ours}experts.out_proj"),
        ]

    return table


def single_experts(
    into: tuple[str, ...] = ("gate_proj", "up_proj"),
    out: str = "down_proj",
    *,
    router: str = "gate.weight",
    bias: str = CORRECTION,
) -> Table:
    """Each expert's maps by themselves, as "experts.0.up_proj.weight"; ``into`` names gate and value, or one map."""

    def table(config: MoEConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        n, k = config.n_experts, len(into)
        width, d_in = config.hidden_width(d_model), d_model if config.d_latent is None else config.d_latent

        def to_ours(*maps: Tensor) -> Tensor:
            for name, one in zip(names, maps):
                require_shape(name, one, (width, d_in))
            return torch.stack([torch.cat(maps[i * k : (i + 1) * k]) for i in range(n)])

        def to_theirs(tensor: Tensor) -> tuple[Tensor, ...]:
            return tuple(part.contiguous() for expert in tensor for part in expert.chunk(k))

        names = tuple(f"{theirs}experts.{i}.{name}.weight" for i in range(n) for name in into)
        outs = tuple(f"{theirs}experts.{i}.{out}.weight" for i in range(n))

        def out_to_ours(*maps: Tensor) -> Tensor:
            for name, one in zip(outs, maps):
                require_shape(name, one, (d_in, width))
            return torch.stack(maps)

        return [
            *_routed(config, theirs, ours, router, bias),
            Entry(names, (f"{ours}experts.in_proj",), to_ours, to_theirs),
            Entry(outs, (f"{ours}experts.out_proj",), out_to_ours, lambda tensor: tensor.unbind()),
        ]

    return table


def _routed(config: MoEConfig, theirs: str, ours: str, router: str, bias: str = CORRECTION) -> list[Entry]:
    table = [same(f"{theirs}{router}", f"{ours}router.map.weight")]
    if config.correction_bias:
        table.append(same(f"{theirs}{bias}", f"{ours}router.bias"))
    if config.shared_gate:
        table.append(same(f"{theirs}shared_expert_gate.weight", f"{ours}shared_gate.weight"))
    if config.d_latent is not None:
        for name, part in (("fc1_latent_proj", "latent_in"), ("fc2_latent_proj", "latent_out")):
            table += affine(theirs + name, ours + part, bias=config.latent_bias)
    return table


def in_memory(entry: Entry, names: Container[str]) -> Entry:
    """The entry by what transformers has in memory, where a file has that, as ``save_original_format=False`` writes it:
    all experts in one tensor, and one convolution of queries, keys and values.

    names: of the file's tensors
    """
    first, ours = entry.theirs[0], entry.ours
    if first in names:
        return entry
    if first.endswith("q_conv1d.weight"):
        stem, own = first.removesuffix("q_conv1d.weight"), ours[0].removesuffix("convolution.weight")
        return convolution(stem, own, bias=False)[0] if f"{stem}conv1d.weight" in names else entry
    stem, among, _ = first.partition(".experts.0.")
    for part, stacks in (("in_proj", ("gate_up_proj", "up_proj")), ("out_proj", ("down_proj",))):
        if among and ours[0].endswith(f"experts.{part}"):
            found = next((name for name in stacks if f"{stem}.experts.{name}" in names), None)
            return entry if found is None else same(f"{stem}.experts.{found}", ours[0])
    return entry
