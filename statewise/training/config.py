"""What a training run is: the model, the data, and how the one is fitted to the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from statewise.configuration import Config
from statewise.configuration.types import (
    AtLeastTwo,
    Count,
    Finite,
    Fraction,
    Limit,
    Name,
    NonNegative,
    OneOf,
    Positive,
    Ratio,
    Seed,
    Words,
)
from statewise.data.base import DataConfig
from statewise.errors import ConfigError
from statewise.models.base import ModelConfig
from statewise.training.flat_names import FLAT_NAMES

DEVICES = ("auto", "cpu", "cuda")
Device = Annotated[str, OneOf(DEVICES)]

# What a resumed run may set anew: how long it goes on, what it leaves on the way, and the machine it runs on
# with the place of the data there.
# Everything else decides the loss curve, and has to be what the run began with.
CHANGEABLE_ON_RESUME = frozenset(
    {
        "data.source",  # where the data lie; that they are the same is checked by their content
        "data.folder",
        "train.budget.steps",
        "train.budget.epochs",
        "train.budget.minutes",
        "train.reporting.evaluate_every",
        "train.reporting.evaluate_minutes",
        "train.reporting.save_every",
        "train.reporting.save_minutes",
        "train.reporting.keep_last",
        "train.reporting.keep_best",
        "train.reporting.log_every",
        "train.reporting.log",
        "train.device",
        "train.threads",
        "train.compile",
        "train.gradient_checkpointing",
        "train.pieces",
        "train.check_memory",
        "train.parallel.data",
        "train.parallel.tensor",
        "train.parallel.sequence",
    }
)


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(Config):
    """When a run ends: after ``steps``, after ``epochs`` (passes over the training data, rounded up to whole steps), or
    after ``minutes`` of training (evaluations and saves on the way count, the last ones do not; a resumed run goes on
    counting), whichever comes first; at least one has to be given.

    With ``steps`` or ``epochs`` the learning rate follows the step number, so that the run can be repeated and resumed
    bit for bit. With ``minutes`` alone it follows the clock, and so does everything after it.

    clock:   what minutes and seconds count: "wall", or "processor", the time that this process had on the machine's
             cores, summed over its threads. A run that shares its cores gets as far by it as one that has them alone.
             For one process on a CPU
    stop_at: end early, once the validation metric has been this good in ``stop_after`` evaluations in a row
    """

    steps: Count | None = None
    epochs: Positive | None = None
    minutes: Limit | None = None
    clock: Literal["wall", "processor"] = "wall"
    stop_at: Finite | None = None
    stop_after: Count = 1

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None and self.epochs is None:
            raise ConfigError(
                "BudgetConfig needs steps, minutes or epochs; set train.budget.steps=1000 or train.budget.minutes=10"
            )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) over the groups of parameters of train/optimizer.py, and
    for the matrices Muon (train/muon.py), if asked.

    lr:                what the schedule is multiplied by: the highest rate, reached at the end of the warm-up
    dynamics_lr_ratio: rate of the parameters in a Dynamics module, as a multiple of the others'
    dynamics_lr_max:   and at most this at its highest; S4's rule is 1e-3 with a ratio of 1
    dt_lr_ratio:       the same for the step sizes dt alone; None: as the rest of the dynamics
    weight_decay:      per unit of learning rate
    weight_decay_of:   "maps" between features, or "all": embeddings, norms and biases as well
    clip_norm:         the gradient's norm over all parameters is clipped to this; None: never
    matrices:          "muon": the weights of the linear maps within layers by Muon, and all else by AdamW
    matrices_lr:       Muon's highest rate, which follows the same schedule; ``lr`` is then AdamW's alone
    matrices_momentum, matrices_weight_decay: Muon's; the decay is per unit of matrices_lr
    """

    lr: Positive = 1e-3
    dynamics_lr_ratio: Positive = 1.0
    dynamics_lr_max: Limit | None = None
    dt_lr_ratio: Positive | None = None
    dt_lr_max: Limit | None = None
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.1
    weight_decay_of: Literal["maps", "all"] = "maps"
    clip_norm: Limit | None = 1.0
    matrices: Literal["adamw", "muon"] = "adamw"
    matrices_lr: Positive = 0.02
    matrices_momentum: Fraction = 0.95
    matrices_weight_decay: NonNegative = 0.1

    def __post_init__(self) -> None:
        if self.matrices == "adamw":
            for name in ("matrices_lr", "matrices_momentum", "matrices_weight_decay"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ConfigError(
                        f"OptimizerConfig.{name}={getattr(self, name)} is for Muon, but matrices='adamw'; set "
                        "train.optimizer.matrices=muon, or leave it out"
                    )
        if self.dt_lr_max is not None and self.dt_lr_ratio is None:
            raise ConfigError(
                f"OptimizerConfig.dt_lr_max={self.dt_lr_max} needs a separate rate for dt; set "
                "train.optimizer.dt_lr_ratio=1, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """The learning rate over a run: what ``learning_rate_factor`` of train/schedule.py is given.

    kind:          "cosine" or "linear" from the highest rate to the last; "wsd": warm-up, stable, decay
    warmup:        fraction of the run in which the rate rises
    warmup_prefix: the fall begins where the warm-up ends; false: where the run begins, under it
    decay:         fraction of the run in which the rate falls, at its end ("wsd" only)
    start_ratio:   the rate that the warm-up rises from, as a fraction of the highest
    min_ratio:     the last rate, as a fraction of the highest
    """

    kind: Literal["cosine", "linear", "wsd"] = "cosine"
    warmup: Ratio = 0.02
    warmup_prefix: bool = True
    decay: Ratio = 0.2
    start_ratio: Ratio = 0.0
    min_ratio: Ratio = 0.1

    def __post_init__(self) -> None:
        if self.kind != "wsd":
            return
        if not self.warmup_prefix:
            raise ConfigError(
                'ScheduleConfig.warmup_prefix=False is for schedules that fall after the warm-up, "cosine" and '
                '"linear"; leave it out'
            )
        if self.warmup + self.decay > 1:
            raise ConfigError(
                f"ScheduleConfig.warmup={self.warmup} and decay={self.decay} are fractions of one run, "
                "and together may not exceed 1"
            )


@dataclass(frozen=True, kw_only=True)
class ReportingConfig(Config):
    """What a run writes while it trains: evaluations on the validation split and checkpoints, each by steps, by
    minutes, by both, or not at all; and lines of metrics.jsonl.

    evaluate_items:  how much of the validation split to read: of a text its beginning, otherwise so many rows or
                     windows, drawn once and the same in every run; None: all (text: 65,536 tokens)
    evaluate_window: text: read the validation split from rest in windows of this many tokens, as training does; None:
                     with the state carried through it, where that is possible
    keep_last:       how many checkpoints to keep
    keep_best:       also the one that is best on the validation split, saved when it is found
    log_every:       steps between two lines of metrics.jsonl; a line holds the mean loss of its steps
    log:             where else these lines go: "tensorboard", "wandb" (docs/following.md)
    """

    evaluate_every: Count | None = None
    evaluate_minutes: Limit | None = 5.0
    evaluate_items: AtLeastTwo | None = None
    evaluate_window: Count | None = None
    save_every: Count | None = None
    save_minutes: Limit | None = 10.0
    keep_last: Count = 2
    keep_best: bool = True
    log_every: Count = 10
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(Config):
    """How the processes of one run share the work; see docs/distributed.md. What is left over shares the rows of each
    batch: with torchrun's 8 processes, tensor=2 and sequence=2, two ranks have half of the rows each.

    data:     "ddp": each rank has the whole model; "fsdp": each holds a part of every layer (FSDP2)
    tensor:   how many ranks share the matrices of each layer's projections
    sequence: how many ranks share each sequence, one contiguous piece each
    """

    data: Literal["ddp", "fsdp"] = "ddp"
    tensor: Count = 1
    sequence: Count = 1


@dataclass(frozen=True, kw_only=True)
class RoutingConfig(Config):
    """What keeps the experts of mixtures in use (``MoEConfig``). All 0: nothing, and then routers tend to choose the
    same few.

    balance:   weight of the load-balancing loss, in each layer: usually 0.01 or 0.001
    z:         weight of the loss that keeps a router's scores small: usually 0.001
    bias_step: by how much, after each step, the bias falls of each expert that was chosen more than the mean, and
               rises of the others: usually 0.001. It balances without a loss; needs ``MoEConfig.correction_bias``
    Source:    the equations are those of :func:`statewise.models.routing.router_loss` and
               :meth:`statewise.models.routers.Routers.step`.
    """

    balance: NonNegative = 0.0
    z: NonNegative = 0.0
    bias_step: NonNegative = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """How a model is trained: groups that each answer one question, what a step reads, and how it is computed.

    A step reads ``accumulation * batch_size`` sequences; with ``drop_last=False`` the last one of an epoch reads what
    remains. ``matmul="fast"`` lets the projections, the head and its loss round the factors of their products to TF32
    on CUDA; the systems, the decays and attention stay in float32. On a CPU it changes nothing: the fastest library is
    taken in any case, in full float32.
    """

    former_names: ClassVar = FLAT_NAMES

    budget: Annotated[BudgetConfig, Words("a BudgetConfig with steps, minutes or epochs")]
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    reporting: ReportingConfig = ReportingConfig()
    parallel: ParallelConfig = ParallelConfig()  # over the processes that torchrun starts
    routing: RoutingConfig = RoutingConfig()

    initial: Name | None = None  # the checkpoint whose parameters a new run begins with; null: drawn from the seed

    # What a step reads
    batch_size: Count = 8  # sequences in a micro-batch
    length: Count | None = None  # tokens in a sequence of text, by default 512; other sequences have their own: None
    accumulation: Count = 1  # micro-batches whose gradients are averaged before each step
    drop_last: bool = True  # leave out the rows of an epoch that fill no batch; false: they are its last batch
    short_first: bool = False  # sequences of their own length: each epoch from the shortest to the longest
    carry_state: bool = False  # read contiguous streams, the state passed on (detached) from batch to batch
    seed: Seed = 0  # of the parameters, the dropout and the order of the data

    # How it is computed
    precision: Literal["float32", "bfloat16"] = "float32"  # "bfloat16": autocast; parameters, moments stay in float32
    matmul: Literal["default", "fast"] = "default"  # float32 products of projections: as PyTorch is set, or "fast"
    exact: bool = False  # exact mode (statewise.exact), on the CPU: the same bits however rows are cut, padded, batched
    compile: bool = False  # torch.compile; needs a compiler, and a minute at the start
    gradient_checkpointing: bool = False  # recompute each block in the backward pass: less memory, more time
    pieces: Count = 1  # read each sequence in so many pieces, gradients through their states: the memory of one piece
    check_memory: bool = True  # refuse to begin where the estimate is more than what is free (train/memory_estimate.py)
    device: Device = "auto"  # "auto": cuda where there is one
    threads: Count | None = None  # of PyTorch on the CPU; None: as it is

    def __post_init__(self) -> None:
        if not self.drop_last and self.accumulation > 1:
            raise ConfigError(
                f"TrainConfig.drop_last=False with accumulation={self.accumulation}: micro-batches count alike in a "
                "step, and the last one of an epoch would have fewer rows; set train.accumulation=1 or "
                "train.drop_last=true"
            )
        wrong = {
            "precision": self.precision != "float32",
            "compile": self.compile,
            "device": self.device == "cuda",
        }
        for name, is_wrong in wrong.items():
            if self.exact and is_wrong:
                raise ConfigError(
                    f"TrainConfig.exact=True with {name}={getattr(self, name)!r}: exact mode computes in float32 on "
                    f"the CPU, and sees every operation; leave out train.{name}, or set train.exact=false"
                )
        if self.pieces > 1 and self.parallel.tensor > 1:
            raise ConfigError(
                f"TrainConfig.pieces={self.pieces} with tensor={self.parallel.tensor}: ranks that share matrices would "
                "wait for each other two or three times for each piece; use one of these"
            )

    @property
    def place(self) -> Device:
        """``device``, which in exact mode is the CPU."""
        return "cpu" if self.exact else self.device


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A whole run, as run.json holds it.

    task: what is learned, by the name of a registered task (see docs/own-code.md); None: what suits data and model
    """

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    task: str | None = None

    def __post_init__(self) -> None:
        length = self.data.default_length
        if length is None and self.train.length is not None:
            raise ConfigError(
                f"train.length={self.train.length}, but the sequences of {type(self.data).__name__} have their own "
                "length; leave it out (train.length=null)"
            )
        window = self.train.reporting.evaluate_window
        if length is None and window is not None:
            raise ConfigError(
                f"train.reporting.evaluate_window={window} is for text, not for {type(self.data).__name__}; "
                "leave it out (train.reporting.evaluate_window=null)"
            )
        if length is not None and not self.train.drop_last:
            raise ConfigError(
                f"train.drop_last=false: the batches of {type(self.data).__name__} are all full; leave it out "
                "(train.drop_last=true)"
            )
        stop_at = self.train.budget.stop_at
        if stop_at is not None and getattr(self.data, "n_validation", None) == 0:
            raise ConfigError(
                f"train.budget.stop_at={stop_at} needs a validation split, but data.n_validation is 0; set that "
                "above 0, or leave train.budget.stop_at out (null)"
            )
        if self.train.length is None and length is not None:
            object.__setattr__(self, "train", replace(self.train, length=length))
