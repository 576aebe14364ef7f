"""What the claims on synthetic languages have in common: settings of their runs, and how these are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statewise.configuration.types import Count, Distinct, Ratio, Seed
from statewise.data.synthetic_languages import LANGUAGES, SyntheticLanguageConfig
from statewise.reproduce.settings import Settings
from statewise.training.config import BudgetConfig, OptimizerConfig, ReportingConfig, ScheduleConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class SyntheticSettings(Settings):
    """seeds:   of the parameters, the dropout and the order of the rows; all read the same rows
    batch_size: rows in a step, each read once
    stop_at, stop_after: a run ends once it named at least this fraction of its validation answers in this many looks
        running, one every ``look_every`` steps; stop_at=null: never before its last step
    n_validation, n_test: rows of these splits
    workers: processes that train side by side
    bars:    whether what the project asks of itself is in the report
    """

    seeds: Distinct[Seed] = (0, 1, 2)
    batch_size: Count = 32
    stop_at: Ratio | None = 0.999
    stop_after: Count = 2
    look_every: Count = 256
    n_validation: Count = 256
    n_test: Count = 512
    workers: Count = 2
    bars: bool = True

    def language(self, task: str, steps: int, **sizes: Any) -> SyntheticLanguageConfig:
        """One with rows for this many steps."""
        rows: dict[str, Any] = {
            "n_train": steps * self.batch_size,
            "n_validation": self.n_validation,
            "n_test": self.n_test,
        }
        language: SyntheticLanguageConfig = LANGUAGES[task](**rows, **sizes)
        return language

    def training(
        self, seed: int, steps: int, schedule: ScheduleConfig, *, may_stop: bool = True, **optimizer: Any
    ) -> TrainConfig:
        """Without weight decay; the last checkpoint is the one that is tested.

        may_stop: whether the run ends once it is as good as ``stop_at``
        """
        stop_at = self.stop_at if may_stop else None
        return TrainConfig(
            budget=BudgetConfig(steps=steps, stop_at=stop_at, stop_after=self.stop_after),
            optimizer=OptimizerConfig(betas=(0.9, 0.999), weight_decay=0.0, **optimizer),
            schedule=schedule,
            reporting=look_every(self.look_every, keep_best=False),
            batch_size=self.batch_size,
            seed=seed,
        )


def look_every(every: int, **changes: Any) -> ReportingConfig:
    """A look at the validation rows every so many steps; the last checkpoint is kept."""
    looks: dict[str, Any] = {"evaluate_every": every, "evaluate_minutes": None, "log_every": every}
    return ReportingConfig(**{**looks, "save_minutes": 2.0, "keep_last": 1, **changes})
