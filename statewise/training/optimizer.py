"""AdamW and Muon over parameter groups that follow from the modules, never from names or attributes on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from statewise.errors import ConfigError
from statewise.mixers.base import Dynamics, Layer
from statewise.mixers.h3 import H3Readout
from statewise.mixers.mamba3_ranks import Ranks
from statewise.mixers.short_convolution import ShortConvolution
from statewise.mixers.time_invariant import Readout
from statewise.models.moe import Experts
from statewise.training.config import OptimizerConfig
from statewise.training.muon import Muon

if TYPE_CHECKING:
    from rich.table import Table

# Modules whose parameters of two or more axes are maps between features, pulled towards zero by weight decay.
MAPS = (nn.Linear, nn.Conv1d, ShortConvolution, Readout, H3Readout, Experts, Ranks)
NORMS = (nn.RMSNorm, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that share an optimiser, a learning rate (a multiple of the run's) and a weight decay.

    parts: where the optimiser is Muon, of each parameter the rows of the maps that lie in it one below the other
    """

    name: str
    parameters: tuple[tuple[str, nn.Parameter], ...]
    lr_ratio: float
    weight_decay: float
    optimizer: Literal["AdamW", "Muon"] = "AdamW"
    parts: tuple[tuple[int, ...], ...] = ()

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for _, parameter in self.parameters)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> tuple[ParameterGroup, ...]:
    """Each trainable parameter in exactly one group; groups without parameters are left out.

    ``dynamics``     what a :class:`Dynamics` module holds: its own learning rate, no decay.
    ``dt``           its step sizes, where ``dt_lr_ratio`` gives them a rate of their own: no decay.
    ``embeddings``   of ``nn.Embedding``: no decay, since rows of rare tokens would shrink with no gradient to
                     hold them (OLMo 2, arXiv:2501.00656, sec. 3.3). A tied head is the embedding.
    ``vectors``      norms, biases and whatever else has at most one axis: no decay.
    ``maps``         weights of linear layers and convolutions: decay.
    ``matrices``     where ``matrices="muon"``, of the maps the weights of the linear layers within the model's layers:
                     Muon, with its own rate and decay. Heads, and the map of an input into a model, are not maps of the
                     residual stream into itself; a convolution's or a readout's rows belong to one channel each.

    With ``weight_decay_of="all"`` embeddings and vectors decay as well, as AdamW without groups has it: the settings of
    many published runs. The dynamics never do.

    Errors: ConfigError naming a parameter of two or more axes that stands directly in a module of a type
            that is not listed here, for nothing says whether it should decay.
    """
    names = ("matrices", "maps", "embeddings", "vectors", "dynamics", "dt")
    members: dict[str, list[tuple[str, nn.Parameter]]] = {name: [] for name in names}
    ratios = {"dynamics": _ratio(config.dynamics_lr_ratio, config.dynamics_lr_max, config.lr)}
    if config.dt_lr_ratio is not None:
        ratios["dt"] = _ratio(config.dt_lr_ratio, config.dt_lr_max, config.lr)
    by_muon = config.matrices == "muon"
    if by_muon:
        ratios["matrices"] = config.matrices_lr / config.lr
    seen: set[int] = set()
    parts: list[tuple[int, ...]] = []
    for module, name, parameter, within in _walk(model):
        if id(parameter) in seen or not parameter.requires_grad:
            continue  # a tied parameter belongs where it is met first
        seen.add(id(parameter))
        group = _group_of(module, name, parameter, within)
        if by_muon and group == "maps" and Layer in within and isinstance(module, nn.Linear):
            group = "matrices"
            parts.append(getattr(module, "parts", (module.out_features,)))
        if group == "dynamics" and "dt" in ratios and _is_dt(module, name):
            group = "dt"
        members[group].append((name, parameter))
    decayed = ("maps", "embeddings", "vectors") if config.weight_decay_of == "all" else ("maps",)
    decays = dict.fromkeys(decayed, config.weight_decay) | {"matrices": config.matrices_weight_decay}
    return tuple(
        ParameterGroup(
            name=group,
            parameters=tuple(parameters),
            lr_ratio=ratios.get(group, 1.0),
            weight_decay=decays.get(group, 0.0),
            optimizer="Muon" if group == "matrices" else "AdamW",
            parts=tuple(parts) if group == "matrices" else (),
        )
        for group, parameters in members.items()
        if parameters
    )


