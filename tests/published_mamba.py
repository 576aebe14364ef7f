"""``mamba_ssm`` as it was published, slowly: made-up files by its constructors' shapes, and the forward on them.

Every recurrence is stepped in float64 and every convolution is a sum over its taps, from the arguments of the published
modules and their defaults alone. Nothing of Statewise is used.
"""

from __future__ import annotations

import math
from typing import Any

import published_mamba3
import torch
import torch.nn.functional as F
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]
MAMBA2 = {"d_state": 128, "d_conv": 4, "expand": 2, "headdim": 64, "ngroups": 1, "norm_before_gate": False}


def layer_kinds(config: Config) -> list[str]:
    ssm = config.get("ssm_cfg", {}).get("layer", "Mamba1")
    return ["attention" if i in config.get("attn_layer_idx", []) else ssm for i in range(config["n_layer"])]


def padded_vocabulary(config: Config) -> int:
    size, multiple = config.get("vocab_size", 50277), config.get("pad_vocab_size_multiple", 8)
    return size + (multiple - size % multiple) % multiple


def made_up(config: Config, *, seed: int = 0, head: bool = True, dtype: torch.dtype = torch.float32) -> Tensors:
    """A state dict of the shapes that the constructors make. head: a tied head is there a second time."""
    g = torch.Generator().manual_seed(seed)
    file: Tensors = {}

    def draw(name: str, *shape: int, around: float = 0.0, std: float | None = None) -> None:
        scale = std if std is not None else (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        file[name] = (around + scale * torch.randn(shape, generator=g)).to(dtype)

    def linear(name: str, out: int, inner: int, bias: bool) -> None:
        draw(f"{name}.weight", out, inner)
        if bias:
            draw(f"{name}.bias", out)

    def norm(name: str, width: int) -> None:
        draw(f"{name}.weight", width, around=1.0)
        if not config.get("rms_norm", True):
            draw(f"{name}.bias", width)

    d, vocabulary = config["d_model"], padded_vocabulary(config)
    draw("backbone.embedding.weight", vocabulary, d, std=1.0)
    for i, kind in enumerate(layer_kinds(config)):
        at = f"backbone.layers.{i}"
        norm(f"{at}.norm", d)
        mixer = f"{at}.mixer"
        if kind == "attention":
            c = config["attn_cfg"]
            d_head = c.get("head_dim") or d // c["num_heads"]
            n_kv = c.get("num_heads_kv") or c["num_heads"]
            width = d_head * (c["num_heads"] + 2 * n_kv)
            linear(f"{mixer}.in_proj", width, d, c.get("qkv_proj_bias", True))
            if c.get("d_conv", 0):
                draw(f"{mixer}.conv1d.weight", width, 1, c["d_conv"])
                draw(f"{mixer}.conv1d.bias", width)
            linear(f"{mixer}.out_proj", d, d_head * c["num_heads"], c.get("out_proj_bias", True))
        elif kind == "Mamba3":
            for name, (shape, around) in published_mamba3.shapes(config["ssm_cfg"], d).items():
                draw(f"{mixer}.{name}", *shape, around=around)
        else:
            c = config.get("ssm_cfg", {})
            inner, bias = c.get("expand", 2) * d, c.get("bias", False)
            if kind == "Mamba1":
                n = c.get("d_state", 16)
                rank = c.get("dt_rank", "auto")
                rank = math.ceil(d / 16) if rank == "auto" else rank
                width, n_dt = inner, (inner, n)
                linear(f"{mixer}.in_proj", 2 * inner, d, bias)
                linear(f"{mixer}.x_proj", rank + 2 * n, inner, False)
                linear(f"{mixer}.dt_proj", inner, rank, True)
                draw(f"{mixer}.D", inner, around=1.0)
            else:
                c = MAMBA2 | c
                n_heads = inner // c["headdim"]
                width, n_dt = inner + 2 * c["ngroups"] * c["d_state"], (n_heads,)
                linear(f"{mixer}.in_proj", inner + width + n_heads, d, bias)
                draw(f"{mixer}.dt_bias", n_heads, around=-2.0)
                draw(f"{mixer}.D", n_heads, around=1.0)
                draw(f"{mixer}.norm.weight", inner, around=1.0)
            draw(f"{mixer}.A_log", *n_dt, std=0.7)
            draw(f"{mixer}.conv1d.weight", width, 1, c.get("d_conv", 4))
            if c.get("conv_bias", True):
                draw(f"{mixer}.conv1d.bias", width)
            linear(f"{mixer}.out_proj", d, inner, bias)
        if config.get("d_intermediate", 0):
            hidden = 128 * math.ceil(config["d_intermediate"] / 128)
            norm(f"{at}.norm2", d)
            linear(f"{at}.mlp.fc1", 2 * hidden, d, False)
            linear(f"{at}.mlp.fc2", d, hidden, False)
    norm("backbone.norm_f", d)
    if not config.get("tie_embeddings", True):
        draw("lm_head.weight", vocabulary, d)
    elif head:
        file["lm_head.weight"] = file["backbone.embedding.weight"]
    return file


class Published:
    """tokens (length,) -> logits (length, vocabulary), of one sequence."""

    def __init__(self, config: Config, tensors: Tensors) -> None:
        self.config, self.tensors = config, {name: tensor.double() for name, tensor in tensors.items()}

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.tensors["backbone.embedding.weight"][tokens]
        for i, kind in enumerate(layer_kinds(self.config)):
            at = f"backbone.layers.{i}"
            mixer = {
                "attention": self.attention,
                "Mamba1": self.mamba,
                "Mamba2": self.mamba2,
                "Mamba3": self.mamba3,
            }[kind]
            x = x + mixer(f"{at}.mixer", self.norm(f"{at}.norm", x))
            if self.config.get("d_intermediate", 0):
                value, gate = self.linear(f"{at}.mlp.fc1", self.norm(f"{at}.norm2", x)).chunk(2, -1)
                x = x + self.linear(f"{at}.mlp.fc2", value * silu(gate))
        x = self.norm("backbone.norm_f", x)
        tied = self.config.get("tie_embeddings", True)
        return x @ self.tensors["backbone.embedding.weight" if tied else "lm_head.weight"].T

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.tensors[f"{name}.weight"].T
        return y + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else y

    def norm(self, name: str, x: Tensor) -> Tensor:
        if self.config.get("rms_norm", True):
            return rms(x) * self.tensors[f"{name}.weight"]
        centred = x - x.mean(-1, keepdim=True)
        return rms(centred) * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def convolution(self, name: str, x: Tensor) -> Tensor:
        """The last tap meets the present step."""
        weight = self.tensors[f"{name}.weight"][:, 0]
        y = torch.zeros_like(x)
        for t in range(len(x)):
            for tap in range(weight.shape[1]):
                source = t - (weight.shape[1] - 1 - tap)
                if source >= 0:
                    y[t] += weight[:, tap] * x[source]
        return y + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else y

    def mamba(self, at: str, u: Tensor) -> Tensor:
        x, z = self.linear(f"{at}.in_proj", u).chunk(2, -1)
        x = silu(self.convolution(f"{at}.conv1d", x))
        A, D = -self.tensors[f"{at}.A_log"].exp(), self.tensors[f"{at}.D"]
        n, rank = A.shape[1], self.tensors[f"{at}.dt_proj.weight"].shape[1]
        dt, B, C = self.linear(f"{at}.x_proj", x).split([rank, n, n], -1)
        dt = F.softplus(self.linear(f"{at}.dt_proj", dt))
        h, y = torch.zeros_like(A), torch.zeros_like(x)
        for t in range(len(x)):
            h = (dt[t, :, None] * A).exp() * h + dt[t, :, None] * B[t] * x[t, :, None]
            y[t] = (h * C[t]).sum(-1) + D * x[t]
        return self.linear(f"{at}.out_proj", y * silu(z))

    def mamba2(self, at: str, u: Tensor) -> Tensor:
        c = MAMBA2 | self.config["ssm_cfg"]
        inner, n, p, g = c["expand"] * u.shape[1], c["d_state"], c["headdim"], c["ngroups"]
        n_heads = inner // p
        z, xBC, dt = self.linear(f"{at}.in_proj", u).split([inner, inner + 2 * g * n, n_heads], -1)
        xBC = silu(self.convolution(f"{at}.conv1d", xBC))
        x, B, C = xBC[:, :inner], xBC[:, inner : inner + g * n], xBC[:, inner + g * n :]
        low, high = c.get("dt_limit", (0.0, math.inf))
        dt = F.softplus(dt + self.tensors[f"{at}.dt_bias"]).clamp(low, high)
        A, D = -self.tensors[f"{at}.A_log"].exp(), self.tensors[f"{at}.D"]
        y = torch.zeros_like(x)
        for head in range(n_heads):
            group, own = head // (n_heads // g), slice(head * p, (head + 1) * p)
            of_group = slice(group * n, (group + 1) * n)
            h = u.new_zeros(p, n)
            for t in range(len(x)):
                step = dt[t, head]
                h = (step * A[head]).exp() * h + step * torch.outer(x[t, own], B[t, of_group])
                y[t, own] = h @ C[t, of_group] + D[head] * x[t, own]
        weight = self.tensors[f"{at}.norm.weight"]
        groups = (len(x), g, inner // g)
        if c["norm_before_gate"]:
            y = rms(y.reshape(groups)).reshape(len(x), inner) * weight * silu(z)
        else:
            y = rms((y * silu(z)).reshape(groups)).reshape(len(x), inner) * weight
        return self.linear(f"{at}.out_proj", y)

    def mamba3(self, at: str, u: Tensor) -> Tensor:
        own = {name[len(at) + 1 :]: tensor for name, tensor in self.tensors.items() if name.startswith(f"{at}.")}
        return published_mamba3.forward(self.config["ssm_cfg"], own, u)

    def attention(self, at: str, u: Tensor) -> Tensor:
        c = self.config["attn_cfg"]
        n_heads, n_kv = c["num_heads"], c.get("num_heads_kv") or c["num_heads"]
        d_head = c.get("head_dim") or u.shape[1] // n_heads
        qkv = self.linear(f"{at}.in_proj", u)
        if c.get("d_conv", 0):
            qkv = self.convolution(f"{at}.conv1d", qkv)
        heads = qkv.reshape(len(u), -1, d_head)
        q, k, v = heads[:, :n_heads], heads[:, n_heads : n_heads + n_kv], heads[:, n_heads + n_kv :]
        d_rotary, base = c.get("rotary_emb_dim", 0), c.get("rotary_emb_base", 10000.0)
        q, k = (turned(m, d_rotary, base) for m in (q, k))
        y = torch.zeros(len(u), n_heads, d_head, dtype=torch.float64)
        for t in range(len(u)):
            for head in range(n_heads):
                shared = head // (n_heads // n_kv)
                weights = (k[: t + 1, shared] @ q[t, head] / math.sqrt(d_head)).softmax(0)
                y[t, head] = weights @ v[: t + 1, shared]
        return self.linear(f"{at}.out_proj", y.reshape(len(u), -1))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def turned(x: Tensor, d_rotary: int, base: float) -> Tensor:
    """Rotary positions, feature i with feature i + d_rotary / 2: x (length, heads, d_head)."""
    half = d_rotary // 2
    y = x.clone()
    for t in range(len(x)):
        for i in range(half):
            angle = t * base ** (-2 * i / d_rotary)
            first, second = x[t, :, i], x[t, :, i + half]
            y[t, :, i] = first * math.cos(angle) - second * math.sin(angle)
            y[t, :, i + half] = second * math.cos(angle) + first * math.sin(angle)
    return y
