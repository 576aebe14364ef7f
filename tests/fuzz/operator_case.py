"""An operator in any form beside a loop over its step in float64: masks, pieces, strides, backends, gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuzz.draw import Draw, expect_close
from statewise import kernels, native

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 5e-3, torch.float16: 1e-3}
Step = Callable[[dict[str, Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    """An operator, its input and the state before, all of which may want gradients; and what it means.

    step:    (the coefficients at one time, u_t, h) -> (y_t, h) in float64, in any operations but the package's own
    state:   a state of the operator that holds this h
    looser:  how many times the usual error is allowed
    """

    operator: Any
    u: Tensor
    h: Tensor
    step: Step
    state: Callable[[Any, Tensor], Any]
    looser: float = 1.0


def compare(draw: Draw, case: Case) -> None:
    """Runs the case in pieces and compares it with the loop, in values and, at times, in gradients."""
    op, u, h = case.operator, case.u, case.h
    batch, length = u.shape[:2]
    lengths = draw.lengths(batch, length) if draw.chance(0.3, "with lengths") else None
    starts = draw.starts(batch, length) if draw.chance(0.3, "with starts") else None
    form = draw.choice([*op.forms, None], "form")
    backend = draw.choice(["c", "torch"] if native.available() else ["torch"], "backend")
    cuts = sorted(draw.integer(0, length) for _ in range(draw.choice([0, 0, 1, 3])))
    draw.note("cuts", cuts)
    gradients = draw.chance(0.4, "gradients")
    coefficients = {name: m for name, m in vars(op).items() if isinstance(m, Tensor)}
    if lengths is not None:
        padding = torch.arange(length) >= lengths[:, None]
        spoilt = {name: _spoilt(coefficients[name], padding) for name in op.time_varying}
        coefficients, u = {**coefficients, **spoilt}, _spoilt(u, padding)
    leaves = {name: draw.laid_out(m).requires_grad_(gradients) for name, m in coefficients.items()}
    leaves["u"], leaves["h"] = draw.laid_out(u).requires_grad_(gradients), draw.laid_out(h).requires_grad_(gradients)
    wide = {name: m.detach().to(_double(m.dtype)).requires_grad_(gradients) for name, m in leaves.items()}

    given = replace(op, **{name: leaves[name] for name in coefficients})
    with kernels.use(backend):
        y, after = _in_pieces(case, given, leaves, cuts, form, lengths, starts)
    wanted_y, wanted_h = _loop(op, case.step, wide, lengths, starts)
    expect_close("y", y, wanted_y, case.looser * TOLERANCES[y.dtype])
    expect_close("state", after, wanted_h, case.looser * TOLERANCES[after.dtype])
    if not gradients or not y.numel():
        return
    weights = [draw.normal(*m.shape, dtype=m.dtype).double() for m in (y, after)]  # that a gradient of m can hold
    total = (y.double() * weights[0]).sum() + (after.double() * weights[1]).sum()
    wanted_total = (wanted_y * weights[0]).sum() + (wanted_h * weights[1]).sum()
    found = torch.autograd.grad(total, leaves.values(), materialize_grads=True, allow_unused=True)
    expected = torch.autograd.grad(wanted_total, wide.values(), materialize_grads=True, allow_unused=True)
    for name, got, want in zip(leaves, found, expected):
        if got.is_complex():
            got, want = torch.view_as_real(got), torch.view_as_real(want)
        # of sums of many terms; y and its gradient may be narrower than what this is the gradient of
        expect_close(f"gradient of {name}", got, want, 10 * case.looser * max(TOLERANCES[m.dtype] for m in (y, got)))


def _in_pieces(
    case: Case,
    op: Any,
    leaves: dict[str, Tensor],
    cuts: list[int],
    form: str | None,
    lengths: Tensor | None,
    starts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """y of all pieces, and the state after the last."""
    u, state, outputs = leaves["u"], case.state(op, leaves["h"]), []
    for begin, end in zip([0, *cuts], [*cuts, u.shape[1]]):
        masks = {
            "lengths": None if lengths is None else (lengths - begin).clamp(0, end - begin),
            "starts": None if starts is None else starts[:, begin:end],
        }
        y, state = op[begin:end](u[:, begin:end], state, form=form, **masks)
        outputs.append(y)
    return torch.cat(outputs, 1), state.h


def _loop(
    op: Any, step: Step, wide: dict[str, Tensor], lengths: Tensor | None, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The step again and again; beyond a row's length nothing happens, and where a document begins h is 0."""
    u, h, outputs = wide["u"], wide["h"], []
    unbound = {name: wide[name].unbind(1) for name in op.time_varying}
    fixed = {name: m for name, m in wide.items() if name not in unbound and name not in ("u", "h")}
    ends = [u.shape[1]] * len(u) if lengths is None else lengths.tolist()

    def rows(flags: list[bool]) -> Tensor:
        return torch.tensor(flags, dtype=torch.bool).reshape(-1, *[1] * (h.ndim - 1))

    for t, u_t in enumerate(u.unbind(1)):
        going = [t < end for end in ends]
        now, before = {name: m[t] for name, m in unbound.items()}, h
        if starts is not None:
            h = h.masked_fill(rows([b and g for b, g in zip(starts[:, t].tolist(), going)]), 0)
        if not all(going):
            over = torch.tensor([not g for g in going], dtype=torch.bool)
            now = {name: m.masked_fill(over.reshape(-1, *[1] * (m.ndim - 1)), 0) for name, m in now.items()}
            u_t = u_t.masked_fill(over.reshape(-1, *[1] * (u_t.ndim - 1)), 0)
        y, h = step({**fixed, **now}, u_t, h)
        if not all(going):
            h = torch.where(rows(going), h, before)
            y = y.masked_fill(over.reshape(-1, *[1] * (y.ndim - 1)), 0)
        outputs.append(y)
    return (torch.stack(outputs, 1) if outputs else torch.zeros_like(u)), h


def _spoilt(m: Tensor, padding: Tensor) -> Tensor:
    return m.masked_fill(padding.reshape(*padding.shape, *[1] * (m.ndim - 2)), torch.nan)


def _double(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64
