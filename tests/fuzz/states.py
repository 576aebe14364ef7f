"""States tampered with: mixers, operators and tiny models refuse them in one line, or give the right result.

A case takes a right state and does something to one or more of its tensors. Where the numbers are still those of a
state (another layout, a wider or a narrower dtype) the outputs have to be those of the numbers; where a shape, a type,
a count or a dtype is wrong the call has to be refused. Nothing may be broadcast, cut or cast in silence, and no error
of PyTorch's may come through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from families import FAMILIES, MIXERS
from torch import Tensor
from torch.utils import _pytree as pytree

import statewise as sw
from fuzz.draw import Draw, Finding, expect_close

WIDTH = 8


def check(draw: Draw) -> None:
    torch.manual_seed(draw.seed)
    kind = draw.choice(["mixer", "mixer", "operator", "model"], "kind")
    with torch.no_grad():
        {"mixer": mixer, "operator": operator, "model": model}[kind](draw)


def mixer(draw: Draw) -> None:
    name = draw.choice(sorted(MIXERS), "mixer")
    batch, length = draw.integer(1, 3, "batch"), draw.size(20, "length")
    dtype = draw.choice([torch.float32, torch.float64], "dtype")
    reader: Any = MIXERS[name].build(WIDTH).to(dtype)
    _, state = reader(draw.normal(batch, 7, WIDTH, dtype=dtype), reader.initial_state(batch))
    x = draw.normal(batch, length, WIDTH, dtype=dtype)
    options = _masks(draw, batch, length)
    _try(draw, lambda given: reader(x, given, **options), state)


def operator(draw: Draw) -> None:
    name = draw.choice(sorted(FAMILIES), "family")
    batch, length = draw.integer(1, 3, "batch"), draw.integer(1, 20, "length")
    op, u = FAMILIES[name](batch, length, torch.float64, draw.integer(0, 1000))
    trailing = tuple(u.shape[2 + len(op.channels) :])
    state = pytree.tree_map(
        lambda m: draw.normal(*m.shape) if m.is_floating_point() else m + draw.integer(0, 9),
        op.initial_state(batch, trailing=trailing),
    )
    form, options = draw.choice(list(op.forms), "form"), _masks(draw, batch, length)
    _try(draw, lambda given: op(u, given, form=form, **options), state)


def model(draw: Draw) -> None:
    layers = tuple(MIXERS[draw.choice(sorted(MIXERS), f"layer {i}")] for i in range(2))
    batch, length = draw.integer(1, 3, "batch"), draw.integer(1, 9, "length")
    common: dict[str, Any] = {"d_model": WIDTH, "layers": layers}
    kind = draw.choice(["language model", "classifier", "forecaster"], "model")
    reader: Any
    if kind == "language model":
        limit = draw.choice([None, 64], "max_positions")
        reader = sw.LanguageModelConfig(vocab_size=11, max_positions=limit, **common).build()
        x, before = torch.randint(11, (batch, length)), torch.randint(11, (batch, 5))
    elif kind == "classifier":
        pooling = draw.choice(["mean", "last", "attention"], "pooling")
        frame_length = draw.integer(1, 3, "frame_length")
        reader = sw.SequenceClassifierConfig(
            n_classes=3, d_input=2, pooling=pooling, frame_length=frame_length, **common
        ).build()
        x, before = torch.randn(batch, length, 2), torch.randn(batch, 5, 2)
    else:
        reader = sw.ForecasterConfig(horizon=2, **common).build()
        x, before = torch.randn(batch, length, 1), torch.randn(batch, 5, 1)
    reader.eval()
    _, state = reader(before, reader.initial_state(batch))
    _try(draw, lambda given: reader(x, given), state)


def _masks(draw: Draw, batch: int, length: int) -> dict[str, Tensor]:
    options = {}
    if draw.chance(0.3):
        options["lengths"] = draw.lengths(batch, length)
    if draw.chance(0.2):
        options["starts"] = draw.starts(batch, length)
    return options


def _try(draw: Draw, call: Callable[[Any], tuple[Tensor, Any]], state: Any) -> None:
    """The call with a state that was tampered with: what it would be with the same numbers, or a refusal."""
    leaves, spec = pytree.tree_flatten(state)
    i = draw.integer(0, len(leaves) - 1, "tensor")
    draw.note("its shape", tuple(leaves[i].shape))
    how = draw.choice([*SAME, *WRONG, "other counts"], "what was done")
    if how == "other counts":  # of which some are a state's and some are not
        counts = [m + draw.integer(-3, 40) if not m.is_floating_point() and draw.chance(0.5) else m for m in leaves]
        _any_answer(lambda: call(pytree.tree_unflatten(counts, spec)))
        return
    tampered = {**SAME, **WRONG}[how](draw, leaves[i])
    unchanged = isinstance(tampered, Tensor) and _form(tampered) == _form(leaves[i])
    given = pytree.tree_unflatten([*leaves[:i], tampered, *leaves[i + 1 :]], spec)
    if how in WRONG and not unchanged:
        _expect_refusal(lambda: call(given), how)
        return
    leaves[i] = tampered.to(leaves[i].dtype)
    wanted = call(pytree.tree_map(torch.clone, pytree.tree_unflatten(leaves, spec)))[0]
    try:
        got = call(given)[0]
    except sw.InputError as refused:
        _in_one_line(refused)
        if how != "float32 or wider":  # of keys and values alone, which have one dtype
            raise Finding(f"{how}: refused with {str(refused)[:200]!r}") from refused
        return
    expect_close(how, got, wanted, 1e-9 if got.dtype == torch.float64 and how != "float32 or wider" else 1e-3)


def _expect_refusal(call: Callable[[], Any], how: str) -> None:
    try:
        call()
    except sw.InputError as refused:
        _in_one_line(refused)
        return
    raise Finding(f"{how}: accepted")


def _any_answer(call: Callable[[], Any]) -> None:
    try:
        call()
    except sw.InputError as refused:
        _in_one_line(refused)


def _in_one_line(refused: Exception) -> None:
    text = str(refused)
    if "\n" in text or len(text) > 400:
        raise Finding(f"refused with {len(text)} characters in {text.count(chr(10)) + 1} lines")


def _form(m: Tensor) -> tuple[Any, ...]:
    return m.shape, m.dtype, m.device, m.layout


def _axis(draw: Draw, m: Tensor) -> int:
    return draw.integer(0, m.ndim - 1, "axis")


def _longer(draw: Draw, m: Tensor) -> Tensor:
    axis = _axis(draw, m)
    return torch.cat([m, m.narrow(axis, 0, min(1, m.shape[axis]))], axis)


def _shorter(draw: Draw, m: Tensor) -> Tensor:
    axis = _axis(draw, m)
    return m.narrow(axis, 0, max(m.shape[axis] - 1, 0))


def _one(draw: Draw, m: Tensor) -> Tensor:
    """One place of an axis, which would be broadcast over it."""
    axis = _axis(draw, m)
    return m.narrow(axis, 0, min(1, m.shape[axis]))


def _swapped(draw: Draw, m: Tensor) -> Tensor:
    return m.transpose(_axis(draw, m), draw.integer(0, m.ndim - 1, "other axis"))


def _of_dtype(draw: Draw, m: Tensor) -> Tensor:
    real = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64, torch.complex128]
    real += [torch.bfloat16, torch.float16, torch.float8_e4m3fn]
    counts = [torch.float32, torch.float64, torch.int32, torch.uint8, torch.bool, torch.complex64]
    return m.to(draw.choice(real if m.is_floating_point() else counts, "dtype of the tensor"))


def _no_tensor(draw: Draw, m: Tensor) -> Any:
    return draw.choice([None, 0, 1.5, "state", m.tolist(), m.numpy(), (m,), {"h": m}], "in its place")


def _with_batch(draw: Draw, m: Tensor) -> Tensor:
    n = draw.choice([n for n in range(5) if n != len(m)], "rows")
    return m[torch.arange(n) % max(len(m), 1)]


# The same numbers, somewhere else or laid out otherwise
SAME: dict[str, Callable[[Draw, Tensor], Any]] = {
    "another layout": lambda draw, m: draw.laid_out(m),
    "a copy": lambda draw, m: m.clone(),
    "negated twice": lambda draw, m: torch._neg_view(-m) if m.is_floating_point() else m.clone(),
    "rows of every second": lambda draw, m: m.repeat_interleave(2, 0)[::2],
    "float32 or wider": lambda draw, m: (
        m.to(draw.choice([torch.float32, torch.float64])) if m.is_floating_point() else m
    ),
}
WRONG: dict[str, Callable[[Draw, Tensor], Any]] = {
    "one axis longer": _longer,
    "one axis shorter": _shorter,
    "one place of an axis": _one,
    "other rows": _with_batch,
    "axes swapped": _swapped,
    "one axis more": lambda draw, m: m.unsqueeze(draw.integer(0, m.ndim, "new axis")),
    "one axis less": lambda draw, m: m.select(0, 0) if len(m) else m.sum(0),
    "flat": lambda draw, m: m.flatten(),
    "no dimensions": lambda draw, m: m.sum(),
    "another dtype": _of_dtype,
    "no tensor": _no_tensor,
    "on no device": lambda draw, m: m.to("meta"),
    "sparse": lambda draw, m: m.to_sparse(),
}
