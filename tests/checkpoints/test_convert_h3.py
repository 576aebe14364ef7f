"""H3's released files: all three generations of names, against a slow forward of the published model."""

from __future__ import annotations

from dataclasses import replace

import published_h3 as published
import pytest
import torch

from statewise.checkpoints.convert import load_published, save_as
from statewise.checkpoints.convert.h3 import FORMATS
from statewise.checkpoints.empty import build_empty, fill
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.presets import PRESETS

H3 = FORMATS[0]
TWO_HEADS = {"n_heads": 2}


def renamed(file, old, new):
    return {new if name == old else name: tensor for name, tensor in file.items()}


def outer_norm(file, norm):
    for part in ("weight", "bias"):
        file = renamed(file, f"s4seq.encoder.norm.{part}", f"backbone.{norm}.{part}")
    return file


GENERATIONS = {
    "last": lambda file: file,
    "norms after": published.with_norms_after,
    "first": published.with_first_names,
    "first, norm of the backbone": lambda file: outer_norm(published.with_first_names(file), "norm"),
    "first, ln_0 of the backbone": lambda file: outer_norm(published.with_first_names(file), "ln_0"),
    "first, later embedding": lambda file: renamed(
        published.with_first_names(file), "embedding.weight", "backbone.embeddings.word_embeddings.weight"
    ),
    "lightning": lambda file: {f"model.{name}": t for name, t in published.with_first_names(file).items()},
}


def built(config, tensors, dtype=torch.float64):
    model = build_empty(config)
    fill(model, tensors.items(), dtype)
    return model.eval()


def agrees(file, config=TWO_HEADS, *, n_heads=2):
    ours = built(*H3.read(config, file))
    tokens = torch.randint(0, 18, (24,), generator=torch.Generator().manual_seed(1))
    expected = published.logits(file, tokens, n_heads=n_heads)
    with torch.no_grad():
        found, _ = ours(tokens[None])
        first, state = ours(tokens[None, :10], ours.initial_state(1))
        second, _ = ours(tokens[None, 10:], state)
    scale = expected.abs().max()
    return max(float((x[0] - expected).abs().max() / scale) for x in (found, torch.cat((first, second), 1)))


