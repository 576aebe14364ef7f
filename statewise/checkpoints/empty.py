"""Models before they have numbers: built without memory, for their shapes, and then given the tensors of a file.

So a model is in memory once while it is loaded, however large it is: nothing is drawn that is then thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import ConfigError
from statewise.mixers.base import Dynamics
from statewise.models.base import Model, ModelConfig


def build_empty(config: ModelConfig) -> Model:
    """The model on the meta device: every tensor has its shape and no memory. PyTorch's generators are left alone.

    Errors:  ConfigError as ``config.build()``, and for sizes that no tensor can have.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return config.build()
    except (RuntimeError, TypeError, OverflowError) as error:  # of PyTorch, for products and numbers beyond 64 bits
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"its sizes make no model: {reason}") from error


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint of this model holds, by name; tied ones once, as in a file."""
    return {name: tuple(tensor.shape) for name, tensor in stored_tensors(build_empty(config)).items()}


def fill(model: Model, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None) -> None:
    """Puts tensors into an empty model, one by one; what was tied stays tied.

    tensors:  all of ``stored_tensors(model)``, by name, of the same shapes
    dtype:    of the floating parameters; None: as the tensors are. Those that set a system's time scales (in a
              ``Dynamics`` module) are then float32 or wider. Buffers, which are tables, stay as they are.
    """
    empty = stored_tensors(model)
    dynamics = {id(p) for module in model.modules() if isinstance(module, Dynamics) for p in module.parameters()}
    given: dict[int, Tensor] = {}
    for name, tensor in tensors:
        old = empty[name]
        if isinstance(old, nn.Parameter):
            if dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(torch.promote_types(dtype, torch.float32) if id(old) in dynamics else dtype)
            tensor = nn.Parameter(tensor, old.requires_grad)
        given[id(old)] = tensor
    for module in model.modules():
        for parameter_name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[parameter_name] = cast(nn.Parameter, given[id(parameter)])
        for buffer_name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[buffer_name] = given[id(buffer)]
