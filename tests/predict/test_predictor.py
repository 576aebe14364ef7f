"""A predictor's answers are those of evaluation to the last digit, whatever the form of what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raw_data import run_on, shifted
from training_runs import train_config

import statewise as sw
from statewise.data import LabelledDataConfig, open_labelled
from statewise.errors import ConfigError, DataError, InputError
from statewise.evaluate.labelled.classification import evaluate_classifier
from statewise.evaluate.text.likelihood import encode_pair, score
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.models.raw_input import InputConfig
from statewise.models.text_input import TextInputConfig
from statewise.predict import Classes, Embeddings, Likelihoods, Numbers
from statewise.training import train_run

LAYERS = (sw.Mamba2Config(d_state=8, d_head=8),)
SCALED = InputConfig(scaling="dataset", scale=(0.5, 1 / 3), shift=(-500.0, -1000 / 3))


def built(config: Any = sw.SequenceClassifierConfig, **fields: Any) -> Any:
    torch.manual_seed(0)
    return config(**{"d_input": 2, "d_model": 16, "layers": LAYERS, **fields}).build().eval()


def classifier(**fields: Any) -> Any:
    return built(**{"n_classes": 3, "classes": ("a", "b", "c"), **fields})


def ragged(n: int = 9, d_input: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(m, d_input)) + 1000).astype(np.float32) for m in rng.integers(1, 40, n)]


@pytest.mark.parametrize("fields", [{}, {"normalize": "series"}])
def test_the_answers_of_a_run_are_those_of_evaluation(tmp_path: Path, fields: dict[str, Any]) -> None:
    data = LabelledDataConfig(source="arrays", folder=str(shifted(tmp_path)), **fields)
    train_run(run_on(data, steps=40), tmp_path / "run")
    split, model = open_labelled(data).split("test"), sw.load(tmp_path / "run")
    answers = sw.predictor(tmp_path / "run").predict([split.raw.sequence(i) for i in range(len(split))])
    assert isinstance(answers, Classes)
    assert answers.names == ("down", "up")
    expected = evaluate_classifier(model, split)  # type: ignore[arg-type]
    right = answers.labels == np.array(answers.names)[split.targets]
    assert right.mean() == expected.accuracy > 0.8
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(answers.logits), torch.from_numpy(split.targets))
    assert loss.item() == expected.loss
    np.testing.assert_allclose(answers.probabilities.sum(1), 1)


def test_rows_of_unlike_lengths_come_back_in_their_order() -> None:
    model, rows = classifier(input=SCALED), ragged(40)
    predictor = sw.predictor(model)
    answers = predictor.predict(rows, batch_size=2)  # more than a pool
    assert answers.row.tolist() == list(range(40))
    for row, logits in zip(rows, answers.logits):
        np.testing.assert_allclose(logits, model(torch.from_numpy(row)[None])[0][0].detach(), rtol=1e-4, atol=1e-4)
    padded = np.full((40, 39, 2), np.nan, np.float32)
    for place, row in zip(padded, rows):
        place[: len(row)] = row
    lengths = [len(row) for row in rows]
    for x in (padded, torch.from_numpy(padded), list(padded)):
        assert np.array_equal(predictor.predict(x, lengths=lengths, batch_size=2).logits, answers.logits)


def test_forms_of_rows() -> None:
    predictor = sw.predictor(classifier(d_input=1))
    x = np.random.default_rng(0).normal(size=(3, 20, 1)).astype(np.float32)
    expected = predictor.predict(x).logits
    for same in (x[..., 0], torch.from_numpy(x), [row[:, 0] for row in x], list(torch.from_numpy(x))):
        assert np.array_equal(predictor.predict(same).logits, expected)
    tokens = sw.predictor(classifier(d_input=None, vocab_size=9))
    ids = np.random.default_rng(0).integers(0, 9, (3, 20))
    assert np.array_equal(tokens.predict(ids.astype(np.uint8)).logits, tokens.predict([*ids.tolist()]).logits)


def test_answers_as_rows_and_as_a_table() -> None:
    answers = sw.predictor(classifier()).predict(ragged(2))
    first = next(answers.rows())
    assert list(first) == ["row", "class", "probability", "p(a)", "p(b)", "p(c)"]
    assert (first["row"], first["class"]) == (0, answers.labels[0])
    assert first["probability"] == answers.probabilities[0].max() == first[f"p({first['class']})"]
    assert len(answers) == 2
    unnamed = sw.predictor(classifier(classes=())).predict(ragged(2))
    assert unnamed.names == ("0", "1", "2")
    pytest.importorskip("pandas", reason="pandas is not installed")
    assert list(answers.to_frame().columns) == list(first)


def test_numbers_and_embeddings() -> None:
    model = built(sw.SequenceRegressorConfig, d_output=2)
    rows = ragged(3)
    answers = sw.predictor(model).predict(rows)
    assert isinstance(answers, Numbers)
    assert list(answers.columns()) == ["row", "value 0", "value 1"]
    embedded = sw.predictor(model).embed(rows)
    assert isinstance(embedded, Embeddings)
    assert embedded.values.shape == (3, 16)
    again = model.head(torch.from_numpy(embedded.values)).detach().numpy()
    np.testing.assert_allclose(again, answers.values, rtol=1e-5, atol=1e-6)


def test_an_answer_for_every_step() -> None:
    model = built(sw.SequenceRegressorConfig, d_output=1, pooling=None)
    rows = ragged(3)
    answers = sw.predictor(model).predict(rows)
    assert isinstance(answers, Numbers)
    assert answers.step is not None
    assert answers.row.tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert answers.step.tolist() == [t for row in rows for t in range(len(row))]
    last = model(torch.from_numpy(rows[2])[None])[0].detach().numpy()[0]
    np.testing.assert_allclose(answers.values[answers.row == 2], last, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="an embedding needs a pooling"):
        sw.predictor(model).embed(rows)


@pytest.mark.parametrize("fields", [{"input": SCALED}, {"frame_length": 4}, {"pooling": None}])
def test_a_stream_ends_with_the_answer_to_the_whole(fields: dict[str, Any]) -> None:
    predictor = sw.predictor(classifier(**fields))
    x = ragged(1)[0][:30]
    x = np.concatenate([x, x, x])[:32]
    whole, stream = predictor.predict([x]), predictor.stream()
    found = [answers for piece in np.split(x, [2, 3, 20]) if (answers := stream(piece[None])) is not None]
    assert stream.n_read == 32
    assert isinstance(found[-1], Classes)
    if "pooling" in fields:
        logits = np.concatenate([answers.logits for answers in found])  # type: ignore[attr-defined]
        assert np.concatenate([answers.step for answers in found]).tolist() == list(range(32))
    else:
        logits = found[-1].logits
    assert len(found) == (2 if "frame_length" in fields else 4), "nothing is answered before the first frame"
    np.testing.assert_allclose(logits, whole.logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="a piece has 2 rows; expected 1"):
        stream(np.zeros((2, 3, 2)))


def test_likelihoods_of_texts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = sw.LanguageModelConfig(vocab_size=257, d_model=16, layers=LAYERS).build().eval()
    sw.save(model, tmp_path / "model", tokenizer=sw.ByteTokenizer())
    texts = ["one", "a longer text", "ü"]
    answers = sw.predictor(tmp_path / "model").predict(texts)
    assert isinstance(answers, Likelihoods)
    pairs = [encode_pair(sw.ByteTokenizer(), "", [text])[0] for text in texts]
    expected = [one.log_probability for one in score(model, pairs)]
    np.testing.assert_allclose(answers.log_likelihoods, expected, rtol=1e-5)
    assert answers.tokens.tolist() == answers.n_bytes.tolist() == [3, 13, 2]
    bits = next(answers.rows())["bits_per_byte"]
    assert bits == pytest.approx(-expected[0] / np.log(2) / 3)
    assert len(sw.predictor(model, tokenizer=sw.ByteTokenizer()).predict("one")) == 1
    with pytest.raises(InputError, match="comes without its tokenizer"):
        sw.predictor(model)
    with pytest.raises(DataError, match="text 1 is empty"):
        sw.predictor(tmp_path / "model").predict(["a", ""])
    with pytest.raises(InputError, match="a language model reads texts"):
        sw.predictor(tmp_path / "model").predict(np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"stream them with sw\.generate"):
        sw.predictor(tmp_path / "model").stream()


def test_texts_of_a_classifier_of_documents(tmp_path: Path) -> None:
    """The ids are those that the task read, cut and ended alike."""
    rng = np.random.default_rng(0)
    for i in range(40):
        (folder := tmp_path / "documents" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.txt").write_text("".join(rng.choice(list("xyzü " * (1 + i % 2)), 10 + i)), "utf-8")
    data = sw.LongRangeDataConfig(task="text-folder", folder=str(tmp_path / "documents"), max_length=30)
    model = sw.SequenceClassifierConfig(n_classes=2, vocab_size=258, d_model=16, layers=LAYERS)
    train_run(sw.RunConfig(model=model, data=data, train=train_config(batch_size=8, steps=2)), tmp_path / "run")
    predictor = sw.predictor(tmp_path / "run")
    texts = [path.read_text("utf-8") for path in sorted((tmp_path / "documents").rglob("*.txt"))]
    split = sw.open_long_range(data).split("train")
    own = {tuple(row[row > 0]) for row in (split.sequence(i) for i in range(len(split)))}
    asked = {tuple(row) for row in predictor.rows(texts)}
    assert own <= asked
    answers = predictor.predict(texts)
    assert isinstance(answers, Classes)
    assert (len(answers), answers.names) == (40, ("a", "b"))
    characters = {"encoding": "characters", "vocabulary": ("<pad>", "<unk>", "<eos>", "x", "y"), "max_length": 4}
    reader = classifier(d_input=None, vocab_size=5, text=TextInputConfig(**characters))  # type: ignore[arg-type]
    assert [row.tolist() for row in sw.predictor(reader).rows(["xyxy", "yü"])] == [[3, 4, 3, 2], [4, 1, 2]]
    assert len(sw.predictor(reader).predict("xy")) == 1
    for wrong, said in (
        ({"vocab_size": 4, "text": TextInputConfig(**characters)}, "text has 5 tokens, but vocab_size=4"),  # type: ignore[arg-type]
        ({"d_input": 2, "text": TextInputConfig(encoding="bytes", max_length=9)}, "but vocab_size=None"),
    ):
        with pytest.raises(ConfigError, match=said):
            classifier(**{"d_input": None, **wrong})
    with pytest.raises(ConfigError, match='give one with "characters"'):
        TextInputConfig(encoding="characters", max_length=9)
    with pytest.raises(InputError, match="x has texts, but this model reads tokens"):
        sw.predictor(classifier(d_input=None, vocab_size=4)).predict(["a"])


@pytest.mark.parametrize(
    ("x", "lengths", "said"),
    [
        (np.zeros((3, 20)), None, r"x has the shape \(3, 20\); expected \(n, length, 2\).*one row is \[row\]"),
        ([np.zeros((3, 1))], None, r"row 0 has the shape \(3, 1\); expected \(length, 2\): 2 numbers a step"),
        ([np.zeros((3, 2)), np.zeros((0, 2))], None, "row 1 has 0 steps; give it at least 1"),
        ([np.zeros((3, 2), complex)], None, "row 0 is complex128; expected real numbers"),
        ([[[1, 2], [3]]], None, "row 0 is not an array of numbers"),
        (["a text"], None, "x has texts, but this model reads numbers"),
        ({1: 2}, None, "x is a dict; give an array"),
        ([], None, "x has no rows"),
        (np.zeros((2, 5, 2)), [5], r"lengths is int64 \(1,\); expected an integer for each of 2 rows"),
        (np.zeros((2, 5, 2)), [5, 6], r"lengths\[1\] is 6; expected 1 to 5"),
        (np.full((2, 5, 2), np.nan), None, "x holds NaN, and Mamba2 layers know of no gaps"),
    ],
)
def test_what_is_no_row_is_refused_in_a_line(x: Any, lengths: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        sw.predictor(classifier(input=SCALED)).predict(x, lengths=lengths)
    assert "\n" not in str(caught.value)


def test_models_that_are_asked_otherwise() -> None:
    forecaster = sw.ForecasterConfig(horizon=3, d_model=16, layers=LAYERS).build()
    with pytest.raises(InputError, match="a Forecaster forecasts; use forecast"):
        sw.predictor(forecaster).rows(np.zeros((1, 5, 1)))
    with pytest.raises(InputError, match="a SequenceClassifier does not forecast; use predict"):
        sw.predictor(classifier()).forecast(np.zeros((5, 2)))
    with pytest.raises(InputError, match="it compares two sequences"):
        sw.predictor(built(PairClassifierConfig, n_classes=2))
    with pytest.raises(InputError, match=r"this model has no state: .*; give it whole rows"):
        sw.predictor(classifier(input=InputConfig(scaling="series"))).stream()
