"""sw.train: from an array to a trained, saved, predicting model; and everything else that it takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import Recorder, curve, weights

import statewise as sw
from statewise import cli
from statewise.errors import CheckpointError, ConfigError, DataError, InputError, StatewiseError
from statewise.training import read_run

RNG = np.random.default_rng(0)
Y = np.repeat(["low", "high"], 30)
X = (RNG.normal(size=(60, 20)) + 3 * (Y == "high")[:, None]).astype(np.float32)
TINY = sw.SequenceClassifierConfig(n_classes=2, d_input=1, d_model=8, layers=(sw.S4DConfig(d_state=4),))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))


def train(data: Any = (X, Y), model: Any = TINY, **more: Any) -> Any:
    return sw.train(model, data, **{"steps": 2, **more})


def test_a_list_of_configs_is_set() -> None:
    run = sw.train("tiny", None, steps=1, set={"model.layers": [sw.MambaConfig(d_state=4)]}, out="run")
    assert run.model.config.layers == (sw.MambaConfig(d_state=4),)


class TestRun:
    def test_ten_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = sw.train("classifier", (X, Y), steps=30, out="run")
        assert capsys.readouterr().out == ""
        assert (run.folder, run.step, run.stopped, run.metric) == (Path("run"), 30, False, "accuracy")
        assert run.evaluate("test")["accuracy"] == 1.0
        assert run.predict(X).labels.tolist() == Y.tolist()
        assert run.model.config.classes == ("high", "low")
        assert [line["step"] for line in run.metrics if line["kind"] == "train"] == [10, 20, 30]
        assert cli.run(["evaluate", "run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["loss"] == run.evaluate("test")["loss"]
        np.save("new.npy", X[:3])
        assert cli.run(["predict", "run", "new.npy"]) == 0
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["class"] for row in answers] == ["low"] * 3

    def test_a_stopped_run_goes_on_elsewhere_bit_for_bit(self) -> None:
        """Stopped by a callback, moved with its data, resumed by the command line."""
        whole = train(steps=6, out="whole", set={"train.reporting.log_every": 1})
        stopped = train(
            steps=6,
            out="stopped",
            set={"train.reporting.log_every": 1},
            callbacks=lambda record: record["kind"] == "train" and record["step"] == 3,
        )
        assert (stopped.step, stopped.stopped, stopped.signal, stopped.exit_code) == (3, True, None, 0)
        assert not whole.stopped
        shutil.move("stopped", "moved")
        assert '"{run}/data/arrays.npz"' in Path("moved/run.json").read_text()
        assert cli.run(["train", "--resume", "moved"]) == 0
        assert weights(Path("moved"), 6) == weights(Path("whole"), 6)
        assert curve(Path("moved")) == curve(Path("whole"))

    def test_a_run_begins_in_the_next_free_folder(self) -> None:
        assert [train(model=None).folder for _ in range(2)] == [Path("runs/run-1"), Path("runs/run-2")]
        assert train(model="classifier").folder == Path("runs/classifier-1")

    def test_a_configuration_of_it_trains_elsewhere(self) -> None:
        first = train(out="first")
        assert cli.run(["train", "--config", "first/run.json", "--out", "second"]) == 0
        assert weights(Path("second"), 2) == weights(first.folder, 2)

    def test_fields(self) -> None:
        run = train(
            set={"train.schedule.warmup": 0.5, "train.optimizer": sw.OptimizerConfig(lr=1e-2)}, seed=3, batch_size=5
        )
        config = read_run(run.folder).train
        assert (config.schedule.warmup, config.optimizer.lr, config.seed, config.batch_size) == (0.5, 1e-2, 3, 5)
        assert (config.budget.steps, config.budget.epochs, config.budget.minutes) == (2, None, None)
        epochs = sw.train(TINY, (X, Y), epochs=0.5)
        assert epochs.step == 6  # of 11 batches

    def test_a_whole_configuration(self) -> None:
        first = train()
        config = read_run(first.folder)
        assert weights(sw.train(config, out="again").folder, 2) == weights(first.folder, 2)
        other = sw.train(config, (X + 1, Y), out="other")
        assert read_run(other.folder).data.folder == str(Path("other/data/arrays.npz").absolute())  # type: ignore[attr-defined]

    def test_a_preset_without_data(self) -> None:
        run = sw.train("delay", steps=1, set={"data.n_train": 64, "data.n_validation": 8, "data.n_test": 8})
        assert not (run.folder / "data").exists()


def test_whole_numbers_of_several_columns_train_as_floats_do() -> None:
    y = np.stack([np.arange(60), 60 - np.arange(60)], 1)
    runs = [sw.train("regressor", (X, own), steps=2) for own in (y, y.astype(float))]
    assert weights(runs[0].folder, 2) == weights(runs[1].folder, 2)
    assert runs[0].predict(X[:3]).values.shape == (3, 2)
    for model in ("classifier", None):
        with pytest.raises(DataError, match=r"expected \(60,\); to predict several numbers say --set data.task=regr"):
            sw.train(model, (X, y), steps=2, out="other")
    assert not Path("other").exists()


class TestParameters:
    def test_fine_tuning_begins_with_them(self) -> None:
        first = train(steps=20, lr=1e-2)
        before = {name: tensor.clone() for name, tensor in first.model.state_dict().items()}
        for model in (first.folder, str(first.checkpoint), first.model):
            run = train((X[::2], Y[::2]), model, steps=1, lr=1e-12)
            for name, tensor in run.model.state_dict().items():
                torch.testing.assert_close(tensor, before[name], rtol=0, atol=1e-9)
            assert run.model.config.input == first.model.config.input, "its scaling stays"
            assert '"{run}/initial/model"' in (run.folder / "run.json").read_text()
        assert all(torch.equal(tensor, before[name]) for name, tensor in first.model.state_dict().items())
        shutil.rmtree(first.folder)
        assert cli.run(["train", "--resume", str(run.folder), "--steps", "2"]) == 0

    def test_on_the_command_line(self) -> None:
        first = train(steps=20, lr=1e-2)
        words = ["train", "--config", str(first.folder / "run.json"), "--set", f"train.initial={first.folder}"]
        assert cli.run([*words, "--steps", "1", "--lr", "1e-12", "--out", "tuned"]) == 0
        torch.testing.assert_close(sw.load("tuned").head.weight, first.model.head.weight, rtol=0, atol=1e-9)
        assert cli.run([*words, "--set", "train.initial=nowhere", "--out", "other"]) == 2
        assert not Path("other/run.json").exists()

    def test_a_model_in_another_precision(self) -> None:
        model = TINY.build().bfloat16()
        run = train(model=model)
        assert run.model.head.weight.dtype == torch.float32
        assert model.head.weight.dtype == torch.bfloat16

    def test_a_language_model_brings_its_tokenizer(self) -> None:
        layers = (sw.MambaConfig(d_state=4),)
        config = sw.LanguageModelConfig(vocab_size=300, d_model=8, layers=layers)
        texts = [f"the state of number {i} is all that is kept" for i in range(200)]
        small = {"train.length": 16, "data.tokenizer": "bpe:300", "train.precision": "float32"}
        first = sw.train(config, texts, steps=1, set=small)
        more = sw.train(first.folder, texts[:100], steps=1, set={"train.length": 16})
        assert read_run(more.folder).data.tokenizer.endswith("initial/model/tokenizer.json")  # type: ignore[attr-defined]
        assert more.predict(["a text"]).log_likelihoods < 0

    def test_other_classes_are_refused(self) -> None:
        first = train()
        with pytest.raises(DataError, match="the class 'a' is not one that the model was trained on: high, low"):
            train((X, np.repeat(["a", "b"], 30)), first.folder, out="other")
        assert not Path("other").exists()


class TestCallbacks:
    def test_functions_and_reporters_hear_all(self) -> None:
        recorder, heard = Recorder(), list[Mapping[str, Any]]()
        run = train(callbacks=[recorder, heard.append])
        assert [dict(record) for record in heard] == recorder.events
        assert [record["kind"] for record in heard] == [
            "recognised",
            "start",
            "train",
            "evaluation",
            "checkpoint",
            "end",
        ]
        assert recorder.fractions == [0.5, 1.0]
        assert recorder.closed
        assert "60 rows of arrays; training a classifier of 2 classes for 2 steps" in heard[0]["message"]
        assert run.step == 2

    def test_only_true_stops(self) -> None:
        assert not train(callbacks=lambda record: 1).stopped
        assert train(steps=50, callbacks=lambda record: record["kind"] == "start").step == 0

    def test_an_error_comes_out(self) -> None:
        def prune(record: Mapping[str, Any]) -> None:
            if record["kind"] == "evaluation":
                raise LookupError("pruned")

        with pytest.raises(LookupError, match="pruned"):
            train(callbacks=[prune], out="pruned")
        assert (Path("pruned") / "run.json").exists()

    @pytest.mark.parametrize("wrong", [3, Recorder, "print"])
    def test_wrong_ones(self, wrong: Any) -> None:
        with pytest.raises(InputError, match=r"callbacks\[0\] is (the class Recorder|a int|a str); give a function"):
            train(callbacks=[wrong])

    def test_progress(self, capsys: pytest.CaptureFixture[str]) -> None:
        train(progress=True)
        assert "training a classifier" in capsys.readouterr().out


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"model": "clasifier"}, "did you mean 'classifier'"),
            ({"model": 3}, "model is a int"),
            ({"data": None}, "nothing says what to train on"),
            ({"data": X}, "data are a ndarray; give \\(x, y\\)"),
            ({"data": 7}, "data are a int"),
            ({"data": (X, Y[:3])}, r"y has the shape \(3,\) for 60 rows"),
            ({"data": (X[0], Y)}, r"x has the shape \(20,\).*one row is \[row\]"),
            ({"data": (X, [None] * 60)}, "y is a list; expected 60 classes"),
            ({"data": (X * np.nan, Y)}, "x holds NaN or infinity"),
            ({"data": (X, X[:, 0] * np.inf)}, "y holds NaN or infinity"),
            ({"data": ([X[0], X[:2]], ["a", "b"])}, r"row 1 of x has the shape \(2, 20\), row 0 \(20,\)"),
            ({"data": ([X[0], []], ["a", "b"])}, "row 1 of x is"),
            ({"data": (X, Y, np.full(60, 21))}, "lengths holds 21 to 21; expected 1 to 20"),
            ({"data": {"x": X}}, "the keys x; give x and y"),
            ({"data": {"x": X, "z": Y}}, "the key 'z'"),
            ({"data": (X, X[:, 0]), "model": "classifier"}, 'use the preset "regressor"'),
            ({"data": (X, Y), "model": "regressor"}, 'use the preset "classifier"'),
            ({"data": (X, Y), "model": "language"}, "learns from text, but data is 60 rows of arrays"),
            ({"data": "nothing/here"}, "there is nothing at 'nothing/here'"),
            ({"data": ["a", ""] * 50, "model": "language"}, "text 1 is empty"),
            ({"validation": (X, Y), "data": sw.LabelledDataConfig()}, "validation= is for arrays"),
            ({"set": {"train.lrr": 1}}, "did you mean 'optimizer.lr'"),
            ({"set": {"train.optimiser": sw.OptimizerConfig()}}, "no field 'optimiser'"),
            ({"set": {"model.layers": [object()]}}, "model.layers holds a object; expected numbers, texts, lists and"),
            ({"model": sw.training.TrainConfig}, "model is a"),
        ],
    )
    def test_are_one_line_and_leave_nothing(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(StatewiseError, match=message) as caught:
            train(**{"out": "new", **arguments})
        assert "\n" not in str(caught.value)
        assert not Path("new").exists()

    def test_nothing_is_overwritten(self) -> None:
        train(out="run")
        before = Path("run/data/arrays.npz").read_bytes()
        with pytest.raises(CheckpointError, match="already holds a run"):
            train((X + 1, Y), out="run")
        assert Path("run/data/arrays.npz").read_bytes() == before
        Path("mine").mkdir()
        Path("mine/data").write_text("mine")
        with pytest.raises(CheckpointError, match="not empty"):
            train(out="mine")
        assert Path("mine/data").read_text() == "mine"

    def test_an_empty_folder_stays(self) -> None:
        Path("mine").mkdir()
        with pytest.raises(DataError):
            train((X[:2], ["a", "b"]), out="mine", set={"data.test_fraction": 0.9, "data.folder": "gone.npz"})
        assert not list(Path("mine").glob("[!.]*"))


def test_a_layer_that_reads_a_memory_is_not_trained(tmp_path: Path) -> None:
    layers = (sw.GRUConfig(), sw.ParallelMixersConfig(first=sw.GRUConfig(), second=sw.CrossAttentionConfig(n_heads=2)))
    config = sw.LanguageModelConfig(vocab_size=256, d_model=8, layers=layers)
    (tmp_path / "text.txt").write_text("one and two and three " * 200)
    with pytest.raises(ConfigError, match=r"layers\[1\] reads a memory, .* write the loop yourself"):
        sw.train(config, str(tmp_path / "text.txt"), steps=2, out=tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
