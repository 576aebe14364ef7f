"""transformers' GPT-2, GPT-Neo, OPT, GPT-NeoX with an edited config: read as the library reads it, or refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_convert_decoders import MODELS, far, ids, reference, saved

import statewise as sw
from statewise.checkpoints.convert.decoder_configs import ALIASES, CLASSES
from statewise.errors import CheckpointError

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edited")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": ("gpt2", {"activation_function": "quick_gelu"}, "activation_function='quick_gelu'"),
    "cross attention": ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True is not supported"),
    "heads": ("gpt2", {"n_head": 5}, "n_head=5; expected a divisor of the width, 24"),
    "layers": ("gpt2", {"n_layer": 4}, r"n_layer=4, but there are tensors for 3 layers"),
    "positions": ("gpt2", {"n_positions": 10**9}, r"wpe.weight has shape \(320, 24\), expected \(1000000000, 24\)"),
    "dropout": ("gpt2", {"resid_pdrop": 1.5}, "resid_pdrop=1.5"),
    "kinds": ("neo", {"attention_layers": None, "attention_types": [[["global"], 3]]}, "attention_types="),
    "kinds that are none": (
        "neo",
        {"attention_layers": None, "attention_types": [["global", "far"]]},
        "attention_types=",
    ),
    "endless kinds": (
        "neo",
        {"attention_layers": None, "attention_types": [[["local"], math.inf]]},
        "attention_types=",
    ),
    "listed kinds": ("neo", {"attention_layers": ["global"] * 5}, "attention_layers="),
    "listed kinds that are none": ("neo", {"attention_layers": ["global", "far"] * 2}, "attention_layers="),
    "listed kinds in a text": ("neo", {"attention_layers": "global"}, "attention_layers="),
    "listed kinds in lists": ("neo", {"attention_layers": [["global"]] * 4}, "attention_layers="),
    "norms": ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine=False"),
    "rope": ("neox", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type='linear'"),
    "part": ("neox", {"rope_parameters": {"partial_rotary_factor": 0.4}}, "rotary_pct=0.4"),
    "quantised": ("neox", {"quantization_config": {"bits": 4}}, "quantization_config"),
}


def edited(path: Path, target: Path, fields: dict[str, Any], without: tuple[str, ...] = ()) -> Path:
    """A copy of a checkpoint with other fields in its config."""
    config = json.loads((path / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in without}
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(kept | fields))
    (target / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    return target


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    name, fields, message = REFUSED[case]
    edited(saved(name, folder), tmp_path, fields)
    with pytest.raises(CheckpointError, match=message) as error:
        sw.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_other_names_are_the_librarys(kind: str) -> None:
    assert dict(ALIASES.get(kind, {})) == transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind].attribute_map


@pytest.mark.parametrize("name", ["gpt2", "neo"])
@torch.no_grad()
def test_other_names_of_fields(name: str, folder: Path, tmp_path: Path) -> None:
    """In place of a field, or beside it; two that differ are refused, where the library takes the other name."""
    path, aliases, tokens = saved(name, folder), ALIASES[MODELS[name][0]], ids(2, 20)
    given = json.loads((path / "config.json").read_text())
    expected, config = reference(path)(tokens).logits, sw.load(path).config
    renamed = {alias: given[field] for alias, field in aliases.items()}
    other = edited(path, tmp_path / "other", renamed, without=tuple(aliases.values()))
    assert far(reference(other)(tokens).logits, expected) == 0.0
    assert sw.load(other).config == sw.load(edited(path, tmp_path / "both", renamed)).config == config
    for alias, field in aliases.items():
        wrong = edited(path, tmp_path / "wrong", {alias: given[field] // 2})
        words = f"{alias}={given[field] // 2} and {field}={given[field]} are two names of one field"
        with pytest.raises(CheckpointError, match=words):
            sw.load(wrong)


@torch.no_grad()
def test_neos_layers_are_the_list_and_without_it_the_groups(folder: Path, tmp_path: Path) -> None:
    path, tokens = saved("neo", folder), ids(2, 30)
    listed = ["local", "local", "global", "local"]
    groups = [[["local"], 3], [["global"], 1]]
    for number, (fields, without, kinds) in enumerate(
        (
            ({"attention_layers": listed}, (), listed),
            ({"attention_layers": listed}, ("attention_types",), listed),
            ({"attention_layers": listed, "attention_types": groups}, (), listed),
            ({"attention_types": groups}, ("attention_layers",), ["local"] * 3 + ["global"]),
        )
    ):
        other = edited(path, tmp_path / str(number), fields, without)
        model = sw.load(other)
        assert ["local" if block.mixer.window else "global" for block in model.config.blocks] == kinds
        assert far(model(tokens)[0], reference(other)(tokens).logits) < 1e-5


def test_another_table_of_frequencies_is_refused(folder: Path, tmp_path: Path) -> None:
    path = saved("neox, options", folder)
    tensors = load_file(path / "model.safetensors")
    tensors["gpt_neox.layers.1.attention.rotary_emb.inv_freq"] = torch.tensor([1.0, 0.5, 0.25, 0.1])
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="is not the table of 8 rotary features with base 500"):
        sw.load(tmp_path)
