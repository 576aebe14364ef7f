"""What GGUF's architectures "mamba" and "mamba2" say of a model, and which of their tensors is which of ours.

``gguf_decoders`` has "gpt2" and "gptneox", ``gguf_rwkv7`` "rwkv7", ``gguf_hybrids`` those of several kinds of layers;
the functions here take all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, same, write_entries
from statewise.checkpoints.convert.extras import refuse_extras
from statewise.checkpoints.convert.fields import require_layers
from statewise.checkpoints.convert.gguf_decoders import (
    DECODERS,
    EMBEDDING,
    decoder_table,
    read_decoder,
    write_decoder,
)
from statewise.checkpoints.convert.gguf_hybrids import ARCHITECTURES as HYBRIDS
from statewise.checkpoints.convert.gguf_hybrids import write as write_hybrid
from statewise.checkpoints.convert.gguf_layers import mamba, mamba2
from statewise.checkpoints.convert.gguf_rwkv7 import RWKV7, read_rwkv7, rwkv7_table, write_rwkv7
from statewise.checkpoints.convert.gguf_unwritten import unwritten
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.rwkv7 import RWKV7Config
from statewise.models.language_model import LanguageModelConfig

ARCHITECTURES: dict[str, type[MixerConfig]] = {"mamba": MambaConfig, "mamba2": Mamba2Config}
CONTEXT_LENGTH = 2**20  # llama.cpp's converter says so too: there is no bound
FALCON_EPS = (1e-6, 1e-5)  # of the norms of dt, B and C, and of the others
# Keys that say nothing about what these models compute
IDLE = ("context_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv", "vocab_size")


def read_config(
    architecture: str, metadata: Mapping[str, Value], shapes: Mapping[str, tuple[int, ...]]
) -> LanguageModelConfig:
    """Our config of their values; the vocabulary's size, and whether the embedding is tied, are in the tensors' shapes.

    Errors:  CheckpointError naming a key that is missing, unknown, or of a value that is not supported.
    """
    if EMBEDDING not in shapes:
        raise CheckpointError(f"the tensor {EMBEDDING} is missing")
    if len(shapes[EMBEDDING]) != 2:
        raise CheckpointError(f"{EMBEDDING} has shape {shapes[EMBEDDING]}, expected (vocabulary, width)")
    if architecture in HYBRIDS:
        return HYBRIDS[architecture].config(metadata, shapes)
    if architecture in DECODERS:
        return read_decoder(architecture, metadata, shapes)
    if architecture == RWKV7:
        return read_rwkv7(metadata, shapes)
    values = Values(architecture, metadata, IDLE)
    n_layers, d_model, d_inner = (values.count(k) for k in ("block_count", "embedding_length", "ssm.inner_size"))
    rank = values.count("ssm.time_step_rank")
    eps = values.positive("attention.layer_norm_rms_epsilon")
    require_layers(n_layers, f"{architecture}.block_count", shapes, "blk.")
    if d_inner % d_model:
        raise values.wrong("ssm.inner_size", f"expected a multiple of {architecture}.embedding_length, {d_model}")
    sizes: dict[str, Any] = {
        "d_state": values.count("ssm.state_size"),
        "n_taps": values.count("ssm.conv_kernel"),
        "expand": d_inner // d_model,
    }
    mixer: MixerConfig
    if architecture == "mamba":
        normed: dict[str, Any] = {"norm_dt_b_c": True, "norm_eps": eps} if values.flag("ssm.dt_b_c_rms") else {}
        dt_rank = None if rank == math.ceil(d_model / 16) else rank
        mixer = MambaConfig(**sizes, dt_rank=dt_rank, **normed)
    else:
        if d_inner % rank:
            raise values.wrong("ssm.time_step_rank", f"as the number of heads it has to divide {d_inner}")
        mixer = Mamba2Config(**sizes, d_head=d_inner // rank, n_groups=values.count("ssm.group_count"), norm_eps=eps)
    values.require_no_more()
    return LanguageModelConfig(
        vocab_size=shapes[EMBEDDING][0],
        d_model=d_model,
        layers=(mixer,) * n_layers,
        norm_eps=eps,
        tie_embeddings="output.weight" not in shapes,
    )


def write_model(
    config: LanguageModelConfig, tensors: Mapping[str, Tensor]
) -> tuple[str, dict[str, Value], dict[str, Tensor]]:
    """The architecture, its values, and its tensors.

    Errors:  CheckpointError naming what GGUF, or llama.cpp, has no form for.
    """
    if any(isinstance(block.mixer, RWKV7Config) for block in config.blocks):
        return RWKV7, write_rwkv7(config), write_entries(rwkv7_table(config), tensors)
    try:
        refuse_extras(config, "gguf")
        architecture, values = write_config(config)
    except CheckpointError as error:
        try:
            return write_hybrid(config, tensors)
        except CheckpointError as reason:
            raise unwritten(config, error, reason) from None
    return architecture, values, write_entries(build_entries(architecture, config), tensors)


def write_config(config: LanguageModelConfig) -> tuple[str, dict[str, Value]]:
    """The architecture and its values.

    Falcon-Mamba's own epsilon of dt, B and C has no key: llama.cpp takes that of the other norms for them. So it has
    to be that, or :data:`FALCON_EPS` as in the published models, where llama.cpp's own converter loses it too.

    Errors:  CheckpointError naming what GGUF, or llama.cpp, has no form for.
    """
    mixer = config.blocks[0].mixer
    if isinstance(mixer, AttentionConfig):
        return write_decoder(config)
    architecture = next((name for name, kind in ARCHITECTURES.items() if type(mixer) is kind), None)
    if architecture is None:
        raise CheckpointError(
            f"llama.cpp has no architecture with layers of {type(mixer).__name__.removesuffix('Config')}, as layers[0] "
            "is; keep the model in Statewise's own format"
        )
    for field, found, needed in _needs(config, architecture):
        if found != needed:
            raise CheckpointError(f"GGUF's {architecture} cannot hold {field}={found!r}; it needs {needed!r}")
    values: dict[str, Value] = {
        "context_length": CONTEXT_LENGTH,
        "embedding_length": config.d_model,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": len(config.layers),
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        **_sizes(mixer, config.d_model),
    }
    return architecture, {f"{architecture}.{key}": value for key, value in values.items()}


def build_entries(architecture: str, config: LanguageModelConfig) -> list[Entry]:
    """The table of a model that :func:`read_config` gave or :func:`write_model` took."""
    if architecture in HYBRIDS:
        return HYBRIDS[architecture].entries(config)
    if architecture in DECODERS:
        return decoder_table(config)
    if architecture == RWKV7:
        return rwkv7_table(config)
    entries = [same(EMBEDDING, "embedding.weight"), same("output_norm.weight", "norm.weight")]
    if not config.tie_embeddings:
        entries.append(same("output.weight", "head.weight"))
    for i, block in enumerate(config.blocks):
        theirs, ours = f"blk.{i}.", f"layers.{i}.mixer."
        entries.append(same(f"{theirs}attn_norm.weight", f"layers.{i}.mixer_norm.weight"))
        if isinstance(block.mixer, Mamba2Config):
            entries += mamba2(block.mixer, theirs, ours, config.d_model)
        else:
            assert isinstance(block.mixer, MambaConfig)
            entries += mamba(block.mixer, theirs, ours, config.d_model)
    return entries


def _sizes(mixer: MixerConfig | None, d_model: int) -> dict[str, Value]:
    """The keys under ``ssm``."""
    if isinstance(mixer, Mamba2Config):
        d_inner = mixer.expand * d_model
        more: dict[str, Value] = {"time_step_rank": d_inner // mixer.d_head, "group_count": mixer.n_groups}
    else:
        assert isinstance(mixer, MambaConfig)  # as write_config looked
        d_inner = mixer.expand * d_model
        more = {"time_step_rank": mixer.dt_rank or math.ceil(d_model / 16), "dt_b_c_rms": mixer.norm_dt_b_c}
    sizes = {"conv_kernel": mixer.n_taps, "inner_size": d_inner, "state_size": mixer.d_state, **more}
    return {f"ssm.{key}": value for key, value in sizes.items()}


def _needs(config: LanguageModelConfig, architecture: str) -> Iterator[tuple[str, Any, Any]]:
    """(a field, what it is, what it has to be)."""
    yield "norm", config.norm, "rms"
    yield "max_positions", config.max_positions, None
    yield "d_embedding", config.d_embedding, None
    first = config.blocks[0].mixer
    for i, block in enumerate(config.blocks):
        where, mixer = f"layers[{i}].", block.mixer
        yield f"{where}mixer", type(mixer).__name__, type(first).__name__
        yield f"{where}mlp", block.mlp, None
        yield f"{where}norm", block.norm, "rms"
        yield f"{where}norm_eps", block.norm_eps, config.norm_eps
        yield f"{where}placement", block.placement, "pre"
        where += "mixer."
        fixed: dict[str, Any] = {"bias": False, "convolution_bias": True}
        if isinstance(mixer, Mamba2Config):
            fixed |= {"norm_before_gate": False, "dt_limit": (0.0, math.inf), "norm_eps": config.norm_eps}
            fixed["head_pattern"] = "multi_value"
            groups = mixer.n_groups if mixer.norm_groups is None else mixer.norm_groups
            yield f"{where}norm_groups", groups, mixer.n_groups
        else:
            fixed |= {"bidirectional": False, "method": "mamba", "initialization": "real", "expand": 2}
            if isinstance(mixer, MambaConfig) and mixer.norm_dt_b_c and (mixer.norm_eps, config.norm_eps) != FALCON_EPS:
                fixed["norm_eps"] = config.norm_eps
        for field, needed in fixed.items():
            found = getattr(mixer, field)
            yield f"{where}{field}", tuple(found) if isinstance(found, list) else found, needed
        for key, value in _sizes(mixer, config.d_model).items():
            yield f"{where}{architecture}.{key}", value, _sizes(first, config.d_model)[key]
