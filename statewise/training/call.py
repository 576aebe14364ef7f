"""``sw.train``: from a model and your data to a run that you can ask, resume and evaluate."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from statewise.checkpoints.folders import RUN_FILE
from statewise.configuration import TYPE_KEY, Config, assign, to_dict
from statewise.configuration.base import no_such_field
from statewise.data.recognise import Recognised
from statewise.data.series import SeriesDataConfig
from statewise.data.series_as_trained import to_go_on
from statewise.errors import CheckpointError, ConfigError, InputError, excerpt
from statewise.kernels.exact.owner import exact_in
from statewise.models.base import Model, ModelConfig
from statewise.training.callbacks import Callback, listeners
from statewise.training.config import RunConfig
from statewise.training.given import DATA, take
from statewise.training.initial import INITIAL, keep_initial
from statewise.training.initial_tokenizer import require_named
from statewise.training.loop import train_run
from statewise.training.presets import GENERAL, KIND_OF, PRESETS, chosen, fit_model, general_for, run_on, suggest_preset
from statewise.training.ranks import n_ranks
from statewise.training.report import Reporter
from statewise.training.run_folder import LOCK_FILE, inspect_folder
from statewise.training.tasks import Task, register_task, run_types
from statewise.training.trained import Trained

FIELDS = {"lr": "train.optimizer.lr", "batch_size": "train.batch_size", "seed": "train.seed", "device": "train.device"}


def train(
    model: str | os.PathLike[str] | Model | ModelConfig | RunConfig | None = None,
    data: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    validation: Any = None,
    test: Any = None,
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    label_field: str | None = None,
    row_field: str | None = None,
    text_field: str | None = None,
    ignored_fields: str | Sequence[str] = (),
    time: str | None = None,
    targets: str | Sequence[str] = (),
    covariates: str | Sequence[str] = (),
    horizon: int | None = None,
    task: type[Task[Any, Any]] | str | None = None,
    set: Mapping[str, Any] | None = None,
    callbacks: Callback | Reporter | Sequence[Callback | Reporter] = (),
    progress: bool | None = None,
) -> Trained:
    """Trains a model on data, and leaves a run that ``statewise evaluate``, ``predict`` and ``train --resume`` take.

    model:      a preset by name ("classifier", "regressor", "digits", ...); None: the one that fits the data; the
                config of a model, whose fields that follow from the data (``n_classes``, ``d_input``, ...) are set; or
                a whole :class:`RunConfig`. To start from parameters: a model, or the path of a run, a checkpoint or a
                published model, as ``load`` takes it
    data:       (x, y): x numbers, (n, length) or (n, length, d_input), or a list of rows of different lengths; y
                classes (integers or strings) or real numbers. (x, y, lengths) where x is padded. A dict with "x", "y"
                and perhaps "lengths", "validation" and "test". To forecast, one series: a Series of pandas, or numbers
                (length,). Texts, a list of strings, alone or as x. A DataFrame. A Dataset or DataLoader of PyTorch with
                items (x, y), read once; a data set of Hugging Face's. A path, or data by name, as ``statewise train
                --data``; or a DataConfig
    label_field, row_field, text_field, ignored_fields, time, targets, covariates, horizon: for tables, see
                :func:`~statewise.data.recognise.recognise`; one column may be given by its name alone
    validation, test: separate parts, like data; without them a tenth and a fifth of the rows are held out
    out:        the run's folder, new or empty; None: runs/NAME-1, or the next free number
    steps, epochs, minutes: replace the budget; the run ends by whichever comes first
    task:       what is learned, as your own task with its loss; None: what suits the data and the model
    set:        other fields of the run by name, {"train.schedule.warmup": 0.1}; values are JSON data or configs
    callbacks:  functions of an event's record (:class:`~statewise.training.Reporter` lists the events), and
                Reporters. A function that returns True ends the run after its step, with a checkpoint
    progress:   whether to show a bar; None: where standard output is a terminal

    Data in memory are written into ``out`` first, and the run reads them from there.

    Errors:  StatewiseError, one line; nothing is left in ``out`` unless the run began.

    >>> import numpy as np, statewise as sw, tempfile
    >>> x = np.random.default_rng(0).normal(size=(60, 20)) + np.repeat([0, 3], 30)[:, None]
    >>> run = sw.train("classifier", (x, ["low"] * 30 + ["high"] * 30), steps=5, out=tempfile.mkdtemp() + "/run")
    >>> run.predict(x[:2]).probabilities.shape
    (2, 2)
    """
    heard = callbacks if isinstance(callbacks, Sequence) else [callbacks]
    reporter, wants_the_end = listeners(heard, progress)
    name = _name_of(model)
    changes = {FIELDS[field]: value for field, value in _given(lr, batch_size, seed, device)} | dict(set or {})
    if task is not None:
        changes = {"task": task if isinstance(task, str) else register_task(task).__name__, **changes}
    options: dict[str, Any] = {"label_field": label_field, "row_field": row_field, "text_field": text_field}
    several = {"ignored_fields": ignored_fields, "targets": targets, "covariates": covariates}
    options |= {name: (value,) if isinstance(value, str) else tuple(value) for name, value in several.items()}
    options |= {"time": time, "horizon": horizon}
    is_exact_itself = exact_in(model)
    with _place("tuned" if name == INITIAL else name, out) as place:
        given = None
        if data is not None:
            parts = {"validation": validation, "test": test}
            given = take(data, lambda: place.claim(DATA), parts, KIND_OF.get(name), options)
        if name == INITIAL:
            begun = keep_initial(model, place.claim(INITIAL))  # type: ignore[arg-type]
            model = begun.config
            changes = {"train.initial": str(begun.path), **changes}
            if begun.tokenizer is None and given is not None:
                require_named(begun.config, given.config, changes.get("data.tokenizer"))
        run = _run_config(model, given, changes, {"steps": steps, "epochs": epochs, "minutes": minutes})
        if is_exact_itself and not run.train.exact:
            raise ConfigError(
                "the model has exact=True, which a run does not take from it; give set={'train.exact': True}, or set "
                "exact = False"
            )
        if given is not None:
            reporter.event({"kind": "recognised", "message": chosen(given, run)})
        result = train_run(run, place.path, reporter=reporter, holds=place.holds, stop_when=wants_the_end)
    return Trained.of(result)


def _given(*values: Any) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in zip(FIELDS, values) if value is not None)


def _name_of(model: Any) -> str:
    """What a run's folder is called: by its preset, its model, or "initial" where it starts from parameters.

    Errors:  ConfigError for an unknown preset, InputError for anything else.
    """
    if model is None:
        return "run"
    if isinstance(model, str) and (model in PRESETS or model in GENERAL):
        return model
    if isinstance(model, str) and not os.path.exists(model) and not model.startswith("hub:") and os.sep not in model:
        raise ConfigError(f"the preset {excerpt(model)} is unknown; {suggest_preset(model)}")
    if isinstance(model, (str, os.PathLike, Model)):
        return INITIAL
    if isinstance(model, (ModelConfig, RunConfig)):
        kind = model.model if isinstance(model, RunConfig) else model
        return type(kind).__name__.removesuffix("Config")
    raise InputError(
        f"model is a {type(model).__name__}; give the name of a preset, a ModelConfig, a RunConfig or a model"
    )


class _Place:
    """A new run's folder, and what was put into it before the run began."""

    def __init__(self, path: Path) -> None:
        self.path, self.holds = path, list[str]()

    def claim(self, name: str) -> Path:
        """A folder in it, for this run alone.

        Errors:  CheckpointError if another process has made it meanwhile, or it cannot be written.
        """
        inner = self.path / name
        try:
            inner.mkdir(parents=True)
        except OSError as error:
            raise CheckpointError(f"cannot write {inner}: {error.strerror}; give another folder: out=...") from error
        self.holds.append(name)
        return inner


