"""Hooks around the steps of Muon, which calls the step of AdamW."""

from __future__ import annotations

import torch
from torch import nn

from statewise.training import muon


def test_hooks_of_a_step_run_once() -> None:
    """Also where PyTorch has put its calls of hooks around AdamW's own step."""
    weight = nn.Parameter(torch.randn(4, 4))
    torch.optim.AdamW([weight])
    groups = [
        {"params": [weight], "momentum": 0.95, "parts": ((4,),), "weight_decay": 0.0},
        {"params": [nn.Parameter(torch.randn(4))], "momentum": None, "parts": ()},
    ]
    optimizer, heard = muon.Muon(groups, lr=0.1), list[str]()
    optimizer.register_step_pre_hook(lambda *_: heard.append("before"))
    optimizer.register_step_post_hook(lambda *_: heard.append("after"))
    before = [group["params"][0].detach().clone() for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.randn_like(group["params"][0])
    optimizer.step()
    assert heard == ["before", "after"]
    assert all(not torch.equal(a, group["params"][0]) for a, group in zip(before, optimizer.param_groups))
