"""The long trainings that need a card, by the commands that anyone would use: each ten minutes, and then on."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from statewise.benchmark.gpu.stages import Item, Settings, Skipped, Stage
from statewise.configuration.reading import to_dict
from statewise.data.text import TextDataConfig
from statewise.models.presets import PRESETS
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)

LIMIT, TO_SAVE = 580.0, 60.0  # seconds of a stage, and of them to save and stop
NEEDED = ("typer", "rich", "tokenizers")
HOURS = 4.0  # of one card for 125 million parameters: the stated budget

LRA = Path(__file__).resolve().parents[3] / "experiments" / "lra" / "s4d-listops.json"


def stages() -> tuple[Stage, ...]:
    found = {"lra": lra, "h3-language": h3_language, "h3-synthetics": h3_synthetics, "induction-heads": induction_heads}
    return tuple(Stage(f"science-{name}", LIMIT, partial(_one, name, item)) for name, item in found.items())


def _one(name: str, item: Any, settings: Settings) -> Mapping[str, Item]:
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise Skipped(f"the command line needs {', '.join(missing)}; pip install {' '.join(missing)}")
    return {name: partial(item, settings)}


def lra(settings: Settings) -> dict[str, Any]:
    """ListOps by S4D, at its published schedule."""
    if settings.quick:
        return _continued(settings, "lra", ["reproduce", "lra", "--quick", "--no-plots", *_set("device", settings)])
    if settings.data is None or not LRA.exists():
        raise Skipped("ListOps's files are not here; give --data-dir with lra_release, in a checkout")
    begin = ["train", "--config", str(LRA), "--data-dir", str(settings.data)]
    return _trained(settings, "lra", begin)


def h3_language(settings: Settings) -> dict[str, Any]:
    """Hybrid H3 with 125 million parameters on the text of the standard library, for ``HOURS``."""
    data = TextDataConfig(tokenizer="bpe:16384")
    if settings.quick:  # a small text
        data = TextDataConfig(source=str(Path(__file__).parents[2] / "kernels"), tokenizer="bpe:300")
    vocab_size = 300 if settings.quick else 16_384
    train = TrainConfig(
        budget=BudgetConfig(steps=2) if settings.quick else BudgetConfig(minutes=60 * HOURS),
        optimizer=OptimizerConfig(lr=6e-4),
        schedule=ScheduleConfig(),
        reporting=ReportingConfig(evaluate_items=2048 if settings.quick else None),
        batch_size=2 if settings.quick else 16,
        length=64 if settings.quick else 1024,
        precision="float32" if settings.quick else "bfloat16",
        device=settings.device,
    )
    model = PRESETS["tiny" if settings.quick else "h3-125m"](vocab_size)
    path = settings.folder / "h3-language-run.json"
    path.write_text(json.dumps(to_dict(RunConfig(model=model, data=data, train=train)), indent=1), "utf-8")
    return _trained(settings, "h3-language", ["train", "--config", str(path)])


def h3_synthetics(settings: Settings) -> dict[str, Any]:
    """Attention and H3 with eight seeds, side by side."""
    small = ["--quick"] if settings.quick else ["--seeds", "8", "--set", 'models=["attention","h3"]']
    return _continued(settings, "h3-synthetics", ["reproduce", "h3-synthetics", "--no-plots", *small])


def induction_heads(settings: Settings) -> dict[str, Any]:
    """Attention with learned and with rotary positions, at the published 204,800 steps."""
    small = ["--set", 'models=["attention","rotary"]', "--set", "steps=[204800,204800]"]
    small = ["--quick"] if settings.quick else small
    return _continued(settings, "induction-heads", ["reproduce", "induction-heads", "--no-plots", *small])


def _set(field: str, settings: Settings) -> list[str]:
    return ["--set", f"{field}={settings.device}"]


def _trained(settings: Settings, name: str, begin: list[str]) -> dict[str, Any]:
    """`statewise train`, and with the next call `statewise train --resume`."""
    folder = settings.folder / f"run-{name}"
    if (folder / "run.json").exists():
        return _run(["train", "--resume", str(folder)], folder)
    return _run([*begin, "--out", str(folder), *([] if settings.quick else ["--device", settings.device])], folder)


def _continued(settings: Settings, name: str, command: list[str]) -> dict[str, Any]:
    """`statewise reproduce`, which continues by itself in its folder."""
    folder = settings.folder / f"run-{name}"
    return _run([*command, "--out", str(folder)], folder)


def _run(command: list[str], folder: Path) -> dict[str, Any]:
    """Ctrl-C before the stage's time is over, so that the run saves what it has."""
    process = subprocess.Popen([sys.executable, "-m", "statewise", *command])
    try:
        code = process.wait(LIMIT - TO_SAVE - 15)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait()
        return {"unfinished": True, "command": command, "folder": str(folder)}
    found: dict[str, Any] = {"command": command, "folder": str(folder), "exit_code": code}
    if code not in (0, 1):  # 1: a bar was missed, or the command was refused, as its log says
        found["error"] = f"statewise {command[0]} ended with exit code {code}"
    result = folder / "result.json"
    if result.exists():
        found["result"] = json.loads(result.read_text("utf-8"))
    return found
