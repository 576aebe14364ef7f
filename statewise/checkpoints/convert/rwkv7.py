"""RWKV-7: BlinkDL's files, which have no config, and the folders of ``fla``.

Each of their layers is two of ours: time mixing and channel mixing, in blocks without MLPs.

Source: ``RWKV-v7/rwkv_v7_demo.py`` in https://github.com/BlinkDL/RWKV-LM; ``fla/layers/rwkv7.py`` and
``fla/models/rwkv7`` in https://github.com/fla-org/flash-linear-attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.entries import (
    Entry,
    affine,
    ends,
    prefix_in,
    read_entries,
    require_tensor,
    reshaped,
    same,
    write_entries,
)
from statewise.checkpoints.convert.fields import count_layers, flag, number, require
from statewise.checkpoints.convert.formats import Config, Format, Tensors
from statewise.checkpoints.convert.rwkv7_config import (
    HEAD_NORM_EPS,
    NETS,
    VECTORS,
    Sizes,
    in_turn,
    require_same,
    sizes_of,
)
from statewise.checkpoints.empty import expected_shapes
from statewise.errors import CheckpointError
from statewise.mixers.rwkv7 import MIXES, RWKV7Config
from statewise.models.base import ModelConfig
from statewise.models.language_model import LanguageModelConfig

NORM_EPS = 1e-5  # of BlinkDL's layer norms
KIND = "rwkv7"


@dataclass(frozen=True)
class Names:
    """What one of the two calls the same tensors. prefix: of all names but the head's; maps: of the projections of r, k
    and v, the output, and the norm of the heads; axes: how many axes of one entry their vectors have before their own,
    those of time mixing and that of channel mixing."""

    prefix: str
    embedding: str
    head: str
    norm: str
    layers: str
    first_norm: str
    norms: tuple[str, str]
    time: str
    maps: tuple[str, str, str, str, str]
    axes: tuple[int, int, int]  # of x_r .. x_g; of k_k, k_a and the biases of small networks; of the MLP's x_k
    stacked: bool  # small networks as one name of a letter and a number, their matrices from the left

    def net(self, theirs: str, letter: str, part: int) -> str:
        """The name of a small network's bias (0) or of its matrices."""
        if self.stacked:
            return f"{theirs}{letter}{part}"
        return f"{theirs}{letter}_lora.lora.{('2.bias', '0.weight', '2.weight')[part]}"


BLINKDL = Names(
    prefix="",
    embedding="emb.weight",
    head="head.weight",
    norm="ln_out",
    layers="blocks",
    first_norm="ln0",
    norms=("ln1", "ln2"),
    time="att",
    maps=("receptance", "key", "value", "output", "ln_x"),
    axes=(2, 2, 2),
    stacked=True,
)
FLA = Names(
    prefix="model.",
    embedding="embeddings.weight",
    head="lm_head.weight",
    norm="norm",
    layers="layers",
    first_norm="pre_norm",
    norms=("attn_norm", "ffn_norm"),
    time="attn",
    maps=("r_proj", "k_proj", "v_proj", "o_proj", "g_norm"),
    axes=(2, 0, 0),
    stacked=False,
)


# -- tensors -----------------------------------------------------------------------------------------------------------
def entries(own: Names, config: LanguageModelConfig, names: frozenset[str] | None = None) -> list[Entry]:
    """The table of a model whose layers are as ``model_config`` makes them. names: of a file's tensors; None: for one
    that is written."""
    prefix = prefix_in(own.prefix, own.embedding, names)
    held = names is not None and own.head in names
    table = ends(prefix + own.embedding, own.head, tied=config.tie_embeddings, held=held)
    table += affine(prefix + own.norm, "norm")
    if config.embedding_norm is not None:
        table += affine(f"{prefix}{own.layers}.0.{own.first_norm}", "embedding_norm")
    for i, block in enumerate(config.blocks):
        theirs, ours = f"{prefix}{own.layers}.{i // 2}.", f"layers.{i}."
        table += affine(theirs + own.norms[i % 2], f"{ours}mixer_norm")
        if isinstance(block.mixer, RWKV7Config):
            table += _time_mixing(own, block.mixer, f"{theirs}{own.time}.", f"{ours}mixer.", config.d_model, names)
        else:
            table += _channel_mixing(own, f"{theirs}ffn.", f"{ours}mixer.", config.d_model)
    return table


def _vector(theirs: str, ours: str, d_model: int, n_ones: int) -> Entry:
    shape = (1,) * n_ones + (d_model,)
    return reshaped(theirs, ours, theirs_shape=shape, ours_shape=(d_model,), drops_ones=True)


