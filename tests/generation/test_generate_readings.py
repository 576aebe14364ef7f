"""Prompts that were read before, kept and continued: forked and saved equals straight."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from written_models import build, ids_of, with_readings

import statewise as sw
from statewise.errors import InputError
from statewise.generation import generate, read
from statewise.generation.reading_file import load_reading, save_reading


# States
def test_a_reading_generates_as_the_prompt_does_also_from_a_file(model: sw.LanguageModel, tmp_path: Path) -> None:
    prompts = [list(range(20)), [7, 7, 1]]
    options: dict[str, Any] = {"max_new_tokens": 20, "seed": 1, "repetition_penalty": 1.4, "top_p": 0.95}
    straight = ids_of(generate(model, prompts, **options))
    reading = read(model, prompts)
    assert ids_of(generate(model, state=reading, **options)) == straight
    assert ids_of(generate(model, [[], []], state=reading, **options)) == straight
    save_reading(reading, tmp_path / "reading", model=model)
    assert ids_of(generate(model, state=load_reading(tmp_path / "reading", model=model), **options)) == straight


def test_a_prompt_after_a_reading_continues_it(model: sw.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 10, "seed": 1, "repetition_penalty": 1.4}
    straight = ids_of(generate(model, [[1, 2, 3, 4], [5, 6]], **options))
    for state in (read(model, [[1, 2], [5]]), read(model, [[1], [5, 6]])):
        n = state.state.position.tolist()
        rest = [[1, 2, 3, 4][n[0] :], [5, 6][n[1] :]]
        assert ids_of(generate(model, rest, state=state, **options)) == straight
    bare = read(model, [[1, 2], [5]]).state
    del options["repetition_penalty"]  # a bare state does not know what was read
    straight = ids_of(generate(model, [[1, 2, 3, 4], [5, 6]], **options))
    assert ids_of(generate(model, [[3, 4], [6]], state=bare, **options)) == straight


@pytest.mark.parametrize("window", [5, None])
def test_generation_can_be_forked_from_any_token(window: int | None) -> None:
    model = build(window)
    options: dict[str, Any] = {"temperature": 0, "repetition_penalty": 1.2}
    tokens, readings = with_readings(generate(model, [[1, 2, 3]], max_new_tokens=12, **options))
    held = readings[0]
    before = tree_map(torch.clone, held)
    straight = [int(token.ids) for token in tokens]
    for n, (token, reading) in enumerate(zip(tokens, readings)):
        for _ in range(2):  # a second fork from the same place
            again = ids_of(generate(model, state=reading, max_new_tokens=12 - n, **options))
            assert again == [straight[n:]]
        onwards = ids_of(generate(model, token.ids[:, None], state=reading, max_new_tokens=11 - n, **options))
        assert onwards == ([straight[n + 1 :]] if n < 11 else [])
    assert ids_of(generate(model, state=held, max_new_tokens=12, **options)) == [straight]
    torch.testing.assert_close(held.logits, before.logits, rtol=0, atol=0)
    expected, _ = model(torch.tensor([[5]]), before.state)
    torch.testing.assert_close(model(torch.tensor([[5]]), held.state)[0], expected, rtol=1e-9, atol=1e-9)


def test_tokens_that_are_kept_hold_no_state_but_the_last_ones(
    model: sw.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = model.features
    made: list[weakref.ref[Tensor]] = []  # the tensors of every state, one list for each token
    per_token = len(tree_leaves(model.initial_state(1)))

    def watched(*arguments: Any, **options: Any) -> Any:
        found, state = features(*arguments, **options)
        made.extend(weakref.ref(leaf) for leaf in tree_leaves(state))
        return found, state

    monkeypatch.setattr(model, "features", watched)
    stream = generate(model, [1], max_new_tokens=40, seed=0)
    kept = []
    for n, token in enumerate(stream, 1):
        kept.append(token)
        assert len(made) == n * per_token
        # Attention hands a buffer on from state to state: what is alive must be the latest state's, whoever made it
        latest = {id(leaf()) for leaf in made[-per_token:]}
        assert len(latest) == per_token
        assert {id(leaf()) for leaf in made if leaf() is not None} == latest
    for token in kept:  # nor do the fields hold on to more than they show
        for field in (token.ids, token.log_probabilities, token.finished):
            assert field.untyped_storage().nbytes() == field.element_size()
    last = kept.pop()
    for token in kept:
        with pytest.raises(InputError, match=r"freed when the next token was made; read token\.reading at once"):
            token.reading  # noqa: B018
    again = ids_of(generate(model, state=last.reading, max_new_tokens=1, temperature=0))
    assert again == [[int(last.reading.logits.argmax())]]
    del last, token
    assert not any(leaf() is not None for leaf in made)
    assert len(kept) == 39


def test_a_reading_is_no_inference_tensor_and_can_be_trained_with(model: sw.LanguageModel) -> None:
    reading = read(model, [1, 2, 3])
    token = next(generate(model, [1, 2, 3], max_new_tokens=1, seed=0))
    leaves = [*tree_leaves(reading), *tree_leaves(token.reading), token.ids, token.log_probabilities, token.finished]
    assert not any(leaf.is_inference() for leaf in leaves)
    logits, _ = model(torch.tensor([[4, 5]]), token.reading.state)
    logits.sum().backward()
    with torch.no_grad():
        model(torch.tensor([[4]]), reading.state)
    model.zero_grad()


# Documents
def test_the_document_token_ends_a_row_or_begins_a_document(model: sw.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 200, "seed": 0, "document_token": 4}
    ended = list(generate(model, [1], **options))
    assert ended[-1].ids.tolist() == [4]
    assert ended[-1].finished.tolist() == [True]
    assert not any(token.finished or token.ids == 4 for token in ended[:-1])
    tokens, readings = with_readings(generate(model, [1], stop_at_document=False, **options))
    ids = [int(token.ids) for token in tokens]
    assert ids[: len(ended)] == [int(token.ids) for token in ended]
    assert len(ids) == 200
    assert not any(token.finished for token in tokens)
    at = len(ended)  # the first token after the document token
    assert ids[at + 2 : at + 6].count(4) == 0
    alone = read(model, [4, *ids[at : at + 5]])
    torch.testing.assert_close(readings[at + 5].logits, alone.logits, rtol=1e-9, atol=1e-9)
    assert readings[at + 5].state.position.item() == 6


def test_documents_in_a_prompt_know_nothing_of_each_other(model: sw.LanguageModel) -> None:
    together = read(model, [[4, 1, 2, 4, 3, 5], [7, 4]], document_token=4, prefill_chunk=4)
    for i, document in enumerate(([4, 3, 5], [4])):
        torch.testing.assert_close(together.logits[i : i + 1], read(model, document).logits, rtol=1e-9, atol=1e-9)
    zero = read(model, [[0, 1, 2, 0, 3, 5], [0, 7]], document_token=0)  # padding is 0 as well
    for i, document in enumerate(([0, 3, 5], [0, 7])):
        torch.testing.assert_close(zero.logits[i : i + 1], read(model, document).logits, rtol=1e-9, atol=1e-9)
        assert zero.state.position[i] == len(document)
    carried = read(model, [4, 1, 2, 4, 3, 5]).logits
    assert not torch.allclose(together.logits[:1], carried)
    onwards = read(model, [4, 3, 5], state=read(model, [4, 1, 2], document_token=4), document_token=4)
    torch.testing.assert_close(onwards.logits, together.logits[:1], rtol=1e-9, atol=1e-9)
