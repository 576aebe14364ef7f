"""The config.json of ``transformers``' GPT-2, GPT-Neo, OPT and GPT-NeoX as our config.

``decoder_written`` has the way back.

Fields that its model code does not read are not read here either. A field that is not in the file has the default of
the library's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import Any

from statewise.checkpoints.convert.fields import PLAIN, count, flag, number, one_name, require, section, share, wrong
from statewise.checkpoints.convert.formats import Config
from statewise.mixers.attention import AttentionConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "gpt_neo": "GPTNeoForCausalLM",
    "opt": "OPTForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
}
# Other names of fields, as the library takes them (the ``attribute_map`` of its config's class): alias -> field
ALIASES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "gpt_neo": {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
}
OPT_OFFSET, OPT_EPS = 2, 1e-5  # no field says them
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh"}
ACTIVATIONS |= {"relu": "relu", "silu": "silu", "swish": "silu", "tanh": "tanh"}


def where_of(kind: str) -> str:
    return f"transformers' {kind} config"


def named(config: Config) -> Config:
    """The config with one name for each field.

    Errors:  CheckpointError where two names of one field say different things.
    """
    kind = config["model_type"]
    return one_name(config, ALIASES.get(kind, {}), where_of(kind))


def n_layers_of(config: Config) -> tuple[str, int]:
    """The field, and what it says."""
    kind = config["model_type"]
    name = {"gpt2": "n_layer", "gpt_neo": "num_layers"}.get(kind, "num_hidden_layers")
    return name, count(config, name, {"gpt2": 12, "gpt_neo": 24, "opt": 12, "gpt_neox": 44}[kind], where_of(kind))


def from_theirs(config: Config) -> LanguageModelConfig:
    """Our config of the same model.

    Errors:  CheckpointError for a value that is not supported.
    """
    kind = config["model_type"]
    require(config, PLAIN, where_of(kind))
    return {"gpt2": _gpt2, "gpt_neo": _gpt_neo, "opt": _opt, "gpt_neox": _gpt_neox}[kind](config, where_of(kind))


def _gpt2(config: Config, where: str) -> LanguageModelConfig:
    require(config, {"add_cross_attention": False}, where)
    d_model = count(config, "n_embd", 768, where)
    mixer = _mixer(config, "n_head", 12, d_model, where, dropout=("attn_pdrop", 0.1), bias=True, positions=None)
    plain = flag(config, "scale_attn_weights", True, where)
    by_layer = flag(config, "scale_attn_by_inverse_layer_idx", False, where)
    if not plain:
        mixer = replace(mixer, scale=1.0)
    d_inner = 4 * d_model if config.get("n_inner") is None else count(config, "n_inner", None, where)
    eps = number(config, "layer_norm_epsilon", 1e-5, where)
    block = BlockConfig(
        mixer=mixer,
        mlp=_mlp(config, "activation_function", "gelu_new", d_inner / d_model, where),
        norm="layer",
        norm_eps=eps,
        dropout=share(config, "resid_pdrop", 0.1, where),
    )
    scale = mixer.scale_of(d_model // mixer.n_heads)
    scaled = [replace(mixer, scale=scale / (i + 1)) if by_layer else mixer for i in range(n_layers_of(config)[1])]
    return LanguageModelConfig(
        vocab_size=count(config, "vocab_size", 50257, where),
        d_model=d_model,
        layers=tuple(replace(block, mixer=each) for each in scaled),
        norm="layer",
        norm_eps=eps,
        tie_embeddings=flag(config, "tie_word_embeddings", True, where),
        embedding_dropout=share(config, "embd_pdrop", 0.1, where),
        max_positions=count(config, "n_positions", 1024, where),
    )


def _gpt_neo(config: Config, where: str) -> LanguageModelConfig:
    d_model = count(config, "hidden_size", 2048, where)
    mixer = _mixer(config, "num_heads", 16, d_model, where, dropout=("attention_dropout", 0.0), positions=None)
    mixer = replace(mixer, bias=False, output_bias=True, scale=1.0)  # it does not divide by sqrt(d_head)
    local = replace(mixer, window=count(config, "window_size", 256, where))
    kinds = _attention_layers(config, n_layers_of(config)[1], where)
    d_inner = (
        4 * d_model if config.get("intermediate_size") is None else count(config, "intermediate_size", None, where)
    )
    eps = number(config, "layer_norm_epsilon", 1e-5, where)
    block = BlockConfig(
        mixer=mixer,
        mlp=_mlp(config, "activation_function", "gelu_new", d_inner / d_model, where),
        norm="layer",
        norm_eps=eps,
        dropout=share(config, "resid_dropout", 0.0, where),
    )
    return LanguageModelConfig(
        vocab_size=count(config, "vocab_size", 50257, where),
        d_model=d_model,
        layers=tuple(replace(block, mixer=local if kind == "local" else mixer) for kind in kinds),
        norm="layer",
        norm_eps=eps,
        tie_embeddings=flag(config, "tie_word_embeddings", True, where),
        embedding_dropout=share(config, "embed_dropout", 0.0, where),
        max_positions=count(config, "max_position_embeddings", 2048, where),
    )


def _attention_layers(config: Config, n_layers: int, where: str) -> list[str]:
    """ "global" or "local" for each layer. ``attention_layers`` has them one by one; where a file lacks it,
    ``attention_types`` has them in groups: [[["global", "local"], 12]] is these two 12 times. The library writes both,
    and of two that differ it takes the first."""
    name = "attention_types" if config.get("attention_layers") is None else "attention_layers"
    given = config.get(name)
    given = [[["global", "local"], 12]] if given is None else given
    try:
        groups = given if name == "attention_types" else [(given, 1)]
        kinds = [kind for group, times in groups for kind in [*group] * min(index(times), n_layers)]
        fit = len(kinds) == n_layers and set(kinds) <= {"global", "local"}
    except (TypeError, ValueError):
        fit = False
    if not fit:
        raise wrong(name, given, f'"global" or "local" for each of {n_layers} layers', where)
    return kinds


def _opt(config: Config, where: str) -> LanguageModelConfig:
    require(config, {"layer_norm_elementwise_affine": True}, where)
    d_model = count(config, "hidden_size", 768, where)
    bias, before = flag(config, "enable_bias", True, where), flag(config, "do_layer_norm_before", True, where)
    mixer = _mixer(
        config, "num_attention_heads", 12, d_model, where, dropout=("attention_dropout", 0.0), bias=bias, positions=None
    )
    narrow = d_model
    if config.get("word_embed_proj_dim") is not None:
        narrow = count(config, "word_embed_proj_dim", None, where)
    mlp = _mlp(config, "activation_function", "relu", count(config, "ffn_dim", 3072, where) / d_model, where)
    block = BlockConfig(
        mixer=mixer,
        mlp=replace(mlp, bias=bias),
        norm="layer",
        norm_eps=OPT_EPS,
        dropout=share(config, "dropout", 0.1, where),
        placement="pre" if before else "post",
    )
    return LanguageModelConfig(
        vocab_size=count(config, "vocab_size", 50272, where),
        d_model=d_model,
        layers=(block,) * n_layers_of(config)[1],
        norm="layer" if before and not flag(config, "_remove_final_layer_norm", False, where) else None,
        norm_eps=OPT_EPS,
        tie_embeddings=flag(config, "tie_word_embeddings", True, where),
        max_positions=count(config, "max_position_embeddings", 2048, where),
        position_offset=OPT_OFFSET,
        d_embedding=None if narrow == d_model else narrow,
    )


def _gpt_neox(config: Config, where: str) -> LanguageModelConfig:
    d_model = count(config, "hidden_size", 6144, where)
    bias = flag(config, "attention_bias", True, where)
    dropout = ("attention_dropout", 0.0)
    mixer = _mixer(config, "num_attention_heads", 64, d_model, where, dropout=dropout, bias=bias, positions="rotary")
    base, part = _rotary(config, where)
    d_head = d_model // mixer.n_heads
    d_rotary = int(d_head * part)
    if d_rotary < 2 or d_rotary % 2:
        raise wrong("rotary_pct", part, f"a part of head_dim={d_head} that is an even number of at least 2", where)
    d_inner = count(config, "intermediate_size", 24576, where)
    eps, dropped = number(config, "layer_norm_eps", 1e-5, where), share(config, "hidden_dropout", 0.0, where)
    block = BlockConfig(
        mixer=replace(mixer, d_rotary=None if d_rotary == d_head else d_rotary, rotary_base=base),
        mlp=_mlp(config, "hidden_act", "gelu", d_inner / d_model, where),
        norm="layer",
        norm_eps=eps,
        dropout=dropped,
        placement="parallel" if flag(config, "use_parallel_residual", True, where) else "pre",
    )
    return LanguageModelConfig(
        vocab_size=count(config, "vocab_size", 50432, where),
        d_model=d_model,
        layers=(block,) * n_layers_of(config)[1],
        norm="layer",
        norm_eps=eps,
        tie_embeddings=flag(config, "tie_word_embeddings", False, where),
        embedding_dropout=dropped,
    )


def _rotary(config: Config, where: str) -> tuple[float, float]:
    """The base, and the part of each head that is turned: of version 5's group of fields, or of those before it."""
    rope = section(config, "rope_scaling", where) or section(config, "rope_parameters", where)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise wrong("rope_type", kind, "'default': positions as they were trained", where)
    found = {"rotary_emb_base": config.get("rotary_emb_base", 10_000.0), "rotary_pct": config.get("rotary_pct", 0.25)}
    found["rotary_emb_base"] = rope.get("rope_theta", found["rotary_emb_base"])
    found["rotary_pct"] = rope.get("partial_rotary_factor", found["rotary_pct"])
    base, part = (number(found, name, 0.0, where) for name in ("rotary_emb_base", "rotary_pct"))
    if part > 1:
        raise wrong("rotary_pct", part, "at most 1", where)
    return base, part


def _mixer(
    config: Config, heads: str, n_heads: int, d_model: int, where: str, *, dropout: tuple[str, float], **fields: Any
) -> AttentionConfig:
    n_heads = count(config, heads, n_heads, where)
    if d_model % n_heads:
        raise wrong(heads, n_heads, f"a divisor of the width, {d_model}", where)
    return AttentionConfig(n_heads=n_heads, dropout=share(config, *dropout, where), **fields)


def _mlp(config: Config, name: str, default: str, expand: float, where: str) -> MLPConfig:
    given = config.get(name, default)
    if not isinstance(given, str) or given not in ACTIVATIONS:
        raise wrong(name, given, f"one of {', '.join(ACTIVATIONS)}", where)
    return MLPConfig(expand=expand, activation=ACTIVATIONS[given])
