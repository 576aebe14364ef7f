"""The command line with mutated arguments, fields, configurations and folders: 0, or one line and 1 or 2.

Whatever trains, trains a step of a tiny model: the budget is the last word of every command.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz.draw import Draw, Finding
from statewise import cli

LONGEST = 600  # characters of a refusal
SIZES = (-(10**12), -1, 0, 1, 2, 3, 5, 7, 12, 64, 2**31 - 1, 2**31, 10**12, 2**62, 2**63, 2**64, 10**30, 10**400)
NUMBERS = (-1.0, -0.0, 0.0, 1e-320, 1e-30, 0.5, 0.999999, 1.0, 1.5, 1e10, 1e30, 1e308, float("inf"), float("nan"))
TEXTS = (
    "", " ", "auto", "cpu", "null", "x" * 3000, "a\nb", "a\0b", "\udc80", "é", "..", "/", "/dev/null", ".", "~",
    "hub:", "hub:a/b/../c", "bytes", "text", "run", "*", "[", "**/*", "%s{0}", "-", "--", "lin", "rms",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *SIZES, *NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [0.0], [1, 2], [2.0, 1.0], [-1.0, 1.0], [None], ["x"],
    {"type": "Mamba2Config"}, {"type": "MambaConfig", "d_state": 10**12}, {"type": "x" * 3000}, {"type": None},
    {"type": "AttentionConfig", "n_heads": 3}, {"type": "S4Config", "d_state": 7}, {"type": "MLPConfig", "expand": 1e9},
)  # fmt: skip
PRESETS = ("tiny", "demo", "delay", "adding", "copying", "reconstruction", "induction-head", "mqar", "co2", "digits")
LAYERS = (
    "Mamba2Config", "MambaConfig", "Mamba3Config", "S4Config", "S4DConfig", "LSSLConfig", "LMUConfig", "GSSConfig",
    "H3Config", "KalmanConfig", "LinearAttentionConfig", "AttentionConfig",
)  # fmt: skip
NEEDED = {"AttentionConfig": {"n_heads": 1}, "LinearAttentionConfig": {"n_heads": 1}, "LMUConfig": {"theta": 1.0}}
# The last word: a step, on little data, looked at for a moment
BUDGET = (
    "train.budget.minutes=null", "train.budget.epochs=null", "train.budget.steps=1", "train.accumulation=1",
    "train.reporting.evaluate_items=40", "train.compile=false",
)  # fmt: skip
SMALL = {
    "tiny": ("model.d_model=16", "train.length=16", "train.batch_size=2", 'data.source="text"'),
    "demo": ("train.length=16", "train.batch_size=1", 'data.source="text"'),
    "induction-head": ("data.n_train=50", "data.n_validation=20", "data.n_test=20", "train.batch_size=2"),
    "mqar": ("data.n_train=50", "data.n_validation=20", "data.n_test=20", "train.batch_size=2"),
    "co2": ("train.batch_size=2",),
    "digits": ("train.batch_size=2",),
}
OPTIONS = {
    "train": (
        "--preset", "--config", "--set", "--data", "--data-dir", "--tokenizer", "--out", "--resume", "--minutes",
        "--steps", "--epochs", "--batch-size", "--length", "--lr", "--seed", "--lrs", "--device",
        "--log", "--print-config", "--estimate", "--label-field", "--text-field", "--row-field", "--time", "--targets",
        "--covariates", "--horizon",
    ),
    "generate": (
        "--prompt", "--prompt-file", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--seed",
        "--stop", "--echo", "--log-probabilities", "--state-in", "--state-out", "--weights", "--tokenizer",
        "--checkpoint", "--device",
    ),
    "evaluate": (
        "--data", "--data-dir", "--split", "--max-items", "--plot", "--text-file", "--chunk-length",
        "--across-documents", "--streams", "--window", "--stride", "--compressors", "--published", "--questions",
        "--normalize", "--include-path", "--shots", "--limit", "--max-length", "--document-token", "--batch-size",
        "--output", "--weights", "--tokenizer", "--checkpoint", "--device", "--json",
    ),
    "info": ("--checkpoint", "--json", "--no-json"),
    "convert": ("--to", "--dtype", "--type", "--tokenizer", "--checkpoint", "--json"),
    "export": ("--batch", "--checkpoint"),
    "plot": ("--x", "--smooth", "--log-y", "--out", "--overwrite"),
    "profile": ("--step", "--batch-size", "--length", "--threads", "--checkpoint", "--json"),
}  # fmt: skip
FLAGS = frozenset(
    ("--print-config", "--estimate", "--echo", "--log-probabilities", "--across-documents", "--compressors",
     "--normalize", "--document-token", "--json", "--no-json", "--log-y", "--overwrite")
)  # fmt: skip


def check(draw: Draw) -> None:
    with _place(draw):
        words = KINDS[draw.choice(sorted(KINDS), "kind")](draw)
        draw.note("words", words)
        _call(words)


def _call(words: list[str]) -> None:
    """Runs the command line in this process, as tests/cli/conftest.py does."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(words)
    err.flush()
    said = err.buffer.getvalue().decode()
    if code not in (0, 1, 2):
        raise Finding(f"exit code {code}: {said[:300]!r}")
    if code == 0:
        return
    if not said.startswith("statewise: error: ") or said.count("\n") != 1 or not said.endswith("\n"):
        raise Finding(f"exit code {code} with {said.count(chr(10))} lines: {said[:300]!r}")
    if len(said) > LONGEST:
        raise Finding(f"exit code {code} with {len(said)} characters: {said[:300]!r}")


