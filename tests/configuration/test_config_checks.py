"""A config checks itself when it is made: types, ranges, what holds between fields."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from drawings import DRAWING, Drawing, Pen, Square, message

import statewise as sw
from statewise.configuration import Config, from_dict, to_dict
from statewise.configuration.types import (
    EACH_ONCE,
    NOT_EMPTY,
    Count,
    EvenCount,
    Finite,
    Fraction,
    Name,
    Natural,
    NonNegative,
    OneOf,
    OpenRange,
    Positive,
    PositiveRange,
    Ratio,
    Seed,
    Share,
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": 3}, "Drawing.name=3 has the wrong type (integer); expected a string"),
        ({"sizes": 1}, "Drawing.sizes=1 has the wrong type (integer); expected a list of an integer"),
        ({"sizes": ("1",)}, "Drawing.sizes.0='1' has the wrong type (string); expected an integer; drop the quotes: 1"),
        ({"scale": math.nan}, "Drawing.scale=NaN is not a number; expected a number"),
        ({"scale": "inf"}, "Drawing.scale='inf' has the wrong type (string); expected a number"),
        ({"limit": "low"}, "Drawing.limit='low' has the wrong type (string); expected a number or None"),
        ({"final": 0}, "Drawing.final=0 has the wrong type (integer); expected True or False"),
        ({"pen": {"width": 2}}, "Drawing.pen={'width': 2} has the wrong type (object); expected Pen"),
        ({"pen": Square()}, "Drawing.pen=Square(side=1.0) has the wrong type (Square); expected Pen"),
        ({"shapes": (Square,)}, "Drawing.shapes.0=<class"),
        ({"copies": torch.tensor(3)}, "Drawing.copies=tensor(3) has the wrong type (Tensor); expected an integer; use"),
        ({"copies": np.array(3)}, "Drawing.copies=array(3) has the wrong type (ndarray); expected an integer; use"),
        ({"copies": torch.zeros(99)}, "Drawing.copies=tensor([0., 0., 0., "),
        ({"copies": "9" * 5000}, "Drawing.copies='999"),
        ({"name": 10**5000}, "Drawing.name=<int> has the wrong type (integer); expected a string"),
        ({"nam": "b"}, "Drawing has no field 'nam'; did you mean 'name'? Its fields: name, "),
        ({"low": 2}, "Drawing.low=2 is above high=1"),
    ],
)  # fmt: skip
def test_a_config_checks_itself_when_it_is_made(fields: dict[str, Any], expected: str) -> None:
    assert message(Drawing, **{"name": "a", **fields}).startswith(expected)
    assert message(dataclasses.replace, DRAWING, **fields).startswith(expected)


def test_a_path_is_given_as_text() -> None:
    assert message(Drawing, name=PurePosixPath("a")).endswith("; expected a string; use str(path)")


def test_a_field_without_a_default_is_needed_and_named() -> None:
    assert message(Drawing) == "Drawing needs the field 'name' (a string)"
    assert message(Drawing, "a").startswith("Drawing needs its fields by name: name, shapes, ")


def test_a_config_holds_values_in_one_form() -> None:
    """What is equal to a value of the declared type becomes one, so that configs compare, hash and save alike."""
    drawing = Drawing(name="a", sizes=[np.int64(1), 2], scale=np.float32(3), copies=np.uint8(2), final=np.bool_(True))  # type: ignore[arg-type]
    assert drawing == Drawing(name="a", sizes=(1, 2), scale=3.0, copies=2, final=True)
    assert hash(drawing) == hash(Drawing(name="a", sizes=(1, 2), scale=3.0, copies=2, final=True))
    assert [type(x) for x in (*drawing.sizes, drawing.scale, drawing.copies, drawing.final)] == [
        int, int, float, int, bool,
    ]  # fmt: skip
    assert type(Pen(width=2).width) is int
    assert Drawing(name="a", sizes=range(3)).sizes == (0, 1, 2)  # type: ignore[arg-type]


def test_a_default_is_checked_and_held_in_that_form_too() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Whole(Config):
        scale: float = 2

    @dataclass(frozen=True, kw_only=True)
    class Impossible(Config):
        width: Count = 0

    assert type(Whole().scale) is float
    assert message(Impossible) == "Impossible.width=0 is out of range; expected an integer of at least 1"


def test_a_subclass_that_could_not_be_read_back_is_not_written() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Brush(Pen):
        pass

    assert message(to_dict, Drawing(name="a", pen=Brush())).startswith("Drawing.pen=")


def test_fields_that_json_cannot_hold_are_mistakes_of_the_programmer() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wrong(Config):
        items: list[int]

    @dataclass(frozen=True, kw_only=True)
    class Hidden(Config):
        type: str

    with pytest.raises(TypeError, match=r"Wrong.items: a config field cannot be declared as list\[int\]"):
        from_dict(Wrong, {"items": [1]})
    with pytest.raises(TypeError, match=r"Hidden\.type"):
        to_dict(Hidden(type="a"))


@dataclass(frozen=True, kw_only=True)
class Limits(Config):
    count: Count = 1
    natural: Natural = 0
    even: EvenCount = 2
    seed: Seed = 0
    finite: Finite = 0.0
    positive: Positive = 1.0
    non_negative: NonNegative = 0.0
    ratio: Ratio = 0.0
    fraction: Fraction = 0.0
    share: Share = 1.0
    name: Name = "a"
    band: PositiveRange = (1.0, 2.0)
    limit: OpenRange = (0.0, math.inf)
    maybe: Count | None = None
    norm: Annotated[str, OneOf({"rms": 1, "layer": 2})] = "rms"
    some: Annotated[tuple[Count, ...], NOT_EMPTY, EACH_ONCE] = (1,)


@pytest.mark.parametrize(
    ("field", "good", "bad", "expected"),
    [
        ("count", (1, 10**30), (0, -1), "an integer of at least 1"),
        ("natural", (0, 5), (-1,), "an integer of at least 0"),
        ("even", (2, 64), (0, 3), "an integer of at least 2, even"),
        ("seed", (0, 2**32 - 1), (-1, 2**32), "an integer from 0 to 2**32 - 1"),
        ("finite", (-1.0, 3e38), (math.inf, -math.inf), "a number"),
        ("positive", (1e-300, 5), (0, -1.0, math.inf), "a number above 0"),
        ("non_negative", (0, 1e9), (-1e-9, math.inf), "a number of at least 0"),
        ("ratio", (0, 1), (-0.1, 1.1, math.inf), "a number from 0 to 1"),
        ("fraction", (0, 0.99), (1, -0.1), "a number of at least 0 and below 1"),
        ("share", (1e-9, 1), (0, 1.1), "a number above 0 and at most 1"),
        ("name", ("x",), ("",), "a string, not empty"),
        ("band", ((1, 1), [1e-3, 0.1]), ((2, 1), (0, 1), (1, math.inf), (1,)), "two numbers, 0 < low <= high"),
        ("limit", ((0, 1), (0, math.inf)), ((1, 1), (-1, 1)), "two numbers, 0 <= low < high"),
        ("maybe", (1, None), (0,), "an integer of at least 1 or None"),
        ("norm", ("layer",), (), "'rms' or 'layer'"),
        ("some", ((1, 2), [3]), ((), (1, 1)), "a list of an integer of at least 1, not empty, each once"),
    ],
)
def test_ranges(field: str, good: tuple[Any, ...], bad: tuple[Any, ...], expected: str) -> None:
    for value in good:
        config = Limits(**{field: value})
        assert getattr(config, field) == (tuple(value) if isinstance(value, list) else value)
        assert from_dict(Limits, json.loads(json.dumps(to_dict(config), allow_nan=False))) == config
    for value in bad:
        said = message(Limits, **{field: value})
        assert said.startswith(f"Limits.{field}={value!r} ")
        assert f"; expected {expected}" in said
    for value in (object(), b"1", math.nan, 1j):
        assert message(Limits, **{field: value}).startswith(f"Limits.{field}=")


def test_a_number_that_float32_does_not_have() -> None:
    """Found by make fuzz: a limit of 1e308 was a RuntimeError of PyTorch's, in the model."""
    said = message(Limits, limit=(1e308, math.inf))
    assert said == "Limits.limit.0=1e+308 is out of range; expected a number, its size at most 3.4e+38"
    assert Limits(limit=(3.4e38, math.inf)).limit == (3.4e38, math.inf)


def test_what_is_wrong_inside_a_range_is_named() -> None:
    assert message(Limits, band=("a", 1.0)).startswith("Limits.band.0='a' has the wrong type (string)")
    assert message(Limits, norm="rsm") == "Limits.norm='rsm' is unknown; did you mean 'rms'? Use one of: rms, layer"


@pytest.mark.parametrize("config", [sw.S4DConfig, sw.H3Config, sw.MambaConfig, sw.Mamba2Config, sw.Mamba3Config])
def test_a_range_given_as_a_list_is_a_tuple(config: Any) -> None:
    listed, usual = config(dt_range=[1e-3, 1e-1]), config(dt_range=(1e-3, 1e-1))  # type: ignore[call-arg]
    assert listed == usual
    assert hash(listed) == hash(usual)
