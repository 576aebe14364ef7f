"""Mamba-3 as ``mamba_ssm`` has it: the fields of its config, and which of its tensors is which of ours.

With several inputs (MIMO) theirs turns number i of a state with number i + d_state / 2, and ours neighbours, as both do
with one input. So the numbers of a state change their places.

Source: ``mamba_ssm/modules/mamba3.py`` in https://github.com/state-spaces/mamba.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, require_shape, reshaped, same
from statewise.checkpoints.convert.fields import count, flag, number, refuse_unknown, wrong
from statewise.errors import CheckpointError
from statewise.mixers.mamba3 import DECAYS, Mamba3Config

NORM_EPS = 1e-5
ROTATED = (0.5, 1.0)  # what rope_fraction may be
DECAY = "A_activation"  # a field of ours: their module takes unknown ones, and has had no other since June 2026
_FIELDS = (
    "layer d_state expand headdim ngroups rope_fraction dt_min dt_max dt_init_floor A_floor is_outproj_norm is_mimo "
    f"mimo_rank fuse_pregate_headwise_norm chunk_size dropout {DECAY}"
)


def from_theirs(config: Mapping[str, Any], where: str) -> Mamba3Config:
    """Our config of an ``ssm_cfg``. What says how it is computed, or how weights are drawn, changes nothing.

    Errors:  CheckpointError for a field that is not known, or whose value is not supported.
    """
    refuse_unknown(config, _FIELDS.split(), where)
    fraction = number(config, "rope_fraction", 0.5, where)
    if fraction not in ROTATED:
        raise wrong("rope_fraction", fraction, "0.5 or 1.0", where)
    decay = config.get(DECAY, "heavy_tail")
    if not isinstance(decay, str) or decay not in DECAYS:
        raise wrong(DECAY, decay, f"one of {', '.join(DECAYS)}", where)
    several = flag(config, "is_mimo", False, where)
    return Mamba3Config(
        d_state=count(config, "d_state", 128, where),
        d_head=count(config, "headdim", 64, where),
        expand=count(config, "expand", 2, where),
        n_groups=count(config, "ngroups", 1, where),
        mimo_rank=count(config, "mimo_rank", 4, where) if several else None,
        output_norm=flag(config, "is_outproj_norm", False, where),
        decay=decay,
        rope_fraction=fraction,
        norm_eps=NORM_EPS,
        a_floor=number(config, "A_floor", 1e-4, where),
        dt_range=(number(config, "dt_min", 1e-3, where), number(config, "dt_max", 1e-1, where)),
        dt_floor=number(config, "dt_init_floor", 1e-4, where),
    )


def to_theirs(mixer: Mamba3Config, where: str) -> dict[str, Any]:
    """The ``ssm_cfg`` of the same layer.

    Errors:  CheckpointError for what their module does not have.
    """
    if mixer.decay != "heavy_tail":
        raise CheckpointError(
            f"{where}: a layer has decay={mixer.decay!r}; its Mamba-3 has only 'heavy_tail', since June 2026"
        )
    if mixer.rope_fraction not in ROTATED or mixer.norm_eps != NORM_EPS:
        given = f"rope_fraction={mixer.rope_fraction!r} and norm_eps={mixer.norm_eps!r}"
        raise CheckpointError(f"{where}: a layer has {given}; the format has only 0.5 or 1.0, and {NORM_EPS}")
    several = mixer.mimo_rank is not None
    return {
        "layer": "Mamba3",
        "d_state": mixer.d_state,
        "expand": mixer.expand,
        "headdim": mixer.d_head,
        "ngroups": mixer.n_groups,
        "rope_fraction": mixer.rope_fraction,
        "dt_min": mixer.dt_range[0],
        "dt_max": mixer.dt_range[1],
        "dt_init_floor": mixer.dt_floor,
        "A_floor": mixer.a_floor,
        "is_outproj_norm": mixer.output_norm,
        "is_mimo": several,
        **({"mimo_rank": mixer.mimo_rank} if several else {}),
    }


def mamba3(config: Mamba3Config, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """The table of one layer."""
    d_inner = config.expand * d_model
    n_heads, rank = d_inner // config.d_head, config.mimo_rank
    table = [same(f"{theirs}{name}", f"{ours}dynamics.{name}") for name in ("dt_bias", "D")]
    table.append(same(f"{theirs}out_proj.weight", f"{ours}out_proj.weight"))
    if config.output_norm:
        table.append(same(f"{theirs}norm.weight", f"{ours}norm.weight"))
    one = (n_heads, 1, config.d_state)
    if rank is None:
        table.append(same(f"{theirs}in_proj.weight", f"{ours}in_proj.weight"))
        for letter in "BC":
            names = f"{theirs}{letter}_bias", f"{ours}dynamics.{letter}_bias"
            table.append(reshaped(*names, theirs_shape=one, ours_shape=(n_heads, config.d_state)))
            table.append(same(f"{theirs}{letter}_norm.weight", f"{ours}{letter}_norm.weight"))
        return table
    places = _places(config)
    table.append(_placed(f"{theirs}in_proj.weight", f"{ours}in_proj.weight", _rows(config, d_inner, places), 0))
    for letter in "BC":
        table.append(_placed(f"{theirs}{letter}_bias", f"{ours}dynamics.{letter}_bias", places, -1))
        table.append(_placed(f"{theirs}{letter}_norm.weight", f"{ours}{letter}_norm.weight", places, 0))
    return table + [same(f"{theirs}mimo_{a}", f"{ours}mimo.{b}") for a, b in (("x", "x"), ("z", "z"), ("o", "out"))]


def _places(config: Mamba3Config) -> list[int]:
    """For each number of our state the place that it has in theirs: each pair, then what does not turn."""
    half = config.d_state // 2
    turned = [place for i in range(config.n_angles) for place in (i, half + i)]
    return turned + [i for i in range(config.d_state) if i not in turned]


def _rows(config: Mamba3Config, d_inner: int, places: Sequence[int]) -> list[int]:
    """The places of the rows of in_proj from z to C; the others stay."""
    vectors = 2 * (config.mimo_rank or 1) * config.n_groups  # of B, and then of C
    starts = (2 * d_inner + i * config.d_state for i in range(vectors))
    return [*range(2 * d_inner), *(start + place for start in starts for place in places)]


def _placed(theirs: str, ours: str, places: Sequence[int], axis: int) -> Entry:
    """The same numbers along an axis, in other places up to the end of ``places``."""

    def moved(tensor: Tensor, order: Sequence[int]) -> Tensor:
        if tensor.ndim == 0 or tensor.shape[axis] < len(order):
            require_shape(theirs, tensor, (len(order),))
        rest = range(len(order), tensor.shape[axis])
        return tensor.index_select(axis, torch.tensor([*order, *rest], device=tensor.device))

    back = sorted(range(len(places)), key=places.__getitem__)
    return Entry((theirs,), (ours,), lambda tensor: moved(tensor, places), lambda tensor: moved(tensor, back))
