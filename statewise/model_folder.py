"""A trained model with what belongs to it: its tokenizer and its text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from statewise.checkpoints import Manifest, load, read_config, resolve
from statewise.checkpoints.manifest import TOKENIZER_FILE
from statewise.data.text import Corpus, TextDataConfig, open_corpus
from statewise.data.tokenizers import Tokenizer, load_tokenizer, require_same_tokenizer
from statewise.errors import CheckpointError, ConfigError
from statewise.models.language_model import LanguageModel
from statewise.train.run_folder import RUN_FILE, read_run

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class ModelFolder:
    """What the command line needs of a run folder or of a checkpoint; :func:`open_model` makes one.

    folder: as given   checkpoint: the one chosen   given_tokenizer: the one asked for, or None for the checkpoint's own
    """

    folder: Path
    checkpoint: Path
    model: LanguageModel
    given_tokenizer: str | None = None

    @cached_property
    def manifest(self) -> Manifest:
        """The checkpoint's config.json."""
        return read_config(self.checkpoint)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Errors: CheckpointError if the checkpoint was saved without one; DataError for one that does not match."""
        own = self.manifest.tokenizer
        if own is None and self.given_tokenizer is None:
            raise CheckpointError(
                f"{self.checkpoint} was saved without its tokenizer; say which it is: --tokenizer bytes, "
                "or --tokenizer PATH of a tokenizer.json"
            )
        tokenizer = load_tokenizer(self._tokenizer_spec)
        if own is not None:
            require_same_tokenizer(tokenizer, own.fingerprint, f"the checkpoint {self.checkpoint}")
        return tokenizer

    def corpus(self, source: str | None) -> Corpus:
        """The text that the run was trained on, or ``source`` divided in the same way, in this model's tokens.

        Errors:  ConfigError if nothing says which text; DataError for the text itself.
        """
        if (self.folder / RUN_FILE).is_file():
            config = read_run(self.folder).data
        elif source is not None:
            config = TextDataConfig()
        else:
            raise ConfigError(
                f"{self.folder} is a checkpoint alone and does not say on which text to evaluate it; "
                "give --data or --text-file, or the run folder"
            )
        self.tokenizer  # noqa: B018 (one that does not match is refused before anything is tokenised)
        source = config.source if source is None else source
        return open_corpus(replace(config, source=source, tokenizer=self._tokenizer_spec))

    @property
    def _tokenizer_spec(self) -> str:
        own = self.manifest.tokenizer
        if self.given_tokenizer is not None or own is None:
            return self.given_tokenizer or "bytes"
        return "bytes" if own.kind == "bytes" else str(self.checkpoint / TOKENIZER_FILE)


def open_model(folder: Path, *, which: str = "best", device: str = "auto", tokenizer: str | None = None) -> ModelFolder:
    """Loads the best or latest checkpoint of a run folder, or the checkpoint that the folder is.

    Errors:  ConfigError for an unknown choice; CheckpointError if there is nothing to load, or it is damaged.
    """
    if which not in ("best", "latest"):
        raise ConfigError(f"--checkpoint {which!r} is unknown; use best or latest")
    if device not in DEVICES:
        raise ConfigError(f"--device {device!r} is unknown; use one of {', '.join(DEVICES)}")
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ConfigError("--device cuda, but PyTorch finds no CUDA device here; use auto or cpu")
    checkpoint = resolve(folder, "latest" if which == "latest" else "best")
    model = load(checkpoint, device="cuda" if cuda and device != "cpu" else "cpu")
    return ModelFolder(folder, checkpoint, model.eval(), tokenizer)
