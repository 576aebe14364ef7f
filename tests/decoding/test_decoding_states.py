"""States that a decoder is given: however they lie in memory, of other models, and copies that go on alone."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from decoded_models import VOCABULARY, build, needs_library, ragged_state, recurrent_leaves, tokens_of
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import statewise as sw
from statewise.decoding import PRECISIONS, Decoder
from statewise.errors import InputError


def steps(decoder: Any, state: Any, tokens: Tensor, *, own: bool) -> tuple[list[Tensor], Any]:
    out = []
    running = decoder.run(state) if own else None
    for t in range(tokens.shape[1]):
        if running is None:
            logits, state = decoder(tokens[:, t], state)
            out.append(logits)
        else:
            out.append(running.step(tokens[:, t]))
    return out, state if running is None else running.state


VIEWS: dict[str, Any] = {
    "expanded": lambda x: x[:1].expand(4, *x.shape[1:]),
    "even rows": lambda x: x[::2],
    "odd rows": lambda x: x[1::2],
    "flipped": lambda x: x.flip(0),
    "transposed": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other number": lambda x: torch.stack((x, x + 7), -1)[..., 0],
    "negated": lambda x: torch.complex(x, -x).conj().imag if x.is_floating_point() else x,
    "of a graph": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
}


@needs_library
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layers", ["mamba", "mamba2", "attention", "hybrid"])
def test_states_that_lie_otherwise_in_memory(layers: str, view: str) -> None:
    """As the model from contiguous copies; no other state's numbers change."""
    model = build(layers)
    decoder, original = Decoder(model), ragged_state(model, 8)
    kept = tree_map(torch.clone, original)
    state = tree_map(VIEWS[view], original)
    before = tree_map(torch.clone, state)
    apart = tree_map(lambda x: x.detach().clone(memory_format=torch.contiguous_format), state)
    tokens = tokens_of(len(state.position), 4)
    with torch.no_grad():
        wanted, last = model(tokens, apart)
    for own in (True, False, False):
        found, after = steps(decoder, state, tokens, own=own)
        torch.testing.assert_close(torch.stack(found, 1), wanted, rtol=1e-4, atol=1e-4)
        for a, b in zip(recurrent_leaves(after)[:2], recurrent_leaves(last)[:2]):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert not any(leaf.requires_grad for leaf in tree_leaves(after))
        assert all(torch.equal(a, b) for a, b in zip(tree_leaves(original), tree_leaves(kept)))
        if view != "flipped":  # which is contiguous, so its spare slots may be written
            assert all(torch.equal(a, b) for a, b in zip(tree_leaves(state), tree_leaves(before)))


@needs_library
def test_counts_and_layers_that_share_memory() -> None:
    torch.manual_seed(0)
    layers = (sw.AttentionConfig(n_heads=2),) * 2
    model = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=16, layers=layers, embedding_std=0.5).build().eval()
    decoder, tokens = Decoder(model), tokens_of(2, 3)
    state: Any = ragged_state(model, 2)
    history = state.layers[0]
    for layer in (history, history._replace(position=history.end, filled=history.end)):
        shared = state._replace(layers=(layer, layer))
        with torch.no_grad():
            wanted, _ = model(tokens, tree_map(torch.clone, shared))
        end = layer.end.clone()
        for own in (False, True):
            found, _ = steps(decoder, shared, tokens, own=own)
            torch.testing.assert_close(torch.stack(found, 1), wanted, rtol=1e-4, atol=1e-4)
            assert torch.equal(layer.end, end)


@needs_library
def test_states_that_do_not_fit_are_refused() -> None:
    decoder = Decoder(build("hybrid"))
    state: Any = ragged_state(build("hybrid"), 2)

    def first(change: Any) -> Any:
        return state._replace(layers=(tree_map(change, state.layers[0]), *state.layers[1:]))

    for wrong in (
        first(torch.Tensor.bfloat16),
        first(torch.Tensor.double),
        first(lambda x: x.to("meta")),
        first(torch.Tensor.to_sparse),
        first(lambda x: x[:1]),
        first(lambda x: x[:, :-1]),
        first(lambda x: x[..., None]),
        first(lambda x: x.tolist()),
        state._replace(position=state.position.double()),
        state._replace(position=[1, 2]),
        state._replace(layers=(*state.layers[:2], state.layers[2]._replace(position=state.position.int()))),
        state._replace(layers=(*state.layers[:2], state.layers[2]._replace(filled=state.position.double()))),
        state._replace(layers=(*state.layers[:2], state.layers[2]._replace(keys=state.layers[2].keys[:, :-1]))),
    ):
        for call in (lambda: decoder(torch.tensor([1, 2]), wrong), lambda: decoder.run(wrong)):  # noqa: B023
            with pytest.raises(InputError, match="state"):
                call()


