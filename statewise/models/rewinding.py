"""States that can be taken back by some tokens: one from before, and what was put into it since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.exact import exact, is_exact
from statewise.mixers.base import Mixer
from statewise.mixers.positions import position_behind
from statewise.operators.masks import Masks, build_masks
from statewise.operators.recording import LayerCall, Recording, recorded

Call = Callable[[Any], tuple[Tensor, Any]]  # of a model with a state: what it answers, and the state behind


@dataclass(frozen=True)
class RewindableState:
    """A language model's state, of which the last tokens can be taken back. Give it to the model as any other state:

    ``logits, state = model(tokens, state)``, and ``state.at(3)`` is the plain state of three tokens ago.

    It keeps the state at the beginning of a chunk and, of the tokens since, what each layer has put into its state: for
    Mamba-2 dt, B and x, for attention keys and values. ``at`` goes through these again, without any projection. A
    chunk ends once it has ``last`` tokens, so that there are two such states at most, however large ``last`` is.

    state: the latest, as a plain state
    last:  how many tokens can be taken back at least; less if fewer were read

    Cost:    memory: two more states, and the inputs of up to 2 ``last`` tokens (and of one call, if that is longer).
             ``at``: one short scan of each layer over at most as many tokens.
    Errors:  InputError from ``at`` for more tokens than are kept.

    >>> import torch
    >>> import statewise as sw
    >>> model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(sw.S4DConfig(d_state=4),)).build().eval()
    >>> tokens, rest = torch.tensor([[1, 2, 3, 4]]), model.initial_state(1)
    >>> _, state = model(tokens, sw.rewindable(rest, last=4))
    >>> _, earlier = model(tokens[:, :2], rest)
    >>> torch.allclose(state.at(2).layers[0].h, earlier.layers[0].h)
    True
    """

    state: Any
    last: int
    _chunks: tuple[_Chunk, ...] = ()
    _exact: bool = False  # whether it was made in exact mode, and goes back so

    @property
    def position(self) -> Tensor:
        """(batch,) int64, as of the plain state."""
        position: Tensor = self.state.position
        return position

    @property
    def n_kept(self) -> Tensor:
        """(batch,) int64, how many tokens of each row can be taken back now."""
        none = torch.zeros_like(self.state.position)
        return sum((chunk.counts for chunk in self._chunks), none)

    def at(self, k: int | Tensor | Sequence[int]) -> Any:
        """The plain state of k tokens ago: of all rows, or (batch,) of each."""
        back = self._back(k)
        if not bool((back > 0).any()):
            return self.state
        kept, counts = self.n_kept - back, [chunk.counts for chunk in self._chunks]
        begin = len(counts) - 1
        while begin and bool(torch.any(kept < sum(counts[:begin]))):
            begin -= 1
        state, kept = self._chunks[begin].before, kept - sum(counts[:begin])
        for piece in (piece for chunk in self._chunks[begin:] for piece in chunk.pieces):
            own = kept.clamp(min=0).minimum(piece.counts)
            with exact(self._exact):
                state, kept = piece.replayed(state, own), kept - own
        return state

    def extended(self, call: Call, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None) -> tuple[Any, Any]:
        """What the model's call answers, and the state behind it."""
        with recorded() as notes:
            answer, after = call(self.state)
        piece = _piece(notes, self.state, after, build_masks(tokens, lengths, starts), tokens)
        return answer, replace(self, state=after, _chunks=self._with(piece), _exact=self._exact or is_exact())

    def _with(self, piece: _Piece) -> tuple[_Chunk, ...]:
        chunks = list(self._chunks)
        if not chunks or bool((chunks[-1].counts >= self.last).all()):
            chunks.append(_Chunk(self.state, (piece,)))
        else:
            chunks[-1] = _Chunk(chunks[-1].before, (*chunks[-1].pieces, piece))
        while len(chunks) > 1 and bool((torch.stack([chunk.counts for chunk in chunks[1:]]).sum(0) >= self.last).all()):
            del chunks[0]
        return tuple(chunks)

    def _back(self, k: int | Tensor | Sequence[int]) -> Tensor:
        position: Tensor = self.state.position
        back = torch.as_tensor(k, device=position.device)
        if back.is_floating_point() or back.dtype == torch.bool or back.shape not in ((), position.shape):
            raise InputError(f"k={k!r} is not a count of tokens; give one integer, or {len(position)} for the rows")
        back = back.to(torch.int64).expand(position.shape)
        if bool(((back < 0) | (back > self.n_kept)).any()):
            raise InputError(
                f"k={back.tolist()} tokens cannot be taken back where {self.n_kept.tolist()} are kept; "
                "begin with sw.rewindable(state, last=) of as many as you need"
            )
        return back


