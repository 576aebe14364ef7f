"""The filter step by step, with square roots of covariances."""

from __future__ import annotations

import torch

from statewise.estimation.gaussian import GaussianState
from statewise.estimation.steps import Advanced, Filtered, Steps, advance, choose, unbound


def square_root(steps: Steps, begin: GaussianState) -> Filtered:
    """:func:`~statewise.estimation.steps.advance` folded over time.

    Where all rows have the same covariances, as from the prior with nothing missing, they are computed once for all.

    Cost:    a QR decomposition a step, O((n + p)^2 (2 n + p)), batched over the rows; a dozen operations a step.
    Source:  Kailath, Sayed & Hassibi 2000, Linear Estimation, sec. 12.3 (the array form of filter and prediction in
             one); Potter 1963 and Kaminski, Bryson & Schmidt 1971, IEEE Trans. Automat. Contr. 16:727 (square roots).
    """
    batch, length, p = steps.y.shape
    mean, factor = begin.mean.expand(batch, -1), begin.factor
    masks, prior = steps.masks, steps.prior
    per_step = [unbound(m, length) for m in (steps.G, steps.N, steps.offset, steps.y, steps.observed)]
    valid, starts = unbound(masks.valid, length), unbound(masks.starts, length)
    rows = []
    for t, (G, N, offset, y, observed) in enumerate(zip(*per_step)):
        if starts[t] is not None:
            mean, factor = choose(starts[t], prior.mean, mean), choose(starts[t], prior.factor, factor)
        now = advance(mean, factor, G, N, offset, y, observed)
        if valid[t] is None:
            mean, factor = now.mean, now.factor
        else:
            mean, factor = choose(valid[t], now.mean, mean), choose(valid[t], now.factor, factor)
        rows.append(now._replace(mean=mean, factor=factor))
    if not rows:
        n = steps.n
        shapes = ((n,), (n, n), (p,), (p, p))
        mean_0, factor_0, innovation, innovation_factor = (steps.y.new_zeros(batch, 0, *shape) for shape in shapes)
        return Filtered(mean_0, factor_0, innovation, innovation_factor, GaussianState(mean, factor))
    all_of = Advanced(*[torch.stack(part, 1) for part in zip(*rows)])
    return Filtered(*all_of, GaussianState(mean, factor))
