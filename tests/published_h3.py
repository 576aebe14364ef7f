"""H3 as it was published, slowly: made-up files by the published table of names, and the model's forward on them.

Every recurrence is stepped in float64, as the ``step`` functions of the published modules have it.
"""

from __future__ import annotations

import math
import re

import torch
import torch.nn.functional as F
from torch import Tensor


def made_up(
    *, d_model: int = 8, n_layers: int = 3, n_state: int = 8, attention_at=(1,), n_heads=2, d_rotary=0, seed=0
) -> dict[str, Tensor]:
    """A state dict with the last names: 21 tokens, of which the last three are padding."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int, std: float = 0.3) -> Tensor:
        return torch.randn(shape, generator=g) * std

    embedding = draw(21, d_model, std=1.0)
    file = {"backbone.embeddings.word_embeddings.weight": embedding}

    def linear(name: str, out: int, inner: int) -> None:
        file[f"{name}.weight"], file[f"{name}.bias"] = draw(out, inner), draw(out)

    def norm(name: str) -> None:
        file[f"{name}.weight"], file[f"{name}.bias"] = 1 + draw(d_model), draw(d_model)

    for i in range(n_layers):
        layer = f"backbone.layers.{i}"
        mixer = f"{layer}.mixer"
        if i in attention_at:
            linear(f"{mixer}.Wqkv", 3 * d_model, d_model)
            linear(f"{mixer}.out_proj", d_model, d_model)
            if d_rotary:
                file[f"{mixer}.rotary_emb.inv_freq"] = 1 / 10_000 ** (torch.arange(0, d_rotary, 2) / d_rotary)
        else:
            for name in ("q_proj", "k_proj", "v_proj", "output_linear"):
                linear(f"{mixer}.{name}", d_model, d_model)
            file[f"{mixer}.ssm_k_D"], file[f"{mixer}.D"] = draw(d_model), draw(d_model)
            file[f"{mixer}.ssm_k_kernel.kernel.B"] = draw(d_model, n_state)
            file[f"{mixer}.ssm_k_kernel.kernel.C"] = draw(1, d_model, n_state)
            kernel, half = f"{mixer}.kernel.kernel", n_state // 2
            file[f"{kernel}.C"] = draw(1, d_model, half, 2, std=1.0)
            file[f"{kernel}.B"] = draw(d_model, half, 2, std=1.0)
            file[f"{kernel}.log_dt"] = math.log(0.05) + draw(d_model)
            file[f"{kernel}.inv_A_real"] = math.log(0.5) + draw(d_model, half)
            file[f"{kernel}.A_imag"] = math.pi * torch.arange(half) + draw(d_model, half)
        norm(f"{layer}.norm1")
        norm(f"{layer}.norm2")
        linear(f"{layer}.mlp.fc1", 4 * d_model, d_model)
        linear(f"{layer}.mlp.fc2", d_model, 4 * d_model)
    norm("backbone.ln_f")
    file["lm_head.weight"] = embedding
    return file


def with_norms_after(file: dict[str, Tensor]) -> dict[str, Tensor]:
    """The order of norms of earlier files: one before the first layer, then each after its branch."""
    n_layers = 1 + max(int(m[1]) for name in file if (m := re.match(r"backbone\.layers\.(\d+)\.", name)))
    order = [f"layers.{i}.norm{j}" for i in range(n_layers) for j in (1, 2)]
    renamed = dict(zip([*order, "ln_f"], ["ln_0", *order], strict=True))
    old = {}
    for name, tensor in file.items():
        stem, _, part = name.removeprefix("backbone.").rpartition(".")
        old[f"backbone.{renamed[stem]}.{part}" if stem in renamed else name] = tensor
    return old


def with_first_names(file: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of the first files: s4seq.encoder., its norm, and an embedding of its own."""
    old = {}
    for name, tensor in with_norms_after(file).items():
        name = name.replace("backbone.embeddings.word_embeddings.", "embedding.")
        old[name.replace("backbone.ln_0.", "backbone.norm.").replace("backbone.", "s4seq.encoder.")] = tensor
    return old


