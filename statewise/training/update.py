"""One step of the optimiser: accumulate gradients over the micro-batches, clip, update; stop where it goes wrong."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from statewise.errors import ConfigError, DivergedError
from statewise.kernels.exact import of_parameters
from statewise.models.through_time import through_time
from statewise.training.diagnose import first_non_finite, is_finite
from statewise.training.environment import autocast
from statewise.training.optimizer import set_learning_rate
from statewise.training.ranks import Loss
from statewise.training.routing import part_of_loss
from statewise.training.run_state import RunState
from statewise.training.snapshot import set_torch_generators, torch_generators


def loss_function(state: RunState) -> Loss:
    """(batch, state) -> the mean loss, and the state after the batch."""
    task, model = state.task, state.model

    def loss_of(batch: Any, carried: Any) -> tuple[Tensor, Any]:
        return task.loss(model, batch, carried)

    return loss_of


def update(state: RunState, lr: float, loss_of: Loss, eager: Loss) -> tuple[float, float]:
    """One step; gives its mean loss, and the norm of its gradient before clipping.

    ``eager`` is the same loss, uncompiled, for finding the layer if either is not finite.

    Errors: DivergedError, with the parameters as they were before the step.
    """
    config = state.config
    if state.task.searches:
        return _searched(state)
    generators, carried = torch_generators(state.device), state.carried
    set_learning_rate(state.optimizer, lr)
    ranks, total = state.ranks, torch.zeros((), device=state.device)
    for number in range(config.accumulation):
        if config.pieces > 1:  # ranks gather what each has summed up, once; DDP would at every piece
            total += _in_pieces(state, number, loss_of if ranks.size == 1 else eager)
            continue
        with ranks.gathering(last=number == config.accumulation - 1):
            loss = _share_of_loss(state, number, loss_of)
            routing = _part_of_routers(state)
            ranks.backward(loss if routing is None else loss + routing)
        total += loss.detach()
    if config.pieces > 1:
        ranks.gather(state.parameters)
    norm = ranks.norm(_gradients(state))
    total_value, norm_value = ranks.numbers(total, norm)
    if not (math.isfinite(total_value) and math.isfinite(norm_value)):
        set_torch_generators(generators, state.device)
        state.carried = carried
        if state.routers is not None:
            state.routers.forget()
        raise not_finite(state, total_value, norm_value, eager)
    clip_norm = config.optimizer.clip_norm
    if clip_norm is not None:
        ranks.clip(state.parameters, clip_norm, norm)
    with of_parameters():
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    if state.routers is not None:
        state.routers.step(config.routing.bias_step)
    state.progress.step += 1
    state.progress.validation = None
    return total_value, norm_value


def _searched(state: RunState) -> tuple[float, float]:
    """The step of a task that does it itself."""
    if state.ranks.size > 1:
        raise ConfigError(
            f"{type(state.run.config.model).__name__} is fitted by one process, and there are {state.ranks.size}; "
            "start it without torchrun"
        )
    batch = tree_map(
        lambda leaf: leaf.to(state.device) if isinstance(leaf, Tensor) else leaf, state.batches[state.progress.step]
    )
    loss, norm = state.task.search(state.model, batch, state.progress.step)
    if not (math.isfinite(loss) and math.isfinite(norm)):
        what = f"step {state.progress.step + 1}: the loss is {loss}, the norm of its gradient {norm}"
        raise DivergedError(f"{what}; {state.what_remains()}", what)
    state.progress.step += 1
    state.progress.validation = None
    return loss, norm


def _share_of_loss(state: RunState, number: int, loss_of: Loss) -> Tensor:
    """What a micro-batch adds to the loss of the step to come, or this rank's part; passes the carried state on."""
    config = state.config
    batch = _without_empty_starts(state.batches[state.progress.step * config.accumulation + number])
    batch, share = state.ranks.part_of(state.task, batch)
    batch = tree_map(lambda leaf: leaf.to(state.device) if isinstance(leaf, Tensor) else leaf, batch)
    with autocast(config.precision, state.device), state.watching():
        loss, carried = loss_of(batch, state.carried)
    if carried is not None:
        state.carried = tree_map(torch.Tensor.detach, carried)  # gradients end where the batch began
    if share is not None:
        loss = loss * share if share else loss.nan_to_num(0.0) * 0.0  # the mean of no targets is not a number
    return loss / config.accumulation


