"""FlashConv's state passing: a convolution within chunks of thousands of steps, and between them only the state.

    y^(c) = M_xy x^(c-1) + f * u^(c)        row k of M_xy:    C A^(k+1)
    x^(c) = A^T x^(c-1) + M_ux u^(c)        column k of M_ux: A^(T-1-k) B

T steps in a chunk, x^(c) the state behind chunk c, f the impulse response, with a skip D in f_0 where there is one.
M_xy and M_ux are not made: with T of thousands they have T numbers for each number of the state. A stretch of S = 64
steps has its own two matrices, the same for all, and between stretches the state moves by A^S, A^2S, A^4S ...: to each
beginning by doubling, and to the end by adding neighbours in pairs.

Source: Fu et al. 2023 (H3), arXiv:2212.14052, sec. 4.2 and algorithm 2; k counts from 0 here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.kernels.vandermonde.powers import rounded_squares
from statewise.operators.masks import Masks
from statewise.operators.time_invariant import TimeInvariant
from statewise.precision import exactly

STRETCH = 64  # steps that a matrix product takes at once, in M_xy and M_ux
Convolution = Callable[[Tensor, Tensor], Tensor]


class StatePassing:
    """One call of an operator on u (batch, length, w, ...), in chunks of ``chunk`` steps (a power of two) or in one."""

    def __init__(self, op: TimeInvariant, u: Tensor, chunk: int | None, convolve: Convolution) -> None:
        self.op, self.convolve, self.dtype = op, convolve, op._state_dtype(u)
        self.batch, self.length, self.w = u.shape[:3]
        self.r = u[0, 0, 0].numel()
        self.output_shape = op._output_shape(u)
        self.u = u.to(self.dtype)
        whole = 1 << (self.length - 1).bit_length()
        self.chunk = whole if chunk is None else min(chunk, whole)
        self.stretch = min(STRETCH, self.chunk)
        self.n_chunks = -(-self.length // self.chunk)
        self.block = op._keep(("block", self.stretch, self.dtype), lambda: op._block(self.stretch, self.dtype))
        self.powers = op._keep(("powers", self.chunk, self.dtype), self._powers)

    def run(self, response: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        """response: (w, [p,] taps), taps as many as a chunk has steps, or the sequence if that is shorter."""
        y = self._within_chunks(response)
        if state is None and self.n_chunks == 1:
            return y, None
        before = self._states_before(state)  # (w, b, chunks, r, n)
        known = 0 if state is not None else 1  # from rest the first chunk hears of no state
        heard = F.pad(self._observe(before[:, :, known:]), (0, 0, 0, 0, 0, 0, known * self.chunk, 0))
        y = y + heard[:, : self.length].reshape(self.output_shape)
        if state is None:
            return y, None
        final = self._final(before, masks.lengths).transpose(0, 1).reshape(self._flat(state).shape)
        return y, pytree.tree_map(lambda a, b: a.to(b.dtype), self.op._state(final), state)

    def _within_chunks(self, response: Tensor) -> Tensor:
        """f * u^(c), each chunk a row of the batch."""
        if self.n_chunks == 1:
            return self.convolve(self.u, response)
        u = self._padded(self.u.reshape(self.batch, self.length, -1), self.n_chunks * self.chunk)
        u = u.reshape(self.batch * self.n_chunks, self.chunk, *self.u.shape[2:])
        y = self.convolve(u, response)
        return y.reshape(self.batch, -1, *self.output_shape[2:])[:, : self.length]

    def _states_before(self, state: Any) -> Tensor:
        """x^(c-1) for each chunk c: (w, b, chunks, r, n)."""
        n = self.block.reach.shape[-1]
        if state is None:
            h = self.u.new_zeros(self.w, self.batch, self.r, n)
        else:
            h = self._flat(state).to(self.dtype).reshape(self.batch, self.w, self.r, n).transpose(0, 1)
        states = [h]
        if self.n_chunks > 1:
            before_last = self.u[:, : (self.n_chunks - 1) * self.chunk]
            x = before_last.reshape(self.batch, self.n_chunks - 1, self.chunk, self.w, self.r)
            for added in self._reach(x.permute(3, 0, 1, 4, 2)).unbind(2):
                states.append(self.op._advance(states[-1], self.powers[-1]) + added)
        return torch.stack(states, 2)

    def _reach(self, x: Tensor) -> Tensor:
        """M_ux: inputs (w, ..., r, T) -> the state that they leave behind, from rest, (w, ..., r, n)."""
        x = x.unflatten(-1, (-1, self.stretch)).movedim(-2, -3)  # (w, ..., stretches, r, S)
        added = exactly(torch.matmul, x.reshape(self.w, -1, self.stretch), self.block.reach)
        added = added.reshape(*x.shape[:-1], self.block.reach.shape[-1])
        for power in self.powers[self.stretch.bit_length() - 1 :]:
            if added.shape[-3] == 1:
                break
            if added.shape[-3] % 2:  # a stretch of nothing before the first
                added = F.pad(added, (0, 0, 0, 0, 1, 0))
            first, second = added.unflatten(-3, (-1, 2)).unbind(-3)
            added = self.op._advance(first, power) + second
        return added.squeeze(-3)

    def _observe(self, states: Tensor) -> Tensor:
        """M_xy: states (w, b, chunks, r, n) before chunks -> what is seen of them in these, (b, time, w, p, r)."""
        rows, steps = states.unsqueeze(3), min(self.chunk, self.length)
        for power in self.powers[self.stretch.bit_length() - 1 :]:
            if rows.shape[3] * self.stretch >= steps:
                break
            rows = torch.cat([rows, self.op._advance(rows, power)], 3)
        w, b, n_chunks, n_stretches, r, n = rows.shape
        seen = exactly(
            torch.matmul, rows.reshape(w, b * n_chunks * n_stretches * r, n), self.block.response[:, self.stretch :]
        )
        seen = seen.reshape(w, b, n_chunks, n_stretches, r, -1, self.stretch).permute(1, 2, 3, 6, 0, 5, 4)
        return seen.reshape(b, -1, w, seen.shape[5], r)

    def _final(self, before: Tensor, lengths: Tensor | None) -> Tensor:
        """The state behind each row's last real step, (w, b, r, n): from the state before the chunk that holds it."""
        T, last = self.chunk, self.n_chunks - 1
        window = -(-min(T, self.length) // self.stretch) * self.stretch
        u = self.u.reshape(self.batch, self.length, self.w, self.r)
        if lengths is None:
            left = self.length - last * T
            h = before[:, :, last]
            for i, power in enumerate(self.powers):
                if left >> i & 1:
                    h = self.op._advance(h, power)
            aligned = F.pad(u[:, last * T :].permute(2, 0, 3, 1), (-left % self.stretch, 0))
            return h + self._reach(aligned)
        which = ((lengths - 1).clamp(min=0) // T).to(torch.int64)
        remaining = lengths - which * T
        h = before[:, torch.arange(self.batch, device=u.device), which]
        for i, power in enumerate(self.powers):
            h = torch.where((remaining >> i & 1).bool()[:, None, None], self.op._advance(h, power), h)
        place = torch.arange(window, device=u.device) - (window - remaining[:, None])  # within the chunk
        index = ((which * T)[:, None] + place).clamp(min=0)[..., None, None].expand(-1, -1, self.w, self.r)
        aligned = u.gather(1, index).masked_fill((place < 0)[..., None, None], 0)
        return h + self._reach(aligned.permute(2, 0, 3, 1))

    def _powers(self) -> tuple[Tensor, ...]:
        """A, A^2, A^4 ... A^T as ``Block.powers`` has them."""
        powers, count = list(self.block.powers), self.chunk.bit_length()
        if powers[0].ndim == 2:  # diagonal (w, n)
            return rounded_squares(powers[0], count)
        while len(powers) < count:
            powers.append(exactly(torch.matmul, powers[-1], powers[-1]))
        return tuple(powers)

    def _flat(self, state: Any) -> Tensor:
        return self.op._flat(state)

    @staticmethod
    def _padded(u: Tensor, length: int) -> Tensor:
        return u if u.shape[1] == length else F.pad(u, (0, 0, 0, length - u.shape[1]))
