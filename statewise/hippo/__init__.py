"""HiPPO: systems whose state is the projection of the past on a basis, and what S4 and S4D start from.

``docs/math/hippo.md`` walks through this package.
"""

from statewise.hippo.diagonalize import NPLR, low_rank, nplr
from statewise.hippo.initialize import diagonal, dplr, random_transition
from statewise.hippo.measures import MEASURES, lmu, transition

__all__ = [
    "MEASURES",
    "NPLR",
    "diagonal",
    "dplr",
    "lmu",
    "low_rank",
    "nplr",
    "random_transition",
    "transition",
]