@pytest.mark.parametrize(
    "sizes", [{}, {"d_rotary": 4}, {"d_rotary": 2, "n_state": 6, "attention_at": (0, 2)}, {"attention_at": ()}]
)
def test_the_logits_are_those_of_the_published_model(sizes):
    assert agrees(published.made_up(**sizes)) < 1e-10


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_of_names_is_the_same_model(generation):
    file = published.made_up(d_rotary=4)
    config, tensors = H3.read(TWO_HEADS, file)
    old = GENERATIONS[generation](file)
    assert H3.recognises({}, frozenset(old))
    old_config, old_tensors = H3.read(TWO_HEADS, old)
    assert old_config == config
    assert all(torch.equal(old_tensors[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("sizes", [{}, {"d_rotary": 4}, {"attention_at": ()}])
def test_a_round_trip_is_bit_equal(sizes):
    file = published.made_up(**sizes)
    config, tensors = H3.read(TWO_HEADS, file)
    arguments, written = H3.write(config, tensors)
    assert written.keys() == file.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in file.items())
    again, tensors_again = H3.read(arguments, written)
    assert again == config
    assert all(torch.equal(tensors_again[name], tensor) for name, tensor in tensors.items())
    if sizes.get("attention_at") != ():
        rotary = {"rotary_emb_dim": 4} if "d_rotary" in sizes else {}
        assert arguments["attn_cfg"] == {"num_heads": 2, **rotary}
    assert {name: arguments[name] for name in ("d_model", "n_layer", "d_inner", "vocab_size")} == {
        "d_model": 8,
        "n_layer": 3,
        "d_inner": 32,
        "vocab_size": 21,
    }


def test_learned_positions_and_a_file_without_the_second_head():
    file = published.made_up()
    del file["lm_head.weight"]
    file["backbone.embeddings.position_embeddings.weight"] = torch.randn(40, 8)
    config, tensors = H3.read(TWO_HEADS, file)
    assert config.max_positions == 40
    assert torch.equal(tensors["positions.weight"], file["backbone.embeddings.position_embeddings.weight"])
    assert H3.write(config, tensors)[0]["max_position_embeddings"] == 40


@pytest.mark.parametrize(("name", "d_model"), [("h3-125m", 768), ("h3-2.7b-rotary", 2560)])
def test_the_heads_of_the_released_models_are_known(name, d_model):
    """A file of their sizes, without memory, is the preset's model."""
    preset = PRESETS[name]()
    shapes = {n: torch.empty(t.shape, device="meta") for n, t in build_empty(preset).state_dict().items()}
    shapes.pop("head.weight")
    arguments, file = H3.write(preset, shapes)
    assert arguments["d_model"] == d_model
    # what the file keeps of a table that is recomputed, and a head that is tied, has numbers; the rest has shapes
    embedding = file["backbone.embeddings.word_embeddings.weight"]
    file = {n: t for n, t in file.items() if n != "lm_head.weight"}
    assert tuple(embedding.shape) == (50_264, d_model)
    config, _ = H3.read({}, file)
    mixers = [block.mixer for block in config.blocks]
    wanted = [block.mixer for block in preset.in_full().blocks]
    assert [type(m) for m in mixers] == [type(m) for m in wanted]
    for found, expected in zip(mixers, wanted, strict=True):
        if isinstance(expected, AttentionConfig):
            assert (found.n_heads, found.positions, found.d_rotary, found.bias) == (
                expected.n_heads,
                expected.positions,
                expected.d_rotary,
                True,
            )
        else:
            assert (found.d_state, found.d_shift) == (64, 64)


def test_half_precision_and_mixed_files_keep_their_numbers():
    file = {n: t.half() if t.ndim == 2 and "kernel" not in n else t for n, t in published.made_up(d_rotary=4).items()}
    file["lm_head.weight"] = file["backbone.embeddings.word_embeddings.weight"]
    inverse = "backbone.layers.1.mixer.rotary_emb.inv_freq"
    file[inverse] = file[inverse].half()
    _, tensors = H3.read(TWO_HEADS, file)
    assert tensors["layers.0.mixer.in_proj.weight"].dtype == torch.float16
    assert tensors["layers.0.mixer.dynamics.diagonal.log_dt"].dtype == torch.float32


K = "backbone.layers.0.mixer.kernel.kernel"
EMBEDDING = "backbone.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: f.pop(f"{K}.B"), f"the tensor {K}.B is missing"),
        (lambda f: f.pop("backbone.layers.2.norm1.bias"), "backbone.layers.2.norm1.bias is missing"),
        (
            lambda f: f.update({f"{K}.extra": torch.ones(1)}),
            f"the tensor {K}.extra does not belong to this architecture",
        ),
        (lambda f: f.update({f"{K}.log_dt_": f.pop(f"{K}.log_dt")}), f"missing; there is {K}.log_dt_"),
        (lambda f: f.update({f"{K}.C": torch.ones(8, 4, 2)}), f"{K}.C has shape (8, 4, 2), expected (1, 8, 4, 2)"),
        (lambda f: f.update({"lm_head.weight": torch.ones(21, 8)}), "lm_head.weight differs from"),
        (lambda f: f.update({"backbone.layers.0.mixer.D": torch.ones(4)}), "mixer.D has 4 entries for d_model=8"),
        (
            lambda f: f.update({"backbone.layers.1.mixer.rotary_emb.inv_freq": torch.tensor([1.0, 0.5])}),
            "rotary_emb.inv_freq is not the table of 4 rotary features",
        ),
        (lambda f: f.pop(EMBEDDING), f"the tensor {EMBEDDING} is missing"),
        (
            lambda f: f.update({EMBEDDING: torch.ones(21)}),
            f"{EMBEDDING} has shape (21,), expected (vocab_size, d_model)",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(change, expected):
    file = published.made_up(d_rotary=4)
    change(file)
    with pytest.raises(CheckpointError) as error:
        H3.read(TWO_HEADS, file)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layer", [0, 2])
def test_one_table_of_rotary_features_that_is_missing_is_refused(layer):
    """Without the check that layer would read without positions."""
    file = published.made_up(d_rotary=4, attention_at=(0, 2))
    name = f"backbone.layers.{layer}.mixer.rotary_emb.inv_freq"
    del file[name]
    with pytest.raises(CheckpointError, match=f"the tensor {name} is missing"):
        H3.read(TWO_HEADS, file)


def test_without_any_table_the_config_says_the_rotary_features():
    file = published.made_up(d_rotary=4, attention_at=(0, 2))
    whole = H3.read(TWO_HEADS, file)[0]
    bare = {name: tensor for name, tensor in file.items() if "inv_freq" not in name}
    assert H3.read({"attn_cfg": {"num_heads": 2, "rotary_emb_dim": 4}}, bare)[0] == whole
    assert H3.read(TWO_HEADS, bare)[0].blocks[0].mixer.positions is None, "the file alone does not tell"


def test_a_file_by_lightning_may_hold_more_than_the_model():
    """The states of metrics, which the published loader leaves out; elsewhere they are tensors too many."""
    file = published.made_up(d_rotary=4)
    old = GENERATIONS["lightning"](file) | {"val_ppl.total": torch.tensor(3.0)}
    read = H3.read(TWO_HEADS | {"pytorch-lightning_version": "1.8.6"}, old)
    assert read[0] == H3.read(TWO_HEADS, file)[0]
    with pytest.raises(CheckpointError, match=r"the tensor val_ppl\.total does not belong to this architecture"):
        H3.read(TWO_HEADS, old)
    old["model.extra"] = torch.ones(1)
    with pytest.raises(CheckpointError, match=r"the tensor model\.extra does not belong to this architecture"):
        H3.read(TWO_HEADS | {"pytorch-lightning_version": "1.8.6"}, old)


def test_an_old_file_names_its_own_tensors():
    file = published.with_first_names(published.made_up())
    del file["s4seq.encoder.layers.0.norm2.weight"]
    with pytest.raises(CheckpointError, match=r"the tensor s4seq\.encoder\.layers\.0\.norm2\.weight is missing"):
        H3.read(TWO_HEADS, file)
    file = published.with_first_names(published.made_up())
    del file["embedding.weight"]
    with pytest.raises(CheckpointError, match=r"the tensor embedding\.weight is missing"):
        H3.read(TWO_HEADS, file)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "how many heads its attention has is in no tensor"),
        ({"n_heads": 2, "n_layer": 4}, "n_layer=4, but the file's tensors say 3"),
        ({"n_heads": 2, "attn_layer_idx": [0]}, "attn_layer_idx=[0], but the file's tensors say [1]"),
        ({"n_heads": 2, "vocab_size": 22}, "vocab_size=22, but"),
        ({"n_heads": 2, "ssm_cfg": {"mode": "nplr"}}, "mode='nplr' is not supported; expected 'diag'"),
        ({"n_heads": 2, "ssm_cfg": {"disc": "zoh"}}, "disc='zoh' is not supported"),
        ({"n_heads": 2, "ssm_cfg": {"bidirectional": True}}, "bidirectional=True is unknown"),
        ({"n_headz": 2}, "n_headz=2 is unknown; did you mean 'n_heads'?"),
        ({"attn_cfg": {"num_heads": 2, "causal": False}}, "causal=False is not supported"),
        ({"attn_cfg": 2}, "attn_cfg=2 is not a group of fields"),
        ({"n_heads": 2, "attn_cfg": {"num_heads": 4}}, "n_heads=2, but attn_cfg.num_heads=4; leave the wrong one out"),
        ({"n_heads": 0}, "n_heads=0; expected an integer of at least 1"),
        ({"n_heads": 0, "attn_cfg": {"num_heads": 2}}, "n_heads=0; expected an integer of at least 1"),
        ({"attn_cfg": {"num_heads": 0}}, "attn_cfg: num_heads=0; expected an integer of at least 1"),
        (
            {"attn_cfg": {"num_heads": 2, "rotary_emb_dim": 2}},
            "attn_cfg.rotary_emb_dim=2, but the file's tensors say 4 by backbone.layers.1.mixer.rotary_emb.inv_freq",
        ),
        ({"attn_cfg": {"num_heads": 2, "rotary_emb_dim": 0}}, "attn_cfg.rotary_emb_dim=0, but the file's"),
        ({"n_heads": 2, "ssm_cfg": {"d_state": 16}}, f"ssm_cfg.d_state=16, but the file's tensors say 8 by {K}.A_imag"),
    ],
)
def test_configs_that_do_not_fit_are_refused(config, expected):
    with pytest.raises(CheckpointError) as error:
        H3.read(config, published.made_up(d_rotary=4))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_what_lightning_stores_says_the_heads():
    stored = {"hyper_parameters": {"model": {"attn_cfg": {"num_heads": 2}}}, "pytorch-lightning_version": "1.8.6"}
    assert H3.read(stored, published.made_up())[0].blocks[1].mixer.n_heads == 2