def _ratio(ratio: float, most: float | None, lr: float) -> float:
    """The ratio of a group's rate to the run's highest, if the group's is at most ``most``."""
    return ratio if most is None else min(ratio, most / lr)


def _is_dt(module: nn.Module, name: str) -> bool:
    return isinstance(module, Dynamics) and name.rpartition(".")[2] in module.step_sizes


def _walk(
    module: nn.Module, prefix: str = "", within: frozenset[type] = frozenset()
) -> Iterator[tuple[nn.Module, str, nn.Parameter, frozenset[type]]]:
    """Each parameter, and whether it is within a Dynamics or a Layer."""
    within |= {kind for kind in (Dynamics, Layer) if isinstance(module, kind)}
    for name, parameter in module.named_parameters(recurse=False):
        yield module, prefix + name, parameter, within
    for name, child in module.named_children():
        yield from _walk(child, f"{prefix}{name}.", within)


def _group_of(module: nn.Module, name: str, parameter: nn.Parameter, within: frozenset[type]) -> str:
    if Dynamics in within:
        return "dynamics"
    if isinstance(module, nn.Embedding):
        return "embeddings"
    if isinstance(module, NORMS) or parameter.ndim <= 1:
        return "vectors"
    if isinstance(module, MAPS):
        return "maps"
    known = ", ".join(t.__name__ for t in (Dynamics, nn.Embedding, *NORMS, *MAPS))
    raise ConfigError(
        f"parameter {name} of shape {tuple(parameter.shape)} is in no optimiser group: nothing says whether it "
        f"should decay. It stands directly in a {type(module).__name__}; put it into one of {known}"
    )


def build_optimizer(
    groups: tuple[ParameterGroup, ...],
    config: OptimizerConfig,
    *,
    alike: Callable[[Sequence[nn.Parameter]], list[list[nn.Parameter]]] = lambda parameters: [list(parameters)],
    rounded: bool = False,
    **gathering: Callable[..., Tensor],
) -> torch.optim.AdamW:
    """AdamW over the groups, or Muon where a group asks for it. Set the rate of a step with :func:`set_learning_rate`.

    alike:     divides a group further, where one call cannot take all of it (parameters on different meshes)
    rounded:   Muon's products in bfloat16
    gathering: ``whole`` and ``part_like`` of :class:`Muon`, where ranks have parts of the matrices
    """
    settings: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    settings["fused"] = True  # one pass over memory, on the CPU too: there 3 to 6 times as fast as the other forms
    momentum = {"AdamW": None, "Muon": config.matrices_momentum}
    parts = {id(p): parts for group in groups for (_, p), parts in zip(group.parameters, group.parts)}
    divided = [
        {
            "params": parameters,
            "weight_decay": group.weight_decay,
            "lr_ratio": group.lr_ratio,
            "momentum": momentum[group.optimizer],
            "parts": [parts.get(id(parameter)) for parameter in parameters],
        }
        for group in groups
        for parameters in alike([parameter for _, parameter in group.parameters])
    ]
    if all(group.optimizer == "AdamW" for group in groups):
        return torch.optim.AdamW(divided, **settings)
    return Muon(divided, **settings, rounded=rounded, **gathering)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """``lr`` for every group, times the group's own ratio."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_ratio"]


def describe_groups(groups: tuple[ParameterGroup, ...], lr: float) -> list[dict[str, Any]]:
    """The groups as plain data: name, optimiser, tensors, parameters, highest learning rate, weight decay."""
    return [
        {
            "group": group.name,
            "optimizer": group.optimizer,
            "tensors": len(group.parameters),
            "parameters": group.n_parameters,
            "lr": lr * group.lr_ratio,
            "weight_decay": group.weight_decay,
        }
        for group in groups
    ]


def groups_table(rows: list[dict[str, Any]]) -> Table:
    """What :func:`describe_groups` gives, as a table that rich can print."""
    from rich.table import Table

    table = Table("group", title="parameter groups", title_justify="left")
    table.add_column("optimiser")
    for column in ("tensors", "parameters", "learning rate", "weight decay"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["group"],
            row["optimizer"],
            f"{row['tensors']:,}",
            f"{row['parameters']:,}",
            f"{row['lr']:g}",
            f"{row['weight_decay']:g}",
        )
    return table
