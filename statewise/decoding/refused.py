"""What a block or a model may have that the step in C does not."""

from __future__ import annotations

from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig


def block_refusal(block: BlockConfig) -> str | None:
    """Why a block has no step, but for what its mixer says; for behind "layers[i] "."""
    if block.branch_scale != 1.0 and block.placement == "post":
        return 'has a branch_scale and is placed "post", but the step scales the stream that norms are before'
    return None


def model_refusal(config: LanguageModelConfig) -> str | None:
    """Why a model has no step, but for what its layers say."""
    scales = {block.branch_scale for block in config.blocks}
    if len(scales) > 1 or min(scales) <= 0.0:
        return f"its layers have branch_scale {sorted(scales)}, but the step has one above 0 for all"
    scaled = scales != {1.0} or config.logit_scale != 1.0
    return "it has scales and no last norm, in which the step has them" if scaled and config.norm is None else None
