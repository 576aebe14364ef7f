"""NaN in what a classifier or a regressor reads: a step without an observation to filters, an error to others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import statewise as sw
from statewise.errors import InputError
from statewise.mixers.kalman import KalmanConfig
from statewise.models.encoder import SequenceModel

FILTERS: tuple[Any, ...] = (KalmanConfig(d_state=2), KalmanConfig(d_state=2, adaptive=False, output="innovation"))


def model_of(layers: tuple[Any, ...] = FILTERS, **options: Any) -> SequenceModel:
    torch.manual_seed(0)
    config = sw.SequenceRegressorConfig(d_output=3, d_input=2, d_model=8, layers=layers, **options)
    return config.build().double().eval()


def signal(*gaps: tuple[int, int]) -> Tensor:
    x = torch.randn(2, 24, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for row, step in gaps:
        x[row, step, step % 2] = math.nan
    return x


@pytest.mark.parametrize("pooling", ["mean", "last", "attention", None])
@pytest.mark.parametrize("norm", ["rms", "batch"])
def test_what_stands_at_a_missing_step_reaches_no_other(pooling: str | None, norm: str) -> None:
    """The other number of the step says nothing either; whole, in chunks, and in rows of other lengths."""
    model = model_of(pooling=pooling, norm=norm)
    x = signal((0, 5), (0, 6), (1, 23))
    expected, _ = model(x)
    assert bool(expected.isfinite().all())
    other = x.clone()
    other[0, 5, 0], other[0, 6, 1], other[1, 23, 0] = 100.0, -100.0, 5.0
    torch.testing.assert_close(model(other)[0], expected)
    y, state = model(x[:, :6], model.initial_state(2))
    outputs = [y]
    for piece in (x[:, 6:7], x[:, 7:]):
        y, state = model(piece, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1) if pooling is None else y, expected)
    lengths = torch.tensor([24, 20])
    ragged, _ = model(x, lengths=lengths)
    torch.testing.assert_close(ragged[1, :20] if pooling is None else ragged[1], model(x[1:, :20])[0][0])


def test_the_first_layer_filters_what_was_seen() -> None:
    """Behind a gap it is the layer alone, which reads NaN itself."""
    model = model_of(FILTERS[:1], pooling=None)
    x = signal((0, 5), (0, 6), (0, 7))
    block = model.blocks[0]
    features = block.mixer_norm(model.embedding(x.nan_to_num(0)))
    features[0, 5:8] = math.nan
    got, _ = model.features(x)
    h = model.embedding(x.isnan().any(-1, keepdim=True).logical_not() * x.nan_to_num(0)) + block.mixer(features)[0]
    assert model.norm is not None
    torch.testing.assert_close(got, model.norm(h))


def test_gradients_behind_a_gap() -> None:
    model, x = model_of(), signal((0, 5)).requires_grad_()
    model(x)[0].sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert not bool(x.grad[0, 5].any())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_a_frame_with_a_gap_is_missing_as_a_whole() -> None:
    model, x = model_of(frame_length=4), signal((0, 5))
    expected, _ = model(x)
    other = x.clone()
    other[0, 4:8] = 7.0
    other[0, 6, 0] = math.nan
    torch.testing.assert_close(model(other)[0], expected)
    _, state = model(x[:, :7], model.initial_state(2))
    torch.testing.assert_close(model(x[:, 7:], state)[0], expected)


def test_others_refuse_it_in_one_line() -> None:
    for layers in ((sw.MambaConfig(d_state=4),), (*FILTERS, sw.BlockConfig(mixer=sw.S4DConfig(d_state=4)))):
        model = model_of(layers)
        name = "Mamba" if len(layers) == 1 else "S4D"
        with pytest.raises(InputError, match=f"^x holds NaN, and {name} layers know of no gaps; fill them, or use"):
            model(signal((1, 3)))
        x = signal((1, 23))
        model(x, lengths=torch.tensor([24, 23]))  # padding holds anything
    for layers in (FILTERS, (sw.MambaConfig(d_state=4),)):
        with pytest.raises(InputError, match=r"^x holds infinity; use NaN for a missing number"):
            model_of(layers)(signal((1, 3)).nan_to_num(nan=math.inf))


@pytest.mark.slow
def test_compiled() -> None:
    model, x = model_of(), signal((0, 5))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x)[0], model(x)[0])
