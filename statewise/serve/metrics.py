"""Numbers for Prometheus, in its text format: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Counter:
    """A number that only rises, for each combination of labels.

    >>> counter = Counter("x_total", "what it counts")
    >>> counter.add(2, path="/a")
    >>> print("\\n".join(counter.lines()))
    # HELP x_total what it counts
    # TYPE x_total counter
    x_total{path="/a"} 2
    """

    def __init__(self, name: str, about: str) -> None:
        self.name, self.about = name, about
        self._values: dict[tuple[tuple[str, str], ...], float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def total(self) -> float:
        return sum(self._values.values())

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.about, "counter")
        with self._lock:
            values = dict(self._values) or {(): 0.0}
        for labels, value in sorted(values.items()):
            yield f"{self.name}{_labels(dict(labels))} {value:g}" if value < 1e6 else _long(self.name, labels, value)


class Histogram:
    """How many of the numbers that were seen are at most so large."""

    def __init__(self, name: str, about: str, bounds: tuple[float, ...] = SECONDS) -> None:
        self.name, self.about, self.bounds = name, about, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        place = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.about, "histogram")
        with self._lock:
            counts, total = list(self._counts), self._sum
        so_far = 0
        for bound, count in zip((*self.bounds, float("inf")), counts):
            so_far += count
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{self.name}_bucket{{le="{shown}"}} {so_far}'
        yield f"{self.name}_sum {total:.6f}"
        yield f"{self.name}_count {so_far}"


class Metrics:
    """All numbers of a server. ``gauges`` are asked when somebody looks: (name, what it is, its value)."""

    def __init__(self) -> None:
        self.requests = Counter("statewise_requests_total", "Requests, by path and status")
        self.seconds = Histogram("statewise_request_seconds", "Seconds from a request to the end of its answer")
        self.first_token = Histogram("statewise_first_token_seconds", "Seconds from a request to its first token")
        self.tokens_read = Counter("statewise_prompt_tokens_read_total", "Tokens of prompts that were read")
        self.tokens_kept = Counter("statewise_prompt_tokens_kept_total", "Tokens of prompts whose state was kept")
        self.tokens_written = Counter("statewise_tokens_written_total", "Tokens written")
        self.steps = Counter("statewise_steps_total", "Steps of the rows that write, all together each time")
        self.ended = Counter("statewise_sequences_total", "Sequences that ended, by reason")
        self.gauges: list[tuple[str, str, Callable[[], float]]] = [
            ("process_resident_memory_bytes", "Resident memory of the process", resident_bytes)
        ]

    def text(self) -> str:
        """The whole page."""
        parts = [part for part in vars(self).values() if isinstance(part, (Counter, Histogram))]
        lines = [line for part in parts for line in part.lines()]
        for name, about, value in self.gauges:
            lines += [*_head(name, about, "gauge"), f"{name} {value():.0f}"]
        return "\n".join(lines) + "\n"


def resident_bytes() -> float:
    """0 where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    import resource

    return float(pages * resource.getpagesize())


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _long(name: str, labels: tuple[tuple[str, str], ...], value: float) -> str:
    return f"{name}{_labels(dict(labels))} {value:.0f}"


def _labels(labels: Mapping[str, str]) -> str:
    quoted = (f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return "{" + ",".join(quoted) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
