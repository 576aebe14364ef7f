"""What the published LRA models have besides their mixers: a batch norm after the last layer, dropout of features."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import statewise as sw
from statewise.errors import ConfigError
from statewise.mixers.dropout import TiedDropout
from statewise.mixers.s4d import S4DConfig
from statewise.models.batch_norm import BatchNorm
from statewise.models.classifier import SequenceClassifier, SequenceClassifierConfig


def classifier(norm: str | None, block: str = "batch", **options: Any) -> SequenceClassifier:
    torch.manual_seed(0)
    layer = sw.BlockConfig(mixer=S4DConfig(d_state=4), norm=block, **options)
    return SequenceClassifierConfig(n_classes=3, d_input=2, d_model=8, layers=(layer,), norm=norm).build().double()


def test_a_batch_norm_after_the_last_layer() -> None:
    model, bare = classifier("batch"), classifier(None)
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("norm.")})
    x, lengths = torch.randn(4, 10, 2, dtype=torch.float64), torch.tensor([10, 3, 7, 1])
    assert isinstance(model.norm, BatchNorm)
    outside = BatchNorm(8).double()
    for _ in range(3):
        features, _ = bare.features(x, lengths=lengths)
        expected = outside(features, lengths)
        found, _ = model.features(x, lengths=lengths)
        for row, n in enumerate(lengths):
            torch.testing.assert_close(found[row, :n], expected[row, :n])
    torch.testing.assert_close(model.norm.running_variance, outside.running_variance)
    model.eval()
    whole, _ = model(x)
    _, state = model(x[:, :6], model.initial_state(4))
    torch.testing.assert_close(model(x[:, 6:], state)[0], whole)


def test_which_norm_is_last() -> None:
    assert classifier("batch", block="layer").config.final_norm == "batch"
    assert classifier("auto").config.final_norm == "layer"  # as before there was a choice
    assert classifier("auto", placement="post").config.final_norm is None
    with pytest.raises(ConfigError, match=r"norm='bacth' is unknown; did you mean 'batch'"):
        classifier("bacth")


class TestTiedDropout:
    def test_a_feature_goes_at_every_step_or_at_none(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(64, 7, 50)
        y = TiedDropout(0.25)(x)
        kept = y != 0
        assert torch.equal(kept, kept[:, :1].expand_as(kept))
        torch.testing.assert_close(y[kept], x[kept] / 0.75)
        assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.03)
        assert not torch.equal(kept[0], kept[1])
        assert TiedDropout(0.25).eval()(x) is x
        assert TiedDropout(0.0)(x) is x

    def test_in_a_model(self) -> None:
        layer = sw.BlockConfig(
            mixer=S4DConfig(d_state=4, dropout=0.5, tied_dropout=True), dropout=0.5, tied_dropout=True, norm="layer"
        )
        torch.manual_seed(0)
        model = SequenceClassifierConfig(n_classes=2, d_input=2, d_model=8, layers=(layer,), pooling=None).build()
        masks = [module for module in model.modules() if isinstance(module, TiedDropout)]
        assert len(masks) == 2
        x = torch.randn(3, 6, 2)
        torch.manual_seed(1)
        first, _ = model(x)
        torch.manual_seed(1)
        again, _ = model(torch.cat([x, x], 1))  # one draw a row, however long it is: the same masks
        torch.testing.assert_close(again[:, :6], first)
