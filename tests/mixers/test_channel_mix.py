"""RWKV-7's channel mixing: the laws, and its equation a step at a time."""

from __future__ import annotations

import laws
import pytest
import torch
from law_signals import prepared, same, through

import statewise as sw
from statewise.mixers.channel_mix import ChannelMix


@pytest.mark.parametrize(("length", "batch"), [(1, 1), (17, 3), (33, 2)])
def test_laws(length: int, batch: int) -> None:
    laws.check_mixer_laws(sw.ChannelMixConfig(expand=1.5).build(6), length=length, batch=batch)


def test_is_its_equation() -> None:
    torch.manual_seed(0)
    mixer = prepared(sw.ChannelMixConfig(expand=2.1).build(6))
    assert isinstance(mixer, ChannelMix)
    assert mixer.in_proj.weight.shape == (13, 6)
    x = torch.randn(2, 19, 6, dtype=torch.float64)
    outputs, before = [], torch.zeros(2, 6, dtype=torch.float64)
    for now in x.unbind(1):
        inner = (now + mixer.mu * (before - now)) @ mixer.in_proj.weight.T
        outputs.append(inner.clamp(min=0).square() @ mixer.out_proj.weight.T)
        before = now
    expected = torch.stack(outputs, 1)
    same(mixer(x)[0], expected, 1e-12, "from rest")
    same(through(mixer, x.split((9, 1, 9), 1), mixer.initial_state(2)), expected, 1e-12, "in pieces")
