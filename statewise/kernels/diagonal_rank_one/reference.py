"""The definition of the recurrence with a transition that is diagonal plus rank one, in plain PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Arguments(NamedTuple):
    """What the operators are given: shapes as the public function's; all of one dtype."""

    v: Tensor
    q: Tensor
    k: Tensor
    log_a: Tensor
    S0: Tensor
    read: Tensor | None
    erase: Tensor | None
    beta: Tensor | None
    chunk_length: int

    def general(self) -> Arguments:
        """With read instead of beta: the delta rule looks up a k, and writes and erases along beta k."""
        if self.beta is None:
            return self
        read, k = self.log_a.exp() * self.k, self.beta.unsqueeze(-1) * self.k
        return self._replace(read=read, k=k, beta=None)


def diagonal_rank_one_reference(
    v: Tensor,
    q: Tensor,
    k: Tensor,
    log_a: Tensor,
    S0: Tensor,
    *,
    read: Tensor | None = None,
    erase: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = S_{t-1} (diag(a_t) - read_t erase_t^T) + v_t k_t^T, y_t = S_t q_t, step after step. Shapes as the fast
    form's; with beta, S_t = S_{t-1} diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T.
    """
    if beta is not None:
        read, k = log_a.exp() * k, beta.unsqueeze(-1) * k
    assert read is not None
    S, outputs = S0, []
    erase = k if erase is None else erase
    for v_t, q_t, k_t, r_t, e_t, log_a_t in zip(*(m.unbind(1) for m in (v, q, k, read, erase, log_a))):
        found = torch.einsum("bhpn,bhn->bhp", S, r_t)
        S = S * log_a_t.exp().unsqueeze(2)
        S = S - torch.einsum("bhp,bhn->bhpn", found, e_t) + torch.einsum("bhp,bhn->bhpn", v_t, k_t)
        outputs.append(torch.einsum("bhpn,bhn->bhp", S, q_t))
    return (torch.stack(outputs, 1) if outputs else torch.zeros_like(v)), S
