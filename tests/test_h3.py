"""H3: the laws at every head width, and what it is equal to."""

from __future__ import annotations

import pytest
import torch
from laws import check_mixer_laws

from statewise.mixers.h3 import H3Config


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"d_head": 1, "d_shift": 3}, 17),
        ({"d_head": 2, "method": "zoh"}, 5),
        ({"d_head": 4, "d_shift": 1, "bias": False}, 5),
        ({"d_head": 8, "d_shift": 20}, 7),
    ],
    ids=str,
)
def test_laws(options: dict, length: int) -> None:
    torch.manual_seed(0)
    check_mixer_laws(H3Config(**{"d_state": 4, **options}).build(8), length=length)
