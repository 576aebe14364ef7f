"""A trained bidirectional Mamba that others made and published, rebuilt from our operators: real weights as an oracle.

``pip install --no-deps typeseg==0.2.7``: six layers over bytes that label each with its kind of text. Its own numpy
code and its own ONNX file, which share nothing with ours, give what is expected.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from places import ROOT
from torch import Tensor

from statewise.errors import ConfigError, DataError
from statewise.reproduce import reproduce, settings
from statewise.reproduce import typeseg as claim
from statewise.reproduce.typeseg import N_LAYERS, TrainedMamba, folder, labels

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("typeseg") is None,
    reason="needs the weights in the package typeseg (pip install --no-deps typeseg==0.2.7)",
)


@pytest.fixture(scope="module")
def model() -> TrainedMamba:
    return TrainedMamba()


def expected(model: TrainedMamba, tokens: Tensor) -> Tensor:
    from typeseg._mamba_kernel import mamba_forward

    arrays = {name: value.numpy() for name, value in model.weights.items()}
    return torch.tensor(np.asarray(mamba_forward(np, arrays, tokens.numpy(), n_layers=N_LAYERS)))


@needs_weights
def test_logits_of_a_trained_model(model: TrainedMamba) -> None:
    """Code and prose, one row alone and both in a padded batch."""
    page = (ROOT / "docs" / "operators.md").read_bytes()
    texts = [torch.tensor(list(page[1500:2100])), torch.tensor(list(Path(__file__).read_bytes()[600:860]))]
    want = [expected(model, text) for text in texts]
    for form in ("scan", "recurrent"):
        got = model(texts[0].unsqueeze(0), form=form)[0]
        assert (got - want[0]).abs().max() < 1e-4, form
        assert torch.equal(got.argmax(-1), want[0].argmax(-1))
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=7)
    both = model(padded, torch.tensor([len(text) for text in texts]))
    for row, text in enumerate(texts):
        assert (both[row, : len(text)] - want[row]).abs().max() < 1e-4


@needs_weights
def test_reproduce(tmp_path: Path) -> None:
    """The command's own way: real files beside the model's ONNX file."""
    pytest.importorskip("onnxruntime")
    config = settings("typeseg", quick=True, assignments=["n_bytes=2000", "longest=700"])
    record: Any = reproduce("typeseg", tmp_path / "run", config, plots=False).record
    figures = record["figures"]
    assert figures["n_bytes"] == 2000
    assert figures["largest_difference"] <= 1e-4
    assert figures["n_other_labels"] == 0
    assert {text["label"] for text in figures["texts"].values()} <= set(labels())
    assert {name.split("/")[0] for name in figures["texts"]} == {"statewise", "stdlib"}
    assert record["bars"] == []


@needs_weights
def test_bars() -> None:
    text = {
        "name": "a",
        "n_bytes": 100_000,
        "largest_difference": 2e-4,
        "largest_logit": 9.0,
        "n_other_labels": 1,
        "label": "python",
    }
    report = claim.report(claim.TypesegSettings(), {"a": text})
    assert [bar.holds for bar in report.bars] == [False, False]
    report = claim.report(claim.TypesegSettings(), {"a": {**text, "largest_difference": 1e-5, "n_other_labels": 0}})
    assert [bar.holds for bar in report.bars] == [True, True]


def test_files() -> None:
    """As many bytes as asked for, half of them of the package itself, the same each time."""
    config = claim.TypesegSettings(n_bytes=30_001, longest=5_000)
    texts = claim.choose(config)
    assert texts == claim.choose(config)
    assert sum(map(len, texts.values())) == 30_001
    assert sum(len(text) for name, text in texts.items() if name.startswith("statewise/")) == 15_000
    assert max(map(len, texts.values())) <= 5_000
    with pytest.raises(DataError, match="bytes too few; use fewer n_bytes"):
        claim.choose(claim.TypesegSettings(longest=1))
    with pytest.raises(ConfigError, match="n_bytes=1 is out of range; expected an integer of at least 2"):
        claim.TypesegSettings(n_bytes=1)


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    config = settings("typeseg", quick=True)
    for missing, what in (("typeseg", "pip install --no-deps typeseg"), ("onnxruntime", "statewise.onnx")):
        if missing == "onnxruntime" and find("typeseg") is None:
            continue

        def without(name: str, package: str | None = None, missing: str = missing) -> Any:
            return None if name == missing else find(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", without)
        with pytest.raises(DataError, match=what):
            reproduce("typeseg", tmp_path / missing, config, plots=False)
    monkeypatch.undo()
    assert find("typeseg") is None or folder().is_dir()
