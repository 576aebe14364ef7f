"""What the options of ``statewise train`` describe: a run, and the folder for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

import typer

from statewise.cli.run_task import require_data_fields
from statewise.configuration import assign, parse_json
from statewise.data.labelled import LabelledDataConfig
from statewise.data.recognise import FLAGS, fields_for, recognise
from statewise.data.text import TextDataConfig
from statewise.errors import ConfigError, excerpt
from statewise.training.config import RunConfig
from statewise.training.presets import (
    GENERAL,
    KIND_OF,
    PRESETS,
    chosen,
    fit_model,
    general_name,
    run_on,
    suggest_preset,
)
from statewise.training.run_folder import run_from_dict
from statewise.training.several_folder import read_one_of
from statewise.training.tasks import run_types

USUAL = (
    "statewise train --data photos (a subfolder for each class)",
    "statewise train --data table.csv --label-field kind",
    "statewise train --preset demo",
)
BUDGET = ("train.budget.steps", "train.budget.epochs", "train.budget.minutes")


class DescribedRun(NamedTuple):
    """A run; its name, for a folder; and what the data were taken for, where that was not said."""

    config: RunConfig
    name: str
    sentence: str | None = None


def described_run(
    preset: str | None,
    file: Path | None,
    resume: Path | None,
    flags: Mapping[str, Any],
    said: Mapping[str, Any],
    assignments: Sequence[str],
) -> DescribedRun:
    """The run that the options of ``train`` describe.

    flags: values by the field that they set; said: of the columns of --data; None: not given

    Errors:  ConfigError and DataError, the mistake that matters most first.
    """
    if preset is not None and preset not in PRESETS and preset not in GENERAL:
        raise ConfigError(f"--preset {excerpt(preset)} is unknown; {suggest_preset(preset)}")
    columns = {name: value for name, value in said.items() if value not in (None, ())}
    if any(flags[name] is not None for name in BUDGET):  # those not given are no limit any more
        assignments = [*(f"{name}=null" for name in BUDGET if flags[name] is None), *assignments]
    is_general = file is None and resume is None and (preset in GENERAL or (preset is None and flags["data.source"]))
    if is_general:
        return _on_own_data(preset, flags, columns, assignments)
    if preset is None and file is None and resume is None:
        if columns:
            raise ConfigError(f"{FLAGS[next(iter(columns))]} is for your own data; give --data PATH too")
        raise ConfigError(f"nothing says what to train on; give one of: {'; '.join(USUAL)}")
    name = file.stem if file is not None else preset or str(resume)
    if file is not None:
        try:
            config = run_from_dict(parse_json(file.read_bytes(), str(file)), where=str(file), folder=file.parent)
        except OSError as error:
            raise ConfigError(f"--config {file} cannot be read: {error.strerror}") from error
    elif resume is not None:
        config = read_one_of(resume.parent, resume.name)
    else:
        config = PRESETS[name]()
    of_data = _of_data(flags, columns, config)
    require_data_fields(config.data, of_data)
    others = {name: value for name, value in flags.items() if not name.startswith("data.")}
    config = _assigned(config, {f"data.{name}": value for name, value in of_data.items()} | others, assignments)
    if file is None and resume is None:
        config = fit_model(config, {text.split("=")[0].strip() for text in assignments})
    return DescribedRun(config, name)


def _of_data(flags: Mapping[str, Any], columns: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """The fields of the data that are set, by name."""
    given = {name[5:]: value for name, value in flags.items() if name.startswith("data.") and value is not None}
    if "source" in given:
        given = fields_for(config.data, given["source"]) | {k: v for k, v in given.items() if k != "source"}
    if isinstance(config.data, LabelledDataConfig) and "time" in columns:
        columns = {("time_field" if name == "time" else name): value for name, value in columns.items()}
    return given | dict(columns)


def _on_own_data(
    preset: str | None, flags: Mapping[str, Any], columns: Mapping[str, Any], assignments: Sequence[str]
) -> DescribedRun:
    source = flags["data.source"]
    if source is None:
        raise ConfigError(f"--preset {preset} has no data of its own; give --data FILE or --data FOLDER")
    require_data_fields(TextDataConfig(), {"source": source})
    found = recognise(source, wanted=KIND_OF.get(preset or ""), **columns)
    others = {name: value for name, value in flags.items() if name != "data.source"}
    require_data_fields(found.config, {name[5:]: value for name, value in others.items() if name.startswith("data.")})
    lines = [*_lines(others), *assignments]
    config = assign(run_on(preset, found, lines), lines, types=run_types())
    return DescribedRun(config, preset or general_name(config), chosen(found, config))


def _assigned(config: RunConfig, flags: Mapping[str, Any], assignments: Sequence[str]) -> RunConfig:
    return assign(config, [*_lines(flags), *assignments], types=run_types())


def _lines(flags: Mapping[str, Any]) -> list[str]:
    return [f"{name}={dumps(value)}" for name, value in flags.items() if value is not None]


def next_folder(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2 and so on that is not there yet."""
    from statewise.training.call import next_folder

    if int(environ.get("WORLD_SIZE", "1")) > 1:
        raise typer.BadParameter(
            "--out is missing: under torchrun all processes need the same folder; give one", param_hint="--out"
        )
    return next_folder(name)
