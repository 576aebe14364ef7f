"""The definition of the scalar-identity state-space model (SSD), in plain differentiable PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Arguments(NamedTuple):
    """What the operators are given: shapes as the public function's; all of one dtype."""

    x: Tensor
    log_a: Tensor
    B: Tensor
    C: Tensor
    h0: Tensor
    dt: Tensor | None
    D: Tensor | None
    segments: Tensor | None
    chunk_length: int

    def widened(self) -> Arguments:
        """x, B and C in the dtype of the state: on a GPU they are stored narrower."""
        x, B, C = (m.to(self.h0.dtype) for m in (self.x, self.B, self.C))
        return self._replace(x=x, B=B, C=C)


def ssd_reference(
    x: Tensor,
    log_a: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    segments: Tensor | None = None,
    *,
    dt: Tensor | None = None,
    D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """h_t = a_t h_{t-1} + dt_t x_t B_t^T, y_t = h_t C_t + D x_t, step after step. Shapes as the fast form's."""
    skipped = 0 if D is None else D[:, None] * x
    if dt is not None:
        x = x * dt.unsqueeze(-1)
    per_group = x.shape[2] // B.shape[2]
    h, outputs = h0, []
    before = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    for t, (x_t, log_a_t, B_t, C_t) in enumerate(zip(x.unbind(1), log_a.unbind(1), B.unbind(1), C.unbind(1))):
        if segments is not None:
            now = segments[:, t]
            h = torch.where((now == before)[:, None, None, None], h, torch.zeros_like(h))
            before = now
        B_t, C_t = (m.repeat_interleave(per_group, 1) for m in (B_t, C_t))
        h = log_a_t.exp()[..., None, None] * h + torch.einsum("bhp,bhn->bhpn", x_t, B_t)
        outputs.append(torch.einsum("bhpn,bhn->bhp", h, C_t))
    return (torch.stack(outputs, 1) if outputs else torch.zeros_like(x)) + skipped, h


def ssd_differentiable(given: Arguments) -> tuple[Tensor, Tensor]:
    """The same map in plain operations on whole chunks: what a second derivative is taken through.

    Within a chunk y = (L * C B^T) x + diag(exp(cumulative log_a)) C h; L is the masked exp of segment sums.
    """
    stored = given.x.dtype
    x, log_a, B, C, h0, dt, D, segments, chunk_length = given.widened()
    skipped = 0 if D is None else D[:, None] * x
    if dt is not None:
        x = x * dt.unsqueeze(-1)
    per_group = x.shape[2] // B.shape[2]
    B, C = (m.repeat_interleave(per_group, 2) for m in (B, C))
    h, outputs = h0, []
    carried = None if segments is None else torch.zeros_like(segments[:, :1])
    for start in range(0, x.shape[1], chunk_length):
        stop = start + chunk_length
        x_c, log_a_c, B_c, C_c = (m[:, start:stop] for m in (x, log_a, B, C))
        q = x_c.shape[1]
        lower = torch.ones(q, q, dtype=torch.bool, device=x.device).tril()
        # segment sums: mask, then cumulate, so that no large cumulative sums are subtracted
        steps = log_a_c.unsqueeze(2).expand(-1, -1, q, -1)  # (b, t, s, h) holds log_a_t
        sums = steps.masked_fill(~lower.tril(-1)[None, :, :, None], 0).cumsum(1)
        keep = lower[None] if segments is None else lower & _same(segments[:, start:stop], segments[:, start:stop])
        decay = sums.masked_fill(~keep[..., None], -torch.inf).exp()
        y = torch.einsum("blhn,bshn,blsh,bshp->blhp", C_c, B_c, decay, x_c)
        total = log_a_c.cumsum(1)
        to_end = decay[:, -1]  # (b, s, h)
        from_start = total.exp()
        if segments is not None and carried is not None:
            ids = segments[:, start:stop]
            from_start = from_start * (ids == carried)[..., None]
            carried = ids[:, -1:]
        y = y + torch.einsum("blhn,bhpn,blh->blhp", C_c, h, from_start)
        h = from_start[:, -1, :, None, None] * h + torch.einsum("bshn,bsh,bshp->bhpn", B_c, to_end, x_c)
        outputs.append(y)
    return ((torch.cat(outputs, 1) if outputs else torch.zeros_like(x)) + skipped).to(stored), h


def _same(a: Tensor, b: Tensor) -> Tensor:
    return a[:, :, None] == b[:, None, :]
