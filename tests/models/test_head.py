"""Norms whose weight is stored less 1, and heads that cap their logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.errors import CheckpointError
from statewise.mixers.rms_norm import RMSNorm
from statewise.training.tasks import language
from statewise.training.tasks.language import token_loss

LAYER = sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2), mlp=sw.MLPConfig(), norm="rms_offset")


def capped(**fields: object) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(
        vocab_size=11, d_model=8, layers=(LAYER,), norm="rms_offset", logit_cap=0.5, embedding_std=1.0
    )
    return config.build().double().eval()


def test_logits_are_capped() -> None:
    model, tokens = capped(), torch.arange(10)[None]
    features, _ = model.features(tokens)
    raw = features @ model.head.weight.T
    logits, _ = model(tokens)
    torch.testing.assert_close(logits, 0.5 * torch.tanh(raw / 0.5))
    assert raw.abs().max() > 1 > 0.5 >= logits.abs().max()


def test_the_loss_of_many_logits_is_of_the_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = capped(), torch.arange(10)[None]
    expected = F.cross_entropy(model(tokens)[0][0], tokens[0])
    for many in (0, 10**6):
        monkeypatch.setattr(language, "MANY_LOGITS", many)
        torch.testing.assert_close(token_loss(model, model.features(tokens)[0], tokens), expected)


def test_no_other_format_loses_the_cap(tmp_path: object) -> None:
    with pytest.raises(CheckpointError, match="logit_cap"):
        save_as(capped(), f"{tmp_path}/theirs", "transformers")
    layer = sw.BlockConfig(mixer=sw.Mamba2Config(d_state=4, d_head=4), norm="rms_offset")
    model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(layer,), norm="rms_offset").build()
    for format in ("mamba_ssm", "gguf", "h3", "transformers"):
        with pytest.raises(CheckpointError, match="rms_offset"):
            save_as(model, f"{tmp_path}/theirs.gguf", format)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def test_an_offset_is_added_in_full_precision() -> None:
    norm, x = RMSNorm(6, offset=True), torch.randn(2, 6)
    torch.testing.assert_close(norm(x), normed(x, torch.ones(6)))
    with torch.no_grad():
        norm.weight.copy_(torch.full((6,), 2.0**-12))
    norm.bfloat16()  # where 1 + 2^-12 is 1
    assert torch.equal(norm.factor, torch.full((6,), 1 + 2.0**-12))
    torch.testing.assert_close(norm(x.bfloat16()).float(), normed(x, norm.factor), rtol=2**-7, atol=0)
