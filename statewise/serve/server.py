"""Starting the server, and ending it so that running answers come to their end."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from statewise.data.tokenizers import Tokenizer
from statewise.errors import ConfigError, importing
from statewise.models.language_model import LanguageModel
from statewise.serve.options import ServeConfig

if TYPE_CHECKING:
    from statewise.serve.app import Server

MOST_CONNECTIONS = 1024  # of the system's queue


def serve(
    model: LanguageModel,
    tokenizer: Tokenizer,
    config: ServeConfig | None = None,
    *,
    name: str = "statewise",
    weights: str | None = None,
    template: str | None = None,
    prompts: Callable[[Any], Any] | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serves a language model until SIGTERM or Ctrl-C. Then running answers come to their end, for up to
    ``config.stop_seconds``, and new requests are refused.

    name:     what clients call the model
    weights:  precision of the matrices for the tokens that are written, as in :func:`statewise.generate`
    template: a chat template (Jinja); None: the published one
    prompts:  texts as this model's prompts; None: as :func:`statewise.generate` takes them
    ready:    is called with the address when requests are taken
    Errors:   InputError without the extra ``serve``, for a tokenizer that does not fit, and for ``weights`` that the
              model cannot have; ConfigError if the address is taken, or the folder for states cannot be used.
    """
    with importing("uvicorn", "serve", "a server needs"):
        import uvicorn
    config = ServeConfig() if config is None else config
    listening = _listen(config)
    try:
        server = make_server(model, tokenizer, config, name=name, weights=weights, template=template, prompts=prompts)
        from statewise.serve.app import build_app

        class Graceful(uvicorn.Server):
            """Refuses requests from the first signal on, also over connections that are open."""

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                server.draining = True
                super().handle_exit(sig, frame)

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                if ready is not None and self.started:
                    ready(_address(listening))

        settings = uvicorn.Config(
            build_app(server),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=max(1, round(config.stop_seconds)),
            h11_max_incomplete_event_size=64 << 10,
        )
        with _ended_by_sigterm():
            Graceful(settings).run(sockets=[listening])
    finally:
        listening.close()


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """uvicorn sends itself the signal again when all is done: that this one ended the server is no failure."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda sig, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_server(
    model: LanguageModel,
    tokenizer: Tokenizer,
    config: ServeConfig,
    *,
    name: str = "statewise",
    weights: str | None = None,
    template: str | None = None,
    prompts: Callable[[Any], Any] | None = None,
) -> Server:
    """What :func:`statewise.serve.app.build_app` makes an ASGI application of; nothing runs yet.

    Errors:  as :func:`serve`.
    """
    with importing("starlette", "serve", "a server needs"):
        from statewise.serve.app import Server
    from statewise.serve.disk import StateFolder
    from statewise.serve.metrics import Metrics
    from statewise.serve.model import ServedModel
    from statewise.serve.states import States

    served = ServedModel(model, tokenizer, name=name, weights=weights, template=template, prompts=prompts)
    folder = None
    if config.state_folder is not None:
        path = Path(config.state_folder)
        folder = StateFolder(path, model, n_bytes=config.disk_bytes, precision=served.precision)
    states = States(config.state_bytes, most_saved=config.max_saved, folder=folder)
    return Server(served, config, states, Metrics())


def log_to_stderr() -> None:
    """One line for each request, and for what went wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("statewise.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO if name == "statewise.serve" else logging.WARNING)
        logger.handlers, logger.propagate = [handler], False


def _listen(config: ServeConfig) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":  # where it lets two servers have one port
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(MOST_CONNECTIONS)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}; give another --port, or 0 for "
            "a free one"
        ) from error
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
