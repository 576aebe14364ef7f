"""What the page asks of a model: the page's own answers are Python's, and Python's are the model's."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from page_in_node import in_node

import statewise as sw
from statewise.data.synthetic_languages import AssociativeRecallConfig, open_synthetic_language
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import InputError
from statewise.explore import mind as mind_module
from statewise.explore.mind import Mind
from statewise.explore.page import RECALL_HEADS, own_model
from statewise.explore.weights import refusal, spec

TEXT = 'def total(self, values):\n    """The sum, é."""\n'


def mind_of(model: sw.LanguageModel, name: str = "small") -> Mind:
    return Mind(model, ByteTokenizer(), name, [256])


def hybrid() -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = (
        sw.Mamba2Config(d_state=4, d_head=8),
        sw.AttentionConfig(n_heads=2),
        sw.MambaConfig(d_state=4),
        sw.GRUConfig(),
    )
    return sw.LanguageModelConfig(vocab_size=257, d_model=16, layers=layers).build()


def alike(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    """Equal JSON data, numbers to a tolerance."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            alike(found[key], wanted[key], tolerance)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            alike(one, other, tolerance)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    else:
        assert found == wanted


def test_the_page_answers_as_python_does() -> None:
    """Every call, on the small model that comes along, in double precision."""
    model = own_model("bytes")
    calls = [
        ["info", {}],
        ["analyse", {"text": TEXT}],
        ["attention", {"text": TEXT, "layer": 1, "head": 2}],
        ["analyse", {"text": TEXT[:20] + "other"}],
        ["analyse", {"text": TEXT[:20]}],
        ["read", {"text": "class Stack:\n    def "}],
        ["generate", {"state": "1", "count": 12, "temperature": 0, "seed": 1}],
        ["read", {"state": "1", "text": "push"}],
        ["edit", {"state": "3", "layer": 0, "head": 3, "factor": 0.25}],
        ["read", {"text": "import "}],
        ["splice", {"first": "4", "second": "5", "layers": [0, 2]}],
        ["picture", {"state": "6"}],
    ]
    found = in_node(
        """
        const mind = S.backend.local(data.spec), answers = [];
        for (const [name, question] of data.calls) answers.push(await mind[name](question));
        return answers;
        """,
        {"spec": spec(model, "small"), "calls": calls},
    )
    mind = mind_of(model.double())
    for (name, question), answer in zip(calls, found):
        wanted = mind.calls[name](**question)
        if name == "info":
            wanted["layers"] = [{**layer, "name": "Mamba-2"} for layer in wanted["layers"]]
        if "bytes" in wanted:  # the page counts float32, and this model is in float64
            wanted["bytes"] //= 2
        alike(answer, json.loads(json.dumps(wanted)))


def test_the_lookup_layer_answers_as_python_does() -> None:
    model = own_model("recall")
    tokens = [1, 7, 2, 5, 3, 6, 1, 7, 9, 1]
    found = in_node(
        """
        const model = S.model.build(data.spec), record = [];
        let state = model.initial(), logits;
        for (const token of data.tokens) ({ logits, state } = model.step(state, token, record));
        return { logits, steps: record[0] };
        """,
        {"spec": spec(model, "H3"), "tokens": tokens},
    )
    ids = torch.tensor([tokens])
    logits, _ = model(ids)
    np.testing.assert_allclose(found["logits"], logits[0, -1].detach(), atol=1e-4)
    assert int(np.argmax(found["logits"])) == 7
    trace = sw.insight.h3_trace(*sw.insight.layer_input(model, ids, 0))
    for name in ("Q", "K", "V", "shifted", "output"):
        wanted = getattr(trace, name)[0]
        np.testing.assert_allclose([step[name] for step in found["steps"]], wanted, atol=1e-5)
    for name in ("entering", "state"):
        wanted = getattr(trace, name)[0, :, :, 0, 0]
        np.testing.assert_allclose([step[name] for step in found["steps"]], wanted, atol=1e-5)


def test_the_heads_of_lookup_are_what_the_page_says() -> None:
    """The mean query of each head, where the last token is a, b, c, d: its signs and sizes."""
    model = own_model("recall")
    split = open_synthetic_language(AssociativeRecallConfig()).split("test")
    tokens = torch.from_numpy(split.read(np.arange(200))[0])
    Q = sw.insight.h3_trace(*sw.insight.layer_input(model, tokens, 0)).Q[:, -1]
    means = torch.stack([Q[tokens[:, -1] == key].mean(0) for key in (1, 2, 3, 4)])
    a, b, c, d = means[:, list(RECALL_HEADS)].abs() > 1
    assert torch.stack([a, b]).T.tolist()[:2] == [[True, True]] * 2
    assert not torch.stack([c, d])[:, :2].any()
    signs = means[:, list(RECALL_HEADS)].sign().T.tolist()
    assert signs[0][0] == -signs[0][1]
    assert signs[1][0] == -signs[1][1]
    largest = means[:, list(RECALL_HEADS)].abs().argmax(0).tolist()
    assert (largest[2], largest[3], largest[5]) == (2, 2, 3)
    assert signs[3][2] == -signs[3][3]
    assert signs[4][0] == signs[4][1] == -signs[4][2] == -signs[4][3]
    assert all(len(set(signs[head])) == 1 for head in (6, 7))
    assert (a & b & c & d)[6:].all()


