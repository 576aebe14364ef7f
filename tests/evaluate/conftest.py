"""What tests of evaluation share."""

from __future__ import annotations

import pytest
import torch
from evaluated import DOCUMENT, build

import statewise as sw


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    return build(sw.AttentionConfig(n_heads=2, window=7))


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    """Four documents, the last of them empty."""
    made = torch.randint(30, (150,), generator=torch.Generator().manual_seed(0))
    made[[0, 40, 41, 149]] = DOCUMENT
    return made
