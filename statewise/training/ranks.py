"""The processes of one run, as the loop sees them. There is one here; ``train.distributed`` has those of torchrun.

A rank is one of these processes, numbered from 0. Rank 0 decides, writes and speaks; the others compute with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from statewise import checkpoints
from statewise.checkpoints.empty import build_unchecked
from statewise.errors import ConfigError
from statewise.models.base import Model
from statewise.training.config import ParallelConfig, RunConfig
from statewise.training.environment import choose_device
from statewise.training.run_folder import RunFolder, open_run
from statewise.training.snapshot import capture_generators, restore_generators

if TYPE_CHECKING:
    from statewise.training.tasks.base import Task

Result = TypeVar("Result")
Loss = Callable[[Any, Any], tuple[Tensor, Any]]
Whole = Callable[[Tensor], Tensor]
Generators = tuple[dict[str, Tensor], dict[str, Any]]


class Ranks:
    """One process: nothing to agree on, nothing to share."""

    rank: int = 0
    size: int = 1
    works_apart: bool = True  # whether a forward and a backward pass of the model alone needs no other rank
    waits: bool = False  # whether a backward pass waits for that of other ranks, which read the same rows

    # -- before the run ----------------------------------------------------------------------------------------------

    @contextmanager
    def open_run(
        self, folder: Path | str, config: RunConfig | None, *, resume: bool, holds: Collection[str] = ()
    ) -> Iterator[RunFolder]:
        """As ``run_folder.open_run``. Rank 0 owns the folder; all have the same configuration, or it is refused.

        If torchrun starts its processes again, they continue the run that they had begun.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            with open_run(folder, config, resume=resume, holds=holds) as run:
                yield run
            return
        from statewise.training.distributed.begun_by import goes_on, sign

        with open_run(folder, config, resume=resume or goes_on(Path(folder)), holds=holds) as run:
            sign(run.path)
            yield run

    def arrange(self, config: ParallelConfig, device: str) -> torch.device:
        """Lays the ranks out as the configuration says; gives the device of this one.

        Errors: ConfigError if there are too few.
        """
        if config.tensor * config.sequence > 1:
            raise ConfigError(
                f"train.parallel has tensor={config.tensor} and sequence={config.sequence}, but there is one process; "
                f"start the run with torchrun --nproc-per-node {config.tensor * config.sequence} -m statewise train ..."
            )
        return choose_device(device)

    def divide(self, run: RunConfig) -> None:
        """Errors: ConfigError if the batches or the model of a run cannot be divided among the ranks."""

    # -- agreement ---------------------------------------------------------------------------------------------------

    def agree(self, work: Callable[[], Result]) -> Result:
        """Every rank does it. What one of them cannot do is an error of all."""
        return work()

    def in_turn(self, work: Callable[[], Result]) -> Result:
        """Rank 0 does it first, so that the others find the files that it made."""
        return work()

    def by_first(self, work: Callable[[], Result]) -> Result:
        """Rank 0 does it; all get what it gives, or its error."""
        return work()

    def clock(self, seconds: float) -> float:
        """Rank 0's."""
        return seconds

    def signal(self, received: int | None) -> int | None:
        """One that any rank has received."""
        return received

    def first_of(self, found: str | None) -> str | None:
        """What the first rank found that found anything."""
        return found

    # -- the model ---------------------------------------------------------------------------------------------------

    def build(self, run: RunConfig, task: Task[Any, Any], device: torch.device, checkpoint: Path | None) -> Model:
        """The run's model on the device, drawn or, where there is one, as the checkpoint has it.

        Where ranks divide a model each has its part: one alone draws the whole, and none reads that of a checkpoint.
        """
        model = build_unchecked(run.model)
        if checkpoint is not None:
            checkpoints.load_into(model, checkpoint)
        return model.to(device)

    def loss_function(self, loss_of: Loss) -> Loss:
        """The same loss, its gradients gathered from all ranks."""
        return loss_of

    def evaluating(self, device: torch.device) -> AbstractContextManager[object]:
        """Within it the model reads whole sequences, as evaluation does, in the precision of its weights."""
        return nullcontext()

    def alike(self, parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        """The parameters in groups that one call of an optimiser can take together."""
        return [list(parameters)]

    # -- a step ------------------------------------------------------------------------------------------------------

    def part_of(self, task: Task[Any, Any], batch: Any) -> tuple[Any, float | None]:
        """What this rank reads of a batch, and how much its mean loss counts in that of the whole; None: it is all."""
        return batch, None

    def piece_of(self, task: Task[Any, Any], batch: Any, number: int, n_pieces: int) -> tuple[Any, float]:
        """What this rank reads of one of ``n_pieces`` of a batch, and how much its mean loss counts in the whole's."""
        piece = task.piece(batch, number, n_pieces)
        if piece.targets.shape == batch.targets.shape:  # of whole rows: what the last piece answers
            return piece, float(number == n_pieces - 1)
        return piece, task.n_targets(piece) / max(task.n_targets(batch), 1)

    def handed(self, state: Any, gradient: list[Tensor | None]) -> list[Tensor | None]:
        """The gradient of a state before a piece, for the rank that has the end of the piece before it."""
        return gradient

    def gathering(self, *, last: bool) -> AbstractContextManager[object]:
        """Around a micro-batch's forward and backward pass: gradients may be gathered after the last one only."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def gather(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sums the gradients of all ranks' parts, where no backward pass has done so."""

    def summed(self, counts: Tensor) -> Tensor:
        """The sum of what each rank counted in its part of a batch."""
        return counts

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Over all parameters, on whatever rank they are."""
        return get_total_norm(gradients)

    def clip(self, parameters: Sequence[nn.Parameter], most: float, norm: Tensor) -> None:
        clip_grads_with_norm_(parameters, most, norm)

    def numbers(self, loss: Tensor, norm: Tensor) -> tuple[float, float]:
        """The loss of all ranks' parts together, and the norm, which is everybody's."""
        total, gradient_norm = torch.stack([loss, norm]).tolist()
        return total, gradient_norm

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def rows_of(self, tree: Any) -> Any:
        """This rank's rows of a state that has those of the whole batch."""
        return tree

    def whole_rows(self, tree: Any) -> Any:
        """The inverse of ``rows_of``, on rank 0."""
        return tree

    def own(self, tensor: Tensor) -> Tensor:
        """What this rank has of a tensor."""
        return tensor

    def by_first_of_all(self, tensors: Iterable[Tensor], work: Callable[[Whole | None], Result]) -> Result:
        """Rank 0 does it, and all get what it gives, or its error. ``work`` is given what makes each of these tensors
        whole, of which a rank may have only a piece; None where they are."""
        return work(None)

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor of which a rank has a part, on every rank; all of them ask for it."""
        return tensor

    def part_like(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """The part of a whole tensor that a rank has of this parameter, in memory of its own.

        A clone is aligned as PyTorch aligns: a view into a file's buffer may be summed in another order.
        """
        return tensor.clone()

    def begin_generators(self, seed: int, step: int) -> None:
        """Ranks that read different rows draw different numbers."""

    def capture_generators(self, device: torch.device) -> Generators:
        """Those of all ranks, on rank 0: tensors by name, and JSON data."""
        tensors, data = capture_generators(device)
        return tensors, {"generators": data}

    def restore_generators(
        self, tensors: Mapping[str, Tensor], data: Mapping[str, Any], device: torch.device, seed: int
    ) -> None:
        """Puts back what ``capture_generators`` gave; data: those of the checkpoint."""
        restore_generators(tensors, data["generators"], device)


def n_ranks() -> int:
    """How many processes torchrun has started, or have joined this one's process group; 1 without either."""
    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return group.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def require_one_process(what: str) -> None:
    """Errors: ConfigError under torchrun with several processes."""
    if n_ranks() > 1:
        raise ConfigError(f"{what} in one process; start it without torchrun")
