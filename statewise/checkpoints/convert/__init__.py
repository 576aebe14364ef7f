"""Models that others published, read as ours, and ours written as theirs."""

from __future__ import annotations

from statewise.checkpoints.convert.read import Progress, Published, load_published, open_published
from statewise.checkpoints.convert.write import WRITTEN, save_as

__all__ = ["WRITTEN", "Progress", "Published", "load_published", "open_published", "save_as"]
