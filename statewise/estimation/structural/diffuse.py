"""States of which nothing is known before the data: the width of their prior, and what the data then say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.estimation.structural.components import Block, Component, Regression

# What is not known before the data is given this many times their mean square as its variance. With square roots of
# covariances float64 bears it, and what remains of the prior is this much smaller than what one observation says.
DIFFUSE = 1e10
# States whose observations agree to this much, beside their size, cannot be told apart: a prior of DIFFUSE says as much
_SAME = 1e-7
_NUMBERS_AT_ONCE = 2**24


class Undetermined(NamedTuple):
    """What the data leave open. number: (batch,), how many directions of the diffuse states nothing is observed of
    correction: (batch,), what the log-likelihood lacks if all of them count as observed
    states: (batch, n_states) bool, whether a state has a part in them
    """

    number: Tensor
    correction: Tensor
    states: Tensor


class Series(NamedTuple):
    """Data that were checked. y: (batch, length, 1) float64 less ``centre`` (batch,), NaN where missing; covariates:
    (batch or 1, length, d) or None; starts: (batch, length) bool, the first step that was observed, or None where all
    rows begin at once; kappa: (batch, n_states), the variances of the diffuse prior; undetermined: None where the data
    leave nothing open, or nobody looked.
    """

    y: Tensor
    covariates: Tensor | None
    starts: Tensor | None
    kappa: Tensor
    centre: Tensor | None = None
    undetermined: Undetermined | None = None

    def of(self, rows: Tensor) -> Series:
        """Some of the series."""
        covariates = self.covariates
        if covariates is not None and len(covariates) > 1:
            covariates = covariates[rows]
        starts, centre, left = self.starts, self.centre, self.undetermined
        return Series(
            self.y[rows],
            covariates,
            None if starts is None else starts[rows],
            self.kappa[rows],
            None if centre is None else centre[rows],
            None if left is None else Undetermined(*[m[rows] for m in left]),
        )


def centre_of(y: Tensor) -> Tensor:
    """(batch,): the mean of the known numbers; y is known to have some in each row."""
    return y.nanmean((1, 2))


def prior_variances(components: Sequence[Component], y: Tensor, covariates: Tensor | None) -> Tensor:
    """(batch, n_states): DIFFUSE times the mean square of what is known; of a coefficient, beside its covariate's."""
    known = ~y.isnan()
    unit = DIFFUSE * y.nan_to_num(nan=0.0).square().sum((1, 2)) / known.sum((1, 2)).clamp(min=1)
    unit = torch.where(unit > 0, unit, DIFFUSE)[:, None]
    found = []
    for component in components:
        each = unit.expand(-1, component.n_states)
        if isinstance(component, Regression) and covariates is not None:
            size = covariates.square().mean(1)
            each = each / torch.where(size > 0, size, 1.0)
        found.append(each)
    return torch.cat(found, 1)


