"""Classifiers and regressors in transformers: padding, loss, folders, Trainer, pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import statewise as sw
from statewise.models.raw_input import InputConfig

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)
from wrapped_models import LAYERS, padded, rows

from statewise.integrations.transformers import (
    StatewiseConfig,
    StatewiseForSequenceClassification,
    fast_tokenizer,
    from_statewise,
)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def of_tokens(name: str = "mamba2", pooling: str = "mean", vocab_size: int = 31, **more: Any) -> Any:
    torch.manual_seed(0)
    fields = {"n_classes": 3, "classes": ("bad", "good", "so so"), **more}
    config = sw.SequenceClassifierConfig(
        vocab_size=vocab_size, d_model=16, layers=LAYERS[name], pooling=pooling, **fields
    )
    return config.build().eval()


def of_numbers(d_input: int = 2) -> Any:
    """A regressor that scales what it reads and what it says."""
    torch.manual_seed(0)
    scaled = InputConfig(scaling="dataset", scale=(0.1,) * d_input, shift=(-3.0,) * d_input)
    return (
        sw.SequenceRegressorConfig(
            d_output=1,
            d_input=d_input,
            d_model=16,
            layers=LAYERS["s4d"],
            input=scaled,
            target_mean=(1000.0,),
            target_deviation=(50.0,),
        )
        .build()
        .eval()
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
@pytest.mark.parametrize("name", ["mamba2", "hybrid", "h3"])
def test_a_padded_row_says_what_it_says_alone(name: str, pooling: str, side: str) -> None:
    model = of_tokens(name, pooling).double()
    tokens = rows(9, 4, 1)
    ids, mask = padded(tokens, side, pad=7)
    found = from_statewise(model)(ids, attention_mask=mask).logits
    for row, logits in zip(tokens, found):
        torch.testing.assert_close(model(row[None])[0][0], logits)


def test_numbers_are_padded_anywhere() -> None:
    model = of_numbers().double()
    x = torch.randn(2, 8, 2).double()
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 0], [1] * 8])
    x[0, mask[0] == 0] = torch.nan
    found = from_statewise(model)(input_values=x, attention_mask=mask).logits
    torch.testing.assert_close(found[:1], model(x[:1, mask[0] == 1])[0])
    torch.testing.assert_close(found[1:], model(x[1:])[0])
    single = of_numbers(1)
    assert torch.equal(from_statewise(single)(input_values=torch.ones(2, 5)).logits, single(torch.ones(2, 5, 1))[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["tokens", "numbers"])
def test_saved_and_loaded(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """What the config says, as scaling, comes back too: theirs leaves tensors that no file holds undefined."""
    model = of_tokens() if kind == "tokens" else of_numbers()
    wrapped = from_statewise(model)
    assert wrapped.model is model
    wrapped.save_pretrained(tmp_path)
    back = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=dtype)
    assert type(back) is StatewiseForSequenceClassification
    ours = sw.load(tmp_path)  # without transformers
    given = {"input_ids": torch.stack(rows(9, 9))} if kind == "tokens" else {"input_values": torch.randn(2, 9, 2) + 30}
    expected = model(*given.values())[0]
    assert torch.equal(ours(*given.values())[0], expected)
    tolerance = {"atol": 0, "rtol": 0} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.02}
    torch.testing.assert_close(back(**given).logits.float(), expected, **tolerance)
    if kind == "tokens":
        assert back.config.id2label == {0: "bad", 1: "good", 2: "so so"}
        assert (back.config.problem_type, back.num_labels) == ("single_label_classification", 3)
    else:
        assert (back.config.problem_type, back.num_labels, back.main_input_name) == ("regression", 1, "input_values")
    with pytest.raises(sw.ConfigError, match="expected a LanguageModelConfig"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_losses() -> None:
    ids, labels = torch.stack(rows(9, 9, 9)), torch.tensor([2, 0, -100])
    wrapped = from_statewise(of_tokens())
    output = wrapped(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits[:2], labels[:2])
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(wrapped(ids, labels=labels, num_items_in_batch=8).loss, expected * 2 / 8)
    assert wrapped(ids, labels=labels, return_dict=False)[0] == output.loss
    x, y = torch.randn(3, 7, 2), torch.tensor([900.0, 1000.0, 1010.0])
    regressor = from_statewise(of_numbers())
    output = regressor(input_values=x, labels=y)
    torch.testing.assert_close(output.loss, (output.logits[:, 0] - y).square().mean())


TOKENIZER = sw.ByteTokenizer()


def examples(n: int = 48) -> list[dict[str, Any]]:
    """Texts of unlike lengths, with a class each."""
    tokenizer, rng = fast_tokenizer(TOKENIZER), np.random.default_rng(0)
    words = ("awful", "lovely")
    return [{**tokenizer(f"{'it is ' * int(rng.integers(1, 4))}{words[i % 2]}"), "labels": i % 2} for i in range(n)]


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    chosen = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 3e-2} | options
    return TrainingArguments(str(folder), report_to=[], use_cpu=True, disable_tqdm=True, seed=3, **chosen)


def test_trainer_and_pipeline(tmp_path: Path) -> None:
    model = of_tokens("mamba", "last", TOKENIZER.vocab_size, n_classes=2, classes=("bad", "good"))
    tokenizer = fast_tokenizer(TOKENIZER)
    trainer = Trainer(
        from_statewise(model),
        arguments(tmp_path / "run"),
        train_dataset=examples(),
        eval_dataset=examples(8),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda given: {"accuracy": float((given.predictions.argmax(1) == given.label_ids).mean())},
    )
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] == 1.0
    trainer.save_model(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    ask = pipeline("text-classification", model=str(tmp_path / "model"), device="cpu")
    answers = ask(["it is lovely", "it is it is awful"], batch_size=2)
    assert [answer["label"] for answer in answers] == ["good", "bad"]


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_accumulated_steps_are_one_large_step(kind: str, tmp_path: Path) -> None:
    trained = []
    for size, steps in ((8, 1), (2, 4)):
        model = (of_tokens() if kind == "classes" else of_numbers()).double()
        data: list[dict[str, Any]] = [{"input_ids": row, "labels": i % 3} for i, row in enumerate(rows(*[6] * 16))]
        if kind == "numbers":
            x = torch.randn(16, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            data = [{"input_values": row, "labels": 1000 + 30 * row.sum()} for row in x]
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 2}
        Trainer(from_statewise(model), arguments(tmp_path, save_strategy="no", **options), train_dataset=data).train()
        trained.append(model.head.weight)
    torch.testing.assert_close(*trained, atol=1e-7, rtol=1e-5)


def calls() -> list[tuple[Any, dict[str, Any], str]]:
    ids, x, classes = torch.stack(rows(5, 5)), torch.randn(2, 5, 2), torch.tensor([0, 1])
    tokens, numbers = of_tokens(), of_numbers()
    return [
        (tokens, {}, r"reads input_ids \(batch, length\); got neither"),
        (tokens, {"input_values": x}, "got input_values"),
        (numbers, {"input_ids": ids}, r"reads input_values \(batch, length, 2\); got input_ids"),
        (numbers, {"input_values": x[0]}, r"of shape \(5, 2\)"),
        (tokens, {"input_ids": ids, "attention_mask": torch.zeros(2, 5)}, "a row of x has no step"),
        (tokens, {"input_ids": ids, "labels": classes + 2}, "label 3 is not a class; expected 0 to 2, or -100"),
        (tokens, {"input_ids": ids, "labels": classes.float()}, "expected an integer for each of 2 rows"),
        (tokens, {"input_ids": ids, "labels": torch.stack([classes, classes])}, "labels are torch.int64"),
        (numbers, {"input_values": x, "labels": torch.randn(2, 3)}, r"expected \(2, 1\), like the outputs"),
        (tokens, {"input_ids": ids, "output_attentions": True}, "output_attentions means nothing"),
    ]


@pytest.mark.parametrize(
    ("model", "given", "message"), calls(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_calls_that_cannot_be(model: Any, given: dict[str, Tensor], message: str) -> None:
    with pytest.raises(sw.InputError, match=message):
        from_statewise(model)(**given)


def test_models_that_cannot_be() -> None:
    model = of_tokens()
    with pytest.raises(sw.ConfigError, match="num_labels=5 contradicts model, which says 3"):
        StatewiseConfig(model=model.config, num_labels=5)
    with pytest.raises(sw.ConfigError, match=r"id2label=.* contradicts model"):
        StatewiseConfig(model=model.config, id2label={"0": "no"})
    with pytest.raises(sw.InputError, match="only a language model needs a tokenizer, not a SequenceClassifier"):
        from_statewise(model, TOKENIZER)
    with pytest.raises(sw.InputError, match="not frozen, got a frozen model"):
        from_statewise(model.freeze())
    each_step = sw.SequenceClassifierConfig(
        n_classes=3, vocab_size=31, d_model=8, layers=(sw.MambaConfig(),), pooling=None
    )
    with pytest.raises(sw.ConfigError, match="an output for each step"):
        from_statewise(each_step.build())
