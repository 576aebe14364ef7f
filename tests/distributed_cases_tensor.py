"""Ranks that share the matrices of a layer, alone and beside ranks that share rows; and what does not divide."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributed_harness import Place, case
from distributed_models import MIXERS, a_run, parallel, steps, together
from torch.distributed.tensor import DTensor
from training_runs import with_train

from statewise.errors import ConfigError
from statewise.mixers.mamba2 import Mamba2Config
from statewise.training.distributed.several import SeveralRanks


def _register(model: str) -> None:
    def equals_one_process(place: Place) -> None:
        state = together(place, a_run(place, model), tensor=2, data="fsdp")
        shared = [name for name, p in state.model.named_parameters() if isinstance(p, DTensor)]
        assert any("proj" in name or "linear" in name for name in shared)

    equals_one_process.__name__ = f"tensor_{model}"
    case(*((2, 4) if model == "hybrid" else (2,)))(equals_one_process)


for _model in MIXERS:
    _register(_model)


@case(4)
def tensor_parallel_on_all_four(place: Place) -> None:
    state = together(place, a_run(place, "hybrid"), tensor=4)
    weight = state.model.blocks[0].mlp.in_proj.weight
    assert weight.to_local().shape[0] * 4 == weight.shape[0]


@case(2)
def meshes_that_do_not_divide(place: Place) -> None:
    run = a_run(place)
    three = replace(run, model=replace(run.model, layers=(Mamba2Config(d_state=7, d_head=32),), d_model=16))
    for changed, message in (
        (parallel(run, tensor=3), r"tensor=3 times sequence=1 is 3, which does not divide the 2 processes"),
        (parallel(three, tensor=2), r"tensor=2 does not divide the 79 outputs of layers.0.mixer.in_proj"),
        (with_train(run, batch_size=5), r"batch_size=5 .* 2 data ranks do not divide it"),
        (parallel(a_run(place, length=15), sequence=2), r"sequence=2 does not divide train.length=15"),
        (with_train(run, compile=True), r"train.compile=true works only in one process"),
    ):
        with pytest.raises(ConfigError, match=message):
            steps(place, changed, SeveralRanks())


@case(4)
def tensor_parallel_beside_ddp_is_refused(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"set train.parallel.data=fsdp"):
        steps(place, parallel(a_run(place), tensor=2), SeveralRanks())


@case(2)
def matrices_shared_under_autocast(place: Place) -> None:
    """In bfloat16 the sums of the parts are rounded: the same to its precision."""
    run = a_run(place, "hybrid", precision="bfloat16")
    for how in ({"tensor": 2}, {"data": "fsdp"}):
        found, _ = steps(place, parallel(run, **how), SeveralRanks())
        again, _ = steps(place, parallel(run), SeveralRanks())
        assert torch.allclose(torch.tensor(found), torch.tensor(again), rtol=2e-2)
