"""The machinery of the documentation site, docs/_extensions, for tests. Only those parts that do without Sphinx."""

from __future__ import annotations

import sys

from places import ROOT

EXTENSIONS = ROOT / "docs" / "_extensions"
sys.path.insert(0, str(EXTENSIONS))

import commands as commands  # noqa: E402
import docstrings as docstrings  # noqa: E402
import documented as documented  # noqa: E402
import fields as fields  # noqa: E402
import navigation as navigation  # noqa: E402
import notebooks as notebooks  # noqa: E402
import page_blocks as page_blocks  # noqa: E402
import reference as reference  # noqa: E402
import site_check as site_check  # noqa: E402
import sources as sources  # noqa: E402

sys.path.remove(str(EXTENSIONS))
