"""Muon needs whole matrices: ranks that have parts of them move as one process does, and save what it saves."""

from __future__ import annotations

from typing import Any

from distributed_harness import Place, case
from distributed_models import a_run, parallel, together
from distributed_runs import copied, everything, require_equal, trained
from torch.distributed.tensor import DTensor

from statewise.training.config import RunConfig

WAYS: dict[int, tuple[dict[str, Any], ...]] = {
    2: ({"data": "ddp"}, {"data": "fsdp"}, {"tensor": 2}, {"sequence": 2}),
    4: ({"data": "ddp"}, {"data": "fsdp"}, {"data": "fsdp", "tensor": 2}, {"tensor": 4}),
}


def muon_run(place: Place, model: str, **settings: Any) -> RunConfig:
    return a_run(place, model, matrices="muon", **settings)


def _register(model: str) -> None:
    def equals_one_process(place: Place) -> None:
        for how in WAYS[place.size]:
            state = together(place, muon_run(place, model), **how)
            moved = next(p for group in state.groups if group.optimizer == "Muon" for _, p in group.parameters)
            assert isinstance(moved, DTensor) == (how.get("data") == "fsdp" or "tensor" in how)
            kept = state.optimizer.state[moved]["momentum_buffer"]
            assert isinstance(kept, DTensor) == isinstance(moved, DTensor)
            if isinstance(moved, DTensor):
                assert kept.to_local().shape == moved.to_local().shape

    equals_one_process.__name__ = f"muon_{model}"
    case(*((2, 4) if model == "hybrid" else (2,)))(equals_one_process)


for _model in ("mamba2", "hybrid"):
    _register(_model)


@case(2)
def muon_beside_accumulation_and_clipping(place: Place) -> None:
    run = muon_run(place, "mamba2", accumulation=2, clip_norm=0.1)
    for how in WAYS[2]:
        together(place, run, **how)


@case(2)
def muon_goes_on_bit_for_bit_in_parts(place: Place) -> None:
    run = parallel(muon_run(place, "hybrid", steps=4), data="fsdp")
    trained(place, run, "muon-straight")
    trained(place, run, "muon-stopped", stop=2)
    copied(place, "muon-stopped", "muon-on-two")
    trained(place, run, "muon-on-two", resume=True)
    require_equal(place.folder / "muon-on-two", place.folder / "muon-straight")


@case(2)
def what_muon_saves_has_the_shapes_of_one_process(place: Place) -> None:
    """Momenta are whole, and nothing else is kept of a matrix."""
    run = muon_run(place, "mamba2", steps=3)
    trained(place, parallel(run, data="fsdp"), "muon-saved")
    found = everything(place.folder / "muon-saved")
    for name, parameter in run.model.build().named_parameters():
        momentum = found.get(f"optimizer.momentum_buffer.{name}")
        second = found.get(f"optimizer.exp_avg_sq.{name}")
        assert (momentum is None) != (second is None), name
        kept = second if momentum is None else momentum
        assert kept is not None, name
        assert kept.shape == parameter.shape, name
