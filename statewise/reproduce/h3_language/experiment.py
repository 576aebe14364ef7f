"""Language models as in H3's table on OpenWebText, small: six models of the paper, Mamba and Mamba-2."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints import load
from statewise.data.text import TokenSplit
from statewise.errors import DivergedError
from statewise.evaluate.perplexity import evaluate_split
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel
from statewise.reproduce.h3_language.models import build_config, describe, n_parameters
from statewise.reproduce.h3_language.report import make_report
from statewise.reproduce.h3_language.settings import H3LanguageSettings, quick
from statewise.reproduce.h3_language.text import make_tokenizer, open_text, text_config
from statewise.reproduce.rates import choose_rate, rate_name
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report
from statewise.reproduce.work import Job, Stopped, Work
from statewise.train.config import RunConfig
from statewise.train.loop import train
from statewise.train.metrics import read_metrics
from statewise.train.report import Reporter
from statewise.train.run_folder import METRICS_FILE, RUN_FILE


def run_config(config: H3LanguageSettings, folder: Path, name: str, lr: float, seed: int, share: float) -> RunConfig:
    """The training run of one model, rate and seed, on this share of the tokens; ``folder`` holds the tokenizer."""
    training = config.training(lr, seed, share)
    return RunConfig(model=build_config(name, config.sizes), data=text_config(config.source, folder), train=training)


def run(config: H3LanguageSettings, work: Work) -> Report:
    for name in config.models:
        build_config(name, config.sizes)  # sizes that do not match are told before anything is done
    full = config.tuning_share == 1
    n_runs = len(config.learning_rates) + len(config.seeds) - full
    work.begin(1 + len(config.models) * n_runs, at_most=True)
    text = work.part("text", lambda: make_tokenizer(config.source, config.vocab_size, work.folder))
    first, share = config.seeds[0], config.tuning_share
    tuning = {
        tuning_part(name, lr): job(config, work.folder, name, lr, first, share)
        for name in config.models
        for lr in config.learning_rates
    }
    tuned = work.parts(tuning, config.workers)
    by_rate = {name: {lr: tuned[tuning_part(name, lr)] for lr in config.learning_rates} for name in config.models}
    rates = {name: choose_rate(by_rate[name]) for name in config.models}
    n_seeds = len(config.seeds) - full
    seeds = {
        f"{name}-seed-{seed}": job(config, work.folder, name, rate, seed, 1.0)
        for seed in config.seeds[len(config.seeds) - n_seeds :]
        for name, rate in rates.items()
        if rate is not None
    }
    work.leave_out(n_seeds * len(config.models) - len(seeds))
    seeded = work.parts(seeds, config.workers)
    models = {}
    for name, rate in rates.items():
        runs = {}
        if rate is not None:
            runs = {seed: seeded.get(f"{name}-seed-{seed}", by_rate[name][rate]) for seed in config.seeds}
        model = build_config(name, config.sizes)
        models[name] = {
            "learning_rate": rate,
            "parameters": n_parameters(model),
            "sizes": describe(name, model),
            "tuning": {rate_name(lr): result for lr, result in by_rate[name].items()},
            "seeds": {str(seed): result for seed, result in runs.items()},
        }
    return make_report(config, text, models)


def tuning_part(name: str, lr: float) -> str:
    return f"{name}-rate-{rate_name(lr)}"


def job(config: H3LanguageSettings, folder: Path, name: str, lr: float, seed: int, share: float) -> Job:
    return Job(train_and_test, (config, str(folder.absolute()), name, lr, seed, share))


def train_and_test(
    config: H3LanguageSettings, folder: str, name: str, lr: float, seed: int, share: float, reporter: Reporter
) -> dict[str, Any]:
    """Trains one model, or goes on where it was stopped, and reads the validation and the test split with it.

    A run whose loss is not finite any more is a result: "diverged" says where, and there is nothing else.

    Errors: TrainingError if the evaluation failed for another reason; Stopped, with everything saved.
    """
    run = run_config(config, Path(folder), name, lr, seed, share)
    place = Path(folder, "runs", f"{tuning_part(name, lr)}-seed-{seed}" + ("" if share == 1 else "-tuning"))
    begun, cpu = time.monotonic(), time.process_time()
    try:
        result = train(run, place, resume=(place / RUN_FILE).exists(), reporter=reporter)
    except DivergedError as error:
        return {"diverged": error.what}
    if result.signal is not None:
        raise Stopped(result.signal)
    assert result.checkpoint is not None  # the last step leaves one
    spent = time.process_time() - cpu
    model = load(result.checkpoint, device="cpu")
    assert isinstance(model, LanguageModel)
    corpus = open_text(config.source, Path(folder))
    scores = {split: _score(config, model, corpus.split(split), corpus.tokenizer) for split in ("validation", "test")}
    metrics = read_metrics(place / METRICS_FILE)
    return {
        "diverged": None,
        "validation_loss": scores["validation"]["nats"] / scores["validation"]["n_tokens"],
        "perplexity": scores["test"]["perplexity_per_token"],
        "bits_per_byte": scores["test"]["bits_per_byte"],
        "tokens": result.step * config.batch_size * config.length,
        "seconds": result.seconds,  # of training, over all sessions, with the looks at the validation split
        "cpu_seconds": spent,  # of training, of the last session
        "session_seconds": time.monotonic() - begun,
        "tokens_per_second": _speed(metrics),
        "curve": [[line["step"], line["loss"]] for line in metrics if line["kind"] == "evaluation"],
        "evaluations": scores,
    }


def _speed(metrics: list[dict[str, Any]]) -> float:
    """Of training alone: the median over the lines of metrics."""
    return statistics.median(line["tokens_per_second"] for line in metrics if line["kind"] == "train")


@torch.no_grad()
def _score(config: H3LanguageSettings, model: LanguageModel, split: TokenSplit, tokenizer: Any) -> dict[str, Any]:
    """In windows as long as those of training, each half over the one before: a token is given at least half of one.

    The text is read as several pieces side by side, each of at least eight windows: the first of each begins at rest.
    """
    n_tokens = min(config.test_tokens or split.n_tokens, split.n_tokens)
    with evaluation_mode(model):
        found = evaluate_split(
            model,
            split,
            tokenizer,
            max_tokens=n_tokens,
            window=config.length,
            stride=max(1, config.length // 2),
            n_streams=max(1, min(config.batch_size, n_tokens // (8 * config.length))),
        )
    return asdict(found)


REPRODUCTION = Reproduction(
    summary="H3, GSS, their hybrids, S4D, a Transformer, Mamba and Mamba-2 as language models of a million parameters",
    duration="two hours on 2 cores",
    full=H3LanguageSettings,
    quick=quick,
    run=run,
)
