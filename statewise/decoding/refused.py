"""What a block or a model may have that the step in C does not."""

from __future__ import annotations

from statewise.mixers.activations import ACTIVATIONS
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

NO_STEP = ("relu2",)  # activations
assert set(NO_STEP) <= set(ACTIVATIONS)


def block_refusal(block: BlockConfig) -> str | None:
    """Why a block has no step, but for what its mixer says; for behind "layers[i] "."""
    if block.mixer is None:
        return "has no mixer, but the step begins with one"
    if block.placement == "after":
        return 'is placed "after", but the step has norms before the branches or after the sums'
    if block.branch_scale != 1.0:
        return f"has branch_scale={block.branch_scale:g}, but the step adds each branch as it is"
    if block.mlp is None:
        return None
    if not isinstance(block.mlp, MLPConfig):
        return f"has a {type(block.mlp).__name__.removesuffix('Config')}, but the step has one MLP"
    if (block.mlp.gate_scale, block.mlp.output_scale) != (1.0, 1.0):
        return "has an MLP with scales, but the step has none"
    return (
        f"has the activation {block.mlp.activation}, which the step does not"
        if block.mlp.activation in NO_STEP
        else None
    )


def model_refusal(config: LanguageModelConfig) -> str | None:
    """Why a model has no step, but for what its layers say."""
    scales = {"embedding_scale": config.embedding_scale, "logit_scale": config.logit_scale}
    return next((f"{name}={scale:g}, but the step has 1" for name, scale in scales.items() if scale != 1.0), None)
