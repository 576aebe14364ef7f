"""What every model of ours is in ``transformers``: built from its config, saved, and read strictly."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from statewise.checkpoints.empty import cast_parameters
from statewise.errors import CheckpointError
from statewise.integrations.transformers.config import StatewiseConfig
from statewise.models.base import Model, ModelConfig


class StatewisePreTrainedModel(PreTrainedModel, abc.ABC):
    """``model`` is ours."""

    config_class = StatewiseConfig
    config: StatewiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True

    def __init__(self, config: StatewiseConfig) -> None:
        super().__init__(config)
        dtype = torch.get_default_dtype()  # theirs say so which dtype they want
        with _default_dtype(torch.promote_types(dtype, torch.float32)):
            self.model = self._config_of(config).build()
        cast_parameters(self.model, dtype)
        self.post_init()

    @property
    def exact(self) -> bool:
        """That of ``model``, which is ours."""
        return self.model.exact

    @exact.setter
    def exact(self, on: bool) -> None:
        self.model.exact = on

    @abc.abstractmethod
    def _config_of(self, config: StatewiseConfig) -> ModelConfig:
        """Our config within theirs. Errors: ConfigError if it is of another kind of model."""

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: a model draws its parameters when it is built."""

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As theirs, but strict. ``dtype`` leaves the parameters of ``Dynamics`` modules in float32 or wider.

        Errors:  CheckpointError naming tensors that are missing, unexpected or of another shape.
        """
        kwargs["ignore_mismatched_sizes"] = True  # or theirs ends without a name
        model, loaded = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        loaded["mismatched_keys"] = {_mismatch(key) for key in loaded.get("mismatched_keys", ())}
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            if found := sorted(str(key) for key in loaded.get(what, ())):
                raise CheckpointError(
                    f"{args[0] if args else 'the checkpoint'} has {what.replace('_', ' ')}: {', '.join(found[:3])}"
                    f"{f' and {len(found) - 3} more' if len(found) > 3 else ''}; expected the tensors of its config"
                )
        for module in model.modules():
            if module._non_persistent_buffers_set:  # theirs gave tensors that no file holds memory, and nothing in it
                module._apply(lambda tensor: tensor)  # ours make them anew whenever they are moved
        return (model, loaded) if output_loading_info else model


Wrapper = TypeVar("Wrapper", bound=StatewisePreTrainedModel)


def wrapped(kind: type[Wrapper], config: StatewiseConfig, model: Model) -> Wrapper:
    """The model in a wrapper of its kind; nothing is copied, and it trains or not as before."""
    with torch.device("meta"):
        around = kind(config)
    around.model = model
    around.config.dtype = around.dtype
    return around.train(model.training)


def _mismatch(key: Any) -> str:
    """One of theirs, (name, shape, shape of the model), in words."""
    if not isinstance(key, tuple) or len(key) != 3:
        return str(key)
    return f"{key[0]} of shape {tuple(key[1])} instead of {tuple(key[2])}"


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
