"""What is done to raw data within a model: scaled as batches are, in pieces as a whole, or refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise.data.sequences import standardise_rows
from statewise.errors import ConfigError, InputError
from statewise.models.raw_input import InputConfig, RawInput
from statewise.operators.masks import NO_MASKS, length_masks

LAYERS = (sw.Mamba2Config(d_state=8, d_head=8),)
SCALED = InputConfig(scaling="dataset", scale=(0.5, 1 / 3), shift=(-500.0, -1000 / 3))


def classifier(**fields: Any) -> Any:
    torch.manual_seed(0)
    config = {"n_classes": 3, "d_input": 2, "d_model": 16, "layers": LAYERS, **fields}
    return sw.SequenceClassifierConfig(**config).build().eval()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float32"])
def test_narrow_numbers_are_scaled_as_numpy_does_in_float32(dtype: str) -> None:
    x = np.random.default_rng(0).uniform(0, 200, (3, 50, 2)).astype(dtype)
    scale, shift = (np.array(part, np.float32) for part in (SCALED.scale, SCALED.shift))
    found = RawInput(SCALED)(torch.from_numpy(x), NO_MASKS, torch.float32)
    assert np.array_equal(found.numpy(), x * scale + shift)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_a_small_change_on_a_large_mean_is_not_lost(dtype: str) -> None:
    """Rounded to float32 first, these would be steps of 64."""
    x = (1e9 + np.arange(20.0)).reshape(1, 20, 1)
    config = InputConfig(scaling="dataset", scale=(1.0,), shift=(-1e9,))
    found = RawInput(config)(torch.from_numpy(x.astype(dtype)), NO_MASKS, torch.float32)
    assert found.flatten().tolist() == list(range(20))


def test_rows_by_their_own_steps() -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([40, 7, 1, 23])
    rows = [(rng.normal(size=(n, 2)) * 9 + 1000).astype(np.float32) for n in lengths]
    rows[3][:, 1] = 5.0  # which does not change
    padded = np.full((4, 40, 2), np.nan, np.float32)
    for row, given in zip(padded, rows):
        row[: len(given)] = given
    raw = RawInput(InputConfig(scaling="series"))
    found = raw(torch.from_numpy(padded), length_masks(40, torch.from_numpy(lengths)), torch.float32)
    for given, one in zip(rows, found.numpy()):
        scale, shift = standardise_rows(given, np.array([0]), np.array([len(given)]))
        assert np.array_equal(one[: len(given)], given * scale[0] + shift[0])
    assert (found[3, :23, 1] == 0).all()


def test_pieces_and_padding_are_as_the_whole() -> None:
    model = classifier(input=SCALED)
    x = (torch.randn(2, 60, 2) * 2 + 1000).double()
    whole, _ = model(x)
    state = model.initial_state(2)
    for piece in x.split(17, 1):
        so_far, state = model(piece, state)
    torch.testing.assert_close(so_far, whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.freeze()(x)[0], whole)
    x[1, 30:] = torch.nan
    padded, _ = model(x, lengths=torch.tensor([60, 30]))
    torch.testing.assert_close(padded[1:], model(x[1:, :30])[0], rtol=1e-4, atol=1e-4)
    unscaled = classifier()
    scaled = x[:1].float() * torch.tensor(SCALED.scale) + torch.tensor(SCALED.shift)
    torch.testing.assert_close(unscaled(scaled)[0], whole[:1], rtol=1e-3, atol=1e-3)


def test_steps_beyond_the_longest_are_not_read() -> None:
    model = classifier(input=InputConfig(max_length=30))
    x = torch.randn(2, 50, 2)
    expected, _ = model(x[:, :30])
    assert torch.equal(model(x)[0], expected)
    assert torch.equal(model(x, lengths=torch.tensor([50, 45]))[0], expected)
    state = model.initial_state(2)
    for piece in x.split(20, 1):
        so_far, state = model(piece, state)
    torch.testing.assert_close(so_far, expected, rtol=1e-4, atol=1e-4)
    assert state.position.tolist() == [30, 30]


def test_an_order_of_its_own() -> None:
    order = tuple(np.random.default_rng(0).permutation(20).tolist())
    model, plain = classifier(input=InputConfig(order=order)), classifier()
    x = torch.randn(2, 20, 2)
    torch.testing.assert_close(model(x)[0], plain(x[:, list(order)])[0])
    assert torch.equal(model(x, lengths=torch.tensor([20, 20]))[0], model(x)[0])
    for call in (lambda: model(x[:, :19]), lambda: model(x, lengths=torch.tensor([20, 19]))):
        with pytest.raises(InputError, match=r"has 19 steps; this model reads rows of 20"):
            call()


def test_what_needs_whole_rows_has_no_state() -> None:
    for config, why in (
        (InputConfig(scaling="series"), "over all steps"),
        (InputConfig(order=(1, 0)), "in its own order"),
    ):
        model = classifier(input=config)
        with pytest.raises(InputError, match=f"this model has no state: .*{why}"):
            model.initial_state(1)
        with pytest.raises(InputError, match=f"this model has no state: .*{why}"):
            model(torch.randn(1, 2, 2), classifier().initial_state(1))


def test_numbers_keep_their_digits() -> None:
    model = classifier(input=SCALED)
    for other in (copy.deepcopy(model).half(), copy.deepcopy(model).bfloat16(), copy.deepcopy(model).double()):
        assert other.input.scale.tolist() == list(SCALED.scale)
    assert not [name for name in model.state_dict() if name.startswith("input")], "they are in the config"
    half = copy.deepcopy(model).bfloat16()
    x = torch.randn(1, 9, 2) * 2 + 1000
    assert half(x)[0].dtype == torch.bfloat16
    torch.testing.assert_close(half(x)[0].float(), model(x)[0], rtol=0.1, atol=0.1)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = classifier(input=SCALED, classes=("a", "b", "c"))
    sw.save(model, tmp_path / "model")
    loaded = sw.load(tmp_path / "model")
    assert loaded.config == model.config
    x = torch.randint(900, 1100, (2, 30, 2), dtype=torch.int16)
    assert torch.equal(loaded(x)[0], model(x)[0])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scaling": "dataset"}, "with 0 scale and 0 shift; give one of each"),
        ({"scaling": "dataset", "scale": (1.0,)}, "with 1 scale and 0 shift"),
        ({"scaling": "series", "scale": (1.0,), "shift": (0.0,)}, "and none otherwise"),
        ({"order": (0, 2)}, "has 2 among 2 places"),
        ({"order": (0, 0)}, "has a value twice"),
        ({"order": (1, 0), "max_length": 3}, "would drop steps at random"),
        ({"scaling": "rows"}, "'rows' is unknown"),
    ],
)
def test_configs_that_say_no_such_thing(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        InputConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"d_input": 1, "input": SCALED}, "input scales 2 numbers a step, but d_input=1"),
        ({"d_input": None, "vocab_size": 5, "input": SCALED}, "but the model reads tokens"),
        ({"pooling": None, "input": InputConfig(max_length=5)}, "no output for each of their steps"),
        ({"classes": ("a", "b")}, "classes has 2 names, but n_classes=3"),
        ({"classes": ("a", "b", "a")}, "has a value twice"),
    ],
)
def test_models_that_do_not_fit(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        classifier(**fields)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="x must be real, of shape"):
        classifier(input=SCALED)(torch.randn(1, 3, 2, dtype=torch.complex64))
