"""The routers of a run: whether its mixtures of experts can be balanced as it asks, and what the losses of that add."""

from __future__ import annotations

from torch import Tensor, nn

from statewise.errors import ConfigError
from statewise.models.moe import Router
from statewise.models.routers import Routers
from statewise.training.config import RoutingConfig
from statewise.training.ranks import Ranks


def watched(model: nn.Module, config: RoutingConfig) -> Routers | None:
    """The routers of a model in training; None where it has none.

    Errors: ConfigError for options of ``train.routing`` that need another model.
    """
    asked = {name: value for name, value in vars(config).items() if value}
    if not any(isinstance(module, Router) for module in model.modules()):
        if asked:
            name, value = next(iter(asked.items()))
            raise ConfigError(
                f"train.routing.{name}={value:g}, but no layer of the model is a mixture of experts; leave it out "
                f"(train.routing.{name}=0), or give a layer mlp=MoEConfig(...)"
            )
        return None
    routers = Routers(model, losses=bool(config.balance or config.z))
    without = routers.without_bias()
    if config.bias_step and without is not None:
        raise ConfigError(
            f"train.routing.bias_step={config.bias_step:g} moves biases by which experts are chosen, and {without} has "
            'none; set correction_bias=true and router="sigmoid" in its MoEConfig, or train.routing.balance instead'
        )
    return routers


def part_of_loss(
    routers: Routers | None, config: RoutingConfig, ranks: Ranks, n_batches: int, piece: int = 0
) -> Tensor | None:
    """What the routers add to the loss for what was read last; None: nothing. All ranks call it.

    n_batches: over how many micro-batches the loss of a step is a mean
    """
    if routers is None:
        return None
    part = routers.part(piece, balance=config.balance, z=config.z, summed=ranks.summed)
    return part / n_batches if config.balance or config.z else None
