"""What GGUF's architecture "rwkv7" says of a model, and which of its tensors is which of ours.

Source:  ``conversion/rwkv.py`` and ``src/models/rwkv7*.cpp`` of llama.cpp; the ``gguf`` package, 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, affine, require_shape, same
from statewise.checkpoints.convert.fields import require_layers
from statewise.checkpoints.convert.gguf_decoders import EMBEDDING
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.checkpoints.convert.rwkv7_config import (
    HEAD_NORM_EPS,
    NETS,
    VECTORS,
    Sizes,
    in_turn,
    require_same,
    sizes_of,
)
from statewise.errors import CheckpointError
from statewise.mixers.rwkv7 import MIXES, RWKV7Config
from statewise.models.language_model import LanguageModelConfig

RWKV7 = "rwkv7"
WHAT = f"GGUF's {RWKV7}"
CONTEXT_LENGTH = 2**20  # as llama.cpp's converter has it: there is no bound
HEAD_WIDTH = 64  # of which llama.cpp needs multiples: its loops take so many numbers at once, and compute others wrong
RANKS = {"w": "attention.decay_lora_rank", "a": "attention.iclr_lora_rank", "g": "attention.gate_lora_rank"}
VALUE_RANK = "attention.value_residual_mix_lora_rank"
IDLE = ("context_length", "vocab_size", "attention.head_count", "attention.head_count_kv")
MAPS = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
# Small networks stay in float32, as llama.cpp's own quantiser leaves them; and what inputs are mixed with, it reads so
FLOAT32 = ("time_mix_lerp_fused.weight", *(f"time_mix_{letter}{n}.weight" for letter in NETS for n in "12"))


def read_rwkv7(metadata: Mapping[str, Value], shapes: Mapping[str, tuple[int, ...]]) -> LanguageModelConfig:
    """Our config of its values.

    Errors:  CheckpointError naming a key that is missing, unknown, or of a value that is not supported.
    """
    values = Values(RWKV7, metadata, IDLE)
    n_layers = values.count("block_count")
    require_layers(n_layers, f"{RWKV7}.block_count", shapes, "blk.")
    if values.count("token_shift_count", 2) != 2:
        raise values.wrong("token_shift_count", "expected 2: of time mixing and of channel mixing")
    sizes = Sizes(
        vocab_size=shapes[EMBEDDING][0],
        d_model=values.count("embedding_length"),
        n_layers=n_layers,
        d_head=values.count("wkv.head_size"),
        d_hidden=values.count("feed_forward_length"),
        ranks={letter: values.count(key) for letter, key in RANKS.items()},
        value_rank=values.count(VALUE_RANK),
        norm_eps=values.positive("attention.layer_norm_epsilon"),
        head_eps=HEAD_NORM_EPS,
        embedding_norm=True,
        tied=False,
    )
    values.require_no_more()
    return sizes.config(f"{RWKV7}.wkv.head_size")


def write_rwkv7(config: LanguageModelConfig) -> dict[str, Value]:
    """Its values.

    Errors:  CheckpointError naming what GGUF, or llama.cpp, has no form for.
    """
    sizes = sizes_of(in_turn(config, WHAT))
    if not sizes.embedding_norm:
        raise CheckpointError(f'{WHAT} norms its embedding; this model has embedding_norm=None, not "layer"')
    if sizes.tied:
        raise CheckpointError(f"{WHAT} has a head of its own; this model has tie_embeddings=True")
    if sizes.d_head % HEAD_WIDTH:
        raise CheckpointError(
            f"llama.cpp computes RWKV-7 with heads as wide as {HEAD_WIDTH} or a multiple of it; those of this model "
            f"have d_head={sizes.d_head}: write it as 'rwkv', as 'fla', or in Statewise's own format"
        )
    require_same(replace(sizes, head_eps=HEAD_NORM_EPS).config(WHAT), config, WHAT)
    values: dict[str, Value] = {
        "context_length": CONTEXT_LENGTH,
        "embedding_length": sizes.d_model,
        "block_count": sizes.n_layers,
        "attention.layer_norm_epsilon": sizes.norm_eps,
        "wkv.head_size": sizes.d_head,
        **{key: sizes.ranks[letter] for letter, key in RANKS.items()},
        VALUE_RANK: sizes.value_rank or sizes.ranks["a"],
        "feed_forward_length": sizes.d_hidden,
        "attention.head_count": 0,  # which llama.cpp looks for, and does not read
    }
    return {f"{RWKV7}.{key}": value for key, value in values.items()}


def rwkv7_table(config: LanguageModelConfig) -> list[Entry]:
    """The table of a model that :func:`read_rwkv7` gave or :func:`write_rwkv7` took."""
    table = [same(EMBEDDING, "embedding.weight"), same("output.weight", "head.weight")]
    table += [*affine("token_embd_norm", "embedding_norm"), *affine("output_norm", "norm")]
    for i, block in enumerate(config.blocks):
        theirs, ours = f"blk.{i // 2}.", f"layers.{i}."
        table += affine(f"{theirs}attn_norm{'_2' * (i % 2)}", f"{ours}mixer_norm")
        if isinstance(block.mixer, RWKV7Config):
            table += _time_mixing(block.mixer, f"{theirs}time_mix_", f"{ours}mixer.", config.d_model)
            continue
        names = {"lerp_k": "mu", "key": "in_proj.weight", "value": "out_proj.weight"}
        table += [same(f"{theirs}channel_mix_{name}.weight", f"{ours}mixer.{mine}") for name, mine in names.items()]
    return table


def _time_mixing(config: RWKV7Config, theirs: str, ours: str, d_model: int) -> list[Entry]:
    maps = {name: f"{mine}.weight" for name, mine in MAPS.items()}
    table = [same(f"{theirs}{name}.weight", ours + mine) for name, mine in (maps | VECTORS | {"r_k": "rho"}).items()]
    table += [*affine(f"{theirs}ln", f"{ours}norm"), _mixed(f"{theirs}lerp_fused.weight", ours, d_model)]
    for letter, net in NETS.items():
        parts = ("dynamics.bias" if letter == "w" else f"{net}.up.bias", f"{net}.down.weight", f"{net}.up.weight")
        for part, mine in enumerate(parts):
            if (letter == "v" and config.value_rank is None) or (letter == "g" and part == 0):
                continue
            names = [f"{theirs}{letter}{part}.weight"]
            if letter == "a" and config.value_rank is None:  # what llama.cpp wants to be there, and does not read
                names.append(f"{theirs}v{part}.weight")
            table.append(_first(names, ours + mine) if len(names) > 1 else same(names[0], ours + mine))
    return table


def _mixed(theirs: str, ours: str, d_model: int) -> Entry:
    shape = (len(MIXES), 1, 1, d_model)

    def to_ours(tensor: Tensor) -> tuple[Tensor, ...]:
        require_shape(theirs, tensor, shape)
        return tensor.view(len(MIXES), d_model).unbind()

    names = tuple(f"{ours}mu.{letter}" for letter in MIXES)
    return Entry((theirs,), names, to_ours, lambda *parts: torch.stack(parts).view(shape))


def _first(theirs: list[str], ours: str) -> Entry:
    """The first of several tensors, which is written as all of them."""
    return Entry(tuple(theirs), (ours,), lambda tensor, *_: tensor, lambda tensor: (tensor,) * len(theirs))
