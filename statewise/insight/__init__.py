"""What goes on inside a model, as numbers: what selection selects, what a state keeps and for how long, which keys H3
stores, poles and responses. ``statewise.plots`` draws them.

Every function takes a mixer and what it reads; :func:`layer_input` is that of a layer of a model.

>>> import torch
>>> import statewise as sw
>>> _ = torch.manual_seed(0)
>>> model = sw.LanguageModelConfig(vocab_size=9, d_model=16, layers=(sw.Mamba2Config(d_state=4, d_head=8),)).build()
>>> mixer, x = sw.insight.layer_input(model, torch.tensor([[1, 2, 3, 4]]), 0)
>>> sw.insight.step_sizes(mixer, x).shape, sw.insight.hidden_attention(mixer, x).shape
(torch.Size([1, 4, 4]), torch.Size([1, 4, 4, 4]))
"""

from statewise.insight.duality import AttentionForm as AttentionForm
from statewise.insight.duality import attention_form as attention_form
from statewise.insight.inputs import layer_input as layer_input
from statewise.insight.inputs import layers_of as layers_of
from statewise.insight.lookup import Signals as Signals
from statewise.insight.lookup import h3_systems as h3_systems
from statewise.insight.lookup import h3_trace as h3_trace
from statewise.insight.memory import Memory as Memory
from statewise.insight.memory import Reading as Reading
from statewise.insight.memory import hippo_memory as hippo_memory
from statewise.insight.selection import Selected as Selected
from statewise.insight.selection import half_lives as half_lives
from statewise.insight.selection import hidden_attention as hidden_attention
from statewise.insight.selection import selected as selected
from statewise.insight.selection import step_sizes as step_sizes
from statewise.insight.states import states as states
from statewise.insight.systems import Poles as Poles
from statewise.insight.systems import discrete_system as discrete_system
from statewise.insight.systems import frequency_response as frequency_response
from statewise.insight.systems import impulse_response as impulse_response
from statewise.insight.systems import poles as poles
from statewise.insight.systems import systems_of as systems_of
