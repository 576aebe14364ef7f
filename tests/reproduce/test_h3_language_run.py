"""``reproduce h3-language`` as a whole: its parts, stopped and gone on with."""

from __future__ import annotations

import json
import math
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import train_config

from statewise.errors import ConfigError, DivergedError, TrainingError
from statewise.reproduce import reproduce, settings
from statewise.reproduce.h3_language.models import LABELS
from statewise.reproduce.h3_language.report import Found
from statewise.reproduce.h3_language.report import report as make_report
from statewise.reproduce.h3_language.runs import H3LanguageSettings, train_and_test
from statewise.reproduce.progress import Watcher
from statewise.reproduce.report import markdown
from statewise.training import RunConfig
from statewise.training.loop import train_run
from statewise.training.report import Reporter


def smallest(text: Path, **fields: Any) -> Any:
    assigned = {
        "source": str(text),
        "models": ["h3-hybrid", "transformer", "mamba2"],
        "vocab_size": 272,
        "d_model": 16,
        "n_layers": 3,
        "tolerance": 0.5,
        "tokens": 256,
        "length": 16,
        "batch_size": 4,
        "tuning_share": 0.5,
        "evaluate_tokens": 64,
        "test_tokens": 200,
        "workers": 1,
        **fields,
    }
    return settings("h3-language", quick=True, assignments=[f"{k}={json.dumps(v)}" for k, v in assigned.items()])


class StopAfter(Watcher):
    """Ctrl-C after so many parts that were computed; keeps what was found done."""

    def __init__(self, n_parts: int | None = None) -> None:
        self.n_parts, self.found = n_parts, list[str]()

    def event(self, record: Any) -> None:
        if record["kind"] == "part" and record["found"]:
            self.found.append(record["part"])
        if record["kind"] == "part" and record["done"] == self.n_parts:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
class TestWhole:
    def test_all_have_a_row(self, text: Path, tmp_path: Path) -> None:
        config = smallest(text, models=[*LABELS], learning_rates=[1e-2], seeds=[0], tokens=128, tuning_share=1.0)
        outcome = reproduce("h3-language", tmp_path / "run", config, plots=False)
        assert outcome.record is not None
        results, rates, order = outcome.record["tables"]
        assert [row[0] for row in results["rows"]] == list(LABELS.values())
        assert [row[1] for row in results["rows"][:2]] == ["19.6", "19.8"]
        assert len(rates["rows"]) == 9
        assert len(order["rows"]) == 15
        figures = outcome.record["figures"]
        for name, found in figures["perplexities"].items():
            assert 2 < found[0] < 400, name
            run = figures["models"][name]["seeds"]["0"]
            assert run["tokens"] == 128
            assert run == figures["models"][name]["tuning"]["0.01"]  # at the full budget it is the first seed's run
            test = run["evaluations"]["test"]
            assert run["perplexity"] == pytest.approx(math.exp(test["nats"] / test["n_tokens"]))
            assert run["bits_per_byte"] == pytest.approx(test["nats"] / math.log(2) / test["n_bytes"])
            assert [step for step, _ in run["curve"]] == [1, 2]
        assert order["title"] == "The order of each two: unknown, of one seed"
        assert {tuple(row[3:]) for row in order["rows"]} == {("-", "unknown")}
        assert "With one seed the spread is unknown" in order["notes"][-1]
        assert (figures["as_published"], figures["equal"], figures["reversed"]) == (0, 0, 0)

    def test_stopped_and_continued(self, text: Path, tmp_path: Path) -> None:
        config = smallest(text)
        whole = reproduce("h3-language", tmp_path / "whole", config, plots=False)
        folder = tmp_path / "run"
        for n_parts in (1, 4, 8):  # after the text, while the rates are tried, among the seeds
            stopped = reproduce("h3-language", folder, config, plots=False, watcher=StopAfter(n_parts))
            assert stopped.exit_code == 130
        watcher = StopAfter()
        outcome = reproduce("h3-language", folder, config, plots=find_spec("matplotlib") is not None, watcher=watcher)
        assert len(watcher.found) == 8
        assert whole.record is not None
        assert outcome.record is not None
        assert outcome.record["figures"]["perplexities"] == whole.record["figures"]["perplexities"]
        assert outcome.record["figures"]["order"] == whole.record["figures"]["order"]
        assert all(Path(folder, name).stat().st_size > 1000 for name in outcome.record["plots"])

    def test_a_diverged_run_is_a_row(self, text: Path, tmp_path: Path) -> None:
        config = smallest(text, models=["transformer", "h3"], learning_rates=[1e-2], tuning_share=1.0)
        outcome = reproduce("h3-language", tmp_path / "run", config, plots=False)
        assert outcome.report is not None
        models = outcome.report.figures["models"]
        models["h3"]["seeds"]["1"] = {"diverged": "step 2: the loss is nan"}
        report = make_report(config, Found(outcome.report.figures["text"], models))
        assert report.figures["perplexities"].keys() == {"transformer"}
        row = next(row for row in report.tables[0].rows if row[0] == "H3")
        assert row[2] == "diverged"
        assert row[4].endswith("diverged")
        page = markdown(report, {"date": "", "seconds": 0.0, "environments": [], "settings": {}}, [])
        assert "0 of 0 as published" in page

    @pytest.mark.parametrize("share", [1.0, 0.5])
    def test_a_model_that_diverges_at_every_rate_is_a_row(
        self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
    ) -> None:
        def fail_for_one(config: RunConfig, folder: Path, **options: Any) -> Any:
            if "h3" in Path(folder).name:
                raise DivergedError("step 1; begin anew", "step 1")
            return train_run(config, folder, **options)

        monkeypatch.setattr("statewise.reproduce.training.train_run", fail_for_one)
        config = smallest(text, models=["transformer", "h3"], learning_rates=[1e-2, 2e-2], tuning_share=share)
        for _ in range(2):  # the same command again finds all done
            outcome = reproduce("h3-language", tmp_path / "run", config, plots=False)
            assert outcome.report is not None
            figures = outcome.report.figures
            assert figures["perplexities"].keys() == {"transformer"}
            assert (figures["models"]["h3"]["learning_rate"], figures["models"]["h3"]["seeds"]) == (None, {})
            row = next(row for row in outcome.report.tables[0].rows if row[0] == "H3")
            assert row[2:7] == ("diverged", "-", "-", "-", "-")
            assert outcome.report.tables[1].rows[1][1:] == ("diverged", "diverged", "-")

    def test_how_the_projections_begin_is_told_wherever_there_are_mlps(self, text: Path) -> None:
        for models, told in ((("mamba", "mamba2"), False), (("s4d",), True), (("gss-hybrid",), True)):
            config = H3LanguageSettings(models=models)
            entry = {"parameters": 1, "seeds": {}, "tuning": {}, "learning_rate": None, "sizes": ""}
            found = {"n_bytes": 1, "splits": {name: {"bytes": 1, "tokens": 1} for name in ("train", "test")}}
            report = make_report(config, Found(found, dict.fromkeys(models, entry)))
            assert any("begin with a standard deviation of 0.0566" in line for line in report.differences) == told

    def test_it_says_nothing_of_what_was_not_run(self, text: Path, tmp_path: Path) -> None:
        config = smallest(text, models=["transformer", "mamba"], learning_rates=[1e-2], tuning_share=1.0, seeds=[0])
        report = reproduce("h3-language", tmp_path / "run", config, plots=False).report
        assert report is not None
        assert report.title == "Language models as in H3's paper"
        said = " ".join([report.setting, *report.differences])
        for word in ("ybrid", "GSS", "S4D", "Mamba-2", "seeds", "the best", "a hundred times", " 0.0 "):
            assert word not in said
        assert "Mamba, here with RMSNorm" in said
        assert "of the text is trained on" in said

    @pytest.mark.parametrize("error", [TrainingError("max_items=0"), DivergedError("step 1; begin anew", "step 1")])
    def test_only_divergence_is_a_result(
        self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TrainingError
    ) -> None:
        def fail(*arguments: Any, **options: Any) -> None:
            raise error

        monkeypatch.setattr("statewise.reproduce.training.train_run", fail)
        arguments = (smallest(text), str(tmp_path), "transformer", 1e-2, 0, 1.0, Reporter())
        if isinstance(error, DivergedError):
            assert train_and_test(*arguments) == {"diverged": "step 1"}
        else:
            with pytest.raises(TrainingError, match="max_items=0"):
                train_and_test(*arguments)


