"""What tests of the server share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from served_models import build, serving

import statewise as sw
from statewise.serve.app import Server


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    return build()


@pytest.fixture(scope="module")
def running(model: sw.LanguageModel) -> Iterator[tuple[Server, httpx.Client]]:
    with serving(model, rows=4, prefill_piece=16) as found:
        yield found


@pytest.fixture
def client(running: tuple[Server, httpx.Client]) -> httpx.Client:
    return running[1]
