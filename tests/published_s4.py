"""The S4 repository's models, slowly: made-up files by the published table of names, and the models' forward on them.

Filters come from the files as they are, C~ included: its generating function at the roots of unity, in float64.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH = 16  # of the filter that C~ is for


def made_up(
    version: str = "v4",
    *,
    d_model: int = 4,
    n: int = 3,
    n_layers: int = 2,
    n_systems: int = 2,
    n_heads: int = 1,
    rank: int = 1,
    both: bool = False,
    pre: bool = True,
    norm: str = "layer",
    mlp: bool = False,
    gated: bool = True,
    seed: int = 0,
) -> dict[str, Tensor]:
    """A Lightning module's state dict; version: "v4", "v4 diagonal", "v3", "v3 diagonal" or "minimal" (its layer)."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int, std: float = 0.3) -> Tensor:
        return torch.randn(shape, generator=g) * std

    file: dict[str, Tensor] = {}

    def affine(name: str, *shape: int) -> None:
        file[f"{name}.weight"], file[f"{name}.bias"] = draw(*shape, std=0.5), draw(shape[0])

    def normed(name: str) -> None:
        file[f"{name}.weight"], file[f"{name}.bias"] = 1 + draw(d_model), draw(d_model)
        if norm == "batch":
            file[f"{name}.running_mean"] = draw(d_model)
            file[f"{name}.running_var"] = 1 + draw(d_model).abs()
            file[f"{name}.num_batches_tracked"] = torch.tensor(7)

    affine("encoder.0", d_model, 2)
    affine("decoder.0.output_transform", 3, d_model)
    for i in range(n_layers):
        layer = f"model.layers.{i * (2 if mlp else 1)}"
        systems = _systems(version, draw, d_model, n, n_systems, n_heads, rank, both)
        file |= {f"{layer}.layer.{name}": tensor for name, tensor in systems.items()}
        affine(f"{layer}.layer.output_linear.0", d_model * (2 if gated else 1), n_heads * d_model)
        if version == "minimal":
            file[f"{layer}.layer.output_linear.0.weight"] = file[f"{layer}.layer.output_linear.0.weight"][..., None]
        normed(f"{layer}.norm.norm")
        if mlp:
            after = f"model.layers.{2 * i + 1}"
            affine(f"{after}.layer.ff.0.0", 2 * d_model, d_model)
            affine(f"{after}.layer.ff.2", d_model, 2 * d_model)
            normed(f"{after}.norm.norm")
    if pre:
        normed("model.norm.norm")
    return file


def example(**sizes) -> dict[str, Tensor]:
    """A file of ``example.py``, made of one whose layers are of the minimal kind."""
    names = (("model.layers.", "s4_layers."), (".layer.", "."), (".0.output_transform", ""), ("encoder.0", "encoder"))
    found = {}
    for name, tensor in made_up("minimal", pre=False, **sizes).items():
        for old, new in names:
            name = name.replace(old, new)
        if name.endswith(("norm.norm.weight", "norm.norm.bias")):
            name = f"norms.{name.split('.')[1]}.{name.rsplit('.', 1)[1]}"
        found[name] = tensor
    return found


