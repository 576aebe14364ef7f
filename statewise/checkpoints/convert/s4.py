"""Models of the S4 repository: its backbone of S4 and S4D layers, versions 3 and 4, as Lightning or a state dict.

Sizes, rank, sharing, both directions, the norm and where it stands, and MLP layers are read off the tensors. What is in
none of them comes from the groups of the published config: the "hyper_parameters" that Lightning stores, and before
them the ``config.json`` beside the file, {"model": {"layer": {...}}, "decoder": {...}, "task": {...}}; see
:mod:`.s4_config` for the fields and their defaults. An adaptive softmax (WikiText-103) is refused: there is no such
head here.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert import s4d
from statewise.checkpoints.convert.entries import Entry, affine, read_entries, same, write_entries
from statewise.checkpoints.convert.formats import Config, Format, Tensors
from statewise.checkpoints.convert.s4_config import Settings
from statewise.checkpoints.convert.s4_layers import Layer, find_layers, written_layers
from statewise.checkpoints.empty import expected_shapes
from statewise.errors import CheckpointError
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.models.regressor import SequenceRegressorConfig

_WHERE = "the S4 checkpoint"
_KERNELS = (".kernel.inv_dt", ".kernel.kernel.log_dt", ".layer.kernel.log_dt")


def recognises(config: Config, names: frozenset[str]) -> bool:
    """By the step sizes of the layers of its backbone."""
    layers = [name for name in names if name.removeprefix("model.").startswith("layers.")]
    return any(name.endswith(_KERNELS) for name in layers)


def read(config: Config, tensors: Tensors) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model of a checkpoint of version 3 or 4.

    Cost:    for a channel of S4, log2(l_kernel) products and a solution of d_state x d_state matrices in complex128.
    Errors:  CheckpointError for a tensor that is missing, left over or of a wrong shape, and for a field of its config
             that is unknown, not supported or contradicts the tensors.
    """
    adaptive = sorted(name for name in tensors if ".emb_layers." in name or ".emb_projs." in name)
    if adaptive:
        raise CheckpointError(
            f"{_WHERE}: {adaptive[0]} belongs to an adaptive embedding and softmax (WikiText-103), which Statewise "
            "does not have, so this file cannot be read"
        )
    settings = Settings.of(config)
    prefix = "model." if any(name.startswith("model.layers.") for name in tensors) else ""
    layers = find_layers(tensors, settings, f"{prefix}layers.")
    ends, ours = _model(settings, prefix, tensors, tuple(layer.block for layer in layers))
    settings.check_sizes(d_model=ours.d_model, n_layers=sum(2 if layer.mlp else 1 for layer in layers))
    settings.check_prenorm(layers[0].block.placement == "pre")
    return ours, read_entries(ends + _layer_entries(layers), tensors, expected_shapes(ours), where=_WHERE)


def write(config: ModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A state dict of version 4, as its Lightning module has it, and the groups of the config that say the rest.

    C is written as it is, with l_kernel = 0: the published code makes of it what it needs in the first call.
    Errors:  CheckpointError for a model that the published code does not have.
    """
    layers, groups = written_layers(config)
    assert isinstance(config, SequenceModelConfig)
    ends = _ends(config, "model.", "encoder.0.", "decoder.0.output_transform.")
    return groups, write_entries(ends + _layer_entries(layers), tensors, where="the model")


def _layer_entries(layers: list[Layer]) -> list[Entry]:
    return [entry for i, layer in enumerate(layers) for entry in layer.entries(f"layers.{i}.")]


def _model(
    settings: Settings, prefix: str, tensors: Tensors, blocks: tuple[BlockConfig, ...]
) -> tuple[list[Entry], SequenceModelConfig]:
    """What stands around the layers, and the whole."""
    language = "decoder.0.weight" in tensors
    decoder = "decoder.0." if language else "decoder.0.output_transform."
    for name in ("encoder.0.weight", f"{decoder}weight"):
        if name not in tensors or tensors[name].ndim != 2:
            raise CheckpointError(f"{_WHERE}: the tensor {name} is missing, or no matrix")
    numbers = "encoder.0.bias" in tensors
    first, last = tensors["encoder.0.weight"], tensors[f"{decoder}weight"]
    d_model, n_outputs = (first.shape[0] if numbers else first.shape[1]), last.shape[0]
    post = blocks[-1].placement == "post"
    folded = not post and blocks[-1].norm == "batch"
    fields: dict[str, Any] = {
        "d_model": d_model,
        "layers": blocks,
        "pooling": None if language else settings.pooling,
        "norm": None if post or folded else "layer",
        "norm_eps": settings.norm_eps,
    } | ({"d_input": first.shape[1]} if numbers else {"vocab_size": first.shape[0]})
    ours: SequenceModelConfig
    if settings.is_regression or n_outputs == 1:
        ours = SequenceRegressorConfig(d_output=n_outputs, **fields)
    else:
        ours = SequenceClassifierConfig(n_classes=n_outputs, **fields)
    scale = math.sqrt(d_model) if language and not numbers and settings.rescale else 1.0
    return _ends(ours, prefix, "encoder.0.", decoder, scale=scale, folded=folded), ours


def _ends(
    config: SequenceModelConfig, prefix: str, encoder: str, decoder: str, *, scale: float = 1.0, folded: bool = False
) -> list[Entry]:
    """scale: what the published model multiplies its embedding by, and ours has in it; folded: see _folded_head"""
    embedding = (f"{encoder}weight",), ("embedding.weight",)
    table = [same(f"{encoder}weight", "embedding.weight")]
    if scale != 1.0:
        table = [Entry(*embedding, lambda weight: (weight.double() * scale).to(weight.dtype))]
    if config.d_input is not None:
        table.append(same(f"{encoder}bias", "embedding.bias"))
    if folded:
        return [*table, *_folded_head(f"{prefix}norm.norm.", decoder, config.norm_eps)]
    table += affine(decoder.removesuffix("."), "head")
    if config.final_norm is not None:
        table += affine(f"{prefix}norm.norm", "norm")
    return table


def _folded_head(norm: str, decoder: str, eps: float) -> list[Entry]:
    """A batch norm after the last layer, as part of the head: as it runs in evaluation it is a scale and a shift of
    each feature, which pooling does not touch. Trained on, it goes without the norm's statistics of each batch."""

    def fold(weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, matrix: Tensor, offset: Tensor) -> Any:
        precise = matrix.double()
        scale = weight.double() / (variance.double() + eps).sqrt()
        shifted = offset.double() + precise @ (bias.double() - mean.double() * scale)
        return (precise * scale).to(matrix.dtype), shifted.to(offset.dtype)

    norms = tuple(f"{norm}{name}" for name in ("weight", "bias", "running_mean", "running_var"))
    theirs = (*norms, f"{decoder}weight", f"{decoder}bias")
    return [
        Entry(theirs, ("head.weight", "head.bias"), fold),
        Entry((f"{norm}num_batches_tracked",), (), optional=True),
    ]


def _is_system(name: str) -> bool:
    """Whether a tensor is of a kernel, or the skip around it."""
    return ".kernel." in name or name.endswith(".D")


FORMATS = (
    Format(
        name="s4d",
        recognises=s4d.recognises,
        read=s4d.read,
        write=s4d.write,
        keeps_wide=_is_system,
    ),
    Format(
        name="s4",
        recognises=recognises,
        read=read,
        write=write,
        keeps_wide=_is_system,
    ),
)
