"""The loop of the server: a piece of a prompt is read, then all rows that write take a step, and so on."""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from statewise.errors import InputError, StatewiseError
from statewise.generation import Reading
from statewise.generation.reading import extend
from statewise.kernels.exact import exact
from statewise.kernels.exact.owner import exact_in
from statewise.models.evaluation_mode import evaluation_mode
from statewise.serve.drawing import drawn
from statewise.serve.errors import RequestError
from statewise.serve.job import Done, Event, Failed, Job, Piece, Writing
from statewise.serve.metrics import Metrics
from statewise.serve.model import ServedModel
from statewise.serve.options import ServeConfig
from statewise.serve.prompts import begin_to_read, read_piece, read_together
from statewise.serve.states import States, why_not_saved
from statewise.serve.worker import Worker

log = logging.getLogger("statewise.serve")
Deliver = Callable[[list[tuple[Callable[[Event], None], Event]]], None]
# Tokens of several prompts that are read in one call. With so few, reading the weights takes most of the time: eight
# pieces of 8 tokens take 0.4 of what they take apart, of 64 tokens 0.86 (mamba-130m), and each would wait for all.
TOGETHER = 64
SHARED = 32  # tokens that prompts must have in common for the state behind them to be kept


class Engine:
    """All work with the model, in one thread. The methods may be called from any.

    A row's text is that of :func:`statewise.generate` with the same seed, whoever else is there: its random numbers are
    its own, and its logits do not depend on the others, but for the rounding of float32; in exact mode not even that.
    """

    def __init__(self, served: ServedModel, config: ServeConfig, states: States, metrics: Metrics) -> None:
        self.served, self.config, self.states, self.metrics = served, config, states, metrics
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: collections.deque[Job] = collections.deque()
        self._reading: collections.deque[Job] = collections.deque()
        self._writing: list[Job] = []
        self._n_open = 0  # jobs that were submitted and have not ended
        self._lock = threading.Lock()
        self._stopping = False
        self._outbox: list[tuple[Callable[[Event], None], Event]] = []
        self._saver = Worker("saver")
        self._thread = threading.Thread(target=self._run, name="statewise-engine", daemon=True)

    # -- from any thread ----------------------------------------------------------------------------------------------

    def start(self, deliver: Deliver) -> None:
        """deliver: is called in the thread with the events of a turn, and puts each into its sink"""
        self._deliver = deliver
        self._thread.start()

    def stop(self) -> None:
        """Ends what is running as cancelled, and the thread."""
        self._commands.put(None)
        self._thread.join(timeout=60)
        self._saver.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def submit(self, jobs: Sequence[Job], *, goes_on: bool = False) -> None:
        """All of them, or none. goes_on: whether they take the places of others of their request, which have ended

        Errors:  RequestError if too many wait.
        """
        room = self.config.rows + self.config.max_waiting
        with self._lock:
            if not self.is_alive:
                raise RequestError("the server is stopping; ask another one", status=503)
            if len(jobs) > room:
                raise RequestError(f"a request may ask for {room} sequences at most here; it asks for {len(jobs)}")
            if not goes_on and self._n_open + len(jobs) > room:
                raise RequestError(
                    f"{self._n_open} sequences are being answered, and {room} may be; try again soon",
                    status=429,
                    code="too_many_requests",
                    retry_after=1.0,
                )
            self._n_open += len(jobs)
            self._commands.put(lambda: self._waiting.extend(jobs))

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody waits for them any more: their rows are free for others."""
        for job in jobs:
            job.cancelled = True
        self._commands.put(lambda: None)  # wakes the thread

    def counts(self) -> dict[str, int]:
        """How many sequences are in which part."""
        n_reading, n_writing = len(self._reading), len(self._writing)
        return {"reading": n_reading, "writing": n_writing, "waiting": self._n_open - n_reading - n_writing}

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        served = self.served
        try:
            on = exact(self.config.exact or exact_in(served.reader))
            with on, evaluation_mode(served.reader), torch.inference_mode():
                self._rows = served.rows(self.config.rows)
                self._free = list(range(self.config.rows))
                while not self._stopping:
                    self._turn()
        except BaseException as error:  # a mistake of ours: health says so, and nobody waits for ever
            log.exception("the engine has stopped")
            reason = error if isinstance(error, Exception) else RequestError("the server was stopped", status=503)
            self._fail(self._unanswered(), reason)
        for job in self._unanswered():
            self._end(job, "cancelled")
        self._send()

    def _unanswered(self) -> list[Job]:
        """Stops, and returns the jobs that wait for an answer. None comes after them: submit looks at _stopping,
        and puts its jobs into the queue, under the same lock."""
        with self._lock:
            self._stopping = True
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._commands.get_nowait()
                if command is not None:
                    command()
        return [*self._waiting, *self._reading, *self._writing]

    def _turn(self) -> None:
        self._take_commands()
        for job in [job for job in (*self._waiting, *self._reading, *self._writing) if job.cancelled]:
            self._end(job, "cancelled")
        self._admit()
        self._read_a_piece()
        try:
            self._step()
            self._draw()
        except Exception as error:  # of all that share the step
            self._fail(list(self._writing), error)
        self._send()

    def _send(self) -> None:
        """All events of a turn at once: to wake the other thread costs more than an event."""
        if self._outbox:
            self._deliver(self._outbox)
            self._outbox = []

    def _take_commands(self) -> None:
        idle = not (self._waiting or self._reading or self._writing)
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._commands.get(block=idle)
                idle = False
                if command is None:
                    self._stopping = True
                    return
                command()

    def _admit(self) -> None:
        """Gives rows to those that wait, in their order. One that reads the same as another one waits for it, and finds
        what it needs among the states."""
        for job in list(self._waiting):
            if not self._free:
                return
            twin = job.is_plain and any(
                other.is_plain and np.array_equal(other.ids, job.ids) for other in self._reading
            )
            if twin and self.config.state_bytes:
                continue
            self._waiting.remove(job)
            job.row = self._free.pop()
            try:
                self._begin(job)
                if job.n_read == len(job.ids):
                    self._has_read(job)
                else:
                    self._reading.append(job)
            except Exception as error:
                self._fail([job], error)

    def _begin(self, job: Job) -> None:
        """Finds what has been read already."""
        if not job.is_plain:
            begin_to_read(self.served, job, (0, None))
            return
        begin_to_read(self.served, job, self.states.longest(job.ids))
        n = job.n_read
        parting = self.states.shared(job.ids, least=n + SHARED)
        marks = {mark for mark in (*job.marks, parting or 0) if n < mark < len(job.ids)}
        job.marks = tuple(sorted(marks))

    def _read_a_piece(self) -> None:
        """A piece of one prompt, with short ones of others that fit beside it; the next time, of another one."""
        if not self._reading:
            return
        self._reading.rotate(-1)
        first = self._reading[-1]
        together, ends = [first], [self._end_of_piece(first)]
        longest = ends[0] - first.n_read
        for job in self._reading if first.is_plain else ():
            end = self._end_of_piece(job)
            longest_then = max(longest, end - job.n_read)
            fits = longest_then * (len(together) + 1) <= TOGETHER
            if job is not first and job.is_plain and fits:
                longest = longest_then
                together.append(job)
                ends.append(end)
        begins = [job.n_read for job in together]
        try:
            if len(together) == 1:
                read_piece(self.served, first, ends[0])
            else:
                read_together(self.served, together, ends)
        except Exception as error:
            self._fail(together, error)
            return
        self.metrics.tokens_read.add(sum(ends) - sum(begins))
        for job, end in zip(together, ends):
            try:
                if end in job.marks and job.reading is not None:
                    self.states.keep(job.ids[:end], job.reading)
                if end == len(job.ids):
                    self._reading.remove(job)
                    self._has_read(job)
            except Exception as error:
                self._fail([job], error)

    def _end_of_piece(self, job: Job) -> int:
        marks = (mark for mark in job.marks if mark > job.n_read)
        return min([job.n_read + self.config.prefill_piece, len(job.ids), *marks])

    def _has_read(self, job: Job) -> None:
        assert job.reading is not None  # it has been read
        self.metrics.tokens_kept.add(job.n_kept)
        if job.embed:
            self._end(job, "stop")
            return
        if job.n_kept < len(job.ids):
            self.states.keep(job.ids, job.reading, on_disk=False)
        if job.max_new_tokens == 0:
            self._finish(job, "length")
            return
        job.writing = Writing(job, job.reading, self.served.tokenizer)
        self._rows.join(job.row, job.reading.state)
        job.reading = None
        self._writing.append(job)

    def _step(self) -> None:
        """The model reads the last token of each row."""
        rows = [(job.row, job.writing) for job in self._writing if job.writing is not None]
        unread = {row: writing.unread for row, writing in rows if writing.unread is not None}
        if not unread:
            return
        logits = self._rows.step(unread)
        self.metrics.steps.add(1)
        of_row = dict(zip(unread, logits.split(1)))
        for row, writing in rows:
            if row in of_row:
                writing.read(unread[row], of_row[row])

    def _draw(self) -> None:
        """The next token of each row."""
        for job, token, own in list(drawn(self._writing, self.served.without_token)):
            try:
                self._write(job, token, own)
            except Exception as error:
                self._fail([job], error)

    def _write(self, job: Job, token: int, own: Tensor | None) -> None:
        writing = job.writing
        assert writing is not None  # it writes
        if token < 0:
            raise InputError("the logits are not finite: the model's parameters or the state hold NaN or infinity")
        writing.drawn.append(token)
        writing.unread = token
        last = len(writing.drawn) == job.max_new_tokens
        text = writing.text.feed(token, self.served.ends, last=last)
        log_probability, top = None if own is None else float(own[token]), None
        if own is not None and job.n_top:
            found = own.topk(min(job.n_top, len(own)))
            top = list(zip(found.indices.tolist(), found.values.tolist()))
        if job.first_token is None:
            job.first_token = time.monotonic()
            self.metrics.first_token.observe(job.first_token - job.arrived)
        self.metrics.tokens_written.add(1)
        self._outbox.append((job.sink, Piece(token, text, log_probability, top or [])))
        if writing.text.finished or last:
            self._finish(job, "stop" if writing.text.finished else "length")

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _finish(self, job: Job, reason: str) -> None:
        """Keeps the state for the next turn: after all but the last token, which the model has not read."""
        writing, reading, ids = job.writing, job.reading, job.ids
        if writing is not None:
            assert writing.logits is not None  # the last token was drawn from them
            reading = Reading(writing.logits.clone(), self._rows.state(job.row), writing.seen, writing.recent())
            ids = self.served.joined(ids, writing.drawn[:-1])
            if writing.drawn[:-1]:
                self.states.keep(ids, reading)
        assert reading is not None  # it has been read
        if job.save_as is None:
            self._end(job, reason)
            return
        if writing is not None and writing.drawn[-1] not in self.served.ends:
            token = torch.tensor([[writing.drawn[-1]]], device=self.served.device)
            reading = extend(self.served.reader, reading, token, None, None)
            ids = self.served.joined(ids, writing.drawn[-1:])
        name, found = job.save_as, reading
        done = self._close(job, reason)

        def save() -> None:
            refused = why_not_saved(self.states, name, ids, found)
            self._deliver([(job.sink, done._replace(not_saved=refused))])

        self._send()  # what was written goes before the end, which the other thread delivers
        self._saver.call(save)

    def _end(self, job: Job, reason: str) -> None:
        self._outbox.append((job.sink, self._close(job, reason)))

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """What clients can do wrong was found before: this is ours, or the model's."""
        if isinstance(error, StatewiseError) and not isinstance(error, RequestError):
            error = RequestError(str(error), status=500)
        for job in jobs:
            self._close(job, "failed")
            self._outbox.append((job.sink, Failed(error)))

    def _close(self, job: Job, reason: str) -> Done:
        """Takes the job out of where it is."""
        for part in (self._waiting, self._reading, self._writing):
            with contextlib.suppress(ValueError):
                part.remove(job)
        if job.row >= 0:
            if job.writing is not None:
                self._rows.leave(job.row)
            self._free.append(job.row)
            job.row = -1
        with self._lock:
            self._n_open -= 1
        n_written = 0 if job.writing is None else len(job.writing.drawn)
        self.metrics.ended.add(1, reason=reason)
        embedding = None
        if job.features is not None:
            mean = job.features / len(job.ids)
            embedding = (mean / mean.norm().clamp(min=1e-30)).tolist()
        job.writing = job.reading = job.features = job.begin = None
        return Done(reason, len(job.ids), job.n_kept, n_written, embedding, job.scores)
