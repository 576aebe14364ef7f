"""A mixture of experts as the feed-forward half of a block: a router chooses a few of many MLPs for each step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from statewise.configuration import Config
from statewise.configuration.types import Count, NonNegative, OneOf, Positive
from statewise.errors import ConfigError
from statewise.kernels.batching import may_read, stacked
from statewise.kernels.linear import linear
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.models.mlp import MLP, MLPConfig
from statewise.models.quantised import matrices_of
from statewise.models.routing import Watch
from statewise.operators.masks import NO_MASKS, Masks
from statewise.precision import full_precision

ROUTERS = ("softmax", "softmax_chosen", "sigmoid")
IN_A_GROUP = 2  # scores of a group's best experts, of which the sum is the group's


@dataclass(frozen=True, kw_only=True)
class MoEConfig(Config):
    """``n_active`` of ``n_experts`` MLPs for each step, weighted by a router, and maybe one that all steps pass.

    expand:          the hidden width of each expert as a multiple of d_model
    activation, gated: of the experts, as in :class:`~statewise.models.mlp.MLPConfig`; they have no biases
    router:          the weights of the chosen experts: "softmax" of all scores, then the largest of them;
                     "softmax_chosen", the largest scores, then their softmax; "sigmoid" of each score
    normalize:       the weights of the chosen are divided by their sum; not with "softmax_chosen", where it is 1
    normalize_eps:   is added to that sum
    route_scale:     by which the weights are multiplied
    correction_bias: each expert has a number that is added to its sigmoid where experts are chosen, and not where they
                     are weighted; it is a buffer, which no gradient reaches, and ``train.routing.bias_step`` moves
    n_groups, n_groups_active: experts are chosen within the best groups of experts alone, a group's score being the sum
                     of its two best; with "sigmoid"
    shared:          an MLP that every step passes, added to the experts'
    shared_gate:     the shared MLP's output is multiplied by the sigmoid of a map of the step to one number
    d_latent:        the experts read and write this width, between two maps; None: d_model, and no maps
    latent_bias:     of these two maps
    weight_std:      standard deviation of the weights at the start
    Source:  Shazeer et al. 2017, arXiv:1701.06538, eq. 3-5; "softmax": Fedus et al. 2021, arXiv:2101.03961, eq. 1;
             "sigmoid", groups, the bias: DeepSeek-AI 2024 (V3), arXiv:2412.19437, eq. 12-16; shared experts: Dai et al.
             2024, arXiv:2401.06066, eq. 9.
    """

    n_experts: Count
    n_active: Count
    expand: Positive = 4.0
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "silu"
    gated: bool = True
    router: Annotated[str, OneOf(ROUTERS)] = "softmax"
    normalize: bool = False
    normalize_eps: NonNegative = 1e-20
    route_scale: Positive = 1.0
    correction_bias: bool = False
    n_groups: Count = 1
    n_groups_active: Count = 1
    shared: MLPConfig | None = None
    shared_gate: bool = False
    d_latent: Count | None = None
    latent_bias: bool = False
    weight_std: Positive = WEIGHT_STD

    def __post_init__(self) -> None:
        if self.n_experts % self.n_groups:
            raise ConfigError(f"MoEConfig.n_groups={self.n_groups} does not divide n_experts={self.n_experts}")
        if self.n_groups_active > self.n_groups:
            raise ConfigError(f"MoEConfig.n_groups_active={self.n_groups_active} is more than n_groups={self.n_groups}")
        most = self.n_experts // self.n_groups * self.n_groups_active
        if self.n_active > most:
            raise ConfigError(f"MoEConfig.n_active={self.n_active} of {most} experts that may be chosen; use fewer")
        if self.router != "sigmoid" and (self.correction_bias or self.n_groups > 1):
            raise ConfigError(f'MoEConfig.correction_bias and n_groups need router="sigmoid", not {self.router!r}')
        if self.router == "softmax_chosen" and self.normalize:
            raise ConfigError('MoEConfig.normalize with router="softmax_chosen", whose weights sum to 1; leave it out')
        if self.shared is None and self.shared_gate:
            raise ConfigError("MoEConfig.shared_gate without a shared MLP; set shared, or leave it out")
        if self.d_latent is None and self.latent_bias:
            raise ConfigError("MoEConfig.latent_bias without d_latent; set d_latent, or leave it out")

    def hidden_width(self, d_model: int) -> int:
        """The width inside each expert."""
        return max(1, round(self.expand * d_model))

    def build(self, d_model: int) -> MoE:
        return MoE(d_model, self)


class Routes(NamedTuple):
    """weights: (steps, n_active), float32 or wider; chosen: (steps, n_active), the numbers of the experts."""

    weights: Tensor
    chosen: Tensor


class Router(nn.Module):
    """Scores each expert for each step, and chooses.

    watch: sums up what it does in training mode, if somebody asks: see :class:`~statewise.models.routers.Routers`
    """

    watch: Watch | None = None

    def __init__(self, d_model: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.map = Linear(d_model, config.n_experts, bias=False)
        self.bias: Tensor | None
        self.register_buffer("bias", torch.zeros(config.n_experts) if config.correction_bias else None)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Routes:
        """x: (steps, d_model)   valid: (steps,) bool, the real ones; None: all."""
        dtype = torch.promote_types(full_precision(x.dtype), full_precision(self.map.weight.dtype))
        with _unrounded(x):
            scores = x.to(dtype) @ self.map.weight.to(dtype).T
            routes = self.choose(scores)
            if self.watch is not None and self.training:
                self.watch.add(scores, routes.chosen, self.config.router, valid)
        return routes

    def choose(self, scores: Tensor) -> Routes:
        """The experts of each step, by their scores (steps, n_experts)."""
        config = self.config
        if config.router == "softmax_chosen":
            best, chosen = scores.topk(config.n_active, -1)
            return Routes(best.softmax(-1) * config.route_scale, chosen)
        every = scores.sigmoid() if config.router == "sigmoid" else scores.softmax(-1)
        asked = every if self.bias is None else every + self.bias.to(every.dtype)
        if config.n_groups > 1:
            asked = self._in_best_groups(asked)
        chosen = asked.topk(config.n_active, -1).indices
        weights = every.gather(-1, chosen)
        if config.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + config.normalize_eps)
        return Routes(weights * config.route_scale, chosen)

    def _in_best_groups(self, asked: Tensor) -> Tensor:
        config = self.config
        grouped = asked.unflatten(-1, (config.n_groups, -1))
        best = grouped.topk(min(IN_A_GROUP, grouped.shape[-1]), -1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(config.n_groups_active, -1).indices, True)
        return grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)


def _unrounded(x: Tensor) -> AbstractContextManager[object]:
    """Without autocast, which would let rounding choose among experts."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


