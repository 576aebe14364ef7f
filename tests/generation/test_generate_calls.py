"""A call of generate: what it leaves alone, how much it reads, which mistakes it tells."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from written_models import build, ids_of

import statewise as sw
from statewise.cli.commands.generate import generate as command
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import InputError
from statewise.generation import Reading, generate, read

BYTES = ByteTokenizer()


def test_without_a_tokenizer_there_is_no_text(model: sw.LanguageModel) -> None:
    assert next(generate(model, [1], max_new_tokens=1)).text is None


# The model is left as it was
def test_the_models_modes_and_the_callers_are_left_alone(model: sw.LanguageModel) -> None:
    model.train()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    seen = []

    def watch(module: torch.nn.Module, arguments: Any) -> None:
        seen.append((module.training, torch.is_grad_enabled()))

    hook = model.norm.register_forward_pre_hook(watch)
    try:
        for _ in generate(model, [1, 2], max_new_tokens=3):
            assert [module.training for module in model.modules()] == modes
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
        assert seen == [(False, False)] * 3
    finally:
        hook.remove()
        model.eval()


def test_only_as_many_tokens_are_read_as_needed(model: sw.LanguageModel) -> None:
    assert list(generate(model, [1], max_new_tokens=0)) == []
    tokens = generate(model, [1], max_new_tokens=10**9, seed=0)
    assert next(tokens).ids.shape == (1,)
    tokens.close()  # type: ignore[attr-defined]


def test_a_plain_call_writes_as_many_as_the_command(model: sw.LanguageModel) -> None:
    said = inspect.signature(command).parameters["max_new_tokens"].default
    assert len(list(generate(model, [1], temperature=0))) == said


def test_parameters_that_are_not_finite_are_told() -> None:
    broken = build(window=5)
    with torch.no_grad():
        broken.head.weight[3, 3] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        list(generate(broken, [1], max_new_tokens=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"max_new_tokens": 1.5}, r"max_new_tokens=1\.5 .* use an integer"),
        ({"max_new_tokens": True}, "max_new_tokens=True .* use an integer"),
        ({"max_new_tokens": "9"}, "max_new_tokens='9' .* use an integer"),
        ({"temperature": -1.0}, "temperature="),
        ({"temperature": "a"}, "temperature='a'"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": None}, "temperature=None"),
        ({"top_k": 2.0}, r"top_k=2\.0 .* expected an integer of at least 1"),
        ({"top_k": "a"}, "top_k='a'"),
        ({"top_p": "a"}, "top_p='a'"),
        ({"min_p": True}, "min_p=True"),
        ({"repetition_penalty": "a"}, "repetition_penalty='a'"),
        ({"top_k": 0}, "top_k=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed="),
        ({"seed": 1.5}, "seed=1.5"),
        ({"prefill_chunk": 0}, "prefill_chunk=0"),
        ({"prefill_chunk": 2.5}, r"prefill_chunk=2\.5 .* use an integer"),
        ({"stop": 5}, "stop=5 is not a text"),
        ({"stop": [5], "tokenizer": BYTES}, "holds 5"),
        ({"stop": "x"}, "stop strings need a tokenizer"),
        ({"stop": [""], "tokenizer": BYTES}, "at least one character"),
        ({"tokenizer": BYTES}, "the tokenizer has 257 ids and the model only 31"),
        ({"document_token": 31}, "document_token=31"),
        ({"document_token": 1.5}, r"document_token=1\.5"),
        ({"prompt": []}, "row 0 of the prompt is empty"),
        ({"prompt": [31]}, "holds the id 31"),
        ({"prompt": [1, 2**70]}, f"row 0 of the prompt holds the id {2**70}"),
        ({"prompt": [[1], [2, -(2**70)]]}, f"row 1 of the prompt holds the id -{2**70}"),
        ({"prompt": [True, 1]}, "row 0 of the prompt holds a bool"),
        ({"prompt": [[1], [1, False]]}, "row 1 of the prompt holds a bool"),
        ({"prompt": [1.5]}, "not a float"),
        ({"prompt": [[1, 2.5]]}, "holds a float"),
        ({"prompt": [[[1]]]}, "holds a list"),
        ({"prompt": torch.tensor([True])}, "must be integers"),
        ({"prompt": torch.tensor(1)}, "must be integers"),
        ({"prompt": np.array([True])}, "must be integers .* got bool"),
        ({"prompt": [np.array(["a"])]}, "must be integers"),
        ({"prompt": torch.tensor([[1, 2]]), "lengths": torch.tensor([1.5])}, "integers, got torch.float32"),
        ({"prompt": torch.tensor([[1, 2]]), "lengths": "a"}, "integers, got 'a'"),
        ({"prompt": "text"}, "which needs a tokenizer"),
        ({"state": "state"}, "must be a Reading or a LanguageModelState, not a str"),
    ],
)
def test_mistakes_are_told_at_the_call(model: sw.LanguageModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        generate(model, **{"prompt": [1], "max_new_tokens": 1, **options})  # not iterated
    assert "\n" not in str(caught.value)


def test_states_that_do_not_fit_are_refused(model: sw.LanguageModel) -> None:
    reading = read(model, [[1], [2]])
    with pytest.raises(InputError, match="has 1 rows and the state 2"):
        generate(model, [1], state=reading, max_new_tokens=1)
    with pytest.raises(InputError, match="has 1 rows and the state 2"):
        generate(model, [1], state=reading.state, max_new_tokens=1)
    with pytest.raises(InputError, match="row 0 of the prompt is empty"):
        generate(model, state=reading.state, max_new_tokens=1)
    other = build(window=5, vocab_size=32)
    with pytest.raises(InputError, match="another model made it"):
        generate(other, state=reading, max_new_tokens=1)


def test_the_quickstart_form(model: sw.LanguageModel) -> None:
    got = [int(token.ids) for token in sw.generate(model, [1, 2], max_new_tokens=4, temperature=0.8, seed=0)]  # type: ignore[operator]
    assert got == ids_of(generate(model, [1, 2], max_new_tokens=4, temperature=0.8, seed=0))[0]
    assert isinstance(sw.generation.read(model, [1]), Reading)
