"""The losses of routers against their definition and transformers', in parts, with padding; biases; loads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.models.moe import MoE, Router
from statewise.models.routers import Routers
from statewise.models.routing import routed, router_loss, router_losses_reference

ROUTERS = ("softmax", "softmax_chosen", "sigmoid")


def drawn(n: int = 40, n_experts: int = 6, n_active: int = 2) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    scores = (2.0 * torch.randn(n, n_experts, dtype=torch.float64)).requires_grad_()
    return scores, scores.topk(n_active, -1).indices


def whole_loss(scores: Tensor, chosen: Tensor, router: str, valid: Tensor | None = None, **weights: float) -> Tensor:
    seen = routed(scores, chosen, router, valid)
    return router_loss(seen, seen.counts, chosen.shape[1], **weights)


def mixture(**fields: Any) -> sw.LanguageModel:
    torch.manual_seed(0)
    experts = sw.MoEConfig(**({"n_experts": 5, "n_active": 2, "expand": 1, "weight_std": 0.5} | fields))
    layers = tuple(sw.BlockConfig(mixer=sw.Mamba2Config(d_state=4, d_head=4), mlp=experts) for _ in range(2))
    return sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=layers).build().double().train()


def first_router(model: sw.LanguageModel) -> Router:
    mlp = model.blocks[0].mlp
    assert isinstance(mlp, MoE)
    return mlp.router


@pytest.mark.parametrize("router", ROUTERS)
def test_the_definition(router: str) -> None:
    scores, chosen = drawn()
    balance, z = router_losses_reference(scores, chosen, router)
    expected = 0.3 * balance + 0.2 * z
    found = whole_loss(scores, chosen, router, balance=0.3, z=0.2)
    torch.testing.assert_close(found, expected)
    for have, want in zip(*(torch.autograd.grad(loss, scores) for loss in (found, expected))):
        torch.testing.assert_close(have, want)


def test_transformers_have_the_same() -> None:
    modeling = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    scores, chosen = drawn()
    theirs = modeling.load_balancing_loss_func((scores.float(),), 6, 2)
    torch.testing.assert_close(whole_loss(scores, chosen, "softmax", balance=1.0).float(), theirs)
    mask = torch.arange(10) < torch.tensor([[10], [3], [0], [7]])
    theirs = modeling.load_balancing_loss_func((scores.float(),), 6, 2, mask.long())
    torch.testing.assert_close(whole_loss(scores, chosen, "softmax", mask.flatten(), balance=1.0).float(), theirs)


def test_what_the_numbers_mean() -> None:
    """n_active in balance, n_experts where one expert gets all."""
    even = torch.eye(4).repeat(3, 1)
    torch.testing.assert_close(whole_loss(even, even.topk(1, -1).indices, "softmax", balance=1.0), torch.tensor(1.0))
    one = torch.tensor([[100.0, 0.0, 0.0, 0.0]]).repeat(9, 1)
    torch.testing.assert_close(whole_loss(one, one.topk(1, -1).indices, "softmax", balance=1.0), torch.tensor(4.0))
    torch.testing.assert_close(whole_loss(one, one.topk(1, -1).indices, "softmax", z=1.0), torch.tensor(1e4))


@pytest.mark.parametrize("router", ROUTERS)
def test_padding_does_not_count(router: str) -> None:
    scores, chosen = drawn()
    valid = torch.rand(len(scores)) < 0.6
    filled = scores.detach().masked_fill(~valid[:, None], torch.inf)
    found = whole_loss(filled, chosen, router, valid, balance=0.3, z=0.2)
    torch.testing.assert_close(found, whole_loss(scores[valid], chosen[valid], router, balance=0.3, z=0.2))
    nobody = whole_loss(scores, chosen, router, torch.zeros_like(valid), balance=0.3, z=0.2)
    assert nobody == 0.0


@pytest.mark.parametrize("router", ROUTERS)
def test_parts_add_up_to_the_whole(router: str) -> None:
    scores, chosen = drawn()
    parts = [routed(scores[rows], chosen[rows], router) for rows in (slice(0, 7), slice(7, 8), slice(8, 40))]
    counts = torch.stack([part.counts for part in parts]).sum(0)
    found = torch.stack([router_loss(part, counts, 2, balance=0.3, z=0.2) for part in parts]).sum()
    expected = whole_loss(scores, chosen, router, balance=0.3, z=0.2)
    torch.testing.assert_close(found, expected)
    for have, want in zip(*(torch.autograd.grad(loss, scores) for loss in (found, expected))):
        torch.testing.assert_close(have, want)


def loss_of(model: sw.LanguageModel, tokens: Tensor, **how: Tensor) -> Tensor:
    routers = Routers(model)
    with routers:
        model(tokens, **how)
    return routers.loss(balance=0.3, z=0.2)


def test_padded_and_packed_rows_are_the_rows() -> None:
    model, tokens = mixture(), torch.randint(11, (2, 9))
    packed = torch.cat([tokens[0, :9], tokens[1, :4]])[None]
    starts = torch.zeros_like(packed, dtype=torch.bool)
    starts[0, [0, 9]] = True
    expected = loss_of(model, packed, starts=starts)
    torch.testing.assert_close(loss_of(model, tokens, lengths=torch.tensor([9, 4])), expected)
    routers = Routers(model)
    with routers:
        model(tokens[:1])
        model(tokens[1:, :4])  # two calls of a batch
    torch.testing.assert_close(routers.loss(balance=0.3, z=0.2), expected)


def test_blocks_that_are_computed_again_are_counted_once() -> None:
    found = []
    for again in (False, True):
        model = mixture(router="sigmoid", correction_bias=True)
        model.gradient_checkpointing = again
        routers, tokens = Routers(model), torch.arange(22).view(2, 11) % 11
        for _ in range(2):
            with routers:
                logits, _ = model(tokens)
            (logits.square().mean() + routers.loss(balance=0.3, z=0.2)).backward()
        load = routers.step(0.25)
        found.append((load, [p.grad for p in model.parameters()], first_router(model).bias))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0], found[1])


def test_biases_move_against_the_load() -> None:
    model = mixture(router="sigmoid", correction_bias=True)
    routers, tokens = Routers(model, losses=False), torch.randint(11, (4, 30))
    with routers:
        model(tokens)
    assert routers.loss() == 0.0
    assert routers.losses is False
    chosen: list[Tensor] = []
    hook = first_router(model).register_forward_hook(lambda module, args, out: chosen.append(out.chosen))
    model(tokens)
    hook.remove()
    counts = chosen[0].flatten().bincount(minlength=5)
    load = routers.step(0.25)
    assert load == routers.load >= float(counts.max()) * 5 / (2 * 120) > 1.0
    torch.testing.assert_close(first_router(model).bias, 0.25 * (2 * 120 / 5 - counts.double()).sign())
    before = routers.load
    for _ in range(60):
        with routers:
            model(tokens)
        routers.loss()
        routers.step(0.02)
    assert routers.load < min(1.25, before)


def test_evaluation_and_other_calls_are_not_counted() -> None:
    model, tokens = mixture(), torch.randint(11, (2, 9))
    routers = Routers(model)
    model(tokens)
    assert routers.step() is None
    with routers:
        model.eval()(tokens)
    with pytest.raises(InputError, match=r"layers.0.mlp.router has read nothing; call the model in training mode"):
        routers.loss()
    counting = Routers(model.train(), losses=False)
    with counting:
        model(tokens)
    with pytest.raises(InputError, match=r"balance=0.1 and z=0.0 of routers that only count; make them with losses="):
        counting.loss(balance=0.1)
    with pytest.raises(InputError, match=r"layers.0.mlp.router has no bias to move; set correction_bias=True"):
        counting.step(0.1)
    with pytest.raises(ConfigError, match="the model has no mixture of experts; give a layer mlp=MoEConfig"):
        Routers(torch.nn.Linear(2, 2))
