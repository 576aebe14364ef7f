"""What a family of time-invariant operators is with FlashConv's two forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from statewise.kernels.fft_convolution import fft_convolution
from statewise.operators.diagonal import DiagonalLTI
from statewise.operators.masks import NO_MASKS, Masks
from statewise.operators.time_invariant import TimeInvariant
from statewise.reproduce.long_convolution import block_fft_convolution
from statewise.reproduce.long_convolution.state_passing import StatePassing

CHUNK = 4096  # steps in a chunk of ``state_passing``: its FFTs of twice that fit in a core's cache
FORMS = ("block_fft", "state_passing")


class FlashConv(TimeInvariant):
    """What a family of time-invariant operators has these two forms of.

    Forms:   ``block_fft``: the whole sequence at once through the FFT as matrix products
             (:func:`block_fft_convolution`); a state adds what is still seen of it, C A^(k + 1) x. ``state_passing``:
             chunks of 4096 steps by FFT, between which the state is passed on, from rest as from a state. Both are as
             ``convolve`` with systems that grow and with documents; a NaN reaches all of its channel, or its chunk.
    Source:  Fu et al. 2023 (H3), arXiv:2212.14052, sec. 4.1 and 4.2.
    """

    def block_fft(self, u: Tensor, state: Any = None, masks: Masks = NO_MASKS) -> tuple[Tensor, Any]:
        """One convolution of the whole sequence through the block FFT, and the response to the state."""
        return self._by_fft("block_fft", u, state, masks, None, block_fft_convolution)

    def state_passing(self, u: Tensor, state: Any = None, masks: Masks = NO_MASKS) -> tuple[Tensor, Any]:
        """FFT within chunks of thousands of steps, the state between them."""
        return self._by_fft("state_passing", u, state, masks, CHUNK, fft_convolution)

    def _by_fft(
        self, form: str, u: Tensor, state: Any, masks: Masks, chunk: int | None, convolve: Callable[..., Tensor]
    ) -> tuple[Tensor, Any]:
        if masks.starts is not None:
            return self._each_document(form, u, state, masks)
        if u.numel() == 0:
            return u.new_zeros(self._output_shape(u)), state
        taps = u.shape[1] if chunk is None else min(u.shape[1], chunk)
        response = self._bounded_response(taps)
        if response is None:
            return self._in_chunks(u, state, masks)
        dtype = self._state_dtype(u)
        response = response.to(dtype)
        if state is None and taps == u.shape[1]:
            return convolve(u.to(dtype), response).to(u.dtype), None
        y, final = StatePassing(self, u, chunk, convolve).run(response, state, masks)
        return y.to(u.dtype), final


class FlashConvDiagonal(FlashConv, DiagonalLTI):
    """The diagonal system of S4D with the two forms: what is measured."""

    forms: ClassVar[tuple[str, ...]] = (*DiagonalLTI.forms, *FORMS)
