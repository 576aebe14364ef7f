"""H3 at work: the layer by hand gives the answers, and what is said of a trained layer is what it computes."""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import train_config

from statewise.data.synthetic_languages import AssociativeRecallConfig
from statewise.errors import CheckpointError, ConfigError, InputError
from statewise.insight import Signals, h3_systems
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.reproduce import reproduce, settings
from statewise.reproduce.h3_at_work.by_hand import KEYS, VALUES, lookup, trace
from statewise.reproduce.h3_at_work.claim import H3AtWorkSettings
from statewise.reproduce.h3_at_work.findings import SHOWN, pairs_of, what_is_read
from statewise.reproduce.h3_at_work.inside import (
    h3_layers,
    half_reach,
    score,
    signals,
    with_shift_taps,
    without_heads,
)
from statewise.training.config import RunConfig
from statewise.training.loop import train_run

PLOTS = find_spec("matplotlib") is not None


def small_model(d_head: int = 2, **changes: Any) -> LanguageModel:
    torch.manual_seed(0)
    layer = BlockConfig(mixer=H3Config(d_state=8, d_shift=4, d_head=d_head), norm="layer")
    return LanguageModelConfig(**{"vocab_size": 10, "d_model": 8, "layers": (layer, layer), **changes}).build()


class TestByHand:
    @pytest.mark.parametrize("key", KEYS)
    @pytest.mark.parametrize("value", VALUES)
    def test_every_pair_is_recalled(self, key: str, value: str) -> None:
        others = "".join(k + v for k, v in zip(KEYS, "5432") if k != key)
        for text in (f"{key}{value}{others}{key}?", f"{others}.{key}{value}...{key}", f".{key}{value}{key}"):
            assert trace(text).answer == value

    def test_the_steps(self) -> None:
        found = trace("a3b5a?")
        assert found.text == "a3b5a"
        a, b, three, five = KEYS.index("a"), KEYS.index("b"), VALUES.index("3"), VALUES.index("5")
        assert found.shifted.nonzero().tolist() == [[1, a], [3, b]]
        assert found.entering.nonzero().tolist() == [[1, a, three], [3, b, five]]
        assert found.state[-1].nonzero().tolist() == [[a, three], [b, five]]
        assert found.output.nonzero().tolist() == [[4, three]]

    def test_equals_the_plain_sum(self) -> None:
        found = trace("a3b5.c1.a4b.d2c", decay=0.9, shift_taps=(0.5, 1.0, 0.25))
        for t in range(len(found.text)):
            expected = torch.zeros(len(VALUES), dtype=torch.float64)
            for s in range(t + 1):
                key = sum(tap * found.K[s - i] for i, tap in enumerate((0.5, 1.0, 0.25)) if s >= i)
                expected += 0.9 ** (t - s) * (found.Q[t] @ key) * found.V[s]
            torch.testing.assert_close(found.output[t], expected)

    def test_nothing_was_stored(self) -> None:
        assert trace("a3b").answer == ""
        assert trace("3a").answer == ""  # the value has to follow

    def test_refused(self) -> None:
        for text in ("a3x", "", "??"):
            with pytest.raises(InputError, match="keys abcd"):
                trace(text)

    def test_lookup(self) -> None:
        key, value = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.7, 0.2, 0.1])
        assert torch.equal(lookup(key, value, key), value)
        assert not lookup(key, value, torch.tensor([0.0, 1.0, 0.0])).any()


