"""The minimal S4D of the S4 repository (``models/s4/s4d.py``), in the model of its ``example.py``.

A config beside the file, if there is one, may say {"prenorm": false, "dropout": 0.1, "task": "classification"}; these
are the defaults too, of the published script's arguments. Its sizes are read off the tensors.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.entries import (
    Entry,
    affine,
    read_entries,
    require_tensor,
    reshaped,
    same,
    write_entries,
)
from statewise.checkpoints.convert.fields import count_layers, dropout_of, refuse_unknown
from statewise.checkpoints.convert.formats import Config, Tensors
from statewise.checkpoints.convert.s4_config import EPS
from statewise.checkpoints.convert.s4_kernel import Kernel
from statewise.checkpoints.empty import expected_shapes
from statewise.errors import CheckpointError, excerpt
from statewise.mixers.s4d import S4DConfig
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.models.regressor import SequenceRegressorConfig

_LAYER = re.compile(r"^s4_layers\.(\d+)\.")
_WHERE = "the S4D checkpoint"
TASKS: dict[str, Any] = {"classification": SequenceClassifierConfig, "regression": SequenceRegressorConfig}
# Arguments of the published script that change no output.
_NO_EFFECT = ("lr", "weight_decay", "epochs", "batch_size", "dataset", "grayscale", "num_workers", "resume", "dt_min")
_SIZES = ("d_input", "d_output", "d_model", "n_layers", "d_state")


def recognises(config: Config, names: frozenset[str]) -> bool:
    return any(_LAYER.match(name) and name.endswith(".kernel.log_A_real") for name in names)


def minimal_kernel(prefix: str, tensors: Tensors) -> Kernel:
    """The systems of a layer of this kind, whose names begin with ``prefix``."""
    require_tensor(f"{prefix}kernel.log_A_real", tensors, _WHERE)
    A = tensors[f"{prefix}kernel.log_A_real"]
    if A.ndim != 2:
        raise CheckpointError(
            f"{_WHERE}: {prefix}kernel.log_A_real has shape {tuple(A.shape)}, expected (d_model, d_state / 2)"
        )
    return _minimal_kernel(prefix, *A.shape)


def _minimal_kernel(prefix: str, d_model: int, n: int) -> Kernel:
    names = {"inv_dt": "log_dt", "A_real": "log_A_real", "A_imag": "A_imag", "C": "C"}
    return Kernel(
        names={ours: f"{prefix}kernel.{theirs}" for ours, theirs in names.items()} | {"D": f"{prefix}D"},
        d_model=d_model,
        n_heads=1,
        n_systems=d_model,
        n=n,
        imag_sign=1,
        dt_axis=False,
        D_axis=False,
        method="zoh",
    )


def minimal_mixer(kernel: Kernel, dropout: float) -> S4DConfig:
    """B is 1 and not stored, in theirs and in ours."""
    return S4DConfig(d_state=2 * kernel.n, initialization="lin", method="zoh", learn_B=False, dropout=dropout)


def minimal_layer(kernel: Kernel, theirs: str, ours: str) -> list[Entry]:
    """``theirs`` and ``ours`` are the names of the layer and of our mixer, with their dots."""
    d_model = kernel.d_model
    linear = (f"{theirs}output_linear.0.weight", f"{ours}output.linear.weight")
    return [
        kernel.entry(ours),
        reshaped(*linear, theirs_shape=(2 * d_model, d_model, 1), ours_shape=(2 * d_model, d_model)),
        same(f"{theirs}output_linear.0.bias", f"{ours}output.linear.bias"),
    ]


def read(config: Config, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model of a file by ``example.py``: linear encoder, S4D layers, mean over time, linear decoder.

    Errors:  CheckpointError for a tensor that is missing, left over or of a wrong shape, and for a field that is
             unknown or contradicts the tensors.
    """
    n_layers = count_layers(tensors, "s4_layers.", _WHERE)
    kernels = [minimal_kernel(f"s4_layers.{i}.", tensors) for i in range(n_layers)]
    kernel = kernels[0]
    for name, axis in (("encoder.weight", 0), ("decoder.weight", 1)):
        require_tensor(name, tensors, _WHERE)
        shape, expected = tuple(tensors[name].shape), ["…", "…"]
        expected[axis] = str(kernel.d_model)
        if len(shape) != 2 or shape[axis] != kernel.d_model:
            raise CheckpointError(f"{_WHERE}: {name} has shape {shape}, expected ({', '.join(expected)})")
    d_input, d_output = tensors["encoder.weight"].shape[1], tensors["decoder.weight"].shape[0]
    refuse_unknown(config, ("prenorm", "dropout", "task", "dt_max", *_SIZES, *_NO_EFFECT), f"{_WHERE}'s config")
    of_the_file = (d_input, d_output, kernel.d_model, n_layers, 2 * kernel.n)
    for name, value in zip(_SIZES, of_the_file, strict=True):
        if config.get(name, value) != value:
            raise CheckpointError(
                f"{_WHERE}'s config: {name}={excerpt(config[name])}, but the file's tensors say {value}"
            )
    dropout, prenorm = dropout_of(config, 0.1, f"{_WHERE}'s config"), config.get("prenorm", False)
    task = config.get("task", "classification" if d_output > 1 else "regression")
    if not isinstance(prenorm, bool) or not isinstance(task, str) or task not in TASKS:
        raise CheckpointError(
            f"{_WHERE}'s config: prenorm={excerpt(prenorm)}, task={excerpt(task)}; expected a truth "
            f"value and one of {list(TASKS)}"
        )
    block = BlockConfig(
        mixer=minimal_mixer(kernel, dropout), norm="layer", placement="pre" if prenorm else "post", dropout=dropout
    )
    output = {"n_classes": d_output} if task == "classification" else {"d_output": d_output}
    ours: SequenceModelConfig = TASKS[task](
        d_model=kernel.d_model, d_input=d_input, layers=(block,) * n_layers, norm=None, **output
    )
    return ours, read_entries(_entries(kernels), tensors, expected_shapes(ours), where=_WHERE)


