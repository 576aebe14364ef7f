"""Runs the code of every page before Sphinx reads, and puts outputs and figures behind the blocks that made them.

Each page runs in a process of its own, forked from this one after it has imported what nearly all pages need: imports
took more than half of the time. What pages left is kept by the content of the page and of the package, so that a second
build runs only what has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import logging
import multiprocessing
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import page_blocks
from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.util.logging import getLogger

LOG = getLogger(__name__)
PACKAGE = Path(__file__).parents[2] / "statewise"
SLOWEST = ("export", "plots", "tutorials/long-sequences", "start", "scikit-learn")  # first: no core waits at the end
LONGEST_CODE = 8  # lines of a block that draws; a longer one is folded


def fingerprint() -> str:
    """Of the package and of this folder: with another one, every page runs again."""
    digest = hashlib.sha256()
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.[ch]"), Path(page_blocks.__file__)]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run_page(page: Path, folder: Path) -> None:
    """Runs a page in a process of its own, and writes what it left: results, or problem.txt; and its CPU seconds."""
    import torch

    torch.set_num_threads(1)
    logging.root.handlers.clear()  # Sphinx's style of highlighting prints whatever anybody logs
    logging.root.setLevel(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    problem = None
    try:
        # Bars of progress are not the page's; what is wrong comes as an exception
        with tempfile.TemporaryDirectory() as work, contextlib.redirect_stderr(io.StringIO()):
            results = page_blocks.run(page, Path(work), folder)
    except page_blocks.PageError as error:
        problem = str(error)
    except BaseException as error:
        at = [f"{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(page)]
        problem = f"{page.name}:{at[-1] if at else '?'}: {type(error).__name__}: {error}"
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    (folder / "seconds.txt").write_text(f"{sum(one.ru_utime + one.ru_stime for one in used):.1f}", "utf-8")
    if problem is not None:
        (folder / "problem.txt").write_text(problem, "utf-8")
    else:
        (folder / "results.json").write_text(json.dumps([asdict(result) for result in results]), "utf-8")


def warm() -> None:
    """Imports once what nearly every page would import. Nothing is computed, so that there are no threads to fork."""
    import torch

    import statewise

    torch.set_num_threads(1)
    for name in ("torch._dynamo", "matplotlib.pyplot"):  # the first step of an optimizer imports torch._dynamo
        importlib.import_module(name)
    for name in statewise.__all__:
        getattr(statewise, name)


def run_pages(waiting: Sequence[tuple[str, Path, Path]]) -> Iterator[tuple[str, str]]:
    """As many at once as there are cores, in the order given; each page with what went wrong."""
    # Elsewhere than on Linux libraries of the system may not survive a fork
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    rest, running = list(waiting), {}
    while rest or running:
        while rest and len(running) < (os.cpu_count() or 1):
            name, page, folder = rest.pop(0)
            (folder / "problem.txt").unlink(missing_ok=True)
            process = context.Process(target=run_page, args=(page, folder))
            process.start()
            running[process.sentinel] = (process, name, folder)
        for sentinel in wait(list(running)):
            process, name, folder = running.pop(sentinel)  # type: ignore[index]
            process.join()
            if (folder / "problem.txt").exists():
                yield name, (folder / "problem.txt").read_text("utf-8")
            elif not (folder / "results.json").exists():
                yield name, f"the process that ran its code ended with {process.exitcode}"


def execute(app: Any) -> None:
    """All pages that have code."""
    root = Path(app.config.executed_folder)
    app.env.executed = {}
    package = fingerprint()
    waiting: list[tuple[str, Path, Path]] = []
    for name in sorted(app.project.discover(app.config.exclude_patterns)):
        page = next((p for p in (Path(app.srcdir, name + end) for end in (".md", ".ipynb")) if p.exists()), None)
        if page is None:
            continue
        text = page_blocks.text_of(page)
        if not page_blocks.has_code(text):
            continue
        key = hashlib.sha256((package + name + text).encode()).hexdigest()[:16]
        folder = root / f"{name.replace('/', '-')}-{key}"
        app.env.executed[name] = str(folder)
        if not (folder / "results.json").exists():
            waiting.append((name, page, folder))
    if not waiting:
        return
    LOG.info("running the code of %d pages", len(waiting))
    warm()
    waiting.sort(key=lambda item: (item[0] not in SLOWEST, -item[1].stat().st_size))
    for name, problem in run_pages(waiting):
        LOG.error("%s", problem, location=name)
    _list_seconds(app.env.executed, root.parent / "seconds.txt")


def _list_seconds(folders: dict[str, str], file: Path) -> None:
    """What each page costs, the dearest first: here you see which page makes the build slow."""
    told = {name: Path(folder, "seconds.txt") for name, folder in folders.items()}
    took = {name: float(path.read_text("utf-8")) for name, path in told.items() if path.exists()}
    lines = [f"{seconds:6.1f}  {name}" for name, seconds in sorted(took.items(), key=lambda item: -item[1])]
    file.write_text("\n".join([f"{sum(took.values()):6.1f}  CPU seconds of all pages", *lines]) + "\n", "utf-8")


class Outputs(SphinxTransform):
    """Behind each Python block what it printed, unless the page says so itself, and before it what it drew."""

    default_priority = 250

    def apply(self, **_: Any) -> None:
        folder = getattr(self.env, "executed", {}).get(self.env.docname)
        if folder is None or not Path(folder, "results.json").exists():
            return
        results = [
            page_blocks.Result(**result) for result in json.loads(Path(folder, "results.json").read_text("utf-8"))
        ]
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") not in ("python", "console"):
                continue
            result = next((r for r in results if r.text.rstrip() == block.astext().rstrip()), None)
            if result is None:
                continue
            results.remove(result)
            if block["language"] == "console":
                self.fill(block, result.output)
                continue
            after = block.next_node(descend=False, siblings=True)
            if isinstance(after, nodes.literal_block) and after.get("language") == "text":
                after["classes"].append("output")
            elif result.output.strip():
                text = result.output.rstrip()
                output = nodes.literal_block(text, text, language="text", classes=["output"])
                block.parent.insert(block.parent.index(block) + 1, output)
            if result.figures:
                self.show(block, result, Path(folder))

    def fill(self, block: nodes.literal_block, text: str) -> None:
        """Commands, with what they printed."""
        block.rawsource = text.rstrip()
        block.clear()
        block += nodes.Text(text.rstrip())

    def show(self, block: nodes.literal_block, result: page_blocks.Result, folder: Path) -> None:
        """The figures, and then the code: folded where it is long."""
        here = Path(self.env.doc2path(self.env.docname)).parent
        shown: list[nodes.Node] = []
        for name, words in result.figures:
            uri = Path(os.path.relpath(folder / name, here)).as_posix()
            image = nodes.image(uri=uri, alt=words)
            shown.append(nodes.figure("", image, classes=["drawn"]))
        if result.text.count("\n") > LONGEST_CODE:
            opening = '<details class="folded"><summary>The code of this figure</summary>'
            shown += [
                nodes.raw("", opening, format="html"),
                block.deepcopy(),
                nodes.raw("", "</details>", format="html"),
            ]
        else:
            shown.insert(0, block.deepcopy())
        block.parent[block.parent.index(block) : block.parent.index(block) + 1] = shown


def setup(app: Any) -> dict[str, Any]:
    app.add_config_value("executed_folder", "", "env")
    app.add_config_value("extensions_fingerprint", "", "env")  # with other extensions every page is read again
    app.connect("builder-inited", execute)
    app.add_transform(Outputs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
