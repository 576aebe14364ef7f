"""``reproduce h3-language``: matched models, the tokenizer, the rate, the rule for equal, and the whole, tiny."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training import train_config

from statewise.data.tokenizers import FileTokenizer
from statewise.errors import ConfigError, DivergedError, TrainingError
from statewise.mixers.attention import AttentionConfig
from statewise.reproduce import find, reproduce, settings
from statewise.reproduce.h3_language.models import LABELS, PUBLISHED, attention_places, build_config, n_parameters
from statewise.reproduce.h3_language.order import EQUAL, REVERSED, T_95, UNKNOWN, chain, compare_order, margin
from statewise.reproduce.h3_language.report import Found
from statewise.reproduce.h3_language.report import report as make_report
from statewise.reproduce.h3_language.runs import H3LanguageSettings, run_config, train_and_test, train_tokenizer
from statewise.reproduce.progress import Watcher
from statewise.reproduce.report import markdown
from statewise.reproduce.training import choose_rate
from statewise.train import RunConfig
from statewise.train.loop import train
from statewise.train.report import Reporter

needs_plot = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot")


class TestModels:
    def test_parameters_match(self) -> None:
        config = H3LanguageSettings()
        counts = {name: n_parameters(build_config(name, config.sizes)) for name in LABELS}
        assert max(counts.values()) / min(counts.values()) < 1.03
        assert all(abs(count / counts["transformer"] - 1) < 0.03 for count in counts.values())
        assert 0.9e6 < counts["transformer"] < 1.3e6

    @pytest.mark.parametrize("name", LABELS)
    def test_counts_are_of_the_built_model(self, name: str) -> None:
        config = build_config(name, settings("h3-language", quick=True).sizes)
        assert n_parameters(config) == sum(p.numel() for p in config.build().parameters())

    def test_what_they_are_made_of(self) -> None:
        config = H3LanguageSettings()
        for name in LABELS:
            model = build_config(name, config.sizes)
            attention = [i for i, block in enumerate(model.blocks) if isinstance(block.mixer, AttentionConfig)]
            expected = {"transformer": [*range(8)], "h3-hybrid": [1, 5], "gss-hybrid": [1, 5]}.get(name, [])
            rotary = name == "transformer-rotary"
            assert attention == ([*range(8)] if rotary else expected)
            assert {model.blocks[i].mixer.positions for i in attention} <= {"rotary" if rotary else None}  # type: ignore[attr-defined]
            assert model.max_positions == (config.length if name == "transformer" else None)
            bare = name.startswith("mamba")
            assert {block.norm for block in model.blocks} == {"rms" if bare else "layer"}
            assert all((block.mlp is None) == bare for block in model.blocks)
            assert model.tie_embeddings
        assert attention_places(12) == (1, 7)

    def test_projections_begin_alike_at_any_width(self) -> None:
        """The standard deviation of an output, std sqrt(d_model), is that of 0.02 at 768; a given one is taken."""
        assert H3LanguageSettings().sizes.weight_std * 96**0.5 == pytest.approx(0.02 * 768**0.5)
        for config, std in ((H3LanguageSettings(), 0.0566), (H3LanguageSettings(weight_std=0.02), 0.02)):
            for block in build_config("h3-hybrid", config.sizes).blocks:
                assert block.mixer.weight_std == pytest.approx(std, rel=1e-3)  # type: ignore[attr-defined]
                assert block.mlp is not None
                assert block.mlp.weight_std == pytest.approx(std, rel=1e-3)

    def test_sizes_that_cannot_match(self) -> None:
        with pytest.raises(ConfigError, match=r"^h3 comes no nearer than \+.*d_state=512"):
            H3LanguageSettings(models=("h3",), d_model=24, d_state=512)


class TestTokenizer:
    TEXT = "the theatre then, the other thing\n" * 40 + "naïve — œuvre\n"

    def test_any_text_comes_back(self) -> None:
        made = train_tokenizer(self.TEXT, 280)
        assert made == train_tokenizer(self.TEXT, 280)
        tokenizer = FileTokenizer(made)
        assert tokenizer.vocab_size == 280
        for text in (self.TEXT, "  \n\n\tÆ <|endoftext|> 漢字 \x00"):
            tokens = tokenizer.encode(text)
            assert tokenizer.decode(tokens) == text
            assert tokenizer.document_token not in tokens
        assert len(tokenizer.encode("the theatre")) < 6

    def test_refused(self) -> None:
        with pytest.raises(ConfigError, match="vocab_size=256 is too small"):
            train_tokenizer(self.TEXT, 256)
        with pytest.raises(ConfigError, match="vocab_size=5000 is too large for the text, which gives"):
            train_tokenizer(self.TEXT, 5000)


class TestOrder:
    @given(st.lists(st.floats(1, 100), min_size=2, max_size=5), st.lists(st.floats(1, 100), min_size=2, max_size=5))
    def test_rule_is_the_t_test(self, a: list[float], b: list[float]) -> None:
        stats = pytest.importorskip("scipy.stats")
        if statistics.pstdev(a) + statistics.pstdev(b) < 1e-3:
            return
        p = stats.ttest_ind(a, b).pvalue
        if abs(p - 0.05) < 1e-3:
            return
        assert (abs(statistics.fmean(a) - statistics.fmean(b)) < margin(a, b)) == (p > 0.05)

    def test_points_of_t(self) -> None:
        stats = pytest.importorskip("scipy.stats")
        assert [round(float(stats.t.ppf(0.975, df)), 3) for df in range(1, 11)] == list(T_95)

    def test_one_seed_has_no_spread(self) -> None:
        assert margin([1.0], [2.0]) is None
        ours = {"h3": [5.0], "s4d": [3.0], "mamba": [1.0]}
        assert [pair.verdict for pair in compare_order(PUBLISHED, ours)] == [UNKNOWN]
        assert chain(ours, LABELS) == "Mamba 1.00, S4D 3.00, H3 5.00"
        assert margin([1.0, 1.2], [2.0]) > 0

    def test_pairs_and_chain(self) -> None:
        ours = {"s4d": [3.0, 3.1, 3.2], "h3": [5.0, 5.1, 5.2], "gss": [3.1, 3.2, 3.3], "mamba": [1.0, 1.1, 1.2]}
        pairs = {(p.better, p.worse): p.verdict for p in compare_order(PUBLISHED, ours)}
        assert pairs == {("h3", "gss"): REVERSED, ("h3", "s4d"): REVERSED, ("gss", "s4d"): EQUAL}
        assert chain(ours, LABELS) == "Mamba 1.10 < S4D 3.10 = GSS 3.20 < H3 5.10"

    def test_published_order_is_its_own(self) -> None:
        pairs = compare_order(PUBLISHED, {name: [value, value + 0.01] for name, value in PUBLISHED.items()})
        assert len(pairs) == 15
        assert {pair.verdict for pair in pairs} == {"as published"}


class TestRate:
    def test_the_best_that_did_not_diverge(self) -> None:
        tuned: dict[float, Any] = {
            1e-3: {"diverged": None, "validation_loss": 3.0},
            2e-3: {"diverged": None, "validation_loss": 2.0},
            4e-3: {"diverged": "step 3: the loss is nan"},
        }
        assert choose_rate(tuned) == 2e-3
        assert choose_rate({4e-3: tuned[4e-3]}) is None

    def test_the_runs_differ_in_nothing_else(self, tmp_path: Path) -> None:
        config = H3LanguageSettings()
        a, b = (run_config(config, tmp_path, name, 1e-3, 0, 1.0) for name in ("h3", "mamba"))
        assert (a.train, a.data) == (b.train, b.data)
        steps = a.train.budget.steps
        assert steps is not None
        assert 2e6 <= steps * a.train.batch_size * config.length < 2.01e6
        part = run_config(config, tmp_path, "h3", 1e-3, 0, 0.25)
        assert part.train.budget.steps == math.ceil(steps / 4)


class TestSettings:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"models": ("h3", "h4")}, "models.1='h4' is unknown; did you mean 'h3'"),
            ({"learning_rates": (0.0,)}, r"learning_rates\.0=0\.0"),
            ({"test_tokens": 1}, "test_tokens=1 is out of range; expected an integer of at least 2"),
            ({"warmup": -1.0}, r"warmup=-1\.0"),
            ({"weight_decay": -1.0}, "weight_decay"),
            ({"n_layers": 2}, "n_layers"),
            ({"tolerance": -1.0}, r"tolerance=-1\.0"),
            ({"n_heads": 5}, "n_heads"),
            ({"d_state": 3}, "d_state"),
        ],
    )
    def test_refused(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            H3LanguageSettings(**fields)

    def test_listed(self) -> None:
        assert find("h3-language").full() == H3LanguageSettings()
        changed = settings("h3-language", quick=True, assignments=["seeds=[3]", "source=shakespeare"])
        assert changed.seeds == (3,)


WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "ships", "sail", "home", "again")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words in a random order, in one file."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    order = torch.randint(len(WORDS), (6000,), generator=torch.Generator().manual_seed(0)).tolist()
    lines = [" ".join(WORDS[i] for i in order[k : k + 10]) + ".\n" for k in range(0, len(order), 10)]
    path.write_text("".join(lines))
    return path


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
            return train(config, folder, **options)

        monkeypatch.setattr("statewise.reproduce.training.train", fail_for_one)
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

        monkeypatch.setattr("statewise.reproduce.training.train", fail)
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
        from statewise.train.tasks import open_task

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
        from statewise.train.presets import digits

        run = digits()
        with pytest.raises(ConfigError, match=r"evaluate_window=4 is for text, not for LabelledDataConfig"):
            RunConfig(model=run.model, data=run.data, train=train_config(steps=1, evaluate_window=4))
        with pytest.raises(ConfigError, match="evaluate_window=0"):
            train_config(steps=1, evaluate_window=0)
