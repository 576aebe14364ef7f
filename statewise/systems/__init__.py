"""Linear time-invariant systems in continuous and in discrete time, and the rules that lead from one to the other.

``docs/math/discretisation.md`` walks through this package.
"""

from statewise.systems.continuous import ContinuousSystem as ContinuousSystem
from statewise.systems.continuous import discretize as discretize
from statewise.systems.continuous import mass_spring_damper as mass_spring_damper
from statewise.systems.discrete import DiscreteSystem as DiscreteSystem
from statewise.systems.rules import METHODS as METHODS
from statewise.systems.rules import discretize_dense as discretize_dense
from statewise.systems.rules import discretize_diagonal as discretize_diagonal
