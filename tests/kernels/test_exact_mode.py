"""Exact mode: a row has the same bits whole, cut, token by token, padded, packed, beside others and on more threads."""

from __future__ import annotations

import random
import threading

import pytest
import torch
import torch.nn.functional as F
from exact_cases import HYBRIDS, cases, mixers, model_subject
from families import MIXERS

import statewise as sw
from statewise import native
from statewise.kernels.exact import is_exact, of_parameters
from statewise.kernels.exact.attention import attend_exactly
from statewise.kernels.exact.products import times
from statewise.kernels.exact.sums import in_pairs

pytestmark = pytest.mark.skipif(not native.available(), reason="exact mode needs the C kernels")
SUBJECTS = {subject.name: subject for subject in mixers(longest=24)}
BY_STEPS = ("Mamba-3", "S4", "Kalman", "Kalman innovations", "mLSTM", "HiPPO-RNN", "LSSL", "RWKV-7")


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_mixer_has_one_answer(name: str) -> None:
    with sw.exact(), torch.no_grad():
        for seed in range(2):
            found = dict(cases(SUBJECTS[name], random.Random(seed), with_gradients=False))
            assert not any(found.values()), (name, seed, found)


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_mixer_has_one_gradient(name: str) -> None:
    """Few steps of those that are made of thousands of operations, which mode and autograd see one by one."""
    subject = SUBJECTS[name]._replace(longest=9 if name.partition(",")[0] in BY_STEPS else 24)
    with sw.exact():
        found = dict(cases(subject, random.Random(5), with_gradients=True))
    assert not any(found.values()), (name, found)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_has_one_answer(name: str) -> None:
    subject = model_subject(name, longest=30)
    with sw.exact(), torch.no_grad():
        for seed in range(2):
            found = dict(cases(subject, random.Random(seed), with_gradients=False))
            assert not any(found.values()), (name, seed, found)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_has_one_gradient(name: str) -> None:
    subject = model_subject(name, longest=10)
    with sw.exact():
        found = dict(cases(subject, random.Random(3), with_gradients=True))
    assert not any(found.values()), (name, found)


def test_values_of_another_width_are_refused() -> None:
    x = torch.randn(1, 3, 2, 5)
    with pytest.raises(sw.InputError, match="values as wide as keys; got 4 and 5"):
        attend_exactly(x, x, x[..., :4], *torch.zeros(2, 1, 3))


def test_it_is_the_same_map() -> None:
    for name in ("Mamba-2", "Mamba-2, 200 states", "Mamba", "S4D", "attention", "H3", "latent attention, wide"):
        subject = SUBJECTS[name]
        x = subject.draw(2, 20)
        fast, _ = subject.call(x, None, None, None)
        with sw.exact():
            exact, _ = subject.call(x, None, None, None)
        torch.testing.assert_close(exact, fast, rtol=1e-4, atol=1e-5)


def test_products_do_not_depend_on_the_rows_beside() -> None:
    torch.manual_seed(0)
    for k in (1, 7, 320, 333, 1000):
        x, y, bias = torch.randn(41, k), torch.randn(k, 77), torch.randn(77)
        with sw.exact():
            whole = times(x, y, bias)
            for rows in (slice(0, 1), slice(3, 6), slice(5, 13), slice(4, 21)):
                assert torch.equal(times(x[rows], y, bias), whole[rows])
            assert torch.equal(times(x[:3], y.t().contiguous().t(), bias), whole[:3])
            assert torch.equal(torch.bmm(x[None, :5, :], y[None])[0] + bias, times(x[:5], y) + bias)
        torch.testing.assert_close(whole, (x.double() @ y.double() + bias.double()).float(), rtol=1e-4, atol=1e-4)


def test_functions_do_not_depend_on_the_place() -> None:
    torch.manual_seed(0)
    x = torch.randn(67)
    functions = [
        *(torch.sigmoid, F.silu, F.softplus, F.gelu, torch.tanh, torch.exp, torch.log1p, torch.erf),
        lambda m: F.gelu(m, approximate="tanh"),
    ]
    for function in functions:
        given = x.abs() if function is torch.log1p else x
        with sw.exact():
            whole = function(given)
            one_by_one = torch.stack([function(m) for m in given])
        assert torch.equal(whole, one_by_one)
        torch.testing.assert_close(whole, function(given), rtol=1e-5, atol=1e-6)


def test_derivatives_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 10, requires_grad=True)
    functions = [
        *(torch.sigmoid, F.silu, F.softplus, F.gelu, torch.tanh, F.logsigmoid, F.elu, F.glu),
        lambda m: F.gelu(m, approximate="tanh"),
        lambda m: m.softmax(-1),
        lambda m: m.log_softmax(-1),
        lambda m: F.layer_norm(m, (10,)),
        lambda m: F.rms_norm(m, (10,)),
        lambda m: m.logsumexp(-1),
        lambda m: m.var(-1),
    ]
    for function in functions:
        y = function(x)
        slope = torch.randn_like(y)
        (expected,) = torch.autograd.grad(y, x, slope)
        with sw.exact():
            (found,) = torch.autograd.grad(function(x), x, slope)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_zeros_behind_a_sum_change_nothing() -> None:
    torch.manual_seed(0)
    x = torch.randn(13)
    for more in range(5):
        assert torch.equal(in_pairs(F.pad(x, (0, more))), in_pairs(x))


def test_what_has_no_exact_form_is_refused() -> None:
    with sw.exact():
        with pytest.raises(sw.InputError, match=r"no exact form of aten::cumprod"):
            torch.randn(3, 4).cumprod(0)
        with pytest.raises(sw.InputError, match=r"running sum of fractions"):
            torch.randn(3, 4).cumsum(0)
        with pytest.raises(sw.InputError, match=r"multiplies matrices of float32 on the CPU, got torch.float64"):
            torch.randn(3, 4).double() @ torch.randn(4, 3).double()
        with pytest.raises(sw.InputError, match=r"in C on the CPU"), sw.kernels.use("torch"):
            sw.MambaConfig(d_state=4).build(8)(torch.randn(1, 5, 8))
        assert torch.arange(4).cumsum(0).tolist() == [0, 1, 3, 6]


@pytest.mark.parametrize("name", MIXERS)
def test_parameters_are_drawn_as_outside(name: str) -> None:
    def drawn() -> sw.Mixer:
        torch.manual_seed(0)
        return MIXERS[name].build(8)

    with sw.exact():
        inside = drawn()
    outside = drawn().state_dict()
    assert all(torch.equal(m, outside[key]) for key, m in inside.state_dict().items())
    with sw.exact():
        inside.reset_parameters()


@pytest.mark.parametrize("name", MIXERS)
def test_shapes_alone_are_built(name: str) -> None:
    """As loading does before it reads the tensors."""
    with sw.exact(), torch.device("meta"):
        assert all(m.is_meta for m in MIXERS[name].build(8).parameters())


def test_it_belongs_to_a_thread() -> None:
    seen = []
    with sw.exact():
        assert is_exact()
        thread = threading.Thread(target=lambda: seen.append(is_exact()))
        thread.start()
        thread.join()
        with of_parameters():
            assert not is_exact()
        with sw.exact():
            pass
        assert is_exact()
        with sw.exact(False):
            assert is_exact()
    assert seen == [False]
    assert not is_exact()


def test_it_is_a_decorator() -> None:
    @sw.exact()
    def asked() -> bool:
        return is_exact()

    assert asked()
    assert not is_exact()


def test_without_c_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "why_not", lambda: "nobody built them")
    with pytest.raises(sw.InputError, match="nobody built them"), sw.exact():
        pass
