"""What is wrong with a request, in the form that OpenAI's clients know."""

from __future__ import annotations

from typing import Any

from statewise.errors import StatewiseError, excerpt

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    507: "server_error",
}


class RequestError(StatewiseError, ValueError):
    """A request that cannot be answered as it is.

    status: of HTTP     param: the field that is wrong     code: a name for programs
    retry_after: seconds after which it may be sent again
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    def body(self) -> dict[str, Any]:
        """
        >>> RequestError("there is no model 'x'", status=404, param="model").body()["error"]["type"]
        'not_found_error'
        """
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        param = None if self.param is None else excerpt(self.param, quoted=False)  # a name may be a client's own
        return {"error": {"message": sendable(str(self)), "type": kind, "param": param, "code": self.code}}


def sendable(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair, which JSON may escape, is written as its escape.

    >>> sendable("a\\ud800b")
    'a\\\\ud800b'
    """
    return text.encode("utf-8", "backslashreplace").decode()
