"""Random choices of one case, all from one seed, and a note of each for whoever reads a finding."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Finding(AssertionError):
    """A case that did not do what it should; its message is one line."""


class Draw:
    """Draws from one seed. What is drawn under a name is noted, and a finding prints the notes.

    >>> Draw(1).integer(1, 6, "length") == Draw(1).integer(1, 6)
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.notes: dict[str, str] = {}

    def note(self, name: str, value: object) -> None:
        text = repr(value)
        self.notes[name] = text if len(text) <= 300 else text[:300] + "..."

    def _noted(self, name: str | None, value: T) -> T:
        if name is not None:
            self.note(name, value)
        return value

    def integer(self, low: int, high: int, name: str | None = None) -> int:
        """low <= value <= high."""
        return self._noted(name, self.random.randint(low, high))

    def size(self, high: int, name: str | None = None) -> int:
        """0 <= value <= high, small ones and the edges of vectors and chunks more often."""
        edges = [n for n in (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, high) if n <= high]
        value = self.random.choice(edges) if self.random.random() < 0.4 else self.random.randint(0, high)
        return self._noted(name, value)

    def choice(self, among: Sequence[T], name: str | None = None) -> T:
        return self._noted(name, self.random.choice(among))

    def chance(self, probability: float, name: str | None = None) -> bool:
        return self._noted(name, self.random.random() < probability)

    def log_uniform(self, low: float, high: float, name: str | None = None) -> float:
        """0 < low <= value <= high."""
        return self._noted(name, math.exp(self.random.uniform(math.log(low), math.log(high))))

    def normal(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def decays(self, *shape: int, dtype: torch.dtype = torch.float64, largest: float = 1e30) -> Tensor:
        """Logarithms of decays: -1e-6 to -largest log-uniformly, a few 0, and in one case of three all of them mild."""
        exponent = torch.rand(*shape, generator=self.generator, dtype=torch.float64)
        high = 0.0 if self.random.random() < 1 / 3 else math.log10(largest)
        log_a = -(10 ** (-6 + exponent * (high + 6)))
        log_a[torch.rand(*shape, generator=self.generator) < 0.05] = 0.0
        return log_a.to(dtype)

    def laid_out(self, m: Tensor) -> Tensor:
        """The same numbers with other strides: as they are, transposed in memory, every second one, or at an offset."""
        how = self.random.randrange(4)
        if how == 1 and m.ndim >= 2:
            i, j = self.random.sample(range(m.ndim), 2)
            return m.transpose(i, j).contiguous().transpose(i, j)
        if how == 2 and m.ndim:
            wide = m.new_full((*m.shape[:-1], 2 * m.shape[-1]), math.nan if m.is_floating_point() else 0)
            wide[..., ::2] = m
            return wide[..., ::2]
        if how == 3:
            offset = self.random.randint(1, 3)
            flat = m.new_zeros(m.numel() + offset)
            flat[offset:] = m.reshape(-1)
            return flat[offset:].view(m.shape)
        return m

    def lengths(self, batch: int, length: int) -> Tensor:
        """(batch,) int64, 0 to length."""
        drawn = torch.tensor([self.random.randint(0, length) for _ in range(batch)], dtype=torch.int64)
        self.note("lengths", drawn.tolist())
        return drawn

    def starts(self, batch: int, length: int) -> Tensor:
        """(batch, length) bool, a document of about eight steps."""
        drawn = torch.rand(batch, length, generator=self.generator) < 1 / 8
        self.note("starts", drawn.nonzero().tolist())
        return drawn


def expect_close(name: str, got: Tensor, wanted: Tensor, tolerance: float, scale: float | None = None) -> None:
    """Finding unless |got - wanted| <= tolerance * max(1, scale), ``scale`` being max|wanted| if it is not given."""
    if got.shape != wanted.shape:
        raise Finding(f"{name}: shape {tuple(got.shape)}, expected {tuple(wanted.shape)}")
    if not wanted.numel():
        return
    got, wanted = got.detach().double(), wanted.detach().double()
    scale = max(1.0, float(wanted.abs().max()) if scale is None else scale)
    error = float((got - wanted).abs().max())
    if not error <= tolerance * scale:  # NaN as well
        raise Finding(f"{name}: off by {error:.3g} where {tolerance * scale:.3g} is allowed")


def expect_refusal(name: str, error: type[Exception], call: Any) -> None:
    """Finding unless the call raises ``error`` with one line of at most 400 characters."""
    try:
        call()
    except error as refused:
        text = str(refused)
        if "\n" in text or len(text) > 400:
            raise Finding(
                f"{name}: refused with {len(text)} characters in {text.count(chr(10)) + 1} lines"
            ) from refused
        return
    raise Finding(f"{name}: accepted, expected {error.__name__}")
