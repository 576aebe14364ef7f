"""Published models: recognised, read without running anything, in memory once; written, and carried by the commands."""

from __future__ import annotations

import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import refusal
from safetensors.torch import load_file, save_file

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.cli import run
from statewise.errors import CheckpointError, InputError
from statewise.mixers.base import Dynamics

TOKENS = torch.arange(40)[None] % 16
CONFIG = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.MambaConfig(d_state=4),) * 2)
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
    torch.manual_seed(0)
    return CONFIG.build().eval()


@pytest.fixture
def folder(model: sw.LanguageModel, tmp_path: Path) -> Path:
    """A published folder: safetensors and config.json."""
    return save_as(model, tmp_path / "published", "transformers")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def replaced(folder: Path, name: str, content: Any) -> Path:
    """The folder with its weights in a file of torch.save instead."""
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / name)
    return folder


def same_logits(one: Any, other: sw.LanguageModel) -> bool:
    return torch.equal(one(TOKENS)[0], other(TOKENS)[0])


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


# -- pickles -----------------------------------------------------------------------------------------------------------


class Creates:
    """Creates a file where it is unpickled by a reader that runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.ckpt"])
def test_a_pickle_that_would_run_code(folder: Path, tmp_path: Path, name: str, legacy: bool) -> None:
    made = tmp_path / "made"
    content = {**weights_of(folder), "x": Creates(made)}
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / name, _use_new_zipfile_serialization=not legacy)
    said = refusal(sw.load, folder)
    assert f"{folder / name} is a pickle that names" in said
    assert "open, which would run code; nothing of it was run" in said
    assert not made.exists()
    (folder / name).write_bytes(pickle.dumps(content["x"]))
    refusal(sw.load, folder)
    assert not made.exists()
    torch.load(_saved(tmp_path, content["x"]), weights_only=False)
    assert made.exists(), "and so the pickle is one"


def _saved(tmp_path: Path, content: Any) -> Path:
    torch.save(content, tmp_path / "alone.pt")
    return tmp_path / "alone.pt"


def test_the_environment_does_not_make_pickles_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    made = folder / "made"
    replaced(folder, "model.pt", {"x": Creates(made)})
    refusal(sw.load, folder)
    assert not made.exists()


def test_files_that_hold_something_else(folder: Path) -> None:
    assert "'epoch' is a int, expected tensors by name" in refusal(sw.load, replaced(folder, "m.pt", {"epoch": 3}))
    torch.save([1], folder / "m.pt")
    assert "holds a list, expected tensors by name" in refusal(sw.load, folder)
    torch.save({}, folder / "m.pt")
    assert "holds no tensors" in refusal(sw.load, folder)
    (folder / "m.pt").write_bytes(b"no file of torch's")
    assert "is not a file of torch.save that can be read" in refusal(sw.load, folder)
    torch.save({"a": torch.ones(2).to(torch.float8_e5m2)}, folder / "m.pt")
    assert "a is float8_e5m2, which is not read" in refusal(sw.load, folder)


def test_objects_of_lightning_are_read_without_lightning(tmp_path: Path) -> None:
    """A file that names omegaconf's classes, made by a process in which there are such classes."""
    program = (
        "import sys, types, torch\n"
        "module = types.ModuleType('omegaconf.dictconfig'); sys.modules['omegaconf'] = types.ModuleType('omegaconf')\n"
        "class DictConfig:\n"
        "    def __init__(self, **content): self.content = content\n"
        "    def __getstate__(self): return {'_content': self.content, '_parent': None}\n"
        "DictConfig.__module__, module.DictConfig = module.__name__, DictConfig\n"
        "sys.modules[module.__name__] = module\n"
        "torch.save({'pytorch-lightning_version': '1.5', 'state_dict': {'model.a': torch.ones(2)},\n"
        "            'hyper_parameters': {'model': DictConfig(d_model=8, layer=DictConfig(name='s4'))}}, sys.argv[1])\n"
    )
    path = tmp_path / "a.ckpt"
    subprocess.run([sys.executable, "-c", program, path], check=True)
    from statewise.checkpoints.convert.source import find_source
    from statewise.checkpoints.convert.weights import read_weights

    config, tensors = read_weights(find_source(path))
    assert config["pytorch-lightning_version"] == "1.5"
    assert config["hyper_parameters"] == {"model": {"d_model": 8, "layer": {"name": "s4"}}}
    assert torch.equal(tensors["model.a"], torch.ones(2))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_unknown_architecture(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    said = refusal(sw.load, folder)
    assert "is of an unknown architecture: its config says 'llama', and its tensors are backbone.embedding" in said
    for known in ("mamba_ssm", "transformers", "h3", "gguf"):
        assert known in said
    save_file({"a": torch.ones(1)}, tmp_path / "a.safetensors")
    assert "there is no config.json beside it, and its tensors are a." in refusal(sw.load, tmp_path / "a.safetensors")


def test_tensors_that_do_not_fit(folder: Path) -> None:
    weights = weights_of(folder)
    name = "backbone.layers.0.mixer.D"

    def said(change: dict[str, torch.Tensor]) -> str:
        save_file(change, folder / "model.safetensors")
        return refusal(sw.load, folder)

    assert f"the tensor {name} is missing" in said({n: t for n, t in weights.items() if n != name})
    assert "the tensor b is not one of this architecture" in said(weights | {"b": torch.ones(1)})
    assert "of shape (3,), expected (32,)" in said(weights | {name: torch.ones(3)})
    assert "values that are not finite" in said(weights | {name: torch.full((32,), torch.nan)})


def test_several_models_in_a_folder(folder: Path, model: sw.LanguageModel) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    assert "holds several models, a.safetensors, b.safetensors; give one" in refusal(sw.load, folder)
    assert same_logits(sw.load(folder / "b.safetensors"), model)


def test_a_file_of_our_own_checkpoint(model: sw.LanguageModel, tmp_path: Path) -> None:
    sw.save(model, tmp_path / "ours")
    assert "is part of a checkpoint of Statewise; give its folder" in refusal(
        sw.load, tmp_path / "ours" / "model.safetensors"
    )


def test_a_revision_of_a_path(folder: Path) -> None:
    with pytest.raises(InputError, match="belongs to a name of the hub"):
        sw.load(folder, revision="main")


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


# -- tokenizers and the commands ---------------------------------------------------------------------------------------


def write_tokenizer(path: Path, n_ids: int) -> None:
    """Words w0, w1, ... and a document token, with a gap before the last id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<|endoftext|>": 0, **{f"w{i}": i for i in range(1, n_ids - 2)}, "last": n_ids - 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))


def test_ids_that_the_tokenizer_does_not_have_are_never_drawn(model: sw.LanguageModel, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json", 12)
    tokenizer = sw.FileTokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.vocab_size, list(tokenizer.gaps)) == (12, [10])
    missing = {10, 12, 13, 14, 15}
    flat = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=CONFIG.layers, tie_embeddings=False).build()
    with torch.no_grad():
        flat.head.weight.zero_()
    options: dict[str, Any] = {"max_new_tokens": 60, "stop_at_document": False, "seed": 0}
    for more in ({}, {"temperature": 0.0}, {"top_k": 16}, {"top_p": 0.99}, {"min_p": 0.01, "repetition_penalty": 1.3}):
        for some in (model, flat):
            tokens = list(sw.generate(some, ["w1 w2", "w3"], tokenizer=tokenizer, **options, **more))  # type: ignore[operator]
            drawn = {int(i) for token in tokens for i in token.ids}
            assert not drawn & missing, more
    assert {int(t.ids) for t in sw.generate(flat, [1], **options, document_token=0)} & missing  # type: ignore[operator]
    scores = sw.evaluate.evaluate_text(model, tokenizer, b"w1 w2 last w3")
    assert scores.n_tokens == 4
    write_tokenizer(tmp_path / "tokenizer.json", 17)
    with pytest.raises(InputError, match="the tokenizer has 17 ids and the model only 16"):
        sw.generate(model, "w1", tokenizer=sw.FileTokenizer(tmp_path / "tokenizer.json"), max_new_tokens=1)  # type: ignore[operator]


def test_the_commands_take_a_published_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", str(folder), "--prompt", "w1", "--max-new-tokens", "3"]) == 2
    assert "comes without its tokenizer; say which it is: --tokenizer" in capsys.readouterr().err
    write_tokenizer(folder / "tokenizer.json", 12)
    for source in (folder, folder / "model.safetensors"):
        assert run(["generate", str(source), "--prompt", "w1", "--max-new-tokens", "3", "--seed", "0"]) == 0
        assert "w" in capsys.readouterr().out
    assert run(["info", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["configuration"]["type"]) == ("transformers", "LanguageModelConfig")
    (tmp_path / "text").write_text("w1 w2 w3 w4 " * 9)
    assert run(["evaluate", str(folder), "--text-file", str(tmp_path / "text"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_tokens"] == 36
    assert run(["evaluate", str(folder), "--data", str(tmp_path / "text"), "--split", "train", "--json"]) == 0


def test_convert(folder: Path, model: sw.LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(folder / "tokenizer.json", 12)

    def convert(source: Path, target: str, *options: str) -> dict[str, Any]:
        code = run(["convert", str(source), str(tmp_path / target), "--json", *options])
        said = capsys.readouterr()
        assert code == 0, said.err
        record: dict[str, Any] = json.loads(said.out)
        return record

    told = convert(folder, "ours")
    parameters = sum(p.numel() for p in model.parameters())
    assert (told["format"], told["to"], told["layers"], told["parameters"]) == (
        *("transformers", "statewise"),
        *(2, parameters),
    )
    assert same_logits(sw.load(tmp_path / "ours"), model)
    assert run(["generate", str(tmp_path / "ours"), "--prompt", "w1", "--max-new-tokens", "3"]) == 0
    capsys.readouterr()
    convert(tmp_path / "ours", "theirs", "--to", "mamba_ssm", "--dtype", "float16")
    assert (tmp_path / "theirs" / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()
    assert sw.load(tmp_path / "theirs").norm.weight.dtype == torch.float16  # type: ignore[union-attr, operator]
    for options, message in (
        (["x", "--to", "onnx"], "--to 'onnx' is unknown; use one of statewise, mamba_ssm"),
        (["x", "--dtype", "int8"], "--dtype 'int8' is unknown"),
        (["ours"], "is there already"),
    ):
        assert run(["convert", str(folder), str(tmp_path / options[0]), *options[1:]]) == 2
        assert message in capsys.readouterr().err


def test_gpt2s_two_files_are_a_tokenizer(folder: Path, model: sw.LanguageModel) -> None:
    vocabulary = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<|endoftext|>": 4}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    from statewise.model_folder import open_model

    tokenizer = open_model(folder, device="cpu").tokenizer
    assert tokenizer.encode("ab a") == [3, 2, 0]
    assert tokenizer.decode([3, 2, 0, 4]) == "ab a"
    assert tokenizer.document_token == 4
