"""The training runs of ``h3-language``: their settings, their tokenizer, and how each model is trained and tested."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch

from statewise.checkpoints import load
from statewise.configuration import types as t
from statewise.data.sources import CORPORA
from statewise.data.text import Corpus, TextDataConfig, TokenSplit, open_corpus
from statewise.errors import ConfigError, DivergedError
from statewise.evaluate.text.perplexity import evaluate_split
from statewise.mixers.projection import WEIGHT_STD, weight_std_at
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel
from statewise.reproduce.files import write_text
from statewise.reproduce.h3_language.models import LABELS, USUAL, WITHOUT_MLP, Sizes, build_config
from statewise.reproduce.settings import BEFORE, Rates, Settings, rate_name
from statewise.reproduce.training import read_looks, train_one
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from statewise.training.metrics import read_metrics
from statewise.training.report import Reporter
from statewise.training.run_folder import METRICS_FILE

TOKENIZER_FILE = "tokenizer.json"
DOCUMENT_TOKEN = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class H3LanguageSettings(Settings):
    """source:   of the text, as ``statewise train`` takes it
    vocab_size:  of the BPE that is made from its training split
    models:      which of the nine; the usual ones are those of the paper, Mamba and Mamba-2
    d_model, n_layers: of all with an MLP; Mamba and Mamba-2 have about twice the layers
    n_heads:     of attention        d_state: of all but Mamba, whose 16 are part of its design
    expand:      the width of the Transformer's MLP, as a multiple of d_model; the others' follow from its parameters
    tolerance:   by how much the numbers of parameters may differ
    weight_std:  of the projections of H3, attention and the MLPs at the start. The published 0.02 is for a width of
                 768; None: 0.02 sqrt(768 / d_model), with which a projection's output varies as much as there
    tokens:      that a run is trained on        length, batch_size: of the windows that a step reads
    learning_rates: of which each model gets the one that is best on the validation split, with the first seed
    tuning_share:   of ``tokens`` that this takes; at 1 the best of these runs is the first seed's run
    seeds:       of the runs that are compared
    warmup, weight_decay, dynamics_lr_max: of the training, see ``TrainConfig``; the same for all
    evaluations: looks at the validation split on the way, for the curves, of ``evaluate_tokens`` each
    test_tokens: of the validation and test splits that are read at the end; None: all
    workers:     processes that train, each with its share of the cores
    """

    source: t.Name = "shakespeare"
    vocab_size: t.Width = 2048
    models: t.Distinct[Annotated[str, t.OneOf(LABELS)]] = USUAL
    d_model: t.Width = 96
    n_layers: Annotated[int, t.from_to(3, 10_000)] = 8  # of a hybrid at least
    n_heads: t.Count = 3
    d_state: t.EvenWidth = 64
    expand: Annotated[float, t.above(0), t.at_most(1000)] = 4.0
    tolerance: t.Fraction = 0.03
    weight_std: t.Positive | None = field(default=None, metadata={BEFORE: WEIGHT_STD})
    tokens: t.Count = 2_000_000
    length: Annotated[int, t.from_to(2, 2**20)] = 256  # of two tokens one is predicted
    batch_size: t.Count = 4  # small, for more steps with the same tokens
    learning_rates: Rates = (2e-3, 4e-3, 8e-3, 1.6e-2)
    tuning_share: t.Share = 0.25
    seeds: t.Distinct[t.Seed] = (0, 1, 2)
    warmup: t.Ratio = 0.05
    weight_decay: t.NonNegative = 0.1
    dynamics_lr_max: t.Limit | None = None
    evaluations: t.Count = 8
    evaluate_tokens: t.AtLeastTwo = 16_384
    test_tokens: t.AtLeastTwo | None = None
    workers: t.Count = 2

    def check(self) -> None:
        for name in self.models:
            if name not in WITHOUT_MLP:  # whose widths and depths take seconds to find
                build_config(name, self.sizes)
        for lr in self.learning_rates:
            for seed in self.seeds:
                self.training(lr, seed, 1.0)  # refuses what no run could have before the text is made into tokens
        if self.source not in CORPORA:
            object.__setattr__(self, "source", text_config(self.source, Path()).source)

    @property
    def sizes(self) -> Sizes:
        shared = {name: getattr(self, name) for name in Sizes.__dataclass_fields__}
        return Sizes(**{**shared, "weight_std": self.weight_std or weight_std_at(self.d_model)})

    def steps(self, share: float = 1.0) -> int:
        return max(2, math.ceil(share * self.tokens / (self.batch_size * self.length)))

    def training(self, lr: float, seed: int, share: float) -> TrainConfig:
        """The training config of a run on this share of the tokens.

        Errors: ConfigError for what no run could have.
        """
        steps = self.steps(share)
        return TrainConfig(
            budget=BudgetConfig(steps=steps),
            optimizer=OptimizerConfig(lr=lr, dynamics_lr_max=self.dynamics_lr_max, weight_decay=self.weight_decay),
            schedule=ScheduleConfig(warmup=self.warmup),
            reporting=ReportingConfig(
                evaluate_every=max(1, steps // self.evaluations),
                evaluate_minutes=None,
                evaluate_items=self.evaluate_tokens,
                evaluate_window=self.length,  # all models alike, whether their state could be carried on or not
                save_minutes=5.0,
                keep_last=1,
                keep_best=False,
            ),
            batch_size=self.batch_size,
            length=self.length,
            seed=seed,
            device="cpu",
        )


def train_tokenizer(text: str, vocab_size: int) -> str:
    """The JSON of a tokenizer as GPT-2's: BPE over the bytes of words, with a token that begins documents.

    Any text comes back from its tokens. The same text gives the same JSON.

    Errors:  ConfigError for a vocabulary that cannot hold the 256 bytes and the document token, and for a text too
             short for it.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab_size < 257:
        raise ConfigError(
            f"vocab_size={vocab_size} is too small; use at least 257, for the 256 bytes and the document token"
        )
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[DOCUMENT_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    if (found := tokenizer.get_vocab_size()) < vocab_size:
        raise ConfigError(f"vocab_size={vocab_size} is too large for the text, which gives {found}; use that at most")
    return str(tokenizer.to_str())


def make_tokenizer(source: str, vocab_size: int, folder: Path) -> dict[str, Any]:
    """Writes tokenizer.json into the folder, tokenises the text with it, and gives its fingerprint and sizes."""
    raw = open_corpus(TextDataConfig(source=source)).split("train").text_bytes()
    text = raw.decode("utf-8", "replace")  # what is not UTF-8 is refused when the text is tokenised
    write_text(folder / TOKENIZER_FILE, train_tokenizer(text, vocab_size))
    corpus = open_text(source, folder)
    splits = {name: corpus.split(name) for name in ("train", "validation", "test")}
    sizes = {
        name: {"documents": split.n_documents, "bytes": split.n_bytes, "tokens": split.n_tokens}
        for name, split in splits.items()
    }
    n_bytes = sum(split.n_bytes for split in splits.values())
    return {"fingerprint": corpus.fingerprint, "n_bytes": n_bytes, "splits": sizes, "described": corpus.describe()}


def text_config(source: str, folder: Path) -> TextDataConfig:
    return TextDataConfig(source=source, tokenizer=str((folder / TOKENIZER_FILE).absolute())).with_absolute_paths()


def open_text(source: str, folder: Path) -> Corpus:
    return open_corpus(text_config(source, folder))


def run_config(config: H3LanguageSettings, folder: Path, name: str, lr: float, seed: int, share: float) -> RunConfig:
    """The training run of one model, rate and seed, on this share of the tokens; ``folder`` holds the tokenizer."""
    training = config.training(lr, seed, share)
    return RunConfig(model=build_config(name, config.sizes), data=text_config(config.source, folder), train=training)


def tuning_part(name: str, lr: float) -> str:
    return f"{name}-rate-{rate_name(lr)}"


def train_and_test(
    config: H3LanguageSettings, folder: str, name: str, lr: float, seed: int, share: float, reporter: Reporter
) -> dict[str, Any]:
    """Trains one model, or continues where it was stopped, and reads the validation and the test split with it.

    A run whose loss is not finite any more is a result: "diverged" says where, and there is nothing else.

    Errors: TrainingError if the evaluation failed for another reason; Stopped, with everything saved.
    """
    run = run_config(config, Path(folder), name, lr, seed, share)
    place = Path(folder, "runs", f"{tuning_part(name, lr)}-seed-{seed}" + ("" if share == 1 else "-tuning"))
    begun, cpu = time.monotonic(), time.process_time()
    try:
        result = train_one(run, place, reporter)
    except DivergedError as error:
        return {"diverged": error.what}
    assert result.checkpoint is not None  # the last step leaves one
    spent = time.process_time() - cpu
    model = load(result.checkpoint, device="cpu")
    assert isinstance(model, LanguageModel)
    corpus = open_text(config.source, Path(folder))
    scores = {split: _score(config, model, corpus.split(split), corpus.tokenizer) for split in ("validation", "test")}
    speeds = [line["tokens_per_second"] for line in read_metrics(place / METRICS_FILE) if line["kind"] == "train"]
    return {
        "diverged": None,
        "validation_loss": scores["validation"]["nats"] / scores["validation"]["n_tokens"],
        "perplexity": scores["test"]["perplexity_per_token"],
        "bits_per_byte": scores["test"]["bits_per_byte"],
        "tokens": result.step * config.batch_size * config.length,
        "seconds": result.seconds,  # of training, over all sessions, with the looks at the validation split
        "cpu_seconds": spent,  # of training, of the last session
        "session_seconds": time.monotonic() - begun,
        "tokens_per_second": statistics.median(speeds),  # of training alone
        "curve": [[line["step"], line["loss"]] for line in read_looks(place)],
        "evaluations": scores,
    }


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