def rewindable(state: Any, *, last: int) -> RewindableState:
    """The same state, of which up to ``last`` of the tokens that are read from here on can be taken back.

    Errors:  InputError unless ``last`` is at least 1.
    """
    if isinstance(last, bool) or not isinstance(last, int) or last < 1:
        raise InputError(f"last={last!r} is out of range; use an integer of at least 1, in tokens")
    if isinstance(state, RewindableState):
        state = state.state
    return RewindableState(state, last)


@dataclass(frozen=True)
class _Piece:
    """What one call of the model has put into the states. counts: (batch,) its tokens of each row."""

    counts: Tensor
    starts: Tensor
    layers: tuple[Callable[[Any, int, Masks], Any], ...]

    def replayed(self, state: Any, counts: Tensor) -> Any:
        """The state behind the first ``counts[row]`` of its tokens."""
        n = int(counts.max()) if len(counts) else 0
        if n == 0:
            return state
        starts = self.starts[:, :n]
        with torch.no_grad():
            masks = build_masks(starts, counts if bool((counts < n).any()) else None, starts)
            layers = tuple(replay(layer, n, masks) for replay, layer in zip(self.layers, state.layers, strict=True))
        return type(state)(position_behind(state.position, counts, starts)[0], layers)


@dataclass(frozen=True)
class _Chunk:
    """A state, and what came behind it."""

    before: Any
    pieces: tuple[_Piece, ...]

    @property
    def counts(self) -> Tensor:
        return torch.stack([piece.counts for piece in self.pieces]).sum(0)


def _piece(notes: Recording, before: Any, after: Any, masks: Masks, tokens: Tensor) -> _Piece:
    calls = [call for call in notes.calls if isinstance(call.layer, Mixer)]
    layers = tuple(_replay(*trio) for trio in zip(calls, before.layers, after.layers, strict=True))
    batch, length = tokens.shape
    counts = torch.full((batch,), length, device=tokens.device) if masks.lengths is None else masks.lengths
    starts = torch.zeros_like(tokens, dtype=torch.bool) if masks.starts is None else masks.starts
    return _Piece(counts, starts, layers)


def _replay(call: LayerCall, before: Any, after: Any) -> Callable[[Any, int, Masks], Any]:
    """How a layer's state is made again: from the inputs of its recurrences, or where these say not all, by the layer
    from its own input."""
    found = {id(part): replay for part, replay in call.parts}
    if not _covered(before, after, found):
        layer, x = call.layer, call.x.detach()
        return lambda state, n, masks: layer(x[:, :n], state, masks=masks)[1]
    return _part(before, after, found)


def _covered(before: Any, after: Any, found: dict[int, Any]) -> bool:
    if after is before or id(after) in found:
        return True
    return isinstance(after, tuple) and all(_covered(*pair, found) for pair in zip(before, after, strict=True))


def _part(before: Any, after: Any, found: dict[int, Any]) -> Callable[[Any, int, Masks], Any]:
    if after is before:
        return lambda state, n, masks: state
    if id(after) in found:
        replay: Callable[[Any, int, Masks], Any] = found[id(after)]
        return replay
    parts, made = [_part(*pair, found) for pair in zip(before, after, strict=True)], type(after)
    return lambda state, n, masks: made(*[part(one, n, masks) for part, one in zip(parts, state, strict=True)])
