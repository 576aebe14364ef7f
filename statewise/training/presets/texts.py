"""The preset for your own labelled texts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import cast

from statewise.data.base import DataConfig
from statewise.data.labelled_shelves import find_labelled
from statewise.data.labelled_text import LabelledTextDataConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.training.config import RunConfig
from statewise.training.presets.labelled import Size, target_fields, train_config
from statewise.training.tasks.sequences import fields_of, open_sequences

VOCABULARY = 4096
LONGEST = 512  # tokens that are read of a text
ENOUGH = 300_000  # bytes of text to learn a vocabulary from


def text_classifier(data: DataConfig, given: Collection[str]) -> RunConfig:
    """Classes of texts, or numbers: two layers of Mamba-2 and the mean over the tokens, which are learned if there is
    text enough.

    Errors: as the data are opened.
    """
    data = cast(LabelledTextDataConfig, data)
    if "max_length" not in given:
        data = replace(data, max_length=LONGEST)
    if "tokenizer" not in given:
        shelves = find_labelled(data.source, data.text_field, data.label_field).shelves
        if sum(shelf.n_bytes for shelf in shelves) >= ENOUGH:
            data = replace(data, tokenizer=f"bpe:{VOCABULARY}")
    found = open_sequences(data)
    size = Size.of(found)
    layer = BlockConfig(mixer=Mamba2Config(d_state=16, d_head=16), norm="rms", dropout=0.2)
    fields = {"d_model": 64, "layers": (layer,) * 2, "dropout": 0.2, **fields_of(found), **target_fields(found)}
    model = SequenceClassifierConfig(**fields) if found.classes else SequenceRegressorConfig(**fields)
    return RunConfig(model=model, data=data, train=train_config(size, lr=2e-3))
