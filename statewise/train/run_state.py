"""All that changes while a run goes on: begun from a seed, saved into a checkpoint, restored from one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from statewise import checkpoints
from statewise.checkpoints import flatten_tree, unflatten_into
from statewise.data.batches import Batches
from statewise.data.text import Corpus, TokenSplit, open_corpus
from statewise.errors import CheckpointError, ConfigError, DataError, TrainingError
from statewise.evaluate.perplexity import has_bounded_state
from statewise.models.language_model import LanguageModelState
from statewise.train.config import RunConfig
from statewise.train.diagnose import non_finite_parameter
from statewise.train.environment import choose_device, seed_generators
from statewise.train.optimizer import ParameterGroup, build_optimizer, parameter_groups
from statewise.train.run_folder import RunFolder
from statewise.train.snapshot import (
    capture_generators,
    capture_optimizer,
    restore_generators,
    restore_optimizer,
)


@dataclass
class Progress:
    """The plain numbers of a run."""

    step: int = 0  # updates done
    seconds: float = 0.0  # since the run began, pauses not counted
    validation_bits_per_byte: float | None = None  # of the parameters as they are; None: not looked at
    best_bits_per_byte: float | None = None
    # Sums over the steps since the last line of metrics
    n_steps: int = 0
    losses: float = 0.0
    step_seconds: float = 0.0


class RunState:
    """A model in training, its optimiser, its data, and how far it is."""

    def __init__(self, run: RunFolder) -> None:
        """Begins the run, or takes it up where its last checkpoint left it."""
        self.run, self.config = run, run.config.train
        self.device = choose_device(self.config.device)
        self.corpus = open_corpus(run.config.data)
        self.validation = _validation_split(self.corpus)
        _require_vocabulary(run.config, self.corpus)
        self.batches = Batches(
            self.corpus.split("train"),
            self.config.batch_size,
            self.config.length,
            self.config.seed,
            carry=self.config.carry_state,
        )
        self.progress = Progress()
        self.checkpoint = run.latest()
        seed_generators(self.config.seed)
        self.model = run.config.model.build()
        if self.checkpoint is not None:
            checkpoints.load_into(self.model, self.checkpoint)
        self.model.to(self.device).train()
        self.model.gradient_checkpointing = self.config.gradient_checkpointing
        self.groups: tuple[ParameterGroup, ...] = parameter_groups(self.model, self.config)
        self.parameters: list[nn.Parameter] = [p for group in self.groups for _, p in group.parameters]
        self.optimizer = build_optimizer(self.groups, self.config)
        self.carried: LanguageModelState | None = None
        if self.config.carry_state:
            if not has_bounded_state(self.model):
                raise ConfigError(
                    "TrainConfig.carry_state=True, but a layer of the model has full attention, whose state would "
                    "grow without end; give it a window, or set train.carry_state=false"
                )
            self.carried = self.model.initial_state(self.config.batch_size)
        if self.checkpoint is not None:
            self._restore(self.checkpoint)

    def save(self, before: Callable[[], None]) -> Path:
        """Writes a checkpoint and deletes those that are no longer kept. ``before`` is called first.

        Errors: TrainingError, before anything is written, if a parameter is not finite; CheckpointError if the
                disk does not take it, saying which checkpoint remains.
        """
        name = non_finite_parameter(self.model)
        if name is not None:
            raise TrainingError(
                f"the parameter {name} is not finite after step {self.progress.step}; {self.what_remains()}. "
                f"{self.advice()}"
            )
        path = self.run.checkpoint_path(self.progress.step)
        tensors, generators = capture_generators(self.device)
        tensors |= capture_optimizer(self.optimizer, self.groups) | flatten_tree(self.carried, "state")
        data = {**asdict(self.progress), "generators": generators, "corpus": self.corpus.fingerprint}
        try:
            before()
            checkpoints.save(self.model, path, tokenizer=self.corpus.tokenizer, trainer=(tensors, data))
            self.checkpoint = path
            checkpoints.prune(self.run.path, self.config.keep_last, self.config.keep_best)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"{error}; {self.what_remains()}") from error
        return path

    def what_remains(self) -> str:
        if self.checkpoint is None:
            return "no checkpoint was written before"
        return f"the last good checkpoint is {self.checkpoint}"

    def advice(self) -> str:
        """What to do about numbers that are not finite."""
        if self.checkpoint is None:
            smaller = f"--resume {shlex.quote(str(self.run.path))} --lr {self.config.lr / 3:.2g}"
            return f"To begin anew with a smaller learning rate: statewise train {smaller}"
        return "A smaller train.lr, or a longer train.warmup, may help; for that begin a new run with another --out"

    def _restore(self, checkpoint: Path) -> None:
        tensors, data = checkpoints.read_trainer(checkpoint)
        if data["corpus"] != self.corpus.fingerprint:
            raise DataError(
                f"the text at {self.run.config.data.source!r} is not the one that {checkpoint} was trained on: "
                "files were added, removed or changed; put them back as they were, or begin a new run"
            )
        generators = data.pop("generators")
        del data["corpus"]
        self.progress = Progress(**data)
        restore_optimizer(self.optimizer, self.groups, tensors)
        if self.carried is not None:
            self.carried = unflatten_into(self.carried, tensors, "state", same_shapes=False)
        restore_generators(tensors, generators, self.device)


def _validation_split(corpus: Corpus) -> TokenSplit | None:
    if corpus.config.validation_fraction == 0:
        return None
    split = corpus.split("validation")
    return split if split.n_tokens > 1 else None


def _require_vocabulary(config: RunConfig, corpus: Corpus) -> None:
    given, needed = config.model.vocab_size, corpus.tokenizer.vocab_size
    if given != needed:
        raise ConfigError(
            f"model.vocab_size={given}, but the tokenizer {config.data.tokenizer!r} has {needed} tokens; "
            f"set model.vocab_size={needed}"
        )