@contextmanager
def _place(name: str, out: str | os.PathLike[str] | None) -> Iterator[_Place]:
    """If no run has begun in it at the end, what was put there is removed again."""
    if out is None and n_ranks() > 1:
        raise ConfigError("several processes cannot each choose a folder; give one: out=...")
    path = next_folder(name) if out is None else Path(out)
    inspect_folder(path, resume=False)
    is_new = not path.exists()
    place = _Place(path)
    try:
        yield place
    except BaseException:
        if not (path / RUN_FILE).exists():
            for own in place.holds:
                shutil.rmtree(path / own, ignore_errors=True)
            if is_new and place.holds:
                with suppress(OSError):  # something of another process's is in it
                    (path / LOCK_FILE).unlink(missing_ok=True)
                    path.rmdir()
        raise


def next_folder(name: str) -> Path:
    """The first of runs/NAME-1, runs/NAME-2 and so on that is not there yet."""
    return next(path for n in count(1) if not os.path.lexists(path := Path("runs", f"{name}-{n}")))


def _run_config(model: Any, data: Recognised | None, changes: Mapping[str, Any], budget: dict[str, Any]) -> RunConfig:
    """The run, its budget replaced where one is given, with these fields set."""
    lines = []
    if any(value is not None for value in budget.values()):  # those not given are no limit any more
        lines = [f"train.budget.{name}={json.dumps(value)}" for name, value in budget.items()]
    lines += [f"{name}={_json(name, value)}" for name, value in changes.items() if not isinstance(value, Config)]
    if isinstance(model, RunConfig):
        run = model if data is None else replace(model, data=data.config)
    elif data is None and model in PRESETS:
        run = PRESETS[model]()
    elif data is None:
        raise ConfigError("nothing says what to train on; give data")
    elif model is None or isinstance(model, str):
        run = run_on(model, data, lines)
    else:
        run = replace(run_on(general_for(model, data), _as_read_by(model, data), lines), model=model)
    fitted = data is not None and not isinstance(model, (RunConfig, ModelConfig))
    run = assign(run, lines, types=run_types())
    for name, value in changes.items():
        if isinstance(value, Config):
            run = _replaced(run, name.split("."), value)
    whole = isinstance(model, RunConfig) and data is None
    kept = {*changes, "model"} if "train.initial" in changes else {*changes}
    return run if whole or fitted else fit_model(run, kept)


def _json(name: str, value: Any) -> str:
    """The value of a field as ``assign`` takes it; configs may be within.

    Errors:  ConfigError for what no field is made of.
    """

    def written(inner: Any) -> Any:
        if isinstance(inner, Config):
            return {TYPE_KEY: type(inner).__name__, **to_dict(inner)}
        raise ConfigError(f"{name} holds a {type(inner).__name__}; expected numbers, texts, lists and configs")

    return json.dumps(value, default=written)


def _as_read_by(model: ModelConfig, data: Recognised) -> Recognised:
    """Series with the columns and the calendar of a forecaster that knows its own, where nobody gave others."""
    trained = getattr(model, "series", None)
    if trained is None or not isinstance(data.config, SeriesDataConfig):
        return data
    config = to_go_on(data.config, trained, data.given)
    return replace(data, config=config, given=data.given | {"calendar", "harmonics"})


def _replaced(config: Config, path: Sequence[str], value: Config) -> Any:
    """The config with another one in the place that the path leads to."""
    first, *rest = path
    if first not in vars(config):
        raise ConfigError(no_such_field(type(config), first))
    return replace(config, **{first: _replaced(getattr(config, first), rest, value) if rest else value})
