"""A whole model with fewer states: its config fits, it is saved and loaded, and what is not reduced stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import statewise as sw
from statewise.checkpoints.empty import expected_shapes
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError, InputError
from statewise.mixers.s4d import S4D
from statewise.models.base import Model, ModelConfig
from statewise.models.block import as_block
from statewise.models.reduction import with_mixers

S4D16 = sw.S4DConfig(d_state=16)
SHARED = sw.SharedTransformerConfig(
    mixer=S4D16, attention=sw.AttentionConfig(n_heads=2, d_head=8), mlp=sw.MLPConfig(expand=1)
)
LAYERS = (
    S4D16,
    sw.BlockConfig(mixer=sw.ParallelMixersConfig(first=sw.GRUConfig(), second=S4D16), mlp=sw.MLPConfig(expand=1)),
    sw.S4DConfig(d_state=4, initialization="real"),
    sw.BlockConfig(mixer=None, mlp=sw.MLPConfig(expand=1)),
)
REDUCED = ["layers.0.mixer", "layers.1.mixer.second"]
MODELS: dict[str, ModelConfig] = {
    "classifier": sw.SequenceClassifierConfig(n_classes=3, d_input=2, d_model=8, layers=LAYERS),
    "pairs": sw.PairClassifierConfig(n_classes=2, vocab_size=9, d_model=8, layers=LAYERS),
    "regressor": sw.SequenceRegressorConfig(d_output=2, d_input=2, d_model=8, layers=LAYERS),
    "forecaster": sw.ForecasterConfig(d_target=1, horizon=3, d_model=8, layers=LAYERS),
    "language": sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=LAYERS),
    "shared": sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(SHARED, SHARED)),
}


def inputs(model: Model) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if isinstance(model.config, sw.ForecasterConfig):
        return torch.randn(2, 30, 1, generator=generator)
    if getattr(model.config, "vocab_size", None):
        return torch.randint(9, (2, 30), generator=generator)
    return torch.randn(2, 30, 2, generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_is_reduced_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = MODELS[name].build().eval()
    kept = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    small, reduced = sw.reduce_model(model, 8)
    names = ["layers.0.mixer.mixer", "layers.1.mixer.mixer"] if name == "shared" else REDUCED
    assert list(reduced) == names
    assert type(small) is type(model)
    assert not small.training
    for key, mixer in ((n, m) for n, m in small.named_modules() if isinstance(m, S4D)):
        assert mixer.config.d_state == (8 if key in names else 4)
        assert mixer is reduced[key].layer if key in names else torch.equal(mixer.readout.C, kept[f"{key}.readout.C"])
    assert expected_shapes(small.config) == {n: tuple(t.shape) for n, t in stored_tensors(small).items()}
    assert [block.config for block in small.blocks] == [as_block(of) for of in small.config.layers]  # type: ignore[attr-defined]
    x = inputs(model)
    y = small(x)[0]
    difference = (y - model(x)[0]).detach()
    assert float(difference.norm() / y.detach().norm()) < 0.2
    loaded = sw.load(sw.save(small, tmp_path / "small"))
    assert loaded.config == small.config
    assert torch.equal(loaded(x)[0], y)
    assert model.config == MODELS[name]  # the given one is as it was
    assert all(torch.equal(kept[key], tensor) for key, tensor in model.state_dict().items())


def test_what_stays() -> None:
    config = replace(MODELS["classifier"], layers=(S4D16, sw.AttentionConfig(n_heads=2)))
    model = config.build().double()
    model.layers[1].requires_grad_(False)
    model.gradient_checkpointing = True
    sw.set_rate(model, 0.5)
    drawn = torch.get_rng_state()
    small, _ = sw.reduce_model(model, 4)
    assert torch.equal(drawn, torch.get_rng_state())
    assert small.training
    assert small.gradient_checkpointing
    assert small.config == replace(config, layers=(replace(S4D16, d_state=4), sw.AttentionConfig(n_heads=2)))
    for name, parameter in small.named_parameters():
        assert parameter.dtype == torch.float64
        assert parameter.requires_grad == (not name.startswith("layers.1."))
    assert small.blocks[0].mixer.rate == 0.5
    small(torch.randn(2, 12, 2, dtype=torch.float64))[0].sum().backward()


def test_refusals() -> None:
    model = MODELS["classifier"].build()
    calls: list[tuple[Any, str]] = [
        (lambda: sw.reduce_model(S4D16.build(4), 4), "needs a Model, such as a classifier; got S4D"),  # type: ignore[type-var]
        (lambda: sw.reduce_model(model, 3), "an even number of at least 2, got 3"),
        (lambda: sw.reduce_model(model, True), "an even number of at least 2, got True"),
        (lambda: sw.reduce_model(model, 16), r"no layer has more than n_states=16 .* are \[4, 16\]$"),
        (
            lambda: sw.reduce_model(replace(MODELS["classifier"], layers=(sw.GRUConfig(),)).build(), 4),
            "the model has no S4D layer",
        ),
        (lambda: sw.reduce_model(model.freeze(), 4), "cannot have other mixers"),
        (lambda: with_mixers(model, {"layers.7.mixer": S4D16.build(8)}), "'layers.7.mixer' is not a mixer"),
        (lambda: with_mixers(model, {"layers.1.mlp": S4D16.build(8)}), "'layers.1.mlp' is not a mixer"),
        (lambda: with_mixers(model, {"layers.0": S4D16.build(8)}), "'layers.0' is not a mixer"),
        (lambda: with_mixers(model, {"layers.0.mixer": S4D16.build(4)}), "d_model and is_causal must stay"),
    ]
    for call, message in calls:
        with pytest.raises(InputError, match=message):
            call()


def test_a_model_that_its_config_does_not_describe_is_not_saved(tmp_path: Path) -> None:
    """It could be written, and never be loaded."""
    model = MODELS["classifier"].build()
    model.layers[0].mixer = sw.reduce_s4d(model.blocks[0].mixer, 4).layer  # type: ignore[arg-type]
    with pytest.raises(
        CheckpointError, match=r"layers\.0\.mixer\.\S+ has shape \(8, 2.*, the config makes shape \(8, 8"
    ):
        sw.save(model, tmp_path / "model")
    other = MODELS["classifier"].build()
    other.layers[0].mixer = sw.GRUConfig().build(8)
    with pytest.raises(
        CheckpointError, match=r"layers\.0\.mixer\.in_proj\.weight has shape \(24, 8\), the config makes none"
    ):
        sw.save(other, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_layer_in_two_places_stays_one_and_slow_poles_stay_finite() -> None:
    model = MODELS["classifier"].build()
    first = model.layers[0].mixer
    model.layers[1].mixer.second = first
    with torch.no_grad():
        first.dynamics.log_decay.fill_(-30.0)
    small, reduced = sw.reduce_model(model, 8)
    assert small.layers[0].mixer is small.layers[1].mixer.second
    assert reduced["layers.0.mixer"] is reduced["layers.1.mixer.second"]
    assert all(bool(parameter.isfinite().all()) for parameter in small.parameters())
    with torch.no_grad():
        first.readout.C[0] = torch.nan
    with pytest.raises(InputError, match=r"^layers\.0\.mixer: C holds NaN or infinity"):
        sw.reduce_model(model, 8)
