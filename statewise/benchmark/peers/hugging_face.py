"""The models of Hugging Face's transformers with our weights: what `pip install transformers` runs on a CPU.

Built from a configuration, nothing is downloaded. Their parameters are ours, the very same tensors where the layout
is the same, so that both compute the same function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from statewise.benchmark.case import Missing
from statewise.benchmark.peers import require
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.language_model import LanguageModel


def hugging_face(model: LanguageModel, *, use_mambapy: bool = False) -> Any:
    """Their model of a language model of Mamba or Mamba-2 layers alone.

    use_mambapy: the scan of Mamba by mambapy instead of a loop, where a gradient is asked for or not

    Errors:  Missing if transformers is not installed, or has no model of these layers.
    """
    transformers = require("transformers")
    transformers.logging.set_verbosity_error()  # it warns of every kernel that needs a GPU
    if use_mambapy:
        require("mambapy")
    mixers = {type(block.mixer) for block in model.config.blocks}
    if mixers == {MambaConfig}:
        config = _mamba(transformers, model, use_mambapy)
        theirs, renamed = transformers.MambaForCausalLM, dict(_mamba_tensors(model))
    elif mixers == {Mamba2Config}:
        config, theirs, renamed = (
            _mamba2(transformers, model),
            transformers.Mamba2ForCausalLM,
            dict(_mamba2_tensors(model)),
        )
    else:
        raise Missing("transformers has no model of these layers with these weights")
    with torch.device("meta"):
        built = theirs(config)
    renamed |= {"backbone.embeddings.weight": model.embedding.weight, "lm_head.weight": model.head.weight}
    renamed |= {f"backbone.norm_f.{name}": tensor for name, tensor in model.norm.named_parameters()}
    built.load_state_dict({name: tensor.detach() for name, tensor in renamed.items()}, strict=True, assign=True)
    built.tie_weights()
    return built.train(model.training)


def _shared(model: LanguageModel) -> dict[str, Any]:
    return {
        "vocab_size": model.config.vocab_size,
        "hidden_size": model.config.d_model,
        "num_hidden_layers": len(model.layers),
        "layer_norm_epsilon": model.config.norm_eps,
        "tie_word_embeddings": model.config.tie_embeddings,
        "pad_token_id": None,  # id 0 is a token like any other
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _mamba(transformers: Any, model: LanguageModel, use_mambapy: bool) -> Any:
    mixer = model.config.blocks[0].mixer
    assert isinstance(mixer, MambaConfig)
    return transformers.MambaConfig(
        state_size=mixer.d_state,
        expand=mixer.expand,
        conv_kernel=mixer.n_taps,
        use_bias=mixer.bias,
        use_conv_bias=mixer.convolution_bias,
        time_step_rank=mixer.dt_rank or "auto",
        use_mambapy=use_mambapy,
        **_shared(model),
    )


def _mamba2(transformers: Any, model: LanguageModel) -> Any:
    mixer = model.config.blocks[0].mixer
    assert isinstance(mixer, Mamba2Config)
    d_inner = mixer.expand * model.config.d_model
    return transformers.Mamba2Config(
        state_size=mixer.d_state,
        expand=mixer.expand,
        conv_kernel=mixer.n_taps,
        n_groups=mixer.n_groups,
        head_dim=mixer.d_head,
        num_heads=d_inner // mixer.d_head,
        chunk_size=mixer.chunk_length,
        use_bias=mixer.bias,
        use_conv_bias=mixer.convolution_bias,
        **_shared(model),
    )


def _common(prefix: str, block: Any) -> Iterator[tuple[str, Tensor]]:
    """What both have: a layer's norm and projections, the convolution (its newest tap last), A and D."""
    mixer = block.mixer
    yield f"{prefix}.norm.weight", block.mixer_norm.weight
    for name in ("in_proj", "out_proj"):
        for part, tensor in getattr(mixer, name).named_parameters():
            yield f"{prefix}.mixer.{name}.{part}", tensor
    yield f"{prefix}.mixer.conv1d.weight", mixer.convolution.weight.flip(-1).unsqueeze(1).contiguous()
    if mixer.convolution.bias is not None:
        yield f"{prefix}.mixer.conv1d.bias", mixer.convolution.bias
    yield f"{prefix}.mixer.A_log", mixer.dynamics.A_log
    yield f"{prefix}.mixer.D", mixer.dynamics.D


def _mamba_tensors(model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    for i, block in enumerate(model.blocks):
        mixer: Any = block.mixer
        prefix = f"backbone.layers.{i}"
        yield from _common(prefix, block)
        yield f"{prefix}.mixer.x_proj.weight", mixer.x_proj.weight
        yield f"{prefix}.mixer.dt_proj.weight", mixer.dt_proj.weight
        yield f"{prefix}.mixer.dt_proj.bias", mixer.dynamics.dt_bias


def _mamba2_tensors(model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    for i, block in enumerate(model.blocks):
        mixer: Any = block.mixer
        prefix = f"backbone.layers.{i}"
        yield from _common(prefix, block)
        yield f"{prefix}.mixer.dt_bias", mixer.dynamics.dt_bias
        yield f"{prefix}.mixer.norm.weight", mixer.norm.weight
