"""Good small files of models, of ours and of others, and what reads them, to the end."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import statewise as sw
from statewise.checkpoints.convert.source import Source
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer


def small_model(vocab_size: int = 16) -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = (sw.MambaConfig(d_state=2), sw.MambaConfig(d_state=2))
    return sw.LanguageModelConfig(vocab_size=vocab_size, d_model=16, layers=layers).build().eval()


def write_published(folder: Path) -> None:
    from statewise.checkpoints.convert import save_as

    save_as(small_model(), folder / "m", "transformers")


def write_index(folder: Path) -> None:
    write_published(folder)
    (folder / "m" / "model.safetensors").rename(folder / "m" / "model-1.safetensors")
    from safetensors import safe_open

    with safe_open(folder / "m" / "model-1.safetensors", "pt") as file:
        weight_map = dict.fromkeys(file.keys(), "model-1.safetensors")
    (folder / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_torch(folder: Path, form: str) -> None:
    from safetensors.torch import load_file

    write_published(folder)
    tensors: dict[str, Any] = load_file(folder / "m" / "model.safetensors")
    path = folder / "m" / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=form == "zip")
    (folder / "m" / "model.safetensors").unlink()
    if form == "zip":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        path.unlink()
        for file in (folder / "m").iterdir():
            file.unlink()
        (folder / "m").rmdir()


def read_torch(folder: Path) -> None:
    from statewise.checkpoints.convert.source import find_source
    from statewise.checkpoints.convert.weights import read_weights

    _, tensors = read_weights(find_source(folder / "pytorch_model.pt"))
    sum(float(tensor.float().sum()) for tensor in tensors.values())


def small_rwkv7() -> sw.LanguageModel:
    torch.manual_seed(0)
    first = sw.RWKV7Config(d_head=4, decay_rank=2, rate_rank=2, gate_rank=2)
    mixers = (first, sw.ChannelMixConfig(), replace(first, value_rank=2), sw.ChannelMixConfig())
    layers = tuple(sw.BlockConfig(mixer=mixer, norm="layer") for mixer in mixers)
    fields = {"norm": "layer", "embedding_norm": "layer", "tie_embeddings": False}
    return sw.LanguageModelConfig(vocab_size=16, d_model=8, layers=layers, **fields).build().eval()


def write_fla(folder: Path) -> None:
    from statewise.checkpoints.convert import save_as

    save_as(small_rwkv7(), folder / "m", "fla")


def write_blinkdl(folder: Path) -> None:
    """By BlinkDL's names; their shapes, which say what the model is, stand in the header of safetensors."""
    from safetensors.torch import save_file

    from statewise.checkpoints.convert.rwkv7 import BLINKDL, entries, write_entries

    model = small_rwkv7()
    tensors = write_entries(entries(BLINKDL, model.config), model.state_dict())
    (folder / "m").mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "m" / "model.safetensors")


def write_checkpoint(folder: Path) -> None:
    sw.save(small_model(), folder / "m")


def write_gguf(folder: Path) -> None:
    from statewise.checkpoints.convert import save_as

    save_as(small_model(512), folder / "m.gguf", "gguf", tokenizer=ByteTokenizer())


def read_gguf(folder: Path) -> None:
    from statewise.checkpoints.convert.gguf import gguf_tokenizer

    text = gguf_tokenizer(folder / "m.gguf")
    if text is not None:
        FileTokenizer(text, name="m.gguf").encode("ab")
    load(folder, "m.gguf")


def write_two_files(folder: Path) -> None:
    """GPT-2's."""
    (folder / "vocab.json").write_text('{"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3, "c": 4}')
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")


def read_two_files(folder: Path) -> None:
    found = Source(folder, folder / "model.safetensors").tokenizer
    if found is not None:
        FileTokenizer(found.json, name=str(found.file)).encode("ab")


def write_state(folder: Path) -> None:
    from statewise.checkpoints import save_state

    model = small_model()
    _, state = model(torch.zeros(1, 3, dtype=torch.int64), model.initial_state(1))
    save_state(state, folder / "state.safetensors", model=model)


def read_state(folder: Path) -> None:
    from statewise.checkpoints import load_state
    from statewise.checkpoints.tensor_files import read_tensors

    read_tensors(folder / "state.safetensors")
    load_state(folder / "state.safetensors", model=small_model())


def load(folder: Path, name: str = "m") -> None:
    sw.load(folder / name)
