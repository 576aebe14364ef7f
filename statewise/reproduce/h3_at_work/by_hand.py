"""An H3 layer with weights set by hand, which looks values up by their keys: a3b5a? gives 3.

Every weight is zero or one, so that each step of the mechanism can be read off:

    K = e_key of the token, or 0       Q = e_key of the token, or 0        V = e_value of the token, or 0
    store the key     K'_t = K_{t-1}: the shift SSM has one tap, a step back
    store the value   S_t = S_{t-1} + K'_t V_t^T: where a value follows a key, the pair enters the state
    recall            o_t = S_t^T Q_t: the row of the state that belongs to the key
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.insight import Signals
from statewise.operators.causal_convolution import CausalConvolution
from statewise.operators.diagonal import DiagonalLTI

KEYS = "abcd"
VALUES = "12345"
OTHERS = ".?"  # tokens that are neither


@dataclass(frozen=True, kw_only=True)
class Trace(Signals):
    """The signals of the layer that is set by hand, step by step; times are those of ``text``.

    Shapes:  Q, K, shifted: (length, n_keys)   V, output: (length, n_values)
             entering, state: (length, n_keys, n_values)
    """

    text: str

    @property
    def answer(self) -> str:
        """The value that the last step gives most to; "" where it gives nothing."""
        last = self.output[-1]
        return VALUES[int(last.argmax())] if float(last.max()) > 0 else ""


def one_hot(text: str, known: str) -> Tensor:
    """(length, len(known)): a 1 where the token is one of them."""
    return torch.tensor([[float(token == name) for name in known] for token in text], dtype=torch.float64)


def trace(text: str, *, shift_taps: tuple[float, ...] = (0.0, 1.0), decay: float = 1.0) -> Trace:
    """The layer with one head of width max(n_keys, n_values), reading ``text``; a ``?`` asks for the key before it.

    shift_taps: of the shift SSM, its B being e_1. (0, 1) holds a token back by one step
    decay:      of the diagonal SSM a step, with one state; 1 forgets nothing
    Errors:     InputError for text that has other tokens than letters a-d, digits 1-5, "." and "?".

    >>> trace("a3b5a").answer
    '3'
    """
    unknown = sorted(set(text) - set(KEYS + VALUES + OTHERS))
    if unknown or not text.rstrip("?"):
        raise InputError(
            f"{text!r} is not a text of keys {KEYS}, values {VALUES} and {OTHERS}; got {unknown or 'none'}"
        )
    text = text.rstrip("?")
    K = Q = one_hot(text, KEYS)  # W_K and W_Q: the identity on the keys' embeddings, zero on all others
    V = one_hot(text, VALUES)  # W_V: the identity on the values' embeddings
    C = torch.tensor([shift_taps], dtype=torch.float64).expand(len(KEYS), -1)
    B = torch.zeros_like(C)
    B[:, 0] = 1.0
    shift = CausalConvolution.from_shift(B, C)
    shifted = shift(K[None], form="recurrent")[0][0]
    entering = torch.einsum("lk,lv->lkv", shifted, V)
    one = torch.ones(1, 1, dtype=torch.float64)
    sum_up = DiagonalLTI(decay * one, one, one)
    state = sum_up(entering[None, :, None], form="recurrent")[0][0, :, 0]
    output = torch.einsum("lk,lkv->lv", Q, state)
    return Trace(text=text, Q=Q, K=K, shifted=shifted, V=V, entering=entering, state=state, output=output)


def lookup(key: Tensor, value: Tensor, query: Tensor) -> Tensor:
    """query^T (key value^T): the value if the query is the key, nothing if it is orthogonal to it.

    Shapes:  key, query: (n_keys,)   value: (n_values,)   ->   (n_values,)
    """
    return query @ torch.outer(key, value)
