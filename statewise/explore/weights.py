"""A small language model as the numbers that the page computes with."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.extras import refuse_extras
from statewise.errors import CheckpointError, InputError
from statewise.mixers.h3 import H3, H3Config
from statewise.mixers.mamba2 import Mamba2, Mamba2Config
from statewise.mixers.prepared import wide
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModel
from statewise.models.moe import MoEConfig

LARGEST = 2_000_000  # parameters: eleven megabytes of page, and a tenth of a second a token


def refusal(model: LanguageModel) -> str | None:
    """Why the page cannot run this model; None if it can.

    >>> import statewise as sw
    >>> refusal(sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(sw.S4DConfig(d_state=4),)).build())
    'its layer 0 is S4DConfig, and the page runs Mamba-2, and H3 with d_head=1'
    """
    config = model.config
    if config.max_positions is not None or config.d_embedding is not None or config.norm is None:
        return "it has learned positions, a narrower embedding or no last norm"
    try:
        refuse_extras(config, "the page")
    except CheckpointError as error:
        return str(error)
    for number, block in enumerate(config.blocks):
        reason = _refused_block(block)
        if reason is not None:
            return f"its layer {number} {reason}"
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    if n_parameters > LARGEST:
        return f"it has {n_parameters:,} parameters, and the page runs at most {LARGEST:,}"
    return None


def _refused_block(block: BlockConfig) -> str | None:
    mixer, mlp = block.mixer, block.mlp
    if isinstance(mixer, Mamba2Config):
        if mixer.norm_before_gate or mixer.dt_limit != Mamba2Config().dt_limit:
            return "has norm_before_gate or dt_limit, which the page's Mamba-2 does not have"
    elif not (isinstance(mixer, H3Config) and mixer.d_head == 1):
        return f"is {type(mixer).__name__}, and the page runs Mamba-2, and H3 with d_head=1"
    if block.placement != "pre" or block.norm == "batch":
        return f"has placement={block.placement!r} and norm={block.norm!r}; the page has pre, with rms or layer"
    assert not isinstance(mlp, MoEConfig)  # or refused
    if mlp is not None and (mlp.gated or mlp.activation != "gelu_tanh"):
        return "has an MLP other than the plain one with gelu_tanh"
    return None


@torch.no_grad()
def spec(model: LanguageModel, name: str, **more: Any) -> dict[str, Any]:
    """The model as JSON data: sizes, and tensors in base64 of little-endian float32.

    H3's two systems come as the discrete ones that they are while the model reads.

    Errors:  InputError for a model that the page cannot run.
    """
    reason = refusal(model)
    if reason is not None:
        raise InputError(
            f"the page cannot run {name} by itself: {reason}; open it with statewise explore RUN, without --out"
        )
    config, tensors, layers = model.config, {}, []
    for key, tensor in model.state_dict().items():
        if key == "head.weight" and config.tie_embeddings:
            continue
        if ".dynamics.diagonal" not in key and ".readout" not in key and "shift_" not in key:
            tensors[key] = _text(tensor)
    for number, (block, settings) in enumerate(zip(model.blocks, config.blocks)):
        mixer = block.mixer
        if isinstance(mixer, H3):
            for part, tensor in _systems(mixer).items():
                tensors[f"layers.{number}.mixer.{part}"] = _text(tensor)
        layer = {"mixer": _sizes(mixer), "norm": settings.norm, "norm_eps": settings.norm_eps}
        layers.append({**layer, "mlp": settings.mlp is not None})
    sizes = {"vocab_size": config.vocab_size, "d_model": config.d_model}
    norm = {"norm": config.norm, "norm_eps": config.norm_eps}
    return {"name": name, **sizes, **norm, "layers": layers, "tensors": tensors, **more}


def _sizes(mixer: Any) -> dict[str, Any]:
    config = mixer.config
    if isinstance(mixer, Mamba2):
        own = {name: getattr(config, name) for name in ("d_head", "d_state", "n_groups", "n_taps", "norm_eps")}
        return {"type": "mamba2", "n_heads": mixer.n_heads, "norm_groups": config.norm_groups or config.n_groups, **own}
    return {"type": "h3", "d_model": mixer.d_model, "d_shift": mixer.d_shift, "n_pairs": config.d_state // 2}


def _systems(mixer: H3) -> dict[str, Tensor]:
    shift, diagonal = mixer.build_operators()
    parts = {name: torch.view_as_real(getattr(diagonal, name)) for name in ("A", "B", "C")}
    return {"taps": shift.taps, "D": diagonal.D, **parts}  # type: ignore[attr-defined]


def _text(tensor: Tensor) -> str:
    return base64.b64encode(wide(tensor).float().contiguous().numpy().astype("<f4").tobytes()).decode()
