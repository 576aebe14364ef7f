"""All that changes while a run goes on: begun from a seed, saved into a checkpoint, restored from one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from statewise import checkpoints
from statewise.checkpoints import flatten_tree, unflatten_into
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError, ConfigError, DivergedError, InputError
from statewise.models.routers import Routers
from statewise.models.through_time import refuse_whole_batches
from statewise.training.diagnose import non_finite
from statewise.training.environment import seed_generators
from statewise.training.initial_tokenizer import require_own_tokenizer
from statewise.training.memory_check import require_memory
from statewise.training.optimizer import ParameterGroup, build_optimizer, parameter_groups
from statewise.training.ranks import Ranks, Whole
from statewise.training.routing import watched
from statewise.training.run_folder import RUN, RunFolder
from statewise.training.same_data import as_written_now, require_same_data
from statewise.training.snapshot import capture_optimizer, restore_optimizer
from statewise.training.tasks import open_task


@dataclass
class Progress:
    """The plain numbers of a run."""

    step: int = 0  # updates done
    seconds: float = 0.0  # since the run began, pauses not counted, by the budget's clock
    validation: float | None = None  # the task's metric of the parameters as they are; None: not looked at
    best: float | None = None
    held: int = 0  # looks at the validation split running that were as good as stop_at
    # Sums over the steps since the last line of metrics
    n_steps: int = 0
    losses: float = 0.0
    step_seconds: float = 0.0
    expert_loads: float = 0.0


class RunState:
    """A model in training, its optimiser, its data, and how far it is."""

    def __init__(self, run: RunFolder, *, ranks: Ranks | None = None) -> None:
        """Begins the run, or takes it up where its last checkpoint left it.

        ranks: the processes that share it; None: this one alone
        """
        self.run, self.config = run, run.config.train
        self.ranks = ranks = Ranks() if ranks is None else ranks
        self.device = ranks.arrange(self.config.parallel, self.config.place)
        if self.config.budget.clock == "processor" and (self.device.type != "cpu" or ranks.size > 1):
            where = f"on {self.device}" if ranks.size == 1 else f"in {ranks.size} processes"
            raise ConfigError(
                f"train.budget.clock=processor counts one process's time on a CPU, but the run is {where}; "
                "set train.budget.clock=wall, or train.device=cpu for one process"
            )
        latest, initial = ranks.by_first(run.latest), None
        if latest is None and self.config.initial is not None:
            initial = checkpoints.resolve(self.config.initial)
            require_own_tokenizer(initial, run.config.data)
        self.task = ranks.in_turn(lambda: open_task(run.config))
        if latest is not None:
            self.task.go_on_from(ranks.agree(lambda: checkpoints.read_config(latest).model))
        ranks.divide(run.config)
        self.batches = self.task.batches
        self.total_steps = self._total_steps()
        ranks.agree(lambda: require_memory(self.task.run, self.task, n_ranks=ranks.size))
        self.progress = Progress()
        self.checkpoint = latest
        seed_generators(self.config.seed)
        if initial is not None:
            ranks.agree(lambda: require_own_tokenizer(initial, run.config.data, self.task))
        self.model = ranks.build(self.task.run, self.task, self.device, latest or initial).train()
        self._refuse_memory()
        self.model.gradient_checkpointing = self.config.gradient_checkpointing
        self.routers: Routers | None = watched(self.model, self.config.routing)
        if self.config.pieces > 1:
            self._require_pieces()
        self.carried: Any = self.task.initial_state(self.model) if self.config.carry_state else None  # of all rows
        self.groups: tuple[ParameterGroup, ...] = parameter_groups(self.model, self.config.optimizer)
        self.parameters: list[nn.Parameter] = [p for group in self.groups for _, p in group.parameters]
        self.optimizer = build_optimizer(
            self.groups,
            self.config.optimizer,
            rounded=self.config.precision == "bfloat16",
            alike=ranks.alike,
            whole=ranks.whole,
            part_like=ranks.part_like,
        )
        if latest is not None:
            self._restore(latest)
        else:
            ranks.begin_generators(self.config.seed, 0)
        self.carried = ranks.rows_of(self.carried)

    def _refuse_memory(self) -> None:
        for i, block in enumerate(getattr(self.model, "blocks", ())):
            if block.mixer.reads_memory:
                raise ConfigError(
                    f"layers[{i}] reads a memory, and a run has none to give it, so it would learn nothing; write the "
                    "loop yourself, as docs/tutorials/encoder-decoder.md does"
                )

    def watching(self) -> AbstractContextManager[object]:
        """Around a call of the model that its routers' experts are counted in."""
        return nullcontext() if self.routers is None else self.routers

    def _require_pieces(self) -> None:
        """Errors: ConfigError for a model, a task or several processes that cannot read sequences in pieces."""
        n_pieces = self.config.pieces
        if self.ranks.size > 1 and self.config.parallel.data == "fsdp":
            raise ConfigError(
                f"train.pieces={n_pieces} with train.parallel.data=fsdp would gather every layer two or three times "
                "for each piece; set train.parallel.data=ddp, or train.pieces=1"
            )
        refuse_whole_batches(self.model, f"train.pieces={n_pieces}")
        self.task.piece(self.batches[0], 0, n_pieces * self.config.parallel.sequence)
        try:
            self.model.initial_state(1)
        except InputError as error:
            raise ConfigError(f"train.pieces={n_pieces} passes states on, and {error}") from None

    def _total_steps(self) -> int | None:
        """The budget in steps, of steps and epochs whichever is less; None if it is in minutes alone."""
        budget, epochs = self.config.budget, None
        if budget.epochs is not None:
            epochs = max(1, math.ceil(budget.epochs * self.batches.steps_per_epoch / self.config.accumulation))
        return min((n for n in (budget.steps, epochs) if n is not None), default=None)

    def save(self, before: Callable[[], None]) -> Path:
        """Writes a checkpoint, and deletes those that are no longer kept. ``before`` is called first.

        Errors: DivergedError, before anything is written, if a parameter is not finite; CheckpointError if the
                disk does not take it, saying which checkpoint remains.
        """
        ranks, path = self.ranks, self.run.checkpoint_path(self.progress.step)
        model = stored_tensors(self.model)
        name = ranks.first_of(non_finite({name: ranks.own(tensor.detach()) for name, tensor in model.items()}))
        if name is not None:
            what = f"the parameter {name} is not finite after step {self.progress.step}"
            raise DivergedError(f"{what}; {self.what_remains()}. {self.advice()}", what)
        carried = flatten_tree(ranks.whole_rows(self.carried), "state")
        tensors, generators = ranks.capture_generators(self.device)
        trainer = {**tensors, **capture_optimizer(self.optimizer, self.groups), **carried}
        ranks.by_first_of_all(
            (*model.values(), *trainer.values()),
            lambda whole: self._write(path, trainer, generators, before, whole),
        )
        self.checkpoint = path
        ranks.by_first(self._prune)
        return path

    def _write(
        self,
        path: Path,
        trainer: Mapping[str, Tensor],
        generators: Mapping[str, Any],
        before: Callable[[], None],
        whole: Whole | None,
    ) -> None:
        data = {
            **asdict(self.progress),
            "metric": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            **generators,
            "data": self.task.fingerprint,
            RUN: self.run.as_written(),
        }
        try:
            self.run.require_own()
            before()
            checkpoints.save(self.model, path, tokenizer=self.task.tokenizer, trainer=(trainer, data), whole=whole)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"{error}; {self.what_remains()}") from error

    def _prune(self) -> None:
        try:
            reporting = self.config.reporting
            checkpoints.prune(self.run.path, reporting.keep_last, reporting.keep_best)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"{error}; {self.what_remains()}") from error

    def what_remains(self) -> str:
        if self.checkpoint is None:
            return "no checkpoint was written before"
        return f"the last good checkpoint is {self.checkpoint}"

    def advice(self) -> str:
        """What to do about numbers that are not finite."""
        if self.checkpoint is None:
            config = self.config.optimizer
            smaller = f"--resume {shlex.quote(str(self.run.path))} --lr {config.lr / 3:.2g}"
            if config.matrices == "muon":
                smaller += f" --set train.optimizer.matrices_lr={config.matrices_lr / 3:.2g}"
            return f"To start again with a smaller learning rate: statewise train {smaller}"
        settings = "A smaller train.optimizer.lr, or a longer train.schedule.warmup"
        return f"{settings}, may help; begin a new run with it, with another --out"

    def _restore(self, checkpoint: Path) -> None:
        tensors, data = self.ranks.agree(lambda: checkpoints.read_trainer(checkpoint, mapped=True))
        data = as_written_now(data)
        require_same_data(self.task, data, checkpoint, "put them back as they were, or begin a new run")
        known = {field.name: data[field.name] for field in fields(Progress) if field.name in data}
        self.progress = Progress(**known)  # earlier versions had fewer
        restore_optimizer(self.optimizer, self.groups, tensors, self.ranks.part_like)
        if self.carried is not None:
            own_memory = {name: tensor.clone() for name, tensor in tensors.items() if name.startswith("state.")}
            self.carried = unflatten_into(self.carried, own_memory, "state", same_shapes=False)
        self.ranks.restore_generators(tensors, data, self.device, self.config.seed)
