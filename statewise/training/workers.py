"""Work in several processes at once, each with its share of the cores: several runs, or the parts of a reproduction.

Every process is a new Python (nothing is forked), in a session of its own, so that a terminal's Ctrl-C reaches the
parent alone, which then asks the others to stop. It does that by closing their input, as the system does when the
parent is killed: whatever ends the parent, no process continues without it.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import statewise.errors
from statewise.errors import ConfigError, StatewiseError
from statewise.training.signals import Stopped, StopSignals

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SECONDS_BETWEEN_LOOKS = 0.1  # at whether a signal came
_SECONDS_TO_STOP = 600.0  # for a step, a look at the validation split and a save; then a process is killed


class WorkerError(StatewiseError, RuntimeError):
    """A process ended before its part was done, or failed with an error that no input of yours explains."""

    exit_code = 1


@dataclass(frozen=True)
class Job:
    """``function(*arguments, reporter)``, which gives JSON data, for another process.

    function: at the top of a module that can be imported; reporter: a :class:`statewise.training.report.Reporter`, for
    ``train``. A function that was stopped by a signal raises :class:`Stopped`, unless its result says so.

    Errors: ConfigError for a function that another process cannot import.
    """

    function: Callable[..., Mapping[str, Any]]
    arguments: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        name = getattr(self.function, "__qualname__", "")
        if not name.isidentifier() or self.function.__module__ == "__main__":
            raise ConfigError(
                f"Job.function={name or self.function!r} cannot be imported by another process; "
                "use a function at the top of a module"
            )


Heard = Callable[[str, Mapping[str, Any]], None]
Finished = Callable[[str, dict[str, Any]], None]


def n_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(n_workers: int) -> int:
    """The cores, shared out."""
    return max(1, n_cores() // n_workers)


def run_jobs(jobs: Mapping[str, Job], n_workers: int, heard: Heard, finished: Finished) -> None:
    """Does all jobs, in their order, in up to ``n_workers`` processes.

    heard:    is called with a part and what its reporter receives meanwhile, as worker.py writes it:
              {"kind": "progress", "fraction", "record", "shown"} or {"kind": "event", "record", "line"}
    finished: is called with a part and what its function gave; may raise :class:`Stopped`, which stops the others

    Ctrl-C or SIGTERM asks all processes to stop, which lets training save, and is raised as :class:`Stopped` when they
    have ended; the second one kills them, and so do ten minutes.

    Errors: of the first job that fails: its own, if it is one of Statewise's, else WorkerError. The others are then
            asked to stop.
    """
    pool = _Pool(jobs, heard, finished)
    with StopSignals(before_the_end=pool.kill) as stop:
        try:
            pool.start(min(n_workers, len(jobs)), threads_each(n_workers))
            while pool.workers and time.monotonic() < pool.deadline:
                pool.look()
                if stop.received is not None:
                    pool.stop(Stopped(stop.received))
        finally:
            pool.end()
    if pool.outcome is not None:
        raise pool.outcome


class _Worker:
    """A process, and the part that it is at."""

    def __init__(self, n_threads: int, messages: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        environment = dict(os.environ) | {name: str(n_threads) for name in _THREAD_VARIABLES}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        self.part: str | None = None
        self.messages = messages
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from statewise.training.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._write(n_threads)
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, part: str, job: Job) -> None:
        self.part = part
        self._write((part, job.function, job.arguments))

    def ask_to_stop(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended
            self.process.stdin.close()

    def _write(self, what: Any) -> None:
        content = pickle.dumps(what)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; the end of its messages says so
            self.process.stdin.write(content)
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # an empty line, or one that a signal cut short
                self.messages.put((self, json.loads(line)))
        self.process.wait()
        self.messages.put((self, None))


class _Pool:
    """The processes, and how it goes; ``outcome`` is what is to be raised when all have ended."""

    def __init__(self, jobs: Mapping[str, Job], heard: Heard, finished: Finished) -> None:
        self.pending = deque(jobs.items())
        self.heard, self.finished = heard, finished
        self.messages: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()
        self.workers: list[_Worker] = []
        self.outcome: BaseException | None = None
        self.deadline = math.inf  # of those that were asked to stop

    def start(self, n_workers: int, n_threads: int) -> None:
        for _ in range(n_workers):
            worker = _Worker(n_threads, self.messages)
            self.workers.append(worker)
            self._give(worker)

    def look(self) -> None:
        """Takes the next message into account, if one comes soon."""
        try:
            worker, message = self.messages.get(timeout=_SECONDS_BETWEEN_LOOKS)
        except queue.Empty:
            return
        if message is None:
            self.workers.remove(worker)
            if worker.part is not None and self.outcome is None:
                self.stop(WorkerError(_ended(worker.part, worker.process.returncode)))
            return
        part, kind = message["part"], message["kind"]
        if kind in ("progress", "event"):
            self.heard(part, message)
        else:
            worker.part = None
            if kind == "done":
                try:
                    self.finished(part, message["record"])
                except Stopped as stopped:
                    self.stop(stopped)
                self._give(worker)
            elif kind == "stopped":
                self.stop(Stopped(message["signal"]))
            else:
                self.stop(_error(message))

    def _give(self, worker: _Worker) -> None:
        if self.pending and self.outcome is None:
            worker.give(*self.pending.popleft())
        else:
            worker.ask_to_stop()

    def stop(self, why: BaseException) -> None:
        """Asks all to stop; the first reason is the one that counts."""
        if self.outcome is None:
            self.outcome = why
            self.deadline = time.monotonic() + _SECONDS_TO_STOP
            for worker in self.workers:
                worker.ask_to_stop()

    def end(self) -> None:
        """Returns when all have ended; kills those that take too long."""
        self.deadline = min(self.deadline, time.monotonic() + _SECONDS_TO_STOP)
        for worker in self.workers:
            worker.ask_to_stop()
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def kill(self) -> None:
        for worker in self.workers:
            worker.process.kill()


def _error(message: Mapping[str, Any]) -> StatewiseError:
    kind = getattr(statewise.errors, message["type"] or "", None)
    if isinstance(kind, type) and issubclass(kind, StatewiseError):
        return kind(message["message"])
    return WorkerError(f"{message['part']} failed: {message['message']}; what was done is kept")


def _ended(part: str, code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        why = f"killed by {name}" + (" (out of memory, most likely)" if name == "SIGKILL" else "")
    else:
        why = f"exit code {code}"
    return f"the process of {part} ended before it was done: {why}; what was done is kept, and you can resume it"
