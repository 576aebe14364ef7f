"""Single fields of a config set by name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from drawings import DRAWING, HYBRID, TYPES, Disc, Drawing, Pen, Square, message

import statewise as sw
from statewise.configuration import assign


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
        ("sizes=4", "sizes", (4,)),
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


def test_a_list_of_one_is_written_as_its_item() -> None:
    data = sw.LabelledDataConfig(source="files", folder="a.csv")
    for text, columns in (("Kunde", ("Kunde",)), ("7", ("7",)), ('["a, b"]', ("a, b",)), ("[]", ())):
        assert assign(data, [f"ignored_fields={text}"]).ignored_fields == columns
    for text in ("a,b", "[a, b]", "[a]", ""):  # two, or one that a shell has taken the quotes from
        assert "expected a list of a string" in message(assign, data, [f"ignored_fields={text}"])
    assert 'write ["a", "b"], in a shell within single quotes' in message(assign, data, ["ignored_fields=a,b"])
    assert "has 1 values; expected" in message(assign, data, ["image_size=[8]"])
    assert "expected a list of 2 values" in message(assign, data, ["image_size=8"])


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
        ("shapes.0.type=Disc", 'shapes.0.type cannot be set by itself; set shapes.0 whole: shapes.0={"type": ...}'),
        ("shapes=3", "shapes=3 has the wrong type (integer); expected a list of Shape"),
        ("sizes=many", "sizes='many' has the wrong type (string); expected a list of an integer"),
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


def test_a_models_fields_can_be_assigned() -> None:
    changed = assign(HYBRID, ["layers.0.d_state=64", "layers.1.mlp=null"])
    assert changed.layers[0] == sw.Mamba2Config(d_state=64, d_head=16)
    assert changed.layers[1].mlp is None  # type: ignore[union-attr]
    assert "layers.0: Mamba2Config has no field 'd_sate'; did you mean 'd_state'?" in message(
        assign, HYBRID, ["layers.0.d_sate=64"]
    )
