"""Operators compiled, the plan and explain, bad input."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace

import pytest
import torch
from families import FAMILIES
from operator_laws import (
    BY_FFT,
    with_gradients,
)
from places import ROOT

import statewise as sw
from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.short_convolution import short_convolution
from statewise.operators import FAMILIES as families
from statewise.operators import Operator, table
from statewise.operators.plan import plan

D = torch.float64


# Not DenseLTV: how often its matrix exponential is squared depends on the data. The others are like one that is there.
LIKE_OTHERS = ("two outputs", "exact hold", "any decay")


COMPILED = [name for name in FAMILIES if name != "DenseLTV" and not any(like in name for like in LIKE_OTHERS)]


@pytest.mark.parametrize("family", COMPILED)
def test_compiled_without_graph_breaks(family: str) -> None:
    torch._dynamo.reset()
    op, _ = FAMILIES[family](2, 1, D, 8)
    for form in op.forms:
        require_no_graph_breaks(family, form)


def require_no_graph_breaks(family: str, form: str) -> None:
    """Few steps where each is traced by itself, several chunks elsewhere."""
    length = 2 if form == "recurrent" else 9 if "LowRank" in family or "Selective" in family else 21
    op, u = FAMILIES[family](2, length, D, 8)
    op, u = with_gradients(op), u.clone().requires_grad_()
    state = op.initial_state(2, trailing=tuple(u.shape[2 + len(op.channels) :]))
    masks = {"lengths": torch.tensor([length, min(5, length - 1)])}
    if form not in BY_FFT:  # documents are laid out as rows of their own there; how many there are depends on the data
        masks["starts"] = torch.zeros(2, length, dtype=torch.bool)
        masks["starts"][0, length // 2] = True

    def run(x: torch.Tensor) -> torch.Tensor:
        y, final = op(x, state, form=form, **masks)
        return y.square().sum() + final[0].square().sum()

    # what is traced step by step calls PyTorch alone, and no operator of ours with a backward to trace
    compiled = torch.compile(run, fullgraph=True, backend="eager" if form == "recurrent" else "aot_eager")
    (want,) = torch.autograd.grad(run(u), u)
    (got,) = torch.autograd.grad(compiled(u), u)
    torch.testing.assert_close(got, want)


def test_compiled_once_for_every_length_and_batch() -> None:
    torch._dynamo.reset()
    for family in ("DiagonalLTI complex", "CausalConvolution", "SelectiveDiagonal", "SSD"):
        op, _ = FAMILIES[family](2, 40, D, 0)
        names = [name for name, value in vars(op).items() if isinstance(value, torch.Tensor)]

        def run(u: torch.Tensor, *values: torch.Tensor, op: sw.Operator = op, names: list[str] = names) -> torch.Tensor:
            return replace(op, **dict(zip(names, values)))(u)[0]  # type: ignore[type-var]

        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        for batch, length in ((2, 40), (2, 33), (3, 27), (4, 51)):
            op, u = FAMILIES[family](batch, length, D, length)
            torch.testing.assert_close(compiled(u, *(getattr(op, name) for name in names)), op(u)[0])


def test_states_are_float32_or_wider_and_keep_their_dtype() -> None:
    for family in FAMILIES:
        op, u = FAMILIES[family](1, 9, torch.float32, 0)
        trailing = tuple(u.shape[2 + len(op.channels) :])
        assert op.initial_state(1, trailing=trailing, dtype=torch.bfloat16)[0].dtype == torch.float32
        for form in op.forms:
            _, state = op(u, op.initial_state(1, trailing=trailing, dtype=D), form=form)
            assert state[0].dtype == D, (family, form)


def test_plan_is_a_pure_function_over_a_printed_table() -> None:
    assert plan(sw.SSD.rules, length=1).form == "recurrent"
    assert plan(sw.SSD.rules, length=8).form == "quadratic"
    assert plan(sw.SSD.rules, length=4096).form == "chunked"
    assert plan(sw.DiagonalLTI.rules, length=16).form == "scan"
    assert plan(sw.DiagonalLTI.rules, length=100).form == "convolve"
    assert plan(sw.DiagonalLTI.rules, length=4096).form == "convolve"
    assert plan(sw.CausalConvolution.rules, length=100, n_taps=4).form == "direct"
    assert plan(sw.CausalConvolution.rules, length=100, n_taps=400).form == "fft"
    assert plan((), length=100).form == "recurrent"
    for family in families:
        assert all(rule.form in family.forms for rule in family.rules)
        assert all(f"| `{family.__name__}` | {rule.condition} | `{rule.form}` |" in table() for rule in family.rules)


def test_every_family_of_the_package_is_in_the_table() -> None:
    def below(cls: type) -> set[type]:
        return {cls}.union(*(below(child) for child in cls.__subclasses__()))

    ours = {cls for cls in below(Operator) if cls.__module__.startswith("statewise.operators")}
    assert {cls for cls in ours if not inspect.isabstract(cls)} == set(families)


def test_the_documented_table_is_the_plan() -> None:
    page = (ROOT / "docs" / "operators.md").read_text("utf-8")
    assert page.split("<!-- plan -->\n")[1].split("\n<!-- /plan -->")[0] == table()


def test_explain() -> None:
    op, u = FAMILIES["SSD"](1, 100, D, 0)
    text = str(sw.explain(op, u))
    assert "'chunked'" in text
    assert "quadratic" in text
    assert "\n" not in text


def test_explain_says_what_this_call_does() -> None:
    ones = torch.ones(1, 2)
    u = torch.randn(1, 400, 1)
    still, grows = sw.DiagonalLTI(0.9 * ones, ones, ones), sw.DiagonalLTI(1.05 * ones, ones, ones)
    assert "one FFT convolution" in str(sw.explain(still, u))
    assert "the system grows" in str(sw.explain(grows, u))
    assert "from a state chunks of matrix products" in str(sw.explain(still, u, still.initial_state(1)))
    pairs = sw.DiagonalLTI(0.9j * ones, ones + 0j, ones + 0j)
    with kernels.use("torch"):
        assert "from a state chunks of matrix products" in str(sw.explain(pairs, u, pairs.initial_state(1)))
    if native.available():
        assert "walked in C" in str(sw.explain(pairs, u, pairs.initial_state(1)))


def test_explain_refuses_what_the_call_would() -> None:
    op = sw.DiagonalLTI(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2))
    for operator, arguments, complaint in (
        (sw.H3Config().build(8), (torch.randn(1, 4, 8),), "a H3 has no forms"),
        (sw.DiagonalLTI, (torch.randn(1, 4, 8),), "the class DiagonalLTI has no forms"),
        (sw.bidirectional(op, op), (torch.randn(1, 4, 1),), r"its \.forward or \.backward"),
        (op, (torch.randn(4),), "u"),
        (op, (torch.randn(1, 4, 3),), "width"),
        (op, (torch.randn(1, 4, 1), op.initial_state(2)), "needs state.h of shape"),
    ):
        with pytest.raises(InputError, match=complaint) as error:
            sw.explain(operator, *arguments)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda op, u: op(u[:, :3]), ["(1, 5, 4)", "(1, 3, 4, 3)"]),
        (lambda op, u: op(u, form="fast"), ["'fast'", "chunked"]),
        (lambda op, u: op(u, op.initial_state(2, trailing=(3,))), ["(1, 4, 3, 5)", "(2, 4, 3, 5)"]),
        (lambda op, u: op(u, (1, 2)), ["SSDState", "tuple"]),
        (lambda op, u: op(u, lengths=torch.tensor([6])), ["0..5", "6"]),
        (lambda op, u: op(u, lengths=torch.tensor([1.0])), ["integers", "float"]),
        (lambda op, u: op(u, starts=torch.zeros(1, 4, dtype=torch.bool)), ["(1, 5)", "(1, 4)"]),
        (lambda op, u: op[2], ["op[t0:t1]"]),
        (lambda op, u: op.matrix(7), ["5 steps"]),
        (lambda op, u: replace(op, C=op.C[..., :2])(u), ["d_state", "(1, 5, 2, 2)"]),
        (lambda op, u: replace(op, chunk_length=0)(u), ["chunk_length >= 1"]),
        (lambda op, u: sw.DiagonalLTI(op.B[0, 0], op.B[0, 0], op.C[0, 0, :1])(u), ["DiagonalLTI needs A, B"]),
        (lambda op, u: sw.DiagonalLTI(op.B[0, 0], op.B[0, 0], op.C[0, 0])(u), ["width 2", "(1, 5, 4, 3)"]),
        (lambda op, u: sw.DiagonalLTI(op.B[0, 0], op.B[0, 0], op.C[0, 0]).matrix(), ["needs a length"]),
        (lambda op, u: sw.CausalConvolution(op.B[0, 0])(u), ["width 2"]),
        (lambda op, u: sw.CausalConvolution(op.B[0])(u), ["n_taps"]),
        (lambda op, u: sw.CausalConvolution.from_shift(op.B[0, 0], op.B[0, 0, :1]), ["one shape"]),
        (lambda op, u: sw.CausalConvolution.from_shift(*(op.B[0, 0, :, :0],) * 2), ["shift SSM", "(2, 0)"]),
        (lambda op, u: sw.CausalConvolution.from_shift(*(op.B[0, 0] * 1j,) * 2), ["shift SSM", "complex128"]),
        (lambda op, u: sw.CausalConvolution.from_shift(op.B[0, 0], op.B[0, 0].float()), ["one dtype", "float32"]),
        (lambda op, u: sw.DiagonalLTI(*(op.B[0, 0],) * 3, 1.0)(u[:, :, :2]), ["D as a tensor (2,)", "float"]),
    ],
)
def test_bad_input_is_refused_in_one_line(call: object, words: list[str]) -> None:
    op, u = FAMILIES["SSD"](1, 5, D, 0)
    with pytest.raises(InputError) as error:
        call(op, u)  # type: ignore[operator]
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_what_an_operator_has_checked_its_kernel_does_not_check_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One full check, where the call begins, and the registered operator's of the sizes that C reads by."""

    def refuse(*_: object, **tensors: object) -> None:
        raise AssertionError("checked again")

    for kernel in ("ssd", "selective_scan.signature", "short_convolution"):
        module = importlib.import_module(f"statewise.kernels.{kernel}")
        monkeypatch.setattr(module, "refuse_unreal", refuse)  # a part of the kernel function's own check
    for family, form in (("SSD", "chunked"), ("SelectiveDiagonal", "scan"), ("CausalConvolution", "direct")):
        op, u = FAMILIES[family](2, 9, D, 0)
        op(u, form=form)
    with pytest.raises(AssertionError, match="checked again"):
        short_convolution(torch.ones(1, 3, 1), torch.ones(1, 2), torch.zeros(1, 1, 1))
