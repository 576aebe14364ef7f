"""A format as a table: each tensor used once, both ways, and what is wrong named."""

from __future__ import annotations

import pytest
import torch
from checkpoint_examples import refusal
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, read_entries, reshaped, same, write_entries
from statewise.errors import CheckpointError

TABLE = (
    same("backbone.a", "a"),
    reshaped("conv", "taps", theirs_shape=(4, 1, 3), ours_shape=(4, 3)),
    Entry(("q", "k"), ("qk",), lambda q, k: torch.cat([q, k]), lambda qk: qk.chunk(2)),
    Entry(("table",), (), to_theirs=lambda: torch.arange(3), optional=True),
    Entry(("log",), ("log",), lambda x: -x.exp(), lambda x: (-x).log()),
)
SHAPES = {"a": (2,), "taps": (4, 3), "qk": (4, 2), "log": (2,)}


def theirs() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"backbone.a": (2,), "conv": (4, 1, 3), "q": (2, 2), "k": (2, 2), "log": (2,)}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def test_round_trip() -> None:
    given = theirs()
    ours = read_entries(TABLE, given, SHAPES)
    assert {name: tuple(t.shape) for name, t in ours.items()} == SHAPES
    assert ours["a"] is given["backbone.a"]
    back = write_entries(TABLE, ours)
    assert back.keys() == given.keys()
    for name in given.keys() - {"log"}:
        assert torch.equal(back[name], given[name]), name
    torch.testing.assert_close(back["log"], given["log"])


def test_an_optional_tensor_may_be_there_and_is_not_kept() -> None:
    ours = read_entries(TABLE, theirs() | {"table": torch.arange(3)}, SHAPES)
    assert ours.keys() == SHAPES.keys()


def test_what_is_wrong_is_named() -> None:
    def said(change: dict[str, Tensor | None]) -> str:
        given = {name: tensor for name, tensor in (theirs() | change).items() if tensor is not None}
        return refusal(read_entries, TABLE, given, SHAPES, where="model.bin")

    assert said({"q": None}) == "model.bin: the tensor q is missing"
    assert said({"extra": torch.ones(1)}) == "model.bin: the tensor extra does not belong to this architecture"
    renamed = said({"backbone.a": None, "backbone.A": torch.ones(2)})
    assert "the tensor backbone.a is missing; there is backbone.A, which may be it under another name" in renamed
    assert "conv has shape (4, 3, 1), expected (4, 1, 3)" in said({"conv": torch.ones(4, 3, 1)})
    assert "backbone.a gives a of shape (3,), expected (2,)" in said({"backbone.a": torch.ones(3)})


def test_a_table_that_does_not_fit_the_model() -> None:
    with pytest.raises(CheckpointError, match="tensor b is read from no"):
        read_entries(TABLE, theirs(), SHAPES | {"b": (1,)})
    with pytest.raises(CheckpointError, match="names a tensor twice"):
        read_entries((*TABLE, same("q", "b")), theirs(), SHAPES | {"b": (2, 2)})
    with pytest.raises(CheckpointError, match="tensor a of no"):
        read_entries(TABLE, theirs(), {name: SHAPES[name] for name in ("taps", "qk", "log")})


def test_writing_uses_each_of_ours_once() -> None:
    ours = read_entries(TABLE, theirs(), SHAPES)
    with pytest.raises(CheckpointError, match="tensor b has no place"):
        write_entries(TABLE, ours | {"b": torch.ones(1)})
    with pytest.raises(CheckpointError, match="tensor a is missing, or is there twice"):
        write_entries((*TABLE, same("other", "a")), ours)
