"""The classifier of pairs: its head by hand, each document alone, pieces, padding, errors, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.mixers.s4 import S4Config
from statewise.models.pair_classifier import PairClassifier, PairClassifierConfig
from statewise.models.registry import model_from_dict, model_to_dict
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

MAMBA = sw.Mamba2Config(d_state=4, d_head=8, chunk_length=4)


def pairs(**options: Any) -> PairClassifier:
    torch.manual_seed(0)
    fields: dict[str, Any] = {"n_classes": 3, "vocab_size": 11, "d_model": 16, "layers": (MAMBA,), **options}
    return PairClassifierConfig(**fields).build().double()


def documents(n_pairs: int = 3, length: int = 9) -> Tensor:
    return torch.randint(0, 11, (2 * n_pairs, length), generator=torch.Generator().manual_seed(1))


def by_hand(model: PairClassifier, u: Tensor, v: Tensor) -> Tensor:
    """The logits of one pair, each document read alone, the head written out."""
    pooled = [model.features(x[None])[0].mean(1)[0] for x in (u, v)]
    compared = torch.cat([*pooled, pooled[0] - pooled[1], pooled[0] * pooled[1]])
    head = model.head
    hidden = F.gelu(head.hidden.weight @ compared + head.hidden.bias)
    return head.weight @ hidden + head.bias


@pytest.mark.parametrize("d_hidden", [None, 5])
def test_it_is_what_it_says(d_hidden: int | None) -> None:
    model, x = pairs(d_hidden=d_hidden), documents()
    assert model.head.hidden.weight.shape == (d_hidden or 16, 64)
    logits, state = model(x)
    assert (logits.shape, state) == ((3, 3), None)
    for i, found in enumerate(logits):
        torch.testing.assert_close(found, by_hand(model, x[2 * i], x[2 * i + 1]))
    exchanged = model(x.view(3, 2, -1).flip(1).flatten(0, 1))[0]
    assert not torch.allclose(exchanged, logits)  # u - v has a sign


def test_ragged_documents_are_read_alone() -> None:
    model, x = pairs(), documents()
    lengths = torch.tensor([9, 2, 1, 9, 5, 5])
    logits, _ = model(x, lengths=lengths)
    for i in range(3):
        u, v = (x[row, : int(lengths[row])] for row in (2 * i, 2 * i + 1))
        torch.testing.assert_close(logits[i], by_hand(model, u, v))


@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
def test_pairs_are_read_in_pieces(pooling: str) -> None:
    model, x = pairs(pooling=pooling), documents()
    whole, _ = model(x)
    _, state = model(x[:, :4], model.initial_state(6))
    logits, state = model(x[:, 4:], state)
    torch.testing.assert_close(logits, whole)
    assert state is not None
    assert state.position.tolist() == [9] * 6


def test_padding_may_hold_anything() -> None:
    model = pairs(vocab_size=None, d_input=2)
    x = torch.randn(4, 7, 2, dtype=torch.float64)
    lengths = torch.tensor([7, 3, 5, 7])
    clean, _ = model(x, lengths=lengths)
    for row, n in enumerate(lengths.tolist()):
        x[row, n:] = float("nan")
    torch.testing.assert_close(model(x, lengths=lengths)[0], clean)


def test_every_parameter_has_a_gradient_and_a_group() -> None:
    mixer = S4Config(d_state=4, bidirectional=True)
    block = sw.BlockConfig(mixer=mixer, norm="batch")
    model = pairs(layers=(block, block), norm="batch")
    F.cross_entropy(model(documents())[0], torch.tensor([0, 2, 1])).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    names = {g.name: {n for n, _ in g.parameters} for g in parameter_groups(model, OptimizerConfig())}
    assert {"head.weight", "head.hidden.weight"} <= names["maps"]
    assert {"head.bias", "head.hidden.bias", "norm.weight"} <= names["vectors"]


def test_drawing_anew_reaches_the_head() -> None:
    model = pairs()
    before = model.head.hidden.weight.clone()
    torch.manual_seed(0)
    model.reset_parameters()
    assert not torch.equal(model.head.hidden.weight, before)  # the generator stood elsewhere when it was built


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = pairs(d_hidden=6, activation="relu").float()
    assert model_from_dict(model_to_dict(model.config)) == model.config
    sw.save(model, tmp_path / "pairs")
    loaded = sw.load(tmp_path / "pairs")
    assert isinstance(loaded, PairClassifier)
    torch.testing.assert_close(loaded(documents())[0], model(documents())[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": None}, "leaves nothing of a sequence to compare"),
        ({"d_hidden": 0}, "d_hidden=0 is out of range"),
        ({"activation": "gule"}, "activation='gule' is unknown; did you mean 'gelu'"),
        ({"n_classes": 1}, "n_classes=1 is out of range"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pairs(**changes)


def test_an_odd_row_is_refused() -> None:
    with pytest.raises(InputError, match=r"x has 5 rows, an odd number; .* rows 2 i and 2 i \+ 1"):
        pairs()(documents()[:5])
