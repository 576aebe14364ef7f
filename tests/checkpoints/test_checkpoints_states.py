"""A model's recurrent state in a file, and trees of tensors by name."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from checkpoint_examples import TINY, refusal, tiny_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._pytree import tree_map

import statewise as sw
from statewise import checkpoints
from statewise.checkpoints import flatten_tree, unflatten_into
from statewise.errors import InputError

FULL = dataclasses.replace(TINY, layers=(*TINY.layers, sw.AttentionConfig(n_heads=2)))


def read(model: sw.LanguageModel, n_tokens: int = 20, **options: Any) -> tuple[Tensor, Tensor, sw.LanguageModelState]:
    """A prompt of two rows, the tokens after it, and the state between them."""
    tokens = torch.randint(0, 257, (2, n_tokens + 5), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, state = model(tokens[:, :n_tokens], model.initial_state(2), **options)
    return tokens[:, :n_tokens], tokens[:, n_tokens:], state


def same(one: Any, other: Any) -> bool:
    flat_one, flat_other = flatten_tree(one, "x"), flatten_tree(other, "x")
    return flat_one.keys() == flat_other.keys() and all(
        flat_one[name].dtype == flat_other[name].dtype and torch.equal(flat_one[name], flat_other[name])
        for name in flat_one
    )


@pytest.mark.parametrize("lengths", [None, [20, 3], [0, 11]])
def test_a_text_read_once_is_written_on_from_later(tmp_path: Path, lengths: list[int] | None) -> None:
    model = tiny_model(config=FULL)
    _, rest, state = read(model, lengths=None if lengths is None else torch.tensor(lengths))
    path = checkpoints.save_state(state, tmp_path / "a" / "state", model=model)
    loaded = checkpoints.load_state(path, model=model)
    assert type(loaded) is sw.LanguageModelState
    assert same(state, loaded)
    assert torch.equal(model(rest, state)[0], model(rest, loaded)[0])
    assert [file.name for file in path.parent.iterdir()] == ["state"]


def test_a_state_that_has_read_nothing(tmp_path: Path) -> None:
    model = tiny_model(config=FULL)
    state = model.initial_state(3)
    assert same(state, checkpoints.load_state(checkpoints.save_state(state, tmp_path / "s", model=model), model=model))


def test_one_history_may_be_held_by_two_states(tmp_path: Path) -> None:
    """An old state of an attention layer, whose buffer has been written on, is saved as what it was."""
    model = tiny_model(config=FULL)
    _, rest, old = read(model)
    with torch.no_grad():
        expected = model(rest, tree_map(torch.clone, old))[0]
        model(torch.zeros_like(rest), old)
        path = checkpoints.save_state(old, tmp_path / "state", model=model)
        assert torch.equal(model(rest, checkpoints.load_state(path, model=model))[0], expected)


def test_a_state_replaces_a_file_and_nothing_else(tmp_path: Path) -> None:
    model = tiny_model()
    one, other = read(model)[2], read(model, 3)[2]
    checkpoints.save_state(one, tmp_path / "state", model=model)
    checkpoints.save_state(other, tmp_path / "state", model=model)
    assert same(checkpoints.load_state(tmp_path / "state", model=model), other)
    (tmp_path / "folder").mkdir()
    assert "cannot save" in refusal(checkpoints.save_state, one, tmp_path / "folder", model=model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "state"]
    with pytest.raises(InputError, match="needs a LanguageModelState; got a Tensor"):
        checkpoints.save_state(torch.ones(1), tmp_path / "other", model=model)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_same_weights_in_another_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = sw.save(tiny_model(), tmp_path / "model")
    model, cast = sw.load(folder), sw.load(folder, dtype=dtype)
    _, rest, state = read(model)
    loaded = checkpoints.load_state(checkpoints.save_state(state, tmp_path / "state", model=model), model=model)
    assert same(loaded, state)
    if dtype == torch.bfloat16:
        assert torch.isfinite(cast(rest, checkpoints.load_state(tmp_path / "state", model=cast))[0]).all()
    else:
        said = refusal(checkpoints.load_state, tmp_path / "state", model=cast)
        assert "is torch.float32, expected torch.float64" in said


def test_the_state_of_another_model(tmp_path: Path) -> None:
    model = tiny_model(0)
    path = checkpoints.save_state(read(model)[2], tmp_path / "state", model=model)
    mamba, block = TINY.layers
    assert isinstance(mamba, sw.Mamba2Config)
    other = dataclasses.replace(TINY, layers=(dataclasses.replace(mamba, d_state=8), block))
    said = refusal(checkpoints.load_state, path, model=tiny_model(0, other))
    assert said == f"{path} is the state of another model: layers.0.mixer.d_state is 4 there and 8 here"
    said = refusal(checkpoints.load_state, path, model=tiny_model(1))
    assert "is the state of a model with different weights" in said
    with torch.no_grad():
        model.norm.weight[0] += 0.5  # type: ignore[index, operator, union-attr]
    assert "with different weights" in refusal(checkpoints.load_state, path, model=model)


def test_damaged_states(tmp_path: Path) -> None:
    model, path = tiny_model(), tmp_path / "state"
    checkpoints.save_state(read(model)[2], path, model=model)
    content, choose = path.read_bytes(), random.Random(0)
    for _ in range(60):
        at, bit = choose.randrange(len(content)), choose.randrange(8)
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
        assert str(path) in refusal(checkpoints.load_state, path, model=model), (at, bit)
    for _ in range(20):
        path.write_bytes(content[: choose.randrange(len(content))])
        assert str(path) in refusal(checkpoints.load_state, path, model=model)


def test_files_that_are_no_states(tmp_path: Path) -> None:
    model, path = tiny_model(), tmp_path / "state"

    def said() -> str:
        return refusal(checkpoints.load_state, path, model=model)

    assert said() == f"there is no state at {path}"
    path.mkdir()
    assert said() == f"{path} is a folder, not a state"
    path.rmdir()
    path.write_text("text")
    assert "is not a safetensors file" in said()
    torch.save({}, path)
    assert "is a pickle" in said()
    save_file({"a": torch.ones(1)}, path)
    assert "not a state that Statewise wrote" in said()
    for text, expected in (
        ("3", "has no format_version"),
        ("{", "is not JSON"),
        ('{"format_version": 9}', "from a newer Statewise; this one reads up to 1. Upgrade statewise"),
        ('{"format_version": 1}', "is damaged: its checksum does not match"),
    ):
        save_file({"a": torch.ones(1)}, path, {"statewise": text})
        assert expected in said()


def test_of_a_compiled_model_and_of_the_model(tmp_path: Path) -> None:
    model = tiny_model()
    compiled: Any = torch.compile(model, backend="eager")
    state = read(model)[2]
    for saver, loader in ((compiled, model), (model, compiled)):
        checkpoints.save_state(state, tmp_path / "state", model=saver)
        assert same(checkpoints.load_state(tmp_path / "state", model=loader), state)


def test_forged_states(tmp_path: Path) -> None:
    """With a checksum that is right, the tensors still have to be those of the model."""
    from safetensors import safe_open

    from statewise.checkpoints.states import _digest

    model, path = tiny_model(), tmp_path / "state"
    checkpoints.save_state(read(model)[2], path, model=model)
    with safe_open(path, "pt") as file:
        metadata = json.loads(file.metadata()["statewise"])
    del metadata["sha256"]
    tensors = load_file(path)

    def said(changed: dict[str, Tensor], **fields: Any) -> str:
        data = {**metadata, **fields}
        data["sha256"] = _digest(data, changed)
        save_file(changed, path, {"statewise": json.dumps(data)})
        return refusal(checkpoints.load_state, path, model=model)

    name = next(name for name in tensors if name.startswith("state.layers.0.ssm"))
    without = {key: value for key, value in tensors.items() if key != name}
    assert f"the tensor {name} is missing" in said(without)
    assert "the tensor state.layers.7 is unexpected" in said({**tensors, "state.layers.7": torch.ones(2)})
    assert f"{name} has shape (2, 3)" in said({**tensors, name: torch.ones(2, 3)})
    assert f"{name} is torch.int64, expected torch.float32" in said({**tensors, name: tensors[name].long()})
    assert "it has no position for each row" in said({**tensors, "state.position": torch.tensor(1)})
    three = {**tensors, "state.position": torch.zeros(3, dtype=torch.int64)}
    assert "has shape (2," in said(three)
    assert "it has no position for each row" in said({k: v for k, v in tensors.items() if k != "state.position"})
    for batch in (-1, 10**14, "many"):  # is for people; what there is, the tensors say
        data = {**metadata, "batch": batch}
        data["sha256"] = _digest(data, tensors)
        save_file(tensors, path, {"statewise": json.dumps(data)})
        assert len(checkpoints.load_state(path, model=model).position) == 2
    assert "did you mean 'd_model'?" in said(tensors, model={"d_modl": 3})


# -- trees -----------------------------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    a: Tensor
    b: Tensor | None


def test_a_tree_by_name() -> None:
    tree = {"x": (Leaf(torch.ones(1), None), [torch.zeros(2), ()]), 3: torch.tensor(5)}
    flat = flatten_tree(tree, "t")
    assert sorted(flat) == ["t.3", "t.x.0.a", "t.x.1.0"]
    template = tree_map(lambda leaf: None if leaf is None else torch.full_like(leaf, 9), tree)
    back = unflatten_into(template, {**flat, "other.a": torch.ones(1)}, "t")
    assert isinstance(back["x"][0], Leaf)
    assert back["x"][0].b is None
    assert same(back, tree)
    assert flatten_tree(torch.ones(1), "t").keys() == {"t"}
    assert same(unflatten_into(torch.ones(1), {"t": torch.zeros(1)}, "t"), torch.zeros(1))


def test_trees_that_cannot_be_named() -> None:
    with pytest.raises(InputError, match=r"t\.a is a float; expected a tensor"):
        flatten_tree({"a": 1.0}, "t")
    with pytest.raises(InputError, match=r"t\.0 names two leaves"):
        flatten_tree({0: torch.ones(1), "0": torch.ones(1)}, "t")


def test_tensors_that_do_not_fit_a_tree() -> None:
    template = Leaf(torch.ones(2, 3), torch.ones(2))
    good = flatten_tree(template, "t")
    assert "the tensor t.b is missing" in refusal(unflatten_into, template, {"t.a": good["t.a"]}, "t")
    assert "the tensor t.c is unexpected" in refusal(unflatten_into, template, {**good, "t.c": good["t.b"]}, "t")
    assert "t.b has shape (3,), expected (2)" in refusal(unflatten_into, template, {**good, "t.b": torch.ones(3)}, "t")
    wide = {**good, "t.b": torch.ones(2).double()}
    assert "t.b is torch.float64, expected torch.float32" in refusal(unflatten_into, template, wide, "t")
    grown = {**good, "t.a": torch.ones(2, 7)}
    assert "t.a has shape (2, 7), expected (2, 3)" in refusal(unflatten_into, template, grown, "t")
    assert same(unflatten_into(template, {**wide, **grown, "t.b": wide["t.b"]}, "t", same_shapes=False).a, grown["t.a"])
    for wrong in (torch.ones(3, 3), torch.ones(2), torch.ones(2, 3, 1)):
        assert "t.a has shape" in refusal(unflatten_into, template, {**good, "t.a": wrong}, "t", same_shapes=False)
    narrow = {**good, "t.b": torch.ones(2).half()}
    assert "t.b is torch.float16" in refusal(unflatten_into, template, narrow, "t", same_shapes=False)
