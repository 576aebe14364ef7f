"""Classifier and regressor: every pooling read in pieces, ragged rows, NaN in padding, packed rows, errors."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.mixers.s4d import S4DConfig
from statewise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from statewise.models.encoder import SequenceModel
from statewise.models.pooling import POOLINGS, AttentionPooling, build_pooling
from statewise.models.regressor import SequenceRegressorConfig

MAMBA = sw.Mamba2Config(d_state=4, d_head=8, chunk_length=4)
WINDOWED = sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2, window=5), mlp=sw.MLPConfig(expand=2), norm="layer")
KINDS = ("numbers", "tokens")
EVERY_POOLING = (*POOLINGS, None)


def classifier(kind: str = "numbers", pooling: str | None = "mean", **options: Any) -> SequenceClassifier:
    torch.manual_seed(0)
    reads: dict[str, Any] = {"d_input": 3} if kind == "numbers" else {"vocab_size": 11}
    config = SequenceClassifierConfig(
        n_classes=4, d_model=16, layers=(MAMBA, WINDOWED), pooling=pooling, **reads, **options
    )
    model = config.build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def signal(kind: str, batch: int, length: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "tokens":
        return torch.randint(0, 11, (batch, length), generator=generator)
    return torch.randn(batch, length, 3, dtype=torch.float64, generator=generator)


def read_in_pieces(model: SequenceModel, x: Tensor, sizes: list[int]) -> Tensor:
    """The logits after the last piece, or those of every step."""
    state, outputs = model.initial_state(len(x)), []
    for piece in x.split(sizes, 1):
        y, state = model(piece, state)
        outputs.append(y)
    assert state is not None
    assert state.position.tolist() == [x.shape[1]] * len(x)
    return outputs[-1] if model.pooling is not None else torch.cat(outputs, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", EVERY_POOLING)
def test_any_cut_gives_the_logits_and_gradients_of_the_whole(kind: str, pooling: str | None) -> None:
    model, x = classifier(kind, pooling), signal(kind, 2, 12)
    x.requires_grad_(kind == "numbers")
    whole, none = model(x)
    assert none is None
    assert whole.shape == ((2, 4) if pooling else (2, 12, 4))
    inputs = [*([x] if kind == "numbers" else []), *model.parameters()]
    weights = torch.randn_like(whole)
    expected = torch.autograd.grad((whole * weights).sum(), inputs)
    for sizes in [[t, 12 - t] for t in range(13)] + [[1] * 12, [5, 0, 1, 6]]:
        pieces = read_in_pieces(model, x, sizes)
        torch.testing.assert_close(pieces, whole)
        gradients = torch.autograd.grad((pieces * weights).sum(), inputs)
        torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_each_prefix_pools_to_what_it_would_alone(pooling: str) -> None:
    model, x = classifier(pooling=pooling), signal("numbers", 2, 9)
    state = model.initial_state(2)
    for t in range(9):
        logits, state = model(x[:, t : t + 1], state)
        torch.testing.assert_close(logits, model(x[:, : t + 1])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", EVERY_POOLING)
def test_ragged_rows_equal_single_ones_whatever_the_padding_holds(kind: str, pooling: str | None) -> None:
    model, x = classifier(kind, pooling), signal(kind, 4, 10)
    counts = [10, 7, 1, 2]
    lengths = torch.tensor(counts)
    beyond = torch.arange(10) >= lengths[:, None]
    padded = x.clone()
    padded[beyond] = torch.nan if kind == "numbers" else 10**9
    padded.requires_grad_(kind == "numbers")
    for state in (None, model.initial_state(4)):
        logits, after = model(padded, state, lengths=lengths)
        probe = signal(kind, 4, 3, seed=2)
        onward = None if after is None else model(probe, after)[0]
        total = sum(logits[b, : counts[b]].sum() if pooling is None else logits[b].sum() for b in range(4))
        for gradient in torch.autograd.grad(total, [*([padded] if kind == "numbers" else []), *model.parameters()]):
            assert gradient.isfinite().all()
        for b, n in enumerate(counts):
            single, alone = model(x[b : b + 1, :n], None if state is None else model.initial_state(1))
            torch.testing.assert_close(logits[b : b + 1, :n] if pooling is None else logits[b : b + 1], single)
            if onward is not None:
                torch.testing.assert_close(onward[b : b + 1], model(probe[b : b + 1], alone)[0])


def test_packed_sequences_equal_single_ones_without_pooling() -> None:
    model, x = classifier(pooling=None), signal("numbers", 2, 12)
    starts = torch.zeros(2, 12, dtype=torch.bool)
    starts[0, [0, 5, 6]] = True
    starts[1, 8] = True
    logits, state = model(x, model.initial_state(2), starts=starts)
    for row, edges in ((0, [0, 5, 6, 12]), (1, [0, 8, 12])):
        for t0, t1 in pairwise(edges):
            torch.testing.assert_close(logits[row : row + 1, t0:t1], model(x[row : row + 1, t0:t1])[0])
    assert state is not None
    assert state.position.tolist() == [6, 4]
    for pooling in POOLINGS:
        with pytest.raises(InputError, match=r"starts packs several sequences .* pooling=None"):
            classifier(pooling=pooling)(x, starts=starts)


@pytest.mark.parametrize("pooling", EVERY_POOLING)
def test_state_is_real_batch_first_wide_and_never_mutated(pooling: str | None) -> None:
    model, x = classifier(pooling=pooling), signal("numbers", 2, 6)
    _, state = model(x, model.initial_state(2))
    leaves = pytree.tree_leaves(state)
    assert all(isinstance(leaf, Tensor) and not leaf.is_complex() and leaf.shape[0] == 2 for leaf in leaves)
    kept = pytree.tree_map(torch.clone, state)
    first, _ = model(x, state)
    model(-x, state)
    torch.testing.assert_close(pytree.tree_leaves(state), pytree.tree_leaves(kept), rtol=0, atol=0)
    torch.testing.assert_close(model(x, kept)[0], first)
    narrow = model.to(torch.bfloat16).initial_state(2)
    assert all(leaf.dtype in (torch.float32, torch.int64) for leaf in pytree.tree_leaves(narrow))


def test_mean_of_a_long_stream_is_kept_in_float32() -> None:
    pooling = build_pooling("mean", 1)
    x = torch.full((1, 3000, 1), 1.01, dtype=torch.bfloat16)
    state = pooling.initial_state(1)
    for piece in x.split(100, 1):
        y, state = pooling(piece, state)
    assert state.total.dtype == torch.float32
    assert y.dtype == torch.bfloat16
    assert y.item() == x[0, 0, 0].item()


def test_attention_is_a_softmax_over_all_steps_and_does_not_overflow() -> None:
    pooling = AttentionPooling(4).double()
    x = torch.randn(2, 20, 4, dtype=torch.float64)
    expected = torch.einsum("bl,bld->bd", (x @ pooling.query / 2).softmax(1), x)
    torch.testing.assert_close(pooling(x)[0], expected)
    huge = x.float() * 1e4
    pooling = pooling.float()
    state, with_gradient = pooling.initial_state(2), huge.requires_grad_()
    for piece in with_gradient.split(3, 1):
        y, state = pooling(piece, state)
    best = (huge @ pooling.query).argmax(1)
    torch.testing.assert_close(y, huge[torch.arange(2), best], rtol=1e-4, atol=1.0)
    assert torch.autograd.grad(y.sum(), huge)[0].isfinite().all()


def test_a_row_without_steps_pools_to_zero() -> None:
    for kind in POOLINGS:
        pooling = build_pooling(kind, 3)
        for x, lengths in ((torch.randn(2, 0, 3), None), (torch.full((2, 4, 3), torch.nan), torch.tensor([0, 0]))):
            y, state = pooling(x, pooling.initial_state(2), lengths=lengths)
            assert not y.any()
            z = torch.randn(2, 5, 3)
            torch.testing.assert_close(pooling(z, state)[0], pooling(z)[0])


def test_regressor_shares_the_encoder() -> None:
    for pooling in EVERY_POOLING:
        model = SequenceRegressorConfig(d_output=2, d_input=3, d_model=16, layers=(MAMBA,), pooling=pooling).build()
        model = model.double()
        x = signal("numbers", 2, 8)
        whole, _ = model(x)
        assert whole.shape == ((2, 2) if pooling else (2, 8, 2))
        torch.testing.assert_close(read_in_pieces(model, x, [3, 5]), whole)


def test_final_norm_follows_the_last_block() -> None:
    layers = (MAMBA, WINDOWED)
    assert isinstance(classifier().norm, torch.nn.LayerNorm)  # the windowed block's
    assert isinstance(classifier(norm="rms").norm, torch.nn.RMSNorm)
    assert classifier(norm=None).norm is None
    config = SequenceClassifierConfig(n_classes=2, d_input=1, d_model=16, layers=layers)
    assert config.in_full().norm == "layer"
    assert config.in_full().blocks == config.blocks


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    model, x = classifier(), signal("numbers", 2, 8)
    gradients = []
    for flag in (False, True):
        model.gradient_checkpointing = flag
        gradients.append(torch.autograd.grad(model(x)[0].square().sum(), list(model.parameters())))
    torch.testing.assert_close(*gradients)


def test_dropout_is_before_the_head_and_only_in_training() -> None:
    model, x = classifier(dropout=0.5), signal("numbers", 2, 8)
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


def test_models_pickle() -> None:
    model, x = classifier(pooling="attention"), signal("numbers", 2, 8)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(x)[0], model(x)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_input": None}, "d_input=None and vocab_size=None; give exactly one"),
        ({"vocab_size": 5}, "d_input=3 and vocab_size=5; give exactly one"),
        ({"d_input": 0}, "d_input=0 is out of range; expected an integer of at least 1 or None"),
        ({"d_model": 0}, "d_model=0 is out of range"),
        ({"n_classes": 1}, "n_classes=1 is out of range; expected an integer of at least 2"),
        ({"pooling": "max"}, "pooling='max' is unknown; .*se one of: mean, last, attention"),
        ({"norm": "group"}, "norm='group' is unknown"),
        ({"dropout": 1.0}, "dropout=1.0 is out of range"),
        ({"dropout": "x"}, "dropout='x' has the wrong type"),
        ({"n_classes": 2.5}, "n_classes=2.5 has the wrong type \\(number\\); expected an integer of at least 2"),
        ({"d_model": "a"}, "d_model='a' has the wrong type"),
        ({"d_model": None}, "d_model=None has the wrong type"),
        ({"layers": ()}, "layers=.* is empty"),
        ({"layers": (3,)}, "layers.0=3 has the wrong type"),
    ],
)
def test_configs_are_checked(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"n_classes": 4, "d_input": 3, "d_model": 16, "layers": (MAMBA,)}
    with pytest.raises(ConfigError, match=message):
        SequenceClassifierConfig(**fields | change)
    with pytest.raises(ConfigError, match="d_output=0 is out of range"):
        SequenceRegressorConfig(d_output=0, d_input=1, d_model=4, layers=(MAMBA,))


def test_calls_are_checked() -> None:
    model, x = classifier(), signal("numbers", 2, 6)
    tokens = classifier("tokens")
    for call, message in (
        (lambda: model([1.0]), "x must be a tensor, got list"),
        (lambda: model(x[..., :2]), r"x must be floating, of shape \(batch, length, 3\), got .* \(2, 6, 2\)"),
        (lambda: model(x[:, 0]), "got torch.float64 .2, 3.*reads 3 numbers a step"),
        (lambda: model(signal("tokens", 2, 6)), "x must be floating"),
        (lambda: tokens(x), "x must be integers of shape"),
        (lambda: tokens(torch.full((1, 3), 11)), "token id 11 is outside the vocabulary of 11"),
        (lambda: model(x, lengths=torch.tensor([6])), r"lengths must be integers of shape \(2,\)"),
        (lambda: model(x, lengths=torch.tensor([6, 7])), r"lengths must lie in 0\.\.6"),
        (lambda: model(x, (1, 2)), "state must be a SequenceState or None, got tuple"),
        (lambda: model(x, model.initial_state(3)), r"needs state.position of shape \(2,\), got \(3,\)"),
        (lambda: model(x, classifier(pooling="last").initial_state(2)), "MeanPooling needs state of type MeanState"),
        (
            lambda: classifier(pooling=None)(x, starts=torch.zeros(2, 5, dtype=torch.bool)),
            "starts must be bool of shape",
        ),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_row_without_a_step_needs_a_state(kind: str, pooling: str) -> None:
    model, x = classifier(kind, pooling), signal(kind, 2, 5)
    for call in (lambda: model(x[:, :0]), lambda: model(x, lengths=torch.tensor([0, 5]))):
        with pytest.raises(InputError, match="a row of x has no steps to pool; give each row at least one, or give a"):
            call()
    assert model(x[:0])[0].shape == (0, 4)
    logits, state = model(x, model.initial_state(2), lengths=torch.tensor([0, 5]))
    torch.testing.assert_close(model(x[:, :0], state)[0], logits)
    assert classifier(kind, None)(x[:, :0])[0].shape == (2, 0, 4)


def test_dtypes_other_than_the_parameters_are_refused_but_under_autocast() -> None:
    layers = (S4DConfig(d_state=4),)
    model = SequenceClassifierConfig(n_classes=2, d_input=3, d_model=4, layers=layers).build()
    x = torch.randn(2, 12, 3)
    for dtype in (torch.float64, torch.bfloat16):
        with pytest.raises(InputError, match=rf"needs x in the dtype .* torch.float32, got {dtype}; use x.to\(torch"):
            model(x.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert model(x.to(dtype))[0].isfinite().all()
        with pytest.raises(InputError, match=r"torch\.float64"):
            model(x.double())
    assert model.to(torch.bfloat16)(x.bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("pooling", EVERY_POOLING)
def test_bfloat16_autocast(pooling: str | None) -> None:
    model, x = classifier(pooling=pooling).float(), signal("numbers", 3, 10).float()
    lengths = torch.tensor([10, 4, 1])
    expected, _ = model(x, lengths=lengths)
    with torch.autocast("cpu", torch.bfloat16):
        logits, state = model(x, model.initial_state(3), lengths=lengths)
    real = slice(None) if pooling else torch.arange(10) < lengths[:, None]
    torch.testing.assert_close(logits[real].float(), expected[real], rtol=0.1, atol=0.1)
    assert all(leaf.dtype in (torch.float32, torch.int64) for leaf in pytree.tree_leaves(state))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_of_s4d(bidirectional: bool) -> None:
    mixer = S4DConfig(d_state=8, bidirectional=bidirectional, dropout=0.1)
    for placement, norm in (("pre", "layer"), ("post", "batch")):
        layer = sw.BlockConfig(mixer=mixer, norm=norm, placement=placement)
        config = SequenceClassifierConfig(n_classes=3, d_input=2, d_model=8, layers=(layer, layer))
        model = config.build().double()
        assert (model.norm is None) is (placement == "post")
        x = torch.randn(3, 12, 2, dtype=torch.float64)
        model(x)  # for the averages of batch norm
        model.eval()
        lengths = torch.tensor([12, 5, 1])
        logits, _ = model(x, lengths=lengths)
        for row, n in enumerate(lengths.tolist()):
            torch.testing.assert_close(logits[row : row + 1], model(x[row : row + 1, :n])[0])
        torch.testing.assert_close(model.freeze()(x)[0], model(x)[0])
        if bidirectional:
            with pytest.raises(InputError, match="state"):
                model.initial_state(3)
        else:
            torch.testing.assert_close(read_in_pieces(model, x, [5, 1, 6]), model(x)[0])


@pytest.mark.cuda
@pytest.mark.parametrize("pooling", EVERY_POOLING)
def test_on_the_gpu_as_on_the_cpu(pooling: str | None) -> None:
    model, x = classifier(pooling=pooling), signal("numbers", 3, 10)
    lengths = torch.tensor([10, 4, 1])
    expected = model(x, lengths=lengths)[0]
    model.cuda()
    logits, state = model(x.cuda(), model.initial_state(3), lengths=lengths.cuda())
    assert all(leaf.is_cuda for leaf in pytree.tree_leaves(state))
    real = slice(None) if pooling else torch.arange(10) < lengths[:, None]
    torch.testing.assert_close(logits.cpu()[real], expected[real])