class TestInside:
    @pytest.mark.parametrize("d_head", [1, 2])
    def test_signals_give_the_layers_output(self, d_head: int) -> None:
        model = small_model(d_head)
        tokens = torch.randint(0, 10, (3, 7))
        outputs: list[torch.Tensor] = []
        mixer = h3_layers(model)[1]
        mixer.register_forward_hook(lambda _, arguments, output: outputs.append(output[0]))
        found = signals(model, 1, tokens)
        torch.testing.assert_close(mixer.out_proj(found.output), outputs[0])
        assert found.state.shape == found.entering.shape == (3, 7, 8 // d_head, d_head, d_head)
        key, value = (x.unflatten(-1, (-1, d_head)) for x in (found.shifted, found.V))
        torch.testing.assert_close(found.entering[1, 2, 3], torch.outer(key[1, 2, 3], value[1, 2, 3]))

    def test_a_head_that_is_left_out(self) -> None:
        model, tokens = small_model(), torch.randint(0, 10, (3, 7))
        cut = copy.deepcopy(model)
        before = model(tokens)[0]
        with torch.no_grad():
            h3_layers(cut)[0].out_proj.weight[:, 2:4] = 0
        with without_heads(h3_layers(model)[0], [1]):
            torch.testing.assert_close(model(tokens)[0], cut(tokens)[0])
        assert torch.equal(model(tokens)[0], before)

    def test_shift_taps(self) -> None:
        model = small_model()
        taps = h3_systems(h3_layers(model)[1])[0].taps
        only = h3_systems(h3_layers(with_shift_taps(model, 1, [1]))[1])[0].taps
        rest = h3_systems(h3_layers(with_shift_taps(model, 1, [1], others=True))[1])[0].taps
        torch.testing.assert_close(only + rest, taps)
        torch.testing.assert_close(only[:, 1], taps[:, 1])
        assert only[:, [0, 2, 3]].abs().max() < 1e-6
        assert torch.equal(h3_systems(h3_layers(model)[1])[0].taps, taps)  # the model itself is as it was

    def test_score_and_reach(self) -> None:
        model, tokens = small_model(), torch.randint(0, 10, (5, 4))
        targets = model(tokens)[0].argmax(-1)
        answers = torch.zeros(5, 4, dtype=torch.bool)
        answers[:, -1] = True
        assert score(model, tokens, targets, answers)["accuracy"] == 1
        assert score(model, tokens, (targets + 1) % 10, answers)["accuracy"] == 0
        assert half_reach(torch.tensor([[1.0, -0.5, 0.4], [0.1, 0.0, 1.0]])).tolist() == [1, 2]

    def test_what_a_query_reads(self) -> None:
        """By loops over the keys, values, places, heads and entries, from signals that are not a layer's."""
        mixer = h3_layers(small_model())[1]
        n_heads, d_head, n_names, length = mixer.n_heads, mixer.config.d_head, 8, 9
        tokens = torch.randint(1, 7, (64, length))
        tokens[:, -1] = torch.randint(1, 4, (64,))
        shape = (64, length, n_heads, d_head, d_head)
        nothing = torch.zeros(())
        seen = Signals(
            Q=torch.randn(64, length, n_heads * d_head),
            entering=torch.randn(shape),
            **dict.fromkeys(("K", "shifted", "V", "state", "output"), nothing),  # type: ignore[arg-type]
        )
        pairs = pairs_of(tokens, n_names)
        found = what_is_read(mixer, pairs, seen, tokens)
        filters = h3_systems(mixer)[1].impulse_response(length)
        keys, values, places = (1, 2, 3), (4, 5, 6), range(1, length - 2)

        def given(asks: int, key: int, value: int, place: int) -> torch.Tensor:
            rows = [(r, p) for r in range(64) for p in places if tokens[r, p - 1] == key and tokens[r, p] == value]
            entering = torch.stack([seen.entering[r, p] for r, p in rows]).mean(0)
            query = seen.Q[tokens[:, -1] == asks, -1].mean(0).unflatten(0, (n_heads, d_head))
            read = torch.stack([filters[h, length - 1 - place] * query[h] @ entering[h] for h in range(n_heads)])
            return mixer.out_proj.weight @ read.flatten()

        for asks in keys:
            row = []
            for key in keys:
                each = torch.stack([torch.stack([given(asks, key, v, p) for p in places]) for v in values])
                row.append((each - each.mean(0)).square().sum(-1).mean().sqrt())
            expected = torch.stack(row)
            torch.testing.assert_close(torch.tensor(found["table"][asks - 1]), expected)
            share = expected[asks - 1] ** 2 / expected.square().sum()
            assert found["own_share"][asks - 1] == pytest.approx(float(share.detach()), rel=1e-4)

    def test_no_h3(self) -> None:
        with pytest.raises(ConfigError, match="no H3 layer"):
            h3_layers(small_model(layers=(AttentionConfig(n_heads=2),)))


class TestReproduction:
    def test_quick_and_a_given_model(self, tmp_path: Path) -> None:
        few = ["d_model=8", "n_train=64", "max_rows=16", "d_head=2", "d_state=4", "text=b4a2c1b"]
        outcome = reproduce(
            "h3-at-work", tmp_path / "r", settings("h3-at-work", quick=True, assignments=few), plots=PLOTS
        )
        assert outcome.record is not None
        figures = outcome.record["figures"]
        assert figures["by_hand"]["answer"] == "4"
        assert figures["lookup"]["Q orthogonal to K'"] == [0, 0, 0]
        trained = figures["trained"]
        assert len(trained["heads"]) == 4
        assert len(trained["example"]["tokens"]) == len(trained["example"]["state"][0]) == 22
        assert len(trained["described"]) == min(SHOWN, 4)
        assert all(len(head["pairs"]) == len(head["pairs"][0]) == 4 for head in trained["described"])
        costs = [head["lost"] for head in trained["heads"]]
        assert costs == sorted(costs, reverse=True)
        if PLOTS:
            assert [(tmp_path / "r" / name).exists() for name in outcome.record["plots"]] == [True] * 5
        reads = trained["reads"]
        assert [len(row) for row in reads["table"]] == [4] * 4
        assert all(0 <= share <= 1 for share in reads["own_share"])
        assert [row[0] for row in outcome.record["tables"][3]["rows"]] == ["0", "1", "2", "3"]
        page = (tmp_path / "r" / "report.md").read_text()
        assert "a2 b4 c1" in page
        assert "at most 1 epoch at a rate of 0.01 with a cosine, without dropout" in page
        assert "Chance is 25 %" in page

        given = settings(
            "h3-at-work", quick=True, assignments=[*few, f"model={json.dumps(str(tmp_path / 'r' / 'run'))}"]
        )
        again = reproduce("h3-at-work", tmp_path / "given", given, plots=False)
        assert again.record is not None
        assert again.record["figures"]["trained"]["test"] == trained["test"]
        assert not (tmp_path / "given" / "run").exists()

    def test_a_given_run_is_described_as_it_was(self, tmp_path: Path) -> None:
        model = small_model(vocab_size=14, embedding_dropout=0.2).config
        data = AssociativeRecallConfig(vocab_size=14, n_train=32, n_validation=8, n_test=8)
        run = RunConfig(model=model, data=data, train=train_config(steps=2, lr=2e-3, kind="linear"))
        train_run(run, tmp_path / "run")
        given = H3AtWorkSettings(model=str(tmp_path / "run"), max_rows=8, example=7)
        outcome = reproduce("h3-at-work", tmp_path / "r", given, plots=False)
        assert outcome.report is not None
        page = (tmp_path / "r" / "report.md").read_text()
        assert "2 H3 layers of 2, with a register of 4 keys and N = 8; at most 2 steps at a rate of 0.002" in page
        assert "a straight line down, dropout 0.2 of the embedding and 0 in the layers" in page
        assert "Chance is 16.7 %" in page
        with pytest.raises(ConfigError, match=r"example=100 .* max_rows=500, and the test split has 8"):
            H3AtWorkSettings(model=str(tmp_path / "run"), example=100)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"example": 500}, ConfigError, "example=500"),
            ({"example": 600, "max_rows": 1000}, ConfigError, "the test split has 500"),
            ({"text": "hello"}, InputError, "keys abcd"),
            ({"text": "a3b5"}, ConfigError, "end it with a key, one of a, b, c, d"),
            ({"epochs": 0}, ConfigError, "epochs=0"),
            ({"lr": 0.0}, ConfigError, "lr=0"),
            ({"n_train": 10}, ConfigError, "n_train=10 is out of range"),
            ({"d_head": 3}, ConfigError, "is not a multiple of d_head"),
            ({"model": "missing"}, CheckpointError, "holds no run"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            H3AtWorkSettings(**changes)
