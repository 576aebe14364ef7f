"""The law of decoding: one step in C is the model's own ``forward``, for every mixer that the table of steps names.

With every option: a model is refused, or its step is the same function. A new mixer, and a new option of an old one,
are in it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from decoded_models import LAYERS, build, needs_library, options, ragged_state, said, tokens_of
from torch import Tensor

import statewise as sw
from statewise import native
from statewise.decoding import PRECISIONS, Decoder, dequantised, refusal
from statewise.errors import StatewiseError

LENGTH = 12
Step = tuple[Tensor | None, Tensor | None]  # lengths and starts


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def masks_of(batch: int, length: int) -> list[Step]:
    """Every third step some rows pause, every fourth some begin a document."""
    generator = torch.Generator().manual_seed(7)
    lengths = [torch.randint(2, (batch,), generator=generator) if t % 3 == 2 else None for t in range(length)]
    starts = [torch.rand(batch, 1, generator=generator) < 0.5 if t % 4 == 3 else None for t in range(length)]
    return list(zip(lengths, starts))


def expected(model: sw.LanguageModel, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
    """(batch, length, vocabulary), 0 where a row pauses, and the state at the end. What lies between two pauses is one
    call."""
    masks, pieces, first = masks_of(*tokens.shape), [], 0
    none = torch.zeros(len(tokens), 1, dtype=torch.bool)
    while first < len(masks):
        end = first + 1
        while masks[first][0] is None and end < len(masks) and masks[end][0] is None:
            end += 1
        lengths = masks[first][0]
        starts = torch.cat([none if starts is None else starts for _, starts in masks[first:end]], 1)
        logits, state = model(tokens[:, first:end], state, lengths=lengths, starts=starts)
        pieces.append(logits if lengths is None else logits.where(lengths[:, None, None] > 0, 0.0))
        first = end
    return torch.cat(pieces, 1), state


def decoded(decoder: Any, tokens: Tensor, state: Any) -> tuple[Tensor, Any, Any]:
    """The logits and the state by fresh states, and the state in place; the logits must be the same bits."""
    running, columns = decoder.run(state), []
    for t, (lengths, starts) in enumerate(masks_of(*tokens.shape)):
        logits, state = decoder(tokens[:, t : t + 1], state, lengths=lengths, starts=starts)
        assert torch.equal(logits[:, 0], running.step(tokens[:, t], lengths=lengths, starts=starts))
        columns.append(logits)
    return torch.cat(columns, 1), state, running.state


def assert_same_bits(ones: list[Tensor], others: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def rounding(precision: str) -> float:
    """Of the largest logit: that of float32; where the matrices are integers that of x to 16 bits, layer upon layer."""
    return 3e-6 if precision in ("float32", "bfloat16") else 3e-4


def assert_close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    scale = wanted.abs().max()
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=tolerance)


@torch.no_grad()
def check_step(
    model: sw.LanguageModel,
    precision: str,
    group: int | None = None,
    *,
    batches: tuple[int, ...] = (3,),
    threads: tuple[int, ...] = (1, 3),
    slack: float = 1,
) -> None:
    """On any number of threads the same bits, and those of ``forward`` to rounding, also of the state, which the model
    goes on from. No state that was given changes."""
    tolerance = slack * rounding(precision)
    decoder, reference = Decoder(model, precision, group=group), dequantised(model, precision, group=group)
    for batch in batches:
        tokens = tokens_of(batch, LENGTH)
        for state in (model.initial_state(batch), ragged_state(reference, batch)):
            before = [leaf.clone() for leaf in said(model, state)]
            for n_threads in threads:
                torch.set_num_threads(n_threads)
                logits, after, in_place = decoded(decoder, tokens, state)
                leaves = said(model, after)
                assert_same_bits(leaves, said(model, in_place))
                if n_threads == threads[0]:
                    first = [logits, *leaves]
                assert_same_bits(first, [logits, *leaves])
            torch.set_num_threads(1)
            assert_same_bits(before, said(model, state))
            wanted, end = expected(reference, tokens, state)
            assert_close(logits, wanted, tolerance)
            for one, other in zip(leaves, said(model, end), strict=True):
                size = float(other.abs().sum()) / max(1, other.numel())
                torch.testing.assert_close(one, other, rtol=7 * tolerance, atol=7 * tolerance * max(1.0, size))
            for state_of_c in (after, in_place):
                assert_close(reference(tokens[:, :2], state_of_c)[0], reference(tokens[:, :2], end)[0], tolerance)


OPTIONS = list(options())
FIRST = {type(option.values[0]): option.values[0] for option in reversed(OPTIONS)}


@needs_library
@pytest.mark.parametrize("config", OPTIONS)
def test_every_option_of_every_mixer(config: Any) -> None:
    """Several threads, which wait for each other on a busy machine, for the first option of a mixer."""
    try:
        model = build((config,), d_model=24)
        model(tokens_of(1, LENGTH + 8))
    except StatewiseError:  # it reads in both directions, or not so far
        return
    if refused := refusal(model):
        assert refused.startswith("layers[0] is ")
    else:
        # a key of one number, made of length 1, is its sign: with a slope of 1,000 at 0, which rounding passes by
        threads = (1, 3) if FIRST[type(config)] is config else (1,)
        check_step(model, "float32", threads=threads, slack=4 if getattr(config, "d_key", None) == 1 else 1)


@needs_library
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layers", LAYERS)
def test_every_layer_in_every_precision(layers: str, precision: str) -> None:
    options: dict[str, Any] = {"tie_embeddings": layers != "hybrid"}
    if layers == "mamba":
        options = {"norm": "layer", "max_positions": 20}
    if layers == "rwkv":
        options = {"norm": "layer", "embedding_norm": "layer", "embedding_scale": 3.0, "max_positions": 40}
    if layers == "scaled":
        options = {"embedding_scale": 12.0, "logit_scale": 0.25, "max_positions": 20}
    if layers == "experts":
        options = {"logit_cap": 3.0}
    if layers == "beside":
        options = {"norm": None, "max_positions": 20, "position_offset": 2, "d_embedding": 10}
    group = 8 if precision == "int8" and layers == "hybrid" else None
    threads = (1, 3) if precision == "float32" else (1,)  # the matrices of each precision are split in the next test
    check_step(build(layers, **options), precision, group, threads=threads)


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_instruction_set_and_batch(precision: str, instructions: str) -> None:
    with native.forced(instructions):
        check_step(build("hybrid", d_model=44), precision, batches=(1, 3, 17))


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize(
    ("layers", "precision"),
    [
        ("fast weights", "float32"),
        ("gated memories", "float32"),
        ("turning", "float32"),
        *(("latent", precision) for precision in PRECISIONS),
    ],
)
def test_every_instruction_set_of_memories(layers: str, precision: str, instructions: str) -> None:
    with native.forced(instructions):
        check_step(build(layers), precision, batches=(2,), threads=(1, 2))


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@torch.no_grad()
def test_latents_of_a_long_history(instructions: str) -> None:
    """Longer than the keys that are read at once, and heads of which not all are taken together."""
    model = build((sw.LatentAttentionConfig(n_heads=6, d_key=5, d_value=3, d_shared=3, rank=21),))
    tokens = tokens_of(2, 160)
    _, state = model(tokens[:, :150], model.initial_state(2), lengths=torch.tensor([150, 70]))
    wanted, _ = model(tokens[:, 150:], state)
    with native.forced(instructions):
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            running = Decoder(model).run(state)
            found = torch.stack([running.step(token) for token in tokens[:, 150:].unbind(1)], 1)
            assert_close(found, wanted, rounding("float32"))
