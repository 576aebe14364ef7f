"""The config of an H3 file: read off its shapes and what lies beside it, and back to the published arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from statewise.checkpoints.convert.entries import require_tensor
from statewise.checkpoints.convert.fields import count, dropout_of, number, refuse_unknown, require, section
from statewise.checkpoints.convert.h3_names import Names
from statewise.errors import CheckpointError, excerpt
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.projection import WEIGHT_STD
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

# The heads of the attention in the released models, by width.
RELEASED_HEADS = {768: 12, 1024: 16, 2048: 16, 2560: 20}
EPS = 1e-5

# Arguments of the published constructor, and what else a config.json may hold, that change no output.
_NO_EFFECT = (
    "resid_dropout embed_dropout initializer_cfg fused_mlp fused_dropout_add_ln residual_in_fp32 "
    "pytorch-lightning_version hyper_parameters pad_vocab_size_multiple model_type architectures torch_dtype dtype "
    "transformers_version"
)
_ATTENTION_NO_EFFECT = ("use_flash_attn", "fused_bias_fc", "checkpointing")
_ATTENTION_FIXED = {"causal": True, "bias": True, "dwconv": False, "softmax_scale": None, "rotary_emb_scale_base": 0}
_SSM_NO_EFFECT = ("measure", "measure_args", "dt_min", "dt_max", "deterministic", "lr", "verbose", "dropout", "rank")
_SSM_FIXED = {"mode": "diag", "disc": "bilinear", "real_type": "exp", "head_dim": 1, "bandlimit": None, "l_max": None}
_WHERE = "the H3 checkpoint's config"


def from_theirs(config: Mapping[str, Any], names: Names, tensors: Mapping[str, Tensor]) -> LanguageModelConfig:
    """Our config. A tensor that is not where it should be gets a size of no matter here: reading it names it.

    The embedding alone has to be there: its width gives all other shapes.
    """

    def size(name: str, axis: int, default: int) -> int:
        tensor = tensors.get(names(name))
        return (tensor.shape[axis] if tensor is not None and tensor.ndim > axis else 0) or default

    n_layers = names.n_layers
    if n_layers < 1:
        raise CheckpointError(f"the H3 checkpoint: no tensor name begins with {names('backbone.layers.0.')}")
    embedding = names("backbone.embeddings.word_embeddings.weight")
    require_tensor(embedding, tensors, "the H3 checkpoint")
    if tensors[embedding].ndim != 2:
        shape = tuple(tensors[embedding].shape)
        raise CheckpointError(f"the H3 checkpoint: {embedding} has shape {shape}, expected (vocab_size, d_model)")
    vocab_size, d_model = tensors[embedding].shape
    attention_at = tuple(
        i for i in range(n_layers) if any(names(f"backbone.layers.{i}.mixer.{m}.weight") in tensors for m in _ATTENTION)
    )
    tables = tables_in(names, tensors)
    widths = [2 * tensors[name].shape[0] for name in tables if tensors[name].ndim == 1]
    said = _read_config(
        config,
        d_model=d_model,
        n_layer=n_layers,
        vocab_size=vocab_size,
        d_inner=size("backbone.layers.0.mlp.fc1.weight", 0, 4 * d_model),
        attn_layer_idx=list(attention_at),
        max_position_embeddings=size("backbone.embeddings.position_embeddings.weight", 0, 0),
    )
    if widths and said.d_rotary not in (None, widths[0]):
        raise _differs("attn_cfg.rotary_emb_dim", said.d_rotary, f"{widths[0]} by {tables[0]}")
    d_rotary = widths[0] if widths else said.d_rotary or 0
    layers = []
    for i in range(n_layers):
        theirs = f"backbone.layers.{i}."
        mixer: AttentionConfig | H3Config
        if i in attention_at:
            mixer = AttentionConfig(
                n_heads=_n_heads(d_model, said.n_heads),
                positions="rotary" if d_rotary else None,
                d_rotary=d_rotary or None,
                bias=True,
                dropout=said.dropout,
            )
        else:
            _require_one_wide(size(f"{theirs}mixer.D", 0, d_model), d_model, names(f"{theirs}mixer.D"))
            shift, diagonal = f"{theirs}mixer.ssm_k_kernel.kernel.B", f"{theirs}mixer.kernel.kernel.A_imag"
            d_state, d_shift = 2 * size(diagonal, 1, 0), size(shift, 1, 0)
            for found, name in ((d_state, diagonal), (d_shift, shift)):
                if said.d_state is not None and found not in (0, said.d_state):
                    raise _differs("ssm_cfg.d_state", said.d_state, f"{found} by {names(name)}")
            mixer = H3Config(d_state=d_state or 64, d_shift=d_shift or 64)
        expand = size(f"{theirs}mlp.fc1.weight", 0, 4 * d_model) / d_model
        mlp = MLPConfig(expand=expand, activation="gelu_tanh")
        layers.append(BlockConfig(mixer=mixer, mlp=mlp, norm="layer", norm_eps=said.eps))
    n_positions = size("backbone.embeddings.position_embeddings.weight", 0, 0)
    return LanguageModelConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        layers=tuple(layers),
        norm="layer",
        norm_eps=said.eps,
        max_positions=n_positions or None,
    )


_ATTENTION = ("Wqkv", "out_proj")


class _Said(NamedTuple):
    """What a config says: heads, rotary features and the size of the states (None: nothing), the dropout of attention's
    weights, and the norms' eps."""

    n_heads: int | None
    d_rotary: int | None
    d_state: int | None
    dropout: float
    eps: float


