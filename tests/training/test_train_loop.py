"""The loop does what its configuration says: it learns, accumulates, carries, evaluates, saves and keeps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from training_runs import Recorder, curve, small_model, small_run, steps_of, train_config, with_train

import statewise as sw
from statewise.data.batches import Batches
from statewise.data.text import TextDataConfig, open_corpus
from statewise.errors import ConfigError, DataError
from statewise.evaluate.text.perplexity import evaluate_split
from statewise.mixers.attention import AttentionConfig
from statewise.training import RunConfig, read_run, train_run
from statewise.training.report import Reporter
from statewise.training.tasks import language as language_module


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in curve(folder, "train")]


def test_it_learns_and_says_so(tmp_path: Path) -> None:
    recorder = Recorder()
    config = small_run(tmp_path, steps=60, batch_size=8, length=32, lr=1e-2, log_every=4, evaluate_every=20)
    result = train_run(config, tmp_path / "run", reporter=recorder)
    assert (result.step, result.signal, result.exit_code) == (60, None, 0)
    assert losses(tmp_path / "run")[-1] < 0.7 * losses(tmp_path / "run")[0]
    assert [line["step"] for line in curve(tmp_path / "run", "evaluation")] == [20, 40, 60]

    kinds = [event["kind"] for event in recorder.events]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert recorder.closed
    assert recorder.fractions == pytest.approx([(i + 1) / 60 for i in range(60)])
    start = recorder.events[0]
    model = sw.load(result.checkpoint)
    assert start["parameters"] == sum(p.numel() for p in model.parameters())
    assert start["tokens_per_step"] == 8 * 32
    written = [event for event in recorder.events if event["kind"] in ("train", "evaluation")]
    assert [{k: v for k, v in e.items() if k not in ("seconds", "tokens_per_second")} for e in written] == curve(
        tmp_path / "run"
    )

    corpus = open_corpus(config.data)
    evaluation = evaluate_split(model, corpus.split("validation"), corpus.tokenizer, max_tokens=200)
    assert result.validation == pytest.approx(evaluation.bits_per_byte, rel=1e-5)
    split = corpus.split("train")
    line = curve(tmp_path / "run", "train")[0]
    assert line["bits_per_byte"] == pytest.approx(line["loss"] * split.n_tokens / split.n_bytes / math.log(2))


def by_hand(config: RunConfig, **start: Any) -> list[float]:
    """The losses of a run, written out once more: seed, batches, mean gradients, clipping, AdamW, cosine."""
    c, adamw, steps = config.train, config.train.optimizer, config.train.budget.steps
    torch.manual_seed(c.seed)
    model = config.model.build()
    split = open_corpus(config.data).split("train")
    batches = Batches(split, c.batch_size, c.length, c.seed, carry=c.carry_state)
    decayed = [p for m in model.modules() for p in m.parameters(recurse=False) if _decays(m, p)]
    others = [p for p in model.parameters() if not any(p is d for d in decayed)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": adamw.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=adamw.betas,
        eps=adamw.eps,
    )
    state = model.initial_state(c.batch_size) if c.carry_state else None
    found = []
    assert steps is not None
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = adamw.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step + 1) / steps)))
        optimizer.zero_grad()
        total = 0.0
        for i in range(c.accumulation):
            inputs, targets, starts = batches[step * c.accumulation + i]
            logits, state = model(inputs, state, starts=starts)
            if state is not None:
                state = torch.utils._pytree.tree_map(torch.Tensor.detach, state)
            loss = F.cross_entropy(logits.transpose(1, 2), targets) / c.accumulation
            loss.backward()
            total += loss.item()
        if adamw.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), adamw.clip_norm)
        optimizer.step()
        found.append(total)
    return found


def _decays(module: torch.nn.Module, parameter: torch.nn.Parameter) -> bool:
    embedding = isinstance(module, torch.nn.Embedding) or getattr(module, "out_features", 0) == 257  # tied
    return parameter.ndim >= 2 and not embedding


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accumulation": 3},
        {"accumulation": 2, "carry_state": True},
        {"clip_norm": None, "weight_decay": 0.5, "lr": 3e-3, "seed": 7},
        {"clip_norm": 0.1, "betas": (0.5, 0.9), "eps": 1e-4},
    ],
    ids=str,
)
def test_it_is_the_loop_that_the_configuration_describes(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = small_run(tmp_path, model=small_model(dropout=0.0), steps=5, warmup=0.0, **settings)
    train_run(config, tmp_path / "run")
    assert losses(tmp_path / "run") == pytest.approx(by_hand(config), rel=2e-5)


def test_a_line_holds_the_mean_of_its_steps(tmp_path: Path) -> None:
    train_run(small_run(tmp_path, steps=5), tmp_path / "a")
    train_run(small_run(tmp_path, steps=5, log_every=2), tmp_path / "b")
    each = losses(tmp_path / "a")
    assert losses(tmp_path / "b") == pytest.approx([sum(each[:2]) / 2, sum(each[2:4]) / 2, each[4]], rel=1e-9)
    assert [line["step"] for line in curve(tmp_path / "b", "train")] == [2, 4, 5]


def test_the_rate_follows_the_schedule(tmp_path: Path) -> None:
    settings = {"steps": 10, "lr": 0.01, "kind": "wsd", "warmup": 0.2, "decay": 0.4, "min_ratio": 0.05}
    train_run(small_run(tmp_path, **settings), tmp_path / "run")
    rates = [line["lr"] / 0.01 for line in curve(tmp_path / "run", "train")]
    fall = [0.05 + 0.95 * (1 - math.sqrt(i / 4)) for i in range(1, 5)]
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, *fall])


def test_dynamics_have_their_own_rate(tmp_path: Path) -> None:
    """With a ratio of almost nothing they stay where they began; everything else moves."""
    result = train_run(small_run(tmp_path, steps=2, dynamics_lr_ratio=1e-12), tmp_path / "run")
    assert result.checkpoint is not None
    torch.manual_seed(0)
    before, after = small_model().build(), sw.load(result.checkpoint)
    for name, parameter in after.named_parameters():
        assert torch.equal(parameter, before.get_parameter(name)) is (".dynamics." in name), name


def test_gradient_checkpointing_changes_no_number(tmp_path: Path) -> None:
    seen = []

    class Watch(Recorder):
        def progress(self, fraction: float, record: Any) -> None:
            seen.append(record["gradient_norm"])

    train_run(small_run(tmp_path, steps=3), tmp_path / "a", reporter=Watch())
    train_run(small_run(tmp_path, steps=3, gradient_checkpointing=True), tmp_path / "b", reporter=Watch())
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert seen[:3] == pytest.approx(seen[3:], rel=1e-6)


def test_bfloat16(tmp_path: Path) -> None:
    result = train_run(small_run(tmp_path, steps=4, precision="bfloat16"), tmp_path / "a")
    train_run(small_run(tmp_path, steps=4), tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "b")
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), rel=1e-2)
    assert result.checkpoint is not None
    assert {p.dtype for p in sw.load(result.checkpoint).parameters()} == {torch.float32}


def test_compile_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way through Dynamo, with the backend that needs no compiler."""
    calls = []

    def compiled(function: Any) -> Any:
        calls.append(function)
        return original(function, backend="eager")

    original = torch.compile
    monkeypatch.setattr(torch, "compile", compiled)
    model = small_model(dropout=0.0)
    train_run(small_run(tmp_path, model=model, steps=3, compile=True, carry_state=True), tmp_path / "a")
    assert len(calls) == 1
    train_run(small_run(tmp_path, model=model, steps=3, carry_state=True), tmp_path / "b")
    assert len(calls) == 1
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), rel=1e-5)


