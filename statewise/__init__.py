"""State-space sequence models: train, stream, generate and understand them, on any machine.

The names below are imported when they are first used, so that ``import statewise`` costs nothing:

>>> import statewise as sw
>>> sw.MLPConfig(expand=2).expand
2.0
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0rc1"

# The one list of public names. Type checkers and editors follow it; what runs reads it as text, and imports by it.
if TYPE_CHECKING:
    from statewise import checkpoints as checkpoints
    from statewise import configuration as configuration
    from statewise import data as data
    from statewise import errors as errors
    from statewise import estimation as estimation
    from statewise import evaluate as evaluate
    from statewise import export as export
    from statewise import generation as generation
    from statewise import hippo as hippo
    from statewise import insight as insight
    from statewise import kernels as kernels
    from statewise import mixers as mixers
    from statewise import models as models
    from statewise import native as native
    from statewise import operators as operators
    from statewise import plots as plots
    from statewise import predict as predict
    from statewise import reproduce as reproduce
    from statewise import semiseparable as semiseparable
    from statewise import systems as systems
    from statewise import training as training
    from statewise.checkpoints import load as load
    from statewise.checkpoints import save as save
    from statewise.checkpoints.convert import save_as as save_as
    from statewise.data.labelled import LabelledDataConfig as LabelledDataConfig
    from statewise.data.labelled import open_labelled as open_labelled
    from statewise.data.labelled_text import LabelledTextDataConfig as LabelledTextDataConfig
    from statewise.data.long_range import LongRangeDataConfig as LongRangeDataConfig
    from statewise.data.long_range import open_long_range as open_long_range
    from statewise.data.memory_tasks import MemoryDataConfig as MemoryDataConfig
    from statewise.data.series import SeriesDataConfig as SeriesDataConfig
    from statewise.data.series import open_series as open_series
    from statewise.data.synthetic_languages.config import AssociativeRecallConfig as AssociativeRecallConfig
    from statewise.data.synthetic_languages.config import InductionHeadConfig as InductionHeadConfig
    from statewise.data.synthetic_languages.config import LongInductionHeadConfig as LongInductionHeadConfig
    from statewise.data.synthetic_languages.config import MultiQueryRecallConfig as MultiQueryRecallConfig
    from statewise.data.synthetic_languages.config import SelectiveCopyingConfig as SelectiveCopyingConfig
    from statewise.data.synthetic_languages.config import SyntheticLanguageConfig as SyntheticLanguageConfig
    from statewise.data.text import TextDataConfig as TextDataConfig
    from statewise.data.tokenizers import ByteTokenizer as ByteTokenizer
    from statewise.data.tokenizers import FileTokenizer as FileTokenizer
    from statewise.decoding import Decoder as Decoder
    from statewise.errors import CheckpointError as CheckpointError
    from statewise.errors import ConfigError as ConfigError
    from statewise.errors import DataError as DataError
    from statewise.errors import InputError as InputError
    from statewise.errors import StatewiseError as StatewiseError
    from statewise.errors import TrainingError as TrainingError
    from statewise.estimation import LinearGaussian as LinearGaussian
    from statewise.estimation import NonlinearGaussian as NonlinearGaussian
    from statewise.evaluate import evaluate_questions as evaluate_questions
    from statewise.evaluate import open_tasks as open_tasks
    from statewise.explain import explain as explain
    from statewise.export import export_onnx as export_onnx
    from statewise.export import export_step as export_step
    from statewise.generation import generate as generate
    from statewise.generation.chat import Chat as Chat
    from statewise.generation.opening import open_tokenizer as open_tokenizer
    from statewise.integrations.sklearn import StatewiseClassifier as StatewiseClassifier
    from statewise.integrations.sklearn import StatewiseForecaster as StatewiseForecaster
    from statewise.integrations.sklearn import StatewiseRegressor as StatewiseRegressor
    from statewise.kernels.exact import exact as exact
    from statewise.mixers.attention import AttentionConfig as AttentionConfig
    from statewise.mixers.base import Mixer as Mixer
    from statewise.mixers.base import MixerConfig as MixerConfig
    from statewise.mixers.channel_mix import ChannelMixConfig as ChannelMixConfig
    from statewise.mixers.cross_attention import CrossAttentionConfig as CrossAttentionConfig
    from statewise.mixers.cross_attention import LinearCrossAttentionConfig as LinearCrossAttentionConfig
    from statewise.mixers.delta_net import DeltaNetConfig as DeltaNetConfig
    from statewise.mixers.delta_net import GatedDeltaNetConfig as GatedDeltaNetConfig
    from statewise.mixers.gated_convolution import GatedConvolutionConfig as GatedConvolutionConfig
    from statewise.mixers.gated_linear_attention import GLAConfig as GLAConfig
    from statewise.mixers.gated_recurrence import GRUConfig as GRUConfig
    from statewise.mixers.gated_recurrence import LSTMConfig as LSTMConfig
    from statewise.mixers.gss import GSSConfig as GSSConfig
    from statewise.mixers.h3 import H3Config as H3Config
    from statewise.mixers.hippo_rnn import HiPPORNNConfig as HiPPORNNConfig
    from statewise.mixers.kalman import KalmanConfig as KalmanConfig
    from statewise.mixers.kimi_delta_attention import KDAConfig as KDAConfig
    from statewise.mixers.latent_attention import LatentAttentionConfig as LatentAttentionConfig
    from statewise.mixers.linear_attention import LinearAttentionConfig as LinearAttentionConfig
    from statewise.mixers.lmu import LMUConfig as LMUConfig
    from statewise.mixers.lssl import LSSLConfig as LSSLConfig
    from statewise.mixers.mamba import MambaConfig as MambaConfig
    from statewise.mixers.mamba2 import Mamba2Config as Mamba2Config
    from statewise.mixers.mamba3 import Mamba3Config as Mamba3Config
    from statewise.mixers.masked_attention import StructuredMaskedAttentionConfig as StructuredMaskedAttentionConfig
    from statewise.mixers.mlstm import MLSTMConfig as MLSTMConfig
    from statewise.mixers.parallel import ParallelMixersConfig as ParallelMixersConfig
    from statewise.mixers.rate import set_rate as set_rate
    from statewise.mixers.rg_lru import RGLRUConfig as RGLRUConfig
    from statewise.mixers.rwkv7 import RWKV7Config as RWKV7Config
    from statewise.mixers.s4 import S4Config as S4Config
    from statewise.mixers.s4d import S4DConfig as S4DConfig
    from statewise.mixers.s4d_reduction import reduce_s4d as reduce_s4d
    from statewise.mixers.s5 import S5Config as S5Config
    from statewise.mixers.temporal_convolution import TCNConfig as TCNConfig
    from statewise.mixers.temporal_convolution import tcn_layers as tcn_layers
    from statewise.models.as_layer import as_layer as as_layer
    from statewise.models.block import BlockConfig as BlockConfig
    from statewise.models.classifier import SequenceClassifierConfig as SequenceClassifierConfig
    from statewise.models.encoder_decoder import with_memory as with_memory
    from statewise.models.forecaster import ForecasterConfig as ForecasterConfig
    from statewise.models.hybrid import hybrid_layers as hybrid_layers
    from statewise.models.language_model import LanguageModel as LanguageModel
    from statewise.models.language_model import LanguageModelConfig as LanguageModelConfig
    from statewise.models.language_model import LanguageModelState as LanguageModelState
    from statewise.models.mlp import MLPConfig as MLPConfig
    from statewise.models.moe import MoEConfig as MoEConfig
    from statewise.models.pair_classifier import PairClassifierConfig as PairClassifierConfig
    from statewise.models.reduction import reduce_model as reduce_model
    from statewise.models.regressor import SequenceRegressorConfig as SequenceRegressorConfig
    from statewise.models.rewinding import RewindableState as RewindableState
    from statewise.models.rewinding import rewindable as rewindable
    from statewise.models.shared_transformer import SharedTransformerConfig as SharedTransformerConfig
    from statewise.models.through_time import backward_in_pieces as backward_in_pieces
    from statewise.operators.base import Operator as Operator
    from statewise.operators.bidirectional import bidirectional as bidirectional
    from statewise.operators.causal_convolution import CausalConvolution as CausalConvolution
    from statewise.operators.delta_rule import DeltaRule as DeltaRule
    from statewise.operators.delta_rule import DiagonalPlusRankOne as DiagonalPlusRankOne
    from statewise.operators.dense import DenseLTI as DenseLTI
    from statewise.operators.dense import DenseLTV as DenseLTV
    from statewise.operators.diagonal import DiagonalLTI as DiagonalLTI
    from statewise.operators.diagonal_low_rank import DiagonalPlusLowRank as DiagonalPlusLowRank
    from statewise.operators.diagonal_mimo import DiagonalMIMO as DiagonalMIMO
    from statewise.operators.selective import SelectiveDiagonal as SelectiveDiagonal
    from statewise.operators.ssd import SSD as SSD
    from statewise.predict.predictor import predictor as predictor
    from statewise.systems import ContinuousSystem as ContinuousSystem
    from statewise.systems import DiscreteSystem as DiscreteSystem
    from statewise.systems import TimeVaryingSystem as TimeVaryingSystem
    from statewise.systems import discretize as discretize
    from statewise.systems import mass_spring_damper as mass_spring_damper
    from statewise.training.call import train as train
    from statewise.training.config import BudgetConfig as BudgetConfig
    from statewise.training.config import OptimizerConfig as OptimizerConfig
    from statewise.training.config import ParallelConfig as ParallelConfig
    from statewise.training.config import ReportingConfig as ReportingConfig
    from statewise.training.config import RunConfig as RunConfig
    from statewise.training.config import ScheduleConfig as ScheduleConfig
    from statewise.training.config import TrainConfig as TrainConfig
    from statewise.training.several import train_several as train_several

# Name: the module that it is imported from, which is "statewise" for a part of the package
_LIST = re.compile(rb"^    from (\S+) import (\w+) as \2\r?$", re.MULTILINE)
_HOME = {name.decode(): home.decode() for home, name in _LIST.findall(pkgutil.get_data(__name__, "__init__.py") or b"")}
# Those of an extra are listed where it is installed, so that ``from statewise import *`` and ``help`` need none.
_NEEDS = {"statewise.integrations.sklearn": "sklearn"}
_LISTED = [name for name, home in _HOME.items() if home not in _NEEDS or importlib.util.find_spec(_NEEDS[home])]
__all__ = sorted((*_LISTED, "__version__"))


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        import difflib

        close = [f"{name}Config"] if f"{name}Config" in _HOME else difflib.get_close_matches(name, _HOME, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'statewise' has no attribute {name!r}{hint}")
    if _HOME[name] == "statewise":
        return importlib.import_module(f"statewise.{name}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
