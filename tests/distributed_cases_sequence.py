"""Operators and mixers of which every rank reads a piece of each sequence, beside the whole on one process."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_harness import Place, case
from families import FAMILIES, MIXERS
from law_signals import prepared
from torch import Tensor

import statewise as sw
from statewise.errors import InputError
from statewise.mixers.attention import Attention
from statewise.operators.base import Operator
from statewise.training.distributed.sequence import sequence_parallel

CUTS = {2: [0, 9, 23], 4: [0, 5, 6, 15, 23]}  # pieces of different lengths
# A table of positions with as many as there are steps
EXACT = {"attention, learned positions": sw.AttentionConfig(n_heads=2, positions="learned", max_positions=23)}


def own(length: int = 23) -> slice:
    """The steps of this rank's piece."""
    cuts, rank = CUTS[dist.get_world_size()], dist.get_rank()
    assert cuts[-1] == length
    return slice(cuts[rank], cuts[rank + 1])


def summed(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)  # the ranks' layouts may differ
    dist.all_reduce(tensor)
    return tensor


def close(actual: Tensor, expected: Tensor, what: str, atol: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=atol, atol=atol, msg=lambda text: f"{what}: {text}")


def operator_case(name: str) -> None:
    """Outputs and gradients of this piece are those of the whole; those of the coefficients sum to the whole's."""
    op, u = FAMILIES[name](2, 23, torch.float64, 0)
    weight = torch.randn(op(u)[0].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    starts = torch.zeros(2, 23, dtype=torch.bool)
    starts[0, 7] = starts[1, 0] = starts[1, 15] = True
    for masks in ({}, {"starts": starts, "lengths": torch.tensor([23, 17])}):
        check_operator(op, u, weight, masks)


def check_operator(op: Operator, u: Tensor, weight: Tensor, masks: dict[str, Tensor]) -> None:
    op, u = tracked(op), u.detach().clone().requires_grad_()
    y, _ = op(u, **masks)
    names = [f.name for f in fields(op) if isinstance(getattr(op, f.name), Tensor)]  # type: ignore[arg-type]
    want = torch.autograd.grad((y * weight).sum(), [u, *(getattr(op, n) for n in names)], materialize_grads=True)
    here = own()
    part, piece = tracked(op[here]), u.detach()[:, here].requires_grad_()
    got = sequence_parallel(part, piece, **cut(masks, here))
    close(got, y[:, here], "outputs")
    inputs = [piece, *(getattr(part, n) for n in names)]
    gradients = torch.autograd.grad((got * weight[:, here]).sum(), inputs, materialize_grads=True)
    close(gradients[0], want[0][:, here], "gradient of the input")
    for n, gradient, expected in zip(names, gradients[1:], want[1:]):
        if n in op.time_varying:
            close(gradient, expected[:, here], f"gradient of {n}")
        else:
            close(summed(gradient), expected, f"gradient of {n}")


def tracked(op: Any) -> Any:
    tensors = {f.name: getattr(op, f.name) for f in fields(op)}
    return replace(op, **{n: t.detach().clone().requires_grad_() for n, t in tensors.items() if isinstance(t, Tensor)})


def cut(masks: dict[str, Tensor], here: slice) -> dict[str, Tensor]:
    """The masks of whole rows for one piece of them."""
    masks = dict(masks)
    if "starts" in masks:
        masks["starts"] = masks["starts"][:, here]
    if "lengths" in masks:
        masks["lengths"] = (masks["lengths"] - here.start).clamp(0, here.stop - here.start)
    return masks


def mixer_case(name: str) -> None:
    """As for operators, with documents that begin and rows that end within pieces; padding gives no outputs."""
    torch.manual_seed(0)
    mixer = prepared({**MIXERS, **EXACT}[name].build(8))
    x, weight = torch.randn(3, 23, 8, dtype=torch.float64), torch.randn(3, 23, 8, dtype=torch.float64)
    starts = torch.zeros(3, 23, dtype=torch.bool)
    starts[0, 3] = starts[0, 11] = starts[1, 0] = starts[2, 5] = starts[2, 6] = True
    lengths = torch.tensor([23, 4, 12])
    if mixer.reads_memory:
        with pytest.raises(InputError, match="reads a memory, which is not divided over ranks"):
            sequence_parallel(mixer, x)
        return
    if not mixer.bounded_state and not isinstance(mixer, Attention):
        with pytest.raises(InputError, match="keeps a history, which is not divided over ranks"):
            sequence_parallel(mixer, x)
        return
    for masks in ({}, {"starts": starts, "lengths": lengths}):
        valid = torch.arange(23) < masks.get("lengths", torch.full((3,), 23))[:, None]
        check_mixer(mixer, x, weight * valid[..., None], masks, valid)


def check_mixer(mixer: Any, x: Tensor, weight: Tensor, masks: dict[str, Tensor], valid: Tensor) -> None:
    parameters = dict(mixer.named_parameters())
    x = x.clone().requires_grad_()
    y, _ = mixer(x, **masks)
    want = torch.autograd.grad((y * weight).sum(), [x, *parameters.values()], materialize_grads=True)
    here = own()
    piece = x.detach()[:, here].requires_grad_()
    got = sequence_parallel(mixer, piece, **cut(masks, here))
    close(got[valid[:, here]], y[:, here][valid[:, here]], f"outputs with {list(masks)}")
    with torch.no_grad():
        close(sequence_parallel(mixer, piece, **cut(masks, here)), got, "outputs without gradients", 1e-12)
    inputs = [piece, *parameters.values()]
    gradients = torch.autograd.grad((got * weight[:, here]).sum(), inputs, materialize_grads=True)
    close(gradients[0], want[0][:, here], "gradient of the input")
    for name, gradient, expected in zip(parameters, gradients[1:], want[1:]):
        close(summed(gradient), expected, f"gradient of {name} with {list(masks)}", 1e-9)


FIRST = (next(iter(FAMILIES)), next(iter(MIXERS)))


def _register(kind: str, name: str) -> None:
    def equals_the_whole(place: Place) -> None:
        (operator_case if kind == "operator" else mixer_case)(name)

    equals_the_whole.__name__ = f"sequence_{kind}_{re.sub('[^a-z0-9]+', '_', name.lower())}"
    # of four ranks two are in the middle of a row; two ranks do nothing else with it
    case(*((2, 4) if name in FIRST else (4,)))(equals_the_whole)


for _name in FAMILIES:
    _register("operator", _name)
for _name in MIXERS:
    _register("mixer", _name)
