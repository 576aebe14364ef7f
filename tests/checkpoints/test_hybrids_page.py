"""All hybrids together: what docs/checkpoints.md says of each, a layer by itself, and fields that have other names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
import torch
from hybrid_cases import Case, loaded, saved, theirs_on_cpu
from hybrid_models import MODELS as HYBRIDS
from safetensors.torch import load_file
from test_convert_delta import MODELS as DELTA
from test_convert_griffin import MODELS as GRIFFIN
from test_convert_hybrids import MODELS
from test_convert_lfm2 import MODELS as LFM2

import statewise as sw
from statewise.checkpoints.convert import load_layer
from statewise.checkpoints.convert.gguf_entries import write_model
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.decoding import refusal
from statewise.errors import CheckpointError

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
def test_the_table_of_the_page(row: str, hybrids: Path) -> None:
    """Read and written are what the checks above show; a step in C is asked for."""
    read, written, step, llama_cpp, theirs = table()[row]
    assert (read, written) == ("yes", "yes")
    for name in ROWS[row]:
        assert (refusal(sw.load(saved(EVERY[name], hybrids))) is None) == (step == "yes"), name
    does = set.intersection(*(theirs_on_cpu(EVERY[name], hybrids) for name in ROWS[row]))
    assert theirs == ", ".join(["whole rows", *sorted(does)])
    if row in GGUF:  # whose tests have llama.cpp go on with the same tokens
        assert llama_cpp.strip("`") == GGUF[row].partition(",")[0]
        return
    assert llama_cpp == "no"
    for name in ROWS[row]:
        with pytest.raises(
            CheckpointError, match=r"no architecture of its own for this model|hybrids have layers of attention"
        ):
            write_model((model := loaded(saved(EVERY[name], hybrids))).config, stored_tensors(model))


def test_the_table_of_the_page_is_whole() -> None:
    assert table().keys() == ROWS.keys()
    assert {name for names in ROWS.values() for name in names} == EVERY.keys()
    assert set(GGUF.values()) <= HYBRIDS.keys()
    assert {name.partition(",")[0] for name in GGUF.values()} == {name.partition(",")[0] for name in HYBRIDS}


@pytest.mark.parametrize("name", [name for name in EVERY if not name.startswith("zamba")])
@torch.no_grad()
def test_a_layer_by_itself(name: str, hybrids: Path) -> None:
    path = saved(EVERY[name], hybrids)
    whole, config = loaded(path), json.loads((path / "config.json").read_text())
    published, x = load_file(path / "model.safetensors"), torch.randn(2, 9, whole.config.d_model)
    for i, block in enumerate(whole.blocks):
        layers = {"nemotron_h": "backbone.layers", "xlstm": "backbone.blocks"}.get(EVERY[name][0], "model.layers")
        prefix = f"{layers}.{i}."
        one = {key.removeprefix(prefix): tensor for key, tensor in published.items() if key.startswith(prefix)}
        assert load_layer(config, one, layer=i)(x)[0].equal(block(x)[0])


def layer_of(case: Case, hybrids: Path, layer: int) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{layer}."
    tensors = load_file(saved(case, hybrids) / "model.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def test_which_layer_is_refused(hybrids: Path) -> None:
    config = json.loads((saved(MODELS["bamba"], hybrids) / "config.json").read_text())
    with pytest.raises(CheckpointError, match="layer=3 of a model with 3 layers"):
        load_layer(config, {}, layer=3)
    with pytest.raises(CheckpointError, match=r"input_layernorm.weight is missing"):
        load_layer(config, {}, layer=0)
    with pytest.raises(CheckpointError, match=r"model_type='gpt2'"):
        load_layer({"model_type": "gpt2"}, {}, layer=0)
    tensors = layer_of(MODELS["bamba"], hybrids, 0)
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
    shared = json.loads((saved(MODELS["zamba"], hybrids) / "config.json").read_text())
    with pytest.raises(CheckpointError, match="layer 1 shares a Transformer with others"):
        load_layer(shared, {}, layer=1)


ALIASES: dict[str, dict[str, Any]] = {  # of the fields of a model's config.json, as transformers takes them
    "recurrent_gemma": {"sliding_window": "attention_window_size"},
    "kimi": {"num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token"},
    "jamba": {"num_local_experts": "num_experts"},
}


@pytest.mark.parametrize("start", ALIASES)
def test_other_names_of_fields(start: str, hybrids: Path, tmp_path: Path) -> None:
    name = next(name for name in EVERY if name.startswith(start))
    path = saved(EVERY[name], hybrids)
    given = json.loads((path / "config.json").read_text())
    renamed = {next((a for a, of in ALIASES[start].items() if of == key), key): value for key, value in given.items()}
    assert renamed.keys() != given.keys()
    (tmp_path / "config.json").write_text(json.dumps(renamed))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    assert sw.load(tmp_path).config == sw.load(path).config
    alias, of = next(iter(ALIASES[start].items()))
    (tmp_path / "config.json").write_text(json.dumps({**given, alias: given[of] + 1}))
    with pytest.raises(CheckpointError, match=f"{alias}={given[of] + 1} and {of}={given[of]} are two names"):
        sw.load(tmp_path)


@pytest.mark.parametrize("start", ["qwen3_next", "qwen3_5", "olmo", "kimi"])
def test_another_activation_is_that_of_convolutions_too(start: str, hybrids: Path, tmp_path: Path) -> None:
    path = saved(EVERY[next(name for name in EVERY if name.startswith(start))], hybrids)
    given = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(given | {"hidden_act": "gelu"}))
    (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="hidden_act='gelu' is not supported"):
        sw.load(tmp_path)