@needs_library
def test_states_of_inference_mode_and_other_defaults() -> None:
    """The step's own memory is float32 on the CPU, whatever PyTorch's defaults are."""
    model = build("hybrid")
    tokens = tokens_of(3, 4)
    with torch.inference_mode():
        state = ragged_state(model, 3)
        wanted, _ = model(tokens, tree_map(torch.clone, state))
    for own in (False, True):
        found, _ = steps(Decoder(model), state, tokens, own=own)
        torch.testing.assert_close(torch.stack(found, 1), wanted.clone(), rtol=1e-4, atol=1e-4)
    try:
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        for own in (False, True):
            found, _ = steps(Decoder(model), state, tokens, own=own)
            assert found[0].dtype == torch.float32
        start = Decoder(model, "int4").initial_state(2)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    torch.testing.assert_close(torch.stack(found, 1), wanted.clone(), rtol=1e-4, atol=1e-4)
    assert {leaf.device.type for leaf in tree_leaves(start)} == {"cpu"}


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_copy_has_addresses_of_its_own(precision: str) -> None:
    decoder: Any = Decoder(build("hybrid"), precision)
    tokens = tokens_of(2, 9)
    wanted, _ = steps(decoder, decoder.initial_state(2), tokens, own=True)
    copies: list[Any] = [copy.copy(decoder), copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))]
    n_bytes = decoder.n_bytes
    for packed in decoder._packed:
        packed.data.fill_(0)  # a use of the original's memory would show
    for kept in decoder._program.kept:
        kept.fill_(0)
    for other in copies[1:]:
        assert other.n_bytes == n_bytes
        for own in (False, True):
            found, _ = steps(other, other.initial_state(2), tokens, own=own)
            assert all(torch.equal(one, two) for one, two in zip(found, wanted))
    shallow, _ = steps(copies[0], decoder.initial_state(2), tokens, own=True)
    del decoder
    again, _ = steps(copies[0], copies[0].initial_state(2), tokens, own=True)
    assert all(torch.equal(one, two) for one, two in zip(again, shallow))


@needs_library
def test_copies_of_a_running_decoder_go_on_alone() -> None:
    decoder = Decoder(build("hybrid"))
    tokens = tokens_of(2, 12)
    wanted, _ = steps(decoder, decoder.initial_state(2), tokens, own=True)
    running = decoder.run(decoder.initial_state(2))
    for t in range(3):
        running.step(tokens[:, t])
    for other in (copy.copy(running), copy.deepcopy(running), pickle.loads(pickle.dumps(running)), running):
        for t in range(3, 12):
            assert torch.equal(other.step(tokens[:, t]), wanted[t])  # type: ignore[arg-type]


@needs_library
def test_a_run_from_a_full_history_copies_it_once() -> None:
    """The copy that a run makes for itself has room for its first step."""
    torch.manual_seed(0)
    model = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=16, layers=(sw.AttentionConfig(n_heads=2),)).build()
    with torch.no_grad():
        _, state = model(tokens_of(3, 8), model.initial_state(3))
        assert state.layers[0].keys.shape[1] == 8
        running = Decoder(model).run(state)
        keys = running.state.layers[0].keys
        expected, _ = model(tokens_of(3, 1), state)
        torch.testing.assert_close(running.step(tokens_of(3, 1)), expected[:, 0], rtol=1e-5, atol=1e-6)
    assert running.state.layers[0].keys.data_ptr() == keys.data_ptr()
    assert keys.shape[1] == 16
    assert Decoder(model).run(model.initial_state(0)).state.layers[0].keys.shape == (0, 1, 2, 8)


def test_generate_makes_room_for_the_prompt_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says the same."""
    model = build("attention")
    prompt = tokens_of(2, 39)
    made: list[int] = []
    whole = sw.LanguageModel.with_room

    def counted(self: sw.LanguageModel, state: Any, length: int) -> Any:
        made.append(length)
        return whole(self, state, length)

    def said(**options: Any) -> list[list[int]]:
        options = {"max_new_tokens": 1, "temperature": 0.0, "seed": 0, "stop_at_document": False, **options}
        return [token.ids.tolist() for token in sw.generate(model, prompt, **options)]

    monkeypatch.setattr(sw.LanguageModel, "with_room", counted)
    with_room = said(prefill_chunk=4)
    assert made == [39]
    monkeypatch.setattr(sw.LanguageModel, "with_room", lambda self, state, length: state)
    assert with_room == said(prefill_chunk=4) == said()
