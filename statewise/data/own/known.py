"""What a trained model says of the data that it reads: other data are read by it, and nothing is decided again."""

from __future__ import annotations

from typing import NamedTuple

from statewise.models.file_input import FilesConfig


class Known(NamedTuple):
    """files: how rows come out of files; None: the model was trained on arrays, or on a data set
    classes: their names, in the order of its outputs; (): there are none, or it does not say
    task: "classification" or "regression"; None: it does not say
    """

    files: FilesConfig | None = None
    classes: tuple[str, ...] = ()
    task: str | None = None


NOTHING = Known()
