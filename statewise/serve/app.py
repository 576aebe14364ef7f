"""The routes: OpenAI's, those for states, and those for whoever watches the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from statewise import __version__
from statewise.errors import DataError, InputError
from statewise.serve import requests
from statewise.serve.answers import Answers, Choice, best_choices, embeddings, event
from statewise.serve.asking import Asking, ClientGoneError, into
from statewise.serve.body import read_body
from statewise.serve.engine import Engine
from statewise.serve.errors import RequestError
from statewise.serve.guard import Guard
from statewise.serve.job import Done, Job, Piece
from statewise.serve.metrics import Metrics
from statewise.serve.model import ServedModel
from statewise.serve.options import ServeConfig
from statewise.serve.responses import EventStream, Handler, answered, as_request_error, error_response, id_of
from statewise.serve.states import Kept, States


class Server:
    """What the routes share. ``draining``: running answers end, and no new ones begin."""

    def __init__(self, served: ServedModel, config: ServeConfig, states: States, metrics: Metrics) -> None:
        self.served, self.config, self.states, self.metrics = served, config, states, metrics
        self.engine = Engine(served, config, states, metrics)
        self.draining = False
        gauges = metrics.gauges
        for part in ("reading", "writing", "waiting"):
            value = lambda part=part: self.engine.counts()[part]  # noqa: E731 (one for each part)
            gauges.append((f"statewise_sequences_{part}", f"Sequences that are {part} now", value))
        gauges += [
            ("statewise_states", "States in memory", lambda: len(states)),
            ("statewise_state_bytes", "Memory of these states", lambda: states.n_bytes),
            ("statewise_state_hits", "Prompts whose beginning was known", lambda: states.hits),
            ("statewise_state_misses", "Prompts that were read from the first token", lambda: states.misses),
            ("statewise_states_dropped", "States dropped for lack of memory", lambda: states.dropped),
            ("statewise_saved_states", "States with a name", lambda: len(states.names())),
        ]
        if states.folder is not None:
            folder = states.folder
            gauges.append(("statewise_state_disk_bytes", "Disk of states without a name", lambda: folder.n_bytes))

    # -- OpenAI's -----------------------------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self.served.name:
            raise RequestError(
                f"there is no model {name[:80]!r} here", status=404, param="model", code="model_not_found"
            )
        return JSONResponse(self._model())

    async def completions(self, request: Request) -> Response:
        data = await read_body(request, self.config.max_body)
        asked = requests.completion(data, self.served.name, self.config)
        wanted = asked.wanted
        begin = None if asked.state is None else await asyncio.to_thread(self.states.saved, asked.state)
        rows = [await self._encode(prompt, begin, i) for i, prompt in enumerate(asked.prompts)]
        echoed: list[tuple[str, bool]] = []
        for prompt in asked.prompts if asked.echo else ():
            text = prompt if isinstance(prompt, str) else self.served.tokenizer.decode(prompt)
            echoed += [(text, isinstance(prompt, str))] * wanted.n
        first = None if begin is None else (len(begin[0]), begin[1])
        scored = asked.echo and wanted.n_top is not None
        prompts = [{"ids": ids, "begin": first, "scored": scored} for ids in rows]
        return await self._answer(
            request, wanted, prompts, Answers(self.served, chat=False, wanted=wanted, echoed=tuple(echoed))
        )

    async def chat(self, request: Request) -> Response:
        data = await read_body(request, self.config.max_body)
        asked = requests.conversation(data, self.served.name, self.config, self.served.chat_sampling)
        ids, stable = await asyncio.to_thread(self.served.encode_chat, asked.messages, **asked.variables)
        prompts = [{"ids": ids, "marks": (stable,), "text_begins": True}]
        return await self._answer(request, asked.wanted, prompts, Answers(self.served, chat=True, wanted=asked.wanted))

    async def embeddings(self, request: Request) -> Response:
        data = await read_body(request, self.config.max_body)
        asked = requests.embedding(data, self.served.name, self.served.reader.head.in_features)
        rows = [await self._encode(prompt, None, i, "input") for i, prompt in enumerate(asked.prompts)]
        done = await self._run(request, [{"ids": ids, "embed": True} for ids in rows], "input")
        return JSONResponse(embeddings(self.served, done, in_base64=asked.in_base64))

    # -- states -------------------------------------------------------------------------------------------------------

    async def list_states(self, request: Request) -> Response:
        data = [self._state(name, kept) for name, kept in sorted(self.states.names().items())]
        return JSONResponse({"object": "list", "data": data})

    async def make_state(self, request: Request) -> Response:
        data = await read_body(request, self.config.max_body)
        asked = requests.new_state(data, self.served.name)
        self.states.reserve(asked.name)
        begin = None if asked.state is None else await asyncio.to_thread(self.states.saved, asked.state)
        if asked.messages is None:
            ids = await self._encode(asked.prompt or "", begin)
        else:
            ids, stable = await asyncio.to_thread(self.served.encode_chat, asked.messages, **asked.variables)
            ids = ids[:stable] if stable else ids
        first = None if begin is None else (len(begin[0]), begin[1])
        await self._run(request, [{"ids": ids, "begin": first, "save_as": asked.name}])
        return JSONResponse(self._state(asked.name, self.states.about(asked.name)), 201)

    async def get_state(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(self._state(name, self.states.about(name)))

    async def branch_state(self, request: Request) -> Response:
        fields = requests.Fields(await read_body(request, self.config.max_body))
        other = fields.text("id")
        fields.done()
        if other is None:
            raise RequestError("id is missing; give the branch a name", param="id")
        kept = await asyncio.to_thread(self.states.branch, request.path_params["name"], other)
        return JSONResponse(self._state(other, kept), 201)

    async def delete_state(self, request: Request) -> Response:
        name = request.path_params["name"]
        await asyncio.to_thread(self.states.delete, name)
        return JSONResponse({"id": name, "object": "state", "deleted": True})

    # -- for whoever watches ------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        well = self.engine.is_alive and not self.draining
        status = "ok" if well else "stopping" if self.draining else "the engine has stopped"
        return JSONResponse({"status": status, "version": __version__}, 200 if well else 503)

    async def show_metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    # -- how ----------------------------------------------------------------------------------------------------------

    async def _answer(
        self, request: Request, wanted: requests.Wanted, prompts: list[dict[str, Any]], answers: Answers
    ) -> Response:
        self._check_lengths(prompts, wanted)
        if wanted.save_as is not None:
            self.states.reserve(wanted.save_as, "save_state")
        asking = Asking(self.engine, request.receive)
        width, compared = wanted.best_of, wanted.best_of > wanted.n
        jobs = [
            Job(
                **prompt,
                sink=asking.sink(i * width + j),
                sampling=wanted.sampling,
                seed=(wanted.seed + i * width + j) % (1 << 63),
                max_new_tokens=self._longest(len(prompt["ids"]), wanted),
                stop=wanted.stop,
                n_top=0 if compared and wanted.n_top is None else wanted.n_top,
                save_as=wanted.save_as,
            )
            for i, prompt in enumerate(prompts)
            for j in range(width)
        ]
        asking.begin(jobs)
        if wanted.stream:
            return EventStream(self._events(request, asking, len(jobs), answers, usage=wanted.stream_usage))
        choices = [Choice() for _ in jobs]
        async for i, found in asking.events():
            if isinstance(found, Piece):
                choices[i].pieces.append(found)
            elif isinstance(found, Done):
                choices[i].done = found
        self._check_not_cancelled(choice.done for choice in choices)
        return JSONResponse(answers.whole(best_choices(choices, width, wanted.n) if compared else choices, choices))

    async def _events(
        self, request: Request, asking: Asking, n: int, answers: Answers, *, usage: bool
    ) -> AsyncIterator[bytes]:
        done: dict[int, Done] = {}
        try:
            for i in range(n):
                if (first := answers.begin(i)) is not None:
                    yield event(first)
            async for i, found in asking.events():
                if isinstance(found, Piece):
                    if (said := answers.piece(i, found)) is not None:
                        yield event(said)
                elif isinstance(found, Done):
                    self._check_not_cancelled([found])
                    done[i] = found
                    yield event(answers.end(i, found))
            if usage:
                yield event(answers.usage([done[i] for i in range(n)]))
            yield event("[DONE]")
        except ClientGoneError:
            return
        except Exception as error:  # the status has been sent, so the error is an event
            yield event(as_request_error(error, id_of(request)).body())
        finally:
            asking.leave()

    async def _run(self, request: Request, prompts: list[dict[str, Any]], param: str = "prompt") -> list[Done]:
        """Jobs that write nothing, as many at once as there are rows; how each ended."""
        self._check_lengths(prompts, None, param)
        ended: list[Done] = []
        while len(ended) < len(prompts):
            asking = Asking(self.engine, request.receive)
            batch = prompts[len(ended) : len(ended) + self.config.rows]
            jobs = [Job(**prompt, sink=asking.sink(i)) for i, prompt in enumerate(batch)]
            asking.begin(jobs, goes_on=bool(ended))
            done: dict[int, Done] = {}
            async for i, found in asking.events():
                if isinstance(found, Done):
                    done[i] = found
            self._check_not_cancelled(done.values())
            ended += [done[i] for i in range(len(batch))]
        for one in ended:
            if one.not_saved is not None:
                raise one.not_saved
        return ended

    async def _encode(
        self, prompt: requests.Prompt, begin: tuple[np.ndarray, Any] | None, row: int = 0, param: str = "prompt"
    ) -> np.ndarray:
        """row, param: where it stands, for messages"""
        try:
            ids = await asyncio.to_thread(self.served.encode, prompt, continued=begin is not None)
        except (InputError, DataError) as error:  # each is encoded by itself, so it is a row 0 there
            raise RequestError(
                str(error).replace("row 0 of the prompt", f"row {row} of {param}"), param=param
            ) from error
        return ids if begin is None else np.concatenate([begin[0], ids])

    def _check_lengths(
        self, prompts: Sequence[dict[str, Any]], wanted: requests.Wanted | None, param: str = "prompt"
    ) -> None:
        """Errors: RequestError for a prompt that is too long, for the server or for the model."""
        longest, limit = max(len(prompt["ids"]) for prompt in prompts), self.config.max_prompt_tokens
        n_new = max(len(prompt["ids"]) - (prompt.get("begin") or (0,))[0] for prompt in prompts)
        if n_new > limit:
            raise RequestError(
                f"the prompt has {n_new:,} tokens, and this server reads {limit:,} at most",
                param=param,
                code="context_length_exceeded",
            )
        positions = self.served.longest
        n_new = 0 if wanted is None else self._longest(longest, wanted)
        if positions is not None and longest + n_new > positions:
            raise RequestError(
                f"the prompt has {longest:,} tokens and {n_new:,} may follow, and the model has positions for "
                f"{positions:,}; give a shorter prompt, or a smaller max_tokens",
                param=param,
                code="context_length_exceeded",
            )

    def _longest(self, n_read: int, wanted: requests.Wanted) -> int:
        """How many tokens may follow: what was asked for; where nothing was, what there is room for."""
        positions = self.served.longest
        if positions is None or wanted.max_new_tokens < self.config.max_new_tokens:
            return wanted.max_new_tokens
        return max(1, min(wanted.max_new_tokens, positions - n_read))

    def _check_not_cancelled(self, ends: Any) -> None:
        if any(end is not None and end.reason == "cancelled" for end in ends):
            raise RequestError("the server was stopped before the answer was complete", status=503)

    def _model(self) -> dict[str, Any]:
        return {"id": self.served.name, "object": "model", "created": 0, "owned_by": "statewise"}

    def _state(self, name: str, kept: Kept) -> dict[str, Any]:
        on_disk = self.states.folder is not None
        return {
            "id": name,
            "object": "state",
            "created": int(kept.created),
            "model": self.served.name,
            "tokens": len(kept.ids),
            "on_disk": on_disk,
        }


def build_app(server: Server) -> Any:
    """The ASGI application. Its engine runs between its start and its end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.engine.start(into(asyncio.get_running_loop()))
        try:
            yield
        finally:
            await asyncio.to_thread(server.engine.stop)
            if server.states.folder is not None:
                await asyncio.to_thread(server.states.folder.close)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return error_response(RequestError(f"there is nothing at {request.url.path[:80]!r}", status=404))
        text = f"{request.method} is not for {request.url.path[:80]!r}" if error.status_code == 405 else error.detail
        response = error_response(RequestError(text, status=error.status_code))
        response.headers.update(error.headers or {})
        return response

    def route(path: str, handler: Handler, *methods: str) -> Route:
        return Route(path, answered(handler, path), methods=list(methods))

    app = Starlette(
        routes=[
            route("/v1/models", server.models, "GET"),
            route("/v1/models/{name:path}", server.model, "GET"),
            route("/v1/completions", server.completions, "POST"),
            route("/v1/chat/completions", server.chat, "POST"),
            route("/v1/embeddings", server.embeddings, "POST"),
            route("/v1/states", server.list_states, "GET"),
            route("/v1/states", server.make_state, "POST"),
            route("/v1/states/{name}", server.get_state, "GET"),
            route("/v1/states/{name}", server.delete_state, "DELETE"),
            route("/v1/states/{name}/branch", server.branch_state, "POST"),
            route("/health", server.health, "GET"),
            route("/metrics", server.show_metrics, "GET"),
        ],
        exception_handlers={HTTPException: http_error},
        lifespan=lifespan,
    )
    return Guard(app, server, error_response)