# -- what is run -----------------------------------------------------------------------------------------------------


def fields(draw: Draw) -> list[str]:
    """A preset, one to three fields of which are set to anything."""
    preset = draw.choice(PRESETS, "preset")
    given = [*SMALL.get(preset, ()), *(_field(draw, _paths(preset)) for _ in range(draw.integer(1, 3)))]
    if draw.chance(0.2):
        layer = draw.choice(LAYERS)
        given.append(f"model.layers={json.dumps([{'type': layer, **NEEDED.get(layer, {})}])}")
        given += [f"model.layers.0.{_field(draw, _layer_fields(layer))}" for _ in range(draw.integer(1, 2))]
    return _training(draw, ["train", "--preset", preset], given)


def file(draw: Draw) -> list[str]:
    """A run as JSON, with something else in places, or damaged as text."""
    Path("run.json").write_bytes(_mutated(draw, Path("run", "run.json").read_bytes()))
    return _training(draw, ["train", "--config", "run.json"], [])


def resume(draw: Draw) -> list[str]:
    """A run folder in which a file was edited, and perhaps fields that are set."""
    paths = [Path("run", "run.json"), Path("run", "metrics.jsonl"), *sorted(Path("run", "checkpoints").rglob("*.json"))]
    for _ in range(draw.integer(0, 2)):
        path = draw.choice(paths, "edited")
        path.write_bytes(_mutated(draw, path.read_bytes()))
    given = [_field(draw, _paths("tiny")) for _ in range(draw.integer(0, 1))]
    words = ["train", "--resume", "run", *(word for one in given for word in ("--set", one))]
    budget = (*(one for one in BUDGET if draw.chance(0.5)), "train.budget.steps=3", "train.compile=false")
    return [*words, *(word for one in budget for word in ("--set", one))]  # compiling takes a minute


def damaged(draw: Draw) -> list[str]:
    """A folder in which a file was edited, read by a command."""
    files = sorted(path for path in Path("run").rglob("*") if path.is_file() and path.name != ".lock")
    path = draw.choice(files, "edited")
    path.write_bytes(_mutated(draw, path.read_bytes()))
    if draw.chance(0.3):
        path.unlink()
    return _with_options(draw, draw.choice(sorted(OPTIONS.keys() - {"train"})), 0)