@pytest.mark.slow
def test_compile_with_the_default_backend(tmp_path: Path) -> None:
    model = small_model(dropout=0.0)
    train_run(small_run(tmp_path, model=model, steps=3, compile=True), tmp_path / "a")
    train_run(small_run(tmp_path, model=model, steps=3), tmp_path / "b")
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), rel=1e-4)


def test_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    seen = []

    class Watch(Reporter):
        def progress(self, fraction: float, record: Any) -> None:
            seen.append((torch.get_num_threads(), torch.get_float32_matmul_precision()))

    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    train_run(small_run(tmp_path, steps=1, threads=2, matmul="fast"), tmp_path / "a", reporter=Watch())
    train_run(small_run(tmp_path, steps=1), tmp_path / "b", reporter=Watch())
    assert seen == [(2, before[1]), before]
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        train_run(small_run(tmp_path, device="cuda"), tmp_path / "run")


@pytest.mark.cuda
@pytest.mark.parametrize("carry_state", [False, True])
def test_on_cuda(tmp_path: Path, carry_state: bool) -> None:
    config = small_run(tmp_path, model=small_model(dropout=0.0), steps=4, device="cpu", carry_state=carry_state)
    train_run(config, tmp_path / "a")
    train_run(with_train(config, device="cuda"), tmp_path / "b")
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), rel=1e-4)
    longer = with_train(config, device="cuda", steps=6)
    assert train_run(longer, tmp_path / "b", resume=True).step == 6


