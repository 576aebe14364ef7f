"""Whole runs by name: a model, the data, and how it is trained on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from statewise.configuration import assign
from statewise.configuration.words import suggest
from statewise.data.labelled_text import LabelledTextDataConfig
from statewise.data.recognise import IN_WORDS, LABELLED, TEXTS, Recognised
from statewise.errors import ConfigError
from statewise.models.base import ModelConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.training.config import RunConfig
from statewise.training.initial_tokenizer import own_tokenizer
from statewise.training.presets import long, tuned
from statewise.training.presets.general import GENERAL as GENERAL
from statewise.training.presets.general import KIND_OF as KIND_OF
from statewise.training.presets.general import MODELS, OF_KIND
from statewise.training.tasks import run_types, task_type

PRESETS: dict[str, Callable[[], RunConfig]] = {
    "demo": tuned.demo,
    "tiny": tuned.tiny,
    "co2": tuned.co2,
    "co2-structural": tuned.co2_structural,
    "sunspots": tuned.sunspots,
    "sunspots-structural": tuned.sunspots_structural,
    "digits": tuned.digits,
    "acsf1": tuned.acsf1,
    "spoken-digits": tuned.spoken_digits,
    "fashion-mnist": tuned.fashion_mnist,
    "ucr-regression": tuned.ucr_regression,
    "delay": tuned.delay,
    "copying": tuned.copying,
    "adding": tuned.adding,
    "reconstruction": tuned.reconstruction,
    "induction-head": tuned.induction_head,
    "associative-recall": tuned.associative_recall,
    "mqar": tuned.mqar,
    "selective-copying": tuned.selective_copying,
    "long-induction-head": tuned.long_induction_head,
    "genome": long.genome,
    "long-retrieval-262k": long.long_retrieval_262k,
    "long-retrieval-1m": long.long_retrieval_1m,
    "long-audio-262k": long.long_audio_262k,
    "long-audio-1m": long.long_audio_1m,
}


def suggest_preset(name: str) -> str:
    """The nearest presets, and what lists all."""
    return suggest(name, [*GENERAL, *PRESETS], "Presets", all_by="statewise train --list-presets")


def preset_lines() -> list[str]:
    """Each preset with the first sentence of what it is."""
    found = {name: f"{IN_WORDS[KIND_OF[name]]} of yours (--data)" for name in GENERAL}
    found |= {
        name: " ".join((make.__doc__ or "").split("\n\n")[0].split()).rstrip(".") for name, make in PRESETS.items()
    }
    width = max(map(len, found))
    return [f"{name:{width}}  {said}" for name, said in found.items()]


def fit_model(run: RunConfig, given: Collection[str] = ()) -> RunConfig:
    """The run with those fields of the model that follow from its data: what a preset needs for data not its own.

    given: paths that were set by hand, as "model.vocab_size"; they stay, and of a "model" that was set whole all does.
    """
    if "model" in given:
        return run
    found = task_type(run).model_fields(run.data).items()  # one the model does not have is left for the task to refuse
    fields = {f"model.{name}": value for name, value in found if hasattr(run.model, name)}
    assignments = [f"{path}={json.dumps(value)}" for path, value in fields.items() if path not in given]
    return assign(run, assignments, types=run_types())


def run_on(preset: str | None, found: Recognised, assignments: Sequence[str] = ()) -> RunConfig:
    """A preset for data that somebody brings; None: the general one for such data. Its model fits them.

    assignments: those of fields of "data" are made first, since sizes follow from the data; the others are not made.
                 With a ``train.initial`` texts are read with its tokenizer, unless they name another

    Errors: ConfigError if the preset learns from data of another kind, with one that does not; as the data are opened.
    """
    assignments = [*assignments, *own_tokenizer(found.config, assignments)]
    own = [line.removeprefix("data.") for line in assignments if line.startswith("data.")]
    if preset is not None and preset not in GENERAL:
        run = PRESETS[preset]()
        if not isinstance(found.config, type(run.data)):
            raise ConfigError(_of_another_kind(preset, type(run.data).__name__, found))
        data = replace(run.data, **{name: getattr(found.config, name) for name in found.given})
        return fit_model(replace(run, data=assign(data, own)))
    if preset is not None and KIND_OF[preset] != found.kind:
        raise ConfigError(_of_another_kind(preset, IN_WORDS[KIND_OF[preset]], found))
    given = found.given | {line.partition("=")[0].strip() for line in own}
    data = assign(found.config, own)
    make = OF_KIND[found.kind] if preset is None else GENERAL[preset]
    run = make(data, given)
    return run if found.kind in (LABELLED, TEXTS) else fit_model(run)  # labelled ones were opened to be made


def _of_another_kind(preset: str, needed: str, found: Recognised) -> str:
    general = next((name for name, kind in KIND_OF.items() if kind == found.kind), None)
    instead = f"use the preset {general!r}" if general else "use another preset"
    return f"the preset {preset!r} learns from {needed}, but {found.sentence}; {instead}"


def chosen(found: Recognised, run: RunConfig) -> str:
    """What data were taken for, and what is trained on them for how long, in a line."""
    budget = run.train.budget
    limits = [
        f"{value:g} {unit}" if value != 1 else f"1 {unit[:-1]}"
        for unit, value in (("steps", budget.steps), ("epochs", budget.epochs), ("minutes", budget.minutes))
        if value is not None
    ]
    at_most = f", at most {limits[-1]}" if len(limits) > 1 else ""
    what = general_name(run)
    what += " model" if what == "language" else ""
    if isinstance(run.model, SequenceClassifierConfig):
        what += f" of {run.model.n_classes:,} classes"
    return f"{found.sentence}; training a {what} for {limits[0]}{at_most} (--epochs, --minutes)"


def general_name(run: RunConfig) -> str:
    """The general preset that makes such runs: its name."""
    if isinstance(run.data, LabelledTextDataConfig):
        return "text-classifier"
    return MODELS.get(type(run.model), type(run.model).__name__)


def general_for(model: ModelConfig, found: Recognised) -> str:
    """The general preset whose models are of this kind; for labelled texts, that of models of tokens.

    Errors: ConfigError if there is none: such a model comes in a RunConfig.
    """
    if (
        found.kind == TEXTS
        and isinstance(model, (SequenceClassifierConfig, SequenceRegressorConfig))
        and model.vocab_size
    ):
        return "text-classifier"
    for cls, name in MODELS.items():
        if isinstance(model, cls):
            return name
    raise ConfigError(f"no preset says how to train a {type(model).__name__}; give a RunConfig with it")