def options(draw: Draw) -> list[str]:
    """A command with options that have any value."""
    return _with_options(draw, draw.choice(sorted(OPTIONS)), draw.integer(1, 4))


def words(draw: Draw) -> list[str]:
    """Any words."""
    known = [*OPTIONS, "reproduce", "benchmark", "--version", "--help", "-h", *TEXTS]
    first = draw.choice([name for name in known if name not in ("benchmark", "reproduce")] + ["x"])
    more = [draw.choice([*TEXTS, "--set", "--x", "--=", "-x", "--help"]) for _ in range(draw.integer(0, 3))]
    return [first, *more, *(["--steps", "1", "--estimate"] if first == "train" else [])]  # the demo would take minutes


def own(draw: Draw) -> list[str]:
    """A table, documents or texts of one's own, and what columns they are said to have."""
    n, names = draw.integer(0, 40), draw.choice([["a", "b", "kind"], ["date", "x"], ["text", "label"], ["t", "t"], []])
    cells = {
        "date": lambda i: f"2024-01-{i % 28 + 1:02d}",
        "text": lambda i: f"a text, {i}",
        "kind": lambda i: "xyz"[i % 3],
    }
    rows = [{name: cells.get(name, lambda i: i / 2)(i) for name in names} for i in range(n)]
    name = draw.choice(["own.csv", "own.tsv", "own.jsonl", "own.txt", "own"], "name")
    if name == "own.jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        mark = draw.choice([",", ";", "\t"])
        text = "\n".join(mark.join(map(str, line)) for line in [names, *(row.values() for row in rows)])
    Path(name).write_bytes(text.encode() if draw.chance(0.8) else _mutated(draw, text.encode()))
    words = ["train", "--data", draw.choice([name, name, name, "text", "run", "no"], "source")]
    if draw.chance(0.3):
        words += [
            "--preset",
            draw.choice(["classifier", "regressor", "text-classifier", "language", "forecaster", "tiny"]),
        ]
    for option in ("--label-field", "--text-field", "--row-field", "--time", "--targets", "--covariates", "--horizon"):
        if draw.chance(0.3):
            words += [
                option,
                draw.choice(["3", "1000000", "0"] if option == "--horizon" else [*names, "no", "a,b", ""]),
            ]
    return _training(draw, words, ["train.length=16"] if draw.chance(0.2) else [])


KINDS = {
    "own": own,
    "fields": fields,
    "file": file,
    "resume": resume,
    "damaged": damaged,
    "options": options,
    "words": words,
}


def _training(draw: Draw, words: list[str], given: list[str]) -> list[str]:
    words = [*words, *(word for one in (*given, *BUDGET) for word in ("--set", one))]
    how = draw.random.random()
    return [*words, *(["--estimate"] if how < 0.2 else ["--print-config"] if how < 0.3 else ["--out", "new"])]


def _with_options(draw: Draw, command: str, most: int) -> list[str]:
    last = []
    if command == "train":
        words = ["train"]
        last = [word for one in (*SMALL["tiny"], *BUDGET) for word in ("--set", one)]
    elif command == "profile":
        words, last = ["profile", "run"], ["--step", "prefill", "--length", "8", "--batch-size", "1"]
    else:
        source = draw.choice(["run", "run", "run", "run/checkpoints/step-00000002", *TEXTS])
        words = [command, source, *({"convert": ["converted"], "export": ["x.onnx"]}.get(command, []))]
        last = {"generate": ["--max-new-tokens", "3"], "evaluate": ["--max-tokens", "40"]}.get(command, [])
    for _ in range(most):
        name = draw.choice(OPTIONS[command])
        words += [name] if name in FLAGS else [name, _plain(draw)]
    return [*words, *last]


def _plain(draw: Draw) -> str:
    value = draw.choice(
        [*SIZES, *NUMBERS, *TEXTS, "text/0.txt", "float32", "int8", "best", "test", "statewise", "tiny"]
    )
    return str(value)[:5000].replace("\0", "")  # no argument of a process has one