def logits(file: dict[str, Tensor], tokens: Tensor, *, n_heads: int) -> Tensor:
    """tokens (length,) -> (length, vocab_size), in float64."""
    w = {name: tensor.double() for name, tensor in file.items()}
    x = w["backbone.embeddings.word_embeddings.weight"][tokens]
    d_model = x.shape[-1]

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (d_model,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    i = 0
    while f"backbone.layers.{i}.norm1.weight" in w:
        layer = f"backbone.layers.{i}"
        u = norm(f"{layer}.norm1", x)
        if f"{layer}.mixer.Wqkv.weight" in w:
            y = _attention(w, f"{layer}.mixer", linear(f"{layer}.mixer.Wqkv", u), n_heads)
            x = x + linear(f"{layer}.mixer.out_proj", y)
        else:
            q, k, v = (linear(f"{layer}.mixer.{letter}_proj", u) for letter in "qkv")
            y = q * _diagonal(w, f"{layer}.mixer", _shift(w, f"{layer}.mixer", k) * v)
            x = x + linear(f"{layer}.mixer.output_linear", y)
        hidden = linear(f"{layer}.mlp.fc1", norm(f"{layer}.norm2", x))
        x = x + linear(f"{layer}.mlp.fc2", F.gelu(hidden, approximate="tanh"))
        i += 1
    return norm("backbone.ln_f", x) @ w["backbone.embeddings.word_embeddings.weight"].T


def _shift(w: dict[str, Tensor], mixer: str, k: Tensor) -> Tensor:
    B, C = w[f"{mixer}.ssm_k_kernel.kernel.B"], w[f"{mixer}.ssm_k_kernel.kernel.C"][0]
    state, outputs = torch.zeros_like(B), []
    for k_t in k:
        state = F.pad(state, (1, -1)) + B * k_t[:, None]
        outputs.append((C * state).sum(-1) + w[f"{mixer}.ssm_k_D"] * k_t)
    return torch.stack(outputs)


def _diagonal(w: dict[str, Tensor], mixer: str, u: Tensor) -> Tensor:
    kernel = f"{mixer}.kernel.kernel"
    A = -w[f"{kernel}.inv_A_real"].exp() + 1j * w[f"{kernel}.A_imag"]
    dt = w[f"{kernel}.log_dt"].exp()[:, None]
    B, C = torch.view_as_complex(w[f"{kernel}.B"]), torch.view_as_complex(w[f"{kernel}.C"][0])
    dA, dB = (1 + dt * A / 2) / (1 - dt * A / 2), B * dt / (1 - dt * A / 2)
    state, outputs = torch.zeros_like(dA), []
    for u_t in u:
        state = dA * state + dB * u_t[:, None]
        outputs.append(2 * (C * state).sum(-1).real + w[f"{mixer}.D"] * u_t)
    return torch.stack(outputs)


def _attention(w: dict[str, Tensor], mixer: str, qkv: Tensor, n_heads: int) -> Tensor:
    length = len(qkv)
    q, k, v = qkv.view(length, 3, n_heads, -1).unbind(1)
    if f"{mixer}.rotary_emb.inv_freq" in w:
        half = len(w[f"{mixer}.rotary_emb.inv_freq"])  # its numbers are those of float32, which is not the point here
        frequencies = 10_000 ** (-torch.arange(half, dtype=torch.float64) / half)
        q, k = _turned(q, frequencies), _turned(k, frequencies)
    outputs = torch.empty_like(q)
    for t in range(length):
        for head in range(n_heads):
            scores = k[: t + 1, head] @ q[t, head] / math.sqrt(q.shape[-1])
            outputs[t, head] = scores.softmax(0) @ v[: t + 1, head]
    return outputs.flatten(1)


def _turned(x: Tensor, frequencies: Tensor) -> Tensor:
    """Feature i and feature i + d_rotary / 2 are a pair, turned by the position times their frequency."""
    x, half = x.clone(), len(frequencies)
    for t in range(len(x)):
        cos, sin = (t * frequencies).cos(), (t * frequencies).sin()
        first, second = x[t, :, :half].clone(), x[t, :, half : 2 * half].clone()
        x[t, :, :half] = first * cos - second * sin
        x[t, :, half : 2 * half] = first * sin + second * cos
    return x
