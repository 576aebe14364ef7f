"""Structural time series: level, trend, seasons, cycle and the rest, composed by ``+``. See ``docs/structural.md``."""

from statewise.estimation.structural.components import (
    Autoregression,
    Component,
    Cycle,
    Irregular,
    Level,
    Regression,
    Seasonal,
    Trend,
)
from statewise.estimation.structural.fit import StructuralFit, fit
from statewise.estimation.structural.model import Structural

__all__ = [
    "Autoregression",
    "Component",
    "Cycle",
    "Irregular",
    "Level",
    "Regression",
    "Seasonal",
    "Structural",
    "StructuralFit",
    "Trend",
    "fit",
]
