"""How hard our words are to read: Flesch's reading ease of pages, messages of errors and public docstrings.

    python experiments/readability.py                               # README, docs/, messages, docstrings
    python experiments/readability.py --each                        # every page and every package by itself as well
    python experiments/readability.py --html FOLDER                 # other people's HTML pages as well

Reading ease is 206.835 - 1.015 words a sentence - 84.6 syllables a word; higher is easier. For our pages the length
of sentences says more. Only running text counts: paragraphs and list items, no code, tables, headings or formulas.
Docstrings are those that the site's Reference shows: public names, their public methods, and their modules.

Source:  Flesch 1948, J. Applied Psychology 32(3); syllables by the hyphenation of pyphen (pip install pyphen).
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pyphen

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]  # this checkout, and how the site reads a docstring

from docstrings import parse  # noqa: E402
from page_blocks import text_of  # noqa: E402

import statewise  # noqa: E402

HYPHENS = pyphen.Pyphen(lang="en_US")
WORD = re.compile(r"[A-Za-z][A-Za-z'’]*")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z*\"'(])|\n{2,}")
LONG = 30  # words: a sentence to be read twice


def markdown_paragraphs(text: str) -> Iterator[str]:
    """The running text of a page: no code, no tables, no headings, no pictures."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. )", text):
        lines = [line for line in block.splitlines() if not re.match(r"\s*(#|\||!\[|<|---)", line)]
        if lines:
            yield plain(" ".join(line.strip().lstrip("-*> ") for line in lines))


def plain(text: str) -> str:
    """Without the marks of Markdown; a piece of code is one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    return re.sub(r"[*_]{1,2}([^*_]+)[*_]{1,2}", r"\1", text)


class Paragraphs(HTMLParser):
    """The text of <p> and <li>, a piece of code as one word."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.depth = self.skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = dict(attrs).get("class") or ""
        if tag in ("pre", "table", "nav", "script", "style", "footer") or (tag == "span" and "math" in classes):
            self.skipped += 1
        elif self.skipped:
            self.skipped += tag == "span"
        elif tag == "p":
            self.depth = 1
            self.found.append("")
        elif tag == "code" and self.depth:
            self.found[-1] += "code"
            self.skipped += 1

    def handle_endtag(self, tag: str) -> None:
        if self.skipped and tag in ("pre", "table", "nav", "script", "style", "footer", "span", "code"):
            self.skipped -= 1
        elif tag == "p":
            self.depth = 0

    def handle_data(self, data: str) -> None:
        if self.depth and not self.skipped:
            self.found[-1] += data


def html_paragraphs(text: str) -> list[str]:
    parser = Paragraphs()
    parser.feed(text)
    return [re.sub(r"\s+", " ", found).strip() for found in parser.found]


def messages(folder: Path) -> Iterator[str]:
    """The texts that ``raise SomeError("...")`` is called with, what stands in braces as one word."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = literal(node.exc.args[0])
                if len(text.split()) > 3:
                    yield text


def docstrings() -> Iterator[tuple[str, str]]:
    """The part of the package and the running text of each docstring of a public name, its methods and its module."""
    seen: set[str] = set()
    for name, home in sorted(statewise._HOME.items()):
        value = getattr(statewise, name)
        part = name if home == "statewise" else home.split(".")[1]
        methods = [m for key, m in vars(value).items() if not key.startswith("_")] if inspect.isclass(value) else []
        for documented in (value, inspect.getmodule(value), *methods):
            doc = inspect.getdoc(documented) if _is_ours(documented) else None
            if doc and doc not in seen:
                seen.add(doc)
                for item in parse(doc.splitlines()):
                    if item.kind != "verbatim" and item.head != "Shapes":
                        yield part, plain(re.sub(r":\w+:`[^`]*`", "code", " ".join(item.lines).replace("``", "`")))


def _is_ours(value: object) -> bool:
    home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    return isinstance(value, property) or str(home).startswith("statewise")


def literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "value" for part in node.values)  # type: ignore[misc]
    return ""


def ease(paragraphs: Iterable[str]) -> dict[str, float]:
    """Words, words a sentence, syllables a word, reading ease, and the share of sentences above 30 words."""
    lengths, n_syllables = [], 0
    for paragraph in paragraphs:
        for sentence in SENTENCE_END.split(paragraph):
            words = WORD.findall(sentence)
            if len(words) > 2:
                lengths.append(len(words))
                n_syllables += sum(len(HYPHENS.positions(word)) + 1 for word in words)
    n_words = sum(lengths)
    if not n_words:
        return {"words": 0}
    a_sentence, a_word = n_words / len(lengths), n_syllables / n_words
    return {
        "words": n_words,
        "words_a_sentence": round(a_sentence, 1),
        "syllables_a_word": round(a_word, 3),
        "reading_ease": round(206.835 - 1.015 * a_sentence - 84.6 * a_word, 1),
        "long_sentences": round(sum(n > LONG for n in lengths) / len(lengths), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--html", type=Path, help="a folder of HTML pages to measure as well")
    parser.add_argument("--each", action="store_true", help="every page and every package by itself as well")
    options = parser.parse_args()
    pages = {
        "README": [ROOT / "README.md"],
        "docs": sorted((ROOT / "docs").glob("*.md")),
        "docs/tutorials": sorted((ROOT / "docs/tutorials").glob("*.md")),
        "docs/notebooks": sorted((ROOT / "docs/notebooks").glob("*.ipynb")),
        "docs/math": sorted((ROOT / "docs/math").glob("*.md")),
        "docs/decisions": sorted((ROOT / "docs/decisions").glob("*.md")),
    }
    texts = {name: [p for path in paths for p in markdown_paragraphs(text_of(path))] for name, paths in pages.items()}
    if options.each:
        for path in [page for name in list(pages)[1:-1] for page in pages[name]]:
            texts[str(path.relative_to(ROOT))] = list(markdown_paragraphs(text_of(path)))
        for folder in sorted(path for path in (ROOT / "statewise").iterdir() if (path / "__init__.py").exists()):
            texts[f"messages of {folder.name}"] = list(messages(folder))
        for part in sorted({part for part, _ in docstrings()}):
            texts[f"docstrings of {part}"] = [text for of, text in docstrings() if of == part]
    texts["messages"] = list(messages(ROOT / "statewise"))
    texts["docstrings"] = [text for _, text in docstrings()]
    if options.html is not None:
        found = [p for path in sorted(options.html.glob("*.html")) for p in html_paragraphs(path.read_text("utf-8"))]
        texts[str(options.html.name)] = found
    for name, paragraphs in texts.items():
        print(json.dumps({"what": name, **ease(paragraphs)}))


if __name__ == "__main__":
    main()