def tables_in(names: Names, tensors: Mapping[str, Tensor]) -> list[str]:
    """The tables of rotary features that a file has. They are of every layer of attention, or of none."""
    found = (names(f"backbone.layers.{i}.mixer.rotary_emb.inv_freq") for i in range(names.n_layers))
    return [name for name in found if name in tensors]


def _read_config(config: Mapping[str, Any], *, vocab_size: int, **of_the_file: Any) -> _Said:
    """What the file does not say, or may be compared with; the rest has to be as in the file."""
    stored = section(section(config, "hyper_parameters", _WHERE), "model", _WHERE)  # of a file by Lightning
    attention = section(config, "attn_cfg", _WHERE) or section(stored, "attn_cfg", _WHERE)
    ssm = section(config, "ssm_cfg", _WHERE)
    known = ("n_heads", "attn_cfg", "ssm_cfg", "layer_norm_epsilon", "vocab_size", *of_the_file, *_NO_EFFECT.split())
    refuse_unknown(config, known, _WHERE)
    known = ("num_heads", "rotary_emb_dim", "dropout", *_ATTENTION_FIXED, *_ATTENTION_NO_EFFECT)
    refuse_unknown(attention, known, f"{_WHERE}: attn_cfg")
    refuse_unknown(ssm, ("d_state", *_SSM_FIXED, *_SSM_NO_EFFECT, "use_fast_fftconv"), f"{_WHERE}: ssm_cfg")
    for name, value in of_the_file.items():
        given = config.get(name)
        if given is not None and (list(given) if isinstance(given, (list, tuple)) else given) != value:
            raise _differs(name, given, value)
    smaller = config.get("vocab_size")
    if smaller is not None and count(config, "vocab_size", None, _WHERE) > vocab_size:  # a smaller one was padded
        raise _differs("vocab_size", smaller, vocab_size)
    require(attention, _ATTENTION_FIXED, f"{_WHERE}: attn_cfg")
    require(ssm, _SSM_FIXED, f"{_WHERE}: ssm_cfg")
    n_heads, num_heads = _said(config, "n_heads"), _said(attention, "num_heads", "attn_cfg")
    if None not in (n_heads, num_heads) and n_heads != num_heads:
        raise CheckpointError(
            f"{_WHERE}: n_heads={n_heads}, but attn_cfg.num_heads={num_heads}; leave the wrong one out"
        )
    return _Said(
        n_heads=num_heads if n_heads is None else n_heads,
        d_rotary=_said(attention, "rotary_emb_dim", "attn_cfg", at_least=0),
        d_state=_said(ssm, "d_state", "ssm_cfg"),
        dropout=dropout_of(attention, 0.0, f"{_WHERE}: attn_cfg"),
        eps=number(config, "layer_norm_epsilon", EPS, _WHERE),
    )


def _said(fields: Mapping[str, Any], name: str, group: str = "", *, at_least: int = 1) -> int | None:
    if fields.get(name) is None:
        return None
    return count(fields, name, None, f"{_WHERE}: {group}" if group else _WHERE, at_least=at_least)


def _differs(name: str, given: Any, found: Any) -> CheckpointError:
    return CheckpointError(f"{_WHERE}: {name}={excerpt(given)}, but the file's tensors say {found}")


def _n_heads(d_model: int, heads: int | None) -> int:
    found = RELEASED_HEADS.get(d_model) if heads is None else heads
    if found is None:
        raise CheckpointError(
            f"the H3 checkpoint: how many heads its attention has is in no tensor, and d_model={d_model} is none of "
            f'the released models ({", ".join(map(str, RELEASED_HEADS))}); put {{"n_heads": …}} into a config.json '
            "beside the file"
        )
    return found


