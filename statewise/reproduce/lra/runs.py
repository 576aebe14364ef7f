"""A setting of the Long Range Arena as a training run: the model, the data and the schedule."""

from __future__ import annotations

from typing import Any

from statewise.data.long_range import LongRangeDataConfig
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.reproduce.lra.published import S4D, SETTINGS, Setting
from statewise.train.config import RunConfig, TrainConfig

MODELS = {"s4": "S4", "s4d": "S4D-LegS", "h3": "H3", "transformer": "Transformer"}
N_CLASSES = {"listops": 10, "image": 10}  # all others have two
VOCABULARY = {"listops": 18, "text": 135, "retrieval": 98}  # all others read one number a step


def arena_task(task: str) -> str:
    """The task of the Arena that the data stand for.

    >>> arena_task("path-x-gen"), arena_task("text-folder"), arena_task("listops")
    ('path-x', 'text', 'listops')
    """
    return task.removesuffix("-gen").removesuffix("-folder")


def setting_of(model: str, task: str) -> Setting:
    """The published one; of H3 and the Transformer, of which none is known for these blocks, that of S4D."""
    return SETTINGS.get(model, S4D)[arena_task(task)]


def published_run(model: str, task: str, folder: str | None = None) -> RunConfig:
    """The published run of "s4" or "s4d", and of "h3" with the settings of S4D, on the data of ``task``."""
    setting = setting_of(model, task)
    data = LongRangeDataConfig(task=task, folder=folder)
    return RunConfig(model=model_config(model, task, setting), data=data, train=published_schedule(setting))


def published_schedule(setting: Setting) -> TrainConfig:
    """AdamW with PyTorch's betas, no clipping, and a cosine that ends at 0; one look an epoch, the best is kept."""
    return TrainConfig(
        steps=setting.steps,
        batch_size=setting.batch_size,
        lr=setting.lr,
        lr_min_ratio=0.0,
        warmup=setting.warmup / setting.steps,
        dynamics_lr_max=setting.dynamics_lr,
        dt_lr_ratio=1.0 if setting.dt_apart else None,
        betas=(0.9, 0.999),
        weight_decay=setting.weight_decay,
        clip_norm=None,
        evaluate_every=setting.looks_every,
        evaluate_minutes=None,
        log_every=100,
    )


def model_config(model: str, task: str, setting: Setting, *, n_heads: int = 4) -> SequenceModelConfig:
    """Blocks of one mixer, the mean over a row's own steps, and a linear head; for retrieval a head of pairs."""
    if model == "transformer":
        attention = AttentionConfig(n_heads=n_heads, bias=True)
        block, norm = BlockConfig(mixer=attention, mlp=MLPConfig(), norm="layer"), "layer"
    else:
        block = BlockConfig(
            mixer=mixer_config(model, setting),
            norm=setting.norm,
            placement=setting.placement,
            dropout=setting.dropout,
            tied_dropout=setting.dropout > 0,
        )
        norm = "auto" if setting.placement == "post" else setting.norm
    name = arena_task(task)
    fields: dict[str, Any] = {
        "d_model": setting.d_model,
        "layers": (block,) * setting.n_layers,
        "norm": norm,
        "n_classes": N_CLASSES.get(name, 2),
        **({"vocab_size": VOCABULARY[name]} if name in VOCABULARY else {"d_input": 1}),
    }
    return PairClassifierConfig(**fields) if name == "retrieval" else SequenceClassifierConfig(**fields)


def mixer_config(model: str, setting: Setting) -> MixerConfig:
    """S4 and S4D read in both directions; H3 is causal, as published."""
    if model == "h3":
        return H3Config(d_state=setting.d_state, dt_range=setting.dt_range)
    shared: dict[str, Any] = {
        "d_state": setting.d_state,
        "n_systems": setting.n_systems,
        "bidirectional": True,
        "dt_range": setting.dt_range,
        "dropout": setting.dropout,
        "tied_dropout": setting.dropout > 0,
    }
    return S4Config(**shared) if model == "s4" else S4DConfig(**shared)
