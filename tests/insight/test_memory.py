"""HiPPO's memory: readings are the reconstruction of the coefficients, and reach as far as the measure."""

from __future__ import annotations

import pytest
import torch

from statewise import hippo
from statewise.errors import InputError
from statewise.insight import hippo_memory

SIGNAL = torch.sin(torch.arange(300, dtype=torch.float64) / 30)


@pytest.mark.parametrize("measure", hippo.MEASURES)
def test_a_reading_is_the_sum_of_its_functions(measure: str) -> None:
    found = hippo_memory(SIGNAL, measure, 8, at=(100, 300))
    for reading in found.readings:
        c = found.coefficients[reading.steps - 1]
        torch.testing.assert_close(reading.values, sum(c[i] * reading.basis[:, i] for i in range(8)))
        assert int(reading.places[-1]) == reading.steps - 1
        seen = SIGNAL[reading.places]
        error = float(((reading.values - seen) ** 2).sum().sqrt() / (seen**2).sum().sqrt())
        assert reading.error == pytest.approx(error)
    covered = {"legs": 300, "legt": 100, "lmu": 100, "fourier": 100}.get(measure, 300)
    assert len(found.readings[1].places) == covered


def test_legendre_reads_a_slow_signal_back() -> None:
    assert hippo_memory(SIGNAL, "legs", 16).readings[0].error < 0.01
    reading = hippo_memory(SIGNAL, "legt", 8, theta=100.0).readings[0]
    assert reading.error < 0.01
    assert float(reading.density.sum()) == pytest.approx(1.0)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"the signal must be a tensor \(length,\) of at least one step"):
        hippo_memory(torch.zeros(1, 3), "legs", 4)
    with pytest.raises(InputError, match=r"at has 301; the signal has 300 steps"):
        hippo_memory(SIGNAL, "legs", 4, at=(301,))
