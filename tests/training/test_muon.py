"""Muon: what its step is, which parameters are its own, and that a run with it goes on bit for bit."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import MIXERS
from torch import Tensor, nn
from training_runs import curve, small_model, small_run, with_train

from statewise import checkpoints
from statewise.errors import CheckpointError, ConfigError
from statewise.mixers.attention import Attention, AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.training import OptimizerConfig, RunConfig, memory_check, muon, snapshot, train_run
from statewise.training.memory_estimate import estimate_memory
from statewise.training.muon import (
    COEFFICIENTS,
    N_ITERATIONS,
    orthogonalize,
    orthogonalize_reference,
)
from statewise.training.optimizer import build_optimizer, describe_groups, parameter_groups, set_learning_rate
from statewise.training.presets import PRESETS
from statewise.training.report import Reporter

MUON = OptimizerConfig(matrices="muon", lr=1e-3)
SHAPES = [(6, 20), (20, 6), (12, 12), (1, 9), (9, 1), (40, 97)]


def matrix(shape: tuple[int, int], dtype: torch.dtype = torch.float64) -> Tensor:
    """Its singular values fall by a thousand."""
    return (torch.randn(shape, dtype=torch.float64) @ torch.logspace(0, -3, shape[1], dtype=torch.float64).diag()).to(
        dtype
    )


# -- the step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_definition_changes_the_singular_values_alone(shape: tuple[int, int]) -> None:
    a, b, c = COEFFICIENTS
    m = matrix(shape)
    u, s, v = torch.linalg.svd(m / m.norm(), full_matrices=False)
    for _ in range(N_ITERATIONS):
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(orthogonalize_reference(m), u @ s.diag() @ v, rtol=1e-9, atol=1e-9)


def test_singular_values_come_close_to_one() -> None:
    """What the definition does to each of them, over all of [0.01, 1]."""
    a, b, c = COEFFICIENTS
    s = torch.linspace(0.01, 1.0, 10_000, dtype=torch.float64)
    for _ in range(N_ITERATIONS):
        s = a * s + b * s**3 + c * s**5
    assert s.min() > 0.68
    assert s.max() < 1.14


def several(shape: tuple[int, int]) -> Tensor:
    rows, columns = sorted(shape)
    return torch.stack([matrix((rows, columns)) for _ in range(3)])


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_the_gram_matrix_are_the_definition(shape: tuple[int, int]) -> None:
    matrices = several(shape)
    expected = orthogonalize_reference(matrices)
    torch.testing.assert_close(orthogonalize(matrices), expected, rtol=1e-9, atol=1e-9)
    single = orthogonalize(matrices.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bfloat16_it_is_the_definition_to_two_digits(shape: tuple[int, int]) -> None:
    matrices = several(shape)
    found = orthogonalize(matrices.float(), rounded=True)
    assert found.dtype == torch.bfloat16
    expected = orthogonalize_reference(matrices)
    assert (found.double() - expected).norm() / expected.norm() < 0.1


def test_a_gradient_of_zeros_moves_nothing() -> None:
    zeros = torch.zeros(2, 3, 5)
    assert torch.equal(orthogonalize(zeros), zeros)
    assert not orthogonalize(zeros, rounded=True).any()


def test_sums_are_in_float32_where_the_matrix_is_not() -> None:
    matrices = several((12, 20)).to(torch.bfloat16)
    assert torch.equal(orthogonalize(matrices), orthogonalize(matrices.float()))


def test_one_step_is_muon() -> None:
    """Against the equations, in float64; the bias beside it is AdamW's."""
    config = replace(MUON, lr=0.1, matrices_lr=0.3, matrices_momentum=0.8, matrices_weight_decay=0.2)
    block = BlockConfig(mixer=AttentionConfig(n_heads=1), mlp=MLPConfig(expand=2)).build(4).double()
    optimizer = build_optimizer(parameter_groups(block, config), config)
    set_learning_rate(optimizer, 0.05)  # half of the highest: so is Muon's
    assert block.mlp is not None
    tall, wide, bias = block.mlp.in_proj.weight, block.mlp.out_proj.weight, block.mlp.in_proj.bias
    alone = torch.nn.Parameter(bias.detach().clone())
    adamw = torch.optim.AdamW([alone], lr=0.05, betas=config.betas, weight_decay=0.0)
    for layer in (tall, wide):
        expected = layer.detach().clone()
        layer.expected, layer.momentum = expected, torch.zeros_like(expected)  # type: ignore[attr-defined]
    for _ in range(3):
        for parameter in block.parameters():
            parameter.grad = torch.randn_like(parameter)
        alone.grad = bias.grad.clone()
        for layer, scale in ((tall, math.sqrt(2)), (wide, 1.0)):
            momentum = layer.momentum = 0.8 * layer.momentum + 0.2 * layer.grad
            direction = orthogonalize_reference(0.2 * layer.grad + 0.8 * momentum)
            layer.expected = (1 - 0.15 * 0.2) * layer.expected - 0.15 * scale * direction
        optimizer.step()
        adamw.step()
    for layer in (tall, wide):
        torch.testing.assert_close(layer.detach(), layer.expected, rtol=1e-8, atol=1e-8)
        assert set(optimizer.state[layer]) == {"momentum_buffer"}
    torch.testing.assert_close(bias.detach(), alone.detach())


