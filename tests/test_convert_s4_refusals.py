"""What does not fit the S4 repository's models: each tensor and each field is refused by name."""

from __future__ import annotations

import published_s4 as published
import pytest
import torch

from statewise.checkpoints.convert.s4 import FORMATS
from statewise.errors import CheckpointError
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig

S4D, S4 = FORMATS


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dropout": 2}, "dropout=2; expected a number"),
        ({"prenorm": 1}, "prenorm=1"),
        ({"task": "forecasting"}, "task='forecasting'"),
        ({"n_layers": 4}, "n_layers=4, but the file's tensors say 2"),
        ({"d_stat": 4}, "d_stat=4 is not known here; did you mean 'd_state'?"),
    ],
)
def test_configs_that_do_not_fit_the_example_are_refused(config, expected):
    with pytest.raises(CheckpointError) as error:
        S4D.read(config, published.example())
    assert expected in str(error.value)


@pytest.mark.parametrize("name", ["encoder.weight", "s4_layers.1.kernel.C", "norms.0.bias"])
def test_a_tensor_that_the_example_lacks_is_named(name):
    file = published.example()
    del file[name]
    with pytest.raises(CheckpointError, match=f"the tensor {name} is missing"):
        S4D.read({}, file)


K = "model.layers.0.layer.layer.kernel"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: f.pop(f"{K}.B"), f"the tensor {K}.B is missing"),
        (lambda f: f.pop("model.layers.1.norm.norm.bias"), "model.layers.1.norm.norm.bias is missing"),
        (lambda f: f.pop("decoder.0.output_transform.weight"), "decoder.0.output_transform.weight is missing"),
        (lambda f: f.update({f"{K}.extra": torch.ones(1)}), f"the tensor {K}.extra is not one of this architecture"),
        (lambda f: f.update({f"{K}.A_reel": f.pop(f"{K}.A_real")}), f"{K}.A_real is missing; there is {K}.A_reel"),
        (
            lambda f: f.update({f"{K}.C": torch.ones(1, 4, 2, 2)}),
            f"{K}.C has shape (1, 4, 2, 2), expected (1, 4, 3, 2)",
        ),
        (lambda f: f.update({f"{K}.inv_dt": torch.ones(4, 3)}), f"{K}.inv_dt has shape (4, 3), expected (4, 1)"),
        (
            lambda f: f.update({"model.layers.0.norm.norm.m": torch.ones(1)}),
            "norm.norm.m belongs to a norm of one scale",
        ),
        (lambda f: f.update({"encoder.0.emb_layers.0.weight": torch.ones(1)}), "an adaptive embedding and softmax"),
        (lambda f: f.update({"model.norm.norm.running_mean": torch.ones(4)}), "running_mean is not one of this"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(change, expected):
    file = published.made_up()
    change(file)
    with pytest.raises(CheckpointError) as error:
        S4.read({}, file)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model": {"layer": {"final_act": "relu"}}}, "final_act='relu' is not supported"),
        ({"model": {"layer": {"gate": 4}}}, "gate=4 is not supported, only None"),
        ({"model": {"layer": {"disc": "dss"}}}, "disc='dss' is not supported"),
        ({"model": {"layer": {"activation": "elu"}}}, "activation='elu' is not supported"),
        (
            {"model": {"layer": {"aktivation": "relu"}}},
            "aktivation='relu' is not known here; did you mean 'activation'?",
        ),
        ({"model": {"dropout": "0.1"}}, "model: dropout='0.1'; expected a number"),
        ({"model": {"layer": 3}}, "layer=3; expected a group of fields"),
        ({"model": {"n_layers": 3}}, "model.n_layers=3, but the file's tensors say 2"),
        ({"model": {"prenorm": False}}, "model.prenorm=False, but the file has a norm after the last layer"),
        ({"model": {"residual": "D"}}, "model.residual='D' is not supported"),
        ({"model": {"pool": {"stride": 4}}}, "model.pool={'stride': 4} is not supported"),
        ({"decoder": {"mode": "ragged"}}, "mode='ragged' is not supported"),
        ({"decoder": "retrieval"}, "decoder='retrieval' is not supported"),
        ({"modell": {}}, "modell={} is not known here; did you mean 'model'?"),
    ],
)
def test_configs_that_do_not_fit_are_refused(config, expected):
    with pytest.raises(CheckpointError) as error:
        S4.read(config, published.made_up())
    assert expected in str(error.value)


def model_of(mixer, **fields):
    block = {name: fields.pop(name) for name in ("mlp", "norm", "placement") if name in fields}
    layers = (BlockConfig(mixer=mixer, **({"norm": "layer", "placement": "post"} | block)),)
    return SequenceClassifierConfig(n_classes=3, d_input=2, d_model=4, layers=layers, **fields)


@pytest.mark.parametrize(
    ("format", "config", "expected"),
    [
        (S4, LanguageModelConfig(vocab_size=8, d_model=4, layers=(S4Config(),)), "LanguageModelConfig"),
        (S4, model_of(S4Config(), mlp=MLPConfig()), "an MLP"),
        (S4, model_of(S4DConfig(learn_B=False)), "complex A, and B"),
        (S4, model_of(S4Config(), norm="batch", placement="pre"), "cannot be written as s4"),
        (S4D, model_of(S4Config()), "S4D with complex A"),
        (S4D, model_of(S4DConfig()), "published"),
        (S4D, model_of(S4DConfig(learn_B=False), pooling="last"), "pools by their mean"),
    ],
)
def test_what_the_published_code_does_not_have_is_not_written(format, config, expected):
    with pytest.raises(CheckpointError) as error:
        format.write(config, {})
    assert expected in str(error.value)
    assert f"cannot be written as {format.name}" in str(error.value)
