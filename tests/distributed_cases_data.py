"""Ranks that share the rows of each batch: DDP and FSDP2."""

from __future__ import annotations

from distributed_harness import Place, case
from distributed_models import MIXERS, a_run, together


def _register(model: str, data: str) -> None:
    def equals_one_process(place: Place) -> None:
        together(place, a_run(place, model), data=data)

    equals_one_process.__name__ = f"{data}_{model}"
    case(*((2, 4) if model == "hybrid" else (2,)))(equals_one_process)


for _model in MIXERS:
    for _data in ("ddp", "fsdp"):
        _register(_model, _data)
