"""The recurrence S_t = S_{t-1} (diag(a_t) - read_t erase_t^T) + v_t k_t^T, y_t = S_t q_t, as one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.arguments import Sizes
from statewise.kernels.diagonal_rank_one import native, pytorch
from statewise.kernels.diagonal_rank_one.pytorch import by_chunks
from statewise.kernels.diagonal_rank_one.reference import Arguments, diagonal_rank_one_reference
from statewise.kernels.stored import refuse_unreal
from statewise.precision import full_precision

__all__ = ["diagonal_rank_one", "diagonal_rank_one_reference"]


def _wrong_mode(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    if (given["read"] is None) == (given["beta"] is None) or (given["beta"] is not None and given["erase"] is not None):
        return "either read, with or without erase, or beta"
    return None if given["chunk_length"] >= 1 else f"chunk_length of at least 1; got {given['chunk_length']}"


_KEYS = "b l h n: as S0"
_diagonal_rank_one = register_with_adjoint(
    "diagonal_rank_one",
    "Tensor v, Tensor q, Tensor k, Tensor log_a, Tensor S0, Tensor? read, Tensor? erase, Tensor? beta, "
    "int chunk_length",
    native,
    pytorch,
    definition=by_chunks,
    takes={
        "v": "b l h p: as S0",
        "q": _KEYS,
        "k": _KEYS,
        "log_a": "b l h 1|n: as S0",
        "S0": "b h p n: real",
        "read": _KEYS,
        "erase": _KEYS,
        "beta": "b l h: as S0",
    },
    gives={"y": "b l h p: as v", "state": "b h p n: as S0"},
    needs=_wrong_mode,
    signature=Arguments,
)


def diagonal_rank_one(
    v: Tensor,
    q: Tensor,
    k: Tensor,
    log_a: Tensor,
    S0: Tensor,
    *,
    read: Tensor | None = None,
    erase: Tensor | None = None,
    beta: Tensor | None = None,
    chunk_length: int = 64,
) -> tuple[Tensor, Tensor]:
    """A transition that is diagonal plus rank one: S_t = S_{t-1} (diag(a_t) - read_t erase_t^T) + v_t k_t^T, y_t = S_t
    q_t, with a_t = exp(log_a_t).

    Without ``erase`` it is k, and half of the products are spared. With ``beta`` in place of ``read`` it is the delta
    rule: S_t = S_{t-1} diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T.

    Shapes:   v: (batch, length, n_heads, d_value)   q, k, read, erase: (batch, length, n_heads, d_key)
              beta: (batch, length, n_heads)
              log_a: (batch, length, n_heads, d_key), or 1 for d_key: a number a head; <= 0, -inf too
              S0: (batch, n_heads, d_value, d_key)   ->   y like v, the state after the last step like S0
    Cost:     O(length d_key (chunk_length + 2 d_value)) per head, in matrix products, and a triangular system of
              chunk_length rows per chunk; the adjoint four times that. Memory above the outputs: in C a state per
              chunk of the heads at work, in the adjoint alone; in PyTorch the matrices of all chunks, and what autograd
              keeps of them. C chooses chunks of 64 steps itself, and the plain recurrence for a few steps.
    Numerics: computed in float32, or float64 if an input is; y comes in the dtype of v. Nothing is divided: a decay
              between two steps is the product of those that lie between, in C, or the exponential of their sum, so that
              a mild decay is as right beside a strong one as alone. A step of log_a = -inf and read = 0 forgets all
              that came before it, exactly. The triangular system is solved by substitution, not by an inverse. A NaN
              or an infinity spoils its row and head, and in what came before it no more than its chunk. In C, the same
              bits on every run and for any number of threads. Second derivatives go through PyTorch.
    Errors:   InputError if the shapes disagree or the numbers are not real floating-point ones; the message gives them.
    Source:   Yang et al. 2024, arXiv:2406.06484, sec. 3 (the WY form); Yang et al. 2025, arXiv:2412.06464, sec. 3.3
              (with a decay); Kimi Team 2025, arXiv:2510.26692, sec. 3 (a decay a channel); Peng et al. 2025,
              arXiv:2503.14456, eq. 17 (two keys).
    """
    b, length, h, n = k.shape if k.ndim == 4 else (0, 0, 0, 0)
    if (read is None) == (beta is None) or (beta is not None and erase is not None):
        raise InputError("diagonal_rank_one needs either read, with or without erase, or beta")
    keys = {"q": q, "k": k, "read": k if read is None else read, "erase": k if erase is None else erase}
    same = k.ndim == 4 and all(m.shape == k.shape for m in keys.values())
    if not (same and v.ndim == 4 and v.shape[:3] == (b, length, h) and log_a.shape in ((b, length, h, 1), k.shape)):
        shapes = ", ".join(f"{name} {tuple(m.shape)}" for name, m in {"v": v, **keys, "log_a": log_a}.items())
        raise InputError(
            "diagonal_rank_one needs v (batch, length, heads, d_value), q, k, read and erase (batch, length, heads, "
            f"d_key), and log_a like k or with a last axis of 1; got {shapes}"
        )
    if S0.shape != (b, h, v.shape[3], n):
        raise InputError(
            f"diagonal_rank_one needs S0 of shape {(b, h, v.shape[3], n)} (batch, heads, d_value, d_key); "
            f"got {tuple(S0.shape)}"
        )
    if beta is not None and beta.shape != (b, length, h):
        raise InputError(f"diagonal_rank_one needs beta of shape {(b, length, h)}; got {tuple(beta.shape)}")
    refuse_unreal("diagonal_rank_one", v=v, q=q, k=k, log_a=log_a, S0=S0, read=read, erase=erase, beta=beta)
    if chunk_length < 1:
        raise InputError(f"diagonal_rank_one needs chunk_length >= 1; got {chunk_length}")
    return diagonal_rank_one_unchecked(Arguments(v, q, k, log_a, S0, read, erase, beta, chunk_length))


def diagonal_rank_one_unchecked(given: Arguments) -> tuple[Tensor, Tensor]:
    """:func:`diagonal_rank_one` of what its caller has checked; the registered operator holds it against the sizes that
    it reads.
    """
    numbers: tuple[Tensor | None, ...] = given[:8]
    dtype = full_precision(*(m.dtype for m in numbers if m is not None))
    y, state = _diagonal_rank_one(*(m if m is None else m.to(dtype) for m in numbers), given.chunk_length)
    return y.to(given.v.dtype), state
