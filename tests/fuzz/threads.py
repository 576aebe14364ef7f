"""One state of a random hybrid that several threads continue in random ways, each against the same done alone.

Which thread comes first is not drawn: ``--case`` may have to be tried more than once before it shows the same again.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from at_once import at_once, changing_often
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import statewise as sw
from fuzz.draw import Draw, Finding, expect_close
from statewise import native
from statewise.decoding import Decoder
from statewise.decoding.decoder import why_not
from statewise.mixers.attention_state import AttentionState

VOCABULARY, D_MODEL, TRIES = 13, 4, 3
Step = Callable[[Any], tuple[list[Tensor], Any]]  # a state -> what is said, and the state after it


def check(draw: Draw) -> None:
    model, decoder = _model(draw)
    batch = draw.integer(1, 3, "batch")
    root = _read(draw, model, batch)
    with_run = decoder is not None and draw.chance(0.4, "one thread is a run, which goes on from where all begin")
    scripts = [_script(draw, i, model, decoder, batch) for i in range(draw.integer(2, 4, "threads"))]
    run_tokens = _tokens(draw, batch, 4)
    wanted = [script(copy.deepcopy(root)) for script in scripts]
    tolerance = 1e-9 if decoder is None else 2e-4
    for _ in range(TRIES):
        shared = copy.deepcopy(root)
        work = [partial(script, shared) for script in scripts]
        if with_run:
            assert decoder is not None
            run = decoder.run(shared)
            shared = run.state
            work = [partial(_steps, run, run_tokens), *(partial(script, shared) for script in scripts)]
            expected = [_steps(decoder.run(copy.deepcopy(root)), run_tokens), *wanted]
        else:
            expected = wanted
        before = _visible(shared)
        with changing_often():
            got = at_once(work)
        for i, (one, other) in enumerate(zip(got, expected)):
            if len(one) != len(other):
                raise Finding(f"thread {i} of {len(work)}: {len(one)} outputs, expected {len(other)}")
            for j, (a, b) in enumerate(zip(one, other)):
                expect_close(f"thread {i} of {len(work)}: output {j}", a, b, tolerance)
        for a, b in zip(_visible(shared), before):
            if not torch.equal(a, b):
                raise Finding("the state that all began with has changed")


def _model(draw: Draw) -> tuple[sw.LanguageModel, Decoder | None]:
    """A model, and half of the time one with a step in C, and that."""
    in_c = native.available() and draw.chance(0.5, "in C")
    kinds = [_attention, _attention, lambda draw: sw.MambaConfig(d_state=2, n_taps=draw.integer(1, 3))]
    kinds.append(lambda draw: sw.Mamba2Config(d_state=2, d_head=2, n_taps=draw.integer(1, 3)))
    kinds.append(lambda draw: sw.H3Config(d_state=2, d_shift=draw.integer(1, 3)))
    if not in_c:
        kinds += [lambda draw: sw.GSSConfig(d_state=2), lambda draw: sw.S4DConfig(d_state=2)]
        kinds.append(lambda draw: sw.AttentionConfig(n_heads=2, n_taps=2))
    layers = tuple(draw.choice(kinds)(draw) for _ in range(draw.integer(1, 3)))
    draw.note("layers", layers)
    torch.manual_seed(draw.integer(0, 1000))
    config = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=D_MODEL, layers=layers, embedding_std=0.5)
    model = config.build().eval()
    if in_c:
        if why_not(model) is not None:
            raise Finding(f"no step in C: {why_not(model)}")
        return model, Decoder(model)
    return model.double(), None


def _attention(draw: Draw) -> sw.AttentionConfig:
    window = draw.choice([None, None, 1, 2, 5, 9])
    return sw.AttentionConfig(n_heads=2, n_kv_heads=draw.integer(1, 2), window=window)


def _tokens(draw: Draw, batch: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=draw.generator)


def _read(draw: Draw, model: sw.LanguageModel, batch: int) -> Any:
    """The state that all begin with: from rest, or after a call or two with rows of any lengths."""
    state: Any = model.initial_state(batch)
    with torch.no_grad():
        for length in (draw.integer(0, 9, "read"), draw.integer(0, 2, "and then")):
            lengths = draw.lengths(batch, length) if draw.chance(0.3) else None
            if length:
                _, state = model(_tokens(draw, batch, length), state, lengths=lengths)
    return model.with_room(state, draw.integer(1, 20)) if draw.chance(0.3, "with room") else state


def _script(draw: Draw, i: int, model: sw.LanguageModel, decoder: Decoder | None, batch: int) -> Callable[[Any], Any]:
    """What thread i does with the state."""
    kinds = [_call, _call, _room, _copy, _row]
    if decoder is not None:
        kinds += [_decode, _decode, _run]
    chosen = [draw.choice(kinds) for _ in range(draw.integer(1, 4))]
    draw.note(f"thread {i}", [kind.__name__[1:] for kind in chosen])
    steps = [kind(draw, model, decoder, batch) for kind in chosen]
    grad_off, last = draw.choice([torch.no_grad, torch.inference_mode]), _tokens(draw, batch, 1)

    def script(state: Any) -> list[Tensor]:
        said: list[Tensor] = []
        with grad_off():
            for step in steps:
                more, state = step(state)
                said += more
            said.append(model(last, state)[0])
        return said

    return script


def _call(draw: Draw, model: sw.LanguageModel, decoder: Decoder | None, batch: int) -> Step:
    """The model reads on; at times twice from the same state."""
    length = draw.integer(1, 3)
    tokens = _tokens(draw, batch, length)
    lengths = draw.lengths(batch, length) if draw.chance(0.4) else None
    starts = draw.starts(batch, length) if draw.chance(0.2) else None
    times = draw.integer(1, 2)

    def step(state: Any) -> tuple[list[Tensor], Any]:
        said, after = [], state
        for _ in range(times):
            logits, after = model(tokens, state, lengths=lengths, starts=starts)
            if lengths is not None:
                logits = logits[torch.arange(length) < lengths[:, None]]
            said.append(logits)
        return said, after

    return step


def _decode(draw: Draw, model: sw.LanguageModel, decoder: Decoder | None, batch: int) -> Step:
    assert decoder is not None
    tokens = _tokens(draw, batch, 1)
    lengths = draw.lengths(batch, 1) if draw.chance(0.4) else None

    def step(state: Any) -> tuple[list[Tensor], Any]:
        logits, after = decoder(tokens, state, lengths=lengths)
        assert logits is not None
        return [logits], after

    return step


def _run(draw: Draw, model: sw.LanguageModel, decoder: Decoder | None, batch: int) -> Step:
    """A run, whose state somebody gets on the way; it goes on from there, or the run's own state does."""
    assert decoder is not None
    tokens, held_on = _tokens(draw, batch, draw.integer(2, 5)), draw.chance(0.5)

    def step(state: Any) -> tuple[list[Tensor], Any]:
        run, said = decoder.run(state), []
        held = run.state
        for t in range(tokens.shape[1]):
            said.append(run.step(tokens[:, t]))
            held = run.state if t == 0 else held
        return [logits for logits in said if logits is not None], held if held_on else run.state

    return step


