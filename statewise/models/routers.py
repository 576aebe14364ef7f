"""The routers of a model while it is trained: their losses, the biases that balance without one, how even they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from statewise.errors import ConfigError, InputError
from statewise.models.moe import Router
from statewise.models.routing import Routed, Watch, router_loss

Summed = Callable[[Tensor], Tensor]  # an integer tensor -> its sum over all processes that share a batch


class Routers:
    """What the routers of a model's mixtures of experts do in training, and what keeps their experts in use.

    Without anything that balances them, routers tend to choose the same few experts, which are then trained, and
    chosen again. ``train.routing`` uses this class. In a loop of your own call the model, in training mode, within
    ``with routers:``, add :meth:`loss` to yours, and call :meth:`step` after the optimiser. Padding does not count.

    losses: False: only counts are taken, for :meth:`step`
    load:   what the last :meth:`step` gave; NaN before

    Errors:  ConfigError for a model without a mixture of experts; InputError where the model has read nothing.

    >>> import torch
    >>> from statewise import LanguageModelConfig, Mamba2Config, MoEConfig, BlockConfig
    >>> block = BlockConfig(mixer=Mamba2Config(d_state=8, d_head=8), mlp=MoEConfig(n_experts=4, n_active=1))
    >>> model = LanguageModelConfig(vocab_size=50, d_model=16, layers=(block,)).build()
    >>> routers = Routers(model)
    >>> with routers:
    ...     logits, _ = model(torch.randint(50, (2, 30)))
    >>> loss = logits.square().mean() + routers.loss(balance=0.01, z=0.001)
    >>> loss.backward()
    >>> 1.0 <= routers.step() <= 4.0
    True
    """

    def __init__(self, model: nn.Module, *, losses: bool = True) -> None:
        self.routers = {name: module for name, module in model.named_modules() if isinstance(module, Router)}
        if not self.routers:
            raise ConfigError("the model has no mixture of experts; give a layer mlp=MoEConfig(...)")
        self.losses, self.load = losses, float("nan")
        self._watches = [Watch(losses=losses) for _ in self.routers]
        for router, watch in zip(self.routers.values(), self._watches):
            router.watch = watch
        self._pieces: dict[int, Tensor] = {}  # of the batch that is being read: the counts of all routers, end to end
        self._counts: Tensor | None = None  # of the batches of this step that were read

    def __enter__(self) -> Self:
        for watch in self._watches:
            watch.take()
            watch.is_open = True
        return self

    def __exit__(self, *failure: object) -> None:
        for watch in self._watches:
            watch.is_open = False

    def loss(self, *, balance: float = 0.0, z: float = 0.0) -> Tensor:
        """The losses of the batch that the model has read last, summed over the layers.

        balance, z: their weights, usually 0.01 and 0.001; see :func:`statewise.models.routing.router_loss`
        """
        self.begin()
        return self.part(balance=balance, z=z)

    def begin(self) -> None:
        """A batch is read from here on, in one part or in several."""
        if self._pieces:
            counts = sum(self._pieces.values())
            assert isinstance(counts, Tensor)
            self._counts = counts if self._counts is None else self._counts + counts
        self._pieces = {}

    def part(self, piece: int = 0, *, balance: float = 0.0, z: float = 0.0, summed: Summed | None = None) -> Tensor:
        """What a part of a batch adds to the losses: the steps that were read last.

        Experts are shared out over the whole batch. So this is right once all of its pieces were read, each once at
        least, as :func:`~statewise.models.through_time.through_time` reads them before it asks for gradients.

        piece: which one it is   summed: adds up what other processes read of it
        """
        seen = self._take()
        counts = torch.cat([one.counts for one in seen])
        self._pieces[piece] = counts if summed is None else summed(counts)
        every = sum(self._pieces.values())
        assert isinstance(every, Tensor)
        total = torch.zeros((), device=counts.device)
        if not balance and not z:
            return total
        if not self.losses:
            raise InputError(f"balance={balance} and z={z} of routers that only count; make them with losses=True")
        for router, one, all_counts in zip(self.routers.values(), seen, self._each(every)):
            total = total + router_loss(one, all_counts, router.config.n_active, balance=balance, z=z)
        return total

    def forget(self) -> None:
        """Leaves out what was seen since the last :meth:`step`."""
        for watch in self._watches:
            watch.take()
        self._pieces, self._counts = {}, None

    def step(self, bias: float = 0.0) -> float | None:
        """Ends a step of training: moves the biases, and gives the largest share of an expert over the mean share, of
        the layer where that is largest: 1 in balance, n_experts / n_active where all steps choose the same; None
        where nothing was read.

        bias: by how much the bias of an expert that was chosen more than the mean falls, and that of one that was
              chosen less rises; see ``MoEConfig.correction_bias``. 0: none moves

        Source:  DeepSeek-AI 2024 (V3), arXiv:2412.19437, sec. 2.1.2; Wang et al. 2024, arXiv:2408.15664, alg. 1.
        """
        self.begin()
        counts, self._counts = self._counts, None
        if counts is None:
            return None
        each = self._each(counts)
        if bias:
            self._move(bias, each)
        loads = torch.stack([n.amax() * len(n) / n.sum().clamp(min=1) for n in each])
        self.load = float(loads.amax())
        return self.load

    @torch.no_grad()
    def _move(self, by: float, each: list[Tensor]) -> None:
        without = self.without_bias()
        if without is not None:
            raise InputError(f"{without} has no bias to move; set correction_bias=True in its MoEConfig")
        for router, counts in zip(self.routers.values(), each):
            assert router.bias is not None
            router.bias += by * (counts.sum() - len(counts) * counts).sign()

    def without_bias(self) -> str | None:
        """The name of a router that has no bias to move."""
        return next((name for name, router in self.routers.items() if router.bias is None), None)

    def _take(self) -> list[Routed]:
        found = []
        for name, watch in zip(self.routers, self._watches):
            one = watch.take()
            if one is None:
                raise InputError(f"{name} has read nothing; call the model in training mode within `with routers:`")
            found.append(one)
        return found

    def _each(self, counts: Tensor) -> list[Tensor]:
        return list(counts.split([router.config.n_experts for router in self.routers.values()]))
