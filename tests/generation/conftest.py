"""What tests of generation share."""

from __future__ import annotations

import pytest
from written_models import build

import statewise as sw


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    return build(window=5)
