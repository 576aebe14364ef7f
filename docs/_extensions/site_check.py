"""Looks at the site that was built: every link and anchor leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("video", "src")}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.without_words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values[name] or "" for name in ("id", "name") if name in values}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        for kind, name in LOADS:
            if tag == kind and values.get(name):
                self.loaded.append(values[name] or "")
        if tag == "img" and not values.get("alt") and "logo" not in (values.get("class") or ""):
            self.without_words.append(values.get("src") or "")


def problems(site: Path) -> tuple[list[str], list[str]]:
    """What is wrong, one line each, and all links that lead out of the site."""
    read: dict[Path, _Page] = {}
    for path in sorted(site.rglob("*.html")):
        read[path.resolve()] = page = _Page()
        page.feed(path.read_text("utf-8"))
    wrong, outside = [], set()
    for path, page in read.items():
        here = path.relative_to(site.resolve())
        wrong += [f"{here}: an image has no words: {src}" for src in page.without_words]
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if parts.scheme == "data":
                    continue
                outside.add(target)
                if target in page.loaded:
                    wrong.append(f"{here}: {target} is loaded from elsewhere")
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.exists():
                wrong.append(f"{here}: {target} leads nowhere")
            elif parts.fragment and file in read and unquote(parts.fragment) not in read[file].anchors:
                wrong.append(f"{here}: {target}: the page has no such anchor")
    for path in site.rglob("*.css"):
        for url in re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)", path.read_text("utf-8", "replace")):
            wrong.append(f"{path.relative_to(site)}: {url} is loaded from elsewhere")
    return wrong, sorted(outside)


def check(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    from sphinx.util import logging

    log = logging.getLogger(__name__)
    wrong, outside = problems(Path(app.outdir))
    for line in wrong:
        log.warning("%s", line)
    listed = Path(app.config.executed_folder).parent / "external-links.txt"
    listed.write_text("\n".join(outside) + "\n", "utf-8")
    log.info("%d links lead out of the site: %s", len(outside), listed)


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
