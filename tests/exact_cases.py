"""Random cases of exact mode: a row alone and whole, against the same row cut, padded, packed and beside others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from families import MIXERS
from torch import Tensor
from torch.utils import _pytree as pytree

import statewise as sw
from statewise.mixers.attention_state import AttentionState

WAYS = ("cut", "token by token", "beside others", "padded", "packed", "two threads", "without a state")


class Told(NamedTuple):
    """What one row says: its outputs, the state behind it, and the gradients of its inputs and its state before."""

    y: Tensor
    state: Any
    grad_x: Tensor | None
    grad_state: Any


class Subject(NamedTuple):
    """A mixer or a model as the cases call it.

    call:  (inputs, state, lengths, starts) -> (y, state)
    rest:  a state for so many rows
    draw:  inputs of (rows, length)
    """

    name: str
    call: Callable[..., tuple[Tensor, Any]]
    rest: Callable[[int], Any]
    draw: Callable[[int, int], Tensor]
    longest: int = 60


def differing(one: Any, other: Any) -> int:
    """How many numbers differ in any bit, the sign of zero included; shapes that differ count as one."""
    first, second = (pytree.tree_leaves(m) for m in _seen(one, other))
    if len(first) != len(second):
        return 1
    return sum(_bits(a, b) for a, b in zip(first, second))


def _bits(a: Any, b: Any) -> int:
    if not isinstance(a, Tensor):
        return int(a is not b)
    if not a.is_floating_point() and not b.is_floating_point():
        return 0  # counts of what was read, in which a packed row differs by right
    if a.shape != b.shape or a.dtype != b.dtype:
        return 1
    if a.is_floating_point():
        words = torch.int64 if a.dtype == torch.float64 else torch.int32
        a, b = (m.detach().contiguous().view(words) for m in (a, b))
    return int((a != b).sum())


def _seen(one: Any, other: Any) -> tuple[Any, Any]:
    """Of a history of keys and values, of one row, the slots that are its own; with a window one may keep more."""
    if isinstance(one, AttentionState) and isinstance(other, AttentionState):
        n = min(int(m.end[0] - m.start[0]) for m in (one, other))
        slots = [slice(int(m.end[0]) - n, int(m.end[0])) for m in (one, other)]
        first, second = ((m.keys[:, s], m.values[:, s], m.position) for m, s in zip((one, other), slots))
        return first, second
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        pairs = [_seen(a, b) for a, b in zip(one, other)]
        return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    return one, other


def row_of(tree: Any, row: int) -> Any:
    return pytree.tree_map(lambda m: m[row : row + 1], tree)


def whole(subject: Subject, x: Tensor, state: Any, slope: Tensor | None) -> Told:
    """The row by itself, in one call."""
    return in_pieces(subject, x, state, [x.shape[1]], slope)


def in_pieces(subject: Subject, x: Tensor, state: Any, pieces: list[int], slope: Tensor | None) -> Told:
    x, leaves, state = _recorded(x, state, slope)
    now, outputs = state, []
    for piece in x.split(pieces, 1):
        y, now = subject.call(piece, now, None, None)
        outputs.append(y)
    return _told(torch.cat(outputs, 1), now, x, leaves, slope)


def _recorded(x: Tensor, state: Any, slope: Tensor | None) -> tuple[Tensor, list[Tensor], Any]:
    """Copies; where there is a slope, such as take gradients."""
    wanted = slope is not None
    if x.is_floating_point():
        x = x.clone().requires_grad_(wanted)
    leaves, spec = pytree.tree_flatten(pytree.tree_map(torch.clone, state))
    leaves = [m.requires_grad_(wanted and m.is_floating_point()) for m in leaves]
    return x, leaves, pytree.tree_unflatten(leaves, spec)


def _told(y: Tensor, state: Any, x: Tensor, leaves: list[Tensor], slope: Tensor | None) -> Told:
    if slope is None:
        return Told(y, state, None, None)
    learned = [m for m in leaves if m.requires_grad]
    wanted = [x, *learned] if x.requires_grad else learned
    found = torch.autograd.grad(y, wanted, slope, allow_unused=True, materialize_grads=True) if wanted else []
    grads = list(found)
    grad_x = grads.pop(0) if x.requires_grad else None
    return Told(y.detach(), state, grad_x, [g for g, m in zip(grads, learned) if m.numel()])


def cases(subject: Subject, draws: random.Random, *, with_gradients: bool) -> Iterator[tuple[str, int]]:
    """Of one drawn batch, for every way to read its rows, how many numbers differ from the row by itself."""
    rows, longest = draws.randint(1, 4), draws.randint(1, subject.longest)
    lengths = [draws.randint(1, longest) for _ in range(rows)]
    lengths[draws.randrange(rows)] = longest
    x, rest = subject.draw(rows, longest), subject.rest(rows)
    y, _ = subject.call(x[:, :1], subject.rest(rows), None, None)
    slopes = torch.randn(rows, longest, *y.shape[2:]) if with_gradients else None

    def slope(row: int, length: int) -> Tensor | None:
        return None if slopes is None else slopes[row : row + 1, :length]

    alone = [whole(subject, x[r : r + 1, :n], subject.rest(1), slope(r, n)) for r, n in enumerate(lengths)]
    row = draws.randrange(rows)
    n = lengths[row]
    mine = x[row : row + 1, :n]
    yield "cut", differing(in_pieces(subject, mine, subject.rest(1), _pieces(n, draws), slope(row, n)), alone[row])
    ones = in_pieces(subject, mine, subject.rest(1), [1] * n, slope(row, n))
    yield "token by token", differing(ones, alone[row])
    yield "beside others", sum(_beside(subject, x, rest, slopes, whole_rows=alone, lengths=[longest] * rows))
    yield "padded", sum(_beside(subject, x, rest, slopes, whole_rows=alone, lengths=lengths))
    yield "packed", _packed(subject, x, lengths, slopes, alone)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield "two threads", sum(_beside(subject, x, rest, slopes, whole_rows=alone, lengths=lengths))
    finally:
        torch.set_num_threads(threads)
    y, _ = subject.call(mine, None, None, None)
    yield "without a state", differing(y, alone[row].y)


def _pieces(length: int, draws: random.Random) -> list[int]:
    pieces = []
    while sum(pieces) < length:
        pieces.append(min(draws.randint(1, 1 + length // 2), length - sum(pieces)))
    return pieces


def _beside(
    subject: Subject, x: Tensor, rest: Any, slopes: Tensor | None, *, whole_rows: list[Told], lengths: list[int]
) -> Iterator[int]:
    """All rows in one call, padded where they are shorter."""
    longest, is_padded = x.shape[1], len(set(lengths)) > 1
    given, leaves, state = _recorded(x, rest, slopes)
    count = torch.tensor(lengths)
    slope = None
    if slopes is not None:
        there = torch.arange(longest) < count[:, None]
        slope = slopes * there.reshape(*there.shape, *[1] * (slopes.ndim - 2))
    y, after = subject.call(given, state, count if is_padded else None, None)
    told = _told(y, after, given, leaves, slope)
    for row, (length, alone) in enumerate(zip(lengths, whole_rows)):
        if length != alone.y.shape[1]:
            yield 0  # this row was drawn shorter: only its beginning is the same, which `cut` looks at
            continue
        yield differing(
            Told(
                told.y[row : row + 1, :length],
                row_of(told.state, row),
                None if told.grad_x is None else told.grad_x[row : row + 1, :length],
                None if told.grad_state is None else [g[row : row + 1] for g in told.grad_state],
            ),
            alone,
        )


def _packed(subject: Subject, x: Tensor, lengths: list[int], slopes: Tensor | None, alone: list[Told]) -> int:
    """All rows one after the other in one, behind a state of its own that is forgotten."""
    begins = torch.zeros(1, sum(lengths), dtype=torch.bool)
    at = 0
    for n in lengths:
        begins[0, at] = True
        at += n
    packed = torch.cat([x[r : r + 1, :n] for r, n in enumerate(lengths)], 1)
    slope = None if slopes is None else torch.cat([slopes[r : r + 1, :n] for r, n in enumerate(lengths)], 1)
    given, leaves, state = _recorded(packed, subject.rest(1), slope)
    y, after = subject.call(given, state, None, begins)
    told = _told(y, after, given, leaves, slope)
    found = differing(told.state, alone[-1].state)
    at = 0
    for n, one in zip(lengths, alone):
        found += differing(told.y[:, at : at + n], one.y)
        if told.grad_x is not None:
            found += differing(told.grad_x[:, at : at + n], one.grad_x)
        at += n
    return found


def mixers(longest: int = 50) -> Iterator[Subject]:
    """Every causal mixer of the families that keeps a state."""
    drawn = {**MIXERS, **MORE}
    for name, config, d_model in [*((*pair, 8) for pair in drawn.items()), *((n, *pair) for n, pair in WIDE.items())]:
        torch.manual_seed(1)
        mixer = config.build(d_model).eval()
        if mixer.is_causal and not mixer.reads_memory:
            yield mixer_subject(name, mixer, longest)


def mixer_subject(name: str, mixer: sw.Mixer, longest: int) -> Subject:
    def call(x: Tensor, state: Any, lengths: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Any]:
        y, after = mixer(x, state, lengths=lengths, starts=starts)
        return y, after

    def draw(rows: int, length: int) -> Tensor:
        return torch.randn(rows, length, mixer.d_model)

    return Subject(name, call, mixer.initial_state, draw, longest)


MORE: dict[str, sw.MixerConfig] = {
    "Mamba, exact hold": sw.MambaConfig(d_state=4, method="zoh"),
    "Mamba complex, exact hold": sw.MambaConfig(d_state=4, initialization="lin", method="zoh"),
    # the C kernels have code of their own for states of 1, 2, 4 and 8 vectors, and a vector is 4, 8 or 16 numbers
    "Mamba-2, 9 states": sw.Mamba2Config(d_state=9, d_head=8),
    "Mamba-2, 16 states": sw.Mamba2Config(d_state=16, d_head=8, n_groups=2),
    "Mamba-2, 24 states": sw.Mamba2Config(d_state=24, d_head=16),
    "Mamba-2, 32 states": sw.Mamba2Config(d_state=32, d_head=4, n_groups=2),
    "Mamba-2, 64 states": sw.Mamba2Config(d_state=64, d_head=16),
    "Mamba-2, 128 states": sw.Mamba2Config(d_state=128, d_head=8),
    "Mamba-2, 200 states": sw.Mamba2Config(d_state=200, d_head=8),  # in two passes
    "Mamba, 16 states": sw.MambaConfig(d_state=16),
}
WIDE: dict[str, tuple[sw.MixerConfig, int]] = {  # with a d_model: channels in several vectors, and some left over
    "Mamba, wide": (sw.MambaConfig(d_state=9), 20),
    "Mamba-2, wide": (sw.Mamba2Config(d_state=16, d_head=20), 40),
    "gated convolution, wide": (sw.GatedConvolutionConfig(), 37),
    "attention, wide": (sw.AttentionConfig(n_heads=2, d_head=34, n_kv_heads=1), 24),
    "S4D, wide": (sw.S4DConfig(d_state=16), 37),
    "latent attention, wide": (
        sw.LatentAttentionConfig(n_heads=3, d_key=9, d_value=5, d_shared=3, rank=38, query_rank=7, bias=True),
        20,
    ),
}
_MLP = sw.MLPConfig(expand=2)
HYBRIDS: dict[str, sw.LanguageModelConfig] = {
    "Mamba-2 and attention": sw.LanguageModelConfig(
        vocab_size=23,
        d_model=16,
        layers=(
            sw.Mamba2Config(d_state=8, d_head=8),
            sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2, n_kv_heads=1, window=9), mlp=_MLP),
            sw.Mamba2Config(d_state=8, d_head=8),
        ),
    ),
    "H3, attention and experts": sw.LanguageModelConfig(
        vocab_size=23,
        d_model=16,
        layers=(
            sw.BlockConfig(mixer=sw.H3Config(d_state=8), mlp=_MLP, norm="layer"),
            sw.BlockConfig(
                mixer=sw.AttentionConfig(n_heads=4),
                mlp=sw.MoEConfig(n_experts=6, n_active=4, expand=1.0, gated=True),
                norm="layer",
            ),
        ),
    ),
    "Mamba, delta rule and S4D": sw.LanguageModelConfig(
        vocab_size=23,
        d_model=16,
        layers=(
            sw.MambaConfig(d_state=4),
            sw.GatedDeltaNetConfig(n_heads=2, d_key=4, d_value=4),
            sw.S4DConfig(d_state=8),
        ),
    ),
    # layers that read their block's input in several places
    "Mamba-2 and a shared Transformer": sw.LanguageModelConfig(
        vocab_size=23,
        d_model=16,
        layers=(
            sw.Mamba2Config(d_state=16, d_head=8),
            sw.SharedTransformerConfig(
                mixer=sw.Mamba2Config(d_state=8, d_head=8), attention=sw.AttentionConfig(n_heads=2, d_head=16), mlp=_MLP
            ),
        ),
    ),
    "S4D and mixers side by side": sw.LanguageModelConfig(
        vocab_size=23,
        d_model=16,
        layers=(
            sw.S4DConfig(d_state=8),
            sw.BlockConfig(
                mixer=sw.ParallelMixersConfig(
                    first=sw.AttentionConfig(n_heads=2), second=sw.Mamba2Config(d_state=8, d_head=8)
                ),
                placement="post",
            ),
        ),
    ),
}


def model_subject(name: str, longest: int = 50) -> Subject:
    """A hybrid language model; its inputs are tokens."""
    torch.manual_seed(2)
    model = HYBRIDS[name].build().eval()

    def call(x: Tensor, state: Any, lengths: Tensor | None, starts: Tensor | None) -> tuple[Tensor, Any]:
        y, after = model(x, state, lengths=lengths, starts=starts)
        return y, after

    return Subject(name, call, model.initial_state, lambda rows, length: torch.randint(23, (rows, length)), longest)
