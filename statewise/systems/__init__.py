"""Linear time-invariant systems in continuous and in discrete time, the rules that lead from one to the other, and what
their states do: which are reached and shown, and which can be left out.

``docs/math/discretisation.md`` walks through the rules, ``docs/math/reduction.md`` through the states.
"""

from statewise.systems.canonical import companion_form as companion_form
from statewise.systems.canonical import modal_form as modal_form
from statewise.systems.canonical import normal_plus_low_rank as normal_plus_low_rank
from statewise.systems.continuous import ContinuousSystem as ContinuousSystem
from statewise.systems.continuous import discretize as discretize
from statewise.systems.continuous import mass_spring_damper as mass_spring_damper
from statewise.systems.discrete import DiscreteSystem as DiscreteSystem
from statewise.systems.exchange import from_control as from_control
from statewise.systems.exchange import from_scipy as from_scipy
from statewise.systems.exchange import to_control as to_control
from statewise.systems.exchange import to_scipy as to_scipy
from statewise.systems.gramians import balanced_truncation as balanced_truncation
from statewise.systems.gramians import controllability_gramian as controllability_gramian
from statewise.systems.gramians import hankel_singular_values as hankel_singular_values
from statewise.systems.gramians import observability_gramian as observability_gramian
from statewise.systems.minimal import minimal_realization as minimal_realization
from statewise.systems.reachability import controllability_matrix as controllability_matrix
from statewise.systems.reachability import controllability_rank as controllability_rank
from statewise.systems.reachability import observability_matrix as observability_matrix
from statewise.systems.reachability import observability_rank as observability_rank
from statewise.systems.rules import METHODS as METHODS
from statewise.systems.rules import discretize_dense as discretize_dense
from statewise.systems.rules import discretize_diagonal as discretize_diagonal
from statewise.systems.time_varying import TimeVaryingSystem as TimeVaryingSystem
