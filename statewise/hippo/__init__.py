"""HiPPO: systems whose state is the projection of the past on a basis, and what S4 and S4D start from.

``docs/math/hippo.md`` walks through this package.
"""

from statewise.hippo.density import density as density
from statewise.hippo.diagonalize import NPLR as NPLR
from statewise.hippo.diagonalize import low_rank as low_rank
from statewise.hippo.diagonalize import nplr as nplr
from statewise.hippo.initialize import diagonal as diagonal
from statewise.hippo.initialize import dplr as dplr
from statewise.hippo.initialize import random_transition as random_transition
from statewise.hippo.measures import MEASURES as MEASURES
from statewise.hippo.measures import lmu as lmu
from statewise.hippo.measures import transition as transition
from statewise.hippo.project import HippoState as HippoState
from statewise.hippo.project import initial_state as initial_state
from statewise.hippo.project import project as project
from statewise.hippo.reconstruct import basis as basis
from statewise.hippo.reconstruct import reconstruct as reconstruct
