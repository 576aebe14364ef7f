"""H3: the layer written once more as a loop over time, the laws at every head width, vmap, and its cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from law_signals import prepared, tracked, warm_state
from laws import check_mixer_laws
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.errors import InputError
from statewise.mixers.h3 import H3, H3Config, H3State
from statewise.operators.base import Operator
from statewise.operators.causal_convolution import CausalConvolution, ConvolutionState
from statewise.operators.diagonal import DiagonalLTI, DiagonalState
from statewise.systems import discretize_diagonal

WIDTHS = (1, 2, 4, 8)


def recurrence(mixer: H3, x: Tensor, state: H3State | None = None) -> tuple[Tensor, H3State]:
    """The layer from its parameters alone, one step, one head and one entry of K V^T after the other."""
    c, p = mixer.config, dict(mixer.named_parameters())
    d, width, heads = mixer.d_model, c.d_head, mixer.d_model // c.d_head
    n, taps = c.d_state // 2, c.d_state if c.d_shift is None else c.d_shift
    W, b = p["in_proj.weight"], p.get("in_proj.bias", torch.zeros(3 * d, dtype=x.dtype))
    WO, bO = p["out_proj.weight"], p.get("out_proj.bias", torch.zeros(d, dtype=x.dtype))
    A, dt = (
        -p["dynamics.diagonal.log_decay"].exp() + 1j * p["dynamics.diagonal.frequency"],
        p["dynamics.diagonal.log_dt"].exp(),
    )
    B, C = (p[name][..., 0] + 1j * p[name][..., 1] for name in ("dynamics.diagonal.B", "readout.C"))
    if c.method == "bilinear":
        A_bar, B_bar = (
            (1 + dt[:, None] * A / 2) / (1 - dt[:, None] * A / 2),
            dt[:, None] * B / (1 - dt[:, None] * A / 2),
        )
    else:
        A_bar, B_bar = torch.exp(dt[:, None] * A), (torch.exp(dt[:, None] * A) - 1) / A * B
    outputs, registers, systems = [], [], []
    for row in range(x.shape[0]):
        # The register holds the last keys, newest first; the shift SSM's own state is B times what entered it.
        register = torch.zeros(taps, d, dtype=x.dtype)
        h = [[[torch.zeros(n, dtype=A.dtype) for _ in range(width)] for _ in range(width)] for _ in range(heads)]
        if state is not None:
            register = torch.cat([state.shift.inputs[row].flip(0), torch.zeros(1, d, dtype=x.dtype)])
            given = torch.view_as_complex(state.ssm.h[row].contiguous()).reshape(heads, width, width, n)
            h = [[[given[k, i, j] for j in range(width)] for i in range(width)] for k in range(heads)]
        ys = []
        for t in range(x.shape[1]):
            q, k, v = (W @ x[row, t] + b).split(d)
            register = torch.cat([k[None], register[:-1]])
            # x_t = A x_{t-1} + B k_t, y_t = C x_t + D k_t: place m of the state holds sum_{s <= m} B[m - s] k_{t-s}
            key = p["readout.shift_D"] * k
            for m in range(taps):
                for s in range(m + 1):
                    key = key + p["readout.shift_C"][:, m] * p["dynamics.shift_B"][:, m - s] * register[s]
            o = []
            for head in range(heads):
                first = head * width
                for j in range(width):
                    total = torch.zeros((), dtype=x.dtype)
                    for i in range(width):
                        pair = key[first + i] * v[first + j]
                        h[head][i][j] = A_bar[head] * h[head][i][j] + B_bar[head] * pair
                        seen = 2 * (C[head] * h[head][i][j]).sum().real + p["readout.D"][head] * pair
                        total = total + q[first + i] * seen
                    o.append(total)
            ys.append(WO @ torch.stack(o) + bO)
        outputs.append(torch.stack(ys))
        registers.append(register[: taps - 1].flip(0))
        last = torch.view_as_real(torch.stack([torch.stack([torch.stack(r) for r in head]) for head in h]))
        systems.append(last.flatten(0, 2).unflatten(0, (heads,)) if width == 1 else last)
    return torch.stack(outputs), H3State(ConvolutionState(torch.stack(registers)), DiagonalState(torch.stack(systems)))


def draw(**options: object) -> H3:
    """A mixer of eight features in float64 whose every parameter matters."""
    torch.manual_seed(0)
    return prepared(H3Config(**{"d_state": 4, **options}).build(8))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("from_rest", [True, False])
@pytest.mark.parametrize(("batch", "length"), [(1, 19), (3, 7)])
@pytest.mark.parametrize("d_head", WIDTHS)
def test_equal_to_the_recurrence(d_head: int, batch: int, length: int, from_rest: bool) -> None:
    """Outputs, final state, and the gradients of everything: 19 steps are convolved, 7 scanned."""
    method, d_shift = ("bilinear", None) if batch == 1 else ("zoh", 5)
    mixer = draw(d_head=d_head, method=method, d_shift=d_shift)
    x = torch.randn(batch, length, 8, dtype=torch.float64, requires_grad=True)
    state = tracked(mixer.initial_state(batch)) if from_rest else warm_state(mixer, batch)
    leaves = [x, *pytree.tree_leaves(state), *mixer.parameters()]
    found = []
    for y, after in (mixer(x, state), recurrence(mixer, x, state)):
        assert after is not None
        parts = [y, *pytree.tree_leaves(after)]
        g = torch.Generator().manual_seed(1)
        total = sum((part * torch.randn(part.shape, generator=g, dtype=torch.float64)).sum() for part in parts)
        found.append((parts, torch.autograd.grad(total, leaves)))  # type: ignore[arg-type]
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-11, rtol=0)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-11, rtol=0)
    torch.testing.assert_close(mixer(x)[0], recurrence(mixer, x)[0], atol=1e-11, rtol=0)


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"d_head": 1, "d_shift": 3}, 17),
        ({"d_head": 2, "method": "zoh"}, 5),
        ({"d_head": 4, "d_shift": 1, "bias": False}, 5),
        ({"d_head": 8, "d_shift": 20}, 5),
    ],
    ids=str,
)
def test_laws(options: dict, length: int) -> None:
    torch.manual_seed(0)
    check_mixer_laws(H3Config(**{"d_state": 4, **options}).build(max(4, options["d_head"])), length=length)


@pytest.mark.parametrize("shift", CausalConvolution.forms)
@pytest.mark.parametrize("d_head", [1, 4])
def test_every_form_of_its_operators(d_head: int, shift: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, x = draw(d_head=d_head), torch.randn(2, 21, 8, dtype=torch.float64)
    state = warm_state(mixer, 2)
    want = recurrence(mixer, x, state)
    call, forms = Operator.__call__, {CausalConvolution: shift}

    def forced(op: Operator, *args: Any, **options: Any) -> Any:
        return call(op, *args, **options, form=forms[type(op)])

    monkeypatch.setattr(Operator, "__call__", forced)
    for form in DiagonalLTI.forms:
        forms[DiagonalLTI] = form
        torch.testing.assert_close(mixer(x, state), want, atol=1e-11, rtol=0)


def test_one_wide_heads_are_two_systems_and_two_products() -> None:
    """Q * SSM_diag(SSM_shift(K) * V), with the operators."""
    mixer, x = draw(d_head=1), torch.randn(2, 33, 8, dtype=torch.float64)
    shift, diagonal = mixer.build_operators()
    W, b = mixer.in_proj.weight, mixer.in_proj.bias
    Q, K, V = (x @ W[i : i + 8].T + b[i : i + 8] for i in (0, 8, 16))
    y = Q * diagonal(shift(K)[0] * V)[0]
    torch.testing.assert_close(mixer(x)[0], y @ mixer.out_proj.weight.T + mixer.out_proj.bias, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("method", ["bilinear", "zoh"])
def test_the_discrete_system_is_that_of_its_rule(method: str) -> None:
    dynamics = H3Config(method=method).build(16).double().dynamics
    own = dynamics.diagonal
    A = torch.complex(-own.log_decay.exp(), own.frequency)
    want = discretize_diagonal(A, torch.view_as_complex(own.B), own.log_dt.exp(), method)
    torch.testing.assert_close(dynamics(), want, atol=1e-15, rtol=1e-14)
    assert (dynamics()[0].abs() < 1).all()
    single = tuple(m.detach().to(torch.complex64) for m in want)
    torch.testing.assert_close(dynamics.float()(), single, atol=3e-7, rtol=1e-5)


def test_taps_of_the_shift_system() -> None:
    """taps_i = sum_n C[n + i] B[n] + D [i = 0], by its definition, with gradients; C itself at initialisation."""
    B, C, D = (torch.randn(3, *n, dtype=torch.float64, requires_grad=True) for n in ((7,), (7,), ()))
    by_hand = torch.stack([(C[:, i:] * B[:, : 7 - i]).sum(1) + (D if i == 0 else 0) for i in range(7)], 1)
    taps = CausalConvolution.from_shift(B, C, D).taps
    torch.testing.assert_close(taps, by_hand, atol=1e-13, rtol=1e-13)
    weights = torch.randn(3, 7, dtype=torch.float64)
    found, wanted = (torch.autograd.grad((t * weights).sum(), (B, C, D)) for t in (taps, by_hand))
    torch.testing.assert_close(found, wanted, atol=1e-13, rtol=1e-13)
    with pytest.raises(InputError, match=r"skip D \(3,\)"):
        CausalConvolution.from_shift(B, C, D[:2])
    mixer = H3Config().build(16)
    shift = CausalConvolution.from_shift(mixer.dynamics.shift_B, mixer.readout.shift_C)
    torch.testing.assert_close(shift.taps, mixer.readout.shift_C, atol=1e-7, rtol=0)


@pytest.mark.parametrize("d_head", [1, 2])
def test_a_thousand_steps_frozen_are_one_call(d_head: int) -> None:
    mixer = draw(d_head=d_head, d_shift=6)
    frozen, x = mixer.freeze(), torch.randn(2, 1000, 8, dtype=torch.float64)
    state: H3State | None = frozen.initial_state(2)
    steps = []
    with torch.no_grad():
        want, end = mixer(x, mixer.initial_state(2))
        for x_t in x.split(1, 1):
            y, state = frozen(x_t, state)
            steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), want, atol=1e-11, rtol=0)
    torch.testing.assert_close(state, end, atol=1e-11, rtol=0)
    assert set(map(type, frozen.operators)) == {CausalConvolution, DiagonalLTI}
    assert not y.requires_grad


@pytest.mark.parametrize("d_head", [1, 2])
def test_vmap_over_models(d_head: int) -> None:
    """Three drawings of the parameters: outputs, and the gradients of each."""
    torch.manual_seed(0)
    mixers = [H3Config(d_state=4, d_head=d_head).build(8).double() for _ in range(3)]
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in mixers]).requires_grad_()
        for name, _ in mixers[0].named_parameters()
    }
    x = torch.randn(3, 2, 20, 8, dtype=torch.float64)
    ys = vmap(lambda values, u: functional_call(mixers[0], values, (u,))[0])(stacked, x)
    grads = dict(zip(stacked, torch.autograd.grad(ys.square().sum(), list(stacked.values()))))
    for i, mixer in enumerate(mixers):
        y = mixer(x[i])[0]
        torch.testing.assert_close(ys[i], y, atol=1e-12, rtol=1e-12)
        own = torch.autograd.grad(y.square().sum(), list(mixer.parameters()))
        for (name, _), grad in zip(mixer.named_parameters(), own):
            torch.testing.assert_close(grads[name][i], grad, atol=1e-12, rtol=1e-10)


class Calls(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))


def test_a_training_step_is_few_operations() -> None:
    """Small models train as fast as operations are called; one-wide heads have no axes of their own to pay for."""
    counts = []
    for d_head in (1, 2):
        mixer, x = H3Config(d_head=d_head).build(32), torch.randn(2, 32, 32)
        with Calls() as calls:
            mixer(x)[0].sum().backward()
        counts.append(calls.n)
    assert counts[0] < 200
    assert counts[0] < counts[1]
