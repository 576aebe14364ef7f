"""The formats that are known, what each recognises, and what it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from statewise.models.base import ModelConfig

Config = Mapping[str, Any]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Format:
    """What others publish models in.

    name:       for messages and ``--to``
    recognises: (config, names of the tensors) -> whether it is this format. ``config`` is the JSON beside the tensors,
                empty if there is none; for a file by Lightning with "pytorch-lightning_version" and "hyper_parameters"
                (plain data). Names are as in the file, also where all begin with "model."
    read:       (their config, their tensors) -> (our config, our tensors), each of theirs used exactly once
    write:      the way back; None where nobody would read it
    keeps_wide: (a name of theirs) -> whether their programs need the tensor in float32, whatever the others are in
    kinds:      the model types that it reads, for messages; none where it has other signs
    files:      what the two are called: the weights' file and the config's, as written; "" for no config
    """

    name: str
    recognises: Callable[[Config, frozenset[str]], bool]
    read: Callable[[Config, Tensors], tuple[ModelConfig, dict[str, Tensor]]]
    write: Callable[[ModelConfig, Tensors], tuple[dict[str, Any], dict[str, Tensor]]] | None = None
    keeps_wide: Callable[[str], bool] = lambda name: False
    kinds: tuple[str, ...] = ()
    files: tuple[str, str] = ("model.safetensors", "config.json")


# The module under statewise.checkpoints.convert that holds each as FORMATS, a tuple; asked in this order: first those
# that know their tensors by name, since a config with d_model and n_layer may be H3's as well as mamba_ssm's.
PLACES = ("h3", "s4", "rwkv7", "mamba_ssm", "transformers", "wrapped")


def formats() -> Iterator[Format]:
    """All of them, in order, each module imported when it is its turn.

    GGUF, which is a file of its own kind, is not among them: see ``gguf``.
    """
    for place in PLACES:
        yield from import_module(f"statewise.checkpoints.convert.{place}").FORMATS
