"""Where the settings of a run stand that had no groups in version 0.1.

run.json files, checkpoints and ``--set`` may name them as they were: ``train.lr`` is ``train.optimizer.lr``.
"""

from __future__ import annotations


def _within(group: str, names: str) -> dict[str, str]:
    return {name: f"{group}.{name}" for name in names.split()}


FLAT_NAMES = {
    **_within("budget", "steps epochs minutes stop_at stop_after"),
    **_within("optimizer", "lr dynamics_lr_ratio dynamics_lr_max dt_lr_ratio dt_lr_max"),
    **_within("optimizer", "betas eps weight_decay weight_decay_of clip_norm"),
    "schedule": "schedule.kind",
    **_within("schedule", "warmup warmup_prefix decay"),
    "lr_start_ratio": "schedule.start_ratio",
    "lr_min_ratio": "schedule.min_ratio",
    **_within("reporting", "evaluate_every evaluate_minutes evaluate_items evaluate_window"),
    "evaluate_tokens": "reporting.evaluate_items",
    **_within("reporting", "save_every save_minutes keep_last keep_best log_every"),
}
