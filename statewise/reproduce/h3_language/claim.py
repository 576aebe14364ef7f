"""Language models as in H3's table on OpenWebText, small: six models of the paper, Mamba and Mamba-2."""

from __future__ import annotations

from statewise.reproduce.claim import Claim
from statewise.reproduce.h3_language.models import build_config, describe, n_parameters
from statewise.reproduce.h3_language.report import Found, report
from statewise.reproduce.h3_language.runs import H3LanguageSettings, make_tokenizer, train_and_test, tuning_part
from statewise.reproduce.settings import rate_name
from statewise.reproduce.training import choose_rate
from statewise.reproduce.work import Job, Work


def measure(config: H3LanguageSettings, work: Work) -> Found:
    """The text; every model at every rate with the first seed; then each at its best rate with the others."""
    for name in config.models:
        build_config(name, config.sizes)  # sizes that do not match are told before anything is done
    first, *others = config.seeds
    later = others if config.tuning_share == 1 else config.seeds
    work.begin(1 + len(config.models) * (len(config.learning_rates) + len(later)), at_most=True)
    text = work.part("text", lambda: make_tokenizer(config.source, config.vocab_size, work.folder))

    def job(name: str, lr: float, seed: int, share: float) -> Job:
        return Job(train_and_test, (config, str(work.folder.absolute()), name, lr, seed, share))

    tuned = work.parts(
        {
            tuning_part(name, lr): job(name, lr, first, config.tuning_share)
            for name in config.models
            for lr in config.learning_rates
        }
    )
    by_rate = {name: {lr: tuned[tuning_part(name, lr)] for lr in config.learning_rates} for name in config.models}
    chosen = {name: choose_rate(by_rate[name]) for name in config.models}
    jobs = {
        f"{name}-seed-{seed}": job(name, rate, seed, 1.0)
        for seed in later
        for name, rate in chosen.items()
        if rate is not None
    }
    work.leave_out(len(later) * len(config.models) - len(jobs))
    seeded, models = work.parts(jobs), {}
    for name, rate in chosen.items():
        seeds = [] if rate is None else config.seeds
        runs = {seed: seeded.get(f"{name}-seed-{seed}", by_rate[name].get(rate or 0.0)) for seed in seeds}
        model = build_config(name, config.sizes)
        models[name] = {
            "learning_rate": rate,
            "parameters": n_parameters(model),
            "sizes": describe(name, model),
            "tuning": {rate_name(lr): result for lr, result in by_rate[name].items()},
            "seeds": {str(seed): result for seed, result in runs.items()},
        }
    return Found(text, models)


CLAIM = Claim(
    summary="H3, GSS, their hybrids, S4D, a Transformer, Mamba and Mamba-2 as language models of a million parameters",
    duration="two hours on 2 cores",
    source="Fu et al. 2023 (H3), arXiv:2212.14052, the table on OpenWebText",
    settings=H3LanguageSettings,
    quick="vocab_size=512 d_model=32 n_layers=4 n_heads=2 d_state=8 tolerance=0.1 tokens=16384 length=64 batch_size=8 "
    "learning_rates=[2e-3,8e-3] seeds=[0,1] evaluations=2 evaluate_tokens=2048 test_tokens=4096 workers=1",
    measure=measure,
    report=report,
)