def _room(draw: Draw, model: sw.LanguageModel, decoder: Decoder | None, batch: int) -> Step:
    length = draw.integer(0, 12)
    return lambda state: ([], model.with_room(state, length))


def _copy(draw: Draw, model: sw.LanguageModel, decoder: Decoder | None, batch: int) -> Step:
    return draw.choice([
        lambda state: ([], tree_map(torch.clone, state)),
        lambda state: ([], copy.deepcopy(state)),
        lambda state: ([], _saved(state)),
    ])  # fmt: skip


def _saved(state: Any) -> Any:
    leaves, structure = tree_flatten(state)
    file = io.BytesIO()
    torch.save(leaves, file)
    file.seek(0)
    return tree_unflatten(torch.load(file), structure)


def _row(draw: Draw, model: sw.LanguageModel, decoder: Decoder | None, batch: int) -> Step:
    """One row, as a view, reads on; the state stays."""
    row, tokens = draw.integer(0, batch - 1), _tokens(draw, 1, 1)

    def step(state: Any) -> tuple[list[Tensor], Any]:
        return [model(tokens, tree_map(lambda leaf: leaf[row : row + 1], state))[0]], state

    return step


def _steps(run: Any, tokens: Tensor) -> list[Tensor]:
    return [run.step(tokens[:, t]) for t in range(tokens.shape[1])]


def _visible(state: Any) -> list[Tensor]:
    """Copies of all of a state but the spare slots of its histories and what tells where they lie."""

    def history(leaf: AttentionState) -> list[Tensor]:
        slots = [slice(start, end) for start, end in zip(leaf.start.tolist(), leaf.end.tolist())]
        rows = [m[b, slot].clone() for m in (leaf.keys, leaf.values) for b, slot in enumerate(slots)]
        return [leaf.position.clone(), *rows]

    leaves, _ = tree_flatten(state, is_leaf=lambda node: isinstance(node, AttentionState))
    return [
        m for leaf in leaves for m in (history(leaf) if isinstance(leaf, AttentionState) else [leaf.detach().clone()])
    ]
