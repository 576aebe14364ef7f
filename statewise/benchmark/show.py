"""Measured records as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statewise.benchmark.processor import describe_processor
from statewise.benchmark.workloads import WORKLOADS
from statewise.training.tasks import Table

ALL = (
    ("bars", "every bar, held against this machine"),
    ("ceilings", "what this machine can do: memory, products, exponentials"),
    ("errors", "how far elementary functions and kernels are from float64"),
)


def ceilings_table(record: Mapping[str, Any]) -> Table:
    rows, notes = [], []
    for one in record["ceilings"]:
        if one["value"] is None:
            notes.append(f"{one['name']}: {one['why']}")
        else:
            rows.append((one["name"], one["setting"], f"{one['value']:,.4g} {one['unit']}", one["way"]))
    title = f"ceilings of {describe_processor(record['processor'])}; {record['threads']} threads, {record['measured']}"
    return Table(title, ("ceiling", "setting", "value", "fastest way"), rows, tuple(notes))


def errors_tables(record: Mapping[str, Any]) -> list[Table]:
    tables = []
    if record["elementary"]:
        rows = [
            (one["name"], one["instructions"], _where(one), f"{one['largest']:.2f}", f"{one['mean']:.3f}")
            for one in record["elementary"]
        ]
        title = "float32 functions in C: error in units in the last place"
        tables.append(Table(title, ("function", "instructions", "x", "largest", "mean"), rows))
    columns = ("kernel", "inputs", "side", "largest", "mean", "gradients")
    rows = [
        (one["name"], one["range"], side, *(f"{found[key]:.1e}" if key in found else "" for key in columns[3:]))
        for one in record["kernels"]
        for side, found in one["sides"].items()
    ]
    notes = (
        "Errors of outputs, and the largest of gradients, relative to the largest value of their tensor.",
        f"Measured on {record['processor']}.",
    )
    return [*tables, Table("kernels in float32 compared with their definitions in float64", columns, rows, notes)]


def _where(function: Mapping[str, Any]) -> str:
    return f"up to {function['most']:,.0f}" if "most" in function else "all"


def workloads_table() -> Table:
    rows = [(workload.name, workload.summary) for workload in WORKLOADS.values()]
    return Table("benchmarks", ("name", "what, and beside whom"), [*rows, *ALL])


def workload_tables(record: Mapping[str, Any]) -> list[Table]:
    """One for each case."""
    tables = []
    for case in record["cases"]:
        per = " per step" if case["length"] == 1 else f" for {case['length']:,}"
        columns = ["side", f"ms{per}", "times ours", "MiB above inputs"]
        rows: list[tuple[str, ...]] = []
        notes: list[str] = []
        for side, found in case["sides"].items():
            if "why" in found:
                notes.append(f"{side}: {found['why']}")
                continue
            ratio = f"{found['ratio']:.2f}" if "ratio" in found else ""
            memory = f"{found['mebibytes']:,.0f}" if "mebibytes" in found else ""
            rows.append((side, f"{found['milliseconds']:,.3f}", ratio, memory))
        if not any(row[-1] for row in rows):
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        tables.append(Table(f"{case['name']}: {case['setting']}", tuple(columns), rows, tuple(notes)))
    return tables


def bars_table(records: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[tuple[str, ...]] = []
    for record in records:
        sign = "<=" if record["kind"] == "at most" else ">="
        bar = "" if record["bar"] is None else f"{sign} {record['bar']:g}"
        ratio = "" if record["ratio"] is None else f"{record['ratio']:.4g}"
        holds = {True: "yes", False: "NO", None: record.get("why", "")}[record["holds"]]
        rows.append((record["name"], record["setting"], ratio, bar, holds))
    columns: tuple[str, ...] = ("bar", "setting", "ratio", "asked", "holds")
    if any("share" in record for record in records):
        columns = (*columns, "of the ceiling")
        shares = [f"{record['share']:.0%} of {record['ceiling']}" if "share" in record else "" for record in records]
        rows = [(*row, share) for row, share in zip(rows, shares, strict=True)]
    held = sum(record["holds"] is True for record in records)
    told = sum(record["holds"] is not None for record in records)
    title = f"bars on {records[0]['processor']}" if records else "bars"
    return Table(title, columns, rows, (f"{held} of {told} hold",))


def profile_table(record: Mapping[str, Any], title: str) -> Table:
    """Parts by kinds of step: milliseconds and share of each, narrow enough for a terminal of 80 columns."""
    steps = record["steps"]
    parts: dict[str, float] = {}
    for step in steps.values():
        for part, found in step["parts"].items():
            parts[part] = max(parts.get(part, 0.0), found["share"])
    columns = ["part", *(column for kind in steps for column in (kind, "%"))]
    rows = []
    for part in sorted(parts, key=lambda name: -parts[name]):
        cells = [part]
        for step in steps.values():
            found = step["parts"].get(part)
            cells += ["", ""] if found is None else [f"{found['milliseconds']:.2f}", f"{100 * found['share']:.1f}"]
        rows.append(tuple(cells))
    whole = ["all"]
    for step in steps.values():
        whole += [f"{step['milliseconds']:.2f}", "100"]
    speeds = (f"{kind} {1e3 * step['tokens'] / step['milliseconds']:,.0f} tokens/s" for kind, step in steps.items())
    note = f"batch {record['batch']}, {record['length']} tokens: {', '.join(speeds)}"
    return Table(title, tuple(columns), [*rows, tuple(whole)], (note,))
