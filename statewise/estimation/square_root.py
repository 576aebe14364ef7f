"""The filter step by step, with square roots of covariances."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from statewise.estimation.gaussian import GaussianState
from statewise.estimation.steps import Filtered, Steps
from statewise.kernels.kalman import kalman, pytorch
from statewise.kernels.kalman.signature import Arguments


def square_root(steps: Steps, begin: GaussianState) -> Filtered:
    """:func:`~statewise.kernels.kalman.kalman`, in C where it is there.

    Where all rows have the same covariances, as from the prior with nothing missing, they are computed only once.

    Cost:    a triangular form a step, O((n + p)^2 (2 n + p)), for each row that has covariances of its own.
    Source:  Kailath, Sayed & Hassibi 2000, Linear Estimation, sec. 12.3 (the array form of filter and prediction in
             one); Potter 1963 and Kaminski, Bryson & Schmidt 1971, IEEE Trans. Automat. Contr. 16:727 (square roots).
    """
    batch, masks = len(steps.y), steps.masks
    given = (steps.y, steps.G, steps.N, steps.offset, *begin, *steps.prior, steps.observed, masks.lengths, masks.starts)
    # torch.func's derivatives, and forward mode, know no operator of ours, but what the PyTorch path is made of
    if forward_ad._current_level >= 0 or any(
        m is not None and torch._C._functorch.is_functorch_wrapped_tensor(m) for m in given
    ):
        found = pytorch.forward(Arguments(*given, batch))
    else:
        found = kalman(*given)
    final = begin
    if steps.y.shape[1]:
        final = GaussianState(found.mean[:, -1], found.factor[:, -1])
    return Filtered(*found[:4], final, found.density)
