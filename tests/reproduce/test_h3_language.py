"""``reproduce h3-language``: matched models, the tokenizer, the rate, the rule for equal, and the whole, tiny."""

from __future__ import annotations

import math
import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewise.data.tokenizers import FileTokenizer
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.reproduce import find, settings
from statewise.reproduce.h3_language.models import LABELS, PUBLISHED, attention_places, build_config, n_parameters
from statewise.reproduce.h3_language.order import EQUAL, REVERSED, T_95, UNKNOWN, chain, compare_order, margin
from statewise.reproduce.h3_language.runs import H3LanguageSettings, run_config, train_tokenizer
from statewise.reproduce.training import choose_rate

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
        with pytest.raises(ConfigError, match=r"^h3 comes no closer than \+.*d_state=512"):
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
