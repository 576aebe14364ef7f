"""Pictures of models, drawn with matplotlib (``pip install "statewise[plot]"``), without a window.

Each function takes an operator, a mixer or a model and returns a figure; ``figure.savefig("x.png")`` writes it. The
numbers come from :mod:`statewise.insight`. ``statewise plot`` draws the same of a run.

>>> import statewise as sw
>>> figure = sw.plots.poles(sw.mass_spring_damper(mass=1.0, stiffness=4.0, damping=0.5))
>>> figure.axes[0].get_title(loc="left")
'continuous time'
"""

from statewise.plots.curves import training_curves as training_curves
from statewise.plots.duality import semiseparable as semiseparable
from statewise.plots.forecasts import Forecasted as Forecasted
from statewise.plots.forecasts import forecasts as forecasts
from statewise.plots.lookup import lookup as lookup
from statewise.plots.memory import hippo_measures as hippo_measures
from statewise.plots.memory import hippo_memory as hippo_memory
from statewise.plots.selection import half_lives as half_lives
from statewise.plots.selection import hidden_attention as hidden_attention
from statewise.plots.selection import step_sizes as step_sizes
from statewise.plots.states import states as states
from statewise.plots.systems import frequency_response as frequency_response
from statewise.plots.systems import impulse_response as impulse_response
from statewise.plots.systems import poles as poles
