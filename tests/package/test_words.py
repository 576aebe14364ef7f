"""Words that made readers stumble do not come back: docs/writing.md says how we write."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT
from site_extensions import page_blocks

# A pattern, and what to write instead. Case does not matter; a sentence may be broken over lines.
REFUSED = (
    (
        r"(?<!there\s)(?<!there\s(?:can|may)\s)(?<!there\s(?:will|must|need)\s)"
        r"\b(is|are|was|were|be) no (?!longer|more|less|fewer|better|worse|faster|slower|wider|larger|smaller|need\b)",
        "is not a",
    ),
    (r"\bit tells nothing\b|\btells? of\b", "says nothing; shows"),
    (r"\b(is|are|was|were|be|being) told\b|\btold (are|is|beside|by|as|with|in)\b", "shown, reported, said; 'you get'"),
    (r"[.:;] (?-i:Told|Read|Known|Kept|Given|Counted|told|read|known|kept|given|counted) (is|are)\b", "subject first"),
    (r"(?:^|[.!?:;] )(?-i:Of) (?!course\b)", "subject first: 'For a ...', 'A row of ...'"),
    (r"\blikeliest\b", "most likely"),
    (r"\banew\b", "again"),
    (r"\bpassed over\b(?! to\b)|\b(to pass|it passes) over\b", "skip"),
    (r"\b(of|after|for|by|with|in|as|are|to|not) so many\b(?!.{1,40}\bthat\b)", "this many; a number of"),
    (r"\bof which nobody\b|\bnobody knows\b|\b(to|for) who asks\b", "unknown; anyone who asks"),
    (r"\bwithout a word\b", "silently"),
    (r"\bin the place of\b", "instead of"),
    (r"\bof one's own\b|\bone's own\b", "your own"),
    (r"\b(is|are|was) said (in|by|with|as|of|to|before|when|where)\b", "you get; the error says"),
    (r"(?<!are\s)(?<!,\s)\ball the same\b", "anyway"),
    (r"\bthere (is|are) (then|none then)\b|\bthere then\b", "left"),
    (r"\b(stands?|stood) (in|beside|before|behind|alone|there)\b(?! for)", "is in; is beside"),
    (r"\bstands? at its\b", "has reached its"),
    (r"\bas it is asked for\b", "as you asked"),
    (r"\bonce for all\b", "once"),
    (r"\bwhere (it|that) wins\b|\bwhat wins\b", "where it is faster"),
    (r"\b(has|have|had) not\b(?=\s*([.,;:|?]|$))", "does not have"),
    (r"\bwhich (is|are) none of\b|\bwhose \w+ (is|are) none\b", "which is not one of"),
    (
        r"\bgo(es)? on (from|with|as|in|at|by|to)\b|\b(gone|going) on with\b|\bcan(not)? go on\b|\bto go on\b",
        "continue",
    ),
    (r"\bin front\b(?! of)", "first; before it"),
    (r"\bbeside (ours|theirs|others|those|published|the published|each other|it all)\b", "next to; compared with"),
    (r"\bnothing of (it|them|that|ours|theirs)\b", "none of it"),
    (r"\bat what\b", "where; at which"),
    (r"\bgives? back\b|\bgiven back\b", "returns"),
    (r"\b(is|are|was|were) let go\b", "freed"),
    (r"\bthereof\b|\btherein\b|\bwhereof\b|\bhereby\b|\bhence\b|\bthus\b|\bwhilst\b|\bamongst\b", "of it; so; while"),
    (r"\bweights read from memory decide\b", "reading the weights takes most of the time"),
)
RULES = [
    (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE), instead) for pattern, instead in REFUSED
]
# writing.md quotes what it refuses; decisions and the changelog are records of what was written then
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if page.name not in ("writing.md", "CHANGELOG.md", "changelog.md")
    if page.parent.name != "decisions"
)
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MODULES = sorted((ROOT / "statewise").rglob("*.py"))


def faults(text: str, place: str, first: int = 1) -> Iterator[str]:
    for pattern, instead in RULES:
        for found in pattern.finditer(text):
            line = first + text.count("\n", 0, found.start())
            yield f"{place}:{line}: {' '.join(found[0].split())!r}; write: {instead}"


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, messages and help texts; a formatted one with its values left out."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(value) for value in node.values}
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def prose(page: str) -> str:
    """A page without its blocks of code, the lines kept."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    found = list(faults(prose(page_blocks.text_of(page)), str(page.relative_to(ROOT))))
    assert not found, "\n".join(found)


def test_docstrings_and_messages() -> None:
    found = []
    for module in MODULES:
        for line, text in strings(module.read_text("utf-8")):
            found += faults(text, str(module.relative_to(ROOT)), line)
    assert not found, f"{len(found)} places\n" + "\n".join(found)


def test_refused_phrases_are_found() -> None:
    assert list(faults("it is no\nfile", "a")) == ["a:1: 'is no'; write: is not a"]
    assert not list(faults("there is no file, and it is no longer there", "a"))
    assert len(list(faults("Told are bits per byte", "a"))) == 1
    assert len(list(faults("Of a row nothing is read. Of course it is: the sum of a row.", "a"))) == 1
    assert not list(faults("There can be no gap. It stands for the goes-on of time as time goes on.", "a"))
