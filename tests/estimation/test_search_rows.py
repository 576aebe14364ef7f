"""Many searches in one."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.estimation.search_rows import climb

D = torch.float64


def test_every_row_finds_its_own_top() -> None:
    g = torch.Generator().manual_seed(0)
    root = torch.randn(6, 3, 3, dtype=D, generator=g)
    H = (root @ root.mT + 0.1 * torch.eye(3, dtype=D)) * torch.logspace(-2, 3, 6, dtype=D)[:, None, None]
    top = torch.randn(6, 3, dtype=D, generator=g)
    rows_seen: list[int] = []

    def score(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows_seen.append(len(rows))
        away = x - top[rows]
        pull = (H[rows] @ away.unsqueeze(-1)).squeeze(-1)
        return 5 - (away * pull).sum(1) / 2, -pull

    found = climb(score, torch.zeros(6, 3, dtype=D), torch.full((6,), 1e-12, dtype=D), 200)
    assert bool(found.converged.all())
    torch.testing.assert_close(found.point, top, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.value, torch.full((6,), 5.0, dtype=D), atol=1e-9, rtol=0)
    assert rows_seen[-1] < 6  # who has arrived is computed no more


def test_a_row_without_a_value_stops_and_the_others_go_on() -> None:
    def score(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.where(rows[:, None] == 0, torch.nan, -(x - 1).square()).sum(1)
        return value, -2 * (x - 1)

    found = climb(score, torch.zeros(2, 1, dtype=D), torch.full((2,), 1e-10, dtype=D), 50)
    assert found.converged.tolist() == [False, True]
    assert abs(float(found.point[1]) - 1) < 1e-6
    short = climb(score, torch.full((2, 1), 50.0, dtype=D), torch.full((2,), 1e-10, dtype=D), 1)
    assert not bool(short.converged.any())
