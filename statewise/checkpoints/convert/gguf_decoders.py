"""What GGUF's architectures "gpt2" and "gptneox" say of a model, and which of their tensors is which of ours.

Their maps lie as ours do: queries, keys and values of all heads one after the other, outputs first. llama.cpp takes
GELU by its tanh in both, from a table of float16; GPT-NeoX was trained with the exact one, which is what we read.

Source:  ``conversion`` and ``src/models/{gpt2,gptneox}.cpp`` of llama.cpp; the ``gguf`` package, 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from statewise.checkpoints.convert.decoder_written import kind_of, to_theirs
from statewise.checkpoints.convert.entries import Entry, affine, same
from statewise.checkpoints.convert.fields import require_layers
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

DECODERS = ("gpt2", "gptneox")
EMBEDDING, POSITIONS = "token_embd.weight", "position_embd.weight"
ACTIVATION = {"gpt2": "gelu_tanh", "gptneox": "gelu"}
CONTEXT_LENGTH = 2048  # of gptneox, where it is no bound
IDLE = ("vocab_size",)
UNKNOWN = {"gpt_neo": "GPT-Neo", "opt": "OPT"}  # of transformers' decoders, by their model_type


def read_decoder(
    architecture: str, metadata: Mapping[str, Value], shapes: Mapping[str, tuple[int, ...]]
) -> LanguageModelConfig:
    """Our config of their values.

    Errors:  CheckpointError naming a key that is missing, unknown, or of a value that is not supported.
    """
    values = Values(architecture, metadata, IDLE)
    rotary, d_model = architecture == "gptneox", values.count("embedding_length")
    n_layers, n_heads = values.count("block_count"), values.count("attention.head_count")
    require_layers(n_layers, f"{architecture}.block_count", shapes, "blk.")
    if d_model % n_heads:
        raise values.wrong("attention.head_count", f"expected a divisor of {architecture}.embedding_length, {d_model}")
    if values.count("attention.head_count_kv", n_heads) != n_heads:
        raise values.wrong("attention.head_count_kv", f"expected as many as there are heads, {n_heads}")
    n_positions, eps = values.count("context_length"), values.positive("attention.layer_norm_epsilon")
    mixer = AttentionConfig(n_heads=n_heads, positions=None, bias=True)
    if rotary:
        width = values.count("rope.dimension_count")
        d_rotary = None if width == d_model // n_heads else width
        base = values.positive("rope.freq_base", 10_000.0)
        mixer = AttentionConfig(n_heads=n_heads, bias=True, d_rotary=d_rotary, rotary_base=base)
    expand = values.count("feed_forward_length") / d_model
    parallel = rotary and values.flag("use_parallel_residual", None)
    values.require_no_more()
    block = BlockConfig(
        mixer=mixer,
        mlp=MLPConfig(expand=expand, activation=ACTIVATION[architecture]),
        norm="layer",
        norm_eps=eps,
        placement="parallel" if parallel else "pre",
    )
    if not rotary and shapes.get(POSITIONS) != (n_positions, d_model):
        raise CheckpointError(f"{POSITIONS} has shape {shapes.get(POSITIONS)}, expected {(n_positions, d_model)}")
    return LanguageModelConfig(
        vocab_size=shapes[EMBEDDING][0],
        d_model=d_model,
        layers=(block,) * n_layers,
        norm="layer",
        norm_eps=eps,
        tie_embeddings=not rotary and "output.weight" not in shapes,  # as llama.cpp, which knows no tied gptneox
        max_positions=None if rotary else n_positions,
    )


def write_decoder(config: LanguageModelConfig) -> tuple[str, dict[str, Value]]:
    """The architecture and its values.

    Errors:  CheckpointError naming what GGUF, or llama.cpp, has no form for.
    """
    first = config.blocks[0]
    architecture = "gpt2" if config.max_positions is not None else "gptneox"
    for field, found, needed in _needs(config, architecture):
        if found != needed:
            unknown = _unknown(config)
            if unknown is not None:
                raise CheckpointError(
                    f"GGUF has no {unknown}, which this model is, only GPT-2 and GPT-NeoX; write it as 'transformers'"
                )
            raise CheckpointError(f"GGUF's {architecture} cannot hold {field}={found!r}; it needs {needed!r}")
    mixer, mlp, d_model = first.mixer, first.mlp, config.d_model
    assert isinstance(mixer, AttentionConfig)
    assert isinstance(mlp, MLPConfig)
    values: dict[str, Value] = {
        "context_length": config.max_positions or CONTEXT_LENGTH,
        "embedding_length": d_model,
        "feed_forward_length": mlp.hidden_width(d_model),
        "block_count": len(config.layers),
        "attention.head_count": mixer.n_heads,
        "attention.layer_norm_epsilon": config.norm_eps,
    }
    if architecture == "gptneox":
        values["rope.dimension_count"] = mixer.rotary_width(mixer.head_width(d_model))
        values["rope.freq_base"] = float(mixer.rotary_base)
        values["use_parallel_residual"] = first.placement == "parallel"
    return architecture, {f"{architecture}.{key}": value for key, value in values.items()}


def _unknown(config: LanguageModelConfig) -> str | None:
    """The name of a model that transformers has and GGUF lacks."""
    if not all(isinstance(block.mixer, AttentionConfig) for block in config.blocks):
        return None
    kind = kind_of(config)
    if kind not in UNKNOWN:
        return None
    try:
        to_theirs(kind, config)
    except CheckpointError:  # it only looks like one
        return None
    return UNKNOWN[kind]


def decoder_table(config: LanguageModelConfig) -> list[Entry]:
    """The table of a model that :func:`read_decoder` gave or :func:`write_decoder` took."""
    table = [same(EMBEDDING, "embedding.weight"), *affine("output_norm", "norm")]
    if config.max_positions is not None:
        table.append(same(POSITIONS, "positions.weight"))
    if not config.tie_embeddings:
        table.append(same("output.weight", "head.weight"))
    for i in range(len(config.layers)):
        for theirs, ours in (
            ("attn_norm", "mixer_norm"),
            ("attn_qkv", "mixer.in_proj"),
            ("attn_output", "mixer.out_proj"),
            ("ffn_norm", "mlp_norm"),
            ("ffn_up", "mlp.in_proj"),
            ("ffn_down", "mlp.out_proj"),
        ):
            table += affine(f"blk.{i}.{theirs}", f"layers.{i}.{ours}")
    return table


def _needs(config: LanguageModelConfig, architecture: str) -> Iterator[tuple[str, Any, Any]]:
    """(a field, what it is, what it has to be)."""
    first, d_model = config.blocks[0], config.d_model
    yield "norm", config.norm, "layer"
    yield "position_offset", config.position_offset, 0
    yield "d_embedding", config.d_embedding, None
    if architecture == "gptneox":
        yield "tie_embeddings", config.tie_embeddings, False
    for i, block in enumerate(config.blocks):
        where, mixer, mlp = f"layers[{i}].", block.mixer, block.mlp
        yield f"{where}mixer", type(mixer).__name__, "AttentionConfig"
        yield f"{where}norm", block.norm, "layer"
        yield f"{where}norm_eps", block.norm_eps, config.norm_eps
        placements = ("pre",) if architecture == "gpt2" else ("pre", "parallel")
        yield f"{where}placement", block.placement, first.placement if first.placement in placements else placements[0]
        if not isinstance(mlp, MLPConfig) or not isinstance(first.mlp, MLPConfig):
            yield f"{where}mlp", None, "MLPConfig(...)"
            return
        for field, needed in (("activation", ACTIVATION[architecture]), ("gated", False), ("bias", True)):
            yield f"{where}mlp.{field}", getattr(mlp, field), needed
        yield (
            f"{where}mlp.expand",
            (mlp.expand, mlp.multiple_of),
            (first.mlp.expand, first.mlp.multiple_of),
        )
        assert isinstance(mixer, AttentionConfig)
        where += "mixer."
        like = first.mixer
        assert isinstance(like, AttentionConfig)
        yield f"{where}n_heads", mixer.n_heads, like.n_heads
        yield f"{where}n_kv_heads", mixer.n_kv_heads or mixer.n_heads, mixer.n_heads
        yield f"{where}d_head", mixer.head_width(d_model) * mixer.n_heads, d_model
        yield f"{where}positions", mixer.positions, None if architecture == "gpt2" else "rotary"
        yield f"{where}d_rotary", mixer.d_rotary, like.d_rotary
        yield f"{where}rotary_base", mixer.rotary_base, like.rotary_base
        output_bias = mixer.bias if mixer.output_bias is None else mixer.output_bias
        for field, found, wanted in (
            ("bias", mixer.bias, True),
            ("output_bias", output_bias, True),
            ("window", mixer.window, None),
            ("n_taps", mixer.n_taps, None),
            ("scale", mixer.scale, None),
        ):
            yield f"{where}{field}", found, wanted
