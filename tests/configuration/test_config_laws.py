"""Every config of the package keeps the law of configs (config_laws.py)."""

from __future__ import annotations

from typing import Any

import pytest
from config_laws import all_configs, check_config_laws
from families import MIXERS

import statewise as sw
from statewise.configuration import Config
from statewise.data.text import TextDataConfig
from statewise.estimation.structural import Cycle, Irregular, Regression, Seasonal
from statewise.generation.chat import SavedChat, SavedMessage
from statewise.mixers.base import MixerConfig
from statewise.models.file_input import FilesConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.models.registry import CONFIG_TYPES
from statewise.models.series_input import SeriesInputConfig
from statewise.models.structural import StructuralForecasterConfig
from statewise.training.config import BudgetConfig, RunConfig, TrainConfig
from statewise.training.tasks import run_types

MIXER = sw.S4DConfig(d_state=4)
SIZES: dict[str, Any] = {"d_model": 8, "layers": (MIXER, sw.BlockConfig(mixer=MIXER, mlp=sw.MLPConfig()))}
LANGUAGE_MODEL = sw.LanguageModelConfig(vocab_size=16, **SIZES)
# Of those that cannot be made of defaults alone.
EXAMPLES: tuple[Config, ...] = (
    sw.AttentionConfig(n_heads=2),
    sw.BlockConfig(mixer=MIXER),
    sw.CrossAttentionConfig(n_heads=2),
    sw.DeltaNetConfig(n_heads=2),
    sw.GatedDeltaNetConfig(n_heads=2),
    sw.KDAConfig(n_heads=2),
    sw.MoEConfig(n_experts=4, n_active=2),
    sw.SharedTransformerConfig(
        mixer=MIXER, attention=sw.AttentionConfig(n_heads=2, d_head=8), mlp=sw.MLPConfig(), d_adapter=2
    ),
    sw.ParallelMixersConfig(first=MIXER, second=sw.AttentionConfig(n_heads=2)),
    sw.LatentAttentionConfig(n_heads=2),
    sw.LinearAttentionConfig(n_heads=2),
    sw.LinearCrossAttentionConfig(n_heads=2),
    sw.StructuredMaskedAttentionConfig(n_heads=2),
    sw.LMUConfig(theta=8.0),
    LANGUAGE_MODEL,
    ForecasterConfig(horizon=4, **SIZES),
    SavedMessage(role="user", content="Who?"),
    SavedChat(
        messages=(SavedMessage(role="user", content="Who?"), SavedMessage(role="assistant", content="I.")),
        n_first=0,
        ids=(1, 2),
    ),
    Cycle(periods=(3.0, 9.0)),
    Regression(d_covariates=2),
    Seasonal(period=4),
    StructuralForecasterConfig(horizon=4, components=(Seasonal(period=4), Irregular())),
    PairClassifierConfig(n_classes=2, vocab_size=16, **SIZES),
    sw.SequenceClassifierConfig(n_classes=2, d_input=1, **SIZES),
    sw.SequenceRegressorConfig(d_output=1, d_input=1, **SIZES),
    sw.LabelledTextDataConfig(source="reviews.csv", text_field="review", label_field="stars"),
    FilesConfig(kind="wide table", columns=("first", "second")),
    SeriesInputConfig(
        time="day", targets=("sold",), unit="seconds", step=86400.0, origin=0.0, history=8, min_history=4
    ),
    BudgetConfig(steps=8),
    TrainConfig(budget=BudgetConfig(steps=8)),
    RunConfig(model=LANGUAGE_MODEL, data=TextDataConfig(), train=TrainConfig(budget=BudgetConfig(steps=8))),
)


def example(cls: Any) -> Config:
    found: Config = next((one for one in EXAMPLES if type(one) is cls), None) or cls(**OPTIONS.get(cls.__name__, {}))
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "TrainedTaskSettings": {"preset": "digits"},
    # these look at each of their runs, at every value that is tried
    "LraSettings": {"models": ("s4d",), "tasks": ("listops-gen",)},
    "H3LanguageSettings": {"models": ("mamba", "h3"), "learning_rates": (1e-3,), "seeds": (0,)},
}


@pytest.mark.parametrize("cls", all_configs(), ids=lambda cls: cls.__name__)
def test_every_config_keeps_the_laws(cls: type[Config]) -> None:
    check_config_laws(example(cls), run_types())


def test_every_example_is_of_a_config_of_the_package() -> None:
    """And the walk finds what is there: a mixer, a model, data, a reproduction's settings."""
    found = all_configs()
    assert {type(one) for one in EXAMPLES} <= set(found)
    assert {cls.__name__ for cls in found} > {
        "Mamba2Config",
        "TextDataConfig",
        "TrainConfig",
        "LraSettings",
        "Sampling",
    }
    assert set(run_types().values()) <= set(found)


def test_every_mixer_of_the_package_has_a_name_and_is_in_the_list_that_the_tests_share() -> None:
    ours = {cls for cls in all_configs() if issubclass(cls, MixerConfig)}
    assert ours <= set(CONFIG_TYPES.values())
    assert ours == {type(config) for config in MIXERS.values()}
