"""The other side of workers.py: a process that is given jobs on its input and says on its output what becomes of them.

in:   pickled: the number of threads, then jobs as (part, function, arguments); the end of it asks the process to stop,
      and comes by itself when the parent is no more
out:  a JSON object a line, with the part: "progress", "event", and of each job "done", "failed" or "stopped"
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any, BinaryIO, TextIO

import torch

from statewise.errors import ConfigError, StatewiseError
from statewise.training.report import Reporter, event_line, progress_line
from statewise.training.signals import Stopped, StopSignals, stopping_at_signals
from statewise.training.tasks.base import Task

_SECONDS_BETWEEN_PROGRESS = 0.25


class Messages(Reporter):
    """What the process says, for one part after the other; as a reporter, what training within it says."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.part = ""
        self.task: Task[Any, Any] | None = None
        self._told = 0.0

    def say(self, kind: str, **what: Any) -> None:
        # A line of its own even if a signal cut the last one short
        self.stream.write(f"\n{json.dumps({'kind': kind, 'part': self.part, **what})}\n")
        self.stream.flush()

    def begin(self, task: Task[Any, Any]) -> None:
        self.task = task

    def event(self, record: Mapping[str, Any]) -> None:
        self.say("event", record=dict(record), line=event_line(record, self.task))

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._told < _SECONDS_BETWEEN_PROGRESS:
            return
        self._told = now
        shown = "" if self.task is None or not record else progress_line(record, self.task)
        self.say("progress", fraction=fraction, record=dict(record), shown=shown)


class Input:
    """Jobs as they come. If the input ends before the last one is done, that one is stopped by SIGTERM."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.jobs: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self.given = self.finished = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                job = pickle.load(self.stream)
            except EOFError:
                break
            except Exception as error:  # as of a class that only the script has which is run
                what = f"another process cannot import this work ({error}); put your own classes into a module"
                job = (None, ConfigError(what))  # the main thread says it
            self.given += 1
            self.jobs.put(job)
        self.jobs.put(None)
        if self.given > self.finished:
            _interrupt_main()


def _interrupt_main() -> None:
    """As a first signal would. Whoever ends all processes at once may have sent this one a signal too, which is noted
    only between two steps: neither of the two may kill it as it saves, or take the place of what it says afterwards.
    """
    if StopSignals.ask(signal.SIGTERM) or StopSignals.any_came:
        return
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGTERM)  # the thread itself, so that what it waits in is interrupted too
    else:
        signal.raise_signal(signal.SIGTERM)


def main() -> None:
    """The process, from its beginning to its end."""
    messages = Messages(os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print does not come between
    torch.set_num_threads(pickle.load(sys.stdin.buffer))
    try:
        with stopping_at_signals():
            given = Input(sys.stdin.buffer)
            while (job := given.jobs.get()) is not None:
                _run(job, messages, given)
    except Stopped:
        pass  # said, or there was nothing to do


def _run(job: tuple[Any, ...], messages: Messages, given: Input) -> None:
    messages.part, messages.task = str(job[0]), None
    try:
        if job[0] is None:
            raise job[1]
        _, function, arguments = job
        record = dict(function(*arguments, messages))
        given.finished += 1  # before it is said: the parent may answer by closing the input
        messages.say("done", record=record)
    except Stopped as stopped:
        messages.say("stopped", signal=int(stopped.signal))
        raise
    except StatewiseError as error:
        messages.say("failed", type=type(error).__name__, message=str(error))
    except Exception as error:
        traceback.print_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}, line {place.lineno}"
        messages.say("failed", type=None, message=f"{type(error).__name__}: {error} ({where})")
