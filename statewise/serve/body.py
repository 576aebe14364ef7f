"""The JSON that a request carries."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from statewise.configuration import parse_json
from statewise.errors import ConfigError
from statewise.serve.asking import ClientGoneError
from statewise.serve.errors import RequestError

BODY_SECONDS = 60.0  # in which a body has to come


async def read_body(request: Request, most: int) -> Any:
    """most: bytes

    Errors:  RequestError for a body that is not JSON, too long, or too slow to come; ClientGoneError.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(f"Content-Type is {kind[:80]!r}; send JSON as application/json", status=415)
    parts, n_bytes = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                n_bytes += len(part)
                if n_bytes > most:
                    raise RequestError(f"the body has more than {most:,} bytes", status=413)
                parts.append(part)
    except TimeoutError as error:
        raise RequestError(f"the body did not come within {BODY_SECONDS:g} seconds", status=408) from error
    except ClientDisconnect as error:
        raise ClientGoneError from error
    try:
        return parse_json(b"".join(parts), "the body")
    except ConfigError as error:
        raise RequestError(str(error)) from error
