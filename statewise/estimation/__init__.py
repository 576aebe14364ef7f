"""Estimation: a state that is never seen, from noisy observations of it. Kalman's filter and what followed.

``docs/estimation.md`` walks through this package.
"""

from statewise.estimation.fit import Fit, fit, maximise
from statewise.estimation.gaussian import Forecast, Gaussians, GaussianState, Interval, Posterior, Smoothed, Steady
from statewise.estimation.model import LinearGaussian
from statewise.estimation.smoothing import Lagged, LagState

__all__ = [
    "Fit",
    "Forecast",
    "GaussianState",
    "Gaussians",
    "Interval",
    "LagState",
    "Lagged",
    "LinearGaussian",
    "Posterior",
    "Smoothed",
    "Steady",
    "fit",
    "maximise",
]
