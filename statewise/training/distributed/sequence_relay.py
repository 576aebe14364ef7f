"""One layer's state, handed from rank to rank along a sequence, and its gradient handed back.

Each rank of a line holds one piece of every row. It reads its piece of a layer as soon as the rank before has read
its own, and then begins the next layer while the rank behind begins: with n layers and P ranks a pass takes as
long as n + P - 1 layers of one piece. No rank does anything twice, and every one does what a single process does that
reads the pieces one after the other.

A state's form is known to both sides beforehand, so that only its numbers travel, one message for each dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from statewise.errors import InputError
from statewise.operators.state_shape import StandIn


class Form(NamedTuple):
    """What is known of a tensor before it is there."""

    shape: torch.Size
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {tuple(self.shape)}"


class Line:
    """The ranks of a process group in the order of the pieces they hold: neighbours talk to each other.

    A message is on its way while the sender goes on, and ``settle`` waits until all have arrived: it is called before
    the next pass begins, and when a backward pass is over.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        group = dist.group.WORLD if group is None else group
        assert group is not None  # there is none only before init_process_group
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._on_the_way: list[tuple[dist.Work, Tensor]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Line:
        return self  # a copy of a model is read by the same ranks

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def send(self, tensors: Sequence[Tensor], step: int) -> None:
        """To the rank ``step`` (1 or -1) places on."""
        for message in _packed(tensors):
            work = dist.isend(message, group=self.group, group_dst=self.rank + step)
            if work is not None:
                self._on_the_way.append((work, message))  # the memory has to stay until it is sent

    def receive(self, forms: Sequence[Form], step: int, device: torch.device) -> list[Tensor]:
        """What the rank ``step`` places on sent: tensors of these forms."""
        received = [torch.empty(form.shape, dtype=form.dtype, device=device) for form in forms]
        for together in _by_dtype(received):
            sizes = [received[i].numel() for i in together]
            message = received[together[0]].new_empty(sum(sizes))
            dist.recv(message, group=self.group, group_src=self.rank + step)
            for i, part in zip(together, message.split(sizes)):
                received[i].copy_(part.view_as(received[i]))
        return received

    def share_last(self, relays: Sequence[Relay], device: torch.device) -> list[Any]:
        """The states behind the last rank's piece, on every rank."""
        specs = [cast(pytree.TreeSpec, relay._spec) for relay in relays]
        if self.is_last:
            leaves = pytree.tree_leaves([relay.after for relay in relays])
        else:
            forms = [form for relay in relays for form in relay._forms]
            leaves = [torch.empty(form.shape, dtype=form.dtype, device=device) for form in forms]
        for leaf in leaves:
            dist.broadcast(leaf.detach().contiguous(), group=self.group, group_src=self.size - 1)
        left = iter(leaves)
        return [pytree.tree_unflatten(list(islice(left, spec.num_leaves)), spec) for spec in specs]

    def share_first(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The first rank's, of which every rank has ones of this form."""
        found = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        for tensor in found:
            dist.broadcast(tensor, group=self.group, group_src=0)
        return found

    def settle(self) -> None:
        """Waits until what this rank sent has arrived."""
        for work, _ in self._on_the_way:
            work.wait()
        self._on_the_way = []


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The places of the tensors that travel together; those without numbers do not travel."""
    groups: dict[torch.dtype, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.numel():
            groups.setdefault(tensor.dtype, []).append(i)
    return list(groups.values())


def _packed(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.cat([tensors[i].detach().reshape(-1) for i in indices]) for indices in _by_dtype(tensors)]


class Relay(StandIn):
    """The state of one layer in one pass over the pieces.

    It stands where the layer's state is given, so that a layer that is computed again in the backward pass (gradient
    checkpointing) meets the same relay: what was received is there already, and nothing is sent twice.

    given: the state that the whole sequence begins with; None: at rest
    """

    def __init__(self, line: Line, given: Any = None) -> None:
        self.line, self.given = line, given
        # On the last rank, the state behind the whole sequence; with its graph if the given one asks for a gradient
        self.after: Any = None
        self._received: list[Tensor] | None = None
        self._is_sent = False
        self._forms: list[Form] = []
        self._spec: pytree.TreeSpec | None = None

    def begin(self, x: Tensor, rest: Any) -> tuple[Tensor, Any]:
        """x, and the state before this piece. ``rest`` is the state of a sequence that has not begun."""
        leaves, self._spec = pytree.tree_flatten(rest)
        self._forms = [Form(leaf.shape, leaf.dtype) for leaf in leaves]
        if self.given is not None:  # on every rank, so that none waits for one that has refused it
            self._check(self.given, "the state given to it is")
        received: Sequence[Tensor]
        if torch.is_grad_enabled():
            x, *received = _Begin.apply(_anchor(x), x, self)
        else:
            received = self._receive(x.device)
        if self.line.is_first:
            return x, rest if self.given is None else self.given
        return x, pytree.tree_unflatten(received, self._spec)

    def end(self, y: Tensor, state: Any) -> Tensor:
        """y, after the state behind this piece has been handed on."""
        leaves = self._check(state, "it ends as")
        if self.line.is_last and self.after is None:
            given = [leaf for leaf in pytree.tree_leaves(self.given) if isinstance(leaf, Tensor)]
            asks = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in given)
            self.after = state if asks else pytree.tree_map(torch.Tensor.detach, state)
        if torch.is_grad_enabled():
            return _End.apply(_anchor(y), y, self, *leaves)
        self._send(leaves)
        return y

    def _check(self, state: Any, what: str) -> list[Tensor]:
        leaves, spec = pytree.tree_flatten(state)
        forms = [Form(leaf.shape, leaf.dtype) for leaf in leaves]
        if spec != self._spec or forms != self._forms:
            raise InputError(
                "sequence parallelism needs states of one form; this layer's begins as "
                f"{', '.join(map(str, self._forms))}, and {what} {', '.join(map(str, forms))}"
            )
        return leaves

    def _receive(self, device: torch.device) -> list[Tensor]:
        if self._received is None:
            self._received = [] if self.line.is_first else self.line.receive(self._forms, -1, device)
        return self._received

    def _send(self, leaves: Sequence[Tensor]) -> None:
        if not self.line.is_last and not self._is_sent:
            self.line.send(leaves, 1)
        self._is_sent = True


def _anchor(x: Tensor) -> Tensor:
    """Lets every rank record the same graph. One rank may have reached its input from parameters that learn and
    another not: without it the one would wait for a gradient that the other never sends."""
    return torch.zeros((), device=x.device, requires_grad=True)


class _Begin(torch.autograd.Function):
    """Forward: x, and the state from the rank before. Backward: that state's gradient to the rank before.

    x passes through, so that the backward pass always comes by, and only when all that the layer adds has been added.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, relay: Relay) -> tuple[Tensor, ...]:
        leaves = [leaf.clone() for leaf in relay._receive(x.device)]  # what is kept may not become part of a graph
        ctx.line, ctx.learns = relay.line, [leaf.is_floating_point() for leaf in leaves]
        ctx.mark_non_differentiable(*(leaf for leaf in leaves if not leaf.is_floating_point()))
        return x, *leaves

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x: Tensor, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if gradients:
            torch.autograd.Variable._execution_engine.queue_callback(ctx.line.settle)  # when this pass is over
            ctx.line.send([gradient for gradient, learns in zip(gradients, ctx.learns) if learns], -1)
        return None, grad_x, None


class _End(torch.autograd.Function):
    """Forward: the state to the rank behind, y passes through. Backward: the state's gradient from the rank behind."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, y: Tensor, relay: Relay, *leaves: Tensor) -> Tensor:
        ctx.line, ctx.learns = relay.line, [leaf.is_floating_point() for leaf in leaves]
        ctx.forms = [form for form, learns in zip(relay._forms, ctx.learns) if learns]
        relay._send(leaves)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.line.is_last:
            return None, grad_y, None, *(None for _ in ctx.learns)
        gradients = iter(ctx.line.receive(ctx.forms, 1, grad_y.device))
        return None, grad_y, None, *(next(gradients) if learns else None for learns in ctx.learns)
