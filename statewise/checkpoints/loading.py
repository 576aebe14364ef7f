"""``load``: a model from anywhere, ours or somebody else's."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

from statewise.checkpoints import files
from statewise.checkpoints.folders import RUN_FILE
from statewise.checkpoints.manifest import Manifest
from statewise.checkpoints.run_folder import resolve
from statewise.checkpoints.tensor_files import require_floating
from statewise.errors import InputError
from statewise.models.base import Model
from statewise.models.encoder import SequenceModelConfig
from statewise.models.quantiles import QuantileConfig


def load(
    source: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    keep_quantised: bool = False,
) -> Model:
    """Loads the model of a checkpoint, or one that others published, in evaluation mode.

    source:   the folder of a checkpoint that :func:`save` wrote, or of a run, for its best checkpoint; a folder with
              a published model (its config.json or params.json, and weights as safetensors, .bin, .pt or .ckpt, one
              file or shards with an index); one such file, or a .gguf, also one part of several; or "hub:owner/name",
              "hub:owner/name@revision" or "hub:owner/name/file" of the Hugging Face hub
    dtype:    of the floating parameters, by default as stored; if a published model mixes dtypes, the narrowest
              that holds all of them without loss. Parameters that set a system's time scales (in a ``Dynamics``
              module) are float32 or wider.
    revision: with a hub name: a branch, a tag or a commit
    keep_quantised: matrices that a GGUF file has in integers (Q4_K, Q8_0, ...) stay as they are in memory, where they
              are float32 otherwise. The model is then for the CPU, and not to be trained or saved. ``generate`` decodes
              with the same integers; other calls unpack a matrix whenever it is used. Other models are read as usual.
    A model that Statewise trained takes your raw data. One that Statewise 0.1.0 trained does not, and a warning of
    one line says what it lacks.

    Cost:     the model's tensors in memory once; no random number is drawn.
    Errors:   CheckpointError, with a reason, for anything but an intact checkpoint, and for a published model whose
              architecture is unknown, whose tensors are missing, too many or of a wrong shape, or whose files lead out
              of the folder. No code from a file is run: a pickle that names any is refused. InputError for something
              that is not a source or a dtype.
    """
    require_floating(dtype, "load")
    path = locate_source(source, revision)
    from statewise.checkpoints.convert.source import is_published

    if is_published(path):
        from statewise.checkpoints.convert import load_published

        return load_published(path, device=device, dtype=dtype, keep_quantised=keep_quantised)
    if (path / RUN_FILE).exists():
        path = resolve(path)
    model = files.load(path, device=device, dtype=dtype)
    if missing := lacks(files.read_config(path)):
        warnings.warn(f"{path} was written by Statewise 0.1.0, {missing}", stacklevel=2)
    return model


def lacks(manifest: Manifest) -> str | None:
    """What a checkpoint of 0.1.0 does not say of the data that its model reads, and what to do; None if nothing."""
    model = manifest.model
    if manifest.format_version > 1 or not isinstance(model, (SequenceModelConfig, QuantileConfig)):
        return None
    if isinstance(model, QuantileConfig):
        return (
            "which saved no columns, calendar and scaling of covariates: evaluate its run folder, or continue its "
            "run (statewise train --resume), whose next checkpoint can forecast from a table"
        )
    if model.d_input is None:
        return "which saved no names of classes" if hasattr(model, "classes") else None
    names = " and no names of classes" if hasattr(model, "classes") else ""
    return (
        f"which saved no scaling{names}: scale what you give the model as its training data were, or continue its "
        "run (statewise train --resume), whose next checkpoint has them"
    )


def locate_source(source: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The path of a source; a name of the hub is fetched first.

    Errors:  InputError for anything but a path or a hub name, and for a revision of a path; CheckpointError as
             ``convert.hub.fetch``.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(f"the source of a model must be a path or hub:owner/name; got a {type(source).__name__}")
    name = os.fsdecode(source)
    if "\0" in name:
        raise InputError(f"{name[:80]!r} has a null byte, which no path can have; give the path of a model")
    if name.startswith("hub:"):
        from statewise.checkpoints.convert.hub import fetch

        return fetch(name.replace("\\", "/"), revision)  # a Path of Windows has turned it
    if revision is not None:
        raise InputError(f"revision={revision!r} needs a hub name, hub:owner/name; {name!r} is a path")
    return Path(name)
