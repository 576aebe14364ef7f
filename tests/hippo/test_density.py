"""The measures: the functions of each are orthonormal under its density, by numerical integrals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from statewise import hippo
from statewise.errors import InputError

N = 6
CASES: list[tuple[str, dict[str, Any], float]] = [
    ("legs", {"elapsed": 3.0}, 3.0),
    ("legt", {"theta": 2.0}, 2.0),
    ("legt", {"halved": True}, 2.0),
    ("lmu", {"theta": 2.0}, 2.0),
    ("fourier", {"theta": 5.0}, 5.0),
    ("lagt", {"theta": 2.0}, 120.0),
    ("lagt", {"theta": 2.0, "beta": 3.0}, 120.0),
    ("tlagt", {"theta": 2.0}, 120.0),
    ("tlagt", {"theta": 2.0, "beta": 0.5}, 120.0),
    ("glagt", {"theta": 2.0, "alpha": 0.3}, 120.0),
]


@pytest.mark.parametrize(("measure", "options", "end"), CASES)
def test_the_functions_are_orthonormal_under_it(measure: str, options: dict[str, Any], end: float) -> None:
    # x = end y^4: many points near age 0, where s^alpha is steep
    y = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    ages, jacobian = end * y**4, 4 * end * y**3 / 200_000
    values = hippo.basis(measure, N, ages, **options)
    weight = hippo.density(measure, ages, **options) * jacobian
    found = values.mT @ (weight[:, None] * values)
    lengths = torch.ones(N, dtype=torch.float64)
    if measure == "lmu":
        lengths = 1 / (2 * torch.arange(N, dtype=torch.float64) + 1)
    if measure == "fourier":
        lengths[1] = 0  # the sine of frequency 0
    torch.testing.assert_close(found, torch.diag(lengths), atol=1e-5, rtol=0)


def test_outside_of_a_measure_nothing_counts() -> None:
    ages = torch.tensor([-1.0, 0.5, 9.0])
    for measure in ("legt", "tlagt"):
        found = hippo.density(measure, ages, theta=1.0)
        assert float(found[0]) == 0.0
        assert float(found[1]) > float(found[2])
    with pytest.raises(InputError, match=r"fourier_diag are orthogonal under no weight"):
        hippo.density("fourier_diag", ages)
