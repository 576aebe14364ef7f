"""A trained S4D layer with fewer states, by balanced truncation of each channel, and how wrong it can be."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.mixers.s4d import S4D
from statewise.systems import DiscreteSystem, balanced_truncation, hankel_singular_values
from statewise.systems.gramians import significant


class ReducedS4D(NamedTuple):
    """What :func:`reduce_s4d` returns; all numbers in float64, on the CPU.

    layer:      the smaller layer
    hankel:     (d_model, d_state): the Hankel singular values of the given layer's systems, descending
    order:      (d_model,), int64: how many of them each channel keeps
    bound:      (d_model,): twice the sum of those it does not keep. At no frequency is the channel's response off by
                more, as the root of the sum of squares over heads and directions
    condition:  (d_model,): the condition of the eigenvectors that make the reduced system diagonal. Its stored numbers
                are rounded, and the error of that is up to ``condition`` times as large as the rounding
    """

    layer: S4D
    hankel: Tensor
    order: Tensor
    bound: Tensor
    condition: Tensor


def reduce_s4d(mixer: S4D, n_states: int) -> ReducedS4D:
    """An S4D layer with ``n_states`` states a channel that computes nearly the same as ``mixer``.

    Each channel's discrete system, of d_state real states with one input and an output for each head and direction,
    is truncated in balanced coordinates and made diagonal again. A pair of conjugate poles uses one of the
    n_states / 2 stored numbers, and so does a real pole. So a channel with real poles keeps fewer states than
    ``n_states``: ``order`` says how many. D, dt and the output half are copied. Each parameter has the device, dtype
    and ``requires_grad`` of the given layer's. For a whole model see :func:`statewise.reduce_model`.

    The config of the layer has ``d_state=n_states``, systems of its own for each channel (``n_systems=None``), and
    complex poles: ``initialization="real"`` becomes "legs", which matters only if you draw its parameters again.

    Shapes:  n_states: even, from 2 to d_state   ->   :class:`ReducedS4D`
    Cost:    d_model times O(d_state^3), in float64, one channel after the other.
    Errors:  InputError for anything but an S4D, and for an ``n_states`` out of place.
    Source:  :func:`statewise.systems.balanced_truncation`.

    >>> import statewise as sw
    >>> layer = sw.S4DConfig(d_state=32).build(d_model=4)
    >>> reduced = reduce_s4d(layer, 8)
    >>> reduced.layer.config.d_state, reduced.bound.shape
    (8, torch.Size([4]))
    """
    if not isinstance(mixer, S4D):
        raise InputError(f"reduce_s4d needs an S4D layer, got {type(mixer).__name__}")
    d_state = mixer.config.d_state
    if not is_even(n_states) or not 2 <= n_states <= d_state:
        raise InputError(f"n_states must be an even number from 2 to the layer's d_state={d_state}, got {n_states!r}")
    with torch.inference_mode(False), torch.no_grad():
        dt = mixer.dynamics.dt(mixer.rate or 1.0).double().cpu()
        channels = [_channel(*system, n_states) for system in zip(*_real_systems(mixer))]
        poles, gains = (torch.stack([z[i] for z, _ in channels]) for i in (0, 1))
        if mixer.config.method == "zoh":
            A = _decaying(poles.log(), dt)
            input_gain = (poles - 1) / A
        else:
            A = _decaying(2 * (poles - 1) / (poles + 1), dt)
            input_gain = dt.unsqueeze(-1) * (poles + 1) / 2
        layer = _built(mixer, n_states, A, gains / input_gain.unsqueeze(-2))
    hankel, bound, condition = (torch.stack([z[i] for z, _ in channels]) for i in (2, 3, 4))
    return ReducedS4D(layer, hankel, torch.tensor([order for _, order in channels]), bound, condition)


def is_even(n: object) -> TypeGuard[int]:
    return isinstance(n, int) and not isinstance(n, bool) and not n % 2


def _decaying(A_dt: Tensor, dt: Tensor) -> Tensor:
    """A (d_model, n) of what it is times dt. A pole so slow that rounding took its decay keeps the least there is."""
    return torch.complex(A_dt.real.clamp_max(-torch.finfo(torch.float64).eps), A_dt.imag) / dt.unsqueeze(-1)


def _real_systems(mixer: S4D) -> tuple[Tensor, Tensor, Tensor]:
    """A (d_model, n, n), B (d_model, n), C (d_model, p, n) of the channels, real, discrete, float64, on the CPU."""
    A, B = copy.deepcopy(mixer.dynamics).double()(mixer.rate)
    C = torch.cat(copy.deepcopy(mixer.readout).double().directions(), 1)
    A, B, C = A.cpu(), B.cpu(), C.cpu()
    if not A.is_complex():
        return A.diag_embed(), B, C
    real, imag = A.real.diag_embed(), A.imag.diag_embed()
    A = torch.cat([torch.cat([real, -imag], -1), torch.cat([imag, real], -1)], -2)
    return A, torch.cat([B.real, B.imag], -1), 2 * torch.cat([C.real, -C.imag], -1)


def _channel(A: Tensor, B: Tensor, C: Tensor, n_states: int) -> tuple[tuple[Tensor, ...], int]:
    """One channel: its poles (n_states / 2,), C B of each (p, n_states / 2), the Hankel singular values, the bound and
    the condition; and the order. What is read is 2 Re of the sum over the stored poles."""
    system, slots = DiscreteSystem(A, B, C), n_states // 2
    hankel = hankel_singular_values(system)
    poles, gains = torch.full((slots,), 0.5 + 0j, dtype=torch.complex128), C.new_zeros(C.shape[0], slots) + 0j
    for order in range(min(n_states, int(significant(hankel))), 0, -1):
        reduced, _, bound = balanced_truncation(system, order)
        assert reduced.C is not None
        found, V = torch.linalg.eig(reduced.A)
        stored = found.imag >= 0
        if int(stored.sum()) > slots:
            continue
        found = torch.where(found.abs() < 1e-30, 1e-30, found)  # a pole at 0 has no logarithm
        residues = (reduced.C + 0j) @ V * torch.linalg.solve(V, reduced.B + 0j)
        residues = torch.where(found.imag == 0, residues / 2, residues)
        n = int(stored.sum())
        poles[:n], gains[:, :n] = found[stored], residues[:, stored]
        return (poles, gains, hankel, bound, torch.linalg.cond(V)), order
    return (poles, gains, hankel, 2 * hankel.sum(), hankel.new_ones(())), 0  # C or B is zero


def _built(mixer: S4D, n_states: int, A: Tensor, C: Tensor) -> S4D:
    """The layer with these continuous poles (d_model, n), B = 1 and C (d_model, directions * heads, n)."""
    complex_start = "legs" if mixer.config.initialization == "real" else mixer.config.initialization
    config = replace(mixer.config, d_state=n_states, n_systems=None, initialization=complex_start, softmax_length=None)
    with torch.random.fork_rng(devices=[]):
        layer = config.build(mixer.d_model)
    _become_like(layer, mixer)
    layer.output.load_state_dict(mixer.output.state_dict())
    dynamics, readout = layer.dynamics, layer.readout
    dynamics.log_dt.copy_(mixer.dynamics.log_dt)
    dynamics.log_decay.copy_((-A.real).log())
    assert dynamics.frequency is not None
    dynamics.frequency.copy_(A.imag)
    if dynamics.B is not None:
        dynamics.B.copy_(torch.view_as_real(torch.ones_like(A)))
    readout.D.copy_(mixer.readout.D)
    for target, part in zip((readout.C, readout.C_backward), C.split(config.n_heads, 1)):
        assert target is not None
        target.copy_(torch.view_as_real(part.contiguous()))
    layer.rate, layer.exact = mixer.rate, mixer.exact
    return layer.train(mixer.training)


def _become_like(layer: S4D, mixer: S4D) -> None:
    """Device, dtype and requires_grad of each parameter, before it is written: none is rounded to another dtype."""
    given = dict(mixer.named_parameters()) | dict(mixer.named_buffers())
    given.setdefault("dynamics.frequency", given["dynamics.log_decay"])  # a real A has none
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        like = given[name]
        tensor.data = tensor.data.to(like.device, like.dtype)
        tensor.requires_grad_(like.requires_grad)
