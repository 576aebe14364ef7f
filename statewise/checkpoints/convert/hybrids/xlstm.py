"""xLSTM-7B: mLSTM layers with gated MLPs, a capped head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.decoder_written import part_of
from statewise.checkpoints.convert.delta_tables import fused_mlstm, mlstm
from statewise.checkpoints.convert.fields import count, number
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import WHERE
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.hybrids.parts import gated
from statewise.checkpoints.convert.layer_tables import Table, gated_mlp, plain_mlp
from statewise.mixers.mlstm import MLSTMConfig
from statewise.models.mlp import MLPConfig


def d_model(value: Any, given: Config) -> int:
    return count({"hidden_size": value or given.get("embedding_dim")}, "hidden_size", 4096, WHERE)


def width(theirs: str, default: float) -> Field:
    """A head's width, from a factor of the width of all."""

    def into(value: Any, given: Config) -> int:
        wide = int(d_model(given.get("hidden_size"), given) * number({theirs: value}, theirs, default, WHERE))
        return wide // count(given, "num_heads", 8, WHERE)

    return Field(theirs, default, into, lambda value, within, width: part_of(value * within.n_heads, width))


def hidden(value: Any, given: Config) -> float:
    """Rounded up to a multiple, as it is there."""
    wide, multiple = d_model(given.get("hidden_size"), given), count(given, "ffn_round_up_to_multiple_of", 64, WHERE)
    whole = number({"ffn_proj_factor": value}, "ffn_proj_factor", 2.667, WHERE) * wide
    return int((whole + multiple - 1) // multiple * multiple) / wide


def multiple(value: Any, within: MLPConfig, width: int) -> int:
    return within.hidden_width(width)


def kinds(given: Config) -> list[str]:
    n_layers = given.get("num_blocks") or given.get("num_hidden_layers")
    return [str(given.get("weight_mode", "single"))] * count({"num_blocks": n_layers or 32}, "num_blocks", 32, WHERE)


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return {"weight_mode": names[0], "num_blocks": len(names)}


EPS = Field("norm_eps", 1e-6)
MEMORY = {
    "n_heads": Field("num_heads", 8),
    "d_key": width("qk_dim_factor", 0.5),
    "d_value": width("v_dim_factor", 1.0),
    "gate_cap": Field("gate_soft_cap", 15.0),
    "norm_eps": EPS,
}
WIDTH = Field("ffn_proj_factor", 2.667, hidden)
MULTIPLE = Field("ffn_round_up_to_multiple_of", 64, lambda value, given: 1, multiple)


def kind(memory: Table, maps: Table) -> Kind:
    mlp = gated("ffn", WIDTH, maps, activation="silu", multiple_of=MULTIPLE)
    return Kind(Part(MLSTMConfig, "mlstm_layer", memory, MEMORY), mlp, ("norm_mlstm", "norm_ffn"))


FAMILIES = (
    Family(
        model_type="xlstm",
        architecture="xLSTMForCausalLM",
        prefix="backbone.",
        embedding="embeddings.weight",
        layers="blocks",
        norm="out_norm",
        sizes=(50304, 4096),
        norm_eps=EPS,
        model={"d_model": Field("hidden_size", 4096, d_model), "logit_cap": Field("output_logit_soft_cap", 30.0)},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={
            "single": kind(mlstm, gated_mlp("proj_up_gate", "proj_up", "proj_down")),
            "fused": kind(fused_mlstm, plain_mlp("proj_up_gate_z", "proj_down")),
        },
        required={"use_bias": False, "eps": 1e-6},
        written={"autocast_kernel_dtype": "float32"},
    ),
)
