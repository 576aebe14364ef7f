"""Configs to JSON and back, strictly, and single fields set by name."""

from __future__ import annotations

import abc
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import statewise as sw
from statewise.configuration import Config, assign, from_dict, parse_json, to_dict
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
from statewise.errors import ConfigError
from statewise.models.registry import CONFIG_TYPES, model_from_dict, model_to_dict


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
    scale=st.floats(allow_nan=False),
    copies=st.integers(),
    name=st.text(),
    sizes=st.lists(st.integers()).map(tuple),
    limit=st.none() | st.floats(allow_nan=False),
    sides=st.lists(st.floats(min_value=1e-300, allow_nan=False)),
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
        ({"scale": 10**400}, "config.scale is an integer too large for a number with a fraction; use a smaller one"),
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
    assert message(Drawing, "a").startswith("Drawing takes its fields by name: name, shapes, ")


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
        ("finite", (-1.0, 1e300), (math.inf, -math.inf), "a number"),
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


def test_what_is_wrong_inside_a_range_is_named() -> None:
    assert message(Limits, band=("a", 1.0)).startswith("Limits.band.0='a' has the wrong type (string)")
    assert message(Limits, norm="rsm") == "Limits.norm='rsm' is unknown; did you mean 'rms'? Use one of: rms, layer"


# -- assign ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "field", "value"),
    [
        ("scale=3e-4", "scale", 3e-4),
        ("scale = 2", "scale", 2.0),
        ("scale=inf", "scale", math.inf),
        ("scale=-Infinity", "scale", -math.inf),
        ("final=true", "final", True),
        ("name=1984", "name", "1984"),
        ("name=true", "name", "true"),
        ('name="true"', "name", "true"),
        ("name=", "name", ""),
        ("name=a=b", "name", "a=b"),
        ("limit=null", "limit", None),
        ("limit=2", "limit", 2.0),
        ("label=left", "label", "left"),
        ("label=3", "label", 3),
        ("sizes=[4, 5]", "sizes", (4, 5)),
        ("sizes.1=7", "sizes", (1, 7, 3)),
        ("pen.color=red", "pen", Pen(color="red")),
        ('pen={"width": 4}', "pen", Pen(width=4)),
        ("second_pen=null", "second_pen", None),
        ("first.center.1=3", "first", Disc(radius=math.inf, center=(0.0, 3.0))),
        ("shapes.0.side=5", "shapes", (Square(side=5.0), DRAWING.shapes[1])),
        ('shapes.0={"type": "Disc", "radius": 2}', "shapes", (Disc(radius=2.0), DRAWING.shapes[1])),
        ('shapes=[{"type": "Square"}]', "shapes", (Square(),)),
    ],
)
def test_assign(assignment: str, field: str, value: Any) -> None:
    changed = assign(DRAWING, [assignment])
    assert changed == dataclasses.replace(DRAWING, **{field: value})
    assert type(getattr(changed, field)) is type(value)


def test_assignments_are_checked_together_and_the_last_one_holds() -> None:
    assert assign(DRAWING, ["low=5", "high=9", "low=6"]) == dataclasses.replace(DRAWING, low=6, high=9)
    assert message(assign, DRAWING, ["low=5"]) == "Drawing.low=5 is above high=1"
    assert assign(DRAWING, []) == DRAWING


