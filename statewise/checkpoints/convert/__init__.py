"""Models that others published, read as ours, and ours written as theirs."""

from __future__ import annotations

from statewise.checkpoints.convert.hybrids import load_layer as load_layer
from statewise.checkpoints.convert.read import Progress as Progress
from statewise.checkpoints.convert.read import Published as Published
from statewise.checkpoints.convert.read import load_published as load_published
from statewise.checkpoints.convert.read import open_published as open_published
from statewise.checkpoints.convert.write import WRITTEN as WRITTEN
from statewise.checkpoints.convert.write import save_as as save_as
