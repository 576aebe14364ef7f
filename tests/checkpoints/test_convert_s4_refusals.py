"""What does not fit the S4 repository's models: each tensor and each field is refused by name."""

from __future__ import annotations

from dataclasses import replace

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
        ({"d_stat": 4}, "d_stat=4 is unknown; did you mean 'd_state'?"),
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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: f.pop("s4_layers.0.kernel.log_A_real"), "the tensor s4_layers.0.kernel.log_A_real is missing"),
        (lambda f: f.pop("s4_layers.1.kernel.log_A_real"), "the tensor s4_layers.1.kernel.log_A_real is missing"),
        (
            lambda f: f.update({"s4_layers.0.kernel.log_A_real": torch.ones(4)}),
            "log_A_real has shape (4,), expected (d_",
        ),
        (lambda f: f.update({"encoder.weight": torch.tensor(1.0)}), "encoder.weight has shape (), expected (4, …)"),
        (lambda f: f.update({"decoder.weight": torch.tensor(1.0)}), "decoder.weight has shape (), expected (…, 4)"),
        (lambda f: f.update({"encoder.weight": torch.ones(5, 2)}), "encoder.weight has shape (5, 2), expected (4, …)"),
    ],
)
def test_misshapen_tensors_of_the_example_are_named(change, expected):
    file = published.example()
    change(file)
    refused_in_one_line(S4D, file, expected)


def refused_in_one_line(theirs, file, expected):
    with pytest.raises(CheckpointError) as error:
        theirs.read({}, file)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


K = "model.layers.0.layer.layer.kernel"
OUTPUT = "model.layers.0.layer.output_linear.0.weight"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: f.pop(f"{K}.B"), f"the tensor {K}.B is missing"),
        (lambda f: f.pop("model.layers.1.norm.norm.bias"), "model.layers.1.norm.norm.bias is missing"),
        (lambda f: f.pop("decoder.0.output_transform.weight"), "decoder.0.output_transform.weight is missing"),
        (
            lambda f: f.update({f"{K}.extra": torch.ones(1)}),
            f"the tensor {K}.extra does not belong to this architecture",
        ),
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
        (lambda f: f.update({"model.norm.norm.running_mean": torch.ones(4)}), "running_mean does not belong to this"),
        (lambda f: f.pop(f"{K}.P"), f"the tensor {K}.P is missing"),
        (lambda f: f.pop(f"{K}.l_kernel"), f"the tensor {K}.l_kernel is missing"),
        (lambda f: f.update({OUTPUT: torch.tensor(1.0)}), f"{OUTPUT} has shape (), expected (…, 4)"),
        (lambda f: f.update({OUTPUT: torch.ones(0, 5)}), f"{OUTPUT} has shape (0, 5), expected (…, 4)"),
        (lambda f: f.update({f"{K}.l_kernel": torch.tensor(torch.nan)}), f"{K}.l_kernel=nan; expected the number"),
        (lambda f: f.update({f"{K}.l_kernel": torch.tensor(-5)}), f"{K}.l_kernel=-5; expected the number of taps"),
        (lambda f: f.update({f"{K}.l_kernel": torch.tensor(20.5)}), f"{K}.l_kernel=20.5; expected the number"),
        (lambda f: f.update({f"{K}.l_kernel": torch.tensor(2**62)}), "an integer from 0 to 2147483647"),
        (lambda f: f[f"{K}.inv_dt"].fill_(-1e4), f"{K}.C is not determined by the systems of {K}.inv_dt, {K}.A_real"),
        (lambda f: f[f"{K}.inv_dt"].fill_(1e4), f"{K}.C is not determined by the systems of {K}.inv_dt, {K}.A_real"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(change, expected):
    file = published.made_up()
    change(file)
    refused_in_one_line(S4, file, expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model": {"layer": {"final_act": "relu"}}}, "final_act='relu' is not supported"),
        ({"model": {"layer": {"gate": 4}}}, "gate=4 is not supported; expected None"),
        ({"model": {"layer": {"disc": "dss"}}}, "disc='dss' is not supported"),
        ({"model": {"layer": {"activation": "elu"}}}, "activation='elu' is not supported"),
        (
            {"model": {"layer": {"aktivation": "relu"}}},
            "aktivation='relu' is unknown; did you mean 'activation'?",
        ),
        ({"model": {"dropout": "0.1"}}, "model: dropout='0.1'; expected a number"),
        ({"model": {"layer": 3}}, "layer=3; expected a group of fields"),
        ({"model": {"n_layers": 3}}, "model.n_layers=3, but the file's tensors say 2"),
        ({"model": {"prenorm": False}}, "model.prenorm=False, but the file has a norm after the last layer"),
        ({"model": {"residual": "D"}}, "model.residual='D' is not supported"),
        ({"model": {"pool": {"stride": 4}}}, "model.pool={'stride': 4} is not supported"),
        ({"decoder": {"mode": "ragged"}}, "mode='ragged' is not supported"),
        ({"decoder": "retrieval"}, "decoder='retrieval' is not supported"),
        ({"modell": {}}, "modell={} is unknown; did you mean 'model'?"),
        ({"model": {"residual": None}}, "model.residual=None is not supported; expected 'R'"),
        ({"model": {"residual": {"alpha": 1.0}}}, "model.residual={'alpha': 1.0} is not supported; expected 'R'"),
        ({"model": {"norm": "group"}}, "model.norm='group' is not supported; expected one of ['layer', 'batch']"),
        ({"model": {"norm": "none"}}, "model.norm='none' is not supported"),
        ({"model": {"norm": None}}, "model.norm=None is not supported"),
        (
            {"model": {"norm": "batch"}},
            "model.norm='batch', but the file's tensors model.layers.0.norm.* are of 'layer'",
        ),
        ({"model": {"norm": {"eps": 0}}}, "model.norm: eps=0; expected a number above 0"),
        ({"model": {"norm": {"elementwise_affine": False}}}, "model.norm: elementwise_affine=False is not supported"),
        ({"model": {"norm": {"epsilon": 1e-3}}}, "epsilon=0.001 is unknown; did you mean 'eps'?"),
        *(
            ({"model": {"layer": {name: None}}}, f"model.layer.{name}=None is not supported; expected one of")
            for name in (
                *("activation", "final_act", "mode", "dt_transform"),
                *("real_transform", "real_type", "imag_transform", "disc"),
            )
        ),
        ({"model": {"layer": {"d_state": 8}}}, "d_state=8, but the file's tensors model.layers.0.* say 6"),
        ({"model": {"layer": {"channels": 2}}}, "channels=2, but the file's tensors model.layers.0.* say 1"),
        ({"model": {"layer": {"n_ssm": 1}}}, "n_ssm=1, but the file's tensors model.layers.0.* say 2"),
        ({"model": {"layer": {"rank": 2}}}, "rank=2, but the file's tensors model.layers.0.* say 1"),
        ({"model": {"layer": {"bidirectional": True}}}, "bidirectional=True, but the file's tensors"),
        ({"model": {"layer": {"mode": "diag"}}}, "mode='diag', but the file's tensors model.layers.0.* say 'nplr'"),
        (
            {"model": {"layer": {"final_act": "id"}}},
            "final_act='id', but the file's tensors model.layers.0.* say 'glu'",
        ),
        ({"model": {"layer": {"postact": "id"}}}, "postact='id', but the file's tensors model.layers.0.* say 'glu'"),
        ({"model": {"layer": {"expand": 2}}}, "expand=2 is of an MLP layer, but the file's tensors model.layers.0.*"),
        ({"model": {"layer": {"_name_": "ffn"}}}, "_name_='ffn' is of an MLP layer"),
    ],
)
def test_configs_that_do_not_fit_are_refused(config, expected):
    with pytest.raises(CheckpointError) as error:
        S4.read(config, published.made_up())
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sizes", "layer", "expected"),
    [
        (
            {"mlp": True},
            [{}, {"expand": 4}],
            "expand=4, but model.layers.1.layer.ff.0.0.weight has 8 features of d_model=4",
        ),
        ({"mlp": True}, [{}, {"expand": "2"}], "expand='2'; expected a number above 0"),
        ({"mlp": True}, [{}, {"_name_": "s4"}], "_name_='s4', but the file's tensors model.layers.1.* say 'ffn'"),
        (
            {"version": "v4 diagonal"},
            {"mode": "nplr"},
            "mode='nplr', but the file's tensors model.layers.0.* say 'diag'",
        ),
        ({"version": "minimal"}, {"d_state": 64}, "d_state=64, but the file's tensors model.layers.0.* say 6"),
        ({"gated": False}, {"final_act": "glu"}, "final_act='glu', but the file's tensors model.layers.0.* say 'id'"),
    ],
)
def test_layers_that_are_other_than_their_config_are_refused(sizes, layer, expected):
    with pytest.raises(CheckpointError) as error:
        S4.read({"model": {"layer": layer}}, published.made_up(**sizes))
    assert expected in str(error.value)


