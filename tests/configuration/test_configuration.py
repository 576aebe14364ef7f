"""Configs to JSON and back, strictly."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from drawings import DRAWING, HYBRID, TYPES, Drawing, Pen, Square, message
from hypothesis import given, settings

import statewise as sw
from statewise.configuration import from_dict, parse_json, to_dict
from statewise.models.registry import CONFIG_TYPES, model_from_dict, model_to_dict


def load(data: Any, cls: Any = Drawing) -> Any:
    return from_dict(cls, data, types=TYPES)


def test_round_trip_through_json() -> None:
    data = json.loads(json.dumps(to_dict(DRAWING), allow_nan=False))
    assert load(data) == DRAWING
    assert data["shapes"][1] == {"type": "Disc", "radius": 1.5, "center": [1.0, 2.0]}
    assert data["first"] == {"type": "Disc", "radius": "inf", "center": [0.0, 0.0]}
    assert data["pen"] == {"color": "black", "width": 1}


@settings(max_examples=50)
@given(
    scale=st.floats(allow_nan=False, width=32),
    copies=st.integers(),
    name=st.text(),
    sizes=st.lists(st.integers()).map(tuple),
    limit=st.none() | st.floats(allow_nan=False, width=32),
    sides=st.lists(st.floats(min_value=2**-100, allow_nan=False, width=32)),
)
def test_any_values_survive(sides: list[float], **fields: Any) -> None:
    drawing = Drawing(shapes=tuple(Square(side=side) for side in sides), **fields)
    assert load(json.loads(json.dumps(to_dict(drawing), allow_nan=False))) == drawing


def test_what_is_converted() -> None:
    """An integer for a float, a list for a tuple, and nothing else."""
    drawing = load({"name": "a", "scale": 3, "sizes": [1, 2], "limit": "-inf"})
    assert type(drawing.scale) is float
    assert drawing.sizes == (1, 2)
    assert drawing.limit == -math.inf
    assert type(to_dict(Drawing(name="a", scale=3))["scale"]) is float


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"name": 3}, "config.name=3 has the wrong type (integer); expected a string"),
        ({"name": None}, "config.name=None has the wrong type (null); expected a string"),
        ({"copies": True}, "config.copies=True has the wrong type (boolean); expected an integer"),
        ({"copies": 1.0}, "config.copies=1.0 has the wrong type (number); expected an integer"),
        ({"copies": "2"}, "config.copies='2' has the wrong type (string); expected an integer; drop the quotes: 2"),
        ({"final": 1}, "config.final=1 has the wrong type (integer); expected true or false"),
        ({"final": "true"}, "config.final='true' has the wrong type (string); expected true or false"),
        ({"scale": True}, "config.scale=True has the wrong type (boolean); expected a number"),
        ({"scale": "3e-4"}, "config.scale='3e-4' has the wrong type (string); expected a number; drop the q"),
        ({"scale": "fast"}, "config.scale='fast' has the wrong type (string); expected a number"),
        ({"scale": math.nan}, "config.scale=NaN is not a number; expected a number"),
        ({"limit": math.nan}, "config.limit=NaN is not a number; expected a number or null"),
        ({"limit": "1"}, "config.limit='1' has the wrong type (string); expected a number or null; drop the quotes: 1"),
        ({"scale": 10**400}, "config.scale is an integer too large for a floating-point number; use a smaller one"),
        ({"scale": None}, "config.scale=None has the wrong type (null); expected a number"),
        ({"sizes": "3,4"}, "config.sizes='3,4' has the wrong type (string); expected a list of an integer; write [3"),
        ({"sizes": "abc"}, "config.sizes='abc' has the wrong type (string); expected a list of an integer"),
        ({"sizes": 3}, "config.sizes=3 has the wrong type (integer); expected a list of an integer"),
        ({"sizes": [1, "b"]}, "config.sizes.1='b' has the wrong type (string); expected an integer"),
        ({"sizes": {"a": 1}}, "config.sizes={'a': 1} has the wrong type (object); expected a list of an integer"),
        ({"pen": {"color": "blak"}}, "config.pen.color='blak' is unknown; did you mean 'black'? Use one of"),
        ({"pen": 3}, "config.pen=3 has the wrong type (integer); expected Pen"),
        ({"pen": [{"width": 2}]}, "config.pen=[{'width': 2}] has the wrong type (list); expected Pen"),
        ({"label": "lef"}, "config.label='lef' is unknown; did you mean 'left'? Use one of: left, 3"),
        ({"label": True}, "config.label=True has the wrong type (boolean); expected 'left' or 3 or null"),
        ({"first": {"type": "Disc"}}, "config.first: Disc needs the field 'radius' (a number)"),
        ({"first": {"type": "Disc", "radius": 1, "center": [1]}}, "config.first.center=[1] has 1 values; expected"),
        ({"first": {"radius": 1}}, 'config.first needs a "type" that names its class; known: Square, Disc'),
        ({"first": {"type": "Pen"}}, "config.first.type='Pen' is unknown here; known: Square, Disc"),
        ({"first": {"type": 3}}, "config.first.type=3 has the wrong type (integer); expected a string"),
        ({"shapes": [{"type": "Sqare"}]}, "config.shapes.0.type='Sqare' is unknown here; did you mean 'Square'?"),
        ({"shapes": [{"type": "Shape"}]}, "config.shapes.0.type='Shape' is unknown here; did you mean 'Square'?"),
        ({"shapes": [{}, {}]}, 'config.shapes.0 needs a "type" that names its class; known: Square, Disc'),
        ({"shapes": [{"type": "Square", "side": -1}]}, "config.shapes.0: Square.side=-1.0 is out of range"),
        ({"pen": {"type": "Square"}}, "config.pen.type='Square' is unknown here; known: Pen"),
        ({"low": 2}, "config: Drawing.low=2 is above high=1"),
    ],
)  # fmt: skip
def test_refused(data: dict[str, Any], expected: str) -> None:
    assert message(load, {"name": "a", **data}).startswith(expected)


def test_no_list_is_suggested_that_would_be_refused() -> None:
    assert "write" not in message(load, {"name": "a", "sizes": "abc"})


def test_an_unknown_field_names_the_nearest_one() -> None:
    said = message(load, {"name": "a", "pen": {"colour": "red"}})
    assert said == "config.pen: Pen has no field 'colour'; did you mean 'color'? Its fields: color, width"
    assert "did you mean" not in message(load, {"name": "a", "zzz": 1})
    assert message(load, {}).endswith("Drawing needs the field 'name' (a string)")
    assert message(from_dict, Drawing, {"nam": 1}, where="run.json").startswith("run.json: Drawing has no field 'nam'")


@pytest.mark.parametrize("data", [None, 3, "text", [1], True])
def test_a_config_is_an_object(data: Any) -> None:
    assert "expected Drawing" in message(load, data)


def test_the_type_of_a_settled_class_may_be_named() -> None:
    assert load({"type": "Pen", "width": 2}, Pen) == Pen(width=2)
    assert "is unknown here" in message(load, {"type": "Square"}, Pen)


def test_a_model_round_trips_by_name() -> None:
    data = json.loads(json.dumps(model_to_dict(HYBRID), allow_nan=False))
    assert data["type"] == "LanguageModelConfig"
    assert [layer["type"] for layer in data["layers"]] == ["Mamba2Config", "BlockConfig"]
    assert data["layers"][1]["mixer"]["type"] == "AttentionConfig"
    assert model_from_dict(data) == HYBRID


def test_every_config_in_the_registry_is_under_its_own_name() -> None:
    assert all(cls.__name__ == name for name, cls in CONFIG_TYPES.items())


def test_a_model_with_a_part_that_is_not_in_the_registry_is_not_written() -> None:
    @dataclass(frozen=True, kw_only=True)
    class OwnConfig(sw.Mamba2Config):
        pass

    said = message(model_to_dict, dataclasses.replace(HYBRID, layers=(OwnConfig(),)))
    assert said.startswith("model.layers.0.type='OwnConfig' is unknown here")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "a": 2}', "x is not JSON: the key 'a' is there twice"),
        ('{"a": NaN}', "x is not JSON: NaN is not JSON"),
        ('{"a": -Infinity}', "x is not JSON: -Infinity is not JSON"),
        ('{"a": 1', "x is not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        ("", "x is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "x is not JSON: it is not UTF-8 text (byte 0)"),
        ("[" * 100_000, "x cannot be read as JSON: it is nested too deeply"),
        ("9" * 5000, "x is not JSON to use: a number in it has more than 4,300 digits"),
    ],
)
def test_json_is_read_strictly(text: str | bytes, expected: str) -> None:
    assert message(parse_json, text, "x").startswith(expected)
    assert parse_json(b'{"a": [1, null]}', "x") == {"a": [1, None]}