def _require_one_wide(n_systems: int, d_model: int, name: str) -> None:
    if n_systems != d_model:
        raise CheckpointError(
            f"the H3 checkpoint: {name} has {n_systems} entries for d_model={d_model}: heads wider than 1, for which "
            "the published code has two orders of the features, and the file does not say which; no released file has "
            "them, and they are not read"
        )


def check_written(config: ModelConfig) -> LanguageModelConfig:
    """The config with bare mixers as blocks, if the published code has such a model."""

    def refuse(what: str) -> CheckpointError:
        return CheckpointError(f"this model cannot be written as h3: {what}; use another format")

    if not isinstance(config, LanguageModelConfig):
        raise refuse(f"it is a {type(config).__name__}; H3's format is for language models")
    if config.norm != "layer" or not config.tie_embeddings:
        raise refuse(f"norm={config.norm!r}, tie_embeddings={config.tie_embeddings} (published: 'layer', True)")
    if config.position_offset or config.d_embedding is not None:
        raise refuse("published: no position_offset, and an embedding as wide as the layers")
    config = config.in_full()
    mlps, attentions, states = set(), set(), set()
    for i, block in enumerate(config.blocks):
        mlp, mixer = block.mlp, block.mixer
        if block.norm != "layer" or block.placement != "pre" or block.norm_eps != config.norm_eps:
            raise refuse(f"layer {i} does not have LayerNorm before each branch and after the last")
        if mlp is None or replace(mlp, expand=4.0, weight_std=WEIGHT_STD) != MLPConfig(activation="gelu_tanh"):
            raise refuse(f"layer {i} has mlp={mlp} (published: gelu_tanh, with biases, not gated)")
        mlps.add(mlp.expand)
        if isinstance(mixer, AttentionConfig):
            plain = AttentionConfig(
                n_heads=mixer.n_heads, positions=mixer.positions, d_rotary=mixer.d_rotary, bias=True
            )
            plain = replace(plain, weight_std=mixer.weight_std, dropout=mixer.dropout)  # the first: of the start alone
            kv_heads, width = mixer.n_kv_heads, mixer.head_width(config.d_model)
            same_heads = kv_heads in (None, mixer.n_heads) and width * mixer.n_heads == config.d_model
            if mixer.positions == "learned" or replace(mixer, n_kv_heads=None, d_head=None) != plain or not same_heads:
                raise refuse(f"layer {i} has {mixer} (published: biases, as many key heads as query heads, no window)")
            attentions.add((mixer.n_heads, mixer.rotary_width(width), mixer.dropout))
        elif isinstance(mixer, H3Config):
            if mixer.d_head != 1 or mixer.method != "bilinear" or not mixer.bias:
                raise refuse(f"layer {i} has {mixer} (published: d_head=1, bilinear, with biases)")
            if mixer.d_shift not in (None, mixer.d_state):
                raise refuse(
                    f"layer {i} has d_shift={mixer.d_shift} and d_state={mixer.d_state} (published: both the same)"
                )
            states.add(mixer.d_state)
        else:
            raise refuse(f"layer {i} is {type(mixer).__name__}")
    if not states:
        raise refuse("it has no H3 layer, without which the file could not be recognised")
    if len(states) > 1:
        raise refuse(f"its layers have d_state {sorted(states)}, and the published arguments have one for all layers")
    if len(mlps) > 1 or len(attentions) > 1:
        raise refuse(
            "its layers differ in their MLPs or in their attention, and the published arguments have one setting for "
            "all layers"
        )
    return config


def to_theirs(config: LanguageModelConfig) -> dict[str, Any]:
    """The arguments of the published constructor."""
    blocks = config.blocks
    at = [i for i, block in enumerate(blocks) if isinstance(block.mixer, AttentionConfig)]
    d_state = next(block.mixer.d_state for block in blocks if isinstance(block.mixer, H3Config))
    mlp = blocks[0].mlp
    assert mlp is not None
    arguments: dict[str, Any] = {
        "d_model": config.d_model,
        "n_layer": len(blocks),
        "d_inner": round(mlp.expand * config.d_model),
        "vocab_size": config.vocab_size,
        "layer_norm_epsilon": config.norm_eps,
        "ssm_cfg": {"mode": "diag", "measure": "diag-lin", "d_state": d_state},
        "attn_layer_idx": at,
    }
    if config.max_positions is not None:
        arguments["max_position_embeddings"] = config.max_positions
    if at:
        mixer = blocks[at[0]].mixer
        assert isinstance(mixer, AttentionConfig)
        arguments["attn_cfg"] = {"num_heads": mixer.n_heads}
        if mixer.positions == "rotary":
            arguments["attn_cfg"]["rotary_emb_dim"] = mixer.rotary_width(mixer.head_width(config.d_model))
        if mixer.dropout:
            arguments["attn_cfg"]["dropout"] = mixer.dropout
    return arguments
