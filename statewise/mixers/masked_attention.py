"""Structured masked attention: linear attention whose mask is 1-semiseparable, learned, or any other that is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import OneOf
from statewise.errors import InputError
from statewise.mixers.base import Dynamics, check_input, check_weight
from statewise.mixers.linear_attention import LinearAttention, LinearAttentionConfig
from statewise.mixers.prepared import wide
from statewise.mixers.projection import Linear, draw_normal
from statewise.operators.head_patterns import share_heads
from statewise.operators.masks import build_masks, mask_time
from statewise.precision import without_autocast
from statewise.semiseparable import StructuredMatrix, masked_attention_contraction

DECAYS = ("ones", "constant", "selective")


@dataclass(frozen=True, kw_only=True)
class StructuredMaskedAttentionConfig(LinearAttentionConfig):
    """Structured masked attention. The other fields are those of :class:`LinearAttentionConfig`.

    decay: the numbers a_t of the mask 1SS(a), for each head: "ones" (linear attention), "constant" (one learned number
           a head, as in retention) or "selective" (sigma(w x_t + b), from the input, as in Mamba-2)
    """

    decay: Annotated[str, OneOf(DECAYS)] = "selective"

    def build(self, d_model: int) -> StructuredMaskedAttention:
        return StructuredMaskedAttention(d_model, self)


class MaskDynamics(Dynamics):
    """logit (n_heads,): a = sigma(logit), or sigma(w x_t + logit).

    At the start a = 1 - 2^(-5 - h) for head h, as in retention.
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.empty(n_heads))

    def reset_parameters(self) -> None:
        with torch.no_grad():
            forgotten = 2.0 ** (-5.0 - torch.arange(len(self.logit)))
            self.logit.copy_(torch.log1p(-forgotten) - forgotten.log())

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the logit, (batch, length, n_heads) -> log a, in float32 or wider."""
        return F.logsigmoid(wide(x) + wide(self.logit))


class StructuredMaskedAttention(LinearAttention):
    """y = W_o (L * (phi(Q) phi(K)^T)) V with the mask L = 1SS(a), L_ts = a_t a_{t-1} ... a_{s+1}; with ``normalize``
    divided by the sums of the weights.

    A call has the mask that ``decay`` names, in time linear in the length, and with a state: then L is a rectangle,
    whose columns are the steps before the call and its own. Documents and padding are masked as in every layer.
    Bidirectional, a step s behind t has the weight a_t a_{t+1} ... a_{s-1}. :meth:`attend` takes any other mask.

    Shapes:   as :class:`LinearAttention`
    Cost:     as :class:`LinearAttention`
    Errors:   as :class:`LinearAttention`
    Source:   Dao & Gu 2024, arXiv:2405.21060, sec. 4.3 (structured masked attention) and 5; the decays at the start:
              Sun et al. 2023 (RetNet), arXiv:2307.08621, sec. 2.2.

    >>> layer = StructuredMaskedAttentionConfig(n_heads=2).build(d_model=16)
    >>> y, state = layer(torch.randn(1, 5, 16), layer.initial_state(batch=1))
    >>> y.shape, layer.attend(torch.randn(1, 3, 16), torch.ones(3, 7), torch.randn(1, 7, 16)).shape
    (torch.Size([1, 5, 16]), torch.Size([1, 3, 16]))
    """

    config: StructuredMaskedAttentionConfig

    def _build_decay(self) -> None:
        decay = self.config.decay
        self.dynamics = None if decay == "ones" else MaskDynamics(self.n_heads)
        self.decay_proj = Linear(self.d_model, self.n_heads, bias=False) if decay == "selective" else None

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        super().reset_parameters(residual_scale)
        if self.dynamics is not None:
            self.dynamics.reset_parameters()
        if self.decay_proj is not None:
            draw_normal(self.config.weight_std, self.decay_proj)

    def _log_decay(self, x: Tensor) -> Tensor | None:
        if self.dynamics is None:
            return None
        added = x.new_zeros(*x.shape[:2], self.n_heads) if self.decay_proj is None else self.decay_proj(x)
        return self.dynamics(added)

    def attend(
        self,
        x: Tensor,
        mask: Tensor | StructuredMatrix,
        memory: Tensor | None = None,
        *,
        memory_lengths: Tensor | None = None,
    ) -> Tensor:
        """y = W_o (mask * (phi(Q) phi(K)^T)) V with a mask of yours, the queries being those of x, keys and values
        those of ``memory``, or of x without one. ``decay`` plays no part in it.

        Shapes:  x: (batch, T, d_model)   memory: (batch, S, d_model)   ->   (batch, T, d_model)
                 mask: a dense (T, S), (n_heads, T, S) or (batch, n_heads, T, S), of real numbers or bool; or a
                 structured matrix of such a shape with T = S, as ``OneSemiseparable(a)`` with a (..., T)
                 memory_lengths: (batch,), the length of each row of the memory: what is behind it has no weight
        Cost:    O(T S) for a dense mask. For a structured one O(T), with n_heads n_features (d_head + 1) numbers for
                 each step in memory; a call of the layer, in chunks, has a state a chunk.
        Numerics: as in a call. With ``normalize`` a mask of both signs may have sums near 0: see ``eps``.
        Errors:  InputError for shapes or dtypes that do not fit.
        """
        name = f"{type(self).__name__}.attend"
        memory = x if memory is None else memory
        for called, given in (("x", x), ("memory", memory)):
            check_input(given, self.d_model, name, called)
            check_weight(given, self.in_proj.weight, name, called)
        if not isinstance(mask, (Tensor, StructuredMatrix)):
            raise InputError(f"{name} needs mask as a tensor or a structured matrix, got {type(mask).__name__}")
        if mask.dtype.is_complex:
            raise InputError(
                f"{name} needs a mask of real numbers or bool, got {mask.dtype}; give mask.real, or two masks"
            )
        if isinstance(mask, Tensor) and not torch.compiler.is_compiling() and not bool(mask.isfinite().all()):
            raise InputError(
                f"{name} got a mask with NaN or infinity; it multiplies the weights, so give 0 for what is not seen, "
                "or a mask of bool"
            )
        batch, length, n_keys = x.shape[0], x.shape[1], memory.shape[1]
        shape = (batch, self.n_heads, length, n_keys)
        fits = memory.shape[0] == batch and 2 <= len(mask.shape) <= 4 and tuple(mask.shape[-2:]) == shape[-2:]
        if not fits or any(m not in (1, n) for m, n in zip(mask.shape[-3::-1], shape[1::-1])):
            raise InputError(
                f"{name} needs x (batch, T, {self.d_model}), memory (batch, S, {self.d_model}) and a mask (T, S), "
                f"({self.n_heads}, T, S) or (batch, {self.n_heads}, T, S); got {tuple(x.shape)}, "
                f"{tuple(memory.shape)} and {tuple(mask.shape)}"
            )
        valid = build_masks(memory, memory_lengths, None).valid
        q, k, v = self._heads(x, mask_time(memory, valid))
        if length == 0 or n_keys == 0:
            return self._read_out(v.new_zeros(batch, length, *v.shape[2:]), x.dtype)
        with without_autocast(x.device):
            q, k = (share_heads(m, self.n_heads).transpose(1, 2) for m in (q, k))
            v = mask_time(v, valid).transpose(1, 2)
            if isinstance(mask, Tensor):
                y = masked_attention_contraction(mask.to(v.dtype), q, k, v, order="quadratic").Y
            elif mask.dtype != v.dtype:
                raise InputError(f"{name} computes in {v.dtype}, and the mask is {mask.dtype}; make it in {v.dtype}")
            else:
                y = masked_attention_contraction(mask, q, k, v, order="linear").Y
        return self._read_out(y.transpose(1, 2), x.dtype, any_sign=True)
