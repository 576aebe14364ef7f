"""Head patterns: which of queries, keys and values each head has for itself, and which it shares with others."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from statewise.errors import ConfigError

HEAD_PATTERNS = ("multi_head", "multi_query", "multi_key", "multi_value")


class Heads(NamedTuple):
    """How many different queries, keys and values a step has. As a state-space model they are C, B and its input."""

    queries: int
    keys: int
    values: int


def heads_of(pattern: str, n_heads: int, n_groups: int, where: str) -> Heads:
    """The numbers of ``n_heads`` heads: what the pattern names each head has for itself, and ``n_groups`` groups of
    consecutive heads share the rest.

    =============  =============================  ======================  =======================
    pattern        as attention, one group        as a state-space model  each head has its own
    =============  =============================  ======================  =======================
    multi_head     multi-head                     multi-head              all three
    multi_query    multi-query                    multi-contract          queries (C)
    multi_key      multi-key                      multi-expand            keys (B)
    multi_value    multi-value                    multi-input             values (the input)
    =============  =============================  ======================  =======================

    Errors:  ConfigError that names ``where``, for a number of groups that does not divide the heads, or that
             "multi_head" does not have.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 7.2 and 7.3 (grouped patterns).

    >>> heads_of("multi_value", 8, 2, "")
    Heads(queries=2, keys=2, values=8)
    """
    if pattern == "multi_head":
        if n_groups != 1:
            raise ConfigError(
                f'{where}.n_groups={n_groups} with head_pattern="multi_head", whose heads share nothing; leave it out'
            )
        return Heads(n_heads, n_heads, n_heads)
    if n_heads % n_groups:
        raise ConfigError(f"{where}.n_groups={n_groups} does not divide {n_heads}, the number of heads; use a divisor")
    own = HEAD_PATTERNS.index(pattern) - 1
    return Heads(*(n_heads if i == own else n_groups for i in range(3)))


def share_heads(x: Tensor, n_heads: int, axis: int = 2) -> Tensor:
    """x with ``n_heads`` heads on its axis, each of those there repeated for as many consecutive ones.

    >>> import torch
    >>> share_heads(torch.tensor([[[1, 2]]]), 4).flatten().tolist()
    [1, 1, 2, 2]
    """
    n = x.shape[axis]
    return x if n == n_heads else x.repeat_interleave(n_heads // n, axis)
