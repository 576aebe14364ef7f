"""Our config of a Transformer as the config.json of ``transformers``' GPT-2, GPT-Neo, OPT or GPT-NeoX."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from statewise.checkpoints.convert.decoder_configs import CLASSES, OPT_EPS, OPT_OFFSET
from statewise.checkpoints.convert.mamba_layers import only
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.projection import WEIGHT_STD
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

ACTIVATIONS = {"gelu_tanh": "gelu_new", **{name: name for name in ("gelu", "relu", "silu", "tanh")}}
N_POSITIONS = 2048  # of a model that has no table of them: what the library writes, and takes for no bound


def kind_of(config: LanguageModelConfig) -> str:
    """Which of them a model of attention is, if it is one at all: OPT begins its positions at 2, GPT-NeoX turns them,
    GPT-Neo's queries, keys and values have no biases but its outputs have."""
    first = config.blocks[0].mixer
    assert isinstance(first, AttentionConfig)
    if config.position_offset or config.d_embedding is not None or config.norm is None:
        return "opt"
    if config.max_positions is None:
        return "gpt_neox"
    return "gpt_neo" if not first.bias and first.output_bias else "gpt2"


def to_theirs(kind: str, config: LanguageModelConfig) -> dict[str, Any]:
    """The config.json of the same model.

    Errors:  CheckpointError that names what this kind of model does not have.
    """
    where = f"transformers' {kind}"
    first = config.blocks[0]
    mixer, d_model = first.mixer, config.d_model
    assert isinstance(mixer, AttentionConfig)
    if first.mlp is None:
        raise CheckpointError(f"{where} has an MLP in each layer, and layers[0] has none")
    positions = "rotary" if kind == "gpt_neox" else None
    embedding_norm = config.norm if kind == "opt" else "layer"
    only(config, {"norm": embedding_norm, "norm_eps": first.norm_eps}, "the model", where)
    scales = [_plain(block, i, first, positions, d_model, where) for i, block in enumerate(config.blocks)]
    parts = {"gpt2": _to_gpt2, "gpt_neo": _to_gpt_neo, "opt": _to_opt, "gpt_neox": _to_gpt_neox}[kind]
    own = parts(config, first, mixer, scales, where)
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        **own,
    }


def _plain(block: BlockConfig, i: int, first: BlockConfig, positions: str | None, d_model: int, where: str) -> float:
    """The scale of the block's attention, if the block is as the first, but for this and a window."""
    mixer, like = block.mixer, first.mixer
    assert isinstance(mixer, AttentionConfig)
    assert isinstance(like, AttentionConfig)
    assert first.mlp is not None
    only(block, {"norm": "layer"}, f"layers[{i}]", where)
    d_head = mixer.head_width(d_model)
    only(mixer, {"positions": positions, "n_taps": None, "max_positions": None}, f"layers[{i}]", where)
    if mixer.n_kv_heads not in (None, mixer.n_heads) or d_head * mixer.n_heads != d_model:
        raise CheckpointError(f"{where} has as many key heads as query heads, d_model / n_heads wide; not layers[{i}]")
    only(block.mlp, {"gated": False}, f"layers[{i}]", where)
    common: dict[str, Any] = dict.fromkeys(("n_kv_heads", "d_head", "window", "scale"))
    common["weight_std"] = WEIGHT_STD
    if replace(mixer, **common) != replace(like, **common) or replace(block, mixer=like) != first:
        raise CheckpointError(f"{where} has one config for all layers, and layers[{i}] differs from layers[0]")
    return mixer.scale_of(d_head)


def _d_inner(block: BlockConfig, d_model: int) -> int:
    assert isinstance(block.mlp, MLPConfig)  # as to_theirs looked
    return block.mlp.hidden_width(d_model)


def _activation(block: BlockConfig) -> str:
    assert block.mlp is not None
    return ACTIVATIONS[block.mlp.activation]


def _biases(block: BlockConfig, mixer: AttentionConfig, where: str, *, attention: tuple[bool, bool], mlp: bool) -> None:
    """Errors:  CheckpointError unless the maps have just these: (queries, keys and values; outputs), and the MLP."""
    output = mixer.bias if mixer.output_bias is None else mixer.output_bias
    if (mixer.bias, output) != attention:
        raise CheckpointError(f"{where}: the attention has bias={mixer.bias}, output_bias={output}; needed {attention}")
    only(block.mlp, {"bias": mlp}, "the MLP", where)


