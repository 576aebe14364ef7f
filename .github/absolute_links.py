"""Writes README.md with links that also work on a package index: to this version's files, where the repository is seen.

    python .github/absolute_links.py https://github.com/OWNER/NAME v1.0.0

The release workflow calls it before it builds, in its own checkout. Pictures come from .../raw/, pages from .../blob/.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
LINK = re.compile(r"(!?)(\[[^\]\n]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """README's text with its links made absolute.

    >>> with_absolute_links("[a](docs/a.md#b) ![c](d.svg) [e](https://e)", "https://x/y", "v1")
    '[a](https://x/y/blob/v1/docs/a.md#b) ![c](https://x/y/raw/v1/d.svg) [e](https://e)'
    """
    return LINK.sub(lambda m: f"{m[1]}{m[2]}({repository}/{'raw' if m[1] else 'blob'}/{version}/{m[3]})", text)


if __name__ == "__main__":
    repository, version = sys.argv[1:]
    README.write_text(with_absolute_links(README.read_text("utf-8"), repository, version), "utf-8")
