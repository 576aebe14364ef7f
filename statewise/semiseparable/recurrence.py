"""h_t = a_t h_{t-1} + x_t for all t at once: the one primitive under every structured product here."""

from __future__ import annotations

import torch
from torch import Tensor


def recurrence(gains: Tensor, inputs: Tensor) -> Tensor:
    """Elementwise linear recurrence from rest, time first: h_0 = x_0, h_t = a_t h_{t-1} + x_t.

    Two steps compose into one (a_t a_{t-1}, a_t x_{t-1} + x_t), so the odd times form a recurrence of half the
    length; once they are known, each even time is one step from its neighbour.

    Shapes:  gains: (T - 1, ...), a_1 to a_{T-1}   inputs: (T, ...)   ->   h: (T, ...), the trailing axes broadcast
    Cost:    O(T) multiplications for each trailing element, in about 2 log2(T) rounds of tensor operations
    Numerics: only sums and products, so zero and negative gains are exact cases, not limits. Products of
              neighbouring gains are formed and have to be representable; those that underflow become zero.
    Source:  cyclic reduction; Blelloch (1990), "Prefix sums and their applications".
    """
    length = inputs.shape[0]
    if length == 1:
        return inputs
    odd_gains, even_gains = gains[0::2], gains[1::2]  # a_1, a_3, ... and a_2, a_4, ...
    even_inputs, odd_inputs = inputs[0::2], inputs[1::2]
    n_odd = odd_inputs.shape[0]
    odd = recurrence(
        odd_gains[1:] * even_gains[: n_odd - 1],
        odd_gains * even_inputs[:n_odd] + odd_inputs,
    )
    even = torch.cat([even_inputs[:1].expand_as(odd[:1]), even_gains * odd[: even_gains.shape[0]] + even_inputs[1:]])
    pairs = torch.stack([even[:n_odd], odd], dim=1).flatten(0, 1)
    return torch.cat([pairs, even[n_odd:]])