def _time_mixing(
    own: Names, config: RWKV7Config, theirs: str, ours: str, d_model: int, names: frozenset[str] | None
) -> list[Entry]:
    mixes, vectors, _ = own.axes
    heads = (d_model // config.d_head, config.d_head)
    table = [_vector(f"{theirs}{name}", f"{ours}{mine}", d_model, vectors) for name, mine in VECTORS.items()]
    table.append(reshaped(f"{theirs}r_k", f"{ours}rho", theirs_shape=heads, ours_shape=(d_model,)))
    if names is not None and f"{theirs}x_x" in names:  # fla's first version
        mu = tuple(f"{ours}mu.{letter}" for letter in MIXES)
        table.append(Entry((f"{theirs}x_x",), mu, lambda tensor: tensor.unbind(0)))
    else:
        table += [_vector(f"{theirs}x_{letter}", f"{ours}mu.{letter}", d_model, mixes) for letter in MIXES]
    *maps, norm = own.maps
    mine = ("r_proj", "k_proj", "v_proj", "out_proj")
    table += [same(f"{theirs}{name}.weight", f"{ours}{one}.weight") for name, one in zip(maps, mine)]
    table += affine(f"{theirs}{norm}", f"{ours}norm")
    for letter, net in NETS.items():
        bias, down, up = (own.net(theirs, letter, part) for part in range(3))
        if letter == "v" and config.value_rank is None:  # BlinkDL's first layer may have one, which nobody reads
            table += [Entry((name,), (), optional=True) for name in (bias, down, up) if own.stacked]
            continue
        if letter != "g":
            place = "dynamics.bias" if letter == "w" else f"{net}.up.bias"
            table.append(_vector(bias, ours + place, d_model, vectors))
        for name, part in ((down, "down"), (up, "up")):
            turn = _turned if own.stacked else None
            table.append(Entry((name,), (f"{ours}{net}.{part}.weight",), turn, turn))
    return table


def _channel_mixing(own: Names, theirs: str, ours: str, d_model: int) -> list[Entry]:
    return [
        _vector(f"{theirs}x_k", f"{ours}mu", d_model, own.axes[2]),
        same(f"{theirs}key.weight", f"{ours}in_proj.weight"),
        same(f"{theirs}value.weight", f"{ours}out_proj.weight"),
    ]


def _turned(matrix: Tensor) -> Tensor:
    return matrix.mT


# -- configs -----------------------------------------------------------------------------------------------------------
def model_config(
    own: Names, tensors: Tensors, where: str, *, norm_eps: float, tied: bool, head_eps: float | None = None
) -> LanguageModelConfig:
    """Our config of the tensors: their shapes say all but what norms add to a variance. head_eps: of the norm of the
    heads; None: norm_eps times their width.

    Errors:  CheckpointError for a tensor that is missing, and sizes that do not fit each other.
    """
    prefix = prefix_in(own.prefix, own.embedding, frozenset(tensors))
    layers = f"{prefix}{own.layers}."

    def shape(name: str, n_axes: int = 2) -> tuple[int, ...]:
        require_tensor(name, tensors, where)
        found = tuple(tensors[name].shape)
        if len(found) != n_axes or not all(found):
            raise CheckpointError(f"{where}: {name} has shape {found}, expected {n_axes} axes that are not empty")
        return found

    vocab_size, d_model = shape(prefix + own.embedding)
    n_layers = count_layers(tensors, layers, where)
    first = f"{layers}0.{own.time}."
    d_head, narrow = shape(f"{first}r_k")[1], int(own.stacked)  # the axis of a rank
    ranks = {letter: shape(own.net(first, letter, 1))[narrow] for letter in "wag"}
    value_rank = None if n_layers < 2 else shape(own.net(f"{layers}1.{own.time}.", "v", 1))[narrow]
    d_hidden = shape(f"{layers}0.ffn.key.weight")[0]
    sizes = Sizes(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=n_layers,
        d_head=d_head,
        d_hidden=d_hidden,
        ranks=ranks,
        value_rank=value_rank,
        norm_eps=norm_eps,
        head_eps=head_eps,
        embedding_norm=f"{layers}0.{own.first_norm}.weight" in tensors,
        tied=tied,
    )
    return sizes.config(where)


# -- BlinkDL -----------------------------------------------------------------------------------------------------------
def _recognises_blinkdl(config: Config, names: frozenset[str]) -> bool:
    return {"emb.weight", "blocks.0.att.r_k", "blocks.0.att.w0"} <= names


def _blinkdl_config(tensors: Tensors) -> LanguageModelConfig:
    where = "the RWKV-7 file"
    return model_config(BLINKDL, tensors, where, norm_eps=NORM_EPS, tied=False, head_eps=HEAD_NORM_EPS)


def read_blinkdl(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model of a file of BlinkDL's, whose shapes say what it is; a config beside it is not looked at.

    Errors:  CheckpointError for a tensor that is missing, left over, or of a wrong shape.
    """
    ours = _blinkdl_config(tensors)
    return ours, _read(BLINKDL, ours, tensors, "the RWKV-7 file")


def write_blinkdl(config: ModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``rwkv_v7_demo.py`` loads; there is no config.

    Errors:  CheckpointError that names what those models do not have.
    """
    what = "BlinkDL's RWKV-7"
    ours = in_turn(config, what)
    if ours.embedding_norm is None:
        raise CheckpointError(f'{what} norms its embedding; this model has embedding_norm=None, not "layer"')
    theirs = write_entries(entries(BLINKDL, ours), tensors)
    require_same(_blinkdl_config(theirs), ours, what)
    return {}, theirs


# -- fla ---------------------------------------------------------------------------------------------------------------
def _recognises_fla(config: Config, names: frozenset[str]) -> bool:
    return config.get("model_type") == KIND


def _fla_config(given: Config, tensors: Tensors) -> LanguageModelConfig:
    where = f"fla's {KIND} config"
    require(given, {"quantization_config": None, "hidden_act": "sqrelu", "norm_bias": True, "attn": None}, where)
    ours = model_config(
        FLA,
        tensors,
        f"fla's {KIND} checkpoint",
        norm_eps=number(given, "norm_eps", 1e-5, where),
        tied=flag(given, "tie_word_embeddings", False, where),
    )
    said = {name: value for name, value in given.items() if value is not None}
    require(said, _sizes(ours) | {"norm_first": ours.embedding_norm is not None}, where)
    if said.get("value_dim", ours.d_model) not in (ours.d_model, [ours.d_model] * (len(ours.layers) // 2)):
        require(said, {"value_dim": ours.d_model}, where)
    return ours


def _sizes(config: LanguageModelConfig) -> dict[str, Any]:
    """The fields of theirs that the shapes of tensors say as well."""
    sizes = sizes_of(config)
    ranks = {name: sizes.ranks[letter] for name, letter in (("decay", "w"), ("gate", "g"), ("a", "a"))}
    return {
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.d_model,
        "intermediate_size": sizes.d_hidden,
        "num_hidden_layers": sizes.n_layers,
        "head_dim": sizes.d_head,
        "num_heads": sizes.d_model // sizes.d_head,
        **{f"{name}_low_rank_dim": rank for name, rank in ranks.items()},
        **({} if sizes.value_rank is None else {"v_low_rank_dim": sizes.value_rank}),
    }


def read_fla(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model of a folder of ``fla``. What its config says of sizes has to be what the tensors say.

    ``fuse_norm`` there adds 1e-6 to the squared length of kappa, and 1e-24 without it, as published and as here.
    Errors:  CheckpointError for a value that is not supported, as layers of attention, and for a tensor that is
             missing, left over, or of a wrong shape.
    """
    ours = _fla_config(config, tensors)
    return ours, _read(FLA, ours, tensors, f"fla's {KIND} checkpoint")


def write_fla(config: ModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``AutoModelForCausalLM.from_pretrained`` reads once ``fla`` is imported.

    Errors:  CheckpointError that names what those models do not have.
    """
    what = f"fla's {KIND}"
    ours = in_turn(config, what)
    said = {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": KIND,
        **_sizes(ours),
        "norm_eps": ours.norm_eps,
        "norm_first": ours.embedding_norm is not None,
        "norm_bias": True,
        "hidden_act": "sqrelu",
        "attn": None,
        "fuse_norm": False,
        "tie_word_embeddings": ours.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    theirs = write_entries(entries(FLA, ours), tensors)
    require_same(_fla_config(said, theirs), ours, what)
    return said, theirs


def _read(own: Names, ours: LanguageModelConfig, tensors: Tensors, where: str) -> dict[str, Tensor]:
    expected: Mapping[str, Any] = expected_shapes(ours)
    return read_entries(entries(own, ours, frozenset(tensors)), tensors, expected, where=where)


FORMATS = (
    Format(
        name="rwkv",
        recognises=_recognises_blinkdl,
        read=read_blinkdl,
        write=write_blinkdl,
        files=("model.pth", ""),
    ),
    Format(name="fla", recognises=_recognises_fla, read=read_fla, write=write_fla),
)
