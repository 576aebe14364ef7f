"""A trained classifier of raw numbers in onnxruntime: whole rows and streams, beside the model and its predictor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_onnxruntime import Loaded, difference
from training_runs import train_config

import statewise as sw
from statewise.cli.commands.export import export
from statewise.data import LabelledDataConfig
from statewise.training import RunConfig, train_run

for package in ("onnx", "onnxscript", "onnxruntime", "sklearn"):
    pytest.importorskip(package, reason='needs pip install "statewise[onnx,estimators]"')

ULPS = 2.0**-23  # of float32, relative
OFFSET = 1000.0


def ulps(got: Any, want: Any) -> float:
    """In last places of the largest logit."""
    found = difference(got, want) / ULPS
    print(f"{found:.1f} units in the last place")
    return found


def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits, pixel after pixel, far from mean 0: (1797, 64, 1)."""
    from sklearn.datasets import load_digits

    found = load_digits()
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    return found.images.reshape(-1, 64, 1) / 4 + OFFSET, names[found.target]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    x, y = digits()
    np.savez(folder / "digits.npz", train_x=x[:1500], train_y=y[:1500], test_x=x[1500:], test_y=y[1500:])
    layer = sw.BlockConfig(mixer=sw.S4DConfig(d_state=16, dt_range=(1e-2, 1e-1)), mlp=sw.MLPConfig(expand=2))
    model = sw.SequenceClassifierConfig(n_classes=10, d_input=1, d_model=16, layers=(layer,))
    data = LabelledDataConfig(source="arrays", folder=str(folder / "digits.npz"))
    train_run(RunConfig(model=model, data=data, train=train_config(steps=150, batch_size=50, lr=3e-2)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def model(run: Path) -> Any:
    return sw.load(run).eval()


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Written by the command."""
    path = tmp_path_factory.mktemp("whole") / "digits.onnx"
    export(run, path, part=None, batch=None, which="best")
    return Loaded(path)


def test_answers_of_a_trained_model(model: Any, whole: Loaded, run: Path) -> None:
    """Its names and numbers on data that it has not seen, as its predictor gives them."""
    x, names = digits()
    x, names = x[1500:], names[1500:]
    found = whole(x=x, lengths=np.full(len(x), 64))
    with torch.no_grad():
        want = model(torch.from_numpy(x))[0].numpy()
    assert ulps(found["logits"], want) < 16
    np.testing.assert_allclose(found["probabilities"].sum(1), 1, rtol=1e-6)
    classes = np.array(json.loads(whole.metadata["statewise.classes"]))
    labels = classes[found["probabilities"].argmax(1)]
    assert (labels == names).mean() > 0.3  # of ten, after a few steps of training: well above chance
    assert (labels == sw.predictor(run).predict(x).labels).all()


def test_ragged_rows_in_batches_of_any_size(model: Any, whole: Loaded) -> None:
    rng, x = np.random.default_rng(0), digits()[0]
    for lengths in ([1], [64, 1, 2, 31, 32, 33, 63], [5] * 3, rng.integers(1, 65, 40)):
        n = np.array(lengths)
        rows = np.full((len(n), n.max(), 1), np.nan)  # padding may hold anything
        for row, digit, length in zip(rows, x, n):
            row[:length] = digit[:length]
        with torch.no_grad():
            want = model(torch.from_numpy(rows), lengths=torch.from_numpy(n))[0]
        assert ulps(whole(x=rows, lengths=n)["logits"], want) < 16
    long = np.tile(x[:2], (1, 20, 1))
    with torch.no_grad():
        want = model(torch.from_numpy(long))[0]
    assert ulps(whole(x=long, lengths=np.full(2, 1280))["logits"], want) < 16


def test_numbers_stored_in_float32(model: Any, whole: Loaded) -> None:
    """The file scales in float64 what it is given, the model in float32 where float32 is what it is given."""
    x = digits()[0][:50].astype(np.float32)
    with torch.no_grad():
        want, exact = model(torch.from_numpy(x))[0], model(torch.from_numpy(x).double())[0]
    got = whole(x=x.astype(np.float64), lengths=np.full(50, 64))["logits"]
    assert ulps(got, exact) < 16
    assert difference(got, want) < 2 * OFFSET * ULPS


def test_what_the_file_says(model: Any, whole: Loaded) -> None:
    assert whole.metadata["statewise.part"] == "whole"
    assert json.loads(whole.metadata["statewise.inputs"]) == [
        {"name": "x", "shape": ["batch", "length", 1], "dtype": "float64"},
        {"name": "lengths", "shape": ["batch"], "dtype": "int64"},
    ]
    assert json.loads(whole.metadata["statewise.outputs"]) == ["logits", "probabilities"] == whole.outputs
    assert json.loads(whole.metadata["statewise.classes"]) == list(model.config.classes)
    assert json.loads(whole.metadata["statewise.input"])["scaling"] == "dataset"
    assert [given.shape for given in whole.session.get_inputs()] == [["batch", "length", 1], ["batch"]]


def test_no_file_of_this_machine_is_named(run: Path, whole: Loaded) -> None:
    """PyTorch's exporter writes the lines of source that each operator is from."""
    text = Path(whole.session._model_path).read_bytes()
    assert b"/statewise/" not in text
    assert b"stack_trace" not in text


@pytest.mark.slow  # the page in docs has a stream too
def test_pieces_as_they_arrive(model: Any, run: Path, tmp_path: Path) -> None:
    """Rows of unlike speed, a piece without a step among them, one step at a time, and the model's own state."""
    sw.export_onnx(model, tmp_path / "stream.onnx", part="stream")
    stream, x = Loaded(tmp_path / "stream.onnx", batch=3), digits()[0][:3]
    read = np.zeros(3, int)
    for lengths in ([7, 1, 30], [33, 0, 1], [1, 1, 1], [1, 40, 20]):
        piece = np.full((3, max(lengths), 1), np.inf)
        for i, n in enumerate(lengths):
            piece[i, :n] = x[i, read[i] : read[i] + n]
        read += lengths
        found = stream(x=piece, lengths=np.array(lengths))
        with torch.no_grad():
            want = model(torch.from_numpy(x[:, : read.max()]), lengths=torch.from_numpy(read))[0]
        assert ulps(found["logits"], want) < 16
    assert stream.state["position"].tolist() == read.tolist()
