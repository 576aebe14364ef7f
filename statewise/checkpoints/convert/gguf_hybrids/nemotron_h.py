"""Nemotron-H: ``nemotron_h``, and ``nemotron_h_moe`` where it has experts in place of MLPs.

The least step size has no key: as llama.cpp's own converter has it, files are of models with that of the library, and
llama.cpp takes smaller steps as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.functional import softplus

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Key, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import KV, each, has, one_of
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.language_model import LanguageModelConfig

WIDTH, WIDTHS, NORMALIZED = (
    "feed_forward_length",
    ("attention.key_length", "attention.value_length"),
    "expert_weights_norm",
)
EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")  # one or both, of the same norms
LEAST, DEVIATIONS = 0.001, 2.0  # of the model; and how rare an input is that is looked at
KINDS = {"full_attention": (1, 0), "linear_attention": (0, 0), "mlp": (0, 1), "moe": (0, 1)}


def read(values: Values, shapes: Shapes, given: Config, *, wide: str) -> dict[str, Any]:
    kv_heads, widths = each(values, KV, given), each(values, WIDTH, given)
    n_heads, d_inner = given["mamba_num_heads"], values.count("ssm.inner_size")
    if d_inner % n_heads:
        raise values.wrong("ssm.inner_size", f"expected a multiple of ssm.time_step_rank, {n_heads}")
    d_head = values.count(WIDTHS[0])
    if values.count(WIDTHS[1], d_head) != d_head:
        raise values.wrong(WIDTHS[1], f"expected {WIDTHS[0]}, {d_head}")
    kinds = zip((n > 0 for n in kv_heads), (n > 0 for n in widths))
    other = {(1, 0): "full_attention", (0, 0): "linear_attention", (0, 1): wide}
    found: dict[str, Any] = {
        "layers_block_type": [other.get(kind, "attention and an MLP") for kind in kinds],
        "num_key_value_heads": one_of(values, KV, kv_heads) if any(kv_heads) else None,
        "layer_norm_epsilon": values.positive(EPS[0] if values.has(EPS[0]) else EPS[1]),
        "head_dim": d_head,
        "mamba_head_dim": d_inner // n_heads,
        "use_conv_bias": has(shapes, "ssm_conv1d.bias"),
        "mlp_bias": has(shapes, "ffn_up.bias"),
    }
    if wide == "moe":
        return found | {"norm_topk_prob": values.flag(NORMALIZED)}
    return found | {"intermediate_size": one_of(values, WIDTH, widths) if any(widths) else None}


def write(given: Config, config: LanguageModelConfig, *, wide: str) -> dict[str, Value]:
    kinds = [KINDS[name] for name in given["layers_block_type"]]
    width = given.get("moe_intermediate_size" if wide == "moe" else "intermediate_size", 0)
    values: dict[str, Value] = {
        KV: [given.get("num_key_value_heads", 0) * n for n, _ in kinds],
        WIDTH: [width * n for _, n in kinds],
        WIDTHS[0]: given.get("head_dim", 0),
        WIDTHS[1]: given.get("head_dim", 0),
        "ssm.inner_size": given.get("mamba_num_heads", 0) * given.get("mamba_head_dim", 0),
        **dict.fromkeys(EPS, float(given["layer_norm_epsilon"])),
        "rope.scaling.finetuned": False,
    }
    if wide == "moe":
        values |= {NORMALIZED: given.get("norm_topk_prob", False), "expert_shared_count": 1, "expert_gating_func": 2}
    return values


def small_steps(config: LanguageModelConfig, tensors: Mapping[str, Tensor]) -> str | None:
    """Which heads probably take steps below the least, where llama.cpp computes another model.

    dt is softplus(w x + b) of a normed input x: about b, give or take |w|.
    """
    n_heads = n_below = 0
    for i, block in enumerate(config.blocks):
        if isinstance(block.mixer, Mamba2Config):
            bias = tensors[f"layers.{i}.mixer.dynamics.dt_bias"].float()
            rows = tensors[f"layers.{i}.mixer.in_proj.weight"][-len(bias) :].float()
            spread = (rows * tensors[f"layers.{i}.mixer_norm.weight"].float()).norm(dim=1)
            n_below += int((softplus(bias - DEVIATIONS * spread) < block.mixer.dt_limit[0]).sum())
            n_heads += len(bias)
    if not n_below:
        return None
    return (
        f"llama.cpp has no least step size, and Nemotron-H has one of {LEAST}: {n_below} of {n_heads} heads can take "
        "smaller steps, and then the file continues otherwise there; Statewise reads it as the same model"
    )


def architecture(name: str, more: Mapping[str, Key], *, wide: str) -> Architecture:
    return Architecture(
        name=name,
        family="nemotron_h",
        keys={
            "embedding_length": count("hidden_size"),
            "attention.head_count": count("num_attention_heads"),
            "ssm.conv_kernel": count("conv_kernel"),
            "ssm.state_size": count("ssm_state_size"),
            "ssm.group_count": count("n_groups"),
            "ssm.time_step_rank": count("mamba_num_heads"),
            **more,
        },
        read=partial(read, wide=wide),
        write=partial(write, wide=wide),
        warns=small_steps,
        idle=(*EPS, "rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned"),  # there are no positions
        only={"expert_shared_count": 1, "expert_gating_func": 2},
    )


EXPERTS = {
    "expert_count": count("n_routed_experts"),
    "expert_used_count": count("num_experts_per_tok"),
    "expert_feed_forward_length": count("moe_intermediate_size"),
    "expert_shared_feed_forward_length": count("moe_shared_expert_intermediate_size"),
    "expert_weights_scale": number("routed_scaling_factor", 1.0),
    "expert_group_count": count("n_group", 1),
    "expert_group_used_count": count("topk_group", 1),
    "moe_latent_size": count("moe_latent_size", None),
}
DENSE = architecture("nemotron_h", {}, wide="mlp")
MOE = architecture("nemotron_h_moe", EXPERTS, wide="moe")
