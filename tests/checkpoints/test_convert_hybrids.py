"""Bamba, Granite 4, Falcon-H1, Nemotron-H, Jamba and Zamba2 as transformers saves them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
import torch
from hybrid_cases import CHECKS, Case, loaded, saved, theirs_on_cpu
from hybrid_models import MODELS as HYBRIDS
from safetensors.torch import load_file
from test_convert_delta import MODELS as DELTA
from test_convert_griffin import MODELS as GRIFFIN
from test_convert_lfm2 import MODELS as LFM2

import statewise as sw
from statewise.checkpoints.convert import load_layer, save_as
from statewise.checkpoints.convert.gguf_entries import write_model
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.decoding import refusal
from statewise.errors import CheckpointError

MAMBA = {"mamba_n_heads": 6, "mamba_d_state": 5, "mamba_chunk_size": 8}
SMALL: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3, "num_attention_heads": 6}
SMALL |= {"num_key_value_heads": 2} | MAMBA
TYPES = ["linear_attention", "full_attention", "linear_attention"]
FALCON = SMALL | {"mamba_d_ssm": 30, "mamba_n_heads": 6, "num_hidden_layers": 2}
NEMOTRON: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_attention_heads": 6, "head_dim": 5}
NEMOTRON |= {"num_key_value_heads": 2, "mamba_num_heads": 6, "mamba_head_dim": 5, "ssm_state_size": 7, "n_groups": 3}
NEMOTRON |= {"layers_block_type": ["linear_attention", "mlp", "full_attention"], "moe_intermediate_size": 13}
NEMOTRON |= {"moe_shared_expert_intermediate_size": 19, "chunk_size": 8}
ZAMBA: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_attention_heads": 6, "adapter_rank": 5}
ZAMBA |= {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "num_hidden_layers": 4}
ZAMBA |= {"mamba_d_state": 7, "n_mamba_heads": 6, "chunk_size": 8}
JAMBA: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 4, "num_attention_heads": 6}
JAMBA |= {
    "num_key_value_heads": 2,
    "mamba_d_state": 5,
    "num_experts": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
}
MODELS: dict[str, Case] = {
    "bamba": ("bamba", SMALL | {"attn_layer_indices": [1]}),
    "bamba, no attention": ("bamba", SMALL | {"mamba_n_groups": 3, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "bamba, options": (
        "bamba",
        SMALL
        | {"attn_layer_indices": [0, 2], "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True}
        | {"mamba_conv_bias": False, "mamba_d_conv": 3, "mamba_expand": 3, "num_attention_heads": 4, "hidden_size": 32}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "time_step_limit": [0.1, 0.9]},
    ),
    "granite": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES, "shared_intermediate_size": 29, "num_local_experts": 4, "attention_multiplier": 0.3},
    ),
    "granite, dense": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES[1:], "num_hidden_layers": 2, "num_local_experts": 0, "position_embedding_type": "rope"}
        | {"attention_multiplier": 0.7, "tie_word_embeddings": True, "shared_intermediate_size": 31},
    ),
    "granite, dense, multipliers": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES, "num_local_experts": 0, "embedding_multiplier": 12, "logits_scaling": 10.0}
        | {"residual_multiplier": 0.22, "attention_multiplier": 0.3, "shared_intermediate_size": 31},
    ),
    "granite, options": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES, "num_local_experts": 7, "num_experts_per_tok": 3, "embedding_multiplier": 12}
        | {"logits_scaling": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625}
        | {"attention_bias": True, "mamba_proj_bias": True, "shared_intermediate_size": 17, "mamba_n_groups": 2},
    ),
    "granite, dense, wide groups": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES[:2], "num_hidden_layers": 2, "num_local_experts": 0, "shared_intermediate_size": 23}
        | {"attention_multiplier": 0.4, "mamba_n_groups": 3, "mamba_d_conv": 2, "attention_bias": True},
    ),
    "granite, one expert each": (
        "granitemoehybrid",
        SMALL
        | {"layer_types": TYPES[1:], "num_hidden_layers": 2, "num_local_experts": 3, "num_experts_per_tok": 1}
        | {"attention_multiplier": 0.5, "shared_intermediate_size": 11, "tie_word_embeddings": True},
    ),
    "falcon": ("falcon_h1", FALCON),
    "falcon, multipliers": (
        "falcon_h1",
        FALCON
        | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 3, "key_multiplier": 0.39}
        | {"ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.36], "mlp_multipliers": [0.88, 0.58], "head_dim": 6}
        | {"embedding_multiplier": 5.6, "lm_head_multiplier": 0.03, "attention_out_multiplier": 0.93}
        | {"attention_in_multiplier": 0.8, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.23},
    ),
    "falcon, options": (
        "falcon_h1",
        FALCON
        | {"mamba_rms_norm": True, "attention_bias": True, "mlp_bias": True, "projectors_bias": True}
        | {"mamba_d_ssm": None, "tie_word_embeddings": True, "mamba_conv_bias": False},
    ),
    "nemotron": ("nemotron_h", NEMOTRON),
    "nemotron, narrow": (
        "nemotron_h",
        NEMOTRON
        | {
            "layers_block_type": ["mlp", "linear_attention", "full_attention"],
            "n_groups": 2,
            "mlp_bias": True,
            "ssm_state_size": 4,
        },
    ),
    "nemotron, more attention": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["full_attention", "linear_attention", "full_attention", "mlp"], "head_dim": 8}
        | {"use_conv_bias": False, "mlp_hidden_act": "silu"},
    ),
    "nemotron, one expert each": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["moe", "linear_attention", "full_attention"], "n_routed_experts": 4}
        | {"num_experts_per_tok": 1, "norm_topk_prob": False, "ssm_state_size": 4},
    ),
    "nemotron, experts": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 6}
        | {"num_experts_per_tok": 3, "routed_scaling_factor": 2.5, "n_group": 3, "topk_group": 2},
    ),
    "nemotron, options": (
        "nemotron_h",
        NEMOTRON
        | {"layers_block_type": ["moe", "linear_attention", "mlp", "full_attention"], "n_routed_experts": 5}
        | {"moe_latent_size": 11, "mlp_bias": True, "use_bias": True, "use_conv_bias": False, "norm_topk_prob": False}
        | {"mlp_hidden_act": "silu", "time_step_min": 0.05, "n_groups": 1},
    ),
    "zamba": ("zamba2", ZAMBA),
    "zamba, adapters": (
        "zamba2",
        ZAMBA
        | {"num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True, "mamba_ngroups": 3}
        | {"layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"]},
    ),
    "zamba, options": (
        "zamba2",
        ZAMBA
        | {"add_bias_linear": True, "hidden_act": "silu", "time_step_min": 0.02}
        | {
            "num_hidden_layers": 3,
            "adapter_rank": 1,
            "mamba_expand": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        },
    ),
    "jamba": ("jamba", JAMBA),
    "jamba, dense": ("jamba", JAMBA | {"num_experts": 1, "attn_layer_period": 3, "attn_layer_offset": 0}),
    "jamba, dense, no bias": (
        "jamba",
        JAMBA | {"num_experts": 1, "num_hidden_layers": 2, "attn_layer_offset": 1, "mamba_conv_bias": False},
    ),
    "jamba, dense, tied": (
        "jamba",
        JAMBA
        | {"num_experts": 1, "tie_word_embeddings": True, "mamba_d_state": 3, "mamba_expand": 3, "mamba_dt_rank": 2},
    ),
    "jamba, two experts": (
        "jamba",
        JAMBA | {"num_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 3, "mamba_d_conv": 3},
    ),
    "jamba, options": (
        "jamba",
        JAMBA
        | {"num_experts": 5, "num_experts_per_tok": 3, "mamba_conv_bias": False, "mamba_proj_bias": True}
        | {"mamba_dt_rank": 3, "mamba_expand": 3, "tie_word_embeddings": True, "expert_layer_period": 1}
        | {"expert_layer_offset": 0, "rms_norm_eps": 1e-3},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrids")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_as_transformers_has_it(name: str, check: str, folder: Path) -> None:
    CHECKS[check](MODELS[name], folder)


ROWS = {  # of the table in docs/checkpoints.md: the cases that it speaks of
    "`bamba`": ("bamba", "bamba, no attention", "bamba, options"),
    "`granitemoehybrid`, with experts (Granite 4)": ("granite", "granite, one expert each", "granite, options"),
    "`granitemoehybrid`, dense": (
        "granite, dense",
        "granite, dense, multipliers",
        "granite, dense, wide groups",
    ),
    "`falcon_h1`": ("falcon", "falcon, multipliers", "falcon, options"),
    "`nemotron_h`, with experts": (
        "nemotron, experts",
        "nemotron, one expert each",
        "nemotron, options",
    ),
    "`nemotron_h`, without": ("nemotron", "nemotron, narrow", "nemotron, more attention"),
    "`jamba`, with experts": ("jamba", "jamba, two experts", "jamba, options"),
    "`jamba`, dense": ("jamba, dense", "jamba, dense, no bias", "jamba, dense, tied"),
    "`zamba2`": ("zamba", "zamba, adapters", "zamba, options"),
    "`lfm2`": tuple(name for name in LFM2 if not name.startswith("lfm2_moe")),
    "`lfm2_moe`, with experts": tuple(name for name in LFM2 if name.startswith("lfm2_moe")),
    "`qwen3_next`, with experts": tuple(name for name in DELTA if name.startswith("qwen3_next")),
    "`qwen3_5_text`, and the language model inside `qwen3_5`": tuple(
        name for name in DELTA if name.startswith("qwen3_5")
    ),
    "`olmo_hybrid`": tuple(name for name in DELTA if name.startswith("olmo")),
    "`kimi_linear`": tuple(name for name in DELTA if name.startswith("kimi")),
    "`recurrent_gemma`": tuple(name for name in GRIFFIN if name.startswith("recurrent")),
    "`xlstm`": tuple(name for name in GRIFFIN if name.startswith("xlstm")),
}
GGUF = {  # by the models of test_gguf_hybrids
    "`granitemoehybrid`, with experts (Granite 4)": "granitehybrid, experts",
    "`granitemoehybrid`, dense": "granitehybrid",
    "`falcon_h1`": "falcon-h1",
    "`nemotron_h`, with experts": "nemotron_h_moe",
    "`nemotron_h`, without": "nemotron_h",
    "`jamba`, with experts": "jamba",
    "`jamba`, dense": "jamba, dense",
    "`lfm2`": "lfm2",
    "`lfm2_moe`, with experts": "lfm2moe",
    "`qwen3_next`, with experts": "qwen3next",
    "`qwen3_5_text`, and the language model inside `qwen3_5`": "qwen35",
    "`kimi_linear`": "kimi-linear",
}
EVERY: dict[str, Case] = MODELS | DELTA | GRIFFIN | LFM2  # those of other files are checked there


def table() -> dict[str, list[str]]:
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text("utf-8")
    section = page.partition("## Hybrids of transformers\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in rows[2:]}


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_the_page(row: str, folder: Path) -> None:
    """Read and written are what the checks above show; a step in C is asked for."""
    read, written, step, llama_cpp, theirs = table()[row]
    assert (read, written) == ("yes", "yes")
    for name in ROWS[row]:
        assert (refusal(sw.load(saved(EVERY[name], folder))) is None) == (step == "yes"), name
    does = set.intersection(*(theirs_on_cpu(EVERY[name], folder) for name in ROWS[row]))
    assert theirs == ", ".join(["whole rows", *sorted(does)])
    if row in GGUF:  # whose tests have llama.cpp go on with the same tokens
        assert llama_cpp.strip("`") == GGUF[row].partition(",")[0]
        return
    assert llama_cpp == "no"
    for name in ROWS[row]:
        with pytest.raises(
            CheckpointError, match=r"no architecture of its own for this model|hybrids have layers of attention"
        ):
            write_model((model := loaded(saved(EVERY[name], folder))).config, stored_tensors(model))


def test_the_table_of_the_page_is_whole() -> None:
    assert table().keys() == ROWS.keys()
    assert {name for names in ROWS.values() for name in names} == EVERY.keys()
    assert set(GGUF.values()) <= HYBRIDS.keys()
    assert {name.partition(",")[0] for name in GGUF.values()} == {name.partition(",")[0] for name in HYBRIDS}


@pytest.mark.parametrize("name", [name for name in EVERY if not name.startswith("zamba")])
@torch.no_grad()
def test_a_layer_by_itself(name: str, folder: Path) -> None:
    path = saved(EVERY[name], folder)
    whole, config = loaded(path), json.loads((path / "config.json").read_text())
    published, x = load_file(path / "model.safetensors"), torch.randn(2, 9, whole.config.d_model)
    for i, block in enumerate(whole.blocks):
        layers = {"nemotron_h": "backbone.layers", "xlstm": "backbone.blocks"}.get(EVERY[name][0], "model.layers")
        prefix = f"{layers}.{i}."
        one = {key.removeprefix(prefix): tensor for key, tensor in published.items() if key.startswith(prefix)}
        assert load_layer(config, one, layer=i)(x)[0].equal(block(x)[0])


def layer_of(case: Case, folder: Path, layer: int) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{layer}."
    tensors = load_file(saved(case, folder) / "model.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def test_which_layer_is_refused(folder: Path) -> None:
    config = json.loads((saved(MODELS["bamba"], folder) / "config.json").read_text())
    with pytest.raises(CheckpointError, match="layer=3 of a model with 3 layers"):
        load_layer(config, {}, layer=3)
    with pytest.raises(CheckpointError, match=r"input_layernorm.weight is missing"):
        load_layer(config, {}, layer=0)
    with pytest.raises(CheckpointError, match=r"model_type='gpt2'"):
        load_layer({"model_type": "gpt2"}, {}, layer=0)
    tensors = layer_of(MODELS["bamba"], folder, 0)
    first = next(iter(tensors))
    wrong: list[tuple[Any, Any, Any, str]] = [
        (config, tensors, True, "layer=True is not the number of a layer"),
        (config, tensors, "0", "layer='0' is not the number of a layer"),
        (config, {**tensors, first: tensors[first].numpy()}, 0, f"{first} is a ndarray"),
        (config, {**tensors, first: tensors[first].long()}, 0, f"{first} is torch.int64; expected floating-point"),
        (config, {**tensors, first: tensors[first] * torch.nan}, 0, f"{first} has .* not finite"),
        ("config.json", tensors, 0, "load_layer takes the content of a config.json; got a str"),
    ]
    for given, found, layer, message in wrong:
        with pytest.raises(CheckpointError, match=message):
            load_layer(given, found, layer=layer)
    shared = json.loads((saved(MODELS["zamba"], folder) / "config.json").read_text())
    with pytest.raises(CheckpointError, match="layer 1 shares a Transformer with others"):
        load_layer(shared, {}, layer=1)


ALIASES: dict[str, dict[str, Any]] = {  # of the fields of a model's config.json, as transformers takes them
    "recurrent_gemma": {"sliding_window": "attention_window_size"},
    "kimi": {"num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token"},
    "jamba": {"num_local_experts": "num_experts"},
}


@pytest.mark.parametrize("start", ALIASES)
def test_other_names_of_fields(start: str, folder: Path, tmp_path: Path) -> None:
    name = next(name for name in EVERY if name.startswith(start))
    path = saved(EVERY[name], folder)
    given = json.loads((path / "config.json").read_text())
    renamed = {next((a for a, of in ALIASES[start].items() if of == key), key): value for key, value in given.items()}
    assert renamed.keys() != given.keys()
    (tmp_path / "config.json").write_text(json.dumps(renamed))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    assert sw.load(tmp_path).config == sw.load(path).config
    alias, of = next(iter(ALIASES[start].items()))
    (tmp_path / "config.json").write_text(json.dumps({**given, alias: given[of] + 1}))
    with pytest.raises(CheckpointError, match=f"{of}={given[of]} is not supported; expected {given[of] + 1}"):
        sw.load(tmp_path)


@pytest.mark.parametrize("start", ["qwen3_next", "qwen3_5", "olmo", "kimi"])
def test_another_activation_is_that_of_convolutions_too(start: str, folder: Path, tmp_path: Path) -> None:
    path = saved(EVERY[next(name for name in EVERY if name.startswith(start))], folder)
    given = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(given | {"hidden_act": "gelu"}))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="hidden_act='gelu' is not supported"):
        sw.load(tmp_path)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "quantised": ("bamba", {"quantization_config": {"bits": 4}}, "quantization_config"),
    "activation": ("bamba", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    "scaled positions": ("bamba", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type='yarn'"),
    "layers": ("granite", {"layer_types": ["linear_attention", "pooling", "pooling"]}, "a layer of kind 'pooling moe'"),
    "sizes": ("bamba", {"mamba_d_state": 0}, "mamba_d_state=0 is out of range"),
    "more layers": ("bamba", {"num_hidden_layers": 9}, "num_hidden_layers=9, but there are tensors for 3 layers"),
    "experts": ("granite", {"num_local_experts": 5}, r"router.map.weight of shape \(4, 24\), expected \(5, 24\)"),
    "pattern": (
        "nemotron",
        {"layers_block_type": None, "hybrid_override_pattern": "MX"},
        "hybrid_override_pattern='MX'",
    ),
    "untied": ("zamba", {"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
    "places": ("zamba", {"hybrid_layer_ids": [9, 0]}, r"hybrid_layer_ids=\[9, 0\] is not supported"),
    "no multiplier": ("falcon", {"key_multiplier": None}, "key_multiplier is null; expected a value, such as 1.0"),
    "kinds": ("bamba", {"attn_layer_indices": -1}, "a field that says the kinds of the layers is of another kind"),
    "one multiplier": ("falcon", {"mlp_multipliers": [0.5]}, r"mlp_multipliers=\[0.5\] is of another kind"),
    "multipliers": ("falcon", {"ssm_multipliers": [1.0, 2.0]}, r"ssm_multipliers=\[1.0, 2.0\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    name, fields, message = REFUSED[case]
    path = saved(MODELS[name], folder)
    config = json.loads((path / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=message) as error:
        sw.load(tmp_path)
    assert "\n" not in str(error.value)


MAMBA2 = sw.Mamba2Config(d_state=4, d_head=4)
GATED = sw.MLPConfig(expand=2, activation="silu", gated=True, bias=False)
UNWRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "two widths": (
        {
            "layers": (
                sw.BlockConfig(mixer=MAMBA2, mlp=GATED),
                sw.BlockConfig(mixer=MAMBA2, mlp=replace(GATED, expand=3)),
            )
        },
        "one intermediate_size for all layers, and this model has 16 and 24",
    ),
    "batch norm": (
        {"layers": (sw.BlockConfig(mixer=MAMBA2, mlp=GATED, norm="layer"),)},
        r"layers\.0\.norm is 'rms' there",
    ),
    "some experts": (
        {"layers": tuple(sw.BlockConfig(mixer=MAMBA2, mlp=m) for m in (GATED, sw.MoEConfig(n_experts=4, n_active=2)))},
        "no layer of",
    ),
    "MLPs alone": ({"layers": (sw.BlockConfig(mixer=None, mlp=GATED),)}, "nemotron_h does not have this model"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_is_not_written(case: str, tmp_path: Path) -> None:
    fields, message = UNWRITTEN[case]
    model = sw.LanguageModelConfig(**({"vocab_size": 9, "d_model": 8} | fields)).build()
    with pytest.raises(CheckpointError, match=message) as error:
        save_as(model, tmp_path / "theirs", "transformers")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("format", ["mamba_ssm", "h3", "gguf"])
def test_other_formats_refuse_what_they_have_no_place_for(format: str, tmp_path: Path) -> None:
    layer = sw.BlockConfig(mixer=sw.Mamba2Config(d_state=4, d_head=4, norm=False))
    model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(layer,)).build()
    with pytest.raises(CheckpointError, match=r"no Mamba2Config\.norm"):
        save_as(model, tmp_path / "theirs.gguf", format)
