"""A model saved and loaded is the same model; what is there is not replaced by accident."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from checkpoint_examples import (
    TINY,
    TRAINER_DATA,
    refusal,
    same_tensors,
    tiny_model,
    trainer_tensors,
)
from safetensors import safe_open

import statewise as sw
from statewise import checkpoints
from statewise.errors import InputError
from statewise.mixers.base import Dynamics
from statewise.models.registry import model_to_dict

UNTIED = dataclasses.replace(TINY, tie_embeddings=False)


@pytest.mark.parametrize("config", [TINY, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_round_trip(tmp_path: Path, config: sw.LanguageModelConfig, dtype: torch.dtype) -> None:
    model = tiny_model(config=config).to(dtype)
    assert sw.save(model, tmp_path / "model") == tmp_path / "model"
    loaded = sw.load(tmp_path / "model")
    assert loaded.config == config
    assert same_tensors(dict(model.state_dict()), dict(loaded.state_dict()))
    assert (loaded.head.weight is loaded.embedding.weight) == config.tie_embeddings
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    tokens = torch.arange(20)[None]
    if dtype != torch.bfloat16:
        assert torch.equal(model(tokens)[0], loaded(tokens)[0])


def test_the_folder(tmp_path: Path) -> None:
    sw.save(tiny_model(), tmp_path / "a" / "model", tokenizer=sw.ByteTokenizer())
    folder = tmp_path / "a" / "model"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"], "nothing is left beside it"
    data = json.loads((folder / "config.json").read_text())
    assert data["format_version"] == 2
    assert data["statewise_version"] == sw.__version__
    assert data["model"] == model_to_dict(TINY)
    assert data["tokenizer"] == {"kind": "bytes", "fingerprint": sw.ByteTokenizer.fingerprint}
    assert data["files"]["model.safetensors"]["bytes"] == (folder / "model.safetensors").stat().st_size
    mask = os.umask(0)
    os.umask(mask)
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("config.json", "model.safetensors")}
    assert set(modes.values()) == {0o666 & ~mask}


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    for config, expected in ((TINY, False), (UNTIED, True)):
        folder = sw.save(tiny_model(config=config), tmp_path / str(expected))
        with safe_open(folder / "model.safetensors", "pt") as file:
            assert ("head.weight" in file.keys()) == expected  # noqa: SIM118
            assert "embedding.weight" in file.keys()  # noqa: SIM118


def test_mixed_dtypes_survive(tmp_path: Path) -> None:
    model = tiny_model().to(torch.bfloat16)
    model.norm.to(torch.float64)
    sw.save(model, tmp_path / "model")
    assert same_tensors(dict(model.state_dict()), dict(sw.load(tmp_path / "model").state_dict()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtype_casts_all_but_the_dynamics(tmp_path: Path, dtype: torch.dtype) -> None:
    model = tiny_model()
    loaded = sw.load(sw.save(model, tmp_path / "model"), dtype=dtype)
    dynamics = {id(p) for m in loaded.modules() if isinstance(m, Dynamics) for p in m.parameters()}
    assert dynamics
    wide = torch.promote_types(dtype, torch.float32)
    for (name, before), after in zip(model.named_parameters(), loaded.parameters()):
        assert after.dtype == (wide if id(after) in dynamics else dtype), name
        assert torch.equal(after, before.to(after.dtype)), name
    assert loaded.head.weight is loaded.embedding.weight
    assert torch.isfinite(loaded(torch.arange(20)[None])[0]).all()


def test_dtype_has_to_be_floating(tmp_path: Path) -> None:
    sw.save(tiny_model(), tmp_path / "model")
    with pytest.raises(InputError, match=r"floating-point dtype; got torch\.int64"):
        sw.load(tmp_path / "model", dtype=torch.int64)
    with pytest.raises(InputError, match=r"needs a PyTorch dtype, such as torch\.float32; got 'float32'"):
        sw.load(tmp_path / "model", dtype="float32")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"needs a PyTorch dtype, such as torch\.float32; got a type"):
        sw.load(tmp_path / "model", dtype=float)  # type: ignore[arg-type]


def test_loading_draws_from_no_generator(tmp_path: Path) -> None:
    sw.save(tiny_model(), tmp_path / "model")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    sw.load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)


def test_loaded_tensors_are_no_part_of_the_file(tmp_path: Path) -> None:
    folder = sw.save(tiny_model(), tmp_path / "model", trainer=(trainer_tensors(), {}))
    loaded, (tensors, _) = sw.load(folder), checkpoints.read_trainer(folder)
    for name in ("model.safetensors", "trainer/state.safetensors"):
        (folder / name).write_bytes(b"")
    assert same_tensors(dict(loaded.state_dict()), dict(tiny_model().state_dict()))
    assert same_tensors(tensors, trainer_tensors())


def test_a_compiled_model_is_saved_as_the_model(tmp_path: Path) -> None:
    model = tiny_model()
    compiled = torch.compile(model, backend="eager")
    sw.save(compiled, tmp_path / "model")  # type: ignore[arg-type]
    assert same_tensors(dict(model.state_dict()), dict(sw.load(tmp_path / "model").state_dict()))
    with pytest.raises(InputError, match=r"needs a Model, .* got a Linear"):
        sw.save(torch.nn.Linear(1, 1), tmp_path / "other")  # type: ignore[arg-type]


# -- the trainer's state, and the tokenizer --------------------------------------------------------------------------


def test_the_trainers_state_comes_back(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    tensors = {**trainer_tensors(), "x": shared, "y": shared[1:3], "z": shared.expand(2, 4).T, "empty": torch.empty(0)}
    folder = sw.save(tiny_model(), tmp_path / "model", trainer=(tensors, TRAINER_DATA))
    loaded, data = checkpoints.read_trainer(folder)
    assert same_tensors(loaded, tensors)
    assert data == TRAINER_DATA
    assert list(data["generators"]["python"]) == [3, None, 2**70]


def test_a_checkpoint_without_a_trainers_state(tmp_path: Path) -> None:
    folder = sw.save(tiny_model(), tmp_path / "model")
    assert "without a trainer's state, so no run can continue from it" in refusal(checkpoints.read_trainer, folder)
    assert checkpoints.read_tokenizer(folder) is None


def test_data_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for data in ({"a": float("nan")}, {"a": torch.ones(1)}):
        with pytest.raises(InputError, match="the trainer's data is not JSON"):
            sw.save(tiny_model(), tmp_path / "model", trainer=({}, data))
    assert list(tmp_path.iterdir()) == []


def test_tokenizers_are_kept(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    inner = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "é": 1}, unk_token="é"))
    inner.add_special_tokens(["<|endoftext|>"])
    tokenizer = sw.FileTokenizer(inner.to_str())
    folder = sw.save(tiny_model(), tmp_path / "model", tokenizer=tokenizer)
    stored = checkpoints.read_tokenizer(folder)
    assert stored == ("tokenizers", tokenizer.fingerprint, tokenizer.json, {})
    assert sw.FileTokenizer(folder / "tokenizer.json").fingerprint == tokenizer.fingerprint
    stored = checkpoints.read_tokenizer(sw.save(tiny_model(), tmp_path / "bytes", tokenizer=sw.ByteTokenizer()))
    assert stored == ("bytes", sw.ByteTokenizer.fingerprint, None, {})


def test_a_tokenizer_of_more_tokens_than_the_model(tmp_path: Path) -> None:
    model = tiny_model(config=dataclasses.replace(TINY, vocab_size=256))
    said = refusal(sw.save, model, tmp_path / "model", tokenizer=sw.ByteTokenizer())
    assert "the tokenizer has 257 tokens, the model only 256" in said
    assert list(tmp_path.iterdir()) == []


# -- load_into -------------------------------------------------------------------------------------------------------


def test_load_into_keeps_the_parameters(tmp_path: Path) -> None:
    model, other = tiny_model(0), tiny_model(1)
    before = list(other.parameters())
    checkpoints.load_into(other, sw.save(model, tmp_path / "model"))
    assert same_tensors(dict(model.state_dict()), dict(other.state_dict()))
    assert all(a is b for a, b in zip(before, other.parameters(), strict=True))


def test_another_architecture_is_named_by_its_fields(tmp_path: Path) -> None:
    folder = sw.save(tiny_model(), tmp_path / "model")
    mamba, block = TINY.layers
    assert isinstance(block, sw.BlockConfig)
    assert isinstance(mamba, sw.Mamba2Config)

    def said(**changes: object) -> str:
        other = tiny_model(1, dataclasses.replace(TINY, **changes))  # type: ignore[arg-type]
        before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        message = refusal(checkpoints.load_into, other, folder)
        assert same_tensors(before, dict(other.state_dict())), "a refused checkpoint changes nothing"
        return message.removeprefix(f"{folder} is a checkpoint of a different architecture: ")

    assert said(d_model=16) == "d_model is 8 there and 16 here"
    assert said(layers=(mamba,)) == "layers is a list of 2 there and a list of 1 here"
    assert said(layers=(mamba, mamba)) == (
        "layers.1.mixer is AttentionConfig there and Mamba2Config here; layers.1.mlp is an object there and None here"
    )
    deeper = sw.Mamba2Config(d_state=8, d_head=4, n_taps=2, bias=True)
    assert said(layers=(deeper, block)) == (
        "layers.0.mixer.d_state is 4 there and 8 here; layers.0.mixer.d_head is 8 there and 4 here; "
        "layers.0.mixer.n_taps is 4 there and 2 here (and 1 more)"
    )


def test_a_bare_mixer_is_a_block_without_an_mlp(tmp_path: Path) -> None:
    mamba, block = TINY.layers
    assert isinstance(mamba, sw.Mamba2Config)
    other = tiny_model(1, dataclasses.replace(TINY, layers=(sw.BlockConfig(mixer=mamba), block)))
    checkpoints.load_into(other, sw.save(tiny_model(), tmp_path / "model"))
    assert checkpoints.differences(TINY, other.config) == []


def test_load_into_does_not_cast(tmp_path: Path) -> None:
    folder = sw.save(tiny_model(), tmp_path / "model")
    said = refusal(checkpoints.load_into, tiny_model().to(torch.float64), folder)
    assert "embedding.weight is float32, expected float64" in said


# -- what is there already -------------------------------------------------------------------------------------------


def test_a_checkpoint_is_only_replaced_on_request(tmp_path: Path) -> None:
    folder = sw.save(tiny_model(0), tmp_path / "model", trainer=(trainer_tensors(), {"step": 1}))
    said = refusal(sw.save, tiny_model(1), folder)
    assert "a checkpoint exists already; give another name, or overwrite=True" in said
    assert same_tensors(dict(sw.load(folder).state_dict()), dict(tiny_model(0).state_dict()))
    sw.save(tiny_model(1), folder, overwrite=True)
    assert same_tensors(dict(sw.load(folder).state_dict()), dict(tiny_model(1).state_dict()))
    assert not (folder / "trainer").exists(), "nothing of the old one is left in it"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_else_is_ever_replaced(tmp_path: Path, overwrite: bool) -> None:
    def said(folder: Path) -> str:
        before = sorted(path for path in tmp_path.rglob("*"))
        message = refusal(sw.save, tiny_model(), folder, overwrite=overwrite)
        assert sorted(path for path in tmp_path.rglob("*")) == before
        return message

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    assert "a folder that is not a checkpoint exists already and is never replaced" in said(tmp_path / "notes")
    (tmp_path / "file").write_text("mine")
    assert "a file exists already and is never replaced" in said(tmp_path / "file")
    assert "cannot save" in said(tmp_path / "file" / "below")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text('{"model_type": "mamba2"}')
    (foreign / "model.safetensors").write_bytes(b"theirs")
    assert ("was not written by Statewise" if overwrite else "exists already") in said(foreign)
    mixed = sw.save(tiny_model(), tmp_path / "mixed")
    for name in ("notes.txt", "tokenizer.json", "trainer/notes.txt", "trainer"):  # two of them not of this checkpoint
        (mixed / name).parent.mkdir(exist_ok=True)
        (mixed / name).write_text("mine")
        there = (mixed / name).relative_to(mixed).parts[0]
        assert (f"there is also '{there}' in it" if overwrite else "exists already") in said(mixed)
        (mixed / name).unlink()
        shutil.rmtree(mixed / "trainer", ignore_errors=True)
    trained = sw.save(tiny_model(), tmp_path / "trained", trainer=(trainer_tensors(), {"step": 1}))
    (trained / "trainer" / "notes.txt").write_text("mine")
    assert ("there is also 'trainer/notes.txt' in it" if overwrite else "exists already") in said(trained)


def test_an_empty_folder_and_a_link_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    sw.save(tiny_model(), tmp_path / "empty")
    (tmp_path / "link").symlink_to("empty")
    sw.save(tiny_model(1), tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert same_tensors(dict(sw.load(tmp_path / "empty").state_dict()), dict(tiny_model(1).state_dict()))
    assert same_tensors(dict(sw.load(tmp_path / "link").state_dict()), dict(tiny_model(1).state_dict()))


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.norm.weight[3] = float("nan")  # type: ignore[index, operator, union-attr]
    said = refusal(sw.save, model, tmp_path / "model")
    assert said.endswith("norm.weight has 1 of 8 values that are not finite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cuda
def test_on_a_cuda_device(tmp_path: Path) -> None:
    model = tiny_model().cuda()
    folder = sw.save(model, tmp_path / "model")
    on_cpu, on_cuda = sw.load(folder), sw.load(folder, device="cuda")
    assert {p.device.type for p in on_cuda.parameters()} == {"cuda"}
    assert on_cuda.head.weight is on_cuda.embedding.weight
    for one in (on_cpu, on_cuda):
        assert same_tensors({n: t.cpu() for n, t in model.state_dict().items()}, dict(one.cpu().state_dict()))
