"""`statewise info` on models of others: what they are, layer by layer, before anything but headers is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from decoded_models import needs_library
from gguf_examples import build, write

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.headers import kinds_of
from statewise.cli import run
from statewise.cli.facts import parts
from statewise.decoding import Decoder
from statewise.models.language_model import LanguageModel

ATTENTION = sw.AttentionConfig(n_heads=4, positions="rotary", d_rotary=4, bias=True)
PYTHIA = sw.BlockConfig(mixer=ATTENTION, mlp=sw.MLPConfig(), norm="layer", placement="parallel")


def made(kind: str, folder: Path) -> Path:
    """A published model of a kind, in a format."""
    model: Any = build("mamba", d_model=256)
    if kind == "gguf":
        return write(model, folder / "model.gguf", type="Q4_0")
    if kind == "pythia":
        config = sw.LanguageModelConfig(
            vocab_size=264, d_model=32, layers=(PYTHIA,) * 2, norm="layer", tie_embeddings=False
        )
        model = config.build()
    if kind == "falcon":
        model = build("falcon-mamba")
    return save_as(model, folder / kind, "mamba_ssm" if kind == "mamba_ssm" else "transformers")


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["info", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@needs_library
@pytest.mark.parametrize("kind", ["gguf", "transformers", "mamba_ssm", "pythia", "falcon"])
def test_all_of_it_is_as_the_loaded_model_has_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(kind, tmp_path)
    with monkeypatch.context() as patched:  # nothing is read but headers
        for name in ("statewise.checkpoints.empty.fill", "statewise.checkpoints.convert.gguf_file.widened"):
            patched.setattr(name, None)
        record = said(capsys, path)
    model = sw.load(path)
    assert isinstance(model, LanguageModel)
    assert record["loads"]
    assert record["reason"] is None
    assert record["checkpoint"] == str(path)
    found = {"gguf": "gguf", "mamba_ssm": "mamba_ssm"}.get(kind, "transformers")
    names = {"gguf": "mamba", "transformers": "mamba", "pythia": "gpt_neox", "falcon": "falcon_mamba"}
    assert (record["format"], record["architecture"]) == (found, names.get(kind))
    for part in record["parts"]:
        assert part.pop("step_in_c", "yes") == "yes"
    assert record["parts"] == parts(model)
    assert record["generates"].startswith("generate reads tokens by C")
    memory = record["memory"]
    assert memory["float32"] == sum(p.numel() * p.element_size() for p in model.parameters())
    narrow = sw.load(path, dtype=torch.bfloat16)
    assert memory["bfloat16"] == sum(p.numel() * p.element_size() for p in narrow.parameters())
    for weights in ("int8", "int4"):
        assert memory[weights] == pytest.approx(Decoder(model, weights).n_bytes, rel=2e-3)
    if kind == "gguf":
        kept = sw.load(path, keep_quantised=True)
        assert isinstance(kept, LanguageModel)
        assert memory["stored"] == Decoder(kept).n_bytes
        assert memory["kept"] < memory["float32"] / 5
        assert record["types"] == {"F32": 13, "Q4_0": 7, "F16": 2}
    assert run(["info", str(path), "--no-json"]) == 0
    out = capsys.readouterr().out
    assert "it can be loaded\n" in out
    assert "memory of the weights" in out


def test_an_architecture_that_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made("transformers", tmp_path)
    config = json.loads((path / "config.json").read_text())
    new = {"model_type": "bamba3", "layer_types": ["mamba", "attention"]}
    (path / "config.json").write_text(json.dumps(config | new))
    record = said(capsys, path)
    assert not record["loads"]
    assert record["architecture"] == "bamba3"
    assert "unknown architecture: its config says 'bamba3'" in record["reason"]
    assert "transformers (mamba, falcon_mamba, mamba2, gpt2, gpt_neo, opt" in record["reason"]
    assert ", opt, bamba, jamba and " in record["reason"]  # the nearest
    assert [{**layer, "similar": None} for layer in record["layers"]] == [
        {"layer": 0, "kind": "mamba", "holds": ["mixer", "norm"], "similar": None},
        {"layer": 1, "kind": "attention", "holds": ["mixer", "norm"], "similar": None},
    ]
    assert record["layers"][0]["similar"] == {"mixer": ["AttentionConfig", "MLPConfig", "Mamba2Config", "MoEConfig"]}
    assert record["memory"]["float32"] == 4 * record["file_parameters"] == 4 * 894_720
    assert run(["info", str(path), "--no-json"]) == 0
    out = capsys.readouterr().out
    assert "bamba3 in no known format" in out
    assert "in models that are read, mixer is AttentionConfig or MLPConfig or Mamba2Config or MoEConfig" in out
    assert "it cannot be loaded: " in out
    shutil.copy(path / "model.safetensors", tmp_path / "alone.safetensors")
    record = said(capsys, tmp_path / "alone.safetensors")
    assert (record["architecture"], record["format"], record["loads"]) == (None, None, False)
    assert "there is no config.json beside it" in record["reason"]


def test_the_first_thing_that_is_not_supported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made("transformers", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    record = said(capsys, path)
    assert (record["format"], record["loads"]) == ("transformers", False)
    assert "hidden_act='relu'" in record["reason"]
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    assert "backbone.layers.1" in said(capsys, path)["reason"]


def test_gguf_of_another_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from statewise.checkpoints.convert.gguf_file import write_file

    tensors = {"blk.0.attn_q.weight": torch.ones(4, 4), "blk.1.ssm_a": torch.ones(4)}
    write_file(tmp_path / "a.gguf", {"general.architecture": "llama", "llama.block_count": 2}, tensors)
    record = said(capsys, tmp_path / "a.gguf")
    assert (record["architecture"], record["loads"]) == ("llama", False)
    assert [layer["holds"] for layer in record["layers"]] == [["attn_q"], ["ssm_a"]]


def test_a_layer_without_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    path = made("transformers", tmp_path)
    monkeypatch.setattr("statewise.decoding.mixers.MIXERS", {})
    record = said(capsys, path)
    assert record["parts"][1]["step_in_c"].startswith("is a Mamba, and there is a step for")
    assert "by PyTorch: layers[0] is a Mamba" in record["generates"]
    assert set(record["memory"]) == {"float32", "bfloat16"}


def test_what_is_damaged_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made("gguf", tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    assert run(["info", str(path)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_kinds_of_layers_in_configs_of_others() -> None:
    assert kinds_of({"layers_block_type": ["mamba", "hybrid"]}) == ["mamba", "hybrid"]
    assert kinds_of({"hybrid_override_pattern": "ME*-"}) == ["mamba", "experts", "attention", "mlp"]
    assert kinds_of({"layer_types": [1, 2], "n_layer": 3}) == ["", "", ""]
    assert kinds_of({"num_layers": 10**9}) == []


def test_layers_without_a_mixer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Nemotron-H has them."""
    layers = (sw.BlockConfig(mixer=None, mlp=sw.MLPConfig()), sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2)))
    model = sw.LanguageModelConfig(vocab_size=264, d_model=16, layers=layers).build()
    sw.save(model, tmp_path / "model")
    _, first, second, *_ = said(capsys, tmp_path / "model")["parts"]
    assert (first["mixer"], first["state"]["bytes"]) == ("NoMixer", 0)
    assert (second["mixer"], second["state"]["per_token"]) == ("Attention", 128)
