"""Hybrids as their makers publish them, where names and fields differ from those that transformers saves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
import torch
from hybrid_cases import Case, ids, loaded, saved
from safetensors.torch import load_file, save_file
from test_convert_delta import FULL, KIMI, LINEAR, MODELS, SMALL
from test_convert_griffin import XLSTM
from torch import Tensor

Tensors = dict[str, Tensor]
Config = dict[str, Any]


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def qwen3_next(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """With a head for the token after the next, and positions outside of a group."""
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope["rope_theta"], "partial_rotary_factor": 0.25, "full_attention_interval": 4}
    del config["layer_types"]
    return config, tensors | {"mtp.fc.weight": torch.zeros(3, 3)}


def olmo_hybrid(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """By the names of its modules there."""
    tensors = renamed(tensors, ".attention_layer_norm.", ".input_layernorm.")
    return config, renamed(tensors, ".feedforward_layer_norm.", ".post_attention_layernorm.")


def kimi_linear(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """The linear layers in a group of their own, counted from 1; the dense layer's MLP by another name."""
    group = {"full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": config.pop("linear_head_dim")}
    group |= {"num_heads": config.pop("linear_num_heads")}
    group |= {"short_conv_kernel_size": config.pop("linear_conv_kernel_dim")}
    del config["layer_types"], config["mlp_layer_types"]
    return config | {"linear_attn_config": group}, renamed(tensors, "layers.0.block_sparse_moe.", "layers.0.mlp.")


def lfm2(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    config |= {"block_ff_dim": config.pop("intermediate_size"), "tie_embedding": config.pop("tie_word_embeddings")}
    config |= {"rope_theta": config.pop("rope_parameters")["rope_theta"]}
    del config["layer_types"]
    return config, tensors


def xlstm(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Several maps in one."""
    for layer in range(config["num_blocks"]):
        for parts, whole in (
            (("q.weight", "k.weight", "v.weight", "ogate_preact.weight"), "qkv_opreact.weight"),
            (("igate_preact.weight", "fgate_preact.weight"), "ifgate_preact.weight"),
            (("igate_preact.bias", "fgate_preact.bias"), "ifgate_preact.bias"),
        ):
            within = f"backbone.blocks.{layer}.mlstm_layer."
            tensors[within + whole] = torch.cat([tensors.pop(within + part) for part in parts])
        within = f"backbone.blocks.{layer}.ffn."
        halves = [tensors.pop(f"{within}{name}.weight") for name in ("proj_up_gate", "proj_up")]
        tensors[f"{within}proj_up_gate_z.weight"] = torch.cat(halves)
    return config | {"weight_mode": "fused"}, tensors


CASES: dict[str, tuple[Case, Callable[[Config, Tensors], tuple[Config, Tensors]]]] = {
    "qwen3_next": (MODELS["qwen3_next"], qwen3_next),
    "olmo_hybrid": (("olmo_hybrid", SMALL | {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL]}), olmo_hybrid),
    "kimi_linear": (("kimi_linear", KIMI), kimi_linear),
    "lfm2": (("lfm2", SMALL | {"num_hidden_layers": 2, "full_attn_idxs": [1], "block_multiple_of": 4}), lfm2),
    "xlstm": (("xlstm", XLSTM), xlstm),
}


@pytest.mark.parametrize("name", CASES)
def test_as_published(name: str, tmp_path: Path) -> None:
    case, change = CASES[name]
    (tmp_path / "saved").mkdir()
    folder, other = saved(case, tmp_path / "saved"), tmp_path / "published"
    shutil.copytree(folder, other)
    config = json.loads((folder / "config.json").read_text())
    config, tensors = change(config, load_file(folder / "model.safetensors"))
    (other / "config.json").write_text(json.dumps(config))
    save_file(tensors, other / "model.safetensors")
    one, another = loaded(folder), loaded(other)
    assert one.config == another.config
    assert torch.equal(one(ids(1, 9))[0], another(ids(1, 9))[0])
