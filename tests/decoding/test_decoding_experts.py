"""Mixtures of experts in the C step: what no other row changes, what rounding does not choose, and odd widths.

That the step is the model's own, with every router, is in ``test_decoding_law.py`` ("experts").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from decoded_models import Block, build, needs_library, tokens_of

import statewise as sw
from statewise import native
from statewise.decoding import PRECISIONS, Decoder, dequantised
from statewise.decoding.packing import pack, pack_experts
from statewise.models.moe import MoE

pytestmark = needs_library


@pytest.fixture(autouse=True)
def same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def mixture(**fields: Any) -> sw.MoEConfig:
    return sw.MoEConfig(**({"n_experts": 6, "n_active": 2, "expand": 1.0, "normalize": True} | fields))


def model_of(*mixtures: sw.MoEConfig, d_model: int = 22) -> sw.LanguageModel:
    return build(tuple(Block(mixer=sw.GatedConvolutionConfig(), mlp=mlp) for mlp in mixtures), d_model=d_model)


@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("precision", ["int8", "int4"])
@torch.no_grad()
def test_a_row_does_not_depend_on_the_others(precision: str, instructions: str) -> None:
    """Whoever else reads an expert: the sums of integers are exact, and experts are added up in one order."""
    model, tokens = model_of(mixture(), mixture(router="sigmoid", correction_bias=True)), tokens_of(9, 3)
    with native.forced(instructions):
        decoder = Decoder(model, precision)
        together = decoder.run(decoder.initial_state(9))
        logits = torch.stack([together.step(tokens[:, t]) for t in range(3)], 1)
        for row in range(9):
            alone = decoder.run(decoder.initial_state(1))
            for t in range(3):
                assert torch.equal(alone.step(tokens[row : row + 1, t])[0], logits[row, t])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "fields",
    [
        {"expand": 0.05},  # a hidden width of 15
        {"expand": 1.1, "gated": False, "activation": "gelu"},  # of 333: more than a tile
        {"n_experts": 1, "n_active": 1},
        {"n_experts": 5, "n_active": 5, "d_latent": 261},
    ],
    ids=["narrow", "wide", "one", "all"],
)
@torch.no_grad()
def test_widths_that_fill_nothing(fields: dict[str, Any], precision: str) -> None:
    model = model_of(mixture(**fields), d_model=303)
    decoder, reference = Decoder(model, precision), dequantised(model, precision)
    tokens = tokens_of(5, 1)
    wanted, _ = reference(tokens)
    for n_threads in (1, 3):
        torch.set_num_threads(n_threads)
        found, _ = decoder(tokens)
        tolerance = (1e-5 if precision in ("float32", "bfloat16") else 3e-4) * float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


@torch.no_grad()
def test_nan_spoils_its_own_row_and_an_infinite_score_only_its_own() -> None:
    model = model_of(
        mixture(), mixture(router="softmax_chosen", normalize=False), mixture(router="sigmoid", n_groups=3)
    )
    model.embedding.weight[5], model.embedding.weight[7] = torch.nan, torch.inf
    model.head.weight = torch.nn.Parameter(torch.randn(61, 22))
    expected, _ = Decoder(model)(torch.tensor([6, 8]))
    logits, _ = Decoder(model)(torch.tensor([5, 6, 7, 8, 5, 5, 7]))
    assert logits is not None
    assert logits[[0, 2, 4, 5, 6]].isnan().all()
    torch.testing.assert_close(logits[[1, 3]], expected)


def test_what_chooses_is_not_rounded() -> None:
    model = model_of(mixture(shared=sw.MLPConfig(), shared_gate=True))
    rounded = dequantised(model, "int4")
    before, after = model.blocks[0].mlp, rounded.blocks[0].mlp
    assert isinstance(before, MoE)
    assert isinstance(after, MoE)
    assert after.router.map.weight.equal(before.router.map.weight)
    assert before.shared_gate is not None
    assert after.shared_gate is not None
    assert after.shared_gate.weight.equal(before.shared_gate.weight)
    assert not after.experts.in_proj.equal(before.experts.in_proj)
    assert torch.unique(after.experts.out_proj[2, 0]).numel() <= 16


def rows_of(data: torch.Tensor, n: int) -> torch.Tensor:
    """Without those that fill the last block."""
    return data.transpose(1, 2).flatten(0, 1)[:n]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_experts_lie_one_behind_the_other_and_gates_beside_values(precision: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 2 * 37, 21)
    packed = pack_experts(weight, precision, turns=2)
    assert packed.n_rows == 2 * 48
    assert len(packed.data) == 3 * 6
    for expert in range(3):
        for turn in range(2):
            own = pack(weight[expert, 37 * turn : 37 * (turn + 1)], precision)
            found = packed.data[6 * expert + turn : 6 * expert + 6 : 2]
            assert torch.equal(rows_of(found, 37), rows_of(own.data, 37))
    plain = pack_experts(weight, precision)
    assert (plain.n_rows, len(plain.data)) == (74, 3 * 5)
    assert torch.equal(rows_of(plain.data[5:10], 74), rows_of(pack(weight[1], precision).data, 74))


def test_a_step_of_a_mixture_holds_all_experts_once() -> None:
    def n_bytes(n_experts: int) -> int:
        return Decoder(model_of(mixture(n_experts=n_experts), d_model=32), "int8").n_bytes

    one_more = n_bytes(7) - n_bytes(6)
    of_an_expert = 2 * 32 * 32 + 2 * 2 * 32 + 32 * 32 + 2 * 32  # bytes of numbers, and scales of rows
    assert one_more == of_an_expert  # the map that chooses is in blocks of 16 rows


def test_mixers_that_other_mixers_cannot_hold_are_refused() -> None:
    inner = sw.SharedTransformerConfig(
        mixer=sw.GatedConvolutionConfig(), attention=sw.AttentionConfig(n_heads=2, d_head=6), mlp=sw.MLPConfig()
    )
    for second, said in ((inner, "SharedTransformer, which the step has only by itself"), (sw.S4DConfig(), "is a S4D")):
        config = sw.ParallelMixersConfig(first=sw.GatedConvolutionConfig(), second=second)
        with pytest.raises(sw.InputError, match=said):
            Decoder(build((config,)))