class TestEvaluateWindow:
    def test_models_are_read_alike(self, text: Path, tmp_path: Path) -> None:
        """With a window the loss of a recurrent model is that of windows from rest, as of attention."""
        from statewise.data.text import TextDataConfig
        from statewise.evaluate.text.perplexity import evaluate_split
        from statewise.mixers.mamba2 import Mamba2Config
        from statewise.models.evaluation_mode import evaluation_mode
        from statewise.models.language_model import LanguageModelConfig
        from statewise.training.tasks import open_task

        model = LanguageModelConfig(vocab_size=257, d_model=16, layers=(Mamba2Config(d_state=8, d_head=8),))
        losses = {}
        torch.manual_seed(0)
        built = model.build()
        for window in (None, 16):
            train = train_config(steps=1, batch_size=1, length=16, evaluate_items=200, evaluate_window=window)
            task = open_task(RunConfig(model=model, data=TextDataConfig(source=str(text)), train=train))
            with evaluation_mode(built), torch.no_grad():
                losses[window] = task.validate(built)["loss"]
                split = task.corpus.split("validation")  # type: ignore[attr-defined]
                options: dict[str, Any] = {} if window is None else {"window": 16, "stride": 16}
                found = evaluate_split(built, split, task.tokenizer, max_tokens=200, **options)
            assert losses[window] == pytest.approx(found.nats / found.n_tokens, abs=1e-6)
        assert losses[None] != losses[16]

    def test_only_for_text(self) -> None:
        from statewise.training.presets.tuned import digits

        run = digits()
        with pytest.raises(ConfigError, match=r"evaluate_window=4 is for text, not for LabelledDataConfig"):
            RunConfig(model=run.model, data=run.data, train=train_config(steps=1, evaluate_window=4))
        with pytest.raises(ConfigError, match="evaluate_window=0"):
            train_config(steps=1, evaluate_window=0)
