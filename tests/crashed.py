"""Checkpoints that are written while something happens."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from disks import small_disk  # noqa: F401


def in_child(work: Callable[[], object]) -> int:
    """Forks a process that does the work and exits with 0; its number. A fresh Python would cost seconds."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # the threads of the parent's pool are not here
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child
