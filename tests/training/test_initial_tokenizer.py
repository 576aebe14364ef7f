"""A run that begins with a model of tokens reads its texts with that model's tokenizer, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import statewise as sw
from statewise import cli
from statewise.errors import ConfigError
from statewise.training import read_run

TEXTS = [f"the state of number {i} is all that is {'kept' if i % 2 else 'lost'}" for i in range(80)]
LABELS = ["kept", "lost"] * 40
SMALL = {"data.max_length": 64}
OTHERS = [text[::-1].upper() for text in TEXTS]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))


def classifier(tokenizer: str) -> Any:
    return sw.train("text-classifier", (TEXTS, LABELS), steps=1, set=SMALL | {"data.tokenizer": tokenizer}, out="first")


def tokenizer_of(run: Any) -> str:
    return read_run(run.folder).data.tokenizer  # type: ignore[attr-defined]


def write(texts: list[str]) -> list[str]:
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, LABELS)]
    Path("rows.jsonl").write_text("\n".join(rows))
    return ["--preset", "text-classifier", "--data", "rows.jsonl", "--text-field", "text", "--label-field", "label"]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_text_classifier_goes_on_with_its_own(tokenizer: str) -> None:
    first = classifier(tokenizer)
    before = sw.predictor("first").predict(OTHERS).probabilities  # type: ignore[union-attr]
    write(OTHERS)
    as_config = sw.LabelledTextDataConfig(source="rows.jsonl", text_field="text", label_field="label")
    for data, more in (
        ((OTHERS, LABELS), {}),
        ("rows.jsonl", {"text_field": "text", "label_field": "label"}),
        (as_config, {}),
    ):
        run = sw.train("first", data, steps=1, lr=1e-12, **more)  # type: ignore[arg-type]
        assert tokenizer_of(run).endswith("bytes" if tokenizer == "bytes" else "initial/model/tokenizer.json")
        assert run.predict(OTHERS).probabilities == pytest.approx(before, abs=1e-5)
    assert first.model.config.text == run.model.config.text


def test_a_model_in_memory() -> None:
    model = classifier("bytes").model
    assert tokenizer_of(sw.train(model, (OTHERS, LABELS), steps=1)) == "bytes"


def test_a_model_in_memory_does_not_hold_its_tokenizer() -> None:
    first = classifier("bpe:300")
    for more in ({}, {"data.tokenizer": "bpe:300"}):
        with pytest.raises(ConfigError, match="give the path of its run instead"):
            sw.train(first.model, (OTHERS, LABELS), steps=1, set=more, out="second")
    assert not Path("second").exists()
    own = str(first.checkpoint.absolute() / "tokenizer.json")
    assert tokenizer_of(sw.train(first.model, (OTHERS, LABELS), steps=1, set={"data.tokenizer": own})) == own


@pytest.mark.parametrize(("tokenizer", "other"), [("bpe:300", "bpe:300"), ("bpe:300", "bytes"), ("bytes", "bpe:258")])
def test_another_is_refused(tokenizer: str, other: str) -> None:
    classifier(tokenizer)
    with pytest.raises(ConfigError, match=r"is not the tokenizer that.*set data.tokenizer=.*(json|bytes)$"):
        sw.train("first", (OTHERS, LABELS), steps=1, set={"data.tokenizer": other}, out="second")
    assert not Path("second").exists()


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    classifier("bpe:300")
    words = ["train", *write(OTHERS), "--set", "train.initial=first", "--set", "data.max_length=64", "--steps", "1"]
    assert cli.run([*words, "--tokenizer", "bpe:300", "--out", "second"]) == 2
    assert "set data.tokenizer=" in capsys.readouterr().err
    assert not Path("second/run.json").exists()
    assert cli.run([*words, "--out", "second"]) == 0
    stored = [sw.checkpoints.read_tokenizer(sw.checkpoints.resolve(name)) for name in ("first", "second")]
    assert stored[0] == stored[1]


def test_a_language_model() -> None:
    config = sw.LanguageModelConfig(vocab_size=300, d_model=8, layers=(sw.MambaConfig(d_state=4),))
    small = {"train.length": 16, "train.precision": "float32"}
    first = sw.train(config, TEXTS, steps=1, set={**small, "data.tokenizer": "bpe:300"})
    with pytest.raises(ConfigError, match="is not the tokenizer that the model at"):
        sw.train(first.folder, OTHERS, steps=1, set={**small, "data.tokenizer": "bpe:300"})
    with pytest.raises(ConfigError, match="give the path of its run instead"):
        sw.train(first.model, OTHERS, steps=1, set=small)
    run = sw.train(None, OTHERS, steps=1, set={**small, "model": config, "train.initial": str(first.folder)})
    assert tokenizer_of(run) == str(first.checkpoint.absolute() / "tokenizer.json")