def _entries(kernels: list[Kernel]) -> list[Entry]:
    table = [*affine("encoder", "embedding"), *affine("decoder", "head")]
    for i, kernel in enumerate(kernels):
        table += minimal_layer(kernel, f"s4_layers.{i}.", f"layers.{i}.mixer.")
        table += affine(f"norms.{i}", f"layers.{i}.mixer_norm")
    return table


def write(config: ModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state dict of the published model, and the arguments that build it.

    Errors:  CheckpointError for a model that the published code does not have.
    """
    config, mixer = _check_written(config)
    block, n_layers = config.blocks[0], len(config.blocks)
    kernels = [_minimal_kernel(f"s4_layers.{i}.", config.d_model, mixer.n_stored) for i in range(n_layers)]
    arguments = {
        "d_input": config.d_input,
        "d_output": config.n_outputs,
        "d_model": config.d_model,
        "n_layers": n_layers,
        "d_state": mixer.d_state,
        "dropout": block.dropout,
        "prenorm": block.placement == "pre",
        "task": "classification" if isinstance(config, SequenceClassifierConfig) else "regression",
    }
    return arguments, write_entries(_entries(kernels), tensors, where="the model")


def _check_written(config: ModelConfig) -> tuple[SequenceModelConfig, S4DConfig]:
    def refuse(what: str) -> CheckpointError:
        return CheckpointError(f"this model cannot be written as s4d: {what}; use another format")

    if not isinstance(config, tuple(TASKS.values())):
        raise refuse(f"it is a {type(config).__name__}; published: a classifier or a regressor of sequences")
    assert isinstance(config, SequenceModelConfig)
    if config.d_input is None or config.pooling != "mean" or config.final_norm is not None or config.frame_length != 1:
        raise refuse("published: it reads numbers, pools by their mean, and has no norm after the last layer")
    first = config.blocks[0]
    if any(block != first for block in config.blocks) or first.mlp is not None or first.norm != "layer":
        raise refuse("published: all layers are the same, with LayerNorm and without an MLP")
    if first.norm_eps != EPS:
        raise refuse(f"its layers have norm_eps={first.norm_eps}; published: {EPS}")
    mixer = first.mixer
    plain = S4DConfig(initialization="lin", learn_B=False)
    fields = "n_heads bidirectional tied_dt activation gated_output method learn_B B n_systems"
    if not isinstance(mixer, S4DConfig) or not mixer.is_complex:
        raise refuse("published: its layers are S4D with complex A")
    if any(getattr(mixer, field) != getattr(plain, field) for field in fields.split()):
        raise refuse(f"its layers are {mixer}; published: {plain}, of any d_state and dropout")
    return config, mixer
