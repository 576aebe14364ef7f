"""What all time-invariant systems share: convolution with the impulse response, and chunks that pass the state on."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.errors import InputError
from statewise.kernels.batching import whole
from statewise.kernels.fft_convolution import fft_convolution
from statewise.operators.base import Operator, check_dtypes
from statewise.operators.folding import fold, is_any
from statewise.operators.masks import NO_MASKS, Masks
from statewise.operators.plan import Plan, otherwise
from statewise.precision import exactly, full_precision

BLOCK = 64  # steps in a chunk: about the order of the states, so that inputs and states cost alike
EXPORTED_BLOCK = 32  # where the length is not known, and the matrices of a chunk are written to a file
# From the first to the last quarter of the impulse response: beyond it the rounding of an FFT, relative to the largest
# value, drowns the first outputs in float32.
GROWTH = 1e3
FEW = "fewer operations than the powers of A that the chunks need"
CONVOLVE = otherwise(
    "convolve", "from rest one FFT convolution, from a state chunks of matrix products: near-linear in length"
)


class Block(NamedTuple):
    """T steps of a system as matrices over real numbers, for an order of n.

    response: (w, T + n, p T), from T inputs and the state before them to T outputs (p of them a step)
    reach:    (w, T, n), from T inputs to what they add to the state behind them
    powers:   A^1, A^2, A^4 ... A^T in the family's own form
    """

    response: Tensor
    reach: Tensor
    powers: tuple[Tensor, ...]


class TimeInvariant(Operator):
    """x_t = A x_{t-1} + B u_t, y_t = C x_t, the same at every step.

    Shapes:  u: (batch, length, w, *trailing)  ->  y: the same, or (batch, length, w, p, *trailing) if C is (w, p, n):
             p outputs of one state.
    Forms:   ``convolve``: without a state, one FFT convolution with the impulse response of the whole length; with a
             state, chunks of 64 steps as matrix products, between which the state is passed on, so that a signal of any
             length streams in bounded memory. Rows that hold several documents are laid out one document a row.
             A system that grows (the last quarter of its impulse response is 1000 times larger than the first, or not
             finite) goes in chunks from rest too, since an FFT rounds relative to the largest value; that is looked at
             on a CPU only, and not while compiling, and right as long as A^64 is finite. A diagonal system with |A|
             at most 1 does not grow.
             A NaN or an infinity in u reaches earlier outputs too: by FFT all of its channel in the row (in the
             document, if they are packed), in chunks those of its 64 steps. ``recurrent`` keeps it in its place.
    Source:  Gu et al. 2021 (LSSL), arXiv:2110.13985, sec. 3.
    """

    forms: ClassVar[tuple[str, ...]] = ("recurrent", "convolve")
    C: Tensor

    @abc.abstractmethod
    def impulse_response(self, length: int) -> Tensor:
        """C A^k B for k = 0 ... length - 1: (w, [p,] length), real; InputError for a negative length."""

    @abc.abstractmethod
    def _block(self, length: int, dtype: torch.dtype) -> Block:
        """``length`` steps (a power of two) as matrices."""

    @abc.abstractmethod
    def _advance(self, h: Tensor, power: Tensor) -> Tensor:
        """A power of A, as ``Block.powers`` has it, times states h (w, ..., n) over real numbers."""

    @abc.abstractmethod
    def _flat(self, state: Any) -> Tensor:
        """A state as (batch, w, *trailing, n) over real numbers."""

    @abc.abstractmethod
    def _state(self, flat: Tensor) -> Any:
        """The inverse of ``_flat``."""

    def prepare(self) -> Self:
        """The same operator, detached, that keeps what does not depend on the input once it has been computed.

        For decoding: without it every call computes its matrices again, which is right while they are being learned.
        """
        prepared = super().prepare()
        object.__setattr__(prepared, "_kept", {})
        return prepared

    def __getitem__(self, times: slice) -> Self:
        super().__getitem__(times)  # refuses what is no slice
        return self

    def convolve(self, u: Tensor, state: Any = None, masks: Masks = NO_MASKS) -> tuple[Tensor, Any]:
        """By FFT from rest, by chunks from a state."""
        if masks.starts is not None:
            return self._each_document("convolve", u, state, masks)
        if u.numel() == 0:
            return u.new_zeros(self._output_shape(u)), state
        if is_any(u.shape[1]):
            return self._in_loop(u, state, masks)
        response = None if state is not None else self._bounded_response(u.shape[1])
        if response is None:
            return self._in_chunks(u, state, masks)
        return fft_convolution(u, response.to(self._state_dtype(u))), None

    def _bounded_response(self, taps: int) -> Tensor | None:
        """The impulse response; None if the system is seen to grow."""
        response = self._keep(("impulse_response", taps), lambda: self.impulse_response(taps))
        looked_at = response.device.type == "cpu" and not torch.compiler.is_compiling()
        return None if looked_at and self._grows(response) else response

    def _in_chunks(self, u: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        """From a state to a state, or from rest."""
        if state is not None:
            return self._chunks(u, state, masks)
        trailing, dtype = self._trailing(u), self._state_dtype(u)
        rest = self.initial_state(u.shape[0], trailing=trailing, device=u.device, dtype=dtype)
        return self._chunks(u, rest, masks)[0], None

    def _why(self, chosen: Plan, u: Tensor, state: Any) -> str:
        if chosen.form != "convolve":
            return chosen.reason
        if state is not None:
            return "from a state chunks of matrix products, the state passed on between them: linear in length"
        if u.device.type == "cpu" and self._grows(self.impulse_response(u.shape[1])):
            return "chunks of matrix products: the system grows, and an FFT rounds relative to the largest value"
        return "from rest one FFT convolution: near-linear in length"

    def _chunks(self, u: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        """Matrix products within chunks of T steps, the state carried from each to the next."""
        batch, length, w = u.shape[:3]
        dtype = self._state_dtype(u)
        flat = self._flat(state).to(dtype)
        n, r = flat.shape[-1], u[0, 0, 0].numel()
        T = min(BLOCK, 1 << (length - 1).bit_length())
        block = self._kept_block(T, dtype)
        x = F.pad(u.to(dtype).reshape(batch, length, w * r), (0, 0, 0, -length % T))
        x = x.reshape(batch, -1, T, w, r).permute(3, 0, 1, 4, 2)  # (w, batch, chunks, r, T)
        n_chunks = x.shape[2]
        h = flat.reshape(batch, w, r, n).transpose(0, 1)
        added = exactly(torch.matmul, x.reshape(w, -1, T), block.reach).reshape(w, batch, n_chunks, r, n)
        states = self._carry(h, added, block.powers[-1])  # (w, batch, chunks + 1, r, n)
        joined = torch.cat([x, states[:, :, :-1]], -1).reshape(w, -1, T + n)
        y = exactly(torch.matmul, joined, block.response).reshape(w, batch, n_chunks, r, -1, T)
        y = y.permute(1, 2, 5, 0, 4, 3).reshape(batch, n_chunks * T, *self._output_shape(u)[2:])[:, :length]
        final = self._final(x, states, block, length, masks.lengths)
        final = final.transpose(0, 1).reshape(flat.shape)
        return y.to(u.dtype), pytree.tree_map(lambda a, b: a.to(b.dtype), self._state(final), state)

    def _in_loop(self, u: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        """The same chunks one after the other, all of each in one step of a loop: for a program of any length."""
        batch, length, w = u.shape[:3]
        trailing, dtype, T = self._trailing(u), self._state_dtype(u), EXPORTED_BLOCK
        rest = self.initial_state(batch, trailing=trailing, device=u.device, dtype=dtype) if state is None else state
        flat, r = self._flat(rest).to(dtype), math.prod(trailing)
        block = self._kept_block(T, dtype)
        x = F.pad(u.to(dtype).reshape(batch, length, w * r), (0, 0, 0, -length % T)).reshape(batch, -1, T, w, r)

        def step(h: list[Tensor], chunk: list[Tensor], block: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            (response, reach, power), x = block, chunk[0].permute(2, 0, 3, 1)  # (w, batch, r, T)
            y = exactly(torch.matmul, torch.cat([x, h[0]], -1).flatten(1, 2), response)
            added = exactly(torch.matmul, x.flatten(1, 2), reach).reshape(h[0].shape)
            return [self._advance(h[0], power) + added], [y, h[0]]

        h = flat.reshape(batch, w, r, -1).transpose(0, 1)
        (after,), (y, before) = fold(step, [h], [x], [block.response, block.reach, block.powers[-1]])
        y = y.reshape(w, -1, batch, r, y.shape[-1] // T, T).permute(2, 1, 5, 0, 4, 3)
        y = y.reshape(batch, -1, *self._output_shape(u)[2:])[:, :length].to(u.dtype)
        if state is None:
            return y, None
        states = torch.cat([before, after.unsqueeze(1)], 1).transpose(1, 2)  # (w, batch, chunks + 1, r, n)
        lengths = torch.full((batch,), length, device=u.device) if masks.lengths is None else masks.lengths
        final = self._final(x.permute(3, 0, 1, 4, 2), states, block, length, lengths).transpose(0, 1)
        return y, pytree.tree_map(lambda a, b: a.to(b.dtype), self._state(final.reshape(flat.shape)), state)

    def _kept_block(self, length: int, dtype: torch.dtype) -> Block:
        """:meth:`_block`, or of a prepared operator the one that was kept."""
        block: Block = self._keep(("block", length, dtype), lambda: self._block(length, dtype))
        return block

    def keep_for_any_length(self) -> None:
        """For a prepared operator, before it is exported for any length: keeps what does not depend on the input."""
        self._kept_block(EXPORTED_BLOCK, full_precision(self._like().dtype))

    def _carry(self, h: Tensor, added: Tensor, power: Tensor) -> Tensor:
        """The states before each chunk and behind the last: (w, batch, chunks + 1, r, n)."""
        states = [h]
        for chunk in added.unbind(2):
            states.append(self._advance(states[-1], power) + chunk)
        return torch.stack(states, 2)

    def _final(self, x: Tensor, states: Tensor, block: Block, length: int, lengths: Tensor | None) -> Tensor:
        """The state behind each row's last real step, (w, batch, r, n): whole chunks, then what is left of the next."""
        T = x.shape[-1]
        if lengths is None:
            whole, left = divmod(length, T)
            h = states[:, :, whole]
            if left == 0:
                return h
            for i, power in enumerate(block.powers):
                if left >> i & 1:
                    h = self._advance(h, power)
            aligned = F.pad(x[:, :, whole, :, :left], (T - left, 0))
        else:
            n_whole = lengths // T
            remaining = lengths - n_whole * T
            rows = torch.arange(lengths.shape[0], device=x.device)
            h = states[:, rows, n_whole]
            bits = remaining
            for power in block.powers:
                moved = self._advance(h, power)
                h = torch.where((bits - bits // 2 * 2 == 1)[:, None, None], moved, h)
                bits = bits // 2
            place = torch.arange(T, device=x.device) - (T - remaining[:, None])
            chunk = x[:, rows, n_whole.clamp(max=x.shape[2] - 1)]
            index = place.clamp(min=0)[None, :, None, :].expand(chunk.shape)
            aligned = chunk.gather(-1, index).masked_fill((place < 0)[:, None, :], 0)
        w, batch, r, n = h.shape
        return h + exactly(torch.matmul, aligned.reshape(w, -1, T), block.reach).reshape(w, batch, r, n)

    def _grows(self, response: Tensor) -> bool:
        size = response.detach().abs()
        quarter = max(1, size.shape[-1] // 4)
        first, last = size[..., :quarter].amax(-1), size[..., -quarter:].amax(-1)
        return not bool(whole(last.isfinite() & (last <= GROWTH * first)).all())

    def _no_taps(self, length: int) -> Tensor:
        """The impulse response of a length of 0."""
        if length < 0:
            raise InputError(f"impulse_response needs length >= 0; got {length}")
        like = self._like()
        return torch.zeros(*self.C.shape[:-1], 0, dtype=full_precision(like.dtype), device=like.device)

    def _output_shape(self, u: Tensor) -> tuple[int, ...]:
        return output_shape(self.C, u)

    def _keep(self, key: Any, compute: Any) -> Any:
        """The value, or of a prepared operator the one that was kept."""
        kept = vars(self).get("_kept")
        if kept is None:
            return compute()
        if key not in kept:
            with torch.inference_mode(False), torch.no_grad():  # a tensor of inference mode could serve nothing else
                value = compute()
            kept = dict(vars(self)["_kept"])  # a dictionary that is there is never changed: other threads may read it
            if key[0] == "impulse_response":  # one for each length would grow without end
                kept = {k: v for k, v in kept.items() if k[0] != "impulse_response"}
            kept[key] = value
            object.__setattr__(self, "_kept", kept)
        return kept[key]

    def _check_input(self, u: Tensor, width: int, **coefficients: Tensor) -> None:
        name = type(self).__name__
        check_dtypes(name, u, **coefficients)
        if u.ndim < 3 or u.shape[2] != width:
            raise InputError(f"{name} of width {width} needs u (batch, length, {width}, ...); got {tuple(u.shape)}")


def output_shape(C: Tensor, u: Tensor) -> tuple[int, ...]:
    """C (w, [p,] n) and u (batch, length, w, *trailing) -> (batch, length, w, [p,] *trailing)."""
    return (*u.shape[:3], *C.shape[1:-1], *u.shape[3:])


def by_outputs(C: Tensor) -> Tensor:
    """C (w, [p,] n) -> (w, p, n)."""
    return C if C.ndim == 3 else C.unsqueeze(1)


def double(first: Tensor, powers: tuple[Tensor, ...], apply: Any, dim: int) -> Tensor:
    """first, A first, A^2 first ... along ``dim``: 2^len(powers) of them, each power doubling what is there."""
    rows = first
    for power in powers:
        rows = torch.cat([rows, apply(rows, power)], dim)
    return rows


def toeplitz(response: Tensor) -> Tensor:
    """(w, p, T) -> (w, T, p T): the causal convolution with the first T taps as a matrix from inputs to outputs."""
    w, p, T = response.shape
    time = torch.arange(T, device=response.device)
    lag = time[None, :] - time[:, None]  # (input, output)
    matrix = response[..., lag.clamp(min=0)].masked_fill(lag < 0, 0)
    return matrix.transpose(1, 2).reshape(w, T, p * T)
