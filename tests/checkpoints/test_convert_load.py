"""Published models: recognised, read without running anything, in memory once; written, and carried by the commands."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import refusal
from published_folder import TOKENS, build_model, publish, replaced, same_logits, weights_of
from safetensors.torch import load_file, save_file

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.errors import CheckpointError, InputError
from statewise.mixers.base import Dynamics

LAYERS: dict[str, Any] = {
    "mamba": sw.MambaConfig(),
    "mamba2": sw.Mamba2Config(d_head=8),
    "mamba3": sw.Mamba3Config(d_head=8),
    "h3": sw.H3Config(),
    "s4": sw.S4Config(),
    "s4d": sw.S4DConfig(),
    "s4d-ones": sw.S4DConfig(B="ones"),
    "attention": sw.AttentionConfig(n_heads=2),
    "lmu": sw.LMUConfig(theta=10),
    "gss": sw.GSSConfig(),
    "lssl": sw.LSSLConfig(),
    "linear attention": sw.LinearAttentionConfig(n_heads=2),
}


@pytest.fixture
def model() -> sw.LanguageModel:
    return build_model()


@pytest.fixture
def folder(model: sw.LanguageModel, tmp_path: Path) -> Path:
    return publish(model, tmp_path)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_built_without_memory_and_filled(name: str, tmp_path: Path) -> None:
    model = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(LAYERS[name],), max_positions=64).build().eval()
    loaded = sw.load(sw.save(model, tmp_path / "model"))
    assert same_logits(loaded, model)
    assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))


def test_a_folder_and_a_file(folder: Path, model: sw.LanguageModel) -> None:
    loaded = sw.load(folder)
    assert same_logits(loaded, model)
    assert not loaded.training
    assert loaded.head.weight is loaded.embedding.weight  # type: ignore[union-attr]
    assert same_logits(sw.load(folder / "model.safetensors"), model)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    sw.load(folder)
    assert torch.equal(torch.get_rng_state(), before)
    (folder / "model.safetensors").write_bytes(b"")
    assert same_logits(loaded, model), "nothing of the file is left in use"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "other.ckpt", "other.pth"])
@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_torch_save(folder: Path, model: sw.LanguageModel, name: str, legacy: bool) -> None:
    weights = weights_of(folder)
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / name, _use_new_zipfile_serialization=not legacy)
    assert same_logits(sw.load(folder), model)
    assert same_logits(sw.load(folder / name), model)


def test_files_of_training_programs(folder: Path, model: sw.LanguageModel) -> None:
    """Inside of a state_dict, and under the names that DataParallel makes."""
    weights = {f"module.{name}": tensor for name, tensor in weights_of(folder).items()}
    assert same_logits(sw.load(replaced(folder, "model.pt", {"state_dict": weights, "epoch": 3})), model)


def shard(folder: Path, form: str) -> dict[str, str]:
    weights = weights_of(folder)
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    stem, suffix = ("model", "safetensors") if form == "safetensors" else ("pytorch_model", "bin")
    where = {name: f"{stem}-0000{1 + i % 2}-of-00002.{suffix}" for i, name in enumerate(names)}
    for file in sorted(set(where.values())):
        part = {name: weights[name] for name in names if where[name] == file}
        save_file(part, folder / file) if suffix == "safetensors" else torch.save(part, folder / file)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return where


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_shards(folder: Path, model: sw.LanguageModel, form: str) -> None:
    where = shard(folder, form)
    assert same_logits(sw.load(folder), model)
    (folder / where[min(where)]).unlink()
    assert "is missing" in refusal(sw.load, folder)


@pytest.mark.parametrize("place", ["../outside.safetensors", "/tmp/outside.safetensors", "a/../../outside.safetensors"])
def test_shards_that_point_outside_the_folder(folder: Path, place: str) -> None:
    where = shard(folder, "safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where | {min(where): place}}))
    assert f"the shard {place!r} leaves the folder" in refusal(sw.load, folder)


def test_links_that_lead_out_of_the_folder(folder: Path, tmp_path: Path, model: sw.LanguageModel) -> None:
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    assert "is a link that leads out of the folder" in refusal(sw.load, folder)
    cached = tmp_path / "models--a--b" / "snapshots" / "0"  # the hub's cache is made of links, to its own blobs
    (tmp_path / "models--a--b" / "blobs").mkdir(parents=True)
    cached.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (folder / name).resolve().rename(tmp_path / "models--a--b" / "blobs" / name)
        (cached / name).symlink_to(Path("../../blobs") / name)
    assert same_logits(sw.load(cached), model)


# -- dtypes, memory, writing -------------------------------------------------------------------------------------------


def test_dtypes(folder: Path, model: sw.LanguageModel) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in weights_of(folder).items()}
    save_file(weights, folder / "model.safetensors")
    for dtype, expected in ((None, torch.bfloat16), (torch.float32, torch.float32), (torch.float64, torch.float64)):
        loaded = sw.load(folder, dtype=dtype)
        dynamics = {id(p) for m in loaded.modules() if isinstance(m, Dynamics) for p in m.parameters()}
        for name, parameter in loaded.named_parameters():
            wide = torch.promote_types(expected, torch.float32)
            assert parameter.dtype == (wide if id(parameter) in dynamics else expected), name
        assert torch.isfinite(loaded(TOKENS)[0]).all()
    back = save_as(sw.load(folder), folder.parent / "again", "transformers", dtype=torch.bfloat16)
    again = load_file(back / "model.safetensors")
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights), "bit for bit"
    weights["backbone.norm_f.weight"] = weights["backbone.norm_f.weight"].float()
    save_file(weights, folder / "model.safetensors")
    assert sw.load(folder).embedding.weight.dtype == torch.float32, "what holds all without loss"  # type: ignore[union-attr]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_a_model_is_in_memory_once(model: sw.LanguageModel, tmp_path: Path) -> None:
    big = sw.LanguageModelConfig(vocab_size=30_000, d_model=512, layers=(sw.MambaConfig(),)).build()
    n_bytes = sum(4 * p.numel() for p in big.parameters())
    forms = ("transformers", "mamba_ssm")  # safetensors, and a file of torch.save
    for form in forms:
        save_as(big, tmp_path / f"big-{form}", form)
        save_as(model, tmp_path / f"small-{form}", form)
    program = (
        "import sys, threading, time, statewise as sw\n"
        "def own():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(l.split()[1]) for l in lines if l.startswith('RssAnon:')) * 1024\n"
        "peak = [0]\n"
        "def watch():\n"
        "    while True: peak[0] = max(peak[0], own()); time.sleep(0.001)\n"
        "for form in sys.argv[2:]:\n"
        "    sw.load(f'{sys.argv[1]}/small-{form}')\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "for form in sys.argv[2:]:\n"
        "    before = peak[0] = own(); model = sw.load(f'{sys.argv[1]}/big-{form}')\n"
        "    print(max(peak[0], own()) - before); del model\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path, *forms], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for form, peak in zip(forms, done.stdout.split(), strict=True):
        assert int(peak) < 1.3 * n_bytes, form


def test_a_file_with_two_configs_beside_it(tmp_path: Path) -> None:
    """As Codestral's folder: consolidated.safetensors with params.json, and transformers' files."""
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(vocab_size=16, d_model=64, layers=(sw.Mamba2Config(),) * 2, tie_embeddings=False)
    model = config.build().eval()
    folder = save_as(model, tmp_path / "both", "transformers")
    weights = torch.load(save_as(model, tmp_path / "theirs", "mamba_ssm") / "pytorch_model.bin", weights_only=True)
    save_file({f"model.{name}": tensor for name, tensor in weights.items()}, folder / "consolidated.safetensors")
    params = {"dim": 64, "n_layers": 2, "vocab_size": 16, "n_groups": 1, "rms_norm": True, "model_type": "mamba"}
    more = {"residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 1, "tie_embeddings": False}
    (folder / "params.json").write_text(json.dumps(params | more))
    for path in (folder, folder / "model.safetensors", folder / "consolidated.safetensors"):
        assert same_logits(sw.load(path), model)


def test_a_compiled_model_is_written_as_the_model(model: sw.LanguageModel, tmp_path: Path) -> None:
    compiled: Any = torch.compile(model, backend="eager")
    assert same_logits(sw.load(save_as(compiled, tmp_path / "a", "transformers")), model)
    other: Any = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match=r"save_as takes a Model, .* got a Linear"):
        save_as(other, tmp_path / "b", "transformers")


def test_a_file_of_torch_save_holds_each_number_once(tmp_path: Path) -> None:
    """Also the tied head, which it has under two names."""
    model = sw.LanguageModelConfig(vocab_size=2000, d_model=16, layers=(sw.MambaConfig(d_state=4),)).build()
    written = save_as(model, tmp_path / "a", "mamba_ssm") / "pytorch_model.bin"
    n_bytes = sum(tensor.nbytes for tensor in model.parameters())
    assert n_bytes < written.stat().st_size < n_bytes + 12_000


def test_a_file_that_appears_meanwhile_is_not_replaced(
    model: sw.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    target, links = tmp_path / "a.gguf", os.link

    def late(*arguments: Any) -> None:
        target.write_text("mine")
        links(*arguments)

    def without_links(*_: Any) -> None:
        target.write_text("mine")
        raise OSError(errno.EPERM, "no links here")

    for link in (late, without_links):
        monkeypatch.setattr("statewise.checkpoints.atomic.os.link", link)
        assert "exists already and is not replaced" in refusal(save_as, model, target, "gguf")
        assert target.read_text() == "mine"
        target.unlink()
    monkeypatch.setattr(
        "statewise.checkpoints.atomic.os.link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, ""))
    )
    save_as(model, target, "gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_what_is_written_is_read_and_nothing_is_replaced(model: sw.LanguageModel, tmp_path: Path) -> None:
    written = {"mamba_ssm": "a", "transformers": "b"}
    if importlib.util.find_spec("gguf"):
        written["gguf"] = "c.gguf"
    for form, name in written.items():
        target = save_as(model, tmp_path / name, form)
        torch.testing.assert_close(sw.load(target)(TOKENS)[0], model(TOKENS)[0], rtol=1e-5, atol=1e-5)
        assert "exists already and is not replaced" in refusal(save_as, model, target, form)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*written.values()], "nothing is left beside them"
    with pytest.raises(InputError, match=r"format='onnx' is unknown; use one of \['mamba_ssm'"):
        save_as(model, tmp_path / "d", "onnx")
    with pytest.raises(InputError, match=r"a GGUF file is named \*\.gguf"):
        save_as(model, tmp_path / "d", "gguf")
    other = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.GSSConfig(),)).build()
    with pytest.raises(CheckpointError, match="as transformers"):
        save_as(other, tmp_path / "d", "transformers")
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    assert "not finite" in refusal(save_as, model, tmp_path / "d", "transformers")


def test_numbers_that_the_dtype_asked_for_does_not_hold(model: sw.LanguageModel, tmp_path: Path) -> None:
    with torch.no_grad():
        model.norm.weight[0] = 1e5
    for folder in (save_as(model, tmp_path / "theirs", "transformers"), sw.save(model, tmp_path / "ours")):
        said = refusal(sw.load, folder, dtype=torch.float16)
        assert "norm.weight has values beyond float16's 65504; give a wider one" in said
        assert sw.load(folder, dtype=torch.bfloat16).norm.weight[0] > 9e4  # type: ignore[union-attr]


def test_numbers_that_the_written_dtype_does_not_hold(model: sw.LanguageModel, tmp_path: Path) -> None:
    with torch.no_grad():
        model.norm.weight[0] = 1e6
    said = refusal(save_as, model, tmp_path / "a", "transformers", dtype=torch.float16)
    assert "backbone.norm_f.weight has values beyond float16's 65504; write it in a wider dtype" in said
    assert not (tmp_path / "a").exists()


def test_systems_stay_wide_where_their_programs_have_them_so(tmp_path: Path) -> None:
    mlp = sw.MLPConfig(activation="gelu_tanh")
    block = sw.BlockConfig(mixer=sw.H3Config(d_state=4), mlp=mlp, norm="layer")
    model = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(block,), norm="layer").build()
    written = torch.load(save_as(model, tmp_path / "h3", "h3", dtype=torch.float16) / "model.pt", weights_only=True)
    for name, tensor in written.items():
        wide = any(part in name for part in ("mixer.kernel.", "mixer.ssm_k_", "mixer.D"))
        assert tensor.dtype == (torch.float32 if wide else torch.float16), name
    assert sw.load(tmp_path / "h3").embedding.weight.dtype == torch.float32  # type: ignore[union-attr]
    S4D = sw.BlockConfig(mixer=sw.S4DConfig(initialization="lin", learn_B=False), norm="layer", placement="post")
    classifier = sw.SequenceClassifierConfig(d_input=2, n_classes=3, d_model=8, layers=(S4D,), norm=None).build()
    written = load_file(save_as(classifier, tmp_path / "s4d", "s4d", dtype=torch.bfloat16) / "model.safetensors")
    for name, tensor in written.items():
        wide = ".kernel." in name or name.endswith(".D")
        assert tensor.dtype == (torch.float32 if wide else torch.bfloat16), name
