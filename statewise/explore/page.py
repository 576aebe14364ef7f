"""The page: styles, scripts and numbers put together into one file that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from statewise.checkpoints import load
from statewise.explore.weights import spec
from statewise.models.language_model import LanguageModel

# In this order: each uses what those before it define.
SCRIPTS = (
    *("linear", "hippo", "systems", "duality", "model", "backend", "chart", "app"),
    *("panel_memory", "panel_system", "panel_duality", "panel_selection", "panel_surgery", "panel_lookup", "main"),
)
BYTES = "a small Mamba-2"
RECALL = "H3"
# The eight heads without which the recall model loses most, by `statewise reproduce h3-at-work`, and what their Q
# distinguishes
RECALL_HEADS = (2, 3, 0, 26, 7, 31, 11, 21)
RECALL_NOTE = (
    "From the top: heads 1 and 2 tell a from b, 3 hears c, 4 tells c from d, 5 tells a and b from c and d, 6 hears d, "
    "and 7 and 8 hear every key. It was trained on 10 pairs, so short sequences are new to it."
)


def assemble(model: Mapping[str, Any], lookup: Mapping[str, Any], server: Mapping[str, Any] | None = None) -> str:
    """The page as text.

    model:   of :func:`statewise.explore.weights.spec`, for Duality and, without a server, Selection and State surgery
    lookup:  the layer of Lookup, likewise
    server:  {"address": path} of the calls that :mod:`statewise.explore.server` answers; None: the page computes alone
    """
    folder = files("statewise.explore") / "page"
    scripts = "\n".join(f"<script>\n{_read(folder, f'{name}.js')}</script>" for name in SCRIPTS)
    page = _read(folder, "page.html")
    for mark, text in (
        ("/* STYLE */", _read(folder, "page.css")),
        ("<!-- SCRIPTS -->", scripts),
        ("/* MODEL */", _json(model)),
        ("/* LOOKUP */", _json(lookup)),
        ("/* SERVER */", _json(server)),
    ):
        before, after = page.split(mark)
        page = before + text + after
    return page


def own_model(name: str) -> LanguageModel:
    """One of the two small models that come with the package: "bytes", a Mamba-2; "recall", an H3."""
    model = load(Path(str(files("statewise.explore") / "models" / name)))
    assert isinstance(model, LanguageModel)
    return model


def own_specs() -> tuple[dict[str, Any], dict[str, Any]]:
    """What :func:`assemble` takes for these two."""
    lookup = spec(own_model("recall"), RECALL, layer=0, heads=list(RECALL_HEADS), note=RECALL_NOTE)
    return spec(own_model("bytes"), BYTES), lookup


def _read(folder: Traversable, name: str) -> str:
    return (folder / name).read_text("utf-8")


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no text in it ends the script
