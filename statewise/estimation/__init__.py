"""Estimation: a state that is never seen, from noisy observations of it. Kalman's filter and what followed.

``docs/estimation.md`` walks through this package.
"""

from statewise.estimation import structural
from statewise.estimation.consistency import acceptance, nees, nis
from statewise.estimation.fit import Fit, fit, maximise
from statewise.estimation.gaussian import Forecast, Gaussians, GaussianState, Interval, Posterior, Smoothed, Steady
from statewise.estimation.model import LinearGaussian
from statewise.estimation.nonlinear import NonlinearGaussian
from statewise.estimation.smoothing import Lagged, LagState
from statewise.estimation.transforms import Cubature, Extended, IteratedExtended, Unscented, angles

__all__ = [
    "Cubature",
    "Extended",
    "Fit",
    "Forecast",
    "GaussianState",
    "Gaussians",
    "Interval",
    "IteratedExtended",
    "LagState",
    "Lagged",
    "LinearGaussian",
    "NonlinearGaussian",
    "Posterior",
    "Smoothed",
    "Steady",
    "Unscented",
    "acceptance",
    "angles",
    "fit",
    "maximise",
    "nees",
    "nis",
    "structural",
]