def test_saving_and_keeping(tmp_path: Path) -> None:
    train_run(small_run(tmp_path, steps=7, save_every=2, keep_best=False), tmp_path / "a")
    assert steps_of(tmp_path / "a") == [6, 7]
    train_run(small_run(tmp_path, steps=7, save_every=1, keep_best=False, keep_last=3), tmp_path / "b")
    assert steps_of(tmp_path / "b") == [5, 6, 7]
    train_run(small_run(tmp_path, steps=3), tmp_path / "c")
    assert steps_of(tmp_path / "c") == [3]


def test_the_best_is_saved_when_it_is_found_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([3.0, 2.0, 2.5, 2.25, 4.0])

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        return replace(evaluate_split(*args, **kwargs), bits_per_byte=next(scores))

    monkeypatch.setattr(language_module, "evaluate_split", evaluate)
    heard = Recorder()
    config = small_run(tmp_path, steps=10, evaluate_every=2, save_every=5, keep_last=1)
    train_run(config, tmp_path / "run", reporter=heard)
    assert heard.events[-1]["message"].endswith("; the best, which evaluate and predict use, is step-00000004")
    assert heard.events[-1]["best_checkpoint"] == str(tmp_path / "run/checkpoints/step-00000004")
    assert steps_of(tmp_path / "run") == [4, 10]
    assert [line["best"] for line in curve(tmp_path / "run", "evaluation")] == [True, True, False, False, False]
    from statewise import checkpoints

    assert checkpoints.resolve(tmp_path / "run", "best").name == "step-00000004"
    assert checkpoints.resolve(tmp_path / "run", "latest").name == "step-00000010"


def test_without_a_validation_split(tmp_path: Path) -> None:
    config = small_run(tmp_path, steps=2, evaluate_every=1)
    config = replace(config, data=replace(config.data, validation_fraction=0.0))
    result = train_run(config, tmp_path / "run")
    assert result.validation is None
    assert not curve(tmp_path / "run", "evaluation")


@pytest.mark.parametrize("positions", [{"positions": "rotary"}, {"positions": "learned", "max_positions": 16}])
@pytest.mark.parametrize("window", [None, 8])
def test_attention_is_evaluated_too(tmp_path: Path, positions: dict[str, Any], window: int | None) -> None:
    """Full attention and learned positions cannot read on for ever, so they are evaluated in windows."""
    layers = (AttentionConfig(n_heads=2, window=window, **positions),)
    result = train_run(small_run(tmp_path, model=small_model(layers=layers), steps=2), tmp_path / "run")
    assert result.validation is not None


def test_a_state_without_bound_is_not_carried(tmp_path: Path) -> None:
    model = small_model(layers=(AttentionConfig(n_heads=2),))
    with pytest.raises(ConfigError, match=r"carry_state.*window"):
        train_run(small_run(tmp_path, model=model, carry_state=True), tmp_path / "run")
    model = small_model(layers=(AttentionConfig(n_heads=2, window=8),))
    assert train_run(small_run(tmp_path, model=model, carry_state=True, steps=3), tmp_path / "run2").step == 3


def test_the_tokenizer_has_to_match(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vocab_size=200.*257"):
        train_run(small_run(tmp_path, model=small_model(vocab_size=200)), tmp_path / "run")


def test_a_sequence_longer_than_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tokens"):
        train_run(small_run(tmp_path, length=100_000), tmp_path / "run")


def test_nothing_to_read(tmp_path: Path) -> None:
    config = RunConfig(
        model=small_model(), data=TextDataConfig(source=str(tmp_path / "none")), train=train_config(steps=1)
    )
    with pytest.raises(DataError):
        train_run(config, tmp_path / "run")


def test_run_json_is_the_configuration(tmp_path: Path) -> None:
    config = small_run(tmp_path, steps=1)
    train_run(config, tmp_path / "run")
    assert read_run(tmp_path / "run") == config
