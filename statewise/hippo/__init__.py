"""HiPPO: systems whose state is the projection of the past on a basis, and what S4 and S4D start from.

``docs/math/hippo.md`` walks through this package.
"""

from statewise.hippo.diagonalize import NPLR, low_rank, nplr
from statewise.hippo.initialize import diagonal, dplr, random_transition
from statewise.hippo.measures import MEASURES, lmu, transition
from statewise.hippo.project import HippoState, initial_state, project
from statewise.hippo.reconstruct import basis, reconstruct

__all__ = [
    "MEASURES",
    "NPLR",
    "HippoState",
    "basis",
    "diagonal",
    "dplr",
    "initial_state",
    "lmu",
    "low_rank",
    "nplr",
    "project",
    "random_transition",
    "reconstruct",
    "transition",
]
