"""Several steps read as one: any cut gives the whole's output, and rows of unlike lengths are as if alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_classifier import classifier, read_in_pieces, signal
from torch import Tensor
from training_runs import train_config

from statewise.data.memory_tasks import MemoryDataConfig
from statewise.errors import ConfigError, InputError
from statewise.mixers.s4d import S4DConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.frames import frames, initial_frame_state
from statewise.models.regressor import SequenceRegressorConfig
from statewise.operators.masks import NO_MASKS
from statewise.training import RunConfig
from statewise.training.tasks import open_task


def by_hand(x: Tensor, frame_length: int) -> Tensor:
    """One row's whole frames, one after the other."""
    n = len(x) // frame_length
    return torch.stack([x[i * frame_length : (i + 1) * frame_length].flatten() for i in range(n)]) if n else x[:0]


@pytest.mark.parametrize("frame_length", [2, 4, 7])
def test_frames_by_definition_in_pieces_and_ragged(frame_length: int) -> None:
    x = torch.randn(3, 23, 2, dtype=torch.float64)
    whole, masks, nothing = frames(x, frame_length, None, None)
    assert masks == NO_MASKS
    assert nothing is None
    torch.testing.assert_close(whole[1], by_hand(x[1], frame_length))
    state, found = initial_frame_state(3, frame_length, 2, x), [[], [], []]
    counts = torch.zeros(3, dtype=torch.int64)
    for lengths in ([4, 0, 1], [1, 9, 0], [8, 2, 22], [0, 0, 0]):
        piece = torch.full((3, max(lengths), 2), torch.nan, dtype=torch.float64)
        for row, n in enumerate(lengths):
            piece[row, :n] = x[row, counts[row] : counts[row] + n]
        counts += torch.tensor(lengths)
        got, (_, _, _, n_frames, *_), state = frames(piece, frame_length, state, torch.tensor(lengths))
        for row in range(3):
            found[row].append(got[row, : n_frames[row]])
            assert not got[row, n_frames[row] :].any()
    for row, n in enumerate(counts.tolist()):
        rows = torch.cat(found[row])
        torch.testing.assert_close(rows, by_hand(x[row, :n], frame_length).reshape(rows.shape))
        left = n % frame_length
        assert state.n_samples[row] == left
        torch.testing.assert_close(state.samples[row, :left], x[row, n - left : n])
        assert not state.samples[row, left:].any()


@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
def test_any_cut_gives_the_logits_and_gradients_of_the_whole(pooling: str) -> None:
    model, x = classifier(pooling=pooling, frame_length=3), signal("numbers", 2, 14).requires_grad_()
    whole, _ = model(x)
    inputs = [x, *model.parameters()]
    weights = torch.randn_like(whole)
    expected = torch.autograd.grad((whole * weights).sum(), inputs)
    for sizes in [[t, 14 - t] for t in range(15)] + [[1] * 14, [5, 0, 1, 8]]:
        pieces = read_in_pieces(model, x, sizes)
        torch.testing.assert_close(pieces, whole)
        torch.testing.assert_close(torch.autograd.grad((pieces * weights).sum(), inputs), expected)


def test_ragged_rows_equal_single_ones_whatever_the_padding_holds() -> None:
    model, x = classifier(frame_length=4), signal("numbers", 4, 13)
    lengths = torch.tensor([13, 8, 5, 4])
    padded = x.masked_fill((torch.arange(13) >= lengths[:, None])[..., None], torch.nan).requires_grad_()
    logits, _ = model(padded, lengths=lengths)
    (gradient,) = torch.autograd.grad(logits.sum(), padded)
    assert gradient.isfinite().all()
    streamed, _ = model(padded, model.initial_state(4), lengths=lengths)
    short = torch.tensor([13, 8, 3, 0])  # with a state a row may wait for its first frame
    waiting, _ = model(padded, model.initial_state(4), lengths=short)
    assert torch.equal(waiting[2], waiting[3])
    for row, n in enumerate(lengths.tolist()):
        single, _ = model(x[row : row + 1, :n])
        torch.testing.assert_close(logits[row : row + 1], single)
        torch.testing.assert_close(streamed[row : row + 1], single)


def test_a_row_without_a_frame_is_refused() -> None:
    model, x = classifier(frame_length=4), signal("numbers", 2, 13)
    with pytest.raises(InputError, match="a row of x has 3 steps, but frame_length=4: no whole frame to pool"):
        model(x[:, :3])
    with pytest.raises(InputError, match="a row of x has 2 steps, but frame_length=4"):
        model(x, lengths=torch.tensor([13, 2]))
    with pytest.raises(InputError, match=r"lengths must lie in|lengths"):
        model(x, lengths=torch.tensor([13, -5]))
    model(x[:, :3], model.initial_state(2))


def test_the_state_of_another_frame_length_is_refused() -> None:
    four, one, x = classifier(frame_length=4), classifier(), signal("numbers", 2, 13)
    state = four.initial_state(2)
    for model, given, message in (
        (four, one.initial_state(2), "needs state.frames of type FrameState, got tuple"),
        (
            four,
            classifier(frame_length=8).initial_state(2),
            r"needs state.frames.samples of shape \(2, 3, 3\), got \(2, 7, 3\)",
        ),
        (four, state._replace(frames=state.frames._replace(n_samples=torch.zeros(3))), r"n_samples of shape \(2,\)"),
        (four, state._replace(frames=state.frames._replace(n_samples=torch.tensor([0, 4]))), r"damaged: .* has 0\.\.4"),
        (one, state, "frames is a FrameState, but the model has frame_length=1"),
    ):
        with pytest.raises(InputError, match=message):
            model(x, given)


def test_frames_are_checked() -> None:
    layers = classifier().config.layers
    for change, message in (
        ({"d_input": 1, "frame_length": 0}, "frame_length=0 is out of range"),
        ({"d_input": 1, "frame_length": 2.5}, "frame_length=2.5 has the wrong type"),
        ({"d_input": 1, "frame_length": 2, "pooling": None}, "frame_length=1"),
        ({"vocab_size": 5, "frame_length": 2}, "d_input"),
    ):
        with pytest.raises(ConfigError, match=message):
            SequenceClassifierConfig(n_classes=2, d_model=16, layers=layers, **change)  # type: ignore[arg-type]


def test_training_refuses_rows_shorter_than_a_frame() -> None:
    layers = (S4DConfig(d_state=4),)
    model = SequenceRegressorConfig(d_output=1, d_input=2, d_model=4, layers=layers, frame_length=50)
    data = MemoryDataConfig(task="adding", length=20, n_train=8, n_validation=4, n_test=4)
    with pytest.raises(
        ConfigError, match=r"model\.frame_length=50, but the shortest row of the data has 20 steps; set"
    ):
        open_task(RunConfig(model=model, data=data, train=train_config(steps=1)))
    open_task(RunConfig(model=replace(model, frame_length=20), data=data, train=train_config(steps=1)))
