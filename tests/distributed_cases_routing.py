"""Experts are kept in balance over the batch of all ranks: what one process does, however the batch is divided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from distributed_harness import Place, case
from distributed_models import ATTENTION, MAMBA2, a_run, together

from statewise.models.block import BlockConfig
from statewise.models.moe import MoEConfig
from statewise.training import RoutingConfig, RunConfig

EXPERTS = MoEConfig(n_experts=4, n_active=1, expand=1, router="sigmoid", correction_bias=True)
ROUTING = RoutingConfig(balance=0.5, z=0.1, bias_step=0.05)
WAYS: dict[int, tuple[dict[str, Any], ...]] = {
    2: ({"data": "ddp"}, {"data": "fsdp"}, {"tensor": 2}, {"sequence": 2}),
    4: ({"data": "ddp"}, {"sequence": 2}),
}


def routed_run(place: Place, **settings: Any) -> RunConfig:
    run = a_run(place, routing=ROUTING, **settings)
    layers = tuple(BlockConfig(mixer=mixer, mlp=EXPERTS) for mixer in (MAMBA2, ATTENTION))
    return replace(run, model=replace(run.model, layers=layers))  # type: ignore[call-arg]


@case(2, 4)
def experts_are_balanced_over_all_ranks(place: Place) -> None:
    for how in WAYS[place.size]:
        state = together(place, routed_run(place), **how)
        bias = torch.stack([block.mlp.router.bias for block in state.model.blocks])  # type: ignore[union-attr, misc]
        assert bias.abs().sum() > 0
        each = [torch.empty_like(bias) for _ in range(place.size)]
        dist.all_gather(each, bias)
        assert all(torch.equal(one, bias) for one in each)


@case(2)
def experts_are_balanced_in_pieces_and_micro_batches(place: Place) -> None:
    run = routed_run(place, accumulation=2)
    together(place, run, data="ddp")
    layers = tuple(replace(block, mixer=MAMBA2) for block in run.model.layers)  # type: ignore[attr-defined]
    pieces = routed_run(place, pieces=2)
    pieces = replace(pieces, model=replace(pieces.model, layers=layers))  # type: ignore[call-arg]
    for how in ({"data": "ddp"}, {"sequence": 2}):
        together(place, pieces, **how)
