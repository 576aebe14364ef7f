"""The other side of each comparison: packages, and published listings written out plainly."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from statewise.benchmark.case import Missing


def require(module: str, extra: str = "bench") -> Any:
    """The module of a peer.

    Errors:  Missing, with the command that installs it.
    """
    package = module.split(".")[0]
    if importlib.util.find_spec(package) is None:
        raise Missing(f'{package} is not installed; pip install "statewise[{extra}]"')
    return importlib.import_module(module)
