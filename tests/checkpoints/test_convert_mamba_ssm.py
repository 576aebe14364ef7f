"""mamba_ssm's checkpoints: logits equal to a slow recurrence of their own, every field, every tensor, both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import published_mamba
import pytest
import torch
from laws import check_mixer_laws
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import mamba_ssm
from statewise.checkpoints.empty import build_empty, expected_shapes, fill
from statewise.configuration import to_dict
from statewise.decoding import refusal
from statewise.errors import CheckpointError, StatewiseError
from statewise.mixers.attention import ConvolvedAttentionState
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.models.presets import PRESETS

SMALL = {"d_model": 16, "n_layer": 2, "vocab_size": 21}
MAMBA3 = {"layer": "Mamba3", "d_state": 8, "headdim": 8}
MAMBA2 = {"layer": "Mamba2", "d_state": 8, "headdim": 8}
HYBRID = SMALL | {
    "n_layer": 3,
    "ssm_cfg": MAMBA2,
    "attn_layer_idx": [1],
    "attn_cfg": {"causal": True, "num_heads": 4, "num_heads_kv": 2, "head_dim": 6, "d_conv": 4, "rotary_emb_dim": 4}
    | {"qkv_proj_bias": False, "out_proj_bias": False},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": SMALL,
    "mamba, every option": SMALL
    | {"ssm_cfg": {"d_state": 4, "d_conv": 3, "expand": 3, "dt_rank": 5, "bias": True, "conv_bias": False}}
    | {"rms_norm": False, "tie_embeddings": False, "pad_vocab_size_multiple": 16},
    "mamba2": SMALL | {"ssm_cfg": MAMBA2, "pad_vocab_size_multiple": 1},
    "mamba2, every option": SMALL
    | {"ssm_cfg": MAMBA2 | {"ngroups": 2, "d_conv": 2, "norm_before_gate": True, "dt_limit": [0.05, 0.5], "bias": True}}
    | {"tie_embeddings": False, "rms_norm": False},
    "mamba3": SMALL | {"ssm_cfg": MAMBA3},
    "mamba3, every option": SMALL
    | {"ssm_cfg": MAMBA3 | {"rope_fraction": 1.0, "is_outproj_norm": True, "ngroups": 2, "A_floor": 0.4, "expand": 1}},
    "mamba3, several inputs": SMALL | {"ssm_cfg": MAMBA3 | {"is_mimo": True, "mimo_rank": 3, "ngroups": 2}},
    "mamba3, several inputs, every option": SMALL
    | {"ssm_cfg": MAMBA3 | {"is_mimo": True, "d_state": 12, "rope_fraction": 1.0, "is_outproj_norm": True}}
    | {"tie_embeddings": False, "d_intermediate": 100, "rms_norm": False},
    "mamba3 with attention": HYBRID | {"ssm_cfg": MAMBA3 | {"is_mimo": True, "mimo_rank": 1}},
    "hybrid": HYBRID,
    "hybrid with MLPs": SMALL
    | {"n_layer": 3, "d_intermediate": 100, "attn_layer_idx": [0, 2], "attn_cfg": {"causal": True, "num_heads": 2}},
    "attention, one bias": HYBRID
    | {"attn_cfg": {"causal": True, "num_heads": 2, "out_proj_bias": False, "d_conv": 2, "rotary_emb_dim": 8}}
    | {"d_intermediate": 200, "rms_norm": False},
    "attention, the other": HYBRID
    | {"attn_cfg": {"causal": True, "num_heads": 2, "qkv_proj_bias": False, "rotary_emb_base": 50.0}},
}


def loaded(config: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype | None = None) -> LanguageModel:
    ours, mine = mamba_ssm.read(config, tensors)
    model = build_empty(ours)
    fill(model, mine.items(), dtype)
    assert isinstance(model, LanguageModel)
    return model.eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_equal_to_the_published_recurrence(name: str) -> None:
    """In float64; whole, and through the state in pieces and token by token; and in float32."""
    config = CONFIGS[name]
    tensors = published_mamba.made_up(config)
    tokens = torch.randint(0, 21, (2, 11), generator=torch.Generator().manual_seed(1))
    reference = published_mamba.Published(config, tensors)
    expected = torch.stack([reference(row) for row in tokens])
    model = loaded(config, tensors, torch.float64)
    scale = expected.abs().max()
    with torch.no_grad():
        assert (model(tokens)[0] - expected).abs().max() < 1e-12 * scale
        pieces, state = [], model.initial_state(2)
        for piece in tokens.split([5, 3, 1, 1, 1], 1):
            logits, state = model(piece, state)
            pieces.append(logits)
        assert (torch.cat(pieces, 1) - expected).abs().max() < 1e-12 * scale
        assert (loaded(config, tensors)(tokens)[0] - expected).abs().max() < 1e-5 * scale


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_round_trips_are_bit_equal(name: str, head: bool) -> None:
    config = CONFIGS[name]
    tensors = published_mamba.made_up(config, head=head)
    tensors = {key: tensor.bfloat16() for key, tensor in tensors.items()}
    ours, mine = mamba_ssm.read(config, tensors)
    theirs, back = mamba_ssm.write(ours, mine)
    assert back.keys() == tensors.keys() | {"lm_head.weight"}  # their loader wants it, tied or not
    for key, tensor in tensors.items():
        assert back[key].dtype == torch.bfloat16
        assert torch.equal(back[key], tensor), key
    assert theirs["vocab_size"] == published_mamba.padded_vocabulary(config)
    again, tensors_again = mamba_ssm.read(theirs, back)
    assert to_dict(again) == to_dict(ours)
    assert all(torch.equal(tensors_again[key], tensor) for key, tensor in mine.items())


def test_each_tensor_is_used_once_and_refused_by_name() -> None:
    config = CONFIGS["attention, one bias"] | {"n_layer": 2}
    tensors = published_mamba.made_up(config)

    def refused(changed: dict[str, Tensor], *words: str) -> None:
        with pytest.raises(CheckpointError) as caught:
            mamba_ssm.read(config, changed)
        assert all(word in str(caught.value) for word in words), caught.value

    for name, tensor in tensors.items():
        if name == "lm_head.weight":  # tied, so that it may be missing
            continue
        others = {key: value for key, value in tensors.items() if key != name}
        refused(others, name, "missing")
        renamed = name.replace("weight", "wait") + "s"
        refused(others | {renamed: tensor}, name, renamed)
        headless = {key: value for key, value in tensors.items() if key != "lm_head.weight"}
        refused(headless | {name: tensor[:-1]}, name, "shape")
    refused(tensors | {"backbone.layers.9.norm.weight": torch.ones(16)}, "backbone.layers.9.norm.weight")
    refused(tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1}, "lm_head.weight", "differs")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n_layers": 3}, "n_layers=3 is unknown; did you mean 'n_layer'"),
    ({"d_model": "16"}, "d_model='16'; expected an integer"),
    ({"d_model": None}, "d_model=None; expected an integer"),
    ({"rms_norm": 1}, "rms_norm=1; expected true or false"),
    ({"attn_layer_idx": ["1"]}, "attn_layer_idx"),
    ({"ssm_cfg": []}, "ssm_cfg="),
    ({"ssm_cfg": {"layer": "Mamba4"}}, "layer='Mamba4'; expected 'Mamba1', 'Mamba2' or 'Mamba3'"),
    ({"ssm_cfg": MAMBA3 | {"rope_fraction": 0.25}}, "rope_fraction=0.25; expected 0.5 or 1.0"),
    ({"ssm_cfg": MAMBA3 | {"d_conv": 4}}, "d_conv=4 is unknown"),
    ({"ssm_cfg": MAMBA3 | {"A_activation": "exp"}}, "A_activation='exp'; expected one of softplus, heavy_tail"),
    ({"ssm_cfg": MAMBA3 | {"is_mimo": 1}}, "is_mimo=1; expected true or false"),
    ({"ssm_cfg": {"headdim": 8}}, "headdim=8 is unknown"),
    ({"ssm_cfg": {"expand": 1.5}}, "expand=1.5; expected an integer"),
    ({"ssm_cfg": {"dt_max": -1}}, "dt_max=-1; expected a number above 0"),
    ({"ssm_cfg": MAMBA2 | {"D_has_hdim": True}}, "D_has_hdim=True is not supported"),
    ({"ssm_cfg": MAMBA2 | {"rmsnorm": False}}, "rmsnorm=False is not supported"),
    ({"ssm_cfg": MAMBA2 | {"d_ssm": 8}}, "d_ssm=8 is not supported"),
    ({"ssm_cfg": MAMBA2 | {"dt_limit": [0.1]}}, r"dt_limit=\[0.1\]; expected two numbers"),
    ({"attn_cfg": {"num_heads": 4}}, "causal=False; expected true"),
    ({"attn_cfg": {"causal": True}}, "num_heads=None; expected an integer"),
    ({"attn_cfg": {"causal": True, "num_heads": 4, "mlp_dim": 256}}, "mlp_dim=256 is not supported"),
    ({"attn_cfg": {"causal": True, "num_heads": 4, "rotary_emb_interleaved": True}}, "rotary_emb_interleaved=True"),
    ({"attn_cfg": {"causal": True, "num_heads": 4, "softmax_scale": 1.0}}, "softmax_scale=1.0; expected"),
    ({"attn_cfg": {"causal": True, "num_heads": 4, "window": 4}}, "window=4 is unknown"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_fields_are_refused_by_name_and_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        mamba_ssm.from_theirs({**HYBRID, **fields})


def test_fields_that_change_nothing() -> None:
    kernels = {"use_fast_path": False, "dt_init": "constant", "dt_scale": 0.5}
    usual = {"dt_min": 0.001, "dt_max": 0.1, "dt_init_floor": 1e-4, "dt_rank": "auto"}
    plain = mamba_ssm.from_theirs(SMALL)
    assert mamba_ssm.from_theirs(SMALL | {"ssm_cfg": {"layer": "Mamba1", **kernels, **usual}}) == plain
    assert mamba_ssm.from_theirs(SMALL | {"fused_add_norm": False, "residual_in_fp32": False}) == plain
    more = {"chunk_size": 64, "use_mem_eff_path": False, "conv_init": 0.1, "sequence_parallel": False, "d_ssm": 32}
    assert mamba_ssm.from_theirs(SMALL | {"ssm_cfg": MAMBA2 | more}) == mamba_ssm.from_theirs(
        SMALL | {"ssm_cfg": MAMBA2}
    )
    drawn = mamba_ssm.from_theirs(SMALL | {"ssm_cfg": MAMBA2 | {"dt_min": 0.01, "A_init_range": [2, 3]}})
    mixer = drawn.blocks[0].mixer
    assert isinstance(mixer, sw.Mamba2Config)
    assert (mixer.dt_range, mixer.a_range) == ((0.01, 0.1), (2.0, 3.0))


def test_mamba3_as_it_was_before_june_2026() -> None:
    """A field of ours says which decay a model was trained with; that of their module today is the default."""
    config = SMALL | {"ssm_cfg": MAMBA3 | {"A_activation": "softplus", "chunk_size": 16, "dropout": 0.1}}
    tensors = published_mamba.made_up(config)
    tokens = torch.randint(0, 21, (9,), generator=torch.Generator().manual_seed(1))
    model = loaded(config, tensors, torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[None])[0][0], published_mamba.Published(config, tensors)(tokens))
    assert [block.mixer.config.decay for block in model.blocks] == ["softplus"] * 2
    with pytest.raises(CheckpointError, match="only 'heavy_tail', since June 2026"):
        mamba_ssm.write(model.config, model.state_dict())


WRITTEN: list[tuple[Callable[[], LanguageModelConfig], str]] = [
    (lambda: of(sw.S4DConfig()), "no S4D"),
    (lambda: of(sw.MambaConfig(method="zoh")), "has method='zoh'"),
    (lambda: of(sw.MambaConfig(initialization="lin")), "has initialization='lin'"),
    (lambda: of(sw.MambaConfig(norm_dt_b_c=True)), "has norm_dt_b_c=True"),
    (lambda: of(sw.Mamba2Config(d_head=8, head_pattern="multi_query")), "has head_pattern='multi_query'"),
    (lambda: of(sw.Mamba3Config(d_head=8)), "has decay='softplus'; its Mamba-3 has only 'heavy_tail'"),
    (lambda: of(sw.Mamba3Config(d_head=8, decay="heavy_tail", rope_fraction=0.2)), "has rope_fraction=0.2"),
    (lambda: of(sw.MambaConfig(), sw.MambaConfig(d_state=4)), r"layers\[1\] differs"),
    (lambda: of(sw.MambaConfig(), sw.Mamba2Config(d_head=8)), r"layers\[1\] differs"),
    (lambda: of(sw.Mamba2Config(d_head=8, n_groups=2, norm_groups=1)), "norm_groups=1"),
    (lambda: of(sw.Mamba2Config(d_head=8, norm_eps=1e-6)), "has norm_eps=1e-06"),
    (lambda: of(sw.AttentionConfig(n_heads=2, window=4)), "has window=4"),
    (lambda: of(sw.BlockConfig(mixer=sw.MambaConfig(), placement="post")), "has placement='post'"),
    (lambda: of(sw.BlockConfig(mixer=sw.MambaConfig(), norm="layer")), "has norm='layer'"),
    (lambda: of(sw.BlockConfig(mixer=sw.MambaConfig(), norm_eps=1e-6), norm_eps=1e-6), "has norm_eps=1e-06"),
    (lambda: of(sw.BlockConfig(mixer=sw.MambaConfig(), mlp=sw.MLPConfig())), "has activation='gelu'"),
    (lambda: of(sw.MambaConfig(), max_positions=8), "has max_positions=8"),
]


def of(*layers: Any, **options: Any) -> LanguageModelConfig:
    return LanguageModelConfig(vocab_size=24, d_model=16, layers=layers, **options)


@pytest.mark.parametrize(("config", "message"), WRITTEN, ids=[message for _, message in WRITTEN])
def test_what_the_format_does_not_have_is_refused(config: Callable[[], LanguageModelConfig], message: str) -> None:
    model = config().build()
    with pytest.raises(CheckpointError, match=message):
        mamba_ssm.write(model.config, model.state_dict())


def test_mlps_of_other_widths() -> None:
    gated = {"activation": "silu", "gated": True, "bias": False}
    config = of(sw.BlockConfig(mixer=sw.MambaConfig(), mlp=sw.MLPConfig(expand=8, **gated)))
    assert mamba_ssm.to_theirs(config)["d_intermediate"] == 128
    config = of(sw.BlockConfig(mixer=sw.MambaConfig(), mlp=sw.MLPConfig(expand=4, **gated)))
    with pytest.raises(CheckpointError, match="no MLP of width 64"):
        mamba_ssm.to_theirs(config)


def test_codestral() -> None:
    """params.json and a prefix: the same model as mamba_ssm's own."""
    theirs = SMALL | {"ssm_cfg": {"layer": "Mamba2", "ngroups": 2}, "d_model": 64, "pad_vocab_size_multiple": 1}
    tensors = published_mamba.made_up(theirs | {"tie_embeddings": False})
    params = {"dim": 64, "n_layers": 2, "vocab_size": 21, "n_groups": 2, "rms_norm": True, "model_type": "mamba"} | {
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 1,
        "tie_embeddings": False,
    }
    prefixed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    assert mamba_ssm.recognises(params, frozenset(prefixed))
    assert not mamba_ssm.recognises(params, frozenset(tensors))
    ours, mine = mamba_ssm.read(params, prefixed)
    expected, same = mamba_ssm.read(theirs | {"tie_embeddings": False}, tensors)
    assert ours == expected
    assert all(torch.equal(mine[name], tensor) for name, tensor in same.items())
    with pytest.raises(CheckpointError, match="n_heads=4 is unknown"):
        mamba_ssm.read(params | {"n_heads": 4}, prefixed)
    with pytest.raises(CheckpointError, match=r"model\.backbone\.norm_f\.weight is missing"):
        mamba_ssm.read(params, {k: v for k, v in prefixed.items() if "norm_f" not in k})


