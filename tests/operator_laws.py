"""The laws that every operator keeps, as one battery: a new family passes it, or it is not in.

1. Agreement: every form equals ``recurrent`` in outputs, final state and all gradients.
2. Cutting: ``op[:t]`` and then ``op[t:]`` equals ``op``, for every form.
3. Causality. 4. Linearity in (u, state). And lengths, starts, none-is-rest, layouts, unchanged states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from laws import refused, wrong_lengths, wrong_starts, wrong_states
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.operators.base import Operator

BY_FFT = ("convolve", "fft", "block_fft", "state_passing")


def random_state(op: Operator, u: Tensor) -> Any:
    rest = op.initial_state(u.shape[0], trailing=tuple(u.shape[2 + len(op.channels) :]), dtype=u.dtype)

    def draw(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():  # a count of steps: the same for every call, so that states can be mixed
            return leaf + torch.arange(leaf.shape[0]) * 3
        return torch.randn_like(leaf).requires_grad_()

    return pytree.tree_map(draw, rest)


def coefficients(op: Operator) -> dict[str, Tensor]:
    return {name: value for name, value in vars(op).items() if isinstance(value, Tensor)}


def with_gradients(op: Operator) -> Operator:
    leaves = {name: value.detach().clone().requires_grad_() for name, value in coefficients(op).items()}
    return replace(op, **leaves)  # type: ignore[type-var]


def floating(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if leaf.is_floating_point()]


def no_output(y: Tensor, x: Tensor) -> Tensor:
    """Zeros at the steps of x, of the shape that y's steps have."""
    return y.new_zeros(*x.shape[:2], *y.shape[2:])


def close(a: Any, b: Any, atol: float, what: str) -> None:
    left, right = pytree.tree_leaves(a), pytree.tree_leaves(b)
    assert len(left) == len(right), what
    for x, y in zip(left, right):
        scale = max(1.0, float(y.detach().abs().max())) if y.numel() and atol else 1.0  # 0 inf is NaN
        torch.testing.assert_close(x, y, atol=atol * scale, rtol=0, msg=lambda text: f"{what}: {text}")


def outcome(
    op: Operator, u: Tensor, state: Any, run: Callable[[Operator, Tensor, Any], tuple[Tensor, Any]]
) -> tuple[Any, Any]:
    """(y, final state) and the gradients of a fixed random function of both, for u, the coefficients and the state."""
    y, final = run(op, u, state)
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=y.dtype)
    for leaf in floating((y, final)):
        weight = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype)
        total = total + (leaf * weight).sum()
    inputs = [u, *coefficients(op).values(), *floating(state)]
    if not total.requires_grad:
        return (y, final), [torch.zeros_like(leaf) for leaf in inputs]
    return (y, final), torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


