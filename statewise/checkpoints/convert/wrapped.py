"""What ``integrations.transformers`` saved, Trainer's checkpoints among it: our own model under another roof.

config.json holds our config under "model", and our tensors have their names after "model.".
"""

from __future__ import annotations

from torch import Tensor

from statewise.checkpoints.convert.entries import read_entries, same
from statewise.checkpoints.convert.formats import Config, Format, Tensors
from statewise.checkpoints.convert.source import OUR_TYPE
from statewise.checkpoints.empty import expected_shapes
from statewise.models.base import ModelConfig
from statewise.models.registry import model_from_dict

PREFIX = "model."
WRAPPED = "statewise in transformers"


def _recognises(config: Config, names: frozenset[str]) -> bool:
    return config.get("model_type") == OUR_TYPE


def _read(config: Config, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Errors:  CheckpointError that names a tensor, ConfigError for a config that is none."""
    ours = model_from_dict(config.get("model"))
    expected = expected_shapes(ours)
    return ours, read_entries([same(PREFIX + name, name) for name in expected], tensors, expected)


FORMATS = (
    Format(
        name=WRAPPED,
        recognises=_recognises,
        read=_read,
    ),
)
