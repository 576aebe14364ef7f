"""The widths of a head where a config leaves them out, as gated linear attention and mLSTM have them."""

from __future__ import annotations

from typing import Protocol

from statewise.errors import ConfigError


class HeadConfig(Protocol):
    @property
    def n_heads(self) -> int: ...
    @property
    def d_key(self) -> int | None: ...
    @property
    def d_value(self) -> int | None: ...


def head_widths(config: HeadConfig, d_model: int) -> tuple[int, int]:
    """d_key and d_value, or d_model / (2 n_heads) and d_model / n_heads.

    Errors:  ConfigError if one is left out and d_model does not divide.
    """
    found = []
    for name, width, parts in (("d_key", config.d_key, 2), ("d_value", config.d_value, 1)):
        n = parts * config.n_heads
        if width is None and d_model % n:
            raise ConfigError(
                f"d_model={d_model} is not a multiple of {n}, and {type(config).__name__}(n_heads={config.n_heads}) "
                f"has no {name}; give one"
            )
        found.append(d_model // n if width is None else width)
    return found[0], found[1]