def cuts(length: int) -> Iterable[int]:
    if length <= 65:
        return range(length + 1)
    return sorted({0, 1, 2, 63, 64, 65, 127, length // 2, length - 65, length - 1, length} & set(range(length + 1)))


def check_agreement(op: Operator, u: Tensor, atol: float, **masks: Tensor) -> None:
    state = random_state(op, u)
    want = outcome(op, u, state, lambda o, x, s: o(x, s, form="recurrent", **masks))
    for form in op.forms:
        got = outcome(op, u, state, lambda o, x, s, form=form: o(x, s, form=form, **masks))
        close(got[0], want[0], atol, f"{form}: outputs and final state")
        close(got[1], want[1], atol * 10, f"{form}: gradients")
    chosen = op(u, state, **masks)
    close(chosen, want[0], atol, "the planned form")


def check_cutting(op: Operator, u: Tensor, atol: float) -> None:
    state = random_state(op, u)
    for form in op.forms:
        want = outcome(op, u, state, lambda o, x, s, form=form: o(x, s, form=form))
        some = list(cuts(u.shape[1]))
        for t in some if form != "recurrent" else some[:: max(1, len(some) // 5)]:

            def halves(o: Operator, x: Tensor, s: Any, t: int = t, form: str = form) -> tuple[Tensor, Any]:
                first, s = o[:t](x[:, :t], s, form=form)
                second, s = o[t:](x[:, t:], s, form=form)
                return torch.cat([first, second], 1), s

            got = outcome(op, u, state, halves)
            close(got[0], want[0], atol, f"{form} cut at {t}")
            close(got[1], want[1], atol * 10, f"{form} cut at {t}: gradients")


def check_causality(op: Operator, u: Tensor, atol: float) -> None:
    length = u.shape[1]
    for form in op.forms:
        y, _ = op(u, form=form)
        for t in {length // 3, length - 1}:
            changed = torch.cat([u[:, :t], torch.randn_like(u[:, t:]) * 1e3], 1)
            # an FFT rounds relative to the largest value of the row, wherever that is
            near = atol * 1e3 if form in BY_FFT else atol
            close(op(changed, form=form)[0][:, :t], y[:, :t], near, f"{form}: what comes after {t} is seen before")


def check_linearity(op: Operator, u: Tensor, atol: float) -> None:
    first, second, v = random_state(op, u), random_state(op, u), torch.randn_like(u)

    def mix(a: Tensor, b: Tensor) -> Tensor:
        return 3 * a - 2 * b if a.is_floating_point() else a

    mixed = pytree.tree_map(mix, first, second)
    for form in op.forms:
        got = op(3 * u - 2 * v, mixed, form=form)
        parts = zip(pytree.tree_leaves(op(u, first, form=form)), pytree.tree_leaves(op(v, second, form=form)))
        close(got, [mix(a, b) for a, b in parts], atol * 10, f"{form} is not linear")


def check_none_is_rest(op: Operator, u: Tensor, atol: float) -> None:
    rest = pytree.tree_map(torch.zeros_like, random_state(op, u))
    for form in op.forms:
        y, state = op(u, form=form)
        assert state is None
        close(y, op(u, rest, form=form)[0], atol, f"{form}: no state is not rest")


def check_unchanged(op: Operator, u: Tensor) -> None:
    state = random_state(op, u)
    before = pytree.tree_map(torch.clone, (u, state, list(coefficients(op).values())))
    for form in op.forms:
        op(u, state, form=form)
        close((u, state, list(coefficients(op).values())), before, 0.0, f"{form} writes into its inputs")


def check_lengths(op: Operator, u: Tensor, atol: float) -> None:
    """Padded rows equal single runs, with NaN in the padding, an empty row among them."""
    batch, length = u.shape[:2]
    lengths = torch.tensor([length, 0, max(length // 2, 1), length - 1][:batch])
    time = torch.arange(length)
    padding = (time >= lengths[:, None]).reshape(batch, length, *[1] * (u.ndim - 2))
    dirty = u.masked_fill(padding, torch.nan).detach().requires_grad_()
    poisoned = {
        name: value.masked_fill((time >= lengths[:, None]).reshape(batch, length, *[1] * (value.ndim - 2)), torch.nan)
        for name, value in coefficients(op).items()
        if name in op.time_varying
    }
    dirty_op = with_gradients(replace(op, **poisoned))  # type: ignore[type-var]
    state = random_state(op, u)

    def one_by_one(o: Operator, x: Tensor, s: Any) -> tuple[Tensor, Any]:
        outputs, finals = [], []
        for row, n in enumerate(lengths.tolist()):
            single = replace(o, **{f: getattr(o, f)[row : row + 1] for f in o.time_varying})  # type: ignore[type-var]
            y, final = single[:n](x[row : row + 1, :n], pytree.tree_map(lambda leaf, r=row: leaf[r : r + 1], s))
            outputs.append(torch.cat([y, no_output(y, x[row : row + 1, n:])], 1))
            finals.append(final)
        return torch.cat(outputs), pytree.tree_map(lambda *leaves: torch.cat(leaves), *finals)

    want = outcome(op, u, state, one_by_one)
    for form in op.forms:
        got = outcome(dirty_op, dirty, state, lambda o, x, s, form=form: o(x, s, form=form, lengths=lengths))
        close(got[0], want[0], atol, f"{form}: padded rows differ from single runs")
        close(got[1], want[1], atol * 10, f"{form}: gradients of padded rows")


def check_starts(op: Operator, u: Tensor, atol: float) -> None:
    """Packed documents equal single runs, also with padding behind them and a state that comes in."""
    batch, length = u.shape[:2]
    starts = torch.rand(batch, length, generator=torch.Generator().manual_seed(2)) < 0.15
    starts[0, 0] = True
    if batch > 1:
        starts[1] = False
    for lengths in (None, torch.tensor([length - 1, length, length // 2, 0][:batch])):
        state = random_state(op, u)
        ends = [length] * batch if lengths is None else lengths.tolist()

        def one_by_one(o: Operator, x: Tensor, s: Any, ends: list[int] = ends) -> tuple[Tensor, Any]:
            outputs, finals = [], []
            for row, n in enumerate(ends):
                at = [t for t in range(n) if starts[row, t]]
                edges = sorted({0, *at, n})
                here = pytree.tree_map(lambda leaf, r=row: leaf[r : r + 1], s)
                single = replace(o, **{f: getattr(o, f)[row : row + 1] for f in o.time_varying})  # type: ignore[type-var]
                pieces = []
                for t0, t1 in pairwise(edges):
                    if t0 in at:
                        here = pytree.tree_map(torch.zeros_like, here)
                    y, here = single[t0:t1](x[row : row + 1, t0:t1], here)
                    pieces.append(y)
                if not pieces:
                    pieces.append(o(x[:1, :0])[0])
                outputs.append(torch.cat([*pieces, no_output(pieces[0], x[row : row + 1, n:])], 1))
                finals.append(here)
            return torch.cat(outputs), pytree.tree_map(lambda *leaves: torch.cat(leaves), *finals)

        want = outcome(op, u, state, one_by_one)
        masks = {"starts": starts} if lengths is None else {"starts": starts, "lengths": lengths}
        for form in op.forms:
            got = outcome(op, u, state, lambda o, x, s, form=form, masks=masks: o(x, s, form=form, **masks))
            close(got[0], want[0], atol, f"{form}: packed documents differ from single runs")
            close(got[1], want[1], atol * 10, f"{form}: gradients of packed documents")


def check_layouts(op: Operator, u: Tensor, atol: float) -> None:
    """Inputs that are not contiguous, or expanded, give what their copies give."""
    strided = {
        name: value.detach().transpose(0, -1).contiguous().transpose(0, -1) for name, value in coefficients(op).items()
    }
    expanded = u[:, :1].expand_as(u)
    for form in op.forms:
        close(
            replace(op, **strided)(u.transpose(0, 1).contiguous().transpose(0, 1), form=form)[0],  # type: ignore[type-var]
            op(u, form=form)[0],
            atol,
            f"{form}: strides",
        )
        close(op(expanded, form=form)[0], op(expanded.clone(), form=form)[0], atol, f"{form}: expanded")


def check_arguments(op: Operator, u: Tensor) -> None:
    """Whatever is wrong with a call is refused in one line of ours."""
    batch, length = u.shape[:2]
    wrong = [None, u.cpu().numpy(), u.tolist(), u.flatten(), u.to("meta"), u.to_sparse()]
    for x in (*wrong, *(u.to(dtype) for dtype in (torch.int64, torch.bool, torch.complex128))):
        refused(lambda x=x: op(x))
    for lengths in wrong_lengths(batch, length):
        refused(lambda lengths=lengths: op(u, lengths=lengths))
    for starts in wrong_starts(batch, length):
        refused(lambda starts=starts: op(u, starts=starts))
    for state in wrong_states(op.initial_state(batch, trailing=op._trailing(u))):
        refused(lambda state=state: op(u, state))
    refused(lambda: op(u, form="fastest"), "has no form")


def check_operator_laws(op: Operator, u: Tensor, *, atol: float = 1e-11) -> None:
    """All laws, for an operator and an input of one dtype (float64 unless atol is given)."""
    op, u = with_gradients(op), u.detach().clone().requires_grad_()
    check_agreement(op, u, atol)
    check_cutting(op, u, atol)
    check_causality(op, u, atol)
    check_linearity(op, u, atol)
    check_none_is_rest(op, u, atol)
    check_unchanged(op, u)
    check_layouts(op, u, atol)
    check_arguments(op, u.detach())
    if u.shape[1] > 1:
        check_lengths(op, u, atol)
        check_starts(op, u, atol)