def _field(draw: Draw, paths: dict[str, Any]) -> str:
    """FIELD=VALUE for --set; mostly of the type that the field has."""
    path = draw.choice(sorted(paths))
    return f"{path}={_text(draw, paths[path])}"


def _alike(draw: Draw, value: Any) -> Any:
    """Mostly a value of the same type."""
    if draw.chance(0.2):
        return draw.choice(VALUES)
    if value is None:
        return draw.choice([*SIZES, *NUMBERS])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([*SIZES, value * 2, value + 1])
    return draw.choice({float: NUMBERS, str: TEXTS}.get(type(value), VALUES))


def _text(draw: Draw, like: Any) -> str:
    value = _alike(draw, like)
    if draw.chance(0.1):
        return draw.choice(["", "[" * 5000, "{", "1e999", "0x10", "-", "NaN", "'", '"a', "1" * 4000, "1_000"])
    return json.dumps(value).replace("\0", "")


def _mutated(draw: Draw, data: bytes) -> bytes:
    """Another value, key or nesting in JSON; or bytes changed, cut out or doubled."""
    try:
        whole = json.loads(data)
    except ValueError:
        whole = None
    if whole is None or draw.chance(0.25):
        begin, length = draw.integer(0, max(0, len(data) - 1)), draw.choice([1, 1, 8, 100])
        middle = draw.choice(
            [b"", bytes(draw.random.randrange(256) for _ in range(3)), data[begin : begin + length] * 2]
        )
        return data[:begin] + middle + data[begin + length :]
    for _ in range(draw.integer(1, 2)):
        holder, key = draw.choice(list(_places(whole)))
        how = draw.integer(0, 5)
        if how == 0:
            del holder[key]
            if not whole:
                break
        elif how == 1 and isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = draw.choice(VALUES)
        else:
            holder[key] = _alike(draw, holder[key])
    return json.dumps(whole).encode()


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], (dict, list)) and data[key]:
            yield from _places(data[key])


# -- where -----------------------------------------------------------------------------------------------------------


@functools.cache
def _paths(preset: str) -> dict[str, Any]:
    from statewise.configuration import to_dict
    from statewise.training.presets import PRESETS as RUNS
    from statewise.training.run_folder import by_path

    return by_path(to_dict(RUNS[preset]()))


@functools.cache
def _layer_fields(name: str) -> dict[str, Any]:
    from statewise.configuration import to_dict
    from statewise.models.registry import CONFIG_TYPES

    return to_dict(CONFIG_TYPES[name](**NEEDED.get(name, {})))


@functools.cache
def _made() -> Path:
    """A folder with a text and a finished run of two steps on it."""
    folder = Path(tempfile.mkdtemp(prefix="statewise-fuzz-"))
    (folder / "text").mkdir()
    for i in range(4):
        (folder / "text" / f"{i}.txt").write_text("the state is all that is kept of what was read; " * 10)
    with contextlib.chdir(folder):
        splits = ("data.validation_fraction=0.25", "data.test_fraction=0.25")
        given = [*SMALL["tiny"], *BUDGET, "train.budget.steps=2", *splits]
        _call(["train", "--preset", "tiny", "--out", "run", *(word for one in given for word in ("--set", one))])
    return folder


@contextlib.contextmanager
def _place(draw: Draw) -> Iterator[None]:
    """A working directory with ``text`` and ``run``, of which nothing is left."""
    made = _made()
    with tempfile.TemporaryDirectory(prefix="statewise-fuzz-", dir=made) as folder:
        shutil.copytree(made / "text", Path(folder, "text"))
        shutil.copytree(made / "run", Path(folder, "run"))
        stdin = sys.stdin
        with contextlib.chdir(folder):
            sys.stdin = io.TextIOWrapper(io.BytesIO(b"import os\n"))
            try:
                yield
            finally:
                sys.stdin = stdin
