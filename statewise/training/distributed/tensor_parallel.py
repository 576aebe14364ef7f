"""Tensor parallelism: the matrices of a layer's projections are divided over ranks that compute the same rows.

in_proj, and every other map but the output:     by its outputs, which are then gathered: what lies in them (q, k, v;
                                                 values and gates; B and C) is not cut where the ranks are
out_proj:                                        by its inputs; the ranks' products are added up
both of an MLP without gate:                     the same, but nothing is gathered between them

What is not a linear map (the system itself, convolutions, norms) each of these ranks computes in full.
"""

from __future__ import annotations

from types import MethodType

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from statewise.errors import ConfigError
from statewise.mixers.projection import Linear
from statewise.models.base import Model
from statewise.models.mlp import MLP
from statewise.models.shared_transformer import SharedTransformer

OUTPUT = "out_proj"
DIVIDED = ("in_proj", OUTPUT, "up_proj", "linear")  # the matrices that make a layer large


def share_projections(model: Model, mesh: DeviceMesh) -> None:
    """Divides the projections of every layer over the ranks of the mesh.

    Errors: ConfigError naming a projection whose width does not divide.
    """
    for number, block in enumerate(model.blocks):
        if isinstance(block.mixer, SharedTransformer):
            raise ConfigError(
                f"layers.{number} shares its matrices with other layers, and train.parallel.tensor would divide them "
                "once for each; train it with train.parallel.tensor=1"
            )
        plan = _plan(block)
        for name in plan:
            _require_divisible(block.get_submodule(name), f"layers.{number}.{name}", mesh.size())
        for name in plan:
            # Our own operator is not known to DTensor; the layer of PyTorch is
            module = block.get_submodule(name)
            module.forward = MethodType(nn.Linear.forward, module)
        parallelize_module(block, mesh, plan)


def _plan(block: nn.Module) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {}
    for name, module in block.named_modules():
        last = name.rpartition(".")[2]
        if not isinstance(module, Linear) or last not in DIVIDED:
            continue
        parent = block.get_submodule(name.rpartition(".")[0])
        cut = isinstance(parent, MLP) and not parent.config.gated  # where nothing is gathered in between
        if last == OUTPUT:
            plan[name] = RowwiseParallel() if cut else RowwiseParallel(input_layouts=Replicate())
        else:
            plan[name] = ColwiseParallel() if cut else ColwiseParallel(output_layouts=Replicate())
    return plan


def _require_divisible(module: nn.Module, name: str, n_ranks: int) -> None:
    assert isinstance(module, Linear)
    width, what = (module.in_features, "inputs") if name.endswith(OUTPUT) else (module.out_features, "outputs")
    if width % n_ranks:
        raise ConfigError(
            f"train.parallel.tensor={n_ranks} does not divide the {width} {what} of {name}; choose a divisor of it, or "
            "other widths of the model"
        )
