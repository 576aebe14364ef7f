"""The models of Hugging Face's transformers with our weights: what `pip install transformers` runs on a CPU.

Built from the configuration and the tensors that :func:`statewise.save_as` would write, nothing is downloaded. Their
parameters are ours, the very same tensors where the layout is the same, so that both compute the same function.
"""

from __future__ import annotations

from typing import Any

import torch

from statewise.benchmark.case import Missing
from statewise.benchmark.peers import require
from statewise.checkpoints.convert import decoders
from statewise.checkpoints.convert.transformers import write
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError
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
    try:
        if decoders.writes(model.config):  # their Transformers have tables that no file holds
            raise CheckpointError("only Mamba and Mamba-2 are compared")
        fields, tensors = write(model.config, stored_tensors(model))
    except CheckpointError as error:
        raise Missing("transformers has no model with these layers and weights") from error
    mixer = model.config.blocks[0].mixer
    own = {"chunk_size": mixer.chunk_length} if isinstance(mixer, Mamba2Config) else {"use_mambapy": use_mambapy}
    no_tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))  # id 0 is a token like any other
    config = transformers.AutoConfig.for_model(**fields, **own, **no_tokens)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config)
    tensors.setdefault("lm_head.weight", model.head.weight)  # theirs has it also where it is tied
    built.load_state_dict({name: tensor.detach() for name, tensor in tensors.items()}, strict=True, assign=True)
    built.tie_weights()
    return built.train(model.training)