def test_numbers_of_a_text() -> None:
    """Bits are those of the model's own loss; step sizes, half-lives and attention those of insight."""
    model = hybrid()
    mind = mind_of(model)
    found = mind.analyse(TEXT)
    ids = torch.tensor([[256, *TEXT.encode()]])
    logits, _ = model(ids)
    nats = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")
    assert sum(found["bits"][1:]) == pytest.approx(float(nats.detach()) / math.log(2), rel=1e-5)
    assert found["n_bytes"] == len(TEXT.encode()) == len(found["pieces"]) - 1
    assert [one["layer"] for one in found["layers"]] == [0, 2]
    mixer, x = sw.insight.layer_input(model, ids, 0)
    np.testing.assert_allclose(found["layers"][0]["dt"], sw.insight.step_sizes(mixer, x)[0].T)
    attention = mind.attention(TEXT, 2, 5)
    mixer, x = sw.insight.layer_input(model, ids, 2)
    np.testing.assert_allclose(attention, sw.insight.hidden_attention(mixer, x, [5])[0, 0])
    assert found["next"][0][0][1] == pytest.approx(float(logits[0, 0].detach().softmax(-1).max()), rel=1e-5)


def test_states_are_saved_rewound_edited_and_spliced() -> None:
    mind = mind_of(hybrid())
    begun = mind.read("def ")
    more = mind.read("total(", state=begun["state"])
    assert more["text"] == "def total("
    alike(more["next"], mind.read("def total(")["next"], 1e-4)
    first = mind.generate(more["state"], 20, 0.9, seed=3)
    assert mind.generate(more["state"], 20, 0.9, seed=3)["pieces"] == first["pieces"]
    assert mind.generate(more["state"], 20, 0.9, seed=4)["pieces"] != first["pieces"]
    assert mind.info()["grows"]
    assert len(mind.picture(more["state"])[0]) == 4
    assert mind.picture(more["state"])[1] == []  # attention
    alike(mind.edit(more["state"], 0, 1, 1.0)["next"], more["next"])
    assert mind.edit(more["state"], 0, 1, 0.0)["next"] != more["next"]
    alike(mind.splice(more["state"], more["state"], [0])["next"], more["next"])
    other = mind.read("import numpy")
    assert mind.splice(more["state"], other["state"], [0, 2])["next"] != more["next"]


def test_what_does_not_fit_is_refused() -> None:
    mind = mind_of(hybrid())
    state = mind.read("a")["state"]
    for call, words in (
        (lambda: mind.read("b", state="99"), "not held"),
        (lambda: mind.edit(state, 1, 0, 0.0), "no memory of a fixed size"),
        (lambda: mind.edit(state, 0, 9, 0.0), "head 9"),
        (lambda: mind.edit(state, 0, 0, math.nan), "finite"),
        (lambda: mind.edit(state, 0, 0, 1e308), "finite"),
        (lambda: mind.splice(state, state, [1]), "no memory of a fixed size"),
        (lambda: mind.attention("a", 1, 0), "does not select"),
        (lambda: mind.attention("a", 0, -1), "head -1"),
        (lambda: mind.read("x" * 30_000), "characters"),
        (lambda: mind.analyse("x" * 3_000), "at once"),
        (lambda: mind.generate(state, 10_000, 1.0, 0), "count"),
        (lambda: Mind(hybrid(), ByteTokenizer(), "m", []), "begins a text"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_old_states_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mind_module, "MOST_STATES", 3)
    mind = mind_of(hybrid())
    first = mind.read("a")["state"]
    for _ in range(3):
        last = mind.read("b")["state"]
    with pytest.raises(InputError, match="not held"):
        mind.picture(first)
    assert mind.picture(last)


def test_models_that_the_page_cannot_run() -> None:
    assert refusal(own_model("bytes")) is None
    assert refusal(own_model("recall")) is None
    with pytest.raises(InputError, match="layer 1 is AttentionConfig"):
        spec(hybrid(), "hybrid")

    def built(**fields: Any) -> sw.LanguageModel:
        mixer = {"layers": (sw.Mamba2Config(d_state=4, d_head=8),), "vocab_size": 257, "d_model": 8}
        return sw.LanguageModelConfig(**{**mixer, **fields}).build()

    mamba = sw.Mamba2Config(d_state=4, d_head=8)
    for model, words in (
        (built(max_positions=64), "positions"),
        (built(layers=(sw.Mamba2Config(d_state=4, d_head=8, norm_before_gate=True),)), "norm_before_gate"),
        (built(layers=(sw.BlockConfig(mixer=mamba, mlp=sw.MLPConfig(gated=True)),)), "MLP"),
        (built(layers=(sw.BlockConfig(mixer=mamba, norm="batch"),)), "batch"),
        (built(d_model=256, layers=(mamba,) * 8), "parameters"),
    ):
        assert words in str(refusal(model))
