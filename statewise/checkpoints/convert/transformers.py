"""``transformers``' Mamba, Mamba-2 and Falcon-Mamba: their config.json and tensors. The library is not needed.
``decoders`` has its Transformers and ``hybrids`` its hybrids, which are of the same format.

Fields that its model code does not read are not read here either: a config may hold anything, and files hold what other
versions wrote, as ``norm_before_gate`` of Mamba-2, which no version has acted on.

Source: ``models/{mamba,mamba2,falcon_mamba}`` of https://github.com/huggingface/transformers, version 5.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert import decoders, hybrids
from statewise.checkpoints.convert.entries import read_entries, require_tensor, write_entries
from statewise.checkpoints.convert.extras import refuse_extras
from statewise.checkpoints.convert.fields import (
    NO_LIMIT,
    bounded,
    count,
    flag,
    interval,
    number,
    require,
    require_layers,
    wrong,
)
from statewise.checkpoints.convert.formats import Config, Format, Tensors
from statewise.checkpoints.convert.mamba_layers import check_embedding, model_entries, only, uniform
from statewise.checkpoints.empty import expected_shapes
from statewise.errors import CheckpointError
from statewise.mixers.base import MixerConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig

# The defaults that differ from model to model: a field that is not in the file has that of the library's class.
_VOCABULARY = {"mamba": 50280, "falcon_mamba": 50280, "mamba2": 32768}
_WIDTH = {"mamba": 768, "falcon_mamba": 768, "mamba2": 4096}
_LAYERS = {"mamba": 32, "falcon_mamba": 32, "mamba2": 64}
_TIED = {"mamba": True, "falcon_mamba": True, "mamba2": False}
_CLASSES = {"mamba": "MambaForCausalLM", "falcon_mamba": "FalconMambaForCausalLM", "mamba2": "Mamba2ForCausalLM"}
_EMBEDDINGS = ("backbone.embeddings.weight", "backbone.embedding.weight")  # the second is renamed when it is read


def recognises(config: Config, names: frozenset[str]) -> bool:
    """By the model's type."""
    kind = config.get("model_type")
    own = isinstance(kind, str) and kind in _CLASSES and "dim" not in config
    return own or decoders.recognises(config, names) or hybrids.family_of(kind) is not None


