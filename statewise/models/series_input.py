"""What a forecaster needs to take a table as it was stored: part of its config, and so of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from statewise.configuration import Config
from statewise.configuration.types import (
    EACH_ONCE,
    NOT_EMPTY,
    AtLeastTwo,
    Condition,
    Count,
    Finite,
    Name,
    OneOf,
    Positive,
    Words,
)
from statewise.errors import ConfigError

CYCLES = {"day": 86400.0, "week": 7 * 86400.0, "year": 365.2425 * 86400.0}  # in seconds
UNITS = ("months", "seconds", "number")

Calendar = Annotated[tuple[Annotated[str, OneOf(("season", *CYCLES))], ...], EACH_ONCE]
Columns = Annotated[tuple[str, ...], EACH_ONCE]
Delimiter = Annotated[str, Condition(lambda mark: len(mark) == 1 and mark not in '\r\n"'), Words("one character")]
Decimal = Annotated[str, OneOf((".", ","))]


@dataclass(frozen=True, kw_only=True)
class SeriesInputConfig(Config):
    """The columns of a table of series, its grid of times, and what is made of both before a model reads them.

    time, series, targets, covariates, past_covariates: names of columns, as in a SeriesDataConfig; ``series`` is None
                    where the table holds one series
    mean, deviation: of the covariates and then the past covariates in training; a column less its mean is divided by
                    its deviation
    unit, step:     how far apart two steps are: so many calendar months, seconds, or plain numbers
    origin:         the time of step 0 of the training data, from which "season" is counted: seconds since 1970, or a
                    number
    every:          how many steps lie between two known rows of the training data at least: 1, unless they are sparse
    zone:           of the times, where they have one that is known: "Europe/Berlin", or "+01:00"
    calendar, harmonics, season: as in a SeriesDataConfig, the season in steps
    history:        steps that are read before a forecast; min_history: the fewest in training
    delimiter, date_format: of text, as in a SeriesDataConfig
    decimal, day_first: how the training data were written: where another table leaves it open, it is meant so
    """

    time: Name
    series: str | None = None
    targets: Annotated[tuple[str, ...], NOT_EMPTY, EACH_ONCE]
    covariates: Columns = ()
    past_covariates: Columns = ()
    mean: tuple[Finite, ...] = ()
    deviation: tuple[Positive, ...] = ()
    unit: Annotated[str, OneOf(UNITS)]
    step: Positive
    origin: Finite
    every: Count = 1
    zone: str | None = None
    calendar: Calendar = ()
    harmonics: Count = 1
    season: Count = 1
    history: AtLeastTwo
    min_history: AtLeastTwo
    delimiter: Delimiter | None = None
    decimal: Decimal | None = None
    date_format: str | None = None
    day_first: bool | None = None

    def __post_init__(self) -> None:
        n = len(self.covariates) + len(self.past_covariates)
        if not len(self.mean) == len(self.deviation) == n:
            raise ConfigError(
                f"SeriesInputConfig has {len(self.mean)} mean and {len(self.deviation)} deviation for {n} covariates; "
                "give one of each for every covariate"
            )

    @property
    def dates(self) -> bool:
        """Whether times are dates, or plain numbers."""
        return self.unit != "number"

    @property
    def usual(self) -> tuple[str | None, bool | None]:
        return self.decimal, self.day_first

    @property
    def d_covariates(self) -> int:
        """How many numbers are known ahead for each step: the calendar's, and the covariates."""
        return 2 * self.harmonics * len(self.calendar) + len(self.covariates)


def require_fits(name: str, config: SeriesInputConfig, model: Any) -> None:
    """Errors:  ConfigError unless a model's config ``model`` can have this input."""
    for field, given in (
        ("d_target", len(config.targets)),
        ("d_covariates", config.d_covariates),
        ("d_past_covariates", len(config.past_covariates)),
    ):
        if getattr(model, field) != given:
            raise ConfigError(
                f"{name}.series has {field}={given}, but the model {field}={getattr(model, field)}; make them equal"
            )
