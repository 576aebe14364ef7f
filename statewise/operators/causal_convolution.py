"""Convolution with a finite causal filter: Mamba's short convolution, H3's shift SSM, filters as long as the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.exact import is_exact, of_parameters
from statewise.kernels.exact.convolution import convolve_exactly
from statewise.kernels.fft_convolution import fft_convolution
from statewise.kernels.short_convolution import short_convolution_unchecked
from statewise.operators.base import Operator, check_dtypes
from statewise.operators.documents import document_rows
from statewise.operators.masks import NO_MASKS, Masks, mask_time
from statewise.operators.plan import Rule, otherwise
from statewise.operators.state_shape import leaf
from statewise.precision import as_dtype, full_precision


class ConvolutionState(NamedTuple):
    """inputs: (batch, n_taps - 1, width, *trailing), the last inputs, oldest first; zero before the document."""

    inputs: Tensor


@dataclass(frozen=True, eq=False)
class CausalConvolution(Operator):
    """y_t = sum_{i < n_taps} taps_i u_{t-i}; the state is a shift register of the last n_taps - 1 inputs.

    Shapes:  taps: (width, n_taps)   u: (batch, length, width, *trailing)
    Forms:   ``recurrent``; ``direct``, O(length width n_taps), one pass for each tap; ``fft``,
             O(length width log n_taps), whose rounding error is relative to the largest value of the row, and where a
             NaN spoils the steps around it (:func:`statewise.kernels.fft_convolution.fft_convolution`). Packed
             documents become rows of their own.
    Errors:  InputError for shapes that do not fit, and for taps or u that are not real floating-point numbers.
    """

    taps: Tensor
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "direct", "fft")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "direct",
            "n_taps <= 16 or length <= 8",
            lambda length, n_taps: n_taps <= 16 or length <= 8,
            "one multiply-add over the sequence for each tap",
        ),
        otherwise("fft", "O(log n_taps) for each step instead of O(n_taps)"),
    )

    exact_form: ClassVar[str] = "direct"

    @classmethod
    def from_shift(cls, B: Tensor, C: Tensor, D: Tensor | None = None) -> CausalConvolution:
        """H3's shift SSM: A moves the state down by one place, so its filter is taps_i = sum_n C[n + i] B[n], plus D in
        the first tap.

        Shapes:  B, C: (width, n)   D: (width,), the skip   ->   n taps
        Cost:    O(width n log n): the filter is itself a causal convolution, of B with the reversed C.
        Source:  Fu et al. 2023 (H3), arXiv:2212.14052, sec. 3.1.
        """
        if B.ndim != 2 or B.shape != C.shape or B.numel() == 0:
            raise InputError(
                "a shift SSM needs B and C of one shape (width, n), neither of them 0; "
                f"got {tuple(B.shape)}, {tuple(C.shape)}"
            )
        dtypes = [m.dtype for m in (B, C, D) if m is not None]
        if len(set(dtypes)) > 1 or not B.is_floating_point():
            raise InputError(
                "a shift SSM needs real, floating-point B and C, and D if given, of one dtype; "
                f"got {', '.join(map(str, dtypes))}"
            )
        if D is not None and D.shape != B.shape[:1]:
            raise InputError(
                f"a shift SSM of width {B.shape[0]} needs its skip D ({B.shape[0]},); got {tuple(D.shape)}"
            )
        with of_parameters():
            taps = fft_convolution(C.flip(1).mT.unsqueeze(0), B).squeeze(0).flip(0).mT
        return cls(taps if D is None else taps + F.pad(D.unsqueeze(1), (0, B.shape[1] - 1)))

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.taps.shape[0],)

    def _like(self) -> Tensor:
        return self.taps

    def _n_taps(self) -> int:
        return self.taps.shape[1]

    def _check(self, u: Tensor) -> None:
        if self.taps.ndim != 2 or self.taps.shape[1] < 1:
            raise InputError(f"CausalConvolution needs taps (width, n_taps >= 1); got {tuple(self.taps.shape)}")
        check_dtypes("CausalConvolution", u, taps=self.taps)
        if self.taps.is_complex():
            raise InputError(f"CausalConvolution needs real taps; got {self.taps.dtype}")
        if u.ndim < 3 or u.shape[2] != self.taps.shape[0]:
            raise InputError(
                f"CausalConvolution of width {self.taps.shape[0]} needs u (batch, length, {self.taps.shape[0]}, ...); "
                f"got {tuple(u.shape)}"
            )

    def state_shape(self, trailing: tuple[int, ...] = ()) -> ConvolutionState:
        width, n_taps = self.taps.shape
        return ConvolutionState(leaf(n_taps - 1, width, *trailing))

    def step(self, u: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        past = torch.cat([state.inputs, u.unsqueeze(1).to(state.inputs.dtype)], 1)
        weight = self.taps.to(past.dtype).flip(1).mT.reshape(1, *self.taps.shape[::-1], *[1] * (u.ndim - 2))
        return (weight * past).sum(1).to(u.dtype), ConvolutionState(past[:, 1:])

    def direct(
        self, u: Tensor, state: ConvolutionState | None, masks: Masks = NO_MASKS
    ) -> tuple[Tensor, ConvolutionState | None]:
        """Every input times its taps, in one pass."""
        taps, history = self.taps.to(full_precision(u.dtype, self.taps.dtype)), self.history(u, state)
        y, u, history = convolve(u, taps, history, masks.segments, bias=None, activation=None)
        return y.to(u.dtype), self.following(u, history, state, masks)

    def history(self, u: Tensor, state: ConvolutionState | None) -> Tensor:
        """The inputs before u, in the dtype to compute in."""
        dtype = full_precision(u.dtype, self.taps.dtype)
        if state is None:
            state = self.initial_state(u.shape[0], trailing=self._trailing(u), device=u.device, dtype=dtype)
        return as_dtype(state.inputs, dtype)

    def following(
        self, u: Tensor, history: Tensor, state: ConvolutionState | None, masks: Masks
    ) -> ConvolutionState | None:
        """The state after u, in the dtype of the state before; None if there was none."""
        if state is None:
            return None
        last = last_inputs(as_dtype(u, history.dtype), history, masks)
        return ConvolutionState(as_dtype(last, state.inputs.dtype))

    def fft(
        self, u: Tensor, state: ConvolutionState | None, masks: Masks = NO_MASKS
    ) -> tuple[Tensor, ConvolutionState | None]:
        """The convolution by FFT, with the state as the history before the first step."""
        dtype = full_precision(u.dtype, self.taps.dtype)
        taps = self.taps.to(dtype)
        if state is None:  # the convolution widens its inputs itself, where it has to
            x, history = u, None
        else:
            x, history = u.to(dtype), state.inputs.to(dtype)
        if masks.starts is None:
            y = fft_convolution(x, taps, history)
        else:
            y = _each_document(x, taps, history, masks)
        return y.to(u.dtype), None if history is None else self.following(x, history, state, masks)


def convolve(
    u: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None, *, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """f(bias + taps * u); u and the history, for the state behind them to be made of."""
    if is_exact():
        return convolve_exactly(u, taps, history, segments, bias=bias, activation=activation)
    return short_convolution_unchecked(u, taps, history, segments, bias=bias, activation=activation), u, history


def last_inputs(x: Tensor, history: Tensor, masks: Masks) -> Tensor:
    """The last inputs of each row, as many as ``history`` (batch, n, ...) holds from before x, oldest first; zero where
    they are from before its document."""
    n_kept = history.shape[1]
    if x.shape[1] == 0 or n_kept == 0:
        return history
    if masks.lengths is None and masks.segments is None and x.shape[1] >= n_kept:
        return x[:, x.shape[1] - n_kept :].clone()
    past = torch.cat([history, x], 1)
    if masks.lengths is None:
        kept = past[:, x.shape[1] :]
        last = None if masks.segments is None else masks.segments[:, -1:]
    else:
        index = masks.lengths[:, None] + torch.arange(n_kept, device=x.device)  # into past
        kept = past.gather(1, index.reshape(*index.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:]))
        last = None if masks.segments is None else masks.segments.amax(1, keepdim=True)
    if masks.segments is None or last is None:
        return kept
    ids = torch.cat([masks.segments.new_zeros(x.shape[0], n_kept), masks.segments], 1)
    ids = ids[:, x.shape[1] :] if masks.lengths is None else ids.gather(1, index)
    return kept.masked_fill((ids != last).reshape(*ids.shape, *[1] * (x.ndim - 2)), 0)  # NaN of before is gone too


def _each_document(x: Tensor, taps: Tensor, history: Tensor | None, masks: Masks) -> Tensor:
    """The FFT convolution of each document as a row of its own; the history belongs to those that go on."""
    batch, length = x.shape[:2]
    steps = x.flatten(0, 1)
    y = torch.zeros_like(steps)
    for rows in document_rows(masks, batch, length):
        if rows.places.shape[1] == 0:
            continue
        document = mask_time(steps[rows.places], rows.valid)
        before = None
        if history is not None:
            before = history[rows.row].masked_fill(~rows.continues.reshape(-1, *[1] * (x.ndim - 1)), 0)
        y = y.index_put((rows.places[rows.valid],), fft_convolution(document, taps, before)[rows.valid])
    return y.unflatten(0, (batch, length))
