"""Why a model cannot be written as GGUF: what llama.cpp lacks, and where else the model can go."""

from __future__ import annotations

from statewise.checkpoints.convert.gguf_hybrids import ARCHITECTURES
from statewise.checkpoints.convert.hybrids import every_family
from statewise.checkpoints.convert.hybrids.family import Family
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.delta_net import GatedDeltaNetConfig
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.parallel import ParallelMixersConfig
from statewise.models.language_model import LanguageModelConfig

ATTENTION: set[type] = {AttentionConfig, LatentAttentionConfig, ParallelMixersConfig}


def unwritten(config: LanguageModelConfig, plain: CheckpointError, hybrid: CheckpointError) -> CheckpointError:
    """The reason that says most.

    plain: of the architectures with one kind of layer; hybrid: of those with several, empty if none has its layers
    """
    kinds = {type(block.mixer) for block in config.blocks if block.mixer is not None}
    is_plain = len(kinds) <= 1 and kinds <= {MambaConfig, Mamba2Config}
    if kinds <= {AttentionConfig} or (is_plain and all(block.mlp is None for block in config.blocks)):
        return plain
    families = [family.model_type for family in every_family() if _has(family, config)]
    other = "write it as 'transformers', or" if families else "keep it"
    if families and not any(one.family in families for one in ARCHITECTURES.values()):
        return CheckpointError(
            f"llama.cpp has no architecture of its own for this model, which transformers calls {families[0]}; "
            f"{other} in Statewise's own format"
        )
    for i, block in enumerate(config.blocks):
        mixer = block.mixer
        if isinstance(mixer, (GatedDeltaNetConfig, KDAConfig)) and mixer.d_key != mixer.d_value:
            return CheckpointError(
                f"llama.cpp needs heads whose values are as wide as their keys; layers[{i}] has d_key={mixer.d_key} "
                f"and d_value={mixer.d_value}: {other} in Statewise's own format"
            )
    if families and not kinds & ATTENTION:
        return CheckpointError(
            f"llama.cpp's hybrids have layers of attention, and this model has none: {other} in Statewise's own format"
        )
    return plain if is_plain or not str(hybrid) else hybrid


def _has(family: Family, config: LanguageModelConfig) -> bool:
    """Whether transformers' family has all of the model."""
    try:
        family.theirs(config)
    except CheckpointError:
        return False
    return True
