"""Small models for GGUF, and the recurrences that llama.cpp's graphs of "mamba" and "mamba2" stand for, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statewise.checkpoints.convert.gguf import read_gguf, write_gguf
from statewise.checkpoints.empty import build_empty, fill
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.mixers.base import MixerConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.base import Model
from statewise.models.language_model import LanguageModel, LanguageModelConfig

pytest.importorskip("gguf")  # for all tests with these

KINDS: dict[str, MixerConfig] = {
    "mamba": MambaConfig(d_state=8, n_taps=3, dt_rank=5),
    "falcon-mamba": MambaConfig(norm_dt_b_c=True, norm_eps=1e-5),
    "mamba2": Mamba2Config(d_state=16, d_head=8, n_groups=2),
}


def build(kind: str, *, tied: bool = True, vocab_size: int = 260, d_model: int = 32) -> LanguageModel:
    """Two layers, every parameter drawn, so that no tensor can be taken for another."""
    torch.manual_seed(0)
    config = LanguageModelConfig(vocab_size=vocab_size, d_model=d_model, layers=(KINDS[kind],) * 2, tie_embeddings=tied)
    model = config.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write(model: Model, path: Path, **options: Any) -> Path:
    write_gguf(model.config, stored_tensors(model), path, **options)
    return path


def read(path: Path) -> Model:
    config, tensors = read_gguf(path)
    model = build_empty(config)
    fill(model, tensors.items())
    return model.eval()


def in_parts(path: Path, n_tensors: int) -> list[Path]:
    """The model of one file as files of so many tensors each, in a new folder beside it, written by the package."""
    from gguf import GGMLQuantizationType

    from statewise.checkpoints.convert.gguf_file import VALUE_TYPES, _Writer, read_file

    file, folder = read_file(path), path.parent / "parts"
    folder.mkdir()
    writer = _Writer(folder / path.name, str(file.metadata["general.architecture"]), split_max_tensors=n_tensors)
    for key, value in file.metadata.items():
        if key != "general.architecture":
            writer.add_key_value(key, value, VALUE_TYPES[type(value)])
    for name, tensor in file.tensors.items():
        writer.add_tensor(name, tensor.data, raw_dtype=GGMLQuantizationType[tensor.type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.iterdir())


def recurrence(values: Mapping[str, Any], theirs: Mapping[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits (length, vocabulary) by the plain step of each layer, from the file's own names and values alone."""
    arch = str(values["general.architecture"])
    eps = float(values[f"{arch}.attention.layer_norm_rms_epsilon"])
    w = {name: tensor.astype(np.float64) for name, tensor in theirs.items()}
    x = w["token_embd.weight"][tokens]
    layer = mamba_layer if arch == "mamba" else mamba2_layer
    for i in range(int(values[f"{arch}.block_count"])):
        mine = {name.removeprefix(f"blk.{i}."): t for name, t in w.items() if name.startswith(f"blk.{i}.")}
        x = x + layer(values, mine, rms(x, eps) * mine["attn_norm.weight"], eps)
    return rms(x, eps) * w["output_norm.weight"] @ w.get("output.weight", w["token_embd.weight"]).T


def mamba_layer(values: Mapping[str, Any], w: Mapping[str, np.ndarray], u: np.ndarray, eps: float) -> np.ndarray:
    n_state, rank = int(values["mamba.ssm.state_size"]), int(values["mamba.ssm.time_step_rank"])
    x, z = np.split(u @ w["ssm_in.weight"].T, 2, -1)
    x = silu(convolved(x, w))
    dt, B, C = np.split(x @ w["ssm_x.weight"].T, [rank, rank + n_state], -1)
    if values["mamba.ssm.dt_b_c_rms"]:
        dt, B, C = rms(dt, eps), rms(B, eps), rms(C, eps)
    dt = np.logaddexp(0, dt @ w["ssm_dt.weight"].T + w["ssm_dt.bias"])
    h, y = np.zeros(w["ssm_a"].shape), np.empty_like(x)
    for t in range(len(x)):
        h = np.exp(dt[t][:, None] * w["ssm_a"]) * h + (dt[t] * x[t])[:, None] * B[t]
        y[t] = h @ C[t] + w["ssm_d"] * x[t]
    return y * silu(z) @ w["ssm_out.weight"].T


def mamba2_layer(values: Mapping[str, Any], w: Mapping[str, np.ndarray], u: np.ndarray, eps: float) -> np.ndarray:
    keys = ("inner_size", "state_size", "time_step_rank", "group_count")
    d_inner, n_state, n_heads, n_groups = (int(values[f"mamba2.ssm.{key}"]) for key in keys)
    wide = d_inner + 2 * n_groups * n_state
    z, xBC, dt = np.split(u @ w["ssm_in.weight"].T, [d_inner, d_inner + wide], -1)
    x, B, C = np.split(silu(convolved(xBC, w)), [d_inner, d_inner + n_groups * n_state], -1)
    x = x.reshape(len(u), n_heads, -1)
    B, C = (np.repeat(m.reshape(len(u), n_groups, n_state), n_heads // n_groups, 1) for m in (B, C))
    dt = np.logaddexp(0, dt + w["ssm_dt.bias"])
    h, y = np.zeros((n_heads, x.shape[2], n_state)), np.empty_like(x)
    for t in range(len(x)):
        kept = np.exp(dt[t] * w["ssm_a"][:, 0])[:, None, None] * h
        h = kept + (dt[t][:, None] * x[t])[:, :, None] * B[t][:, None, :]
        y[t] = (h * C[t][:, None, :]).sum(-1) + w["ssm_d"] * x[t]
    gated = (y.reshape(len(u), d_inner) * silu(z)).reshape(len(u), n_groups, -1)
    return (rms(gated, eps) * w["ssm_norm.weight"]).reshape(len(u), d_inner) @ w["ssm_out.weight"].T


def convolved(x: np.ndarray, w: Mapping[str, np.ndarray]) -> np.ndarray:
    """Causal, the taps oldest first."""
    taps = w["ssm_conv1d.weight"]
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, x.shape[1])), x])
    return sum(padded[k : k + len(x)] * taps[:, k] for k in range(taps.shape[1])) + w["ssm_conv1d.bias"]


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))
