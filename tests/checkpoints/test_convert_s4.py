"""Files of the S4 repository, versions 3 and 4 and the minimal S4D, against slow forwards of the published models."""

from __future__ import annotations

import json

import published_s4 as published
import pytest
import torch

from statewise.checkpoints.convert import load_published
from statewise.checkpoints.convert.s4 import FORMATS
from statewise.checkpoints.empty import build_empty, fill
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.models.regressor import SequenceRegressorConfig

S4D, S4 = FORMATS
SIGNAL = torch.randn(14, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
STEPS = {"decoder": {"_name_": "sequence", "l_output": None}}


def built(config, tensors, dtype=torch.float64):
    model = build_empty(config)
    fill(model, tensors.items(), dtype)
    return model.eval()


def error_of(file, config=None, *, format=S4, both=False, pool=True, reference=None, eps=1e-5):
    """The largest difference of our outputs, relative to theirs."""
    file = {name: t.double() if t.is_floating_point() else t for name, t in file.items()}
    assert format.recognises(config or {}, frozenset(file))
    model = built(*format.read(config or {}, file))
    expected = published.outputs(reference or file, SIGNAL, both=both, pool=pool, eps=eps)
    with torch.no_grad():
        found, _ = model(SIGNAL[None])
        errors = [float((found[0] - expected).abs().max() / expected.abs().max())]
        if not both:  # in two pieces, the state handed on: C itself is right, and not only its filter
            first, state = model(SIGNAL[None, :9], model.initial_state(1))
            second, _ = model(SIGNAL[None, 9:], state)
            cut = second[0] if pool else torch.cat((first, second), 1)[0]
            errors.append(float((cut - expected).abs().max() / expected.abs().max()))
    return max(errors)


@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("version", ["v4", "v4 diagonal", "v3", "v3 diagonal", "minimal"])
def test_the_outputs_are_those_of_the_published_model(version, pre):
    assert error_of(published.made_up(version, pre=pre)) < 1e-10


@pytest.mark.parametrize(
    "sizes",
    [
        {"rank": 2, "n_heads": 2},
        {"rank": 3, "n_systems": 1},
        {"n_systems": 4, "gated": False},
        {"norm": "batch", "pre": False},
        {"norm": "batch"},
        {"mlp": True},
        {"mlp": True, "pre": False, "version": "v4 diagonal", "n_heads": 3},
        {"both": True},
        {"both": True, "n_heads": 2, "rank": 2},
        {"both": True, "version": "v4 diagonal"},
        {"both": True, "version": "v3 diagonal", "n_heads": 2},
    ],
)
def test_every_shape_of_layer(sizes):
    assert error_of(published.made_up(**sizes), both=sizes.get("both", False)) < 1e-10


@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_norms_with_an_epsilon_of_their_own(norm, pre):
    """It is read, also where a batch norm becomes part of the head, and written where the published model has one."""
    file, groups = published.made_up(norm=norm, pre=pre), {"model": {"norm": {"_name_": norm, "eps": 1e-2}}}
    assert error_of(file, groups, eps=1e-2) < 1e-10
    assert error_of(file, groups) > 1e-4
    ours, tensors = S4.read(groups, file)
    if norm == "layer" or not pre:
        groups, written = S4.write(ours, tensors)
        assert groups["model"]["norm"] == {"_name_": norm, "eps": 1e-2}
        assert groups["model"]["residual"] == "R"
        assert S4.read(groups, written)[0] == ours


def test_an_output_for_every_step():
    assert error_of(published.made_up(), STEPS, pool=False) < 1e-10


def test_the_example_script_and_its_model():
    layers = published.made_up("minimal", pre=False)
    assert error_of(published.example(), format=S4D, reference=layers) < 1e-10


@pytest.mark.parametrize("sizes", [{}, {"n_layers": 3, "n": 5}])
@pytest.mark.parametrize("config", [{}, {"prenorm": True, "dropout": 0.2}])
def test_a_round_trip_of_the_minimal_model_is_bit_equal(sizes, config):
    file = published.example(**sizes)
    ours, tensors = S4D.read(config, file)
    arguments, written = S4D.write(ours, tensors)
    assert written.keys() == file.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in file.items())
    assert S4D.read(arguments, written)[0] == ours
    assert arguments["prenorm"] is config.get("prenorm", False)
    assert (arguments["d_input"], arguments["d_output"], arguments["d_model"]) == (2, 3, 4)


