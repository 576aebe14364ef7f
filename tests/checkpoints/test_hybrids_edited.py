"""Hybrids of transformers whose config or tensors somebody changed, or saved otherwise: read as that library reads
them, or refused in a line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
import torch
from hybrid_cases import Case, build, far, ids, loaded, reference, saved
from safetensors.torch import load_file, save_file
from test_convert_delta import MODELS as DELTA
from test_convert_griffin import MODELS as GRIFFIN
from test_convert_hybrids import MODELS
from test_convert_lfm2 import MODELS as LFM2

import statewise as sw
from statewise.checkpoints.convert import hybrids, load_layer
from statewise.checkpoints.convert import transformers as ours
from statewise.checkpoints.convert.entries import names_alone
from statewise.checkpoints.convert.headers import read_headers
from statewise.cli import run
from statewise.errors import CheckpointError

EVERY: dict[str, Case] = MODELS | DELTA | GRIFFIN | LFM2
ONE: dict[str, str] = {}  # of each model_type, the first case: the others change shapes
for _name, (_kind, _) in EVERY.items():
    ONE.setdefault(_kind, _name)
ONE |= {
    "granitemoehybrid, dense": "granite, dense",
    "nemotron_h, dense": "nemotron",
    "zamba2, adapters": "zamba, adapters",
}


def edited(path: Path, target: Path, *, without: tuple[str, ...] = (), **fields: Any) -> Path:
    """A copy of a checkpoint with other fields in its config."""
    given = json.loads((path / "config.json").read_text())
    target.mkdir()
    (target / "config.json").write_text(
        json.dumps({name: value for name, value in {**given, **fields}.items() if name not in without})
    )
    shutil.copy(path / "model.safetensors", target)
    return target


@torch.no_grad()
def agrees(path: Path) -> bool:
    tokens = ids(2, 30)
    return far(loaded(path)(tokens)[0], reference(path)(tokens).logits) < 2e-5


# -- fields ------------------------------------------------------------------------------------------------------------
NEMOTRON = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_min": "time_step_min",
    "mamba_conv_bias": "use_conv_bias",
}


def test_other_names_of_nemotrons_fields(hybrids: Path, tmp_path: Path) -> None:
    path = saved(EVERY["nemotron"], hybrids)
    given = json.loads((path / "config.json").read_text())
    fields = {alias: given[name] for alias, name in NEMOTRON.items()} | {"mamba_dt_min": 0.05}
    other = edited(path, tmp_path / "other", without=tuple(NEMOTRON.values()), **fields)
    model = loaded(other)
    assert (
        next(block.mixer for block in model.config.blocks if isinstance(block.mixer, sw.Mamba2Config)).dt_limit[0]
        == 0.05
    )
    assert agrees(other)
    both = edited(path, tmp_path / "both", mamba_dt_min=0.05)
    with pytest.raises(CheckpointError, match=r"mamba_dt_min=\S+ and time_step_min=0.001 are two names of one field"):
        sw.load(both)


@pytest.mark.parametrize("start", ["granite", "zamba", "nemotron"])
def test_the_kinds_of_layers_have_two_names(start: str, hybrids: Path, tmp_path: Path) -> None:
    """Either is read, a null says nothing, an older field says less, and two that differ are refused."""
    path = saved(EVERY[next(name for name in EVERY if name.startswith(start))], hybrids)
    given = json.loads((path / "config.json").read_text())
    names = ("layer_types", "layers_block_type")
    name, other = names if names[0] in given else names[::-1]
    older = {"hybrid_override_pattern": "M" * len(given[name])} if start == "nemotron" else {}
    swapped = edited(path, tmp_path / "swapped", without=(name,), **{other: given[name]}, **older)
    assert agrees(swapped)
    assert loaded(swapped).config == loaded(path).config
    null = edited(path, tmp_path / "null", **{name: None, other: given[name]})
    assert loaded(null).config == loaded(path).config
    wrong = edited(path, tmp_path / "wrong", **{other: given[name][::-1] + given[name][:1]})
    with pytest.raises(CheckpointError, match="expected what layer_types, its other name, says"):
        sw.load(wrong)


@pytest.mark.parametrize("inside", [False, True])
def test_falcon_turns_all_features(inside: bool, hybrids: Path, tmp_path: Path) -> None:
    """Whatever the field says, which its model code does not read."""
    path = saved(EVERY["falcon"], hybrids)
    rope = json.loads((path / "config.json").read_text())["rope_parameters"]
    half = {"partial_rotary_factor": 0.5}
    other = edited(path, tmp_path / "other", **({"rope_parameters": {**rope, **half}} if inside else half))
    assert agrees(other)
    assert loaded(other).config == loaded(path).config


@pytest.mark.parametrize("rope", [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}])
def test_bamba_turns_half_unless_the_group_says_otherwise(rope: dict[str, Any], hybrids: Path, tmp_path: Path) -> None:
    path = saved(EVERY["bamba"], hybrids)
    without = () if rope else ("rope_parameters",)
    other = edited(path, tmp_path / "other", without=without, partial_rotary_factor=1.0, **rope)
    assert agrees(other)
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}
    assert agrees(edited(path, tmp_path / "whole", rope_parameters=rope))


@pytest.mark.parametrize("name", ONE.values(), ids=ONE)
def test_models_that_see_later_tokens_are_refused(name: str, hybrids: Path, tmp_path: Path) -> None:
    path = saved(EVERY[name], hybrids)
    other = edited(path, tmp_path / "other", is_causal=False)
    with pytest.raises(CheckpointError, match=r"config: is_causal=False is not supported; expected True") as raised:
        sw.load(other)
    assert "\n" not in str(raised.value)
    with pytest.raises(CheckpointError, match="is_causal=False"):
        load_layer(json.loads((other / "config.json").read_text()), {}, layer=0)
    assert "is_causal=False" in str(read_headers(other).reason)
    assert loaded(edited(path, tmp_path / "same", is_causal=True)).config == loaded(path).config


def test_a_decoder_that_sees_later_tokens_is_refused() -> None:
    with pytest.raises(CheckpointError, match="is_causal=False is not supported"):
        ours.read(
            {"model_type": "gpt2", "is_causal": False, "n_layer": 1, "n_embd": 8, "n_head": 1},
            {"wte.weight": torch.ones(5, 8), "h.0.ln_1.weight": torch.ones(8)},
        )


# -- tensors -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["nemotron", "nemotron, experts", *(n for n in EVERY if n.startswith("olmo"))])
def test_heads_for_further_tokens_are_left_out(name: str, hybrids: Path, tmp_path: Path) -> None:
    path = saved(EVERY[name], hybrids)
    other = edited(path, tmp_path / "other")
    more = {"mtp.layers.0.norm.weight": torch.ones(3), "mtp.fc.weight": torch.ones(3, 3)}
    save_file(load_file(path / "model.safetensors") | more, other / "model.safetensors")
    assert agrees(other)
    assert read_headers(other).reason is None


@pytest.mark.parametrize("name", EVERY)
def test_as_the_library_has_them_in_memory(name: str, hybrids: Path, tmp_path: Path) -> None:
    """``save_pretrained(..., save_original_format=False)``: the same tensors, some under other names or together."""
    path = saved(EVERY[name], hybrids)
    build(*EVERY[name]).save_pretrained(tmp_path / "memory", save_original_format=False)
    model, same = loaded(tmp_path / "memory"), loaded(path)
    assert read_headers(tmp_path / "memory").reason is None
    assert model.config == same.config
    for key, tensor in model.state_dict().items():
        assert tensor.equal(same.state_dict()[key]), key
    config = json.loads((path / "config.json").read_text())
    tensors = load_file(tmp_path / "memory" / "model.safetensors")
    if EVERY[name][0] in ("qwen3_next", "kimi_linear", "granitemoehybrid"):
        one = {
            key.removeprefix("model.layers.0."): t for key, t in tensors.items() if key.startswith("model.layers.0.")
        }
        block, x = load_layer(config, one, layer=0), torch.randn(1, 5, model.config.d_model)
        with torch.no_grad():
            assert block(x)[0].equal(model.blocks[0](x)[0])


def test_two_names_of_one_tensor_are_refused(hybrids: Path, tmp_path: Path) -> None:
    path = saved(EVERY["nemotron"], hybrids)
    other = edited(path, tmp_path / "other")
    tensors = load_file(path / "model.safetensors")
    name = next(name for name in tensors if "norm_f" in name)
    save_file(tensors | {name.replace("backbone", "model"): tensors[name] + 1}, other / "model.safetensors")
    with pytest.raises(CheckpointError, match="are two names of one tensor; remove one"):
        sw.load(other)


Shapes = Mapping[str, torch.Tensor]


def outcome(config: dict[str, Any], tensors: Shapes) -> str:
    """What is said of a checkpoint, which is said alike from the headers."""
    found = []
    for how in (nullcontext, names_alone):
        with how(), pytest.raises(CheckpointError) as raised:
            hybrids.read(config, tensors)
        found.append(str(raised.value))
    assert found[0] == found[1]
    assert "\n" not in found[0]
    return found[0]


@pytest.mark.parametrize("name", ONE.values(), ids=ONE)
def test_every_tensor_of_a_wrong_shape_is_named(name: str, request: pytest.FixtureRequest) -> None:
    """A row more, a column less, an axis more, or rows and columns exchanged."""
    path = saved(EVERY[name], request.getfixturevalue("hybrids"))
    config, tensors = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    kinds = {re.sub(r"\d+", "0", key): key for key in tensors}  # one of each kind
    for key, tensor in tensors.items():
        if key not in kinds.values():
            continue
        wrong = [torch.cat([tensor, tensor[:1]]), tensor[None]]
        if tensor.ndim > 1:
            wrong += [tensor[..., :-1], tensor.mT] if tensor.shape[-1] != tensor.shape[-2] else [tensor[..., :-1]]
        for other in wrong:
            said = outcome(config, tensors | {key: other})
            assert key.rpartition(".")[0] in said or "embed" in key, (key, tuple(other.shape), said)


@pytest.mark.parametrize("pair", [("gate_proj", "up_proj"), ("q_proj", "k_proj")])
def test_rows_of_one_in_another_are_refused(pair: tuple[str, str], request: pytest.FixtureRequest) -> None:
    """As many rows together as there should be."""
    path = saved(EVERY["bamba"], request.getfixturevalue("hybrids"))
    config, tensors = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    first = next(key for key in tensors if key.endswith(f"{pair[0]}.weight"))
    second = first.replace(*pair)
    moved = torch.cat([tensors[first], tensors[second][-2:]]), tensors[second][:-2]
    said = outcome(config, tensors | {first: moved[0], second: moved[1]})
    assert f"{first} has shape {tuple(moved[0].shape)}, expected {tuple(tensors[first].shape)}" in said


def test_the_commands_tell_a_wrong_shape(hybrids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(EVERY[next(name for name in LFM2)], hybrids)
    other = edited(path, tmp_path / "other")
    tensors = load_file(path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("v_proj.weight"))
    save_file(tensors | {name: tensors[name].T.contiguous()}, other / "model.safetensors")
    shapes = [f"{tuple(shape)}" for shape in (tensors[name].T.shape, tensors[name].shape)]
    assert run(["convert", str(other), str(tmp_path / "out"), "--tokenizer", "none"]) != 0
    said = capsys.readouterr().err
    assert f"{name} has shape {shapes[0]}, expected {shapes[1]}" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    assert run(["info", str(other), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["loads"] is False
    assert f"{name} has shape {shapes[0]}" in record["reason"]