def undetermined(blocks: Sequence[Block], series: Series) -> Undetermined | None:
    """Which directions of the diffuse states x_1 no observation reaches, for these parameters; None if there are none.

    The rows c_t A^(t-1) over the steps at which y was observed span what the data say of x_1. With N an orthonormal
    basis of the rest, x_1 ~ N(0, A K A^T) and the likelihood's limit is that of log p(y) + log det(Q^T A K A^T Q) / 2,
    Q a basis of what is spanned; that is log |det A| + log(det K) / 2 + log det(N^T (A K A^T)^-1 N) / 2, of which the
    last is ``correction``.

    Cost:    a QR decomposition (length, d), and an SVD of its R, for each pattern of gaps and covariates.
    Source:  Durbin & Koopman 2012, sec. 5.2 and 7.2.2; Jacobi's identity for complementary minors.
    """
    known, device = ~series.y[..., 0].isnan(), series.y.device
    diffuse = [block for block in blocks if block.P is None and block.A.shape[-1]]
    if not diffuse:
        return None
    A = _side_by_side([block.A.detach() for block in diffuse])
    batch, d = len(known), A.shape[-1]
    if len(A) > 1 or (series.covariates is not None and len(series.covariates) > 1):
        patterns, of_row = known, torch.arange(batch, device=device)
    else:
        patterns, of_row = known.unique(dim=0, return_inverse=True)
    at_once = max(1, _NUMBERS_AT_ONCE // (d * known.shape[1]))
    parts = [slice(begin, begin + at_once) for begin in range(0, len(patterns), at_once)]
    found = [_spanned(diffuse, series.covariates, patterns[part], part) for part in parts]
    values, vectors, size = (torch.cat(part) for part in zip(*found))
    count = (values <= _SAME).sum(-1)[of_row]
    if not bool(count.any()):
        return None
    own = torch.cat([torch.full((block.A.shape[-1],), block.P is None, device=device) for block in blocks])
    kappa, correction = series.kappa.detach()[:, own], series.kappa.new_zeros(batch)
    states = torch.zeros(batch, len(own), dtype=torch.bool, device=device)
    for k in count.unique().tolist():
        rows = (count == k).nonzero()[:, 0]
        if k:
            basis, unit = vectors[of_row[rows], :, d - k :], size[of_row[rows]].unsqueeze(-1)
            states[rows[:, None], own.nonzero()[:, 0]] = basis.square().sum(-1) > 1e-6
            N = torch.linalg.qr(basis / torch.where(unit > 0, unit, 1)).Q
            before = torch.linalg.solve(A[rows] if len(A) > 1 else A, N)
            R = torch.linalg.qr(before / kappa[rows].sqrt().unsqueeze(-1), mode="r").R
            correction[rows] = R.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return Undetermined(count, correction, states)


def _spanned(
    blocks: Sequence[Block], covariates: Tensor | None, known: Tensor, part: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values (rows, d), falling, and vectors (rows, d, d), as columns, of the rows c_t A^(t-1) at the steps
    known (rows, length); and the size (rows, d) of each state in them, 0 where it is nothing. Vectors are of states in
    these sizes.
    """
    length = known.shape[1]
    steps = (torch.arange(length, device=known.device) - known.int().argmax(1, keepdim=True)).clamp(min=0)
    columns, sizes = [], []
    for block in blocks:
        if block.c is None:
            assert covariates is not None
            seen = covariates[part, :length] if len(covariates) > 1 else covariates[:, :length]
        else:
            A = block.A.detach()
            seen = _powers(block.c, A[part] if len(A) > 1 else A, length)
        largest = seen.abs().amax(1)
        if block.c is not None:
            at = steps.unsqueeze(-1).expand(-1, -1, seen.shape[-1])
            seen = seen.expand(len(known), -1, -1).gather(1, at)
        seen = seen * known.unsqueeze(-1)
        size = seen.square().sum(1).sqrt()
        columns.append(seen)
        sizes.append(torch.where(size > 1e-13 * largest, size, 0))
    size = torch.cat(sizes, -1)
    seen = torch.cat(columns, -1) * torch.where(size > 0, 1 / size, 0).unsqueeze(1)
    _, values, vectors = torch.linalg.svd(torch.linalg.qr(seen, mode="r").R)
    return values, vectors.mT, size


def _powers(c: Tensor, A: Tensor, length: int) -> Tensor:
    """c, c A, c A^2, ...: (batch, length, n), by doubling."""
    rows = c.expand(len(A), 1, -1)
    while rows.shape[1] < length:
        rows, A = torch.cat([rows, rows @ A], 1), A @ A
    return rows[:, :length]


def _side_by_side(blocks: list[Tensor]) -> Tensor:
    """(batch, d, d) with the blocks on its diagonal."""
    batch, d = max(len(block) for block in blocks), sum(block.shape[-1] for block in blocks)
    whole, at = blocks[0].new_zeros(batch, d, d), 0
    for block in blocks:
        own = slice(at, at + block.shape[-1])
        whole[:, own, own], at = block, own.stop
    return whole
