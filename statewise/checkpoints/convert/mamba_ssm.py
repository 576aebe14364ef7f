"""``mamba_ssm``'s models: Mamba, Mamba-2 and Mamba-3, hybrids with attention, and Codestral Mamba, which holds one.

Source: ``MambaLMHeadModel`` and its config in https://github.com/state-spaces/mamba, whose own loader refuses fields it
does not know, as this one does. Fields that only set how weights are drawn, or which kernel computes the same, are
read and change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert import mamba3
from statewise.checkpoints.convert.entries import read_entries, require_tensor, write_entries
from statewise.checkpoints.convert.fields import (
    NO_LIMIT,
    bounded,
    count,
    flag,
    interval,
    number,
    refuse_unknown,
    require,
    require_layers,
    section,
    wrong,
)
from statewise.checkpoints.convert.formats import Config, Format, Tensors
from statewise.checkpoints.convert.mamba_layers import check_embedding, model_entries, only, uniform
from statewise.checkpoints.empty import expected_shapes
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.mamba3 import Mamba3Config
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

NORM_EPS = 1e-5  # of all norms; no field says it
MLP_MULTIPLE = 128
CODESTRAL_PREFIX = "model."

_SHARED = "vocab_size rms_norm residual_in_fp32 fused_add_norm pad_vocab_size_multiple tie_embeddings"
_FIELDS = f"d_model d_intermediate n_layer ssm_cfg attn_layer_idx attn_cfg {_SHARED}"
_MAMBA = "layer d_state d_conv expand dt_rank dt_min dt_max dt_init dt_scale dt_init_floor conv_bias bias use_fast_path"
_MAMBA2 = (
    "layer d_state d_conv conv_init expand headdim d_ssm ngroups A_init_range D_has_hdim rmsnorm norm_before_gate "
    "dt_min dt_max dt_init_floor dt_limit bias conv_bias chunk_size use_mem_eff_path process_group sequence_parallel"
)
_ATTENTION = (
    "num_heads num_heads_kv head_dim mlp_dim qkv_proj_bias out_proj_bias softmax_scale causal d_conv rotary_emb_dim "
    "rotary_emb_base rotary_emb_interleaved"
)
_CODESTRAL = {"dim": "d_model", "n_layers": "n_layer", **{name: name for name in _SHARED.split()}}


def recognises(config: Config, names: frozenset[str]) -> bool:
    """By the config: transformers' old exports repeat these fields, but name their model_type as well."""
    if _is_codestral(config):
        return any(name.startswith(f"{CODESTRAL_PREFIX}backbone.") for name in names)
    theirs = {"d_model", "n_layer"} <= config.keys() and "model_type" not in config
    return theirs and any(name.startswith("backbone.") for name in names)


