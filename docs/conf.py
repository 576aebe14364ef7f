"""The documentation site: `make docs`. Why Sphinx: decisions/0038-the-site.md."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

import statewise  # noqa: E402

project = "Statewise"
author = "The Statewise developers"
copyright = "the Statewise developers, Apache License 2.0"
version = release = statewise.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
extensions += ["sources", "executed", "reference", "site_check"]  # our own, in _extensions
exclude_patterns = ["_extensions", "_static"]
extensions_fingerprint = hashlib.sha256(
    b"".join(path.read_bytes() for path in HERE.glob("_extensions/*.py"))
).hexdigest()
executed_folder = str(HERE.parent / "build" / "docs-cache" / "executed")

# Pages
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nitpicky = True
smartquotes = False  # names in quotes are code
suppress_warnings = ["myst.header"]  # the decisions begin at any level
highlight_language = "text"

# Reference
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # those of torch.nn.Module are not ours
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
add_module_names = False
rst_prolog = """
.. role:: fieldtype
"""

# Looks
html_theme = "furo"
html_title = "Statewise"
html_static_path = ["_static"]
html_css_files = ["statewise.css"]
html_favicon = "_static/favicon.svg"
html_show_sourcelink = False
html_copy_source = False
html_use_index = True
html_theme_options = {
    "light_logo": "logo-light.svg",
    "dark_logo": "logo-dark.svg",
    "sidebar_hide_name": True,
    "navigation_with_keys": True,
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.output) > div.highlight > pre"
