"""Several steps of a signal read as one: fewer, wider steps for the layers, and no sample lost between two calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.batching import whole
from statewise.operators.masks import NO_MASKS, Masks, length_masks, mask_time
from statewise.operators.state_shape import COUNT, check_state, leaf


class FrameState(NamedTuple):
    """samples: (batch, frame_length - 1, d_input), those that no whole frame has come of yet, oldest first, zeros
    behind them; n_samples: (batch,) int64, how many they are.
    """

    samples: Tensor
    n_samples: Tensor


def initial_frame_state(batch: int, frame_length: int, d_input: int, like: Tensor) -> FrameState:
    """Nothing read yet, on the device of ``like``, in its dtype (float32 or wider)."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    samples = torch.zeros(batch, frame_length - 1, d_input, device=like.device, dtype=dtype)
    return FrameState(samples, torch.zeros(batch, dtype=torch.int64, device=like.device))


def check_frame_state(name: str, state: Any, x: Tensor, frame_length: int) -> None:
    """InputError unless the state is that of a model ``name`` with this frame length, () where that is 1.

    What it holds costs one wait for the device, and nothing in compiled code.
    """
    if frame_length == 1:
        if not (isinstance(state, tuple) and len(state) == 0):
            raise InputError(
                f"SequenceState.frames is a {type(state).__name__}, but the model has frame_length=1 and no frames; "
                "begin with this model's initial_state(batch)"
            )
        return
    check_state(
        name, state, FrameState(leaf(frame_length - 1, x.shape[2]), COUNT), x.shape[0], x.device, "state.frames"
    )
    if torch.compiler.is_compiling() or x.is_meta or not len(x):
        return
    low, high = torch.stack(whole(state.n_samples).aminmax()).tolist()
    if low < 0 or high >= frame_length:
        raise InputError(
            f"the state is damaged: state.frames.n_samples has {low}..{high}, expected 0..{frame_length - 1} for "
            f"frame_length={frame_length}; begin with initial_state(batch), or with an undamaged copy"
        )


def frames(
    x: Tensor, frame_length: int, state: FrameState | None, lengths: Tensor | None
) -> tuple[Tensor, Masks, FrameState | None]:
    """x (batch, length, d) -> frames (batch, n_frames, frame_length * d), their masks, and the state behind x.

    Samples that do not fill a frame wait in the state for the next call; without a state they are not read. So any cut
    of a signal gives the same frames.
    """
    batch, length, d = x.shape
    if state is None:
        n_whole = length // frame_length
        framed = x[:, : n_whole * frame_length].reshape(batch, n_whole, frame_length * d)
        if lengths is None:
            return framed, NO_MASKS, None
        # the samples of a row's last, unfinished frame are real; its other places may hold anything
        masks = length_masks(n_whole, lengths // frame_length)
        return mask_time(framed, masks.valid), masks, None
    kept = frame_length - 1
    real = torch.full((batch,), length, device=x.device) if lengths is None else lengths
    time = torch.arange(length, device=x.device)
    x = mask_time(x, time < real[:, None])
    total = state.n_samples + real
    joined = torch.cat([state.samples.to(x.dtype), x], 1)
    place = torch.arange(kept + length, device=x.device)
    before = state.n_samples[:, None]
    source = torch.where(place < before, place, place + kept - before).clamp(max=kept + length - 1)
    joined = _take(joined, source)
    joined = mask_time(joined, place < total[:, None])
    n_frames, most = total // frame_length, (kept + length) // frame_length
    framed = joined[:, : most * frame_length].reshape(batch, most, frame_length * d)
    masks = length_masks(most, n_frames)
    left = torch.arange(kept, device=x.device)
    rest = _take(joined, (n_frames[:, None] * frame_length + left).clamp(max=max(kept + length - 1, 0)))
    n_left = total - n_frames * frame_length
    rest = mask_time(rest, left < n_left[:, None])
    return mask_time(framed, masks.valid), masks, FrameState(rest.to(state.samples.dtype), n_left)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (batch, time, d) at times (batch, n), or (n,) for all rows."""
    return x.gather(1, index.expand(x.shape[0], -1)[..., None].expand(-1, -1, x.shape[2]))