def test_maps_in_a_fused_projection_move_apart() -> None:
    """Queries, keys and values lie in one matrix; each is orthogonalised, and scaled, by itself."""
    block = BlockConfig(mixer=AttentionConfig(n_heads=4, n_kv_heads=2, d_head=4)).build(8).double()
    assert isinstance(block.mixer, Attention)
    weight = block.mixer.in_proj.weight
    before, gradient = weight.detach().clone(), torch.randn_like(weight)
    optimizer = build_optimizer(parameter_groups(block, MUON), MUON)
    set_learning_rate(optimizer, MUON.lr)
    weight.grad = gradient
    optimizer.step()
    q, k, v = (orthogonalize_reference(part) for part in gradient.split((16, 8, 8)))
    expected = (1 - 0.02 * 0.1) * before - 0.02 * torch.cat([math.sqrt(2) * q, k, v])
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-8, atol=1e-8)


def test_so_many_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of one shape share their products, a few of them at a time."""
    moved = []
    for at_once in (1, 2**22):
        monkeypatch.setattr(muon, "AT_ONCE", at_once)
        torch.manual_seed(0)
        model = small_model().build().double()
        optimizer = build_optimizer(parameter_groups(model, MUON), MUON)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        moved.append([parameter.detach().clone() for parameter in model.parameters()])
    for one, other in zip(*moved):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_the_parts_are_those_of_the_papers() -> None:
    mamba2 = Mamba2Config(d_state=8, d_head=4, n_groups=2).build(16)
    assert mamba2.in_proj.parts == (32, 32, 16, 16, 8)  # z, x, B, C, dt
    assert mamba2.out_proj.parts == (16,)
    assert MLPConfig(expand=2, gated=True).build(16).in_proj.parts == (32, 32)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has it since 2.9")
def test_it_is_pytorchs_but_for_the_rounding() -> None:
    """Which there is bfloat16's, two digits, whatever the processor."""
    config = replace(MUON, matrices_lr=0.02)
    block = BlockConfig(mixer=AttentionConfig(n_heads=1), mlp=MLPConfig(expand=2, bias=False)).build(16)
    assert block.mlp is not None
    optimizer = build_optimizer(parameter_groups(block, config), config)
    set_learning_rate(optimizer, config.lr)
    weight = block.mlp.in_proj.weight
    before, theirs = weight.detach().clone(), nn.Parameter(weight.detach().clone())
    other = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, nesterov=True, adjust_lr_fn="original", weight_decay=0.1)
    for _ in range(3):
        weight.grad = torch.randn_like(weight)
        theirs.grad = weight.grad.clone()
        optimizer.step()
        other.step()
    moved, their = (weight - before).detach().flatten(), (theirs - before).detach().flatten()
    assert torch.nn.functional.cosine_similarity(moved, their, dim=0) > 0.999
    assert moved.norm().item() == pytest.approx(their.norm().item(), rel=0.01)
    torch.testing.assert_close(optimizer.state[weight]["momentum_buffer"], other.state[theirs]["momentum_buffer"])


