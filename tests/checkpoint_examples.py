"""Small models and checkpoints for the tests of checkpoints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statewise as sw
from statewise.errors import CheckpointError

TINY = sw.LanguageModelConfig(
    vocab_size=257,
    d_model=8,
    layers=(
        sw.Mamba2Config(d_state=4, d_head=8),
        sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2, window=8), mlp=sw.MLPConfig(expand=1)),
    ),
)
# Big enough that a save takes some milliseconds
WIDE = sw.LanguageModelConfig(vocab_size=1000, d_model=64, layers=(sw.Mamba2Config(d_state=16),), tie_embeddings=False)
TRAINER_DATA = {"step": 7, "validation_bits_per_byte": 2.5, "generators": {"python": [3, None, 2**70]}}


def tiny_model(seed: int = 0, config: sw.LanguageModelConfig = TINY) -> sw.LanguageModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return config.build().eval()


def trainer_tensors() -> dict[str, Tensor]:
    return {"optimizer.a": torch.arange(6.0).view(2, 3), "step": torch.tensor(7), "mask": torch.tensor([True, False])}


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message of the CheckpointError that the call has to raise."""
    with pytest.raises(CheckpointError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def rewrite_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """config.json as somebody would write it who can compute a checksum."""
    data = json.loads((folder / "config.json").read_text())
    del data["sha256"]
    for name, record in data["files"].items():
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            record.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    change(data)
    data["sha256"] = hashlib.sha256((json.dumps(data, indent=2) + "\n").encode()).hexdigest()
    (folder / "config.json").write_text(json.dumps(data, indent=2) + "\n")


def rewrite_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """model.safetensors with some tensors changed, and the checksums made right again."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    rewrite_config(folder, lambda data: None)