def read(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model of a config and a state dict.

    The vocabulary is the padded one. A tied head may be in the file or not.
    Cost:    nothing is copied but convolutions, whose taps turn round, and the first map of each MLP.
    Errors:  CheckpointError for a field that is not known, or whose value is not supported, and for a tensor that is
             missing, left over, or of a wrong shape.
    """
    prefix = CODESTRAL_PREFIX if _is_codestral(config) else ""
    config, where = _codestral(config) if prefix else config, "the mamba_ssm checkpoint"
    embedding = f"{prefix}backbone.embedding.weight"
    require_tensor(embedding, tensors, where)
    require_layers(count(config, "n_layer", None, where), "n_layer", tensors, f"{prefix}backbone.layers.")
    ours = from_theirs(config)
    check_embedding(ours, embedding, tensors, where)
    table = model_entries(ours, prefix=prefix, head=f"{prefix}lm_head.weight" in tensors)
    return ours, read_entries(table, tensors, expected_shapes(ours), where=where)


def write(config: ModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the state dict that ``MambaLMHeadModel.from_pretrained`` reads: a tied head is there twice.

    Errors:  CheckpointError that names what ``mamba_ssm`` does not have.
    """
    if not isinstance(config, LanguageModelConfig):
        raise CheckpointError(f"mamba_ssm has no {type(config).__name__.removesuffix('Config')}, only language models")
    return to_theirs(config), write_entries(model_entries(config, head=True), tensors)


def from_theirs(config: Config) -> LanguageModelConfig:
    """Our config of the same model."""
    where = "mamba_ssm's config"
    refuse_unknown(config, _FIELDS.split(), where)
    d_model, n_layers = (count(config, name, None, where) for name in ("d_model", "n_layer"))
    vocab_size, multiple = count(config, "vocab_size", 50277, where), count(config, "pad_vocab_size_multiple", 8, where)
    d_intermediate = count(config, "d_intermediate", 0, where, at_least=0)
    attention_at = config.get("attn_layer_idx") or ()
    if not isinstance(attention_at, (list, tuple)) or not all(type(i) is int for i in attention_at):
        raise wrong("attn_layer_idx", attention_at, "a list of integers", where)
    for name in ("residual_in_fp32", "fused_add_norm"):
        flag(config, name, True, where)  # which kernel, and how wide the sum is that all blocks add to
    norm = "rms" if flag(config, "rms_norm", True, where) else "layer"
    mlp = None
    if d_intermediate:
        mlp = MLPConfig(
            expand=d_intermediate / d_model, activation="silu", gated=True, bias=False, multiple_of=MLP_MULTIPLE
        )
    selective = BlockConfig(mixer=_selective(section(config, "ssm_cfg", where), d_model), mlp=mlp, norm=norm)
    blocks = [selective] * n_layers
    if attention_at:
        attention = replace(selective, mixer=_attention(section(config, "attn_cfg", where), d_model))
        blocks = [attention if i in attention_at else selective for i in range(n_layers)]
    return LanguageModelConfig(
        vocab_size=-(-vocab_size // multiple) * multiple,
        d_model=d_model,
        layers=tuple(blocks),
        norm=norm,
        tie_embeddings=flag(config, "tie_embeddings", True, where),
    )


def _selective(config: Mapping[str, Any], d_model: int) -> MixerConfig:
    where = "mamba_ssm's ssm_cfg"
    layer = config.get("layer", "Mamba1")
    if layer == "Mamba3":
        return mamba3.from_theirs(config, where)
    if layer not in ("Mamba1", "Mamba2"):
        raise wrong("layer", layer, "'Mamba1', 'Mamba2' or 'Mamba3'", where)
    refuse_unknown(config, (_MAMBA if layer == "Mamba1" else _MAMBA2).split(), where)
    dt_range = number(config, "dt_min", 1e-3, where), number(config, "dt_max", 1e-1, where)
    common: dict[str, Any] = {
        "expand": count(config, "expand", 2, where),
        "n_taps": count(config, "d_conv", 4, where),
        "dt_range": dt_range,
        "dt_floor": number(config, "dt_init_floor", 1e-4, where),
        "bias": flag(config, "bias", False, where),
        "convolution_bias": flag(config, "conv_bias", True, where),
    }
    if layer == "Mamba1":
        automatic = config.get("dt_rank", "auto") == "auto"
        return MambaConfig(
            d_state=count(config, "d_state", 16, where),
            dt_rank=None if automatic else count(config, "dt_rank", None, where),
            **common,
        )
    d_inner = common["expand"] * d_model
    require({"d_ssm": config.get("d_ssm") or d_inner}, {"d_ssm": d_inner}, where)
    require(config, {"D_has_hdim": False, "rmsnorm": True, "process_group": None}, where)
    low, high = interval(config, "A_init_range", (1, 16), where)
    return Mamba2Config(
        d_state=count(config, "d_state", 128, where),
        d_head=count(config, "headdim", 64, where),
        n_groups=count(config, "ngroups", 1, where),
        norm_before_gate=flag(config, "norm_before_gate", False, where),
        norm_eps=NORM_EPS,
        a_range=(low, high),
        dt_limit=interval(config, "dt_limit", NO_LIMIT, where),
        **common,
    )


def _attention(config: Mapping[str, Any], d_model: int) -> AttentionConfig:
    where = "mamba_ssm's attn_cfg"
    refuse_unknown(config, _ATTENTION.split(), where)
    if not flag(config, "causal", False, where):
        raise wrong("causal", config.get("causal", False), "true, since each token would see those after it", where)
    require(config, {"mlp_dim": 0, "rotary_emb_interleaved": False}, where)
    d_rotary, n_taps = (count(config, name, 0, where, at_least=0) for name in ("rotary_emb_dim", "d_conv"))
    bias, output_bias = (flag(config, name, True, where) for name in ("qkv_proj_bias", "out_proj_bias"))
    n_heads = count(config, "num_heads", None, where)
    optional = {name: config.get(name) for name in ("num_heads_kv", "head_dim")}
    n_kv_heads, d_head = (value and count(optional, name, None, where) for name, value in optional.items())
    ours = AttentionConfig(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        positions="rotary" if d_rotary else None,
        d_rotary=d_rotary or None,
        rotary_base=number(config, "rotary_emb_base", 10_000.0, where),
        n_taps=n_taps or None,
        bias=bias,
        output_bias=None if bias == output_bias else output_bias,
    )
    scale, usual = config.get("softmax_scale"), ours.head_width(d_model) ** -0.5
    if scale is not None and not (isinstance(scale, (int, float)) and math.isclose(scale, usual)):
        raise wrong("softmax_scale", scale, f"null or 1 / sqrt(head_dim), {usual:.6g}", where)
    return ours


def to_theirs(config: LanguageModelConfig) -> dict[str, Any]:
    """The config that builds the same model in ``mamba_ssm``."""
    where = "mamba_ssm"
    block, selective, attention = uniform(config, where)
    assert not isinstance(block.mlp, MoEConfig)  # which save_as refuses
    only(block, {"norm_eps": NORM_EPS}, "each layer", where)
    attention_at = [i for i, layer in enumerate(config.blocks) if isinstance(layer.mixer, AttentionConfig)]
    return {
        "d_model": config.d_model,
        "d_intermediate": _d_intermediate(block.mlp, config.d_model),
        "n_layer": len(config.layers),
        "vocab_size": config.vocab_size,
        "ssm_cfg": {} if selective is None else _ssm_cfg(selective),
        "attn_layer_idx": attention_at,
        "attn_cfg": {} if attention is None else _attn_cfg(attention, config.d_model),
        "rms_norm": config.norm == "rms",
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 1,  # vocab_size is padded already
        "tie_embeddings": config.tie_embeddings,
    }


def _d_intermediate(mlp: MLPConfig | None, d_model: int) -> int:
    if mlp is None:
        return 0
    where = "mamba_ssm"
    only(mlp, {"activation": "silu", "gated": True, "bias": False}, "each MLP", where)
    asked, multiple, d_hidden = round(mlp.expand * d_model), mlp.multiple_of, mlp.hidden_width(d_model)
    if d_hidden % MLP_MULTIPLE:
        raise CheckpointError(
            f"{where} has no MLP of width {d_hidden}, only of widths that are multiples of {MLP_MULTIPLE}"
        )
    return asked if multiple == MLP_MULTIPLE else d_hidden


def _ssm_cfg(mixer: MixerConfig) -> dict[str, Any]:
    if isinstance(mixer, Mamba3Config):
        return mamba3.to_theirs(mixer, "mamba_ssm")
    assert isinstance(mixer, (MambaConfig, Mamba2Config))
    common = {
        "d_state": mixer.d_state,
        "d_conv": mixer.n_taps,
        "expand": mixer.expand,
        "dt_min": mixer.dt_range[0],
        "dt_max": mixer.dt_range[1],
        "dt_init_floor": mixer.dt_floor,
        "bias": mixer.bias,
        "conv_bias": mixer.convolution_bias,
    }
    if isinstance(mixer, MambaConfig):
        only(mixer, {"norm_dt_b_c": False}, "a layer", "mamba_ssm")
        return {"layer": "Mamba1", **common, "dt_rank": "auto" if mixer.dt_rank is None else mixer.dt_rank}
    groups = mixer.n_groups if mixer.norm_groups is None else mixer.norm_groups
    only(mixer, {"norm_eps": NORM_EPS}, "a layer", "mamba_ssm")
    if groups != mixer.n_groups:
        raise CheckpointError(
            f"mamba_ssm has no norm_groups={groups} and n_groups={mixer.n_groups}: it has one value for both"
        )
    return {
        "layer": "Mamba2",
        **common,
        "headdim": mixer.d_head,
        "ngroups": mixer.n_groups,
        "norm_before_gate": mixer.norm_before_gate,
        "A_init_range": list(mixer.a_range),
        **bounded("dt_limit", mixer.dt_limit),
    }


def _attn_cfg(mixer: AttentionConfig, d_model: int) -> dict[str, Any]:
    only(mixer, {"window": None, "max_positions": None, "scale": None}, "the attention", "mamba_ssm")
    d_head = mixer.head_width(d_model)
    return {
        "causal": True,
        "num_heads": mixer.n_heads,
        "num_heads_kv": mixer.n_kv_heads,
        "head_dim": mixer.d_head,
        "d_conv": mixer.n_taps or 0,
        "qkv_proj_bias": mixer.bias,
        "out_proj_bias": mixer.bias if mixer.output_bias is None else mixer.output_bias,
        "rotary_emb_dim": mixer.rotary_width(d_head),
        "rotary_emb_base": float(mixer.rotary_base),
    }


def _is_codestral(config: Config) -> bool:
    return {"dim", "n_layers"} <= config.keys()


def _codestral(config: Config) -> dict[str, Any]:
    """``params.json`` of Codestral Mamba: arguments of a wrapper that holds a ``MambaLMHeadModel`` of Mamba-2."""
    where = "Codestral's params.json"
    refuse_unknown(config, [*_CODESTRAL, "n_groups", "model_type"], where)
    require(config, {"model_type": "mamba"}, where)
    theirs = {name: config[field] for field, name in _CODESTRAL.items() if field in config}
    return {**theirs, "ssm_cfg": {"layer": "Mamba2", "ngroups": config.get("n_groups", 1)}}


FORMATS = (
    Format(
        name="mamba_ssm",
        recognises=recognises,
        read=read,
        write=write,
        files=("pytorch_model.bin", "config.json"),
    ),
)
