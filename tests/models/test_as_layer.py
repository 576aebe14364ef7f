"""as_layer: any layer in nn.Sequential, trained, copied, pickled, compiled."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from families import MIXERS
from torch import Tensor, nn

import statewise as sw
from statewise.training.optimizer import parameter_groups


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_gives_what_the_layer_gives(name: str) -> None:
    torch.manual_seed(0)
    mixer = MIXERS[name].build(8).eval()
    layer, x, lengths = sw.as_layer(mixer), torch.randn(2, 6, 8), torch.tensor([4, 6])
    assert layer.layer is mixer
    assert torch.equal(layer(x), mixer(x)[0])
    assert torch.equal(layer(x, lengths=lengths), mixer(x, lengths=lengths)[0])
    again = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    assert torch.equal(again(x), layer(x))


def a_net() -> nn.Sequential:
    torch.manual_seed(0)
    block = sw.BlockConfig(mixer=sw.S4DConfig(d_state=8), mlp=sw.MLPConfig(expand=2))
    layers = (sw.as_layer(sw.Mamba2Config(d_state=8, d_head=8).build(16)), sw.as_layer(block, 16))
    return nn.Sequential(nn.Linear(3, 16), *layers, nn.Linear(16, 2))


def sums(net: nn.Module, x: Tensor) -> Tensor:
    return (net(x)[:, -1] - x.sum(1)[:, :2]).square().mean()


def test_a_sequential_trains() -> None:
    net, x = a_net(), torch.randn(32, 8, 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    before = sums(net, x).item()
    for _ in range(30):
        optimizer.zero_grad()
        sums(net, x).backward()
        optimizer.step()
    assert sums(net, x).item() < 0.5 * before


def test_names_move_between_nets() -> None:
    net, other = a_net(), a_net()
    assert "1.layer.in_proj.weight" in net.state_dict()
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    other.load_state_dict(net.state_dict())
    x = torch.randn(2, 5, 3)
    assert torch.equal(other(x), net(x))
    groups = {group.name: group for group in parameter_groups(net, sw.OptimizerConfig())}
    assert "1.layer.dynamics.A_log" in {name for name, _ in groups["dynamics"].parameters}


def test_compiles_whole() -> None:
    net, x = a_net().eval(), torch.randn(2, 16, 3)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))


def test_a_model_gives_its_outputs() -> None:
    model = sw.SequenceClassifierConfig(n_classes=3, d_input=1, d_model=8, layers=(sw.S4DConfig(d_state=4),)).build()
    x = torch.randn(2, 9, 1)
    assert torch.equal(sw.as_layer(model)(x, lengths=torch.tensor([9, 4])), model(x, lengths=torch.tensor([9, 4]))[0])


def test_refusals() -> None:
    mixer = sw.S4DConfig(d_state=4).build(8)
    with pytest.raises(sw.InputError, match=r"takes no state; to carry a state, call \.layer"):
        sw.as_layer(mixer)(torch.randn(1, 2, 8), state=mixer.initial_state(1))
    with pytest.raises(sw.ConfigError, match="needs the width of a S4DConfig"):
        sw.as_layer(sw.S4DConfig(d_state=4))
    with pytest.raises(sw.InputError, match="has its width; leave d_model out"):
        sw.as_layer(mixer, 8)
    for wrong in (nn.Linear(3, 3), sw.S4DConfig, None):
        with pytest.raises(sw.InputError, match="as_layer takes a mixer, a block, a model"):
            sw.as_layer(wrong)  # type: ignore[arg-type]
