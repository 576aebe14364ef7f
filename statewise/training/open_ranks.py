"""The processes of a run: one, or those of ``train.distributed``, which is imported only where there are several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from statewise.training.ranks import Ranks, n_ranks


@contextmanager
def open_ranks() -> Iterator[Ranks]:
    """The processes that were started together, in touch with each other within the ``with``.

    A StatewiseError on one of them becomes an error of all.
    """
    if n_ranks() == 1:
        yield Ranks()
        return
    from statewise.training.distributed.launch import join

    with join() as ranks:
        yield ranks
