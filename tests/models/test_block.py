"""Blocks: where the norm stands, which norm it is, and batch norm over real positions."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from laws import check_mixer_laws
from torch import nn

import statewise as sw
from statewise.configuration import from_dict
from statewise.errors import ConfigError
from statewise.mixers.base import Mixer
from statewise.mixers.s4d import S4DConfig
from statewise.models.batch_norm import BatchNorm
from statewise.models.block import Block
from statewise.models.registry import CONFIG_TYPES

MIXER = S4DConfig(d_state=4)
MLP = sw.MLPConfig(expand=2)


def randomised(config: sw.BlockConfig, d_model: int = 4) -> Block:
    """In evaluation mode, with norms that are no identity."""
    torch.manual_seed(0)
    block = config.build(d_model).double().eval()
    with torch.no_grad():
        for module in block.modules():
            if isinstance(module, BatchNorm):
                module.running_mean.normal_()
                module.running_variance.uniform_(0.5, 2.0)
            if isinstance(module, (BatchNorm, nn.LayerNorm, nn.RMSNorm)):
                module.weight.uniform_(0.5, 1.5)
    return block


@pytest.mark.parametrize("norm", ["rms", "layer", "batch"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("mlp", [None, MLP])
def test_the_norm_stands_where_the_config_says(norm: str, placement: str, mlp: sw.MLPConfig | None) -> None:
    block = randomised(sw.BlockConfig(mixer=MIXER, mlp=mlp, norm=norm, placement=placement))
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    y, _ = block(x)
    branches = [(block.mixer_norm, lambda z: block.mixer(z)[0])]
    if mlp is not None:
        branches.append((block.mlp_norm, block.mlp))
    want = x
    for a_norm, f in branches:
        want = want + f(a_norm(want)) if placement == "pre" else a_norm(want + f(want))
    torch.testing.assert_close(y, want)


@pytest.mark.parametrize("norm", ["rms", "layer", "batch"])
def test_both_branches_read_the_same_where_they_are_parallel(norm: str) -> None:
    block = randomised(sw.BlockConfig(mixer=MIXER, mlp=MLP, norm=norm, placement="parallel"))
    assert block.mlp is not None
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    want = x + block.mixer(block.mixer_norm(x))[0] + block.mlp(block.mlp_norm(x))
    torch.testing.assert_close(block(x)[0], want)
    with pytest.raises(ConfigError, match='placement="parallel" without an mlp'):
        sw.BlockConfig(mixer=MIXER, placement="parallel")


def test_laws() -> None:
    """In evaluation mode batch norm is a fixed map, so that streaming is exact."""
    config = sw.BlockConfig(mixer=MIXER, mlp=MLP, norm="batch", placement="post")
    check_mixer_laws(cast(Mixer, randomised(config, d_model=3)), length=5)


def test_batch_norm_equals_torch_in_training_and_after() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(5), nn.BatchNorm1d(5)
    for _ in range(4):
        x = 3 * torch.randn(6, 7, 5) + 2
        torch.testing.assert_close(ours(x), theirs(x.mT).mT, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_variance, theirs.running_var)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x.mT).mT, atol=1e-5, rtol=1e-5)


def test_batch_norm_counts_real_positions_only() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([7, 3, 0])
    norm, other = BatchNorm(4).double(), BatchNorm(4).double()
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    for row, n in enumerate(lengths.tolist()):
        x[row, n:] = float("nan")
    x.requires_grad_()
    y = norm(x, lengths)
    real = torch.cat([x[0, :7], x[1, :3]])
    want = other(real[None])[0]
    torch.testing.assert_close(torch.cat([y[0, :7], y[1, :3]]), want)
    torch.testing.assert_close(norm.running_mean, other.running_mean)
    torch.testing.assert_close(norm.running_variance, other.running_variance)
    weights = torch.randn(10, 4, dtype=torch.float64)
    actual = torch.autograd.grad((torch.cat([y[0, :7], y[1, :3]]) * weights).sum(), [x, norm.weight, norm.bias])
    expected = torch.autograd.grad((want * weights).sum(), [x, other.weight, other.bias])
    assert all(g.isfinite().all() for g in actual)
    torch.testing.assert_close(actual, expected)


def test_batch_norm_without_a_real_position_changes_nothing() -> None:
    norm = BatchNorm(4)
    y = norm(torch.full((2, 3, 4), float("nan")), torch.tensor([0, 0]))
    assert y.isfinite().all()
    assert (norm.running_mean == 0).all()
    assert (norm.running_variance == 1).all()
    norm(torch.randn(1, 1, 4))  # a single one has no variance
    assert norm.running_variance.isfinite().all()


def test_batch_norm_in_bfloat16_computes_in_float32() -> None:
    torch.manual_seed(0)
    x = 100 + torch.randn(4, 50, 3)
    y = BatchNorm(3)(x.to(torch.bfloat16))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), BatchNorm(3)(x.to(torch.bfloat16).float()), atol=0.02, rtol=0.02)


def test_training_with_a_state_uses_the_statistics_of_the_piece() -> None:
    torch.manual_seed(0)
    block = sw.BlockConfig(mixer=MIXER, norm="batch").build(4)
    x = torch.randn(2, 20, 4)
    y, state = block(x[:, :10], block.initial_state(2))
    _, state = block(x[:, 10:], state)
    assert state is not None
    torch.testing.assert_close(y, block(x[:, :10])[0])
    assert (block.mixer_norm.running_mean != 0).all()


def test_dropout_and_reset() -> None:
    torch.manual_seed(0)
    block = sw.BlockConfig(mixer=MIXER, norm="batch", placement="post", dropout=0.5).build(4)
    x = torch.randn(2, 9, 4)
    assert not torch.equal(block(x)[0], block(x)[0])
    block.reset_parameters()
    assert (block.mixer_norm.running_mean == 0).all()


def test_configs_from_before_still_load() -> None:
    data = {"mixer": {"type": "Mamba2Config"}, "norm": "layer", "norm_eps": 1e-6}
    block = from_dict(sw.BlockConfig, data, types=CONFIG_TYPES)
    assert (block.placement, block.norm) == ("pre", "layer")
    before = {"mixer_norm.weight", "mlp_norm.weight"}
    names = set(sw.BlockConfig(mixer=sw.Mamba2Config(d_state=4, d_head=4), mlp=MLP).build(4).state_dict())
    assert {name for name in names if "norm" in name and "mixer.norm" not in name} == before


def test_running_statistics_are_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = sw.BlockConfig(mixer=sw.Mamba2Config(d_state=4, d_head=4), norm="batch", placement="post")
    model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(layer,)).build()
    tokens = torch.randint(0, 9, (2, 30))
    model(tokens)
    sw.save(model, tmp_path / "model")
    again = sw.load(tmp_path / "model")
    torch.testing.assert_close(again.eval()(tokens)[0], model.eval()(tokens)[0])


@pytest.mark.parametrize(("field", "value"), [("norm", "group"), ("placement", "middle")])
def test_unknown_options_are_refused(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}='{value}'"):
        sw.BlockConfig(mixer=MIXER, **{field: value})