def _systems(version, draw, H, n, S, ch, rank, both) -> dict[str, Tensor]:
    """The tensors of a layer's systems, as this version has them."""
    third, diagonal = version.startswith("v3"), "diagonal" in version
    decay, frequency = math.log(0.5) + draw(S, n), math.pi * torch.arange(n) + 0.5 + draw(S, n).abs()
    log_dt, D = math.log(0.1) + draw(H), draw(ch, H)
    B, C = draw(S, n, 2, std=0.7), draw(ch * (2 if both else 1), H, n, 2, std=0.7)
    if version == "minimal":
        decay, frequency = decay.repeat(H // S, 1), frequency.repeat(H // S, 1)
        kernel = {"C": C[0], "log_dt": log_dt, "log_A_real": decay, "A_imag": frequency}
        return {"D": D[0], **{f"kernel.{name}": tensor for name, tensor in kernel.items()}}
    if diagonal:
        if third:
            kernel = {"log_dt": log_dt, "A": draw(S, n, 2), "B": B, "inv_A_real": decay, "A_imag": frequency, "C": C}
            return {"D": D, **{f"kernel.kernel.{name}": tensor for name, tensor in kernel.items()}}
        kernel = {"inv_dt": log_dt[:, None], "A_real": decay, "A_imag": frequency, "B": B[None], "C": C}
        return {"layer.D": D, **{f"layer.kernel.{name}": tensor for name, tensor in kernel.items()}}
    P = draw(rank, S, n, 2, std=0.7)
    length = torch.tensor(LENGTH)
    if third:
        kernel = {
            "log_dt": log_dt,
            "B": B[None],
            "P": P,
            "inv_w_real": decay,
            "w_imag": -frequency,
            "C": C,
            "L": length,
        }
        return {"D": D, **{f"kernel.kernel.{name}": tensor for name, tensor in kernel.items()}}
    kernel = {"inv_dt": log_dt[:, None], "A_real": decay, "A_imag": frequency, "B": B[None], "C": C, "P": P}
    kernel["l_kernel"] = length
    return {"layer.D": D, **{f"layer.kernel.{name}": tensor for name, tensor in kernel.items()}}


def _read(layer: str, w: dict[str, Tensor]) -> dict[str, Tensor]:
    """A, B, C, P (or None), dt, D and the length of C~, complex128, of the layer of any version."""
    if f"{layer}.kernel.log_A_real" in w:
        k = f"{layer}.kernel"
        A, dt, D = -w[f"{k}.log_A_real"].exp() + 1j * w[f"{k}.A_imag"], w[f"{k}.log_dt"].exp(), w[f"{layer}.D"][None]
        return {"A": A, "B": torch.ones_like(A), "C": _c(w[f"{k}.C"])[None], "P": None, "dt": dt, "D": D, "zoh": True}
    third = f"{layer}.kernel.kernel.log_dt" in w
    k, D = (f"{layer}.kernel.kernel", w[f"{layer}.D"]) if third else (f"{layer}.layer.kernel", w[f"{layer}.layer.D"])
    if third:
        dt, zoh = w[f"{k}.log_dt"].exp(), False
        real, imag = ("inv_w_real", "w_imag") if f"{k}.inv_w_real" in w else ("inv_A_real", "A_imag")
        A = -w[f"{k}.{real}"].exp() + 1j * w[f"{k}.{imag}"]
    else:
        dt, zoh = w[f"{k}.inv_dt"][:, 0].exp(), f"{k}.P" not in w
        A = -w[f"{k}.A_real"].exp() - 1j * w[f"{k}.A_imag"]
    B, copies = _c(w[f"{k}.B"]).reshape(A.shape), len(dt) // len(A)
    P = _c(w[f"{k}.P"]).repeat(1, copies, 1) if f"{k}.P" in w else None
    return {
        "A": A.repeat(copies, 1),
        "B": B.repeat(copies, 1),
        "C": _c(w[f"{k}.C"]),
        "P": P,
        "dt": dt,
        "D": D,
        "zoh": zoh,
    }


def _c(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.contiguous())


def _filter(s: dict, length: int) -> Tensor:
    """(ch, H, length)"""
    dt = s["dt"][:, None]
    if s["P"] is None:
        z = dt * s["A"]
        if s["zoh"]:
            step, B = z.exp(), s["B"] * (z.exp() - 1) / s["A"]
        else:
            step, B = (1 + z / 2) / (1 - z / 2), s["B"] * dt / (1 - z / 2)
        powers = step[..., None] ** torch.arange(length)
        return 2 * torch.einsum("chn,hn,hnl->chl", s["C"], B, powers).real
    assert length <= LENGTH
    A, B, C, P = (torch.cat((m, m.conj()), -1) for m in (s["A"], s["B"], s["C"], s["P"]))
    found = torch.zeros(*C.shape[:2], LENGTH, dtype=torch.float64)
    for h in range(len(A)):
        matrix = torch.diag(A[h]) - sum(torch.outer(p, p.conj()) for p in P[:, h])
        one = torch.eye(len(matrix), dtype=matrix.dtype)
        left = torch.linalg.inv(one - dt[h] / 2 * matrix)
        step, entering = left @ (one + dt[h] / 2 * matrix), left @ (dt[h] * B[h])
        roots = torch.exp(-2j * math.pi * torch.arange(LENGTH, dtype=torch.float64) / LENGTH)
        values = torch.stack([C[:, h] @ torch.linalg.inv(one - step * root) @ entering for root in roots], -1)
        found[:, h] = torch.fft.ifft(values).real
    return found[..., :length]


def _layer(w: dict[str, Tensor], layer: str, u: Tensor, both: bool) -> Tensor:
    """u: (length, d_model)."""
    s, length = _read(layer, w), len(u)
    k = _filter(s, length)
    if both:
        ahead, behind = k.chunk(2)
        k = F.pad(ahead, (0, length)) + F.pad(behind.flip(-1), (length, 0))
    spectrum = torch.fft.rfft(k, n=2 * length) * torch.fft.rfft(u.T, n=2 * length)
    y = torch.fft.irfft(spectrum, n=2 * length)[..., :length] + s["D"][..., None] * u.T
    y = F.gelu(y.flatten(0, 1).T)
    weight = w[f"{layer}.output_linear.0.weight"]
    y = y @ weight.reshape(len(weight), -1).T + w[f"{layer}.output_linear.0.bias"]
    return F.glu(y, -1) if y.shape[-1] == 2 * u.shape[-1] else y


def outputs(file: dict[str, Tensor], x: Tensor, *, both: bool = False, pool: bool = True, eps: float = 1e-5) -> Tensor:
    """x: (length, 2) -> (3,), or (length, 3) without pooling; of a file of :func:`made_up`."""
    w = {name: tensor.double() for name, tensor in file.items()}

    def affine(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        if f"{name}.running_mean" in w:
            return (x - w[f"{name}.running_mean"]) / (w[f"{name}.running_var"] + eps).sqrt() * weight + bias
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    pre, i = "model.norm.norm.weight" in w, 0
    x = affine("encoder.0", x.double())
    while f"model.layers.{i}.norm.norm.weight" in w:
        here = f"model.layers.{i}"
        u = norm(f"{here}.norm.norm", x) if pre else x
        if f"{here}.layer.ff.2.weight" in w:
            y = affine(f"{here}.layer.ff.2", F.gelu(affine(f"{here}.layer.ff.0.0", u)))
        else:
            y = _layer(w, f"{here}.layer", u, both)
        x = x + y if pre else norm(f"{here}.norm.norm", x + y)
        i += 1
    if pre:
        x = norm("model.norm.norm", x)
    return affine("decoder.0.output_transform", x.mean(0) if pool else x)