def test_padded_vocabularies_and_fields_without_an_effect_pass():
    config = {"attn_cfg": {"num_heads": 2}, "vocab_size": 18, "pad_vocab_size_multiple": 7, "resid_dropout": 0.1}
    assert H3.read(config, published.made_up())[0].vocab_size == 21


def test_the_published_arguments_of_attention():
    """As in the configs of the published programs; the dropout of its weights comes along, and goes back."""
    attention = {"num_heads": 2, "use_flash_attn": True, "fused_bias_fc": True, "dropout": 0.1}
    config, tensors = H3.read({"attn_cfg": attention}, published.made_up())
    assert [block.mixer.dropout for block in config.blocks if isinstance(block.mixer, AttentionConfig)] == [0.1]
    arguments, _ = H3.write(config, tensors)
    assert arguments["attn_cfg"] == {"num_heads": 2, "dropout": 0.1}
    for field in ({"dwconv": True}, {"bias": False}, {"dropout": 1}):
        with pytest.raises(CheckpointError, match=next(iter(field))):
            H3.read({"attn_cfg": attention | field}, published.made_up())


MLP = MLPConfig(activation="gelu_tanh")


def model_of(mixer, mlp=MLP, **fields):
    return LanguageModelConfig(
        vocab_size=8, d_model=8, layers=(BlockConfig(mixer=mixer, mlp=mlp, norm="layer"),), norm="layer", **fields
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (model_of(H3Config(d_state=8, d_head=2)), "d_head=1"),
        (model_of(H3Config(d_state=8, method="zoh")), "bilinear"),
        (model_of(H3Config(d_state=8, d_shift=4)), "d_shift=4"),
        (model_of(H3Config(d_state=8), MLPConfig()), "gelu_tanh"),
        (model_of(H3Config(d_state=8), None), "mlp=None"),
        (model_of(H3Config(d_state=8), tie_embeddings=False), "tie_embeddings"),
        (model_of(AttentionConfig(n_heads=2, bias=True, window=4)), "no window"),
        (model_of(AttentionConfig(n_heads=2)), "biases"),
        (model_of(AttentionConfig(n_heads=2, bias=True)), "no H3 layer"),
        (
            replace(
                model_of(H3Config(d_state=8)),
                layers=model_of(H3Config(d_state=8)).layers + model_of(H3Config(d_state=4)).layers,
            ),
            "its layers have d_state [4, 8], and the published arguments have one for all layers",
        ),
        (LanguageModelConfig(vocab_size=8, d_model=8, layers=(H3Config(),)), "norm='rms'"),
    ],
)
def test_what_the_published_code_does_not_have_is_not_written(config, expected):
    with pytest.raises(CheckpointError) as error:
        H3.write(config, {})
    assert expected in str(error.value)
    assert "cannot be written as h3" in str(error.value)


def test_files_on_disk(tmp_path):
    """A file alone, one by Lightning of the first names, and one that we write."""
    file = published.made_up(d_rotary=4)
    (tmp_path / "config.json").write_text('{"n_heads": 2}')
    torch.save(file, tmp_path / "model.pt")
    old = GENERATIONS["lightning"](file)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text('{"n_heads": 2}')
    torch.save({"pytorch-lightning_version": "1.8.6", "state_dict": old}, tmp_path / "old" / "last.ckpt")
    model = load_published(tmp_path)
    save_as(model, tmp_path / "ours", "h3")
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == ["config.json", "model.pt"]
    expected = model.state_dict()
    for path in (tmp_path / "old", tmp_path / "ours"):
        found = load_published(path)
        assert found.config == model.config
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.state_dict().items())
    written = torch.load(tmp_path / "ours" / "model.pt", weights_only=True)
    assert written.keys() == file.keys()
