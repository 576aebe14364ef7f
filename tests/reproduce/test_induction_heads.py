"""Reproduction of the long induction heads: settings, asking in parts, what is learned, and what the report says."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from statewise.data.synthetic_languages import LongInductionHeadConfig, open_synthetic_language
from statewise.errors import ConfigError, InputError
from statewise.models.language_model import LanguageModel
from statewise.reproduce import find, reproduce, settings
from statewise.reproduce.induction_heads import (
    HISTORY,
    LENGTHS,
    MODELS,
    PUBLISHED,
    InductionHeadsSettings,
    ask,
    asked_config,
    published,
    run_config,
)
from statewise.reproduce.induction_heads import report as make_report
from statewise.reproduce.report import Report, markdown

PLOTS = find_spec("matplotlib") is not None
CHOICE = LongInductionHeadConfig(vocab_size=3, length=16, test_length=101, n_test=24)


def built(model: str) -> LanguageModel:
    """The model of the reproduction, and a head that names one of two tokens by what is not the same in all rows."""
    config: Any = run_config(InductionHeadsSettings(), model, 0).model
    torch.manual_seed(0)
    made = replace(config, vocab_size=3, embedding_std=1.0, tie_embeddings=False).build().double()
    assert isinstance(made, LanguageModel)
    rows = next(open_synthetic_language(CHOICE).split("test").in_parts(24, 24))
    with torch.no_grad():
        last = made.features(torch.from_numpy(rows.inputs))[0][:, -1]
        mean = torch.nn.functional.normalize(last.mean(0), dim=0)
        direction = last[0] - last[1]
        direction = direction - (direction @ mean) * mean
        made.head.weight.copy_(torch.stack([direction, -direction, 0 * direction]))
    return made


class TestSettings:
    def test_the_full_setting_is_the_published_one_but_for_the_steps(self) -> None:
        config = find("induction-heads").full()
        assert config.lengths == LENGTHS == tuple(2**i for i in range(6, 21))
        for model in MODELS:
            run: Any = run_config(config, model, 1)
            assert (run.data.length, run.data.vocab_size, len(run.model.layers)) == (256, 16, 2)
            assert run.model.d_model == (64 if model == "mamba" else 128)
            assert (run.train.optimizer.weight_decay, run.train.batch_size) == (0, 8)
            assert run.train.budget.stop_at == (None if model == "mamba" else 1.0)
            assert run.data.n_train == run.train.budget.steps * run.train.batch_size  # no row is read twice
            assert config.lengths_of(model)[-1] == (2**14 if model in HISTORY else 2**20)
            assert run.model.max_positions == (2**14 if model == "attention" else None)

    def test_rows_of_the_tests(self) -> None:
        config = InductionHeadsSettings(test_tokens=2**20, n_test=512, attention_rows=100)
        assert [config.n_rows("h3", n) for n in (64, 2048, 4096, 2**20, 2**21)] == [512, 512, 256, 1, 1]
        assert [config.n_rows("rotary", n) for n in (64, 4096, 2**14)] == [100, 100, 64]
        asked = asked_config(config, "mamba", 4096)
        assert (asked.n_test, asked.test_length, asked.vocab_size) == (256, 4096, 16)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"models": ("hyena",), "steps": (1,)}, "use one of: mamba, h3, attention, rotary"),
            ({"steps": (1,)}, "steps=.* differ in length"),
            ({"lengths": (4,)}, "test_length=4"),
            ({"lengths": (2**15,)}, "has none up to attention_to=16384 for 'attention'"),
            ({"warmup": 0.95}, "warmup=0.95"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            InductionHeadsSettings(**changes)


class TestAsking:
    @pytest.mark.parametrize("model", list(MODELS))
    def test_read_in_parts_it_names_the_same(self, model: str) -> None:
        """Beside the definition: all logits of each row, read at once."""
        made = built(model)
        rows = next(open_synthetic_language(CHOICE).split("test").in_parts(24, 24))
        with torch.no_grad():
            named = made(torch.from_numpy(rows.inputs))[0][:, -1].argmax(-1)
        expected = int((named == torch.from_numpy(rows.answers[:, 0])).sum())
        assert 3 < expected < 21
        for tokens_at_once in (70, 250, 2**14):
            assert ask(made, CHOICE, tokens_at_once=tokens_at_once) == {
                "accuracy": expected / 24,
                "right": expected,
                "rows": 24,
            }

    def test_no_more_than_was_asked_for_is_read_at_once(self) -> None:
        made, shapes = built("mamba"), []
        fractions: list[float] = []
        features = made.features

        def counted(tokens: Any, state: Any = None) -> Any:
            shapes.append((tuple(tokens.shape), state is None))
            return features(tokens, state)

        made.features = counted  # type: ignore[method-assign, assignment]
        ask(made, replace(CHOICE, n_test=3), tokens_at_once=64, progress=fractions.append)
        assert shapes == [((1, 64), False), ((1, 36), False)] * 3
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0
        shapes.clear()
        ask(made, replace(CHOICE, n_test=5), tokens_at_once=300)
        assert shapes == [((3, 100), True), ((2, 100), True)]
        with pytest.raises(InputError, match="tokens_at_once=0"):
            ask(made, CHOICE, tokens_at_once=0)


def test_mamba_learns_it_and_reads_on(tmp_path: Path) -> None:
    changes = ['models=["mamba"]', "steps=[160]", "length=16", "lengths=[16,32]", "look_every=80"]
    changes += ["batch_size=32", "bars=true"]
    config = settings("induction-heads", quick=True, assignments=changes)
    record: Any = reproduce("induction-heads", tmp_path / "run", config, plots=PLOTS).record
    asked = record["figures"]["asked"]
    assert asked["mamba-0-16"]["accuracy"] > 0.9
    assert asked["mamba-0-32"]["accuracy"] > 0.5  # chance is 1/15
    assert record["bars"][0]["bar"] == 100
    page = (tmp_path / "run" / "report.md").read_text()
    assert "| 16 | - |" in page  # published is what was trained at 256
    assert "trained at 256 tokens, these at 16" in page
    assert not PLOTS or (tmp_path / "run" / "induction-heads.png").exists()


def test_every_model_in_a_quick_look(tmp_path: Path) -> None:
    changes = ['models=["h3","attention","rotary"]', "steps=[4,4,4]", "length=16", "attention_to=32"]
    changes += ["lengths=[32,16,64]", "look_every=2", "n_test=8", "seeds=[3,4]", "batch_size=4", "n_validation=8"]
    config = settings("induction-heads", quick=True, assignments=[*changes, "stop_at=0.0", "stop_after=1"])
    record: Any = reproduce("induction-heads", tmp_path / "run", config, plots=False).record
    tables = {table["title"]: table for table in record["tables"]}
    assert [row[0] for row in tables["H3: accuracy by length, %"]["rows"]] == ["16", "32", "64"]
    assert [row[0] for row in tables["attention, rotary: accuracy by length, %"]["rows"]] == ["16", "32"]
    assert [row[0] for row in tables["Training at 16 tokens"]["rows"]][:2] == ["H3, seed 3", "H3, seed 4"]
    assert all(row[2] == "2" for row in tables["Training at 16 tokens"]["rows"])  # each ended at its first look
    assert "ends early once" in " ".join(record["differences"])
    assert record["bars"] == []


def made(right: dict[str, list[float]], **changes: Any) -> Report:
    """right: of each model and seed the accuracies by length."""
    config = InductionHeadsSettings(seeds=(0, 1), lengths=(64, 512), **changes)
    run = {"steps": 9, "course": [0.5, 1.0], "validation": 1.0}
    part = {"seeds": {"seed": run}, "parameters": 7, "cpu_seconds": 60.0, "ms_per_step": 1.0}
    asked = {
        f"{name}-{length}": {"accuracy": accuracy, "rows": 5}
        for name, accuracies in right.items()
        for length, accuracy in zip(config.lengths, accuracies)
    }
    return make_report(config, (dict.fromkeys(right, part), asked))


class TestReport:
    def test_the_best_seed_is_one_for_all_lengths_and_all_are_there(self) -> None:
        right = {"mamba-0": [1.0, 0.6], "mamba-1": [0.9, 1.0]}
        report = made(right, models=("mamba",), steps=(9,))
        (bar,) = report.bars
        assert (bar.ours, bar.bar, bar.holds) == (90.0, 100.0, False)
        assert report.tables[0].columns == ("tokens", "publ.", "seed 0", "seed 1 *", "rows")
        assert list(report.tables[0].rows) == [
            ("64", "100.0", "100.0", "90.0", "5"),
            ("512", "100.0", "60.0", "100.0", "5"),
        ]
        assert made({"mamba-0": [1.0, 1.0], "mamba-1": [0.0, 0.0]}, models=("mamba",), steps=(9,)).bars[0].holds

    def test_nothing_is_said_of_what_was_not_run(self) -> None:
        report = made({"h3-0": [1, 0.4], "h3-1": [1, 0.3]}, models=("h3",), steps=(9,), stop_at=None)
        page = markdown(report, {"date": "", "seconds": 0.0, "environments": [], "settings": {}}, [])
        assert not report.bars
        assert "| 512 | 80.9 | 40.0 | 30.0 | 5 |" in page
        for word in ("vectors of the learned", "ends early", "these at"):
            assert word not in page

    def test_a_diverged_seed_is_shown_as_such(self, tmp_path: Path) -> None:
        config = InductionHeadsSettings(models=("mamba", "h3"), steps=(9, 9), seeds=(0, 1), lengths=(64,))
        run = {"diverged": None, "steps": 9, "course": [0.5, 1.0], "validation": 1.0}
        whole = {"seeds": {"seed": run}, "parameters": 7, "cpu_seconds": 60.0, "ms_per_step": 1.0}
        lost = {**whole, "seeds": {"seed": {"diverged": "step 3"}}, "ms_per_step": None}
        trained = {"mamba-0": lost, "mamba-1": lost, "h3-0": lost, "h3-1": whole}
        report = make_report(config, (trained, {"h3-1-64": {"accuracy": 0.5, "rows": 5}}))
        assert [table.rows for table in report.tables[:2]] == [
            [("64", "100.0", "diverged", "diverged", "-")],
            [("64", "100.0", "diverged", "50.0", "5")],
        ]
        assert report.tables[2].rows[0] == ("Mamba, seed 0", "7", "-", "-", "diverged", "60", "-")
        assert report.figures["best_seed"] == {"mamba": None, "h3": 1}
        assert not report.bars[0].holds
        if PLOTS:
            report.plots[0].write(tmp_path / "plot.png")

    def test_who_ends_early(self) -> None:
        right = {f"{model}-{seed}": [1.0, 1.0] for model in ("mamba", "h3") for seed in (0, 1)}
        said = " ".join(made(right, models=("mamba", "h3"), steps=(9, 9)).differences)
        assert "A run of H3 ends early" in said
        right = {name: values for name, values in right.items() if "mamba" in name}
        assert "ends early" not in " ".join(made(right, models=("mamba",), steps=(9,)).differences)

    def test_published(self) -> None:
        full = InductionHeadsSettings()
        assert [len(PUBLISHED[model]) for model in MODELS] == [15, 15, 9, 9]
        assert (published(full, "rotary", 512), published(full, "rotary", 2**15)) == (83.6, None)
        assert published(replace(full, length=128), "h3", 512) is None
