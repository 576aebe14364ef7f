"""What a server may do, and how much of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Annotated

from statewise.configuration import Config
from statewise.configuration.types import Count, Name, Natural, Positive, from_to
from statewise.errors import ConfigError

Port = Annotated[int, from_to(0, 65_535)]


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Config):
    """The options of a server.

    host, port:       where it listens; port 0 takes a free one
    api_key:          what clients must send as ``Authorization: Bearer KEY``; None: nothing. It is needed for a host
                      that other machines reach
    rows:             sequences that are read or written at once; more wait
    max_waiting:      sequences that may wait; a request beyond is refused with 429
    max_prompt_tokens: of a request
    max_new_tokens:   that a request may ask for, and what a chat gets that asks for no number
    max_body:         bytes of a request
    max_connections:  that are open at once; further ones are refused with 503
    requests_per_minute: of one client: an address, as the key is the same for all; None: any number
    prefill_piece:    tokens of a prompt that are read between two steps of the rows that write
    state_bytes:      memory for states of prompts and conversations; the longest unused is dropped
    state_folder:     where they are kept on disk too, and where saved states are; None: nowhere
    disk_bytes:       of that folder for states that nobody named
    max_saved:        states that clients may save by a name
    stop_seconds:     how long running answers may take to end when the server is stopped
    exact:            in exact mode, :func:`statewise.exact`: an answer has the same bits whoever else is there
    """

    host: Name = "127.0.0.1"
    port: Port = 8000
    api_key: Name | None = None
    rows: Count = 8
    max_waiting: Count = 64
    max_prompt_tokens: Count = 131_072
    max_new_tokens: Count = 4096
    max_body: Count = 8 << 20
    max_connections: Count = 512
    requests_per_minute: Positive | None = None
    prefill_piece: Count = 256
    state_bytes: Natural = 1 << 30
    state_folder: Name | None = None
    disk_bytes: Natural = 8 << 30
    max_saved: Natural = 256
    stop_seconds: Positive = 30.0
    exact: bool = False

    def __post_init__(self) -> None:
        if not self.is_local and self.api_key is None:
            raise ConfigError(
                f"ServeConfig.host={self.host!r} lets other machines use the server; give an api_key too "
                "(--api-key or STATEWISE_API_KEY), or leave host at 127.0.0.1"
            )
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError("ServeConfig.api_key must be printable ASCII, which is all that a header can hold")

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine reach the server.

        >>> ServeConfig(host="::1").is_local
        True
        """
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
