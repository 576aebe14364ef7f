"""A model and its published folder, for the tests of what is read and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import statewise as sw
from statewise.checkpoints.convert import save_as

TOKENS = torch.arange(40)[None] % 16
CONFIG = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.MambaConfig(d_state=4),) * 2)


def build_model() -> sw.LanguageModel:
    torch.manual_seed(0)
    return CONFIG.build().eval()


def publish(model: sw.LanguageModel, path: Path) -> Path:
    """A published folder: safetensors and config.json."""
    return save_as(model, path / "published", "transformers")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def replaced(folder: Path, name: str, content: Any) -> Path:
    """The folder with its weights in a file of torch.save instead."""
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / name)
    return folder


def same_logits(one: Any, other: sw.LanguageModel) -> bool:
    return torch.equal(one(TOKENS)[0], other(TOKENS)[0])
