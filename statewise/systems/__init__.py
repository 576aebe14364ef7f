"""Linear time-invariant systems in continuous and in discrete time, and the rules that lead from one to the other.

``docs/math/discretisation.md`` walks through this package.
"""

from statewise.systems.continuous import ContinuousSystem, discretize, mass_spring_damper
from statewise.systems.discrete import DiscreteSystem
from statewise.systems.rules import METHODS, discretize_dense, discretize_diagonal

__all__ = [
    "METHODS",
    "ContinuousSystem",
    "DiscreteSystem",
    "discretize",
    "discretize_dense",
    "discretize_diagonal",
    "mass_spring_damper",
]