def test_a_new_subtree_can_be_set_further() -> None:
    given = ['second_pen={"width": 3}', "second_pen.color=red", 'first={"type": "Square"}', "first.side=4"]
    changed = assign(DRAWING, given)
    assert changed.second_pen == Pen(color="red", width=3)
    assert changed.first == Square(side=4.0)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("scal=1", "Drawing has no field 'scal'; did you mean 'scale'?"),
        ("pen.colr=red", "pen: Pen has no field 'colr'; did you mean 'color'?"),
        ("pen.color=rde", "pen.color='rde' is unknown; did you mean 'red'? Use one of: black, red"),
        ("shapes.0.sid=1", "shapes.0: Square has no field 'sid'; did you mean 'side'?"),
        ("shapes.0.side=0", "shapes.0: Square.side=0.0 is out of range"),
        ("shapes.2.side=0", "shapes has no item '2'; it has 2: use 0 to 1"),
        ("shapes.-1.side=0", "shapes has no item '-1'"),
        ("shapes.side=0", "shapes has no item 'side'"),
        ("shapes.0.type=Disc", 'shapes.0.type cannot be set alone; set shapes.0 whole: shapes.0={"type": ...}'),
        ("shapes=3", "shapes=3 has the wrong type (integer); expected a list of Shape"),
        ("copies=many", "copies='many' has the wrong type (string); expected an integer"),
        ("copies=1e3", "copies=1000.0 has the wrong type (number); expected an integer"),
        ("scale=.5", "scale='.5' has the wrong type (string); expected a number; drop the quotes: 0.5"),
        ("scale=NaN", "scale=NaN is not a number"),
        ('pen={"width": 1, "width": 2}', "pen: the key 'width' is there twice"),
        ("scale.x=1", "scale is a number; it has no field 'x'"),
        ("limit.x=1", "limit is a number or null; it has no field 'x'"),
        ("final=True", "final='True' has the wrong type (string); expected true or false"),
        ("scale", "'scale' is not an assignment; write field=value"),
        ("=1", "'=1' is not an assignment"),
        ("pen..color=red", "'pen..color=red' is not an assignment"),
    ],
)
def test_assign_refuses(assignment: str, expected: str) -> None:
    assert message(assign, DRAWING, [assignment]).startswith(expected)


def test_a_field_of_nothing_cannot_be_set() -> None:
    said = message(assign, Drawing(name="a"), ["second_pen.width=3"])
    assert said == "second_pen is null, so second_pen.width cannot be set; set second_pen whole (Pen) as JSON"
    assert "sizes has no item '0'; it is empty" in message(assign, Drawing(name="a"), ["sizes.0=1"])


def test_only_known_types_can_be_assigned() -> None:
    drawing = Drawing(name="a")
    new = ['shapes=[{"type": "Square"}]']
    assert "is unknown here" in message(assign, drawing, new)
    assert assign(drawing, new, types=TYPES).shapes == (Square(),)


# -- models ----------------------------------------------------------------------------------------------------------

HYBRID = sw.LanguageModelConfig(
    vocab_size=257,
    d_model=32,
    layers=(
        sw.Mamba2Config(d_state=16, d_head=16),
        sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=4, window=32), mlp=sw.MLPConfig(expand=2), norm="layer"),
    ),
)


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


def test_a_models_fields_can_be_assigned() -> None:
    changed = assign(HYBRID, ["layers.0.d_state=64", "layers.1.mlp=null"])
    assert changed.layers[0] == sw.Mamba2Config(d_state=64, d_head=16)
    assert changed.layers[1].mlp is None  # type: ignore[union-attr]
    assert "layers.0: Mamba2Config has no field 'd_sate'; did you mean 'd_state'?" in message(
        assign, HYBRID, ["layers.0.d_sate=64"]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "a": 2}', "x is not JSON: the key 'a' is there twice"),
        ('{"a": NaN}', "x is not JSON: NaN is not JSON"),
        ('{"a": -Infinity}', "x is not JSON: -Infinity is not JSON"),
        ('{"a": 1', "x is not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        ("", "x is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "x is not JSON: it is not UTF-8 text (byte 0)"),
        ("[" * 100_000, "x is not usable JSON: it is nested too deeply"),
        ("9" * 5000, "x is not JSON: Exceeds the limit"),
    ],
)
def test_json_is_read_strictly(text: str | bytes, expected: str) -> None:
    assert message(parse_json, text, "x").startswith(expected)
    assert parse_json(b'{"a": [1, null]}', "x") == {"a": [1, None]}


@pytest.mark.parametrize("config", [sw.S4DConfig, sw.H3Config, sw.MambaConfig, sw.Mamba2Config, sw.Mamba3Config])
def test_a_range_given_as_a_list_is_a_tuple(config: Any) -> None:
    listed, usual = config(dt_range=[1e-3, 1e-1]), config(dt_range=(1e-3, 1e-1))  # type: ignore[call-arg]
    assert listed == usual
    assert hash(listed) == hash(usual)
