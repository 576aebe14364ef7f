"""The definition of the diagonal scan, step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.kernels.pairs import as_complex


def diagonal_scan_reference(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Arguments and results as :func:`statewise.kernels.diagonal_scan.diagonal_scan`."""
    h, outputs = as_complex(state), []
    A, B, C = A.unsqueeze(1), B.unsqueeze(1), C.unsqueeze(1)
    for t, x in enumerate(u.to(state.dtype).unbind(1)):
        after = A * h + B * x.unsqueeze(-1)
        y = 2 * (C * after).sum(-1).real
        y = y if D is None else y + D.unsqueeze(1) * x
        if lengths is not None:
            going = (lengths > t)[:, None, None]
            y, after = y.masked_fill(~going, 0), torch.where(going.unsqueeze(-1), after, h)
        outputs.append(y)
        h = after
    return torch.stack(outputs, 1).to(u.dtype) if outputs else u.clone(), torch.view_as_real(h).clone()
