"""The module of docs/own-code.md that Lightning trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT
from site_extensions import page_blocks

import statewise as sw

PAGE = ROOT / "docs" / "own-code.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_trains_with_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    found = page_blocks.blocks(PAGE.read_text("utf-8"))
    loop = next(block for block in found if "build_optimizer(groups" in block.text)
    lit = next(block for block in found if block.language == "py")
    monkeypatch.chdir(tmp_path)
    exec(
        "import torch\nfrom torch import nn\nimport statewise as sw\n" + loop.text + lit.text, {"__name__": "__main__"}
    )
    assert sw.load(tmp_path / "from-lightning").config == sw.load(tmp_path / "detector").config
