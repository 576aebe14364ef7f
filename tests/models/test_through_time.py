"""Back-propagation in pieces gives the gradients of the undivided sequence, in the memory of one piece."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from families import MIXERS
from torch import Tensor, nn

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.models.through_time import through_time
from statewise.reproduce.measure import peak_bytes

F64 = torch.float64
LAYERS = (
    sw.Mamba2Config(d_state=4, d_head=4),
    sw.S4DConfig(d_state=4),
    sw.AttentionConfig(n_heads=2, window=9),
)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], **(tolerance or {"rtol": 1e-9, "atol": 1e-11}), msg=name
        )


@pytest.mark.parametrize("kept", [2, 3, 256])
@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer(name: str, kept: int) -> None:
    torch.manual_seed(0)
    mixer = MIXERS[name].build(8).double()
    x, weights = torch.randn(2, 23, 8, dtype=F64), torch.randn(2, 23, 8, dtype=F64)
    y, state = mixer(x, mixer.initial_state(2, dtype=F64))
    expected_loss = (y * weights).sum()
    expected_loss.backward()
    expected = gradients(mixer)
    loss, after = sw.backward_in_pieces(mixer, x, lambda y, here: (y * weights[:, here]).sum(), piece=4, kept=kept)
    torch.testing.assert_close(loss, expected_loss.detach())
    assert_same(gradients(mixer), expected)
    for one, other in zip(torch.utils._pytree.tree_leaves(after), torch.utils._pytree.tree_leaves(state)):
        assert not one.requires_grad
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("piece", [1, 5, 16, 40, 100])
def test_a_hybrid_language_model_with_documents_and_lengths(piece: int) -> None:
    torch.manual_seed(0)
    model = sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=LAYERS).build().double()
    tokens, targets = torch.randint(11, (3, 40)), torch.randint(11, (3, 40))
    starts = torch.rand(3, 40) < 0.1
    lengths = torch.tensor([40, 17, 3])
    targets = targets.masked_fill(torch.arange(40) >= lengths[:, None], -100)
    count = (targets != -100).sum()

    def loss(y: Tensor, here: slice) -> Tensor:
        return F.cross_entropy(y.mT, targets[:, here], reduction="sum") / count

    y, _ = model(tokens, model.initial_state(3), lengths=lengths, starts=starts)
    loss(y, slice(0, 40)).backward()
    expected = gradients(model)
    sw.backward_in_pieces(model, tokens, loss, piece=piece, lengths=lengths, starts=starts)
    assert_same(gradients(model), expected)


def test_a_classifier_counts_its_last_answer() -> None:
    torch.manual_seed(0)
    config = sw.SequenceClassifierConfig(n_classes=3, d_input=2, d_model=8, layers=LAYERS)
    model = config.build().double()
    x, targets, lengths = torch.randn(4, 30, 2, dtype=F64), torch.randint(3, (4,)), torch.tensor([30, 12, 29, 1])
    F.cross_entropy(model(x, model.initial_state(4), lengths=lengths)[0], targets).backward()
    expected = gradients(model)

    def last(y: Tensor, here: slice) -> Tensor | None:
        return F.cross_entropy(y, targets) if here.stop == 30 else None

    loss, _ = sw.backward_in_pieces(model, x, last, piece=7, lengths=lengths)
    assert loss.shape == ()
    assert_same(gradients(model), expected)


def test_a_state_that_asks_gets_its_gradient_and_parameters_add_up() -> None:
    torch.manual_seed(0)
    layer = sw.S4DConfig(d_state=4).build(8).double()
    x = torch.randn(2, 20, 8, dtype=F64)
    h = torch.randn(2, 8, 2, 2, dtype=F64, requires_grad=True)
    state = type(layer.initial_state(2))(h)
    layer(x, state)[0].square().sum().backward()
    expected, of_h = gradients(layer), h.grad
    assert of_h is not None
    h.grad = None
    for times in (1, 2):
        sw.backward_in_pieces(layer, x, lambda y, here: y.square().sum(), piece=6, state=state)
        assert h.grad is not None
        torch.testing.assert_close(h.grad, times * of_h)
    assert_same(gradients(layer), {name: 2 * grad for name, grad in expected.items()})


def test_dropout_is_the_same_whenever_a_piece_is_read() -> None:
    """Without the same numbers the loss of the first reading and the gradient of the last would be of two networks."""
    torch.manual_seed(0)
    layer = sw.S4DConfig(d_state=4, dropout=0.5).build(8).double().train()
    x = torch.randn(2, 30, 8, dtype=F64)

    def run() -> tuple[Tensor, dict[str, Tensor], Tensor]:
        torch.manual_seed(7)
        loss, _ = sw.backward_in_pieces(layer, x, lambda y, here: y.square().sum(), piece=4, kept=3)
        return loss, gradients(layer), torch.rand(3)

    def by_hand() -> tuple[Tensor, dict[str, Tensor], Tensor]:
        torch.manual_seed(7)
        state, total = layer.initial_state(2, dtype=F64), torch.zeros((), dtype=F64)
        for piece in x.split(4, 1):
            y, state = layer(piece, state)
            total = total + y.square().sum()
        total.backward()
        return total.detach(), gradients(layer), torch.rand(3)

    found, expected = run(), by_hand()
    torch.testing.assert_close(found[0], expected[0])
    assert_same(found[1], expected[1])
    assert torch.equal(found[2], expected[2])  # and what is drawn next


def test_memory_is_that_of_a_piece() -> None:
    layer = sw.Mamba2Config(d_state=16, d_head=16).build(32)

    def peak(length: int) -> int:
        x = torch.randn(1, length, 32)

        def call() -> Any:
            return sw.backward_in_pieces(layer, x, lambda y, here: y.square().sum(), piece=256)

        call()
        return peak_bytes(call)

    short, long = peak(1024), peak(8192)
    assert long < short * 1.25 + 28 * 10_000  # of the 28 states more, each a few kilobytes


def test_each_piece_is_read_as_often_as_it_says() -> None:
    for n, kept, most in ((1, 4, 1), (4, 4, 2), (16, 4, 3), (17, 4, 4)):
        read_: list[int] = []

        def read(number: int, state: Tensor, seen: list[int] = read_) -> tuple[Tensor, Tensor]:
            seen.append(number)
            return (2.0 * state).sum(), state * 1.5

        total, _, (gradient,) = through_time(read, n, torch.ones(1), torch.device("cpu"), kept=kept)
        assert max(map(read_.count, range(n))) <= most
        assert total.item() == pytest.approx(sum(2 * 1.5**k for k in range(n)))
        assert gradient.item() == pytest.approx(total.item())


def test_errors() -> None:
    layer, x = sw.S4DConfig(d_state=4).build(8), torch.randn(1, 8, 8)

    def loss(y: Tensor, here: slice) -> Tensor:
        return y.sum()

    for options, message in (
        ({"piece": 0}, "piece must be a whole number of steps above 0, got 0"),
        ({"piece": True}, "piece must be"),
        ({"kept": 1}, "kept must be a whole number of states above 1, got 1"),
    ):
        with pytest.raises(InputError, match=message):
            sw.backward_in_pieces(layer, x, loss, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a length above 0, got shape \(1, 0, 8\)"):
        sw.backward_in_pieces(layer, x[:, :0], loss)
    lengths, starts = torch.tensor([9]), torch.zeros(1, 9, dtype=torch.bool)
    for options, message in (
        ({"lengths": lengths}, r"lengths must lie in 0\.\.8 for an input of length 8, got 9\.\.9"),
        ({"lengths": [8]}, "lengths must be a tensor, got list"),
        ({"starts": starts}, r"starts must be bool of shape \(1, 8\)"),
    ):
        with pytest.raises(InputError, match=message):
            sw.backward_in_pieces(layer, x, loss, **options)  # type: ignore[arg-type]
    for wrong, message in (
        (lambda y, here: y.sum(-1), r"loss must give a tensor of one number, or None, got shape \(1, 4\)"),
        (lambda y, here: 1.0, "got float"),
        (lambda y, here: y.detach().sum(), "loss gave nothing that depends on the outputs"),
    ):
        with pytest.raises(InputError, match=message):
            sw.backward_in_pieces(layer, x, wrong, piece=4)
    outside = layer.output.linear.weight.sum() * 2
    with pytest.raises(InputError, match="comes from a graph that another piece has gone through"):
        sw.backward_in_pieces(layer, x, lambda y, here: y.sum() * outside, piece=4)
    with pytest.raises(InputError, match="x was computed from what asks for gradients"):
        sw.backward_in_pieces(layer, x * x.clone().requires_grad_(), loss)
    with pytest.raises(InputError, match="a Linear has no initial_state"):
        sw.backward_in_pieces(torch.nn.Linear(8, 8), x, loss)
    with torch.inference_mode(), pytest.raises(InputError, match=r"has no gradients in torch\.inference_mode"):
        sw.backward_in_pieces(layer, x, loss)
    with pytest.raises(InputError, match="a bidirectional S4D has no state"):
        sw.backward_in_pieces(sw.S4DConfig(d_state=4, bidirectional=True).build(8), x, loss)
    block = sw.BlockConfig(mixer=sw.S4DConfig(d_state=4), norm="batch")
    model = sw.SequenceClassifierConfig(n_classes=2, d_input=8, d_model=8, layers=(block,)).build()
    with pytest.raises(ConfigError, match="is a batch norm, whose means are of whole sequences"):
        sw.backward_in_pieces(model, x, loss)