def test_a_missing_tensor_is_named_and_not_what_the_config_says_of_it():
    file = published.made_up()
    del file[f"{K}.A_real"]
    with pytest.raises(CheckpointError, match=f"the tensor {K}.A_real is missing"):
        S4.read({"model": {"layer": {"d_state": 6, "mode": "nplr"}}}, file)
    file = published.made_up("minimal")
    del file["model.layers.1.layer.kernel.log_A_real"]
    with pytest.raises(CheckpointError, match=r"the tensor model\.layers\.1\.layer\.kernel\.log_A_real is missing"):
        S4.read({}, file)


@pytest.mark.parametrize("name", ["inv_dt", "A_real"])
def test_systems_that_have_no_backward_filter_are_refused(name):
    """In both directions Abar is inverted: where the states are gone after a step, it is zero."""
    file = published.made_up("v4 diagonal", both=True)
    file[f"{K}.{name}"] += 20
    with pytest.raises(CheckpointError, match=f"{K}.C is not determined by the systems of {K}.inv_dt"):
        S4.read({}, file)


def model_of(mixer, **fields):
    block = {name: fields.pop(name) for name in ("mlp", "norm", "placement", "norm_eps") if name in fields}
    layers = (BlockConfig(mixer=mixer, **({"norm": "layer", "placement": "post"} | block)),)
    return SequenceClassifierConfig(n_classes=3, d_input=2, d_model=4, layers=layers, **fields)


@pytest.mark.parametrize(
    ("format", "config", "expected"),
    [
        (S4, LanguageModelConfig(vocab_size=8, d_model=4, layers=(S4Config(),)), "LanguageModelConfig"),
        (S4, model_of(S4Config(), mlp=MLPConfig()), "an MLP"),
        (S4, model_of(S4DConfig(learn_B=False)), "complex A, and B"),
        (S4, model_of(S4Config(), norm="batch", placement="pre"), "cannot be written as s4"),
        (S4, model_of(S4Config(), norm_eps=1e-3, placement="pre"), "norm_eps=1e-05 after the last layer, 0.001 in it"),
        (S4, replace(model_of(S4Config(), placement="pre"), norm_eps=1e-3), "norm_eps=0.001 after the last layer"),
        (
            S4D,
            model_of(S4DConfig(learn_B=False, initialization="lin"), norm_eps=1e-3),
            "its layers have norm_eps=0.001; published: 1e-05",
        ),
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
