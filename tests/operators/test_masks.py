"""``lengths`` and ``starts`` are worked out once a call, wherever it begins; what it calls gets the masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import statewise as sw
from statewise.operators import masks
from statewise.operators.documents import document_rows

LAYERS = (
    sw.Mamba2Config(d_state=4, d_head=4),
    sw.BlockConfig(mixer=sw.MambaConfig(d_state=4), mlp=sw.MLPConfig(), norm="batch", placement="post"),
    sw.H3Config(d_state=4),
    sw.S4DConfig(d_state=4),
    sw.LMUConfig(theta=5, d_state=4),
    sw.Mamba3Config(d_state=4, d_head=4),
    sw.LinearAttentionConfig(n_heads=2),
    sw.AttentionConfig(n_heads=2, n_taps=2),
)
LENGTHS, STARTS = torch.tensor([9, 4]), torch.arange(9).eq(3).expand(2, -1)


def language_model(layers: tuple[Any, ...] = LAYERS) -> sw.LanguageModel:
    return sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=layers, max_positions=32).build()


class HostReads(TorchDispatchMode):
    """Counts how often the host asks the device for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What the masks were built from, one entry for each time they were."""
    seen: list[Tensor] = []

    def whole(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    monkeypatch.setattr(masks, "whole", whole)
    return seen


def classifier(x: Tensor, **options: Tensor) -> None:
    layers = LAYERS[:4]
    config = sw.SequenceClassifierConfig(n_classes=2, d_input=1, d_model=8, layers=layers, norm="batch", frame_length=2)
    model = config.build()
    model(x, model.initial_state(2), **options)


def forecaster(x: Tensor, **options: Tensor) -> None:
    model = sw.ForecasterConfig(horizon=2, d_model=8, layers=LAYERS[:3]).build()
    model(x, model.initial_state(2), **options)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_language_model_builds_its_masks_once(looks: list[Tensor], checkpointed: bool) -> None:
    model, tokens = language_model(), torch.zeros(2, 9, dtype=torch.int64)
    model.gradient_checkpointing = checkpointed
    for state in (None, model.initial_state(2)):
        looks.clear()
        model(tokens, state, lengths=LENGTHS, starts=STARTS)
        assert [tuple(m.shape) for m in looks] == [(2,), (2, 9)]
        looks.clear()
        model(tokens, state)
        assert not looks


@pytest.mark.parametrize("call", [classifier, forecaster])
def test_other_models_build_theirs_once(looks: list[Tensor], call: Callable[..., None]) -> None:
    call(torch.randn(2, 9, 1), lengths=LENGTHS)
    assert len(looks) == 1


@pytest.mark.parametrize("config", [*LAYERS[2:], LAYERS[0], sw.S4Config(d_state=4, bidirectional=True)])
def test_a_mixer_builds_its_masks_once(looks: list[Tensor], config: Any) -> None:
    layer, x = config.build(8), torch.randn(2, 9, 8)
    layer(x, lengths=LENGTHS, starts=STARTS)
    assert len(looks) == 2


def test_an_operator_builds_its_masks_once(looks: list[Tensor]) -> None:
    log_a, B = -torch.ones(2, 9, 1), torch.ones(2, 9, 1, 2)
    sw.SSD(log_a, B, B)(torch.ones(2, 9, 1, 3), lengths=LENGTHS, starts=STARTS)
    assert len(looks) == 2


def test_lengths_cost_two_reads_however_many_layers() -> None:
    """Their least and their largest; eight pairs of them before, in a Mamba-2 of two layers."""
    model, tokens = language_model(LAYERS[:1] * 2).eval(), torch.zeros(2, 9, dtype=torch.int64)
    counts = []
    for options in ({}, {"lengths": LENGTHS}):
        with torch.no_grad(), HostReads() as reads:
            model(tokens, model.initial_state(2), **options)
        counts.append(reads.count)
    assert counts[1] - counts[0] <= 2


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("starts", [STARTS, torch.zeros(2, 9, dtype=torch.bool)], ids=["documents", "rows"])
def test_documents_are_laid_out_whatever_the_default_device(starts: Tensor, lengths: Tensor | None) -> None:
    """As under torch.set_default_device("cuda"): what it looks at is on the CPU, and so is all that it makes."""
    given = masks.build_masks(torch.zeros(2, 9, 1), lengths, None)._replace(starts=starts)
    want = document_rows(given, 2, 9)
    with torch.device("meta"):
        got = document_rows(given, 2, 9)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    empty = masks.Masks(starts=starts[:, :0])
    with torch.device("meta"):
        assert [rows.lengths.tolist() for rows in document_rows(empty, 2, 0)] == [[0, 0]]
