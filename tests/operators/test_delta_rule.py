"""The delta rule: exact numbers by hand, the cases that it has, hard cases, and wrong calls."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import statewise as sw
from statewise import kernels, native
from statewise.errors import InputError
from statewise.operators.delta_rule import DeltaRuleState

D = torch.float64
PATHS = ["torch", *(["c"] if native.available() else [])]


def exact(v: list, q: list, k: list, beta: list, a: list) -> tuple[list, list]:
    """One row and head in exact fractions, entry by entry, from the sentence "decay, look up, correct, read"."""
    n, p = len(k[0]), len(v[0])
    S = [[Fraction(0)] * n for _ in range(p)]
    outputs = []
    for v_t, q_t, k_t, beta_t, a_t in zip(v, q, k, beta, a):
        for i in range(p):
            row = [S[i][j] * a_t[j] for j in range(n)]
            held = sum(row[j] * k_t[j] for j in range(n))
            S[i] = [row[j] + beta_t * (v_t[i] - held) * k_t[j] for j in range(n)]
        outputs.append([sum(S[i][j] * q_t[j] for j in range(n)) for i in range(p)])
    return outputs, S


def numbers(values: list) -> Tensor:
    """(length, width) fractions -> (1, length, 1, width)"""
    return torch.tensor([[float(x) for x in row] for row in values], dtype=D).unsqueeze(0).unsqueeze(2)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("decay", ["none", "head", "channel"])
def test_golden_numbers_in_exact_fractions(decay: str, path: str) -> None:
    draw = random.Random(7)
    length, n, p = 40, 3, 2
    v, q = ([[Fraction(draw.randint(-6, 6), 4) for _ in range(m)] for _ in range(length)] for m in (p, n))
    k = [draw.choice([[3, 4, 0], [0, -3, 4], [4, 0, 3], [0, 0, 5]]) for _ in range(length)]
    k = [[Fraction(x, 5) for x in row] for row in k]  # of length 1
    beta = [Fraction(draw.randint(0, 8), 4) for _ in range(length)]  # 0 .. 2
    a = [[Fraction(draw.randint(1, 8), 8) for _ in range(n)] for _ in range(length)]
    if decay != "channel":
        a = [[row[0] if decay == "head" else Fraction(1)] * n for row in a]
    log_a = {"none": None, "head": numbers(a).log()[..., 0], "channel": numbers(a).log()}[decay]
    operator = sw.DeltaRule(numbers(q), numbers(k), numbers([[b] for b in beta])[..., 0], log_a, chunk_length=16)
    want, S = exact(v, q, k, beta, a)
    with kernels.use(path):
        for form in operator.forms:
            y, state = operator(numbers(v), operator.initial_state(1, trailing=(p,)), form=form)
            torch.testing.assert_close(y, numbers(want), atol=1e-13, rtol=1e-13)
            torch.testing.assert_close(state.S[0, 0], numbers(S)[0, :, 0], atol=1e-13, rtol=1e-13)


def hard(beta: float, decay: float, spread: float, length: int = 200, n: int = 24, p: int = 8) -> tuple[Tensor, ...]:
    """q, k, beta, log_a, v: keys that differ from one another by ``spread`` before they are made of length 1."""
    g = torch.Generator().manual_seed(3)
    base = torch.randn(1, 1, 2, n, generator=g, dtype=D)
    k = F.normalize(base + spread * torch.randn(1, length, 2, n, generator=g, dtype=D), dim=-1)
    q, v = (torch.randn(1, length, 2, m, generator=g, dtype=D) for m in (n, p))
    return (
        q,
        k,
        torch.full((1, length, 2), beta, dtype=D),
        -decay * torch.rand(1, length, 2, n, generator=g, dtype=D),
        v,
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("spread", [1.0, 0.1, 1e-3], ids=lambda x: f"spread {x}")
@pytest.mark.parametrize("decay", [0.0, 0.1, 5.0, 90.0, 1e5], ids=lambda x: f"decay {x}")
@pytest.mark.parametrize("beta", [0.5, 1.0, 1.99, 2.0], ids=lambda x: f"beta {x}")
def test_float32_beside_float64(beta: float, decay: float, spread: float, path: str) -> None:
    """Keys nearly parallel, beta near 2, decays from none to total. Worst where nothing decays and beta is near 2: the
    products of keys are rounded, and each step passes on all that came before it.
    """
    *given, v = hard(beta, decay, spread)
    want = sw.DeltaRule(*given)(v, form="recurrent")[0]
    single = sw.DeltaRule(*(m.float() for m in given))
    scale = want.abs().max()
    with kernels.use(path):
        error = (single(v.float(), form="chunked")[0].double() - want).abs().max() / scale
    slow = (single(v.float(), form="recurrent")[0].double() - want).abs().max() / scale
    assert error <= max(25 * float(slow), 1e-5), (float(error), float(slow))


def test_a_reflection_undoes_itself() -> None:
    """beta = 2 has the eigenvalue -1: the same key twice, without a value, leaves the state as it was."""
    k = F.normalize(torch.randn(1, 1, 1, 5, dtype=D), dim=-1).expand(1, 2, 1, 5)
    state = DeltaRuleState(torch.randn(1, 1, 3, 5, dtype=D))
    operator, nothing = sw.DeltaRule(k, k, torch.full((1, 2, 1), 2.0, dtype=D)), torch.zeros(1, 2, 1, 3, dtype=D)
    for form in operator.forms:
        y, after = operator(nothing, state, form=form)
        torch.testing.assert_close(after.S, state.S)
        held = torch.einsum("bhpn,bthn->bthp", state.S, k[:, :1])
        torch.testing.assert_close(y, torch.cat([-held, held], 1))


def test_beta_one_replaces_what_a_key_holds() -> None:
    k = F.normalize(torch.randn(1, 20, 2, 6, dtype=D), dim=-1)
    v = torch.randn(1, 20, 2, 3, dtype=D)
    y, _ = sw.DeltaRule(k, k, torch.ones(1, 20, 2, dtype=D))(v)
    torch.testing.assert_close(y, v)


def test_without_a_look_up_it_is_linear_attention() -> None:
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 70, 3, 5, generator=g, dtype=D) for _ in range(2))
    log_a, u = -torch.rand(2, 70, 3, generator=g, dtype=D), torch.randn(2, 70, 3, 4, generator=g, dtype=D)
    y, _ = sw.DiagonalPlusRankOne(log_a, k, q, torch.zeros_like(k))(u)
    torch.testing.assert_close(y, sw.SSD(log_a, k, q)(u)[0])


def test_a_decay_a_head_is_one_of_equal_channels() -> None:
    q, k, beta, _, v = hard(1.5, 0.0, 1.0, length=90)
    log_a = -torch.rand(1, 90, 2, dtype=D)
    y, _ = sw.DeltaRule(q, k, beta, log_a)(v)
    torch.testing.assert_close(y, sw.DeltaRule(q, k, beta, log_a.unsqueeze(-1).expand(k.shape))(v)[0])


def test_the_matrix_is_the_map() -> None:
    q, k, beta, log_a, v = hard(1.9, 0.5, 0.3, length=30)
    operator = sw.DeltaRule(q, k, beta, log_a)
    matrix = operator.matrix()
    assert matrix.shape == (1, 2, 30, 30)
    torch.testing.assert_close(torch.einsum("bhts,bshp->bthp", matrix, v), operator(v)[0])


def test_derivatives_by_differences() -> None:
    q, k, beta, log_a, v = (m[:, :7, :1, ...].detach().requires_grad_() for m in hard(1.7, 1.0, 0.5, n=3, p=2))
    S = torch.randn(1, 1, 2, 3, dtype=D, requires_grad=True)

    def run(*m: Tensor) -> tuple[Tensor, Tensor]:
        y, after = sw.DeltaRule(*m[:4])(m[4], DeltaRuleState(m[5]), form="chunked")
        return y, after.S

    for path in PATHS:
        with kernels.use(path):
            assert torch.autograd.gradcheck(run, (q, k, beta, log_a, v, S), fast_mode=True)
            assert torch.autograd.gradgradcheck(run, (q, k, beta, log_a, v, S), fast_mode=True)


def test_a_document_forgets_an_infinite_past() -> None:
    """What a start cuts off is gone exactly, however large it was."""
    q, k, beta, log_a, v = hard(1.0, 0.1, 1.0, length=100)
    starts = torch.zeros(1, 100, dtype=torch.bool)
    starts[0, 37] = True
    large = v.clone()
    large[:, :37] = 1e30
    operator = sw.DeltaRule(q, k, beta, log_a)
    alone, _ = operator[37:](v[:, 37:])
    torch.testing.assert_close(operator(large, starts=starts)[0][:, 37:], alone)


def test_half_precision_keeps_a_float32_state() -> None:
    *given, v = hard(1.0, 0.5, 1.0, length=80)
    half = sw.DeltaRule(*(m.bfloat16() for m in given))
    y, state = half(v.bfloat16(), half.initial_state(1, trailing=(8,)))
    wide = sw.DeltaRule(*(m.bfloat16().float() for m in given))(v.bfloat16().float())[0]
    assert y.dtype == torch.bfloat16
    assert state.S.dtype == torch.float32
    torch.testing.assert_close(y.float(), wide, atol=math.ldexp(float(wide.abs().max()), -8), rtol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": (1, 4, 2, 4)}, "DeltaRule needs q and k"),
        ({"beta": (1, 4, 3)}, "groups dividing heads"),
        ({"log_a": (1, 4, 2, 4)}, "log_a, if given"),
        ({"u": (1, 4, 3, 2)}, r"needs u of that shape"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused(changes: dict[str, tuple[int, ...]], words: str) -> None:
    shapes = {"q": (1, 4, 2, 3), "k": (1, 4, 2, 3), "beta": (1, 4, 2), "log_a": (1, 4, 2), "u": (1, 4, 2, 2), **changes}
    u = torch.zeros(shapes.pop("u"))
    with pytest.raises(InputError, match=words):
        sw.DeltaRule(**{name: torch.zeros(shape) for name, shape in shapes.items()})(u)
    k = torch.zeros(1, 4, 2, 3)
    with pytest.raises(InputError, match="DiagonalPlusRankOne needs log_a"):
        sw.DiagonalPlusRankOne(torch.zeros(1, 4, 3), k, k, k)(torch.zeros(1, 4, 2, 2))
