"""What the commands print: text as it is generated, tables on a terminal, JSON everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from statewise.errors import reading
from statewise.files.json_lines import json_line
from statewise.training.tables import print_result, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from statewise.generation import Token
    from statewise.training.tasks import Table as ResultTable

MAX_LISTED = 32  # plain values of a list in a configuration that is shown
NUMERIC = ("parameters", "mixer", "MLP", "state bytes")


def read_prompt(path: str) -> bytes:
    """The bytes of a file; ``-`` is standard input."""
    if path == "-":
        return sys.stdin.buffer.read()
    with reading(path):
        return Path(path).read_bytes()


class OrderedRows:
    """Writes several growing texts to one stream: the first as it comes, each other when those before it have ended.

    >>> rows = OrderedRows(2, sys.stdout)
    ==> 1 <==
    >>> rows.feed(1, "second"); rows.feed(0, "first"); rows.finish(1); rows.finish(0)
    first
    <BLANKLINE>
    ==> 2 <==
    second
    """

    def __init__(self, n_rows: int, stream: TextIO) -> None:
        self.stream = stream
        self._pending = [""] * n_rows
        self._finished = [False] * n_rows
        self._current = 0
        self._last = ""
        self._begin()

    def feed(self, row: int, text: str) -> None:
        if row == self._current:
            self._write(text)
        else:
            self._pending[row] += text

    def finish(self, row: int) -> None:
        self._finished[row] = True
        while self._current < len(self._finished) and self._finished[self._current]:
            if self._last != "\n":
                self._write("\n")
            self._current += 1
            self._begin()

    def _begin(self) -> None:
        n_rows = len(self._pending)
        if self._current == n_rows:
            return
        if n_rows > 1:
            self._write(("\n" if self._current else "") + f"==> {self._current + 1} <==\n")
        self._last = ""
        self._write(self._pending[self._current])

    def _write(self, text: str) -> None:
        if text:
            self.stream.write(text)
            self.stream.flush()
            self._last = text[-1]


def write_generated(
    tokens: Iterable[Token],
    *,
    n_rows: int,
    echo: Sequence[str | bytes] = (),
    seed: int,
    log_probabilities: bool = False,
) -> None:
    """Text, or a JSON object for each token, on standard output as it comes; on a terminal, then the speed and seed."""
    begin, n_tokens = 0.0, 0
    rows = None if log_probabilities else OrderedRows(n_rows, sys.stdout)
    for row, prompt in enumerate(echo):
        if rows is not None:
            rows.feed(row, prompt.decode("utf-8", "replace") if isinstance(prompt, bytes) else prompt)
    finished = [False] * n_rows
    for token in tokens:
        assert token.text is not None  # a tokenizer was given
        ids, scores, ended = token.ids.tolist(), token.log_probabilities.tolist(), token.finished.tolist()
        n_tokens += sum(not was for was in finished) if begin else 0
        begin = begin or time.perf_counter()  # the first token waits for the prompt to be read
        for row, text in enumerate(token.text):
            if finished[row]:
                continue
            if rows is None:
                record = {"row": row, "token": ids[row], "text": text, "log_probability": scores[row]}
                print(json_line(record, sys.stdout.encoding), flush=True)
            else:
                rows.feed(row, text)
                if ended[row]:
                    rows.finish(row)
        finished = ended
    for row, was in enumerate(finished):
        if rows is not None and not was:
            rows.finish(row)
    if n_tokens and sys.stderr.isatty():
        speed = n_tokens / max(time.perf_counter() - begin, 1e-9)
        print(f"[{speed:,.0f} tokens/s, seed {seed}]", file=sys.stderr)


def show_evaluation(
    record: dict[str, Any] | list[dict[str, Any]], tables: Sequence[ResultTable], *, as_json: bool | None
) -> None:
    """Tables on a terminal, the record as one JSON object elsewhere, unless ``as_json`` decides."""
    if _printed(record, as_json):
        return
    for result in tables:
        print_result(result)
        for note in result.notes:
            print(note)


def show_info(record: dict[str, Any], *, as_json: bool | None) -> None:
    """Tables on a terminal, one JSON object elsewhere, unless ``as_json`` decides."""
    if _printed(record, as_json):
        return
    from statewise.benchmark.ceilings import whether_bfloat16_pays
    from statewise.benchmark.processor import describe_processor
    from statewise.benchmark.show import ceilings_table

    here = _table("here", "", "")
    for key in ("statewise", "python", "torch", "platform", "device", "cpu_capability", "threads"):
        here.add_row(key.replace("_", " "), str(record[key]))
    c_kernels = record["c_kernels"]
    if c_kernels["available"]:
        here.add_row("C kernels", f"{c_kernels['instruction_set']}; threads: {c_kernels['threads']}")
    else:
        here.add_row("C kernels", f"no; everything is several times slower without them: {c_kernels['why_not']}")
    decoding = record["decoding"]
    here.add_row(
        "decoding reads weights",
        (decoding["asked"] or f"the fastest in the first steps of: {', '.join(decoding['ways'])}")
        + ("; VNNI for integers" if decoding["vnni"] else ""),
    )
    here.add_row("processor", describe_processor(record["processor"]))
    if record["ceilings"] is None:
        here.add_row("ceilings", "not measured; run: statewise benchmark ceilings")
    else:
        here.add_row("bfloat16", whether_bfloat16_pays(record["ceilings"]))
    print_table(here)
    if record["ceilings"] is not None:
        print_result(ceilings_table(record["ceilings"]))
    kernels = _table("kernels", "kernel", "in use")
    for status in record["kernels"]:
        kernels.add_row(status["kernel"], status["path"])
    print_table(kernels)
    reasons = {f"{other}: {why}" for status in record["kernels"] for other, why in status["others"].items()}
    for reason in sorted(reasons):
        print(f"not in use: {reason}")
    for device in dict.fromkeys(status["device"] for status in record["cards"]):
        on_card = _table(f"kernels on {device}", "kernel", "in use", "why")
        for status in record["cards"]:
            if status["device"] == device:
                on_card.add_row(status["kernel"], status["path"], status["reason"])
        print_table(on_card)
    if "architecture" in record:
        _show_published(record)
    if "parts" in record:
        if "generates" in record:
            print(record["generates"])
        _show_model(record)
    if "memory" in record:
        _show_memory(record)


def show_conversion(record: dict[str, Any], *, as_json: bool | None) -> None:
    """What was converted, in two lines on a terminal, as one JSON object elsewhere, unless ``as_json`` decides."""
    if _printed(record, as_json):
        return
    print(f"{record['source']} ({record['format']}) -> {record['target']} ({record['to']})")
    tokenizer = record["tokenizer"] or "no tokenizer"
    print(
        f"{record['model']}: {record['layers']} layers, {record['parameters']:,} parameters, {record['dtype']}; "
        f"{tokenizer}"
    )


@contextmanager
def counted(noun: str) -> Iterator[Callable[[int, int], None] | None]:
    """On a terminal, a progress bar; call the function that it yields with how many are done and of how many. Elsewhere
    it yields None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(noun, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


MEMORY = {
    "float32": "the model in float32",
    "bfloat16": "the model in bfloat16",
    "int8": "what a step in C reads, --weights int8",
    "int4": "what a step in C reads, --weights int4",
    "kept": "the model as the file has it, keep_quantised",
    "stored": "what a step in C reads of it",
}


def _show_published(record: dict[str, Any]) -> None:
    """What a model of others is, and what of it cannot be read."""
    types = ", ".join(f"{kind} ({many:,} tensors)" for kind, many in record["types"].items())
    where = f"as {record['format']}" if record["format"] else "in no known format"
    print(
        f"{record['checkpoint']}: {record['architecture'] or 'no name of an architecture'} {where}, "
        f"{record['file_parameters']:,} numbers in {types}"
    )
    if record["loads"]:
        steps = {part["step_in_c"] for part in record["parts"] if "mixer" in part} - {"yes"}
        without = f"; a layer has no step in C, since it {'; '.join(sorted(steps))}" if steps else ""
        print(f"it can be loaded{without}")
        return
    print(f"it cannot be loaded: {record['reason']}")
    similar: dict[str, list[str]] = {}
    table = _table("layers, as its own files name them", "layers", "kind", "what they hold")
    for (kind, holds), layers in groupby(record["layers"], key=lambda layer: (layer["kind"], layer["holds"])):
        several = list(layers)
        similar |= several[0]["similar"]
        numbers = [layer["layer"] for layer in several]
        table.add_row(f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}", kind, ", ".join(holds))
    print_table(table)
    for name, configs in similar.items():
        print(f"in models that are read, {name} is {' or '.join(configs)}")


def _show_memory(record: dict[str, Any]) -> None:
    table = _table("memory of the weights", "", "bytes")
    for name, n_bytes in record["memory"].items():
        table.add_row(MEMORY[name], f"{n_bytes:,}")
    print_table(table)


def _show_model(record: dict[str, Any]) -> None:
    table = _table(record["checkpoint"], "part", "", "parameters", "mixer", "MLP", "state bytes", "")
    total_parameters = total_state = growth = 0
    for part in record["parts"]:
        state = part.get("state")
        total_parameters += part["parameters"]
        kind = "tied" if part["part"] == "head" and not part["parameters"] else part.get("mixer", "")
        cells = [part["part"], kind, f"{part['parameters']:,}"]
        if "mixer" in part:
            cells += [f"{part['mixer_parameters']:,}", f"{part['mlp_parameters']:,}"]
        if state is None:
            table.add_row(*cells, *(["", "none: it reads in both directions"] if "mixer" in part else []))
            continue
        total_state, growth = total_state + state["bytes"], growth + state["per_token"]
        grows = f"and {state['per_token']:,} more for each token" if state["per_token"] else ""
        after = f"after {state['tokens']:,} tokens" if state["bytes"] != state["at_rest"] else "constant"
        table.add_row(*cells, f"{state['bytes']:,}", grows or after)
    table.add_section()
    table.add_row(
        "all", "", f"{total_parameters:,}", "", "", f"{total_state:,}", f"+ {growth:,}/token" if growth else ""
    )
    print_table(table)
    described = _table("configuration (all of it: --json)", "", "")
    for name, value in record["configuration"].items():
        if name == "layers":
            for layer, many in groupby(value, key=_in_words):
                described.add_row("layers", f"{len(list(many))} x {layer}")
        elif value is not None:
            described.add_row(name, _in_words(value))
    print_table(described)


def _in_words(value: Any) -> str:
    """A config as Python writes it, without what is not set and what is in the middle of long lists."""
    if isinstance(value, dict):
        fields = {name: part for name, part in value.items() if name != "type" and part is not None}
        inner = ", ".join(f"{name}={_in_words(part)}" for name, part in fields.items())
        return f"{value['type']}({inner})" if "type" in value else f"({inner})"
    if isinstance(value, list):
        few = value if len(value) <= MAX_LISTED else [*value[:3], f"... {len(value):,} in all"]
        return f"({', '.join(map(_in_words, few))})"
    return value if isinstance(value, str) else repr(value)


def _printed(record: Any, as_json: bool | None) -> bool:
    """As one JSON object, if that is wanted."""
    wanted = not sys.stdout.isatty() if as_json is None else as_json
    if wanted:
        print(json_line(record, sys.stdout.encoding))
    return wanted


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=any(columns))
    for i, column in enumerate(columns):
        numeric = column in NUMERIC
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric or not i)
    return table
