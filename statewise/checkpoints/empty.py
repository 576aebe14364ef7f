"""Models before they have numbers: built for their shapes, and then given the tensors of a file.

So a model is in memory once while it is loaded, however large it is: nothing is drawn that is then thrown away.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from statewise.checkpoints.tensor_files import require_held, stored_tensors
from statewise.errors import CheckpointError, ConfigError
from statewise.mixers.base import Dynamics, nothing_drawn
from statewise.models.base import Model, ModelConfig
from statewise.models.quantised import QuantisedTensor
from statewise.models.shapes import LARGEST, TooLargeError, Undrawn, build_shapes, require_shapes, unchecked


@contextlib.contextmanager
def no_model() -> Iterator[None]:
    """What PyTorch says within it of sizes that no tensor can have becomes one line."""
    try:
        yield
    except TooLargeError:
        raise
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # for products and numbers beyond 64 bits
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        if refused := re.search(r"tried to allocate (\d+) bytes", reason):
            raise TooLargeError(
                f"its sizes make no model: it has a tensor of {int(refused[1]) / 1e9:,.3g} GB, which this machine has "
                "no room for; use a smaller one"
            ) from error
        raise ConfigError(f"its sizes make no model: {reason}") from error


def build_empty(config: ModelConfig, room: int = LARGEST) -> Model:
    """The model with parameters of their shapes and of no particular numbers; they take no memory until they are
    written, which :func:`fill` never does. PyTorch's generators are left alone.

    room:    bytes that its tensors may have, found before there are any
    Errors:  ConfigError as ``config.build()``, and for sizes that no tensor can have; TooLargeError for those that
             none can have here, or that are beyond ``room``.
    """
    with no_model(), unchecked(), nothing_drawn():
        require_shapes(config, room)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), Undrawn():
            return config.build()


def build_unchecked(config: ModelConfig) -> Model:
    """``config.build()`` without asking first whether there is room: a run has been asked, or told not to ask.

    Errors:  as :func:`build_empty`.
    """
    with no_model(), unchecked():
        require_shapes(config)
        return config.build()


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint of this model holds, by name; tied ones once, as in a file."""
    return {name: tuple(tensor.shape) for name, tensor in stored_tensors(_shapes(config)).items()}


def require_described(model: Model, where: str) -> None:
    """Errors: CheckpointError unless ``model.config`` builds the tensors that the model has, in name and shape: others
    could be written and never be loaded. What a class of somebody's own has without numbers is not asked."""
    described = require_shapes(model.config)
    if described is None:
        return
    ours, theirs = (
        {name: tuple(tensor.shape) for name, tensor in stored_tensors(m).items()} for m in (model, described)
    )
    for name in (*ours, *theirs):
        if ours.get(name) != theirs.get(name):
            has, makes = (f"shape {found[name]}" if name in found else "none" for found in (ours, theirs))
            raise CheckpointError(
                f"{where}: its config describes another model, so it could not be loaded: {name} has {has}, the config "
                f"makes {makes}; build the model from a config that fits (sw.reduce_model does so for fewer states)"
            )


def _shapes(config: ModelConfig) -> Model:
    with no_model():
        return build_shapes(config)


def fill(model: Model, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None) -> None:
    """Puts tensors into an empty model, one by one; what was tied stays tied.

    tensors:  all of ``stored_tensors(model)``, by name, of the same shapes
    dtype:    of the floating parameters; None: as the tensors are. Those that set a system's time scales (in a
              ``Dynamics`` module) are then float32 or wider. Buffers, which are tables, stay as they are.
    Errors:   CheckpointError for numbers that ``dtype`` does not hold.
    """
    empty, dynamics = stored_tensors(model), _dynamics_of(model)
    given: dict[int, Tensor] = {}
    for name, tensor in tensors:
        old = empty[name]
        if isinstance(old, nn.Parameter):
            if dtype is not None and tensor.is_floating_point():
                before = tensor.dtype
                tensor = tensor.to(torch.promote_types(dtype, torch.float32) if id(old) in dynamics else dtype)
                if torch.finfo(tensor.dtype).max < torch.finfo(before).max:
                    require_held(name, tensor, "cannot load the model in this dtype", "give a wider one")
            tensor = nn.Parameter(tensor, old.requires_grad and not isinstance(tensor, QuantisedTensor))
        given[id(old)] = tensor
    for module in model.modules():
        for parameter_name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[parameter_name] = cast(nn.Parameter, given[id(parameter)])
        for buffer_name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) in given:
                module._buffers[buffer_name] = given[id(buffer)]


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """The floating parameters in ``dtype``, each the same Parameter; those of ``Dynamics`` modules in float32 or wider.
    Buffers, which are tables, stay as they are."""
    dynamics = _dynamics_of(model)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            at_least_float32 = torch.promote_types(dtype, torch.float32)
            parameter.data = parameter.data.to(at_least_float32 if id(parameter) in dynamics else dtype)


def _dynamics_of(model: nn.Module) -> set[int]:
    return {id(p) for module in model.modules() if isinstance(module, Dynamics) for p in module.parameters()}
