"""Models, training runs and recurrent states on disk: written atomically, read strictly, never as pickles."""

from __future__ import annotations

from statewise.checkpoints.differences import differences
from statewise.checkpoints.files import (
    StoredTokenizer,
    load_into,
    read_config,
    read_tokenizer,
    read_trainer,
    save,
)
from statewise.checkpoints.loading import load, locate_source
from statewise.checkpoints.manifest import FORMAT_VERSION, Manifest
from statewise.checkpoints.run_folder import RunCheckpoint, clean_unfinished, list_checkpoints, prune, resolve
from statewise.checkpoints.states import load_state, save_state
from statewise.checkpoints.trees import flatten_tree, unflatten_into

__all__ = [
    "FORMAT_VERSION",
    "Manifest",
    "RunCheckpoint",
    "StoredTokenizer",
    "clean_unfinished",
    "differences",
    "flatten_tree",
    "list_checkpoints",
    "load",
    "load_into",
    "load_state",
    "locate_source",
    "prune",
    "read_config",
    "read_tokenizer",
    "read_trainer",
    "resolve",
    "save",
    "save_state",
    "unflatten_into",
]