def _part_of_routers(state: RunState, piece: int | None = None) -> Tensor | None:
    """What the routers add to the loss of what was read last: a micro-batch, or a piece of it."""
    if state.routers is None:
        return None
    if piece is None:
        state.routers.begin()
    return part_of_loss(state.routers, state.config.routing, state.ranks, state.config.accumulation, piece or 0)


def _in_pieces(state: RunState, number: int, loss_of: Loss) -> Tensor:
    """As :func:`_share_of_loss`, with its gradients: those of whole sequences, read piece by piece."""
    config, task, ranks = state.config, state.task, state.ranks
    batch = _without_empty_starts(state.batches[state.progress.step * config.accumulation + number])
    before = state.carried
    if before is None:
        before = state.model.initial_state(len(ranks.rows_of(batch.inputs)), device=state.device)
    n_pieces = task.n_pieces(batch)
    losses = torch.zeros(n_pieces, device=state.device)  # without the routers'
    if state.routers is not None:
        state.routers.begin()

    def read(number: int, before: Any) -> tuple[Tensor | None, Any]:
        piece, share = ranks.piece_of(task, batch, number, n_pieces)
        piece = tree_map(lambda leaf: leaf.to(state.device) if isinstance(leaf, Tensor) else leaf, piece)
        with autocast(config.precision, state.device), state.watching():
            loss, after = loss_of(piece, before)
        routing = _part_of_routers(state, number)
        # The mean of no targets is not a number; ranks that share rows wait for each other's gradients
        loss = loss * share if share else loss.nan_to_num(0.0) * 0.0
        if not share and not ranks.waits:
            return routing, after
        loss = loss / config.accumulation
        if routing is None:
            return loss, after
        losses[number] = loss.detach()
        return loss + routing, after

    loss, after, _ = through_time(read, n_pieces, before, state.device, handed=ranks.handed)
    if state.carried is not None:
        state.carried = after
    return loss if state.routers is None or not state.routers.losses else losses.sum()


def _without_empty_starts(batch: Any) -> Any:
    """Where no document begins, no layer has to look for one: on a GPU only we can tell without waiting for it."""
    starts = getattr(batch, "starts", None)
    return batch._replace(starts=None) if starts is not None and not bool(starts.any()) else batch


def _gradients(state: RunState) -> list[Tensor]:
    return [parameter.grad for parameter in state.parameters if parameter.grad is not None]


def not_finite(state: RunState, loss: float, norm: float, eager: Loss) -> DivergedError:
    """Does the step again, under hooks, to name the layer that it went wrong in.

    The generators and the carried state have to be as they were before the step.
    """
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the norm of the gradient is {norm}"
    where = state.ranks.first_of(_culprit(state, eager))
    if where is None:
        finite = is_finite(_gradients(state))
        where = "done again layer by layer, every number in it is finite" + (" but that norm" if finite else "")
    what = f"step {state.progress.step + 1}: {what}; {where}"
    return DivergedError(f"{what}; {state.what_remains()}. {state.advice()}", what)


def _culprit(state: RunState, eager: Loss) -> str | None:
    if state.config.pieces > 1:
        return "the layer cannot be found while sequences are read in pieces; set train.pieces=1 to find it"
    if not state.ranks.works_apart:
        return "the layer cannot be found while ranks share the layers; train in one process, or with ddp, to find it"
    if not is_finite(state.carried):
        return "the state carried into the step was not finite"
    state.optimizer.zero_grad(set_to_none=True)
    try:
        for number in range(state.config.accumulation):
            where = first_non_finite(state.model, partial(_share_of_loss, state, number, eager))
            if where is not None:
                return where
    except RuntimeError as error:  # out of memory, most likely: what is known has to be said all the same
        return f"the layer was not found ({str(error).splitlines()[0]})"
    return None
