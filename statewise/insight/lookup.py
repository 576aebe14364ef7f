"""What goes through an H3 layer: the keys it stores, the values paired with them, and what a query recalls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.mixers.base import Mixer
from statewise.mixers.h3 import H3
from statewise.mixers.prepared import wide
from statewise.operators.causal_convolution import CausalConvolution
from statewise.operators.diagonal import DiagonalLTI


@dataclass(frozen=True, kw_only=True)
class Signals:
    """What goes through an H3 layer.

    Shapes:  Q, K, shifted, V, output: (rows, length, d_model), output being what W_O reads
             entering, state: (rows, length, n_heads, d_head, d_head): K'V^T, and what the diagonal SSM makes of it
    """

    Q: Tensor
    K: Tensor
    shifted: Tensor
    V: Tensor
    entering: Tensor
    state: Tensor
    output: Tensor


def h3_systems(mixer: H3) -> tuple[CausalConvolution, DiagonalLTI]:
    """The shift SSM as its filter, and the discrete diagonal SSM, each with its skip."""
    shift, diagonal = mixer.build_operators()
    assert isinstance(shift, CausalConvolution)
    assert isinstance(diagonal, DiagonalLTI)
    return shift, diagonal


@torch.no_grad()
def h3_trace(mixer: Mixer, x: Tensor) -> Signals:
    """The signals of an H3 mixer while it reads x: K' = SSM_shift(K) stores keys, SSM_diag(K'V^T) the values paired
    with them, and Q reads them. W_O of ``output`` is the mixer's own output.

    Shapes:  x: (rows, length, d_model)
    Errors:  InputError for another mixer, one that reads in both directions, or an x that does not fit.
    Source:  Fu et al. 2023 (H3), arXiv:2212.14052, sec. 3.2.

    >>> import statewise as sw
    >>> mixer = sw.H3Config(d_state=8, d_head=2).build(d_model=4)
    >>> found = h3_trace(mixer, torch.randn(1, 6, 4))
    >>> found.shifted.shape, found.state.shape
    (torch.Size([1, 6, 4]), torch.Size([1, 6, 2, 2, 2]))
    """
    if not isinstance(mixer, H3):
        raise InputError(f"{type(mixer).__name__} stores no keys beside its values; give an H3 mixer")
    if not mixer.is_causal:
        raise InputError("a bidirectional H3 also recalls what comes later; give one with bidirectional=False")
    mixer.check_call(x, None)
    Q, K, V = wide(mixer.in_proj(x)).chunk(3, -1)
    shift, diagonal = h3_systems(mixer)
    shifted, _ = shift(K)
    q, k, v = (m.unflatten(-1, (mixer.n_heads, -1)) for m in (Q, shifted, V))
    entering = torch.einsum("blhi,blhj->blhij", k, v)
    state, _ = diagonal(entering)
    output = torch.einsum("blhi,blhij->blhj", q, state).flatten(-2)
    return Signals(Q=Q, K=K, shifted=shifted, V=V, entering=entering, state=state, output=output)