# -- which parameters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", [True, False])
def test_matrices_are_the_linear_maps_within_layers(tie: bool) -> None:
    layers = (
        BlockConfig(mixer=Mamba2Config(d_state=8, d_head=8), mlp=MLPConfig(gated=True)),
        AttentionConfig(n_heads=2, positions="learned", max_positions=32),
    )
    model = LanguageModelConfig(vocab_size=11, d_model=16, layers=layers, tie_embeddings=tie).build()
    groups = {group.name: group for group in parameter_groups(model, MUON)}
    matrices = groups["matrices"]
    projections = ("mixer.in_proj", "mixer.out_proj")
    assert {name for name, _ in matrices.parameters} == {
        *(f"layers.{number}.{name}.weight" for number in (0, 1) for name in projections),
        *(f"layers.0.mlp.{name}.weight" for name in ("in_proj", "out_proj")),
    }
    assert (matrices.optimizer, matrices.lr_ratio, matrices.weight_decay) == ("Muon", 20.0, 0.1)
    maps = {name for name, _ in groups["maps"].parameters}
    assert maps == {"layers.0.mixer.convolution.weight"} | (set() if tie else {"head.weight"})
    assert all(group.optimizer == "AdamW" for name, group in groups.items() if name != "matrices")
    members = [id(p) for group in groups.values() for _, p in group.parameters]
    assert sorted(members) == sorted({id(p) for p in model.parameters()})


def test_maps_into_a_model_and_out_of_it_are_no_matrices() -> None:
    model = SequenceClassifierConfig(n_classes=3, d_input=2, d_model=16, layers=(Mamba2Config(d_head=8),)).build()
    names = {group.name: {name for name, _ in group.parameters} for group in parameter_groups(model, MUON)}
    assert {"embedding.weight", "head.weight"} <= names["maps"]


@pytest.mark.parametrize("name", MIXERS)
def test_every_family_has_its_matrices(name: str) -> None:
    """Each is one that Muon can take: a linear layer's, of two axes."""
    model = MIXERS[name].build(8)
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    found = [p for g in parameter_groups(model, MUON) if g.optimizer == "Muon" for _, p in g.parameters]
    assert found
    assert all(parameter.ndim == 2 and id(parameter) in linear for parameter in found)


def test_the_table_names_the_optimiser() -> None:
    rows = describe_groups(parameter_groups(small_model().build(), MUON), lr=1e-3)
    assert {row["group"]: (row["optimizer"], row["lr"]) for row in rows} == {
        "matrices": ("Muon", 0.02),
        **dict.fromkeys(("maps", "embeddings", "vectors", "dynamics"), ("AdamW", 0.001)),
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"matrices": "lion"}, r"matrices='lion' is unknown"),
        ({"matrices": "muon", "matrices_lr": 0.0}, r"matrices_lr=0\.0"),
        ({"matrices": "muon", "matrices_momentum": 1.0}, r"matrices_momentum=1\.0"),
        ({"matrices": "muon", "matrices_weight_decay": -0.1}, r"matrices_weight_decay=-0\.1"),
        ({"matrices_lr": 0.01}, r"matrices_lr=0\.01 is for Muon.*set train\.optimizer\.matrices=muon"),
        ({"matrices_momentum": 0.9}, r"matrices_momentum=0\.9 is for Muon"),
        ({"matrices_weight_decay": 0.0}, r"matrices_weight_decay=0\.0 is for Muon"),
    ],
)
def test_settings_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**fields)


# -- a run -------------------------------------------------------------------------------------------------------------