@pytest.mark.parametrize(
    ("preset", "fields"),
    [
        ("mamba-130m", {"ssm_cfg": {}}),
        ("mamba2-130m", {"ssm_cfg": {"layer": "Mamba2"}, "pad_vocab_size_multiple": 16}),
    ],
)
def test_published_sizes(preset: str, fields: dict[str, Any]) -> None:
    """The configs of the released models give the shapes of our presets: 50,277 tokens, padded."""
    config = {"d_model": 768, "n_layer": 24, "vocab_size": 50277, "rms_norm": True, "residual_in_fp32": True}
    config |= {"fused_add_norm": True, "pad_vocab_size_multiple": 8, **fields}
    ours = mamba_ssm.from_theirs(config)
    assert expected_shapes(ours) == expected_shapes(PRESETS[preset]())
    assert mamba_ssm.recognises(config, frozenset({"backbone.norm_f.weight"}))
    assert not mamba_ssm.recognises({**config, "model_type": "mamba"}, frozenset({"backbone.norm_f.weight"}))


def test_mamba2attn_sizes() -> None:
    """The 2.7B hybrid's published arguments; of it a few layers."""
    config = {"d_model": 2560, "n_layer": 10, "vocab_size": 50277, "pad_vocab_size_multiple": 16, "attn_layer_idx": [9]}
    config |= {"ssm_cfg": {"layer": "Mamba2"}, "d_intermediate": 0}
    config["attn_cfg"] = {"causal": True, "d_conv": 4, "head_dim": 128, "num_heads": 30, "out_proj_bias": False} | {
        "qkv_proj_bias": False,
        "rotary_emb_dim": 64,
    }
    shapes = expected_shapes(mamba_ssm.from_theirs(config))
    assert shapes["layers.9.mixer.in_proj.weight"] == (3 * 3840, 2560)
    assert shapes["layers.9.mixer.convolution.weight"] == (3 * 3840, 4)
    assert shapes["layers.9.mixer.out_proj.weight"] == (2560, 3840)


