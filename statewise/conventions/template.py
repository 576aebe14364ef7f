"""A chat template: from messages to the text that a model reads."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from statewise.conventions.published import check_template
from statewise.errors import DataError, InputError, excerpt, reason

SECONDS = 10.0  # that a template may take for one conversation
LEAST = 1 << 20  # characters that any conversation may be written as
EXPANSION = 100  # times as many characters as the messages and the template have
ROLE, CONTENT = "role", "content"
# What the process needs of the environment, which may hold secrets besides
KEPT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL", "LC_TIME")

Message = Mapping[str, Any]


class ChatTemplate:
    """A Jinja template as ``transformers`` renders it, in a process of its own, since it is a stranger's program.

    The process starts with the first conversation, takes the next ones too, and ends with this object. The sandbox
    keeps the template from Python, files and the network. Beyond 10 seconds or 1 GB it ends (memory: on Linux), and the
    process with it; the conversation is then refused.

    text:    the template
    names:   what it finds besides the messages: {"bos_token": "<s>"}
    seconds: for each conversation
    Errors:  DataError for a template of more than 1,048,576 characters.

    >>> turns = ChatTemplate("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
    >>> turns.render([{"role": "user", "content": "Hello"}])
    '[user] Hello'
    """

    def __init__(self, text: str, names: Mapping[str, str] | None = None, *, seconds: float = SECONDS) -> None:
        self.text = check_template(text, "the template")
        self.names = dict(names or {})
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation as one text.

        messages:  {"role": "user", "content": "Hello"} and so on: JSON data
        add_generation_prompt: whether the text ends where an answer is to begin
        variables: further values that the template knows, JSON data
        Errors:    InputError for messages that are none; DataError, one line, for a template that is none, that
                   refuses the conversation, or that needs too much time, memory or text.
        """
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get(ROLE), str) or CONTENT not in message:
                raise InputError(f'{excerpt(message)} is not a message; expected {{"role": "user", "content": "..."}}')
        found: dict[str, Any] = {
            **self.names,
            **variables,
            "messages": [dict(message) for message in messages],
            "tools": variables.get("tools"),
            "documents": variables.get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            n_given = len(self.text) + len(json.dumps(found))
        except (TypeError, ValueError) as error:
            raise InputError(f"the messages are not JSON data: {reason(error)}") from error
        with self._lock:
            answer = self._ask({"variables": found, "seconds": self.seconds, "most": max(LEAST, EXPANSION * n_given)})
        if "text" not in answer:
            said = "".join(c if c.isprintable() else " " for c in str(answer["error"]))
            raise DataError(f"the chat template cannot write this conversation: {excerpt(said, 200, quoted=False)}")
        return str(answer["text"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One line to the process and one back; it is stopped when the time is over."""
        new = self._process is None
        process = self._start() if self._process is None else self._process
        request |= {"template": self.text} if new else {}
        timer = threading.Timer(self.seconds + (5.0 if new else 0.0), process.kill)  # to start takes time too
        timer.start()
        answer = b""
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                answer = process.stdout.readline()
        except BaseException:  # Ctrl-C: what is still to be answered must not answer the next one
            process.kill()
            self._process = None
            raise
        finally:
            timer.cancel()
        try:
            read: dict[str, Any] = json.loads(answer)
            return read
        except ValueError:
            _end(process)
            self._process = None
            return {"error": f"it took more than {self.seconds:g} seconds, or more memory than allowed"}

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "statewise.conventions.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in KEPT if name in os.environ}
            | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,  # Ctrl-C in a terminal is for the conversation
        )
        weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    process.wait()
