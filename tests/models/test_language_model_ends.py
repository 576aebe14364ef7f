"""What stands before and after the layers of a language model: its table of positions, a narrow embedding, no norm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError, InputError

LAYER = sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2, positions=None, bias=True), mlp=sw.MLPConfig(), norm="layer")
LAYERS = (LAYER, replace(LAYER, placement="parallel"))
ENDS: dict[str, dict[str, object]] = {
    "no norm": {"norm": None},
    "offset": {"max_positions": 40, "position_offset": 3},
    "narrow": {"d_embedding": 6},
    "wide, untied": {"d_embedding": 20, "tie_embeddings": False},
    "all": {"norm": None, "max_positions": 40, "position_offset": 2, "d_embedding": 6},
}


def build(name: str) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(vocab_size=50, d_model=12, layers=LAYERS, embedding_std=0.5, **ENDS[name])  # type: ignore[arg-type]
    return config.build().double().eval()


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ENDS)
def test_the_ends_are_their_definition(name: str) -> None:
    model, tokens = build(name), ids(2, 9)
    config = model.config
    x = model.embedding.weight[tokens]
    if config.d_embedding is not None:
        assert model.embedding_in is not None
        x = x @ model.embedding_in.weight.T
    if model.positions is not None:
        x = x + model.positions.weight[config.position_offset :][:9]
    for block in model.blocks:
        x, _ = block(x)
    if config.norm is not None:
        assert model.norm is not None
        x = model.norm(x)
    if config.d_embedding is not None:
        assert model.embedding_out is not None
        x = x @ model.embedding_out.weight.T
    torch.testing.assert_close(model(tokens)[0], x @ model.head.weight.T)
    assert (model.head.weight is model.embedding.weight) == config.tie_embeddings


@pytest.mark.parametrize("name", ENDS)
def test_cuts_padding_and_packing(name: str) -> None:
    model, tokens = build(name), ids(2, 30)
    whole, _ = model(tokens)
    state, parts = model.initial_state(2), []
    for piece in tokens.split([11, 1, 18], 1):
        logits, after = model(piece, state)
        assert after is not None
        state = after
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    lengths = torch.tensor([30, 4])
    padded, _ = model(tokens.masked_fill(torch.arange(30) >= lengths[:, None], 10**9), lengths=lengths)
    torch.testing.assert_close(padded[1, :4], whole[1, :4])
    starts = torch.zeros(1, 30, dtype=torch.bool)
    starts[0, [0, 13]] = True
    packed, _ = model(tokens[:1], starts=starts)
    torch.testing.assert_close(packed[:, 13:], model(tokens[:1, 13:])[0])


@pytest.mark.parametrize("name", ENDS)
def test_a_model_with_these_ends_is_trained_saved_and_generates(name: str, tmp_path: Path) -> None:
    from statewise.training.config import OptimizerConfig
    from statewise.training.optimizer import parameter_groups
    from statewise.training.tasks.language import token_loss

    model, tokens = build(name), ids(2, 9)
    groups = parameter_groups(model, OptimizerConfig())
    assert sum(group.n_parameters for group in groups) == sum(p.numel() for p in model.parameters())
    features, _ = model.features(tokens)
    token_loss(model, features, tokens).backward()
    used = {name for name, p in model.named_parameters() if p.grad is not None}
    assert used == {name for name, _ in model.named_parameters()}
    again = sw.load(sw.save(model, tmp_path / "model"))
    assert again.config == model.config
    assert torch.equal(again(tokens)[0], model(tokens)[0])
    found = torch.cat([token.ids for token in sw.generate(model.float(), tokens[:1], max_new_tokens=5, temperature=0)])
    text = tokens[:1]
    for _ in range(5):
        text = torch.cat((text, model(text)[0][:, -1:].argmax(-1)), 1)
    assert found.tolist() == text[0, 9:].tolist()


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="position_offset=2 without max_positions"):
        sw.LanguageModelConfig(vocab_size=5, d_model=4, layers=(LAYER,), position_offset=2)
    with pytest.raises(InputError, match=r"row 0 reaches position 40, but max_positions=40"):
        build("offset")(ids(1, 41))
