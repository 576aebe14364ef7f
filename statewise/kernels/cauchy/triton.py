"""The launches of the Cauchy sum in Triton (triton_kernels.py): one forwards, one backwards, and one for nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from statewise.kernels.cauchy import pytorch
from statewise.kernels.cauchy.triton_kernels import change_of_nodes, sums_over_nodes, sums_over_poles
from statewise.kernels.gpu import on_device_of, options, pieces
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.triton_products import product
from statewise.kernels.stored import plain

HALF = 8  # numerators of a program: with alpha and beta the 16 rows that a matrix instruction has
REGISTERS = 255
_LEAST_BLOCKS = 4  # of a piece


class Tile(NamedTuple):
    """What a program holds: nodes and poles, and its warps."""

    nodes: int
    poles: int
    warps: int


AHEAD, BACK, NODES = Tile(64, 16, 4), Tile(32, 16, 4), Tile(64, 16, 4)


def refusal(v: Tensor, z: Tensor, Lambda: Tensor, with_z: bool = False) -> str | None:
    return None


def forward(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """v (w, k, n), z (1 or w, m), Lambda (w, n), of one complex dtype -> (w, k, m)."""
    (w, k, n), m = v.shape, z.shape[1]
    if not w * k * n * m:
        return pytorch.forward(v, z, Lambda)
    y = torch.empty(w, k, m, dtype=v.dtype, device=v.device)
    blocks = triton.cdiv(m, AHEAD.nodes)
    with on_device_of(v):
        sums_over_poles[(w * blocks, triton.cdiv(k, HALF))](
            pytorch.numerators_of(v, Lambda), _pairs(z), _pairs(Lambda), torch.view_as_real(y),
            k, n, m, _row(z), blocks, **_fixed(v, AHEAD), **options(v.device, AHEAD.warps, REGISTERS),
        )  # fmt: skip
    return y


def backward(grad: Tensor, v: Tensor, z: Tensor, Lambda: Tensor, with_z: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of v, z (zeros unless ``with_z``) and Lambda."""
    (w, k, n), m = v.shape, z.shape[1]
    if not w * k * n * m:
        return pytorch.backward(grad, v, z, Lambda, with_z)
    of_numerators, of_poles, blocks = triton.cdiv(k, HALF), triton.cdiv(n, BACK.poles), triton.cdiv(m, BACK.nodes)
    n_pieces = pieces(v.device, w * of_numerators * of_poles, blocks, _LEAST_BLOCKS)
    each = triton.cdiv(blocks, n_pieces)
    n_pieces = triton.cdiv(blocks, each)

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=v.device)

    inputs = (_pairs(grad), pytorch.numerators_of(v, Lambda), _pairs(z), _pairs(Lambda))
    d_numerators, moments = room(n_pieces, w, 2 * k, n), room(n_pieces * of_numerators, w, 2, n)
    dz = torch.zeros(z.shape, dtype=z.dtype, device=z.device)
    with on_device_of(v):
        sums_over_nodes[(w * of_poles, of_numerators, n_pieces)](
            *inputs, d_numerators, moments, w, k, n, m, _row(z), each,
            **_fixed(v, BACK), **options(v.device, BACK.warps, REGISTERS),
        )  # fmt: skip
        if with_z:
            change, blocks = room(of_numerators, w, m, 2), triton.cdiv(m, NODES.nodes)
            change_of_nodes[(w * blocks, of_numerators)](
                *inputs, change, w, k, n, m, _row(z), blocks,
                **_fixed(v, NODES), **options(v.device, NODES.warps, REGISTERS),
            )  # fmt: skip
            each_channel = torch.view_as_complex(change.sum(0))
            dz = each_channel if z.shape[0] > 1 else each_channel.sum(0, keepdim=True)
    dv, d_Lambda = pytorch.to_inputs(d_numerators.sum(0), moments.sum(0).mT, v, Lambda)
    return dv, dz, d_Lambda


def _pairs(m: Tensor) -> Tensor:
    return torch.view_as_real(plain(m))


def _row(z: Tensor) -> int:
    """The distance of the nodes of two channels, 0 if all have the same."""
    return 2 * z.shape[1] if z.shape[0] > 1 else 0


def _fixed(v: Tensor, tile: Tile) -> dict[str, Any]:
    return {"PRODUCT": product(v.real), "HALF": HALF, "NODES": tile.nodes, "POLES": tile.poles}


def builds() -> list[Build]:
    found = []
    for kernel, tile in ((sums_over_poles, AHEAD), (sums_over_nodes, BACK), (change_of_nodes, NODES)):
        given: dict[str, Any] = pointers(fp32="grad numerators z Lambda y d_numerators moments d_z")
        given |= numbers(i32="channels k n m z_row blocks")
        given |= {"PRODUCT": "float32", "HALF": HALF, "NODES": tile.nodes, "POLES": tile.poles}
        own = {key: given[key] for key in kernel.arg_names}
        label = f"{tile.nodes} x {tile.poles}"
        found.append(Build(kernel, own, tile.warps, registers=REGISTERS, products=True, label=label))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    w, k, n, m = 2, 9, 18, 70
    real = torch.linspace(-2, 3, w * k * n, device=device).sin().view(w, k, n)
    v, poles = torch.complex(real, real.cos()), torch.complex(-real[:, 0].abs() - 0.5, real[:, 1] * 9)
    nodes = torch.complex(torch.linspace(0, 1, m, device=device), torch.linspace(-9, 9, m, device=device))
    found = [(v, nodes.unsqueeze(0), poles), (v[:, :2], torch.stack([nodes, nodes * 0.9]), poles)]
    if device.type == "cuda":  # so many nodes that they are summed in pieces
        found.append((v[:, :2], nodes.repeat(-(-2 * _LEAST_BLOCKS * BACK.nodes // m)).unsqueeze(0), poles))
    return found


def trial(path: Any, v: Tensor, z: Tensor, Lambda: Tensor) -> list[Tensor]:
    """The sums of a path, and its gradients for a fixed slope."""
    y = path.forward(v, z, Lambda)
    slope = torch.complex(y.real.sin(), y.imag.cos()).detach()
    return [y, *path.backward(slope, v, z, Lambda, True)]
