"""Mixtures of experts: the definition, routing, gradients, blocks with them, and what nobody may mix up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from families import MIXERS
from laws import check_mixer_laws

import statewise as sw
from statewise.errors import ConfigError
from statewise.kernels.batching import nothing_read
from statewise.mixers.base import Mixer
from statewise.models.moe import MoE, moe_reference
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

PLAIN = sw.MLPConfig(expand=1.5, activation="relu2")
MIXTURES: dict[str, dict[str, Any]] = {
    "softmax": {"router": "softmax"},
    "softmax, shared": {"normalize": True, "shared": PLAIN, "shared_gate": True},
    "chosen": {"router": "softmax_chosen", "gated": False, "activation": "relu2", "route_scale": 0.5},
    "sigmoid": {"router": "sigmoid", "normalize": True, "route_scale": 2.5, "shared": PLAIN},
    "sigmoid, groups": {"router": "sigmoid", "correction_bias": True, "n_groups": 3, "n_groups_active": 2},
    "latent": {"d_latent": 5, "latent_bias": True, "gated": False, "activation": "relu2"},
    "one": {"n_active": 1, "normalize": True},
    "all": {"n_active": 6},
}


def built(name: str, **fields: Any) -> MoE:
    torch.manual_seed(0)
    config = sw.MoEConfig(
        **({"n_experts": 6, "n_active": 3, "expand": 1.3, "weight_std": 0.5} | MIXTURES[name] | fields)
    )
    moe = config.build(8).double()
    moe.reset_parameters()
    if moe.router.bias is not None:
        moe.router.bias.normal_()
    return moe


@pytest.mark.parametrize("name", MIXTURES)
def test_the_definition(name: str) -> None:
    moe, x = built(name), torch.randn(2, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(moe(x), moe_reference(moe, x), atol=1e-12, rtol=1e-12)
    assert moe(x[:, :0]).shape == (2, 0, 8)


@pytest.mark.parametrize("name", MIXTURES)
def test_gradients_are_those_of_the_definition(name: str) -> None:
    moe, x = built(name), torch.randn(1, 5, 8, dtype=torch.float64, requires_grad=True)
    inputs = (x, *moe.parameters())
    weight = torch.randn(1, 5, 8, dtype=torch.float64)
    found = torch.autograd.grad((moe(x) * weight).sum(), inputs)
    expected = torch.autograd.grad((moe_reference(moe, x) * weight).sum(), inputs)
    for have, want in zip(found, expected):
        torch.testing.assert_close(have, want, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", MIXTURES)
def test_all_experts_at_once_where_nothing_may_be_read(name: str) -> None:
    moe, x = built(name), torch.randn(2, 9, 8, dtype=torch.float64)
    with nothing_read():
        torch.testing.assert_close(moe(x), moe_reference(moe, x), atol=1e-12, rtol=1e-12)


def test_a_step_does_not_depend_on_others() -> None:
    moe, x = built("sigmoid, groups").float(), torch.randn(40, 8)
    whole = moe(x)
    for i in (0, 7, 39):
        torch.testing.assert_close(moe(x[i : i + 1]), whole[i : i + 1])


def test_no_expert_reads_a_step_that_did_not_choose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moe, read = built("softmax"), []
    expert = type(moe.experts).expert

    def counted(self: Any, x: torch.Tensor, *maps: torch.Tensor) -> torch.Tensor:
        read.append(len(x))
        return expert(self, x, *maps)

    monkeypatch.setattr(type(moe.experts), "expert", counted)
    moe(torch.randn(4, 8, dtype=torch.float64))
    assert sum(read) == 4 * 3
    assert all(read)


def test_rounding_does_not_choose() -> None:
    """Under autocast the scores are those of float32."""
    moe, x = built("softmax").float(), torch.randn(50, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert moe.router(x).chosen.equal(moe.router(x).chosen)
        chosen = moe.router(x).chosen
    assert chosen.equal(moe.router(x).chosen)


@pytest.mark.parametrize("name", ["softmax, shared", "sigmoid, groups", "latent"])
@pytest.mark.parametrize("mixer", [None, sw.Mamba2Config(d_state=4, d_head=4, chunk_length=4)])
def test_a_model_keeps_the_laws(name: str, mixer: sw.MixerConfig | None) -> None:
    config = built(name).config
    block = sw.BlockConfig(mixer=mixer, mlp=config, branch_scale=0.5)
    torch.manual_seed(1)
    model = sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=(block, block)).build().double().eval()
    tokens, lengths = torch.randint(11, (3, 12)), torch.tensor([12, 5, 1])
    logits, _ = model(tokens, model.initial_state(3), lengths=lengths)
    pieces, after = [], model.initial_state(3)
    for piece in tokens.split([1, 4, 7], 1):
        y, after = model(piece, after)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1)[0], logits[0])
    for row, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(logits[row, :n], model(tokens[row : row + 1, :n])[0][0])
    starts = torch.zeros(1, 12, dtype=torch.bool)
    starts[0, [0, 5]] = True
    packed = model(tokens[:1], starts=starts)[0][0]
    torch.testing.assert_close(packed[5:], model(tokens[:1, 5:])[0][0])


@pytest.mark.parametrize("name", ["Mamba-2 beside attention", "Mamba-2 behind a Transformer"])
def test_mixers_that_hold_mixers_keep_the_laws(name: str) -> None:
    mixer = MIXERS[name].build(8)
    assert isinstance(mixer, Mixer)
    check_mixer_laws(mixer, length=11, visible=lambda state: state[1])


def test_every_parameter_is_in_a_group_of_the_optimiser() -> None:
    model = sw.LanguageModelConfig(
        vocab_size=11, d_model=8, layers=(sw.BlockConfig(mixer=None, mlp=built("latent").config),)
    ).build()
    assert {name for group in parameter_groups(model, OptimizerConfig()) for name, _ in group.parameters} >= {
        "layers.0.mlp.experts.in_proj"
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_active": 7}, "n_active=7 of 6 experts"),
        ({"n_groups": 4}, "n_groups=4 does not divide"),
        ({"n_groups": 2}, 'need router="sigmoid"'),
        ({"correction_bias": True}, 'need router="sigmoid"'),
        ({"router": "softmax_chosen", "normalize": True}, "whose weights sum to 1"),
        ({"shared_gate": True}, "without a shared MLP"),
        ({"latent_bias": True}, "without d_latent"),
        ({"router": "sigmoid", "n_groups": 2, "n_groups_active": 3}, "more than n_groups=2"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(sw.MoEConfig(n_experts=6, n_active=3), **fields)
