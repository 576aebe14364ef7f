"""Hybrids of ``transformers``: a file a family, which is data, and what reads and writes it.

Source: ``models/*/modeling_*.py`` of https://github.com/huggingface/transformers, version 5. Fields that its model code
does not read are not read here either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.formats import Config, Tensors
from statewise.checkpoints.convert.hybrids.family import Family
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModelConfig

# The module of each, by their model_type. A model that several could hold is written as the first of them.
FAMILIES: Mapping[str, str] = {
    "bamba": "bamba",
    "granitemoehybrid": "granitemoehybrid",
    "falcon_h1": "falcon_h1",
    "nemotron_h": "nemotron_h",
    "jamba": "jamba",
    "zamba2": "zamba2",
}


def family_of(model_type: object) -> Family | None:
    """The family of this name, if there is one."""
    place = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if place is None:
        return None
    found: Mapping[str, Family] = import_module(f"{__name__}.{place}").FAMILIES
    return found[str(model_type)]


def every_family() -> Iterator[Family]:
    for name in FAMILIES:
        family = family_of(name)
        assert family is not None
        yield family


def read(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model of a ``config.json`` and its tensors; see :meth:`Family.read`."""
    family = family_of(config.get("model_type"))
    assert family is not None
    return family.read(config, tensors)


def write(config: LanguageModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model as the first family that has it.

    Errors:  CheckpointError with the reason of each that has its layers but not the whole, or of all.
    """
    reasons = []
    for family in every_family():
        try:
            return family.write(config, tensors)
        except CheckpointError as error:
            reasons.append(str(error))
    near = [reason for reason in reasons if "has no layer of" not in reason]
    raise CheckpointError("; ".join(near) or f"{reasons[0]}; a hybrid of mamba_ssm is written by format='mamba_ssm'")
