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
from typing import TYPE_CHECKING, Any, TextIO

from statewise.data.tokenizers import Tokenizer
from statewise.errors import ConfigError, InputError, importing
from statewise.kernels.exact import exact
from statewise.models.language_model import LanguageModel
from statewise.serve.options import ServeConfig

if TYPE_CHECKING:
    from statewise.serve.app import Server

MOST_CONNECTIONS = 1024  # of the system's queue
HEAD_SECONDS = 20.0  # in which the head of a request has to come


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
    Errors:   InputError without the extra ``serve``, for a name that is empty or not printable, a tokenizer that does
              not fit, and ``weights`` that the model cannot have; ConfigError if the address is taken, or the folder
              for states cannot be used.
    """
    config = ServeConfig() if config is None else config
    with contextlib.closing(_listen(config)) as listening:
        options: dict[str, Any] = {"name": name, "weights": weights, "template": template, "prompts": prompts}
        web = _web_server(make_server(model, tokenizer, config, **options), listening, ready)
        with _ended_by_sigterm():
            web.run(sockets=[listening])


@contextlib.contextmanager
def running(
    model: LanguageModel, tokenizer: Tokenizer, config: ServeConfig | None = None, **options: Any
) -> Iterator[str]:
    """Serves a language model as long as the ``with`` lasts, in a thread; its address, as "http://127.0.0.1:8000".

    The arguments are those of :func:`serve`. By default the port is a free one.

        with running(model, tokenizer, name="mine") as address:
            client = openai.OpenAI(base_url=address + "/v1", api_key="none")
    """
    config = ServeConfig(port=0) if config is None else config
    with running_server(make_server(model, tokenizer, config, **options)) as address:
        yield address


@contextlib.contextmanager
def running_server(server: Server) -> Iterator[str]:
    """The same for what :func:`make_server` made."""
    ready = threading.Event()
    with contextlib.closing(_listen(server.config)) as listening:
        web = _web_server(server, listening, lambda address: ready.set())
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not ready.wait(0.05):
            if not thread.is_alive():
                raise InputError("the server did not start; its log has the reason")
        try:
            yield _address(listening)
        finally:
            server.draining = web.should_exit = True
            thread.join(server.config.stop_seconds + 60)


def _web_server(server: Server, listening: socket.socket, ready: Callable[[str], None] | None) -> Any:
    """uvicorn's, around the application."""
    with importing("uvicorn", "serve", "a server needs"):
        import uvicorn
    from statewise.serve import connections
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
        timeout_graceful_shutdown=max(1, round(server.config.stop_seconds)),
        **connections.settings(HEAD_SECONDS, server.config.max_connections),
    )
    return Graceful(settings)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """uvicorn sends itself the signal again when all is done: to end the server in this way is not a failure."""
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

    with exact(config.exact):
        served = ServedModel(model, tokenizer, name=name, weights=weights, template=template, prompts=prompts)
    folder = None
    if config.state_folder is not None:
        path = Path(config.state_folder)
        folder = StateFolder(path, model, n_bytes=config.disk_bytes, precision=served.precision)
    states = States(config.state_bytes, most_saved=config.max_saved, folder=folder)
    return Server(served, config, states, Metrics())


class _ToStderr(logging.StreamHandler[TextIO]):
    """Whatever standard error is when a line is written: programs and tests replace it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        pass


def log_to_stderr() -> None:
    """One line for each request, and for what went wrong."""
    handler = _ToStderr()
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
