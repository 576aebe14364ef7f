"""Names for JSON: which classes a ``"type"`` key in a file may name. Code uses the classes themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statewise.configuration import TYPE_KEY, from_dict, to_dict
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.channel_mix import ChannelMixConfig
from statewise.mixers.cross_attention import CrossAttentionConfig, LinearCrossAttentionConfig
from statewise.mixers.delta_net import DeltaNetConfig, GatedDeltaNetConfig
from statewise.mixers.gated_convolution import GatedConvolutionConfig
from statewise.mixers.gated_linear_attention import GLAConfig
from statewise.mixers.gated_recurrence import GRUConfig, LSTMConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.hippo_rnn import HiPPORNNConfig
from statewise.mixers.kalman import KalmanConfig
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.mixers.lmu import LMUConfig
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.mamba3 import Mamba3Config
from statewise.mixers.masked_attention import StructuredMaskedAttentionConfig
from statewise.mixers.mlstm import MLSTMConfig
from statewise.mixers.parallel import ParallelMixersConfig
from statewise.mixers.rg_lru import RGLRUConfig
from statewise.mixers.rwkv7 import RWKV7Config
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.mixers.s5 import S5Config
from statewise.mixers.temporal_convolution import TCNConfig
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.models.shared_transformer import SharedTransformerConfig
from statewise.models.structural import StructuralForecasterConfig

# A new family of mixers, or a new kind of model, is one line here. Who has a class of their own adds it before a file
# that names it is read: CONFIG_TYPES["MyModelConfig"] = MyModelConfig.
CONFIG_TYPES: dict[str, type] = {
    "AttentionConfig": AttentionConfig,
    "BlockConfig": BlockConfig,
    "ChannelMixConfig": ChannelMixConfig,
    "CrossAttentionConfig": CrossAttentionConfig,
    "DeltaNetConfig": DeltaNetConfig,
    "ForecasterConfig": ForecasterConfig,
    "GLAConfig": GLAConfig,
    "GRUConfig": GRUConfig,
    "GSSConfig": GSSConfig,
    "GatedConvolutionConfig": GatedConvolutionConfig,
    "GatedDeltaNetConfig": GatedDeltaNetConfig,
    "H3Config": H3Config,
    "HiPPORNNConfig": HiPPORNNConfig,
    "KDAConfig": KDAConfig,
    "KalmanConfig": KalmanConfig,
    "LMUConfig": LMUConfig,
    "LSSLConfig": LSSLConfig,
    "LSTMConfig": LSTMConfig,
    "LanguageModelConfig": LanguageModelConfig,
    "LatentAttentionConfig": LatentAttentionConfig,
    "LinearAttentionConfig": LinearAttentionConfig,
    "LinearCrossAttentionConfig": LinearCrossAttentionConfig,
    "MLPConfig": MLPConfig,
    "MLSTMConfig": MLSTMConfig,
    "Mamba2Config": Mamba2Config,
    "Mamba3Config": Mamba3Config,
    "MambaConfig": MambaConfig,
    "MoEConfig": MoEConfig,
    "ParallelMixersConfig": ParallelMixersConfig,
    "PairClassifierConfig": PairClassifierConfig,
    "RGLRUConfig": RGLRUConfig,
    "RWKV7Config": RWKV7Config,
    "S4Config": S4Config,
    "S4DConfig": S4DConfig,
    "S5Config": S5Config,
    "SequenceClassifierConfig": SequenceClassifierConfig,
    "SequenceRegressorConfig": SequenceRegressorConfig,
    "SharedTransformerConfig": SharedTransformerConfig,
    "StructuralForecasterConfig": StructuralForecasterConfig,
    "StructuredMaskedAttentionConfig": StructuredMaskedAttentionConfig,
    "TCNConfig": TCNConfig,
}


def model_to_dict(config: ModelConfig) -> dict[str, Any]:
    """A model's config as JSON data, with its own name under ``"type"``.

    Errors:  ConfigError for a part that is not in ``CONFIG_TYPES``: it could be written, and never be read.
    """
    data = {TYPE_KEY: type(config).__name__, **to_dict(config)}
    model_from_dict(data)
    return data


def model_from_dict(data: Any, where: str = "model") -> ModelConfig:
    """The config that ``data`` describes; the inverse of :func:`model_to_dict`. Its errors begin with ``where``.

    Without a "type" it is a language model's.

    >>> model_from_dict({"vocab_size": 257, "d_model": 64, "layers": [{"type": "Mamba2Confg"}]})
    Traceback (most recent call last):
    statewise.errors.ConfigError: model.layers.0.type='Mamba2Confg' is unknown here; did you mean 'Mamba2Config', ...
    """
    data = with_default_type(data, LanguageModelConfig)
    return from_dict(ModelConfig, data, types=CONFIG_TYPES, where=where)  # type: ignore[type-abstract]


def with_default_type(data: Any, cls: type) -> Any:
    """``data`` with the name of the class under "type" if it is an object without one."""
    return {TYPE_KEY: cls.__name__, **data} if isinstance(data, Mapping) and TYPE_KEY not in data else data
