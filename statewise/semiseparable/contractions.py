"""The same three factors contracted in two orders: a state-space model and masked attention, side by side.

Y = (L * (Q K^T)) V has entries y_tp = sum_s L_ts (sum_n q_tn k_sn) v_sp: one sum over four tensors. Attention
sums over n first and s last. A state-space model, with C, B, X for Q, K, V, sums over s first, by the recurrence that L
is, and over n last. The sizes: T times of the outputs, S times of the inputs, N state, P width.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable.matrix import StructuredMatrix
from statewise.semiseparable.one_semiseparable import OneSemiseparable


class LinearSteps(NamedTuple):
    """The three results of the linear order; Y is the answer."""

    Z: Tensor  # (..., S, P, N): each input's contribution to the state
    H: Tensor  # (..., T, P, N): the state at each time
    Y: Tensor  # (..., T, P)


class QuadraticSteps(NamedTuple):
    """The three results of the quadratic order; Y is the answer."""

    G: Tensor  # (..., T, S): similarities
    M: Tensor  # (..., T, S): masked similarities
    Y: Tensor  # (..., T, P)


def ssm_contraction(a: Tensor, B: Tensor, C: Tensor, X: Tensor) -> LinearSteps:
    """A scalar-identity state-space model, h_t = a_t h_{t-1} + x_t B_t^T and y_t = h_t C_t, as three contractions.

    ========  =================================  ====================  ==============
    step      what                               sizes                 multiplications
    ========  =================================  ====================  ==============
    Z         z_spn = x_sp b_sn                  SP, SN   -> SPN       S P N
    H = L Z   h_tpn = sum_s l_ts z_spn           1SS(a), SPN -> TPN    T P N
    Y         y_tp = sum_n c_tn h_tpn            TN, TPN  -> TP        T P N
    ========  =================================  ====================  ==============

    It is the linear order of :func:`masked_attention_contraction` with L = 1SS(a), Q = C, K = B and V = X. The
    middle count is that of the recurrence step by step; for all times at once it is about twice that. All states H are
    in memory, so it is for reading and for tests; in programs use ``operators.SSD``.

    Shapes:  a: (..., T), the decay itself and not its logarithm   B, C: (..., T, N)   X: (..., T, P), already
             multiplied by dt; leading axes broadcast
    Errors:  InputError if shapes or dtypes disagree.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 4 and 5.
    """
    return masked_attention_contraction(OneSemiseparable(a), C, B, X, order="linear")


@overload
def masked_attention_contraction(
    mask: Tensor | StructuredMatrix, Q: Tensor, K: Tensor, V: Tensor, *, order: Literal["quadratic"]
) -> QuadraticSteps: ...
@overload
def masked_attention_contraction(
    mask: Tensor | StructuredMatrix, Q: Tensor, K: Tensor, V: Tensor, *, order: Literal["linear"]
) -> LinearSteps: ...
def masked_attention_contraction(
    mask: Tensor | StructuredMatrix, Q: Tensor, K: Tensor, V: Tensor, *, order: Literal["quadratic", "linear"]
) -> QuadraticSteps | LinearSteps:
    """Structured masked attention Y = (L * (Q K^T)) V: no softmax and no scale; apply any feature map before.

    ``order="quadratic"``, as attention is computed, with T S numbers in memory:

    ========  =================================  ====================  ==============
    step      what                               sizes                 multiplications
    ========  =================================  ====================  ==============
    G         g_ts = sum_n q_tn k_sn             TN, SN   -> TS        T S N
    M = L*G   m_ts = l_ts g_ts                   TS, TS   -> TS        T S
    Y         y_tp = sum_s m_ts v_sp             TS, SP   -> TP        T S P
    ========  =================================  ====================  ==============

    ``order="linear"``, as a recurrence is computed, with T P N numbers in memory:

    ========  =================================  ====================  ==============
    step      what                               sizes                 multiplications
    ========  =================================  ====================  ==============
    Z         z_spn = v_sp k_sn                  SP, SN   -> SPN       S P N
    H = L Z   h_tpn = sum_s l_ts z_spn           L, SPN   -> TPN       see below
    Y         y_tp = sum_n q_tn h_tpn            TN, TPN  -> TP        T P N
    ========  =================================  ====================  ==============

    The middle step sets the cost of the linear order: no multiplications with ``CumulativeSum``, T P N
    with ``OneSemiseparable``, d_state T P N with a structured ``SequentiallySemiseparable``, and T S P N with
    a dense mask. (This counts the recurrence step by step; for all times at once it is about twice that.)

    Shapes:  mask: a dense (..., T, S) tensor, or a structured matrix with T = S   Q: (..., T, N)   K: (..., S, N)
             V: (..., S, P); leading axes broadcast
    Errors:  InputError if shapes or dtypes disagree, or ``order`` is neither of the two.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 4.
    """
    _check(mask, Q, K, V)
    if order == "quadratic":
        G = torch.einsum("...tn,...sn->...ts", Q, K)
        M = (mask if isinstance(mask, Tensor) else mask.dense()) * G
        return QuadraticSteps(G, M, torch.einsum("...ts,...sp->...tp", M, V))
    if order == "linear":
        Z = torch.einsum("...sp,...sn->...spn", V, K)
        H = (mask @ Z.flatten(-2)).unflatten(-1, Z.shape[-2:])
        return LinearSteps(Z, H, torch.einsum("...tn,...tpn->...tp", Q, H))
    raise InputError(f"order={order!r} is unknown; use 'quadratic' or 'linear'")


def _check(mask: Tensor | StructuredMatrix, Q: Tensor, K: Tensor, V: Tensor) -> None:
    names = "mask (..., T, S), Q or C (..., T, N), K or B (..., S, N), V or X (..., S, P)"
    tensors = (mask, Q, K, V)
    shapes = ", ".join(str(tuple(z.shape)) for z in tensors)
    if min(len(z.shape) for z in tensors) < 2:
        raise InputError(f"expected {names}, got {shapes}")
    agree = (
        mask.shape[-2] == Q.shape[-2] and mask.shape[-1] == K.shape[-2] == V.shape[-2] and Q.shape[-1] == K.shape[-1]
    )
    if not agree or 0 in mask.shape[-2:]:
        raise InputError(f"expected {names} with equal T, S and N and none of them empty, got {shapes}")
    try:
        torch.broadcast_shapes(*(z.shape[:-2] for z in tensors))
    except RuntimeError:
        raise InputError(f"the leading axes of {names} do not broadcast: {shapes}") from None
    if len({z.dtype for z in tensors}) > 1:
        raise InputError(
            f"expected one dtype for mask, Q, K and V, got {', '.join(str(z.dtype) for z in tensors)}; convert them"
        )
