"""What a checkpoint needs besides the model, so that a run goes on bit for bit: named tensors and plain data."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.errors import CheckpointError
from statewise.training.optimizer import ParameterGroup

KEPT = {"AdamW": ("step", "exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}  # by an optimiser, of a parameter


def torch_generators(device: torch.device) -> dict[str, Tensor]:
    """The states of PyTorch's global generators that a run on ``device`` draws from."""
    states = {"generator.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["generator.cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_torch_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["generator.cpu"].cpu())
    if device.type == "cuda" and "generator.cuda" in states:  # a run that moved here from a CPU has none
        torch.cuda.set_rng_state(states["generator.cuda"].cpu(), device)


def capture_generators(device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of PyTorch's, Python's and numpy's global generators."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    tensors = {
        **torch_generators(device),
        "generator.python": torch.tensor(words, dtype=torch.int64),
        "generator.numpy": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
    }
    data = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
    }
    return tensors, data


def restore_generators(tensors: Mapping[str, Tensor], data: Mapping[str, Any], device: torch.device) -> None:
    set_torch_generators(tensors, device)
    python, numpy_data = data["python"], data["numpy"]
    random.setstate((python["version"], tuple(tensors["generator.python"].tolist()), python["gauss"]))
    key = tensors["generator.numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, numpy_data["pos"], numpy_data["has_gauss"], numpy_data["gauss"]))


def capture_optimizer(optimizer: torch.optim.Optimizer, groups: tuple[ParameterGroup, ...]) -> dict[str, Tensor]:
    """The moments and step counts by parameter: ``optimizer.<what>.<parameter>``."""
    return {
        f"optimizer.{key}.{name}": value
        for group in groups
        for name, parameter in group.parameters
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    groups: tuple[ParameterGroup, ...],
    tensors: Mapping[str, Tensor],
    part_like: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Puts back what :func:`capture_optimizer` gave. part_like: (tensor, parameter) -> what is kept of the tensor here.

    Errors: CheckpointError for a parameter that the model does not have, has in another shape, or has by another
            optimiser.
    """
    members = {name: (group.optimizer, parameter) for group in groups for name, parameter in group.parameters}
    in_order = (parameter for group in optimizer.param_groups for parameter in group["params"])
    numbers = {id(parameter): number for number, parameter in enumerate(in_order)}
    state: dict[int, dict[str, Tensor]] = {}
    for tensor_name, value in tensors.items():
        if not tensor_name.startswith("optimizer."):
            continue
        _, key, name = tensor_name.split(".", 2)
        if name not in members:
            raise CheckpointError(f"the trainer's state has {tensor_name}, but the model has no parameter {name}")
        by, parameter = members[name]
        if key not in KEPT[by]:
            raise CheckpointError(
                f"the trainer's state has {tensor_name}, but the run trains {name} by {by}; put "
                "train.optimizer.matrices back as it was, or begin a new run"
            )
        shape = parameter.shape
        if key != "step" and value.shape != shape:
            raise CheckpointError(f"{tensor_name} has shape {tuple(value.shape)}; expected {tuple(shape)}")
        own = value.clone() if key == "step" else part_like(value, parameter)
        state.setdefault(numbers[id(parameter)], {})[key] = own
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
