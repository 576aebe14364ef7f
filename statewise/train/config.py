"""What a training run is: the model, the data, and how the one is fitted to the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from statewise.configuration import Config
from statewise.configuration.types import (
    AtLeastTwo,
    Count,
    Finite,
    Fraction,
    Limit,
    NonNegative,
    OneOf,
    Positive,
    Ratio,
    Seed,
)
from statewise.data.base import DataConfig
from statewise.errors import ConfigError
from statewise.models.base import ModelConfig

DEVICES = ("auto", "cpu", "cuda")
Device = Annotated[str, OneOf(DEVICES)]

# What a resumed run may set anew: how long it goes on, what it leaves on the way, and the machine it runs on
# with the place of the data there.
# Everything else decides the loss curve, and has to be what the run began with.
CHANGEABLE_ON_RESUME = frozenset(
    {
        "data.source",  # where the data lie; that they are the same is checked by their content
        "data.folder",
        "train.steps",
        "train.epochs",
        "train.minutes",
        "train.evaluate_every",
        "train.evaluate_minutes",
        "train.save_every",
        "train.save_minutes",
        "train.keep_last",
        "train.keep_best",
        "train.log_every",
        "train.device",
        "train.threads",
        "train.compile",
        "train.gradient_checkpointing",
        "train.check_memory",
        "train.parallel.data",
        "train.parallel.tensor",
        "train.parallel.sequence",
    }
)


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(Config):
    """How the processes of one run share the work; see docs/distributed.md. What is left over shares the rows of each
    batch: with torchrun's 8 processes, tensor=2 and sequence=2, two ranks have half of the rows each.

    data:     "ddp": each rank has the whole model; "fsdp": each holds a part of every layer (FSDP2)
    tensor:   so many ranks share the matrices of each layer's projections
    sequence: so many ranks share each sequence, one contiguous piece each
    """

    data: Literal["ddp", "fsdp"] = "ddp"
    tensor: Count = 1
    sequence: Count = 1


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """How a model is trained. A step reads ``accumulation * batch_size`` sequences; with ``drop_last=False`` the last
    one of an epoch reads what remains.

    A run ends after ``steps``, after ``epochs`` (passes over the training data, rounded up to whole steps), or after
    ``minutes`` of training (evaluations and saves on the way count, the last ones do not; a resumed run goes on
    counting), whichever comes first; at least one has to be given. With ``steps`` or ``epochs`` the learning rate
    follows the step number, so that the run can be repeated and resumed bit for bit. With ``minutes`` alone it follows
    the clock, and so does everything after it.

    ``matmul="fast"`` lets the projections, the head and its loss round the factors of their products to TF32 on CUDA;
    the systems, the decays and attention stay in float32. On a CPU it changes nothing: the fastest library is taken
    in any case, in full float32.
    """

    # The budget, and what a step reads
    steps: Count | None = None
    epochs: Positive | None = None
    minutes: Limit | None = None
    batch_size: Count = 8  # sequences in a micro-batch
    length: Count | None = None  # tokens in a sequence of text, by default 512; other sequences have their own: None
    accumulation: Count = 1  # micro-batches whose gradients are averaged before each step
    drop_last: bool = True  # leave out the rows of an epoch that fill no batch; false: they are its last batch
    carry_state: bool = False  # read contiguous streams, the state passed on (detached) from batch to batch
    stop_at: Finite | None = (
        None  # end early, once the validation metric has been this good in stop_after looks running
    )
    stop_after: Count = 1
    seed: Seed = 0  # of the parameters, the dropout and the order of the data

    # AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) and its schedule
    lr: Positive = 1e-3  # the highest rate, reached at the end of the warm-up
    lr_min_ratio: Ratio = 0.1  # the last rate, as a fraction of lr
    lr_start_ratio: Ratio = 0.0  # the rate that the warm-up rises from, as a fraction of lr
    dynamics_lr_ratio: Positive = 1.0  # rate of the parameters in a Dynamics module, as a multiple of the others'
    dynamics_lr_max: Limit | None = None  # and at most this at its highest; S4's rule is 1e-3 with a ratio of 1
    dt_lr_ratio: Positive | None = None  # the same for the step sizes dt alone; None: as the rest of the dynamics
    dt_lr_max: Limit | None = None
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.1  # per unit of learning rate
    weight_decay_of: Literal["maps", "all"] = (
        "maps"  # or "all": embeddings, norms and biases as well (see train/optimizer.py)
    )
    clip_norm: Limit | None = 1.0  # the gradient's norm over all parameters is clipped to this; None: never
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"  # or "linear"; or "wsd": warm-up, stable, decay
    warmup: Ratio = 0.02  # fraction of the run in which the rate rises
    warmup_prefix: bool = True  # the fall begins where the warm-up ends; false: where the run begins, under it
    decay: Ratio = 0.2  # fraction of the run in which the rate falls, at its end ("wsd" only)

    # How it is computed
    precision: Literal["float32", "bfloat16"] = (
        "float32"  # "bfloat16": autocast; the parameters and the moments stay in float32
    )
    matmul: Literal["default", "fast"] = (
        "default"  # float32 products of projections: as PyTorch is set, or "fast" (see above)
    )
    compile: bool = False  # torch.compile; needs a compiler, and a minute at the start
    gradient_checkpointing: bool = False  # recompute each block in the backward pass: less memory, more time
    check_memory: bool = True  # refuse to begin where the estimate is more than what is free (train/memory_estimate.py)
    device: Device = "auto"  # "auto": cuda where there is one
    threads: Count | None = None  # of PyTorch on the CPU; None: as it is
    parallel: ParallelConfig = ParallelConfig()  # over the processes that torchrun starts

    # What it leaves on the way, besides at its end; each by steps, by minutes, by both, or not at all
    evaluate_every: Count | None = None
    evaluate_minutes: Limit | None = 5.0
    evaluate_items: AtLeastTwo | None = (
        None  # of the validation split, from its beginning; None: all (text: 65,536 tokens)
    )
    evaluate_window: Count | None = None  # text: read the validation split from rest in windows of so many tokens, as
    # training does; None: with the state carried through it, where that is possible
    save_every: Count | None = None
    save_minutes: Limit | None = 10.0
    keep_last: Count = 2  # checkpoints
    keep_best: bool = True  # also keep the one that is best on the validation split, saved when it is found
    log_every: Count = 10  # steps between two lines of metrics.jsonl; a line holds the mean loss of its steps

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None and self.epochs is None:
            raise ConfigError("TrainConfig needs steps or minutes or epochs; set train.steps=1000 or train.minutes=10")
        if self.dt_lr_max is not None and self.dt_lr_ratio is None:
            raise ConfigError(
                f"TrainConfig.dt_lr_max={self.dt_lr_max} needs a rate of dt's own; set train.dt_lr_ratio=1, or leave "
                "it out"
            )
        if not self.drop_last and self.accumulation > 1:
            raise ConfigError(
                f"TrainConfig.drop_last=False with accumulation={self.accumulation}: micro-batches count alike in a "
                "step, and the last one of an epoch would have fewer rows; set train.accumulation=1 or "
                "train.drop_last=true"
            )
        if not self.warmup_prefix and self.schedule == "wsd":
            raise ConfigError(
                'TrainConfig.warmup_prefix=False is for schedules that fall from the warm-up on, "cosine" and '
                '"linear"; leave it out'
            )
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise ConfigError(
                f"TrainConfig.warmup={self.warmup} and decay={self.decay} are fractions of one run, "
                "and together may not exceed 1"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A whole run, as run.json holds it."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig

    def __post_init__(self) -> None:
        length = self.data.default_length
        if length is None and self.train.length is not None:
            raise ConfigError(
                f"train.length={self.train.length}, but the sequences of {type(self.data).__name__} have their own "
                "length; leave it out (train.length=null)"
            )
        if length is None and self.train.evaluate_window is not None:
            raise ConfigError(
                f"train.evaluate_window={self.train.evaluate_window} is for text, not for {type(self.data).__name__}; "
                "leave it out (train.evaluate_window=null)"
            )
        if length is not None and not self.train.drop_last:
            raise ConfigError(
                f"train.drop_last=false: the batches of {type(self.data).__name__} are all full; leave it out "
                "(train.drop_last=true)"
            )
        if self.train.stop_at is not None and getattr(self.data, "n_validation", None) == 0:
            raise ConfigError(
                f"train.stop_at={self.train.stop_at} is of the validation split, and data.n_validation is 0; set that "
                "above 0, or leave train.stop_at out (null)"
            )
        if self.train.length is None and length is not None:
            object.__setattr__(self, "train", replace(self.train, length=length))
