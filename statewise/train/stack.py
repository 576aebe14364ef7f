"""Several models of one configuration as one: their parameters in one tensor, a step of all in one pass of vmap.

Each model is an ordinary :class:`RunState`. While it is in a stack, its parameters, buffers and moments are views into
the stack's tensors, so that it can be evaluated and saved at any time as if it were alone.

    flat parameters   for each parameter group (n_models, numbers of the group)
    one step          vmap over the models of the task's loss; the sum of their losses is differentiated, and as no
                      model's loss depends on another's parameters, each row of the gradient is that of one model
    after it          the norm, and clipping by it, for each row; AdamW over the rows that have one learning rate
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from statewise.errors import DivergedError, StatewiseError
from statewise.train.course import learning_rate
from statewise.train.environment import autocast
from statewise.train.optimizer import build_optimizer, set_learning_rate
from statewise.train.run_state import RunState
from statewise.train.snapshot import set_torch_generators
from statewise.train.stacked_dropout import RandomNumbers, drawing_from, replace_dropout
from statewise.train.update import loss_function, not_finite

REFUSALS = (RuntimeError, NotImplementedError, ValueError)  # of vmap


@dataclass(eq=False)
class Member:
    """A model of a stack: its run, and the generators that it draws from."""

    name: str
    state: RunState
    numbers: RandomNumbers


class Step(NamedTuple):
    """What a step was for one member: its mean loss, the norm of its gradient before clipping, its learning rate."""

    member: Member
    loss: float
    norm: float
    lr: float


class Update(NamedTuple):
    """A step of all: of those that went on, and why the others did not."""

    went: list[Step]
    wrong: list[tuple[Member, DivergedError]]


class _Loss(nn.Module):
    """The task's loss as a module, whose parameters are then given from outside."""

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self.task, self.model = state.task, copy.deepcopy(state.model)
        replace_dropout(self.model)

    def forward(self, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        loss, after = self.task.loss(self.model, batch, carried)
        return loss, after


class Stack:
    """Members side by side. Those with one learning rate are neighbours, in the order of the first of each."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.module = _Loss(members[0].state)
        self._join(members)

    # -- the tensors ---------------------------------------------------------------------------------------------------

    def _join(self, members: Sequence[Member]) -> None:
        """Copies what the members have side by side, and makes theirs views of it."""
        rates = [m.state.config.optimizer.lr for m in members]
        self.members = sorted(members, key=lambda m: rates.index(m.state.config.optimizer.lr))
        states = [member.state for member in self.members]
        self.flat = [self._flat([state.groups[g].parameters for state in states]) for g in range(len(states[0].groups))]
        trained = {name for group in states[0].groups for name, _ in group.parameters}
        self.fixed = {}  # buffers, and parameters that are not trained
        for name, _ in _tensors(states[0].model):
            if name not in trained:
                each = [dict(_tensors(state.model))[name] for state in states]
                self.fixed[name] = torch.stack([tensor.detach() for tensor in each])
                for tensor, row in zip(each, self.fixed[name]):
                    tensor.data = row
        carried = [pytree.tree_flatten(state.carried) for state in states]
        self.carried_spec = carried[0][1]
        self.carried = [_stacked(leaves) for leaves in zip(*(leaves for leaves, _ in carried))]
        self._share_carried()
        self.optimizers = self._optimizers()

    @staticmethod
    def _flat(parameters: list[tuple[tuple[str, nn.Parameter], ...]]) -> Tensor:
        """The parameters of one group: (models, numbers)."""
        flat = torch.stack([torch.cat([p.detach().flatten() for _, p in own]) for own in parameters])
        for own, row in zip(parameters, flat):
            for (_, parameter), part in zip(own, row.split([p.numel() for _, p in own])):
                parameter.data = part.view(parameter.shape)
        return flat.requires_grad_()

    def _optimizers(self) -> list[tuple[slice, torch.optim.AdamW, list[nn.Parameter]]]:
        """For each learning rate its rows, AdamW over them, and what it steps: a part of every flat tensor."""
        built, begin = [], 0
        while begin < len(self.members):
            first = self.members[begin].state
            end = begin + sum(member.state.config.optimizer.lr == first.config.optimizer.lr for member in self.members)
            rows = slice(begin, end)
            leaves = [nn.Parameter(flat.detach()[rows]) for flat in self.flat]
            groups = tuple(
                replace(group, parameters=((group.name, leaf),)) for group, leaf in zip(first.groups, leaves)
            )
            optimizer = build_optimizer(groups, first.config.optimizer)
            for g, leaf in enumerate(leaves):
                optimizer.state[leaf] = self._moments(self.members[rows], g, leaf)
            built.append((rows, optimizer, leaves))
            begin = end
        return built

    @staticmethod
    def _moments(members: list[Member], g: int, leaf: Tensor) -> dict[str, Tensor]:
        """The members' moments side by side, zeros before the first step; the members' become views of them."""
        state = {"step": torch.zeros((), dtype=torch.float32, device=leaf.device)}
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = torch.zeros_like(leaf.detach())
        for i, member in enumerate(members):
            optimizer, begin = member.state.optimizer, 0
            for _, parameter in member.state.groups[g].parameters:
                own = optimizer.state[parameter]
                end, stepped = begin + parameter.numel(), bool(own)
                if stepped:
                    state["step"] = own["step"]
                for key in ("exp_avg", "exp_avg_sq"):
                    view = state[key][i, begin:end].view(parameter.shape)
                    if stepped:
                        view.copy_(own[key])
                    own[key] = view
                begin = end
        state["step"] = state["step"].detach().clone()
        for member in members:
            for _, parameter in member.state.groups[g].parameters:
                member.state.optimizer.state[parameter]["step"] = state["step"]
        return state

    def _parameters(self) -> dict[str, Tensor]:
        """The stacked parameters by name, (models, *shape), with gradients to the flat ones."""
        named = {}
        for group, flat in zip(self.members[0].state.groups, self.flat):
            parts = flat.split([p.numel() for _, p in group.parameters], 1)
            for (name, parameter), part in zip(group.parameters, parts):
                named[f"model.{name}"] = part.unflatten(1, parameter.shape) if parameter.ndim else part.squeeze(1)
        return named

    def _share_carried(self) -> None:
        for i, member in enumerate(self.members):
            leaves = [leaf[i] if isinstance(leaf, Tensor) else leaf for leaf in self.carried]
            member.state.carried = pytree.tree_unflatten(leaves, self.carried_spec)

    def drop(self, members: Sequence[Member]) -> None:
        """Goes on without these."""
        self._join([member for member in self.members if member not in members])

    # -- a step --------------------------------------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """Why vmap cannot run this model, found by trying the first batch; None if it can. Nothing is changed."""
        config = self.members[0].state.config
        for name in ("compile", "gradient_checkpointing"):
            if getattr(config, name):
                return f"train.{name}=true works on one model at a time"
        put_back = self._remember()
        try:
            self._losses(0, whatever_happens=False).sum().backward()
        except (StatewiseError, torch.OutOfMemoryError):
            raise
        except REFUSALS as error:
            return str(error).strip().splitlines()[0]
        finally:
            put_back()
            self._clear()
        return None

    def _remember(self) -> Callable[[], None]:
        """What puts back all that computing a loss changes."""
        tensors = [member.numbers.tensors.copy() for member in self.members]
        fixed, carried = {name: x.clone() for name, x in self.fixed.items()}, self.carried

        def put_back() -> None:
            for member, before in zip(self.members, tensors):
                member.numbers.tensors = before.copy()
            for name, x in fixed.items():
                self.fixed[name].copy_(x)
            self.carried = carried
            self._share_carried()

        return put_back

    def _losses(self, number: int, *, whatever_happens: bool = True) -> Tensor:
        """What a micro-batch adds to the losses of the step to come, (models,); passes the carried states on.

        whatever_happens: where vmap refuses, one model after the other. What it refuses may depend on the batch:
        convolutions treat packed documents as rows, and how many these are is not the same for all models.
        """
        first = self.members[0].state
        batches = [m.state.batches[m.state.progress.step * first.config.accumulation + number] for m in self.members]
        flattened = [pytree.tree_flatten(batch) for batch in first.task.alike(batches)]
        spec = flattened[0][1]
        given = [_stacked(leaves) for leaves in zip(*(leaves for leaves, _ in flattened))]
        given = [leaf.to(first.device) if isinstance(leaf, Tensor) else leaf for leaf in given]

        def one(values: dict[str, Tensor], batch: list[Tensor], carried: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            whole = pytree.tree_unflatten(_filled(given, batch), spec)
            state = pytree.tree_unflatten(_filled(self.carried, carried), self.carried_spec)
            loss, after = functional_call(self.module, values, (whole, state))
            return loss, [leaf.detach() for leaf in _only(pytree.tree_leaves(after))]

        values = self._parameters() | {f"model.{name}": tensor for name, tensor in self.fixed.items()}
        arguments, put_back = (values, _only(given), _only(self.carried)), self._remember()
        with autocast(first.config, first.device):
            try:
                with drawing_from([member.numbers for member in self.members]):
                    losses, after = vmap(one, randomness="error")(*arguments)
            except (StatewiseError, torch.OutOfMemoryError):
                raise
            except REFUSALS:
                if not whatever_happens:
                    raise
                put_back()
                outputs = []
                for i, member in enumerate(self.members):
                    with drawing_from([member.numbers]):
                        outputs.append(one(*pytree.tree_map(lambda x, i=i: x[i], arguments)))
                losses = torch.stack([loss for loss, _ in outputs])
                after = [torch.stack(leaves) for leaves in zip(*(leaves for _, leaves in outputs))]
        if after:
            self.carried = _filled(self.carried, after)
            self._share_carried()
        return losses / first.config.accumulation

    def update(self) -> Update:
        """One step. Those that went wrong are dropped, with their parameters as they were before it."""
        first = self.members[0].state
        before = [(member.numbers.tensors.copy(), member.state.carried) for member in self.members]
        total = torch.zeros(len(self.members), device=first.device)
        for number in range(first.config.accumulation):
            losses = self._losses(number)
            losses.sum().backward()
            total = total + losses.detach()
        gradients = [_gradient(flat) for flat in self.flat]
        norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients]).norm(dim=0)
        went: list[Step] = []
        wrong: list[tuple[Member, DivergedError]] = []
        for i, (member, loss, norm) in enumerate(zip(self.members, total.tolist(), norms.tolist())):
            if math.isfinite(loss) and math.isfinite(norm):
                went.append(Step(member, loss, norm, learning_rate(member.state)))
            else:
                wrong.append((member, self._diagnose(member, *before[i], loss, norm)))
        if first.config.optimizer.clip_norm is not None:
            factor = (first.config.optimizer.clip_norm / (norms + 1e-6)).clamp(max=1.0)
            gradients = [gradient * factor[:, None] for gradient in gradients]
        if wrong and went:
            lost = [member for member, _ in wrong]
            kept = [i for i, member in enumerate(self.members) if member not in lost]
            gradients = [gradient[kept] for gradient in gradients]
            self.drop(lost)
        if went:
            self._step(gradients, [step.lr for step in went])
        for step in went:
            step.member.state.progress.step += 1
            step.member.state.progress.validation = None
        return Update(went, wrong)

    def _step(self, gradients: list[Tensor], lrs: list[float]) -> None:
        for rows, optimizer, leaves in self.optimizers:
            set_learning_rate(optimizer, lrs[rows.start])
            for leaf, gradient in zip(leaves, gradients):
                leaf.grad = gradient[rows]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._clear()

    def _clear(self) -> None:
        for flat in self.flat:
            flat.grad = None

    def _diagnose(
        self, member: Member, tensors: dict[str, Tensor], carried: Any, loss: float, norm: float
    ) -> DivergedError:
        state = member.state
        set_torch_generators(tensors, state.device)
        state.carried = carried
        return not_finite(state, loss, norm, loss_function(state))


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _gradient(flat: Tensor) -> Tensor:
    assert flat.grad is not None  # every group has a parameter, which the loss depends on
    return flat.grad


def _stacked(leaves: Sequence[Any]) -> Any:
    """The leaves of all members as one tensor; what is no tensor is the same for all."""
    return torch.stack(list(leaves)) if isinstance(leaves[0], Tensor) else leaves[0]


def _only(leaves: Sequence[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _filled(leaves: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """The leaves, with these tensors in the place of theirs."""
    rest = iter(tensors)
    return [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
