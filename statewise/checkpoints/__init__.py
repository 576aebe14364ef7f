"""Models, training runs and recurrent states on disk: written atomically, read strictly, never as pickles."""

from __future__ import annotations

from statewise.checkpoints.differences import differences as differences
from statewise.checkpoints.files import StoredTokenizer as StoredTokenizer
from statewise.checkpoints.files import load_into as load_into
from statewise.checkpoints.files import read_config as read_config
from statewise.checkpoints.files import read_tokenizer as read_tokenizer
from statewise.checkpoints.files import read_trainer as read_trainer
from statewise.checkpoints.files import save as save
from statewise.checkpoints.loading import load as load
from statewise.checkpoints.loading import locate_source as locate_source
from statewise.checkpoints.manifest import FORMAT_VERSION as FORMAT_VERSION
from statewise.checkpoints.manifest import Manifest as Manifest
from statewise.checkpoints.run_folder import RunCheckpoint as RunCheckpoint
from statewise.checkpoints.run_folder import clean_unfinished as clean_unfinished
from statewise.checkpoints.run_folder import list_checkpoints as list_checkpoints
from statewise.checkpoints.run_folder import prune as prune
from statewise.checkpoints.run_folder import resolve as resolve
from statewise.checkpoints.states import load_state as load_state
from statewise.checkpoints.states import save_state as save_state
from statewise.checkpoints.trees import flatten_tree as flatten_tree
from statewise.checkpoints.trees import unflatten_into as unflatten_into
