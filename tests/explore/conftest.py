"""Chromium, for the tests that --browser asks for."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from statewise.explore.page import assemble, own_specs

    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(assemble(*own_specs()), "utf-8")
    return path


@pytest.fixture
def open_page(chromium: Any, page_file: Path) -> Iterator[Open]:
    """Opens a panel of the page, which must not write to the console and must not ask for anything."""
    contexts, wrong = [], []

    def open_(panel: str, *, address: str | None = None, width: int = 1240, dark: bool = False) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", has_touch=width < 500
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = address or page_file.as_uri()
        page.on("request", lambda request: request.url.startswith((own, "data:")) or wrong.append(request.url))
        page.goto(f"{own}#show={panel}")
        page.wait_for_selector(f"#{panel}:not([hidden])")
        page.wait_for_timeout(150)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not wrong, wrong


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves a page whose model, of these layers, is in Python, and returns its address."""
    import torch

    import statewise as sw
    from statewise.data.tokenizers import ByteTokenizer
    from statewise.explore.mind import Mind
    from statewise.explore.page import assemble, own_specs
    from statewise.explore.server import PageServer

    servers = []

    def begin(*layers: Any) -> str:
        torch.manual_seed(0)
        model = sw.LanguageModelConfig(vocab_size=257, d_model=32, layers=layers).build()
        mind = Mind(model, ByteTokenizer(), "a hybrid", [256])
        servers.append(PageServer(lambda calls: assemble(*own_specs(), {"address": calls}), mind.calls))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1].address

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()
