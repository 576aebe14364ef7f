"""Configs of the tests of configs: a drawing of shapes, or of models."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import statewise as sw
from statewise.configuration import Config
from statewise.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Shape(Config):
    @abc.abstractmethod
    def area(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Square(Shape):
    side: float = 1.0

    def __post_init__(self) -> None:
        if self.side <= 0:
            raise ConfigError(f"Square.side={self.side} is out of range; use a number above 0")

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True, kw_only=True)
class Disc(Shape):
    radius: float
    center: tuple[float, float] = (0.0, 0.0)

    def area(self) -> float:
        return math.pi * self.radius**2


@dataclass(frozen=True, kw_only=True)
class Pen(Config):
    color: Literal["black", "red"] = "black"
    width: int = 1


@dataclass(frozen=True, kw_only=True)
class Drawing(Config):
    name: str
    shapes: tuple[Shape, ...] = ()
    first: Square | Disc | None = None
    pen: Pen = Pen()
    second_pen: Pen | None = None
    limit: float | None = None
    scale: float = 1.0
    copies: int = 1
    final: bool = False
    sizes: tuple[int, ...] = ()
    label: Literal["left", 3] | None = None
    low: int = 0
    high: int = 1

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"Drawing.low={self.low} is above high={self.high}")


TYPES = {"Square": Square, "Disc": Disc, "Pen": Pen}


DRAWING = Drawing(
    name="a",
    shapes=(Square(side=2.0), Disc(radius=1.5, center=(1.0, 2.0))),
    first=Disc(radius=math.inf),
    second_pen=Pen(color="red"),
    sizes=(1, 2, 3),
    label=3,
)


def message(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


HYBRID = sw.LanguageModelConfig(
    vocab_size=257,
    d_model=32,
    layers=(
        sw.Mamba2Config(d_state=16, d_head=16),
        sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=4, window=32), mlp=sw.MLPConfig(expand=2), norm="layer"),
    ),
)