def muon_run(folder: Path, **settings: Any) -> RunConfig:
    return small_run(folder, **{"matrices": "muon", "lr": 1e-2, "threads": 1, "steps": 6, **settings})


class StopAt(Reporter):
    """Sends a signal at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, fraction: float, record: Any) -> None:
        if record["step"] == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def trainer_of(run: Path) -> dict[str, Tensor]:
    return checkpoints.read_trainer(checkpoints.resolve(run, "latest"))[0]


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = muon_run(tmp_path, accumulation=2, save_every=2)
    train_run(config, tmp_path / "straight")
    train_run(config, tmp_path / "stopped", reporter=StopAt(4))
    assert curve(tmp_path / "stopped", "train")[-1]["step"] == 4
    train_run(None, tmp_path / "stopped", resume=True)
    assert curve(tmp_path / "stopped", "train") == curve(tmp_path / "straight", "train")
    one, other = (trainer_of(tmp_path / name) for name in ("straight", "stopped"))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert "optimizer.momentum_buffer.layers.0.mixer.in_proj.weight" in one
    assert "optimizer.exp_avg.layers.0.mixer.in_proj.weight" not in one
    assert "optimizer.exp_avg.embedding.weight" in one


def test_it_learns(tmp_path: Path) -> None:
    """Faster than AdamW alone at the same rate for the rest."""
    losses = {}
    for matrices in ("adamw", "muon"):
        train_run(muon_run(tmp_path, matrices=matrices, lr=4e-3, steps=60), tmp_path / matrices)
        losses[matrices] = curve(tmp_path / matrices, "train")[-1]["loss"]
    assert losses["muon"] < losses["adamw"]


def test_moments_of_the_other_optimiser_are_refused(tmp_path: Path) -> None:
    config = muon_run(tmp_path, matrices="adamw", steps=1)
    train_run(config, tmp_path / "run")
    model = config.model.build()
    groups = parameter_groups(model, MUON)
    optimizer = build_optimizer(groups, MUON)
    with pytest.raises(CheckpointError, match=r"in_proj.weight by Muon; put train\.optimizer\.matrices back"):
        snapshot.restore_optimizer(optimizer, groups, trainer_of(tmp_path / "run"), lambda tensor, like: tensor)


def test_a_run_that_began_without_it_has_adamw(tmp_path: Path) -> None:
    """A run.json of before names no such field."""
    train_run(muon_run(tmp_path, matrices="adamw", steps=2), tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    written = json.loads(file.read_text())
    for name in [name for name in written["train"]["optimizer"] if name.startswith("matrices")]:
        del written["train"]["optimizer"][name]
    file.write_text(json.dumps(written))
    assert train_run(None, tmp_path / "run", resume=True).step == 2
    with pytest.raises(ConfigError, match=r"begun with another train\.optimizer\.matrices"):
        train_run(muon_run(tmp_path, steps=4), tmp_path / "run", resume=True)


def test_the_estimate_counts_one_moment(tmp_path: Path) -> None:
    found, other = (estimate_memory(muon_run(tmp_path, matrices=name)) for name in ("muon", "adamw"))
    groups = parameter_groups(small_model().build(), MUON)
    matrices = 4 * sum(group.n_parameters for group in groups if group.optimizer == "Muon")
    assert found.moments == other.moments - matrices
    assert memory_check._least(small_model().build(), MUON) == 4 * found.parameters - matrices
    sharded = with_train(muon_run(tmp_path), parallel=replace(muon_run(tmp_path).train.parallel, data="fsdp"))
    assert estimate_memory(sharded, n_ranks=2).moments == pytest.approx(found.moments / 2, abs=4)


@pytest.mark.parametrize(("has", "precision"), [({"avx512_bf16": True}, "bfloat16"), ({"avx2": True}, "float32")])
def test_the_demo_is_in_bfloat16_where_the_processor_is(
    monkeypatch: pytest.MonkeyPatch, has: dict[str, bool], precision: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    train_config = PRESETS["demo"]().train
    assert (train_config.precision, train_config.optimizer.matrices) == (precision, "muon")
