"""The ranks of a run that share it: what ``statewise.training.ranks`` says of one process, of several."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from statewise import checkpoints
from statewise.checkpoints.empty import build_empty, build_unchecked
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.configuration import to_dict
from statewise.errors import ConfigError, StatewiseError
from statewise.models.base import Model
from statewise.training.config import ParallelConfig, RunConfig
from statewise.training.distributed import tensors as parted
from statewise.training.distributed.begun_by import goes_on, sign
from statewise.training.distributed.mesh import Layout, lay_out
from statewise.training.distributed.wrap import Wrapped, require_divisible, wrap
from statewise.training.environment import autocast, choose_device, seed_generators
from statewise.training.ranks import Generators, Loss, Ranks, Whole
from statewise.training.run_folder import RunFolder, by_path, open_run
from statewise.training.snapshot import capture_generators, restore_generators

if TYPE_CHECKING:
    from statewise.training.tasks.base import Task

Result = TypeVar("Result")


def own_gpu() -> torch.device:
    """This process's: each of a machine has one of its own, which may be the only one that it sees.

    Errors: ConfigError if there are fewer than processes.
    """
    local, n_local = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    n_gpus = torch.cuda.device_count()
    if 1 < n_gpus < n_local or (n_gpus == 1 < n_local and "CUDA_VISIBLE_DEVICES" not in os.environ):
        raise ConfigError(
            f"{n_local} processes on this machine with {n_gpus} GPUs; start at most one for each (torchrun "
            f"--nproc-per-node {n_gpus}), or set train.device=cpu"
        )
    return torch.device("cuda", local % n_gpus)


class SeveralRanks(Ranks):
    """The process group that there is. Until ``arrange`` has been called its ranks only talk."""

    layout: Layout
    wrapped: Wrapped

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    # -- before the run ----------------------------------------------------------------------------------------------

    @contextmanager
    def open_run(
        self, folder: Path | str, config: RunConfig | None, *, resume: bool, holds: Collection[str] = ()
    ) -> Iterator[RunFolder]:
        self._require_same(config, folder)
        with ExitStack() as stack:

            def open_here() -> RunFolder:
                run = stack.enter_context(open_run(folder, config, resume=resume or goes_on(Path(folder)), holds=holds))
                sign(run.path)
                return run

            yield self.by_first(open_here)

    def _require_same(self, config: RunConfig | None, folder: Path | str) -> None:
        """Errors: ConfigError naming the first field in which a rank's configuration or folder is not rank 0's."""
        # nodes may see the folder in different places
        own = {"out": Path(folder).name, **({} if config is None else by_path(to_dict(config)))}
        digests = self._all(hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest())
        if len(set(digests)) == 1:
            return
        each = self._all(own)
        rank = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
        first, other = each[0], each[rank]
        name = next(key for key in sorted(first.keys() | other.keys()) if first.get(key) != other.get(key))
        raise ConfigError(
            f"the processes have different configurations: {name} is {first.get(name)!r} on rank 0 and "
            f"{other.get(name)!r} on rank {rank}; start all of them with the same one"
        )

    def arrange(self, config: ParallelConfig, device: str) -> torch.device:
        chosen = choose_device(device)
        if chosen.type == "cuda" and "cuda:nccl" not in dist.get_backend_config():
            if device == "cuda":
                raise ConfigError(
                    f"train.device=cuda, but the process group has the backends {dist.get_backend_config()!r}; "
                    'start it with torch.distributed.init_process_group("cpu:gloo,cuda:nccl")'
                )
            chosen = torch.device("cpu")
        if chosen.type == "cuda":
            chosen = own_gpu()
            torch.cuda.set_device(chosen)
        self.layout = lay_out(config, chosen.type)
        return chosen

    def divide(self, run: RunConfig) -> None:
        require_divisible(run, self.layout)

    # -- agreement ---------------------------------------------------------------------------------------------------

    def _all(self, value: Any) -> list[Any]:
        """What every rank has."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def agree(self, work: Callable[[], Result]) -> Result:
        result, failure = None, None
        try:
            result = work()
        except StatewiseError as error:
            failure = (type(error), str(error))
        failures = self._all(failure)
        for rank, found in enumerate(failures):
            if found is not None:
                kind, message = found
                alone = failures.count(None) and rank
                raise kind(f"rank {rank}: {message}" if alone else message)
        return result  # type: ignore[return-value]

    def in_turn(self, work: Callable[[], Result]) -> Result:
        done: Result | None = None

        def first() -> None:
            nonlocal done
            if self.rank == 0:
                done = work()

        self.agree(first)
        return self.agree(lambda: work() if self.rank else done)  # type: ignore[return-value]

    def by_first(self, work: Callable[[], Result]) -> Result:
        message: list[Any] = [None, None]
        if self.rank == 0:
            try:
                message[0] = work()
            except StatewiseError as error:
                message[1] = (type(error), str(error))
        result = message[0]
        dist.broadcast_object_list(message, src=0)
        if message[1] is not None:
            kind, text = message[1]
            raise kind(text)
        return result if self.rank == 0 else message[0]

    def clock(self, seconds: float) -> float:
        value = torch.tensor(seconds, dtype=torch.float64)
        dist.broadcast(value, src=0)
        return value.item()

    def signal(self, received: int | None) -> int | None:
        number = torch.tensor(received or 0)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number) or None

    def first_of(self, found: str | None) -> str | None:
        each = self._all(found)
        return next((text for text in each if text is not None), None)

    # -- the model ---------------------------------------------------------------------------------------------------

    @property
    def works_apart(self) -> bool:  # type: ignore[override]
        return self.wrapped.works_apart

    def build(self, run: RunConfig, task: Task[Any, Any], device: torch.device, checkpoint: Path | None) -> Model:
        config, draws = run.model, self.rank == 0 and checkpoint is None
        model = self.agree(lambda: build_unchecked(config) if draws else build_empty(config))
        drawn = {name: tensor.detach() for name, tensor in stored_tensors(model).items()} if draws else None
        self.wrapped = wrap(task, model, self.layout, run.train, device)
        if checkpoint is not None:
            self.agree(lambda: checkpoints.load_into(model, checkpoint, parted.put))
        else:
            parted.scatter(stored_tensors(model), drawn)
            self._draw_on_alike(device)
        return model

    def _draw_on_alike(self, device: torch.device) -> None:
        """Rank 0 alone has drawn numbers; all continue from where its generators are."""
        states = [capture_generators(device)]
        dist.broadcast_object_list(states, src=0)
        restore_generators(*states[0], device)

    def loss_function(self, loss_of: Loss) -> Loss:
        return loss_of if self.wrapped.ddp is None else self.wrapped.ddp

    def evaluating(self, device: torch.device) -> AbstractContextManager[object]:
        if self.wrapped.rounded:
            return autocast("bfloat16", device)
        sequence = self.wrapped.sequence
        return nullcontext() if sequence is None else sequence.disabled()

    def alike(self, parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        return parted.by_mesh(parameters)

    # -- a step ------------------------------------------------------------------------------------------------------

    def part_of(self, task: Task[Any, Any], batch: Any) -> tuple[Any, float | None]:
        layout, sequence = self.layout, self.wrapped.sequence
        n_targets = max(task.n_targets(batch), 1)
        rows = parted.rows(batch, layout.data_rank, layout.n_data)
        if sequence is None:
            return rows, task.n_targets(rows) / n_targets
        piece = task.piece(rows, layout.sequence_rank, layout.config.sequence)
        copies = layout.config.sequence if piece.targets.shape == rows.targets.shape else 1  # of pooled rows: one each
        return piece, task.n_targets(piece) / n_targets / copies

    @property
    def waits(self) -> bool:  # type: ignore[override]
        return self.wrapped.sequence is not None

    def piece_of(self, task: Task[Any, Any], batch: Any, number: int, n_pieces: int) -> tuple[Any, float]:
        """Ranks that share rows share each piece of them, one behind the other."""
        layout, n_targets = self.layout, max(task.n_targets(batch), 1)
        rows, n_sequence = parted.rows(batch, layout.data_rank, layout.n_data), layout.config.sequence
        piece = task.piece(rows, number * n_sequence + layout.sequence_rank, n_pieces * n_sequence)
        if piece.targets.shape == rows.targets.shape:
            return piece, (number == n_pieces - 1) * task.n_targets(rows) / n_targets / n_sequence
        return piece, task.n_targets(piece) / n_targets

    def handed(self, state: Any, gradient: list[Tensor | None]) -> list[Tensor | None]:
        """The first rank has it, and the last one needs it."""
        if self.wrapped.sequence is None:
            return gradient
        leaves = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
        places = [i for i, leaf in enumerate(leaves) if leaf.is_floating_point()]
        own = [torch.zeros_like(leaves[i]) if (found := gradient[i]) is None else found for i in places]
        shared = dict(zip(places, self.wrapped.sequence.line.share_first(own)))
        return [shared.get(i) for i in range(len(gradient))]

    def gathering(self, *, last: bool) -> AbstractContextManager[object]:
        ddp = self.wrapped.ddp
        return nullcontext() if last or ddp is None else ddp.no_sync()

    def backward(self, loss: Tensor) -> None:
        """DDP and FSDP take the mean over the parts; the loss is a sum of theirs."""
        (loss * self.layout.n_parts).backward()

    def gather(self, parameters: Sequence[nn.Parameter]) -> None:
        """A rank whose rows have no target has no gradient, and takes part with zeros."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        parted.sum_over(gradients, self.layout.parts.get_group())

    def summed(self, counts: Tensor) -> Tensor:
        counts = counts.clone()
        dist.all_reduce(counts, group=self.layout.parts.get_group())
        return counts

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return parted.total_norm(gradients)

    def clip(self, parameters: Sequence[nn.Parameter], most: float, norm: Tensor) -> None:
        parted.clip(parameters, most, norm)

    def numbers(self, loss: Tensor, norm: Tensor) -> tuple[float, float]:
        loss = loss.clone()
        dist.all_reduce(loss, group=self.layout.parts.get_group())
        return super().numbers(loss, norm)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def rows_of(self, tree: Any) -> Any:
        return parted.rows(tree, self.layout.data_rank, self.layout.n_data)

    def whole_rows(self, tree: Any) -> Any:
        return parted.gather_rows(tree, self.layout.mesh.get_group("data"))

    def own(self, tensor: Tensor) -> Tensor:
        return parted.own(tensor)

    def by_first_of_all(self, tensors: Iterable[Tensor], work: Callable[[Whole | None], Result]) -> Result:
        gathering = parted.Gathering(tensors)
        if self.rank:
            gathering.answer()

        def first() -> Result:
            try:
                return work(gathering.whole)
            finally:
                gathering.end()

        return self.by_first(first)

    def whole(self, tensor: Tensor) -> Tensor:
        return parted.whole(tensor)

    def part_like(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        return parted.part_like(tensor, parameter)

    def begin_generators(self, seed: int, step: int) -> None:
        """Those of the first part continue like a single process's; ranks that share tensors draw the same."""
        if self.layout.part:
            seed_generators(parted.seed_of(seed, step, self.layout.part))

    def capture_generators(self, device: torch.device) -> Generators:
        tensors, data = capture_generators(device)
        each = self._all((self.layout.part, {name: tensor.cpu() for name, tensor in tensors.items()}, data))
        by_part = {part: (named, plain) for part, named, plain in each}
        found = {**by_part[0][0]}
        for part in range(1, len(by_part)):
            found |= {f"part{part}.{name}": tensor for name, tensor in by_part[part][0].items()}
        return found, {
            "generators": by_part[0][1],
            "generators_of_parts": [by_part[part][1] for part in range(len(by_part))],
        }

    def restore_generators(
        self, tensors: Mapping[str, Tensor], data: Mapping[str, Any], device: torch.device, seed: int
    ) -> None:
        """With as many parts as before each has its own again; else all but the first are seeded again."""
        part, saved = self.layout.part, data.get("generators_of_parts", [])
        if part == 0:
            restore_generators(tensors, data["generators"], device)
        elif len(saved) == self.layout.n_parts:
            prefix = f"part{part}."
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            restore_generators(own, saved[part], device)
        else:
            self.begin_generators(seed, int(data["step"]))