def read(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model of a ``config.json`` and its tensors. A tied head may be there or not.

    Cost:    nothing is copied but the convolutions, whose taps turn round.
    Errors:  CheckpointError for a value that is not supported, as a quantised model's, and for a tensor that is
             missing, left over, or of a wrong shape.
    """
    if decoders.recognises(config, frozenset(tensors)):
        return decoders.read(config, tensors)
    if hybrids.family_of(config["model_type"]) is not None:
        return hybrids.read(config, tensors)
    kind = config["model_type"]
    where = f"the {kind} checkpoint"
    n_layers = count(config, "num_hidden_layers", _LAYERS[kind], where)
    embedding = next((name for name in _EMBEDDINGS if name in tensors), _EMBEDDINGS[0])
    require_tensor(embedding, tensors, where)
    require_layers(n_layers, "num_hidden_layers", tensors, "backbone.layers.")
    ours = from_theirs(config)
    check_embedding(ours, embedding, tensors, where)
    table = model_entries(ours, embedding=embedding, head="lm_head.weight" in tensors)
    return ours, read_entries(table, tensors, expected_shapes(ours), where=where)


def write(config: ModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``AutoModelForCausalLM.from_pretrained`` reads.

    Errors:  CheckpointError that names what the library's Mamba models do not have.
    """
    if decoders.writes(config):
        assert isinstance(config, LanguageModelConfig)
        return _decoder_or_hybrid(config, tensors)
    if not isinstance(config, LanguageModelConfig):
        raise CheckpointError(
            f"transformers' Mamba models have no {type(config).__name__.removesuffix('Config')}, only language models"
        )
    kinds = {type(block.mixer) for block in config.blocks}
    if len(kinds) > 1 or not kinds <= {MambaConfig, Mamba2Config} or any(block.mlp for block in config.blocks):
        return hybrids.write(config, tensors)
    refuse_extras(config, "transformers' Mamba models")
    theirs = to_theirs(config)
    return theirs, write_entries(model_entries(config, embedding=_EMBEDDINGS[0], head=False), tensors)


def _decoder_or_hybrid(config: LanguageModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A model of attention alone: a Transformer, or else a hybrid that happens to have no other layers."""
    try:
        refuse_extras(config, "transformers' Transformers")
        return decoders.write(config, tensors)
    except CheckpointError:
        with suppress(CheckpointError):
            return hybrids.write(config, tensors)
        raise


def from_theirs(config: Config) -> LanguageModelConfig:
    """Our config of the same model."""
    kind = config["model_type"]
    where = f"transformers' {kind} config"
    require(config, {"hidden_act": "silu", "quantization_config": None}, where)
    d_model = count(config, "hidden_size", _WIDTH[kind], where)
    expand = count(config, "expand", 2, where)
    eps = number(config, "layer_norm_epsilon", 1e-5, where)
    flag(config, "residual_in_fp32", True, where)  # how wide the sum is that all blocks add to
    common: dict[str, Any] = {
        "d_state": count(config, "state_size", 128 if kind == "mamba2" else 16, where),
        "expand": expand,
        "n_taps": count(config, "conv_kernel", 4, where),
        "dt_range": (number(config, "time_step_min", 1e-3, where), number(config, "time_step_max", 1e-1, where)),
        "dt_floor": number(config, "time_step_floor", 1e-4, where),
        "bias": flag(config, "use_bias", False, where),
        "convolution_bias": flag(config, "use_conv_bias", True, where),
    }
    mixer: MixerConfig
    if kind == "mamba2":
        n_heads, d_head = count(config, "num_heads", 128, where), count(config, "head_dim", 64, where)
        if n_heads * d_head != expand * d_model:
            raise wrong("num_heads", n_heads, f"hidden_size * expand / head_dim, {expand * d_model / d_head:g}", where)
        mixer = Mamba2Config(
            d_head=d_head,
            n_groups=count(config, "n_groups", 8, where),
            norm_eps=eps,
            dt_limit=interval(config, "time_step_limit", NO_LIMIT, where),
            **common,
        )
    else:
        if config.get("intermediate_size") is not None:  # which that library reads; falcon-mamba-7b's expand is another
            d_inner = count(config, "intermediate_size", None, where)
            if d_inner % d_model:
                raise wrong("intermediate_size", d_inner, f"a multiple of hidden_size, {d_model}", where)
            common["expand"] = d_inner // d_model
        automatic = config.get("time_step_rank", "auto") in ("auto", -(-d_model // 16))  # the library writes the number
        if kind == "falcon_mamba":
            common |= {"norm_dt_b_c": True, "norm_eps": number(config, "mixer_rms_eps", 1e-6, where)}
        mixer = MambaConfig(dt_rank=None if automatic else count(config, "time_step_rank", None, where), **common)
    return LanguageModelConfig(
        vocab_size=count(config, "vocab_size", _VOCABULARY[kind], where),
        d_model=d_model,
        layers=(BlockConfig(mixer=mixer, norm_eps=eps),) * count(config, "num_hidden_layers", _LAYERS[kind], where),
        norm_eps=eps,
        tie_embeddings=flag(config, "tie_word_embeddings", _TIED[kind], where),
    )


def to_theirs(config: LanguageModelConfig) -> dict[str, Any]:
    """The config.json of the same model."""
    where = "transformers' Mamba models"
    block, mixer, attention = uniform(config, where)
    only(config, {"norm": "rms"}, "the model", where)
    only(block, {"mlp": None}, "each layer", where)
    if attention is not None or mixer is None:
        raise CheckpointError(f"{where} have no attention; for a hybrid, use format='mamba_ssm'")
    own = _mamba2(mixer, config, where) if isinstance(mixer, Mamba2Config) else _mamba(mixer, config)
    assert isinstance(mixer, (MambaConfig, Mamba2Config))
    return {
        "architectures": [_CLASSES[own["model_type"]]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.layers),
        "state_size": mixer.d_state,
        "expand": mixer.expand,
        "conv_kernel": mixer.n_taps,
        "use_bias": mixer.bias,
        "use_conv_bias": mixer.convolution_bias,
        "hidden_act": "silu",
        "layer_norm_epsilon": config.norm_eps,
        "residual_in_fp32": True,
        "time_step_min": mixer.dt_range[0],
        "time_step_max": mixer.dt_range[1],
        "time_step_floor": mixer.dt_floor,
        "tie_word_embeddings": config.tie_embeddings,
        **own,
    }


def _mamba(mixer: MixerConfig, config: LanguageModelConfig) -> dict[str, Any]:
    assert isinstance(mixer, MambaConfig)
    rank = -(-config.d_model // 16) if mixer.dt_rank is None else mixer.dt_rank
    own = {"intermediate_size": mixer.expand * config.d_model, "time_step_rank": rank}
    if mixer.norm_dt_b_c:
        return {"model_type": "falcon_mamba", **own, "mixer_rms_eps": mixer.norm_eps}
    return {"model_type": "mamba", **own}


def _mamba2(mixer: Mamba2Config, config: LanguageModelConfig, where: str) -> dict[str, Any]:
    only(mixer, {"norm_before_gate": False, "norm_eps": config.norm_eps}, "a layer", where)
    if mixer.norm_groups not in (None, mixer.n_groups):
        raise CheckpointError(
            f"{where} have no norm_groups={mixer.norm_groups} and n_groups={mixer.n_groups}: they have one value for "
            "both"
        )
    return {
        "model_type": "mamba2",
        "num_heads": mixer.expand * config.d_model // mixer.d_head,
        "head_dim": mixer.d_head,
        "n_groups": mixer.n_groups,
        **bounded("time_step_limit", mixer.dt_limit),
    }


FORMATS = (
    Format(
        name="transformers",
        recognises=recognises,
        read=read,
        write=write,
        kinds=(*_CLASSES, *decoders.CLASSES, *hybrids.FAMILIES, *hybrids.INSIDE),
    ),
)
