"""What the page asks of a language model: the answers that its own JavaScript gives for small models, in Python.

Each call takes and returns JSON data; ``page/backend.js`` has the same calls.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise import insight
from statewise.data.tokenizers import Tokenizer
from statewise.errors import InputError
from statewise.insight.selection import selects
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel, LanguageModelState

TOP = 12  # pieces listed as candidates for the next one
SIDE = 16  # a state's picture has at most this many rows and columns a head
MOST_HEADS = 64  # rows of a strip; Mamba has a head for each of its channels, of which this many are shown
MOST_STATES = 256  # that are kept: the oldest goes first
MOST_TEXT = 20_000  # characters of a question
MOST_TOKENS = 2_000  # of a text that is analysed: hidden attention is a square


@dataclass(frozen=True)
class Held:
    """The state behind some tokens; ``previous`` and ``last`` are the state and the token that led to it."""

    logits: Tensor
    state: LanguageModelState
    previous: LanguageModelState
    last: int
    tokens: tuple[int, ...]


class Mind:
    """A language model, and the states that a page holds of it.

    prefix:  the tokens that begin a text, such as the document token
    Errors:  InputError for a question that does not fit: a message that the page shows
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, name: str, prefix: Sequence[int]) -> None:
        if not prefix:
            raise InputError(f"{name} has no token that begins a text, and the page needs one")
        self.model, self.tokenizer, self.name, self.prefix = model, tokenizer, name, tuple(prefix)
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._looked: tuple[tuple[int, ...], Tensor, dict[int, Tensor]] | None = None
        self._last = 0

    @property
    def calls(self) -> dict[str, Callable[..., Any]]:
        """Those that a page may make, by name."""
        names = ("info", "analyse", "attention", "read", "generate", "edit", "splice", "picture")
        return {name: getattr(self, name) for name in names}

    def info(self) -> dict[str, Any]:
        layers = [
            {
                "name": type(block.mixer).__name__,
                "selects": selects(block.mixer),
                "edits": kept is not None,
            }
            for block, kept in zip(self.model.blocks, self._memories(self.model.initial_state(1)))
        ]
        unit = "byte" if self.tokenizer.kind == "bytes" else "token"
        grows = not all(block.mixer.bounded_state for block in self.model.blocks)
        width = self.model.config.d_model
        return {"name": self.name, "layers": layers, "d_model": width, "unit": unit, "grows": grows}

    # -- Selection -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def analyse(self, text: str) -> dict[str, Any]:
        """Bits of every piece, what was expected in its place, and the selective layers' step sizes and half-lives.

        ``next[t]`` is what may follow piece t. Piece 0 is the beginning, and has no bits. A state of several numbers
        with half-lives of their own (Mamba) is shown by its longest.
        """
        ids = self._ids(text)
        logits, inputs = self._look(ids)
        logs = logits.double().log_softmax(-1)
        following = torch.tensor(ids[1:], device=logs.device)
        bits = (-logs[:-1].gather(1, following[:, None]).squeeze(1) / math.log(2)).tolist()
        first, layers = len(self.prefix), []
        for layer, x in inputs.items():
            found = insight.selected(self.model.blocks[layer].mixer, x)
            heads = _shown(found.n_heads)
            lives = (math.log(2) / -found.log_decay[0, first - 1 :, heads]).amax(-1).clamp(max=1e9)
            dt = found.dt[0, first - 1 :, heads]
            layers.append({"layer": layer, "dt": dt.T.tolist(), "half_life": lives.T.tolist()})
        return {
            "pieces": ["⟨start⟩", *map(self._piece, ids[first:])],
            "bits": [None, *bits[first - 1 :]],
            "n_bytes": len(text.encode("utf-8", "surrogatepass")),
            "next": [self._candidates(row) for row in logits[first - 1 :]],
            "layers": layers,
        }

    @torch.no_grad()
    def attention(self, text: str, layer: int, head: int) -> list[list[float]]:
        """Hidden attention of one of the heads that :meth:`analyse` shows."""
        _, inputs = self._look(self._ids(text))
        if layer not in inputs:
            raise InputError(f"layer {layer!r} does not select; ask for one of those that analyse shows")
        mixer = self.model.blocks[layer].mixer
        heads = _shown(insight.selected(mixer, inputs[layer]).n_heads)
        if not 0 <= head < len(heads):
            raise InputError(f"head {head!r} is not one of the {len(heads)} shown")
        first = len(self.prefix) - 1
        matrix = insight.hidden_attention(mixer, inputs[layer], [heads[head]])[0, 0, first:, first:]
        return cast(list[list[float]], matrix.tolist())

    def _look(self, ids: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """The logits, and what each selective layer reads, of one pass; those of the last text are kept."""
        if self._looked is None or self._looked[0] != tuple(ids):
            inputs: dict[int, Tensor] = {}

            def keep(layer: int, _: Any, arguments: tuple[Tensor, ...]) -> None:
                inputs[layer] = arguments[0]

            mixers = insight.layers_of(self.model).items()
            hooks = [mixer.register_forward_pre_hook(partial(keep, i)) for i, mixer in mixers if selects(mixer)]
            try:
                with evaluation_mode(self.model):
                    logits, _ = self.model(self._row(ids))
            finally:
                for hook in hooks:
                    hook.remove()
            self._looked = tuple(ids), logits[0], inputs
        return self._looked[1:]

    # -- State surgery ---------------------------------------------------------------------------------------------

    def read(self, text: str, state: str | None = None) -> dict[str, Any]:
        """The state after the text: behind a held one, or from the beginning."""
        before = None if state is None else self._get(state)
        if before is None:
            *early, last = self.prefix
            rest = self._after(self.model.initial_state(1), early)
            before = self._step(rest, last, ())
        return self._described(self._read(before, self._encoded(text)))

    def generate(self, state: str, count: int, temperature: float, seed: int) -> dict[str, Any]:
        """Up to ``count`` tokens more. The number that draws one belongs to its place and the seed, so that the same
        seed writes the same again after a rewind."""
        held, pieces = self._get(state), []
        if not 0 <= count <= 512 or not 0 <= temperature < math.inf:
            raise InputError(f"count={count!r} is 0 to 512, and temperature={temperature!r} 0 or more")
        for _ in range(count):
            if temperature == 0:
                token = int(held.logits.argmax())
            else:
                p = (held.logits.double() / temperature).softmax(-1).cumsum(-1)
                chance = random.Random(int(seed) * 100_003 + len(held.tokens)).random()
                token = min(int((p <= chance * p[-1]).sum()), len(p) - 1)
            if token == self.tokenizer.document_token:
                break
            pieces.append(self._piece(token))
            held = self._read(held, [token])
        return {**self._described(held), "pieces": pieces}

    def edit(self, state: str, layer: int, head: int, factor: float) -> dict[str, Any]:
        """One head of one layer times a number, in the state before the last token, which is then read again."""
        held = self._get(state)
        memory = self._memory_of(held.previous, layer)
        if not abs(factor) <= torch.finfo(memory.dtype).max:  # nan too
            raise InputError(f"factor={factor!r} is not a finite number of the state's {memory.dtype}")
        view = _by_head(memory)
        if not 0 <= head < view.shape[0]:
            raise InputError(f"head {head!r} is not one of the {view.shape[0]} of layer {layer}")
        scale = torch.ones(view.shape[0], dtype=memory.dtype, device=memory.device)
        scale[head] = factor
        changed = (view * scale.reshape(-1, *[1] * (view.ndim - 1))).reshape(memory.shape)
        layers = list(held.previous.layers)
        layers[layer] = _with_memory(layers[layer], changed)
        return self._again(held, layers)

    def splice(self, first: str, second: str, layers: Sequence[int]) -> dict[str, Any]:
        """The first state with these layers of the second, likewise; attention's histories stay with the first."""
        a, b = self._get(first), self._get(second)
        for layer in layers:
            self._memory_of(b.previous, layer)
        mixed = [b.previous.layers[i] if i in layers else layer for i, layer in enumerate(a.previous.layers)]
        return self._again(a, mixed)

    def picture(self, state: str) -> list[list[list[list[float]]]]:
        """For each layer and head the root mean squares of the parts of its memory; nothing for other layers."""
        memories = self._memories(self._get(state).state)
        return [[] if m is None else [_pooled(part) for part in _by_head(m)] for m in memories]

    # -- what these share ------------------------------------------------------------------------------------------

    def _encoded(self, text: str) -> list[int]:
        if not isinstance(text, str) or len(text) > MOST_TEXT:
            raise InputError(f"a text has at most {MOST_TEXT:,} characters")
        return [int(token) for token in self.tokenizer.encode(text)]

    def _ids(self, text: str) -> list[int]:
        tokens = self._encoded(text)
        if len(tokens) > MOST_TOKENS:
            raise InputError(
                f"this text has {len(tokens):,} tokens; at most {MOST_TOKENS:,} can be looked into at once"
            )
        return [*self.prefix, *tokens]

    def _row(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([list(tokens)], device=self.model.embedding.weight.device)

    def _piece(self, token: int) -> str:
        if self.tokenizer.kind == "bytes":
            shown = 32 <= token < 127 or token in (9, 10)
            return chr(token) if shown else "⟨start⟩" if token == 256 else f"\\x{token:02X}"
        return "⟨start⟩" if token == self.tokenizer.document_token else self.tokenizer.decode([token])

    def _candidates(self, logits: Tensor) -> list[tuple[str, float]]:
        p = logits.double().softmax(-1)
        best = p.topk(min(TOP, len(p)))
        return [(self._piece(int(token)), float(chance)) for chance, token in zip(best.values, best.indices)]

    @torch.no_grad()
    def _after(self, state: LanguageModelState, tokens: Sequence[int]) -> LanguageModelState:
        if not tokens:
            return state
        with evaluation_mode(self.model):
            _, new = self.model.features(self._row(tokens), state)
        assert new is not None  # a state was given
        return new

    @torch.no_grad()
    def _step(self, previous: LanguageModelState, token: int, tokens: tuple[int, ...]) -> Held:
        with evaluation_mode(self.model):
            logits, state = self.model(self._row([token]), previous)
        return Held(logits[0, 0], state, previous, token, tokens)

    def _read(self, held: Held, tokens: Sequence[int]) -> Held:
        if not tokens:
            return held
        *early, last = tokens
        return self._step(self._after(held.state, early), last, (*held.tokens, *tokens))

    def _again(self, held: Held, layers: Sequence[Any]) -> dict[str, Any]:
        previous = held.previous._replace(layers=tuple(layers))
        return self._described(self._step(previous, held.last, held.tokens))

    def _described(self, held: Held) -> dict[str, Any]:
        self._last += 1
        self._held[str(self._last)] = held
        while len(self._held) > MOST_STATES:
            self._held.popitem(last=False)
        n_bytes = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(held.state.layers))
        text, following = self.tokenizer.decode(held.tokens), self._candidates(held.logits)
        position = len(held.tokens)
        return {"state": str(self._last), "position": position, "bytes": n_bytes, "text": text, "next": following}

    def _get(self, state: str) -> Held:
        if state not in self._held:
            raise InputError(f"the state {state!r} is not held any more (the last {MOST_STATES} are); start over")
        self._held.move_to_end(state)
        return self._held[state]

    def _memories(self, state: LanguageModelState) -> list[Tensor | None]:
        """What each layer's system remembers, (1, ...), or None where it has no fixed one, as attention."""
        return [getattr(getattr(layer, "ssm", None), "h", None) for layer in state.layers]

    def _memory_of(self, state: LanguageModelState, layer: int) -> Tensor:
        memories = self._memories(state)
        memory = memories[layer] if isinstance(layer, int) and 0 <= layer < len(memories) else None
        if memory is None:
            raise InputError(f"layer {layer!r} has no memory of a fixed size to change; choose another")
        return memory


def _shown(n_heads: int) -> list[int]:
    """The heads that are shown: all, or some of them, evenly spread."""
    shown = min(n_heads, MOST_HEADS)
    return [i * n_heads // shown for i in range(shown)]


def _by_head(memory: Tensor) -> Tensor:
    """(1, heads, d_head, ..., n) without its first axis; one head where it has none, or too many to show."""
    view = memory[0]
    return view if view.ndim >= 3 and view.shape[0] <= MOST_HEADS else view.unsqueeze(0)


def _with_memory(layer: Any, memory: Tensor) -> Any:
    return layer._replace(ssm=layer.ssm._replace(h=memory))


def _pooled(part: Tensor) -> list[list[float]]:
    """Root mean squares of a matrix cut into at most SIDE x SIDE parts; further axes are put with the last."""
    matrix = part.double().cpu().reshape(part.shape[0], -1)
    high, wide = (min(size, SIDE) for size in matrix.shape)
    rows, columns = (torch.arange(size) * n // size for size, n in zip(matrix.shape, (high, wide)))
    sums = torch.zeros(high, wide, dtype=torch.float64)
    counts = torch.zeros_like(sums)
    place = (rows[:, None] * wide + columns).flatten()
    sums.view(-1).index_add_(0, place, matrix.square().flatten())
    counts.view(-1).index_add_(0, place, torch.ones(matrix.numel(), dtype=torch.float64))
    return cast(list[list[float]], (sums / counts).sqrt().tolist())