class Experts(nn.Module):
    """The MLPs side by side: in_proj (n_experts, hidden width, twice if gated, d), out_proj (n_experts, d, hidden)."""

    def __init__(self, d: int, d_hidden: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.in_proj = nn.Parameter(torch.empty(config.n_experts, d_hidden * (2 if config.gated else 1), d))
        self.out_proj = nn.Parameter(torch.empty(config.n_experts, d, d_hidden))
        self.activation = ACTIVATIONS[config.activation]

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        nn.init.normal_(self.in_proj, std=self.config.weight_std)
        nn.init.normal_(self.out_proj, std=self.config.weight_std)
        with torch.no_grad():
            self.out_proj.mul_(residual_scale)

    def forward(self, x: Tensor, routes: Routes) -> Tensor:
        """x: (steps, d) -> the same. Each expert reads the steps that chose it, and no others."""
        if not may_read(x) or stacked(x):
            return self._every(x, routes)
        n_steps, n_active = routes.chosen.shape
        if n_steps == 0:
            return x + 0.0 * (self.in_proj.sum() + self.out_proj.sum()).to(x.dtype)  # nothing, but a graph
        experts = routes.chosen.flatten()
        order = experts.argsort(stable=True)
        rows, maps = x[order // n_active].split(self._counts(experts)), self.maps()
        y = [self.expert(part, *own) for part, own in zip(rows, maps) if len(part)]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        each = torch.cat(y)[back].unflatten(0, (n_steps, n_active))
        return (each * routes.weights.to(each.dtype)[..., None]).sum(1)

    def maps(self) -> list[tuple[Tensor, Tensor]]:
        """The two of each expert. Their gradients are put together once, and not for each expert."""
        return list(zip(matrices_of(self.in_proj), matrices_of(self.out_proj)))

    def expert(self, x: Tensor, into: Tensor, out: Tensor) -> Tensor:
        """What the one with these maps makes of x (steps, d)."""
        h = linear(x, into)
        if self.config.gated:
            h, value = h.chunk(2, -1)
            h = self.activation(h) * value
        else:
            h = self.activation(h)
        return linear(h, out)

    def _every(self, x: Tensor, routes: Routes) -> Tensor:
        """All experts of all steps, where no count may be read: in a compiled or an exported program."""
        y = torch.zeros_like(x)
        for number, maps in enumerate(self.maps()):
            weight = (routes.weights * (routes.chosen == number)).sum(-1, keepdim=True)
            y = y + weight.to(x.dtype) * self.expert(x, *maps)
        return y

    def _counts(self, experts: Tensor) -> list[int]:
        """How many steps read each expert. Costs one wait for the device."""
        n_experts = self.config.n_experts
        counts = torch.zeros(n_experts, dtype=torch.int64, device=experts.device)
        found = [int(n) for n in counts.scatter_add_(0, experts, torch.ones_like(experts)).cpu().unbind()]
        if sum(found) != len(experts):  # a rehearsal, which has no numbers: as if all were read alike
            found = [len(experts) * (i + 1) // n_experts - len(experts) * i // n_experts for i in range(n_experts)]
        return found


class MoE(nn.Module):
    """y = sum over the chosen experts e of w_e expert_e(x), plus the shared MLP's, each step alone.

    Shapes:   x: (..., d_model) -> the same
    Cost:     for each step the products of n_active experts, of the shared MLP, and n_experts d_model of the router.
              Steps are sorted by expert, so that no expert reads padding, and an expert that nobody chose is not read.
              Compiled and exported programs compute all experts.
    Numerics: scores and weights in float32 or wider. A step's experts are added up in the order of their scores, so
              the sums do not depend on the other steps.

    >>> moe = MoEConfig(n_experts=4, n_active=2, expand=2).build(8)
    >>> moe(torch.randn(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, d_model: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        d = d_model if config.d_latent is None else config.d_latent
        self.router = Router(d_model, config)
        self.latent_in = self.latent_out = None
        if config.d_latent is not None:
            self.latent_in = Linear(d_model, d, bias=config.latent_bias)
            self.latent_out = Linear(d, d_model, bias=config.latent_bias)
        self.experts = Experts(d, config.hidden_width(d_model), config)
        self.shared: MLP | None = None if config.shared is None else config.shared.build(d_model)
        self.shared_gate = Linear(d_model, 1, bias=False) if config.shared_gate else None

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        std = self.config.weight_std
        draw_normal(std, self.router.map)
        if self.router.bias is not None:
            nn.init.zeros_(self.router.bias)
        self.experts.reset_parameters(1.0 if self.latent_out is not None else residual_scale)
        if self.latent_in is not None and self.latent_out is not None:
            draw_normal(std, self.latent_in, self.latent_out)
            with torch.no_grad():
                self.latent_out.weight.mul_(residual_scale)
        if self.shared is not None:
            self.shared.reset_parameters(residual_scale)
        if self.shared_gate is not None:
            draw_normal(std, self.shared_gate)

    def forward(self, x: Tensor, masks: Masks = NO_MASKS) -> Tensor:
        steps = x.flatten(0, -2)
        read = steps if self.latent_in is None else self.latent_in(steps)
        y = self.experts(read, self.router(steps, None if masks.valid is None else masks.valid.flatten()))
        if self.latent_out is not None:
            y = self.latent_out(y)
        if self.shared is not None:
            every = self.shared(steps)
            y = y + (every if self.shared_gate is None else every * self.shared_gate(steps).sigmoid())
        return y.view_as(x)


def moe_reference(moe: MoE, x: Tensor) -> Tensor:
    """The definition, step by step in float64. Shapes and meaning as :class:`MoE`; for tests and for reading."""
    config, wide = moe.config, x.double().flatten(0, -2)
    weight = {name: tensor.double() for name, tensor in (*moe.named_parameters(), *moe.named_buffers())}
    rows = []
    for step in wide:
        scores = weight["router.map.weight"] @ step
        every = scores.sigmoid() if config.router == "sigmoid" else scores.exp() / scores.exp().sum()
        asked = (every + weight["router.bias"] if config.correction_bias else every).tolist()
        size = config.n_experts // config.n_groups
        groups = [sum(sorted(asked[g * size : (g + 1) * size])[-IN_A_GROUP:]) for g in range(config.n_groups)]
        best = sorted(range(config.n_groups), key=groups.__getitem__)[-config.n_groups_active :]
        may = [e for e in range(config.n_experts) if e // size in best]
        chosen = sorted(may, key=asked.__getitem__)[-config.n_active :]
        divisor = every[chosen].sum() if config.normalize or config.router == "softmax_chosen" else 1.0
        divisor = divisor + config.normalize_eps * config.normalize
        read = step
        if config.d_latent is not None:
            read = weight["latent_in.weight"] @ step + weight.get("latent_in.bias", 0.0)
        y = torch.zeros_like(read)
        for e in chosen:
            h = weight["experts.in_proj"][e] @ read
            h, value = h.chunk(2) if config.gated else (h, 1.0)
            made = weight["experts.out_proj"][e] @ (ACTIVATIONS[config.activation](h) * value)
            y = y + config.route_scale * every[e] / divisor * made
        if config.d_latent is not None:
            y = weight["latent_out.weight"] @ y + weight.get("latent_out.bias", 0.0)
        if moe.shared is not None:
            gate = (weight["shared_gate.weight"] @ step).sigmoid() if config.shared_gate else 1.0
            y = y + gate * moe.shared.double()(step[None])[0]
        rows.append(y)
    return torch.stack(rows).view_as(x) if rows else x.double()
