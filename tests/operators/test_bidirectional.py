"""Both directions against a loop over documents, by impulses: no output is off by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from families import FAMILIES
from torch import Tensor

from statewise.errors import InputError
from statewise.operators import DiagonalLTI, Operator, SelectiveDiagonal, bidirectional

D = torch.float64
NAMES = [
    "DiagonalLTI complex",
    "DiagonalLTI real, trailing axes",
    "DiagonalLTI two outputs",
    "DiagonalPlusLowRank",
    "CausalConvolution",
    "SelectiveDiagonal",
    "SelectiveDiagonal exact hold, trailing axis",
    "SelectiveDiagonal complex",
    "SSD",
]


def brute_force(op: Operator, u: Tensor, documents: list[list[tuple[int, int]]], *, backward: bool) -> Tensor:
    """One step at a time by ``step`` alone, each document from its own end if backward."""
    y = torch.zeros(op._output_shape(u), dtype=u.dtype)
    for row, edges in enumerate(documents):
        for t0, t1 in edges:
            state = op.initial_state(1, trailing=op._trailing(u))
            for t in reversed(range(t0, t1)) if backward else range(t0, t1):
                now = op._at({name: getattr(op, name)[row : row + 1, t] for name in op.time_varying})
                y[row : row + 1, t], state = now.step(u[row : row + 1, t], state)
    return y


def member(name: str, seed: int, length: int) -> tuple[Operator, Tensor]:
    return FAMILIES[name](2, length, D, seed)


@pytest.mark.parametrize("name", NAMES)
def test_by_a_loop_of_steps(name: str) -> None:
    """Own and shared weights, sum and concatenation, whole rows, lengths, and documents with both."""
    length = 21
    (ahead, u), (behind, _) = member(name, 0, length), member(name, 1, length)
    starts = torch.zeros(2, length, dtype=torch.bool)
    starts[0, [4, 5, 17]] = True
    starts[1, 0] = True
    lengths = torch.tensor([19, 8])
    settings = [
        ({}, [[(0, length)], [(0, length)]]),
        ({"lengths": lengths}, [[(0, 19)], [(0, 8)]]),
        ({"starts": starts}, [[(0, 4), (4, 5), (5, 17), (17, length)], [(0, length)]]),
        ({"starts": starts, "lengths": lengths}, [[(0, 4), (4, 5), (5, 17), (17, 19)], [(0, 8)]]),
    ]
    for masks, documents in settings:
        first = brute_force(ahead, u, documents, backward=False)
        for own, second in ((behind, behind), (None, ahead)):
            from_the_end = brute_force(second, u, documents, backward=True)
            y, state = bidirectional(ahead, own)(u, **masks)
            assert state is None
            torch.testing.assert_close(y, first + from_the_end)
            side_by_side, _ = bidirectional(ahead, own, combine="concatenate")(u, **masks)
            torch.testing.assert_close(side_by_side, torch.cat([first, from_the_end], 2))


@pytest.mark.parametrize("at", [0, 1, 5, 8, 9])
def test_an_impulse_is_seen_from_both_sides(at: int) -> None:
    """A time-invariant response stands mirrored around the impulse, and counts twice where it stands."""
    taps = torch.tensor([1.0, 0.5, 0.25, 0.125, 0.0625], dtype=D)
    one = torch.ones(1, 1, dtype=D)
    u = torch.zeros(1, 10, 1, dtype=D)
    u[0, at] = 1
    y, _ = bidirectional(DiagonalLTI(one / 2, one, one))(u)
    for t in range(10):
        want = 2.0 if t == at else 0.5 ** abs(t - at)
        assert y[0, t, 0].item() == pytest.approx(want)
    both, _ = bidirectional(DiagonalLTI(one / 2, one, one), combine="concatenate")(u)
    torch.testing.assert_close(both[0, at : at + 5, 0], taps[: 10 - at])
    torch.testing.assert_close(both[0, : at + 1, 1].flip(0)[:5], taps[: at + 1])


def test_coefficients_belong_to_their_times_in_both_directions() -> None:
    """An impulse at s reaches t through the decays of the steps after s, as seen from s: s+1 ... t, or t ... s-1."""
    op, _ = FAMILIES["SelectiveDiagonal"](1, 9, D, 0)
    op = replace(op, D=None, gate=None)  # type: ignore[type-var]
    assert isinstance(op, SelectiveDiagonal)
    s = 4
    u = torch.zeros(1, 9, 4, dtype=D)
    u[0, s] = 1
    y, _ = bidirectional(op, combine="concatenate")(u)
    delta = torch.nn.functional.softplus(op.dt[0] + op.dt_bias)  # (length, d)
    for t in range(9):
        for channel in range(4):
            group = channel // 2
            between = delta[s + 1 : t + 1, channel] if t >= s else delta[t:s, channel]
            decay = (between.sum() * op.A[channel]).exp()
            response = (op.C[0, t, group] * decay * delta[s, channel] * op.B[0, s, group]).sum()
            ahead, behind = y[0, t, channel], y[0, t, 4 + channel]
            torch.testing.assert_close(ahead, response if t >= s else torch.zeros((), dtype=D))
            torch.testing.assert_close(behind, response if t <= s else torch.zeros((), dtype=D))


@pytest.mark.parametrize("name", ["SelectiveDiagonal", "DiagonalLTI complex"])
def test_nan_in_the_padding_goes_nowhere(name: str) -> None:
    op, u = member(name, 0, 12)
    lengths = torch.tensor([12, 5])
    want, _ = bidirectional(op)(u, lengths=lengths)
    dirty = u.clone()
    dirty[1, 5:] = torch.nan
    poisoned = {}
    for key in op.time_varying:
        poisoned[key] = getattr(op, key).clone()
        poisoned[key][1, 5:] = torch.nan
    y, _ = bidirectional(replace(op, **poisoned))(dirty, lengths=lengths)  # type: ignore[type-var]
    torch.testing.assert_close(y, want)
    assert not y[1, 5:].any()


def test_gradients_reach_both_directions() -> None:
    op, u = FAMILIES["SelectiveDiagonal"](1, 6, D, 0)

    def run(u: Tensor, dt: Tensor, B: Tensor) -> Tensor:
        return bidirectional(replace(op, dt=dt, B=B), combine="concatenate")(u)[0]  # type: ignore[type-var]

    leaves = [m.clone().requires_grad_() for m in (u, op.dt, op.B)]  # type: ignore[attr-defined]
    assert torch.autograd.gradcheck(run, leaves)


def test_no_steps_and_errors() -> None:
    op, u = member("DiagonalLTI complex", 0, 5)
    assert bidirectional(op, combine="concatenate")(u[:, :0])[0].shape == (2, 0, 6)
    with pytest.raises(InputError, match="'mean' is unknown"):
        bidirectional(op, combine="mean")
    for call in (lambda: bidirectional(op).initial_state(1), lambda: bidirectional(op)(u, op.initial_state(2))):
        with pytest.raises(InputError, match="no state"):
            call()
