"""Fewer states for an S4D layer: the responses of what is stored stay within the bound, with every option."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.mixers.rate import set_rate
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4D, S4DConfig
from statewise.mixers.s4d_reduction import ReducedS4D, reduce_s4d


def layer(d_model: int = 4, seed: int = 0, **options: Any) -> S4D:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mixer = S4DConfig(**{"d_state": 16, "dt_range": (1e-2, 1e-1)} | options).build(d_model).eval()
        with torch.no_grad():  # as if it were trained: no two channels alike, no pole where it began
            for parameter in mixer.dynamics.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


def responses(mixer: S4D, omega: Tensor) -> Tensor:
    """sum_k C A^k B z^-k, (d_model, directions * heads, f), of the stored numbers, by the definition."""
    A, B = (m.to(torch.complex128) for m in mixer.dynamics.double()(mixer.rate))
    C = torch.cat(mixer.readout.double().directions(), 1).to(torch.complex128)
    z = torch.polar(torch.ones_like(omega), omega)
    values = torch.einsum("hpn,hfn->hpf", C * B.unsqueeze(1), z[:, None] / (z[:, None] - A.unsqueeze(1)))
    if not mixer.config.is_complex:
        return values
    return values + torch.einsum(
        "hpn,hfn->hpf", (C * B.unsqueeze(1)).conj(), z[:, None] / (z[:, None] - A.conj()[:, None])
    )


def check(mixer: S4D, n_states: int) -> ReducedS4D:
    omega = torch.cat([torch.zeros(1), torch.logspace(-6, 0, 3000)]).double() * torch.pi
    reduced = reduce_s4d(mixer, n_states)
    before, after = responses(mixer, omega), responses(reduced.layer, omega)
    error = torch.linalg.vector_norm(before - after, dim=1).amax(-1)
    rounding = 1e-6 * reduced.condition.clamp(min=10) * reduced.hankel[:, 0]
    assert bool((error <= reduced.bound + rounding).all()), (error, reduced.bound)
    assert reduced.layer.config == replace(mixer.config, d_state=n_states, n_systems=None, initialization="legs")
    return reduced


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "bilinear"},
        {"n_heads": 3},
        {"bidirectional": True},
        {"bidirectional": True, "n_heads": 2, "tied_dt": True},
        {"initialization": "real"},
        {"learn_B": False},
        {"learn_B": False, "B": "normal", "n_systems": 2},
        {"B": "normal", "n_systems": 1, "gated_output": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_states", [4, 8])
def test_the_response_stays_within_the_bound(options: dict[str, Any], n_states: int) -> None:
    reduced = check(layer(**options), n_states)
    assert bool((reduced.order <= n_states).all())
    assert bool((reduced.order > 0).all())
    assert bool((reduced.condition >= 1 - 1e-9).all())
    kept = torch.arange(16) < reduced.order.unsqueeze(-1)
    torch.testing.assert_close(reduced.bound, 2 * reduced.hankel.masked_fill(kept, 0).sum(-1))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "n_heads": 2}, {"method": "bilinear"}], ids=str)
def test_the_layer_computes_the_same_as_far_as_the_bound_says(options: dict[str, Any]) -> None:
    """Whole outputs: relu spreads nothing, so what differs is at most the gain times the input's energy."""
    mixer = layer(activation="relu", gated_output=False, **options)
    set_rate(mixer, 0.5)
    x = torch.randn(2, 300, 4, generator=torch.Generator().manual_seed(1))
    reduced = reduce_s4d(mixer, 12)
    assert reduced.layer.rate == 0.5
    assert not reduced.layer.training
    difference = mixer(x)[0] - reduced.layer(x)[0]
    energy = torch.linalg.vector_norm(x, dim=1).double()
    directions = 2 if options.get("bidirectional") else 1
    most = directions**0.5 * torch.linalg.vector_norm(reduced.bound * energy, dim=-1)
    spread = torch.linalg.matrix_norm(mixer.output.linear.weight, 2)
    assert bool((torch.linalg.vector_norm(difference.flatten(1), dim=-1) <= spread * most * 1.01 + 1e-3).all())
    assert mixer(x)[0].norm() > 5 * difference.norm()


def test_a_channel_that_reads_nothing_and_what_is_left_alone() -> None:
    mixer = layer()
    with torch.no_grad():
        mixer.readout.C[1] = 0
    kept = {name: p.clone() for name, p in mixer.state_dict().items()}
    drawn = torch.get_rng_state()
    reduced = reduce_s4d(mixer, 4)
    assert torch.equal(drawn, torch.get_rng_state())
    assert reduced.order[1] == 0
    assert reduced.bound[1] == 0
    assert not reduced.layer.readout.C[1].any()
    assert all(torch.equal(kept[name], p) for name, p in mixer.state_dict().items())
    assert all(p.requires_grad for p in reduced.layer.parameters())
    y, _ = reduced.layer(torch.randn(1, 20, 4))
    y.sum().backward()


def test_all_states_kept() -> None:
    reduced = check(layer(d_state=4), 4)
    assert reduced.order.tolist() == [4] * 4


@pytest.mark.parametrize("options", [{}, {"learn_B": False, "B": "normal", "bidirectional": True}], ids=str)
def test_a_layer_of_float64_is_not_rounded(options: dict[str, Any]) -> None:
    mixer = layer(d_state=4, **options).double()
    reduced = reduce_s4d(mixer, 4)
    assert {p.dtype for p in reduced.layer.state_dict().values()} == {torch.float64}
    omega = torch.linspace(0, torch.pi, 500, dtype=torch.float64)
    before, after = responses(mixer, omega).detach(), responses(reduced.layer, omega).detach()
    assert float((before - after).abs().max() / before.abs().max()) < 1e-13 * float(reduced.condition.max())


@pytest.mark.parametrize("initialization", ["legs", "real"])
def test_each_parameter_keeps_its_dtype_and_whether_it_learns(initialization: str) -> None:
    mixer = layer(initialization=initialization)
    mixer.output.bfloat16()  # as ``load(..., dtype=torch.bfloat16)`` has it: dynamics stay float32
    mixer.readout.double()
    for name, parameter in mixer.named_parameters():
        parameter.requires_grad_(not name.startswith(("dynamics.log_decay", "output")))
    reduced = reduce_s4d(mixer, 4).layer
    given = dict(mixer.named_parameters())
    for name, parameter in reduced.named_parameters():
        like = given["dynamics.log_decay" if name == "dynamics.frequency" else name]
        if name == "dynamics.frequency" and name in given:
            like = given[name]
        assert (name, parameter.dtype, parameter.requires_grad) == (name, like.dtype, like.requires_grad)


def test_refusals() -> None:
    with pytest.raises(InputError, match="needs an S4D layer, got S4"):
        reduce_s4d(S4Config(d_state=4).build(2), 2)  # type: ignore[arg-type]
    for wrong in (0, 3, 18, 4.0, True):
        with pytest.raises(InputError, match="even number from 2 to the layer's d_state=16"):
            reduce_s4d(layer(), wrong)  # type: ignore[arg-type]