@pytest.mark.parametrize("length", [0, published.LENGTH])
@pytest.mark.parametrize(
    ("sizes", "copied"),
    [({}, True), ({"version": "v4 diagonal"}, True), ({"both": True}, False), ({"rank": 2, "n_heads": 2}, True)],
)
def test_a_round_trip_of_s4(sizes, copied, length):
    """All is bit-equal but what is computed: C where a file has C~, and in both directions C and D, to 1e-6."""
    file = published.made_up(norm="batch", pre=False, **sizes)
    for name in file:
        if name.endswith("l_kernel"):
            file[name] = torch.tensor(length)
    ours, tensors = S4.read({}, file)
    groups, written = S4.write(ours, tensors)
    again, tensors_again = S4.read(groups, written)
    assert again == ours
    for name, tensor in tensors.items():
        computed = sizes.get("both") and ("readout.C_backward" in name or "readout.D" in name)
        if computed:
            torch.testing.assert_close(tensors_again[name], tensor, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(tensors_again[name], tensor), name
    for name, tensor in written.items():
        if name.endswith("l_kernel"):
            assert int(tensor) == 0
        elif name.endswith((".C", ".D")) and (length or not copied):
            if length == 0 or "diagonal" in sizes.get("version", ""):
                torch.testing.assert_close(tensor, file[name], rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(tensor, file[name]), name
    assert {n for n in file if "num_batches_tracked" not in n} == written.keys()


def test_the_computed_C_gives_the_stored_one_back():
    """C (I - Abar^L) is C~ again, to 1e-6 in float32."""
    file = published.made_up(rank=2)
    _, tensors = S4.read({}, file)
    for i in range(2):
        C = torch.view_as_complex(tensors[f"layers.{i}.mixer.readout.C"])[:, 0].to(torch.complex128)
        w = {name: t.double() for name, t in file.items()}
        systems = published._read(f"model.layers.{i}.layer", w)
        A, P = (torch.cat((m, m.conj()), -1) for m in (systems["A"], systems["P"]))
        for h in range(4):
            matrix = torch.diag(A[h]) - sum(torch.outer(p, p.conj()) for p in P[:, h])
            one, half = torch.eye(len(matrix)), systems["dt"][h] / 2 * matrix
            step = torch.linalg.inv(one - half) @ (one + half)
            full = torch.cat((C[h], C[h].conj()))
            found = full - full @ torch.linalg.matrix_power(step, published.LENGTH)
            torch.testing.assert_close(found[:3], systems["C"][0, h], rtol=1e-6, atol=1e-6)


TRANSFORMS = {"softplus": lambda x: x.exp().expm1().log(), "none": lambda x: x.exp(), "relu": lambda x: x.exp() - 1e-4}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("where", ["dt_transform", "real_transform"])
def test_stored_transforms(transform, where):
    """The same model with its dt, or the real part of its A, stored in another way, and the config that says so."""
    file = {n: t.double() if t.is_floating_point() else t for n, t in published.made_up().items()}
    config, tensors = S4.read({}, file)
    ending = "inv_dt" if where == "dt_transform" else "A_real"
    stored = {n: TRANSFORMS[transform](t) if n.endswith(ending) else t for n, t in file.items()}
    groups = {"hyper_parameters": {"model": {"layer": {where: transform}}, "train": {"seed": 1}}}
    found_config, found = S4.read(groups | {"pytorch-lightning_version": "1.9"}, stored)
    assert found_config == config
    for name, tensor in tensors.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12)


def test_layers_without_the_prefix_of_lightning_are_the_same():
    file = published.made_up()
    bare = {name.removeprefix("model."): tensor for name, tensor in file.items()}
    assert S4.recognises({}, frozenset(bare))
    config, tensors = S4.read({}, file)
    found_config, found = S4.read({}, bare)
    assert found_config == config
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_language_model_is_a_classifier_of_every_step_with_its_scale_in_the_embedding():
    file = published.made_up()
    del file["encoder.0.bias"]
    file["encoder.0.weight"] = torch.randn(7, 4)
    for part in ("weight", "bias"):
        file[f"decoder.0.{part}"] = file.pop(f"decoder.0.output_transform.{part}")
    config, tensors = S4.read({}, file)
    assert (config.vocab_size, config.pooling, config.n_classes) == (7, None, 3)
    assert torch.equal(tensors["embedding.weight"], 2 * file["encoder.0.weight"])
    _, tensors = S4.read({"task": {"_name_": "lm", "rescale": False}}, file)
    assert torch.equal(tensors["embedding.weight"], file["encoder.0.weight"])


def test_what_the_config_says_of_the_model():
    layer = {"activation": "relu", "dropout": 0.2, "disc": "bilinear", "mode": "diag", "lr": {"dt": 0.001}}
    groups = {
        "model": {"layer": layer, "dropout": 0.1, "prenorm": True, "d_model": 4, "n_layers": 2, "residual": "R"},
        "decoder": {"_name_": "sequence", "mode": "last"},
        "task": {"loss": "mse"},
    }
    config, _ = S4.read(groups, published.made_up("v4 diagonal"))
    assert isinstance(config, SequenceRegressorConfig)
    assert config.pooling == "last"
    block = config.blocks[0]
    assert block.dropout == 0.1
    assert (block.mixer.activation, block.mixer.dropout, block.mixer.method) == ("relu", 0.2, "bilinear")


@pytest.mark.parametrize(
    ("sizes", "layer"),
    [
        (
            {},
            {
                "d_state": 6,
                "channels": 1,
                "bidirectional": False,
                "mode": "nplr",
                "rank": 1,
                "n_ssm": 2,
                "_name_": "s4",
            },
        ),
        ({"rank": 2, "n_heads": 2}, {"rank": 2, "channels": 2, "mode": "dplr", "final_act": "glu", "postact": None}),
        ({"both": True, "n_systems": 4}, {"bidirectional": True, "n_ssm": None}),
        ({"version": "v4 diagonal", "gated": False}, {"mode": "s4d", "rank": 1, "final_act": "id"}),
        ({"version": "v3", "gated": False}, {"d_state": 6, "postact": "id", "channels": "${.heads}"}),
        ({"version": "minimal"}, {"d_state": 6}),
        ({"mlp": True}, [{"_name_": "s4", "d_state": 6}, {"_name_": "ffn", "expand": 2.2, "activation": "gelu"}]),
    ],
)
def test_a_config_may_repeat_what_the_tensors_say(sizes, layer):
    file = published.made_up(**sizes)
    assert S4.read({"model": {"layer": layer, "norm": "layer", "residual": "R"}}, file)[0] == S4.read({}, file)[0]


def test_a_reference_to_another_dropout_is_that_of_the_model():
    config, _ = S4.read({"model": {"dropout": 0.3, "layer": {"dropout": "${...dropout}"}}}, published.made_up())
    assert config.blocks[0].mixer.dropout == 0.3


def test_files_on_disk(tmp_path):
    """A Lightning file with the config that it stores, and a file of the example script."""
    file = published.made_up(pre=False)
    stored = {"model": {"prenorm": False, "layer": {"dropout": 0.1}}, "optimizer": {"lr": 0.01}}
    whole = {"pytorch-lightning_version": "1.9.0", "state_dict": file, "hyper_parameters": stored}
    torch.save(whole, tmp_path / "last.ckpt")
    model = load_published(tmp_path / "last.ckpt")
    assert model.config.blocks[0].mixer.dropout == 0.1
    with torch.no_grad():
        found = model(SIGNAL.float()[None])[0][0]
    torch.testing.assert_close(found.double(), published.outputs(file, SIGNAL), rtol=1e-4, atol=1e-5)
    torch.save({"model": published.example(), "acc": 80.0, "epoch": 3}, tmp_path / "ckpt.pth")
    example = load_published(tmp_path / "ckpt.pth")
    with torch.no_grad():
        found = example(SIGNAL.float()[None])[0][0]
    expected = published.outputs(published.made_up("minimal", pre=False), SIGNAL)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    arguments, written = S4D.write(example.config, stored_tensors(example))
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text(json.dumps(arguments))
    torch.save(written, tmp_path / "ours" / "model.pt")
    again = load_published(tmp_path / "ours").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in example.state_dict().items())