def _scaled(mixer: AttentionConfig, scales: list[float], d_model: int, where: str) -> None:
    usual = (d_model // mixer.n_heads) ** -0.5
    if not all(math.isclose(scale, usual) for scale in scales):
        raise CheckpointError(f"{where} has only the scale 1 / sqrt(d_head), {usual:.6g}; this model has {scales[0]:g}")


def _windows(config: LanguageModelConfig, where: str, *, may: bool = False) -> list[int | None]:
    found = [block.mixer.window for block in config.blocks if isinstance(block.mixer, AttentionConfig)]
    if any(found) and not may:
        raise CheckpointError(f"{where} has no window of attention; this model has {found}")
    return found


def _to_gpt2(
    config: LanguageModelConfig, block: BlockConfig, mixer: AttentionConfig, scales: list[float], where: str
) -> dict[str, Any]:
    only(block, {"placement": "pre"}, "each layer", where)
    _biases(block, mixer, where, attention=(True, True), mlp=True)
    _windows(config, where)
    usual = (config.d_model // mixer.n_heads) ** -0.5
    plain = math.isclose(scales[0], usual)
    by_layer = len(scales) > 1 and not math.isclose(scales[1], scales[0])
    for i, scale in enumerate(scales):
        needed = (usual if plain else 1.0) / (i + 1 if by_layer else 1)
        if not math.isclose(scale, needed):
            raise CheckpointError(
                f"{where} has no attention with scale={scale:g}, as layers[{i}] has; needed {needed:g}"
            )
    return {
        "n_embd": config.d_model,
        "n_layer": len(config.layers),
        "n_head": mixer.n_heads,
        "n_inner": _d_inner(block, config.d_model),
        "n_positions": config.max_positions,
        "activation_function": _activation(block),
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": block.dropout,
        "embd_pdrop": config.embedding_dropout,
        "attn_pdrop": mixer.dropout,
        "scale_attn_weights": plain,
        "scale_attn_by_inverse_layer_idx": by_layer,
    }


def _to_gpt_neo(
    config: LanguageModelConfig, block: BlockConfig, mixer: AttentionConfig, scales: list[float], where: str
) -> dict[str, Any]:
    only(block, {"placement": "pre"}, "each layer", where)
    _biases(block, mixer, where, attention=(False, True), mlp=True)
    windows = _windows(config, where, may=True)
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1 or any(scale != 1.0 for scale in scales):
        raise CheckpointError(
            f"{where} has one window for all local layers and scale=1; this model has {windows}, {scales}"
        )
    return {
        "hidden_size": config.d_model,
        "num_layers": len(config.layers),
        "num_heads": mixer.n_heads,
        "intermediate_size": _d_inner(block, config.d_model),
        "max_position_embeddings": config.max_positions,
        "attention_types": [[["global" if window is None else "local"], 1] for window in windows],
        "window_size": max(sizes, default=256),
        "activation_function": _activation(block),
        "layer_norm_epsilon": config.norm_eps,
        "resid_dropout": block.dropout,
        "embed_dropout": config.embedding_dropout,
        "attention_dropout": mixer.dropout,
    }


def _to_opt(
    config: LanguageModelConfig, block: BlockConfig, mixer: AttentionConfig, scales: list[float], where: str
) -> dict[str, Any]:
    _scaled(mixer, scales, config.d_model, where)
    _windows(config, where)
    _biases(block, mixer, where, attention=(mixer.bias, mixer.bias), mlp=mixer.bias)
    fixed = {"position_offset": OPT_OFFSET, "norm_eps": OPT_EPS, "embedding_dropout": 0.0}
    only(config, fixed, "the model", where)
    if block.placement == "parallel" or (block.placement == "post" and config.norm is not None):
        raise CheckpointError(
            f"{where} has no placement={block.placement!r} with norm={config.norm!r} after the last layer"
        )
    narrow = config.d_model if config.d_embedding is None else config.d_embedding
    if config.d_embedding == config.d_model:
        raise CheckpointError(
            f"{where} has maps of the embedding only where d_embedding differs from d_model, {narrow}"
        )
    return {
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": mixer.n_heads,
        "ffn_dim": _d_inner(block, config.d_model),
        "max_position_embeddings": config.max_positions,
        "word_embed_proj_dim": narrow,
        "do_layer_norm_before": block.placement == "pre",
        "_remove_final_layer_norm": block.placement == "pre" and config.norm is None,
        "enable_bias": mixer.bias,
        "layer_norm_elementwise_affine": True,
        "activation_function": _activation(block),
        "dropout": block.dropout,
        "attention_dropout": mixer.dropout,
    }


def _to_gpt_neox(
    config: LanguageModelConfig, block: BlockConfig, mixer: AttentionConfig, scales: list[float], where: str
) -> dict[str, Any]:
    _scaled(mixer, scales, config.d_model, where)
    _windows(config, where)
    _biases(block, mixer, where, attention=(mixer.bias, mixer.bias), mlp=True)
    only(config, {"max_positions": None, "embedding_dropout": block.dropout}, "the model", where)
    if block.placement == "post":
        raise CheckpointError(f"{where} has no placement='post'")
    d_head = config.d_model // mixer.n_heads
    part = part_of(mixer.rotary_width(d_head), d_head)
    return {
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": mixer.n_heads,
        "intermediate_size": _d_inner(block, config.d_model),
        "max_position_embeddings": N_POSITIONS,
        "hidden_act": _activation(block),
        "layer_norm_eps": config.norm_eps,
        "use_parallel_residual": block.placement == "parallel",
        "attention_bias": mixer.bias,
        "hidden_dropout": block.dropout,
        "attention_dropout": mixer.dropout,
        "rotary_pct": part,  # until version 5
        "rotary_emb_base": float(mixer.rotary_base),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(mixer.rotary_base),
            "partial_rotary_factor": part,
        },
    }


def part_of(d_rotary: int, d_head: int) -> float:
    """The number of which int(d_head * part) is d_rotary: a quotient may lie a hair below.

    >>> [int(49 * part_of(n, 49)) for n in (2, 26, 48)]
    [2, 26, 48]
    """
    part = d_rotary / d_head
    return part if int(d_head * part) == d_rotary else math.nextafter(part, 2.0)
