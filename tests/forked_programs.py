"""Processes of Statewise without the seconds in which a new Python imports PyTorch.

One Python a session imports everything once and starts no thread; it is forked into each program. What runs in the fork
has its own input, output, environment and folder, as a new Python has. What a test says of a new Python (its imports,
its children, what kills its parent) needs one, and starts it itself.

    with program(["-m", "statewise", "info"], stdout=subprocess.PIPE) as process: ...
    done = ran(["-m", "statewise", "info"])           as subprocess.run, with what it wrote as text
"""

from __future__ import annotations

import array
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

ENOUGH = 2**20  # bytes of a request: the words and the environment of a program


class ForkedProgram:
    """The part of :class:`subprocess.Popen` that tests and workers.py use, over a fork of the Python that waits."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[bytes] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        start_new_session: bool = False,
        text: bool = False,
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair()
        ours: list[IO[Any] | None] = []
        given: list[int] = []
        for number, how in enumerate((stdin, stdout, stderr)):
            if how == subprocess.PIPE:
                read, write = os.pipe()
                mine, other = (write, read) if number == 0 else (read, write)
                ours.append(os.fdopen(mine, ("w" if number == 0 else "r") + "b" * (not text)))
                given.append(other)
            elif how == subprocess.DEVNULL:
                ours.append(None)
                given.append(os.open(os.devnull, os.O_RDWR))
            else:
                assert not isinstance(how, int)
                ours.append(None)
                given.append(os.dup(number if how is None else how.fileno()))
        self.stdin, self.stdout, self.stderr = ours
        request = {
            "command": self.args,
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or os.getcwd()),
            "session": start_new_session,
        }
        handed = array.array("i", [*given, theirs.fileno()])
        _waiting().sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])
        for descriptor in given:
            os.close(descriptor)
        theirs.close()
        self._told = self._status.makefile("rb")
        self._waits = threading.Lock()  # a thread may wait beside the one that has killed it
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if not self._waits.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        try:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self.returncode = int(self._told.readline())
                self._told.close()
                self._status.close()
            return self.returncode
        finally:
            self._waits.release()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> ForkedProgram:
        return self

    def __exit__(self, *error: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()


def program(words: Sequence[str], **options: Any) -> ForkedProgram:
    """``python WORDS`` with ``-m MODULE``, ``-c CODE``, ``-P -c CODE`` or a file."""
    return ForkedProgram([sys.executable, *words], **options)


def ran(words: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """The same to its end, with nothing to read; ``options`` are ``env`` and ``cwd``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = program([*map(str, words)], stdin=subprocess.DEVNULL, stdout=out, stderr=err, **options)
        code = process.wait()
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read().decode(), err.read().decode())


def in_forks() -> SimpleNamespace:
    """What stands for the module ``subprocess`` where a module of Statewise starts Pythons."""

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return ran(command[1:], **{name: options[name] for name in ("cwd", "env") if name in options})

    names = ("PIPE", "DEVNULL", "TimeoutExpired")
    return SimpleNamespace(Popen=ForkedProgram, run=run, **{name: getattr(subprocess, name) for name in names})


@cache
def _waiting() -> socket.socket:
    """The end of a socket at whose other end a Python waits that has imported everything; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ENOUGH)
    root, tests = Path(__file__).parents[1], Path(__file__).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(root), str(tests)])}
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    return ours


def main(control: socket.socket) -> None:
    """Waits for programs, and is forked into each of them."""
    import gc

    import torch
    import torch._dynamo  # which the first step of an optimiser imports

    import statewise.cli
    import statewise.training.worker  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # so that no fork looks at what was imported, of which it would get a copy
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that watch
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # tests send it to all children of theirs
    while True:
        content, ancillary, _, _ = control.recvmsg(ENOUGH, socket.CMSG_SPACE(4 * array.array("i").itemsize))
        if not content:
            return
        handed = array.array("i")
        for _, _, data in ancillary:
            handed.frombytes(data)
        if os.fork() == 0:
            control.close()
            _watch(json.loads(content), *handed)
        for descriptor in handed:
            os.close(descriptor)


def _watch(request: dict[str, Any], stdin: int, stdout: int, stderr: int, status: int) -> None:
    """Says which process runs the program, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(status)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os._exit(_run(request))
    for descriptor in (0, 1, 2, stdin, stdout, stderr):
        os.close(descriptor)
    os.write(status, f"{child}\n".encode())
    _, how = os.waitpid(child, 0)
    try:
        os.write(status, f"{os.waitstatus_to_exitcode(how)}\n".encode())
    finally:
        os._exit(0)


def _run(request: dict[str, Any]) -> int:
    """As Python runs it, to the exit status; what is registered for the end is done."""
    import atexit

    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    _, *words = request["command"]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*places, *(place for place in sys.path if place not in places)]
    if words[0] == "-P":
        words = words[1:]
    else:
        sys.path.insert(0, request["folder"])
    how, *rest = words
    sys.argv = [how, *(rest[1:] if how in ("-m", "-c") else rest)]
    code: Any = 0
    try:
        if how == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.path[0] = str(Path(how).absolute().parent)
            runpy.run_path(how, run_name="__main__")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or 120
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