@pytest.mark.parametrize(
    "options",
    [{"n_heads": 4, "n_kv_heads": 2, "n_taps": 3, "d_rotary": 2, "output_bias": True}]
    + [{"n_heads": 2, "n_taps": 4, "window": 5, "bias": True, "output_bias": False, "positions": None}],
    ids=str,
)
def test_laws_of_convolved_attention(options: dict[str, Any]) -> None:
    torch.manual_seed(0)

    def visible(state: ConvolvedAttentionState) -> Any:
        h = state.history
        rows = [slice(int(start), int(end)) for start, end in zip(h.start, h.end)]
        return state.convolution, h.position, [(h.keys[b, r], h.values[b, r]) for b, r in enumerate(rows)]

    check_mixer_laws(sw.AttentionConfig(**options).build(8), length=13, visible=visible)


def test_states_and_options_of_convolved_attention_are_checked() -> None:
    mixer = sw.AttentionConfig(n_heads=2, n_taps=2).build(8)
    plain = sw.AttentionConfig(n_heads=2).build(8)
    x = torch.randn(1, 3, 8)
    with pytest.raises(StatewiseError, match="needs state of type ConvolvedAttentionState, got AttentionState"):
        mixer(x, plain.initial_state(1))
    with pytest.raises(StatewiseError, match="needs state of type AttentionState, got ConvolvedAttentionState"):
        plain(x, mixer.initial_state(1))
    for options in ({"n_taps": 0}, {"output_bias": "no"}):
        with pytest.raises(StatewiseError, match=rf"AttentionConfig\.{next(iter(options))}"):
            sw.AttentionConfig(n_heads=2, **options)  # type: ignore[arg-type]
    for options in ({"norm_eps": 0.0}, {"norm_dt_b_c": 1}):
        with pytest.raises(StatewiseError, match=rf"MambaConfig\.{next(iter(options))}"):
            sw.MambaConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [HYBRID, CONFIGS["mamba"]], ids=["a convolved attention", "mamba"])
def test_a_step_in_c(config: Any) -> None:
    assert refusal(loaded(config, published_mamba.made_up(config))) is None


def test_wrong_kinds_of_model_are_refused() -> None:
    config = sw.SequenceClassifierConfig(d_model=16, d_input=1, n_classes=2, layers=(sw.MambaConfig(),))
    with pytest.raises(StatewiseError, match="no SequenceClassifier"):
        mamba_ssm.write(config, {})
