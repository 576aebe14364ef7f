"""Hybrid H3 beside a Transformer while generating: what is measured is what is said, and mistakes are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from statewise import native
from statewise.errors import ConfigError, DataError
from statewise.generation import read
from statewise.kernels import use
from statewise.reproduce import find, reproduce, settings
from statewise.reproduce.h3_throughput import (
    CLAIM,
    HYBRID,
    PUBLISHED,
    TRANSFORMER,
    Generator,
    H3ThroughputSettings,
    configs,
    speeds,
    state_bytes,
)
from statewise.reproduce.work import open_work

PLOTS = find_spec("matplotlib") is not None
SMALL: dict[str, Any] = {
    "prompts": (5, 9),
    "n_new": 4,
    "batch": 2,
    "rounds": 2,
    "attention_at": (1,),
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "d_state": 8,
    "vocab_size": 50,
    "max_positions": 13,
}


def small(**changes: Any) -> H3ThroughputSettings:
    return H3ThroughputSettings(**{**SMALL, **changes})


def test_smallest_size_stopped_parts_and_report(tmp_path: Path) -> None:
    outcome = reproduce("h3-throughput", tmp_path / "run", small(), plots=PLOTS)
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record == outcome.record
    assert record["bars"] == []
    assert set(record["figures"]["by_prompt"]) == {"5", "9"}
    for found in record["figures"]["by_prompt"].values():
        for model in found["models"].values():
            low, high = model["range"]
            assert 0 < low <= model["tokens_per_second"] <= high
    assert "published" in (tmp_path / "run" / "report.md").read_text()
    again = reproduce("h3-throughput", tmp_path / "run", small(), plots=False)  # all parts are found done
    assert again.record is not None
    assert again.record["figures"] == record["figures"]


def test_both_models_are_of_one_size_and_the_hybrid_has_attention_where_it_is_asked_for() -> None:
    full = H3ThroughputSettings()
    with torch.device("meta"):
        models = {name: config.build() for name, config in configs(full).items()}
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert counts[HYBRID] == pytest.approx(counts[TRANSFORMER], rel=0.01)
    kinds = [type(block.mixer).__name__ for block in models[HYBRID].blocks]
    assert kinds == ["Attention" if i in (1, 7) else "H3" for i in range(12)]
    assert {type(block.mixer).__name__ for block in models[TRANSFORMER].blocks} == {"Attention"}
    released = configs(replace(full, attention_at=(6,)))[HYBRID]
    assert sum(type(layer.mixer).__name__ == "AttentionConfig" for layer in released.blocks) == 1


@pytest.mark.parametrize("name", [TRANSFORMER, HYBRID])
def test_the_tokens_are_those_of_the_model_read_from_rest(name: str) -> None:
    """Greedy tokens by the prefill and the step in C, against whole sequences from rest, in float64."""
    torch.manual_seed(0)
    model = configs(small(max_positions=40))[name].build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    prompt = torch.randint(50, (3, 20))
    made = Generator(model)
    found = made(prompt, 8)
    assert len(made.seconds) == 1
    assert min(made.seconds[0]) > 0
    exact, tokens = model.double(), prompt
    with torch.no_grad():
        for _ in range(8):
            tokens = torch.cat((tokens, exact(tokens)[0][:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(found, tokens[:, 20:])


@pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
def test_paths() -> None:
    for config in configs(small()).values():
        model = config.build()
        assert Generator(model).path == Generator(model, "bfloat16").path == "one call of C for each token"
        prompt = torch.arange(6)[None]
        assert torch.equal(Generator(model, "int8")(prompt, 3), Generator(model, "int8")(prompt, 3))


def test_state_bytes_are_those_of_the_state() -> None:
    prompt = torch.randint(50, (1, 8))  # 8 slots are a buffer that is full
    for config in configs(small()).values():
        model = config.build()
        leaves = tree_leaves(read(model, prompt).state.layers)
        slots = [leaf for leaf in leaves if leaf.ndim == 4 and leaf.shape[2:] == (2, 8)]
        spare = sum(leaf[:, 8:].numel() for leaf in slots) * 4
        assert state_bytes(model, 8) == sum(leaf.numel() * leaf.element_size() for leaf in leaves) - spare


def test_speeds_and_bars(tmp_path: Path) -> None:
    """Of seconds that are given: the whole counts, and the bars ask for being ahead, and further as prompts grow."""
    config = H3ThroughputSettings(batch=2, n_new=10, rounds=3)
    part = {
        TRANSFORMER: {"seconds": [[1.0, 2.0], [9.0, 9.0], [1.0, 3.0]], "path": "PyTorch"},
        HYBRID: {"seconds": [[1.0, 1.0]] * 3, "path": "PyTorch"},
    }
    found = speeds(config, part)
    assert found[TRANSFORMER]["seconds"] == 4.0
    assert found[TRANSFORMER]["prefill_seconds"] == 1.0
    assert found[TRANSFORMER]["tokens_per_second"] == 5.0
    assert found[TRANSFORMER]["decode_tokens_per_second"] == 6.0
    assert found[HYBRID]["tokens_per_second"] == 10.0
    work = open_work(tmp_path / "run", "h3-throughput", config)
    for i, slow in enumerate(part[TRANSFORMER]["seconds"]):
        seconds = {str(n): {TRANSFORMER: slow, HYBRID: [1.0, 1.0 - 0.1 * j]} for j, n in enumerate(PUBLISHED)}
        record = {"seconds": seconds, "paths": dict.fromkeys((TRANSFORMER, HYBRID), "PyTorch")}
        work.part(f"round-{i + 1}", lambda record=record: record)
    report = CLAIM.run(config, open_work(tmp_path / "run", "h3-throughput", config))
    assert len(report.bars) == 5
    assert all(bar.holds for bar in report.bars)
    assert report.tables[0].rows[0][:4] == ("512", "1,340", "1,980", "1.48x")
    assert report.tables[0].rows[0][-2:] == ("2.00x", "1.50 to 9.00")  # 3 / 2, 18 / 2, 4 / 2
    assert report.tables[0].notes[0] == "Further ahead at 1,024 than at 512 in 3 of 3 rounds."


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"prompts": (10,)}, r"14 tokens, but max_positions=13"),
        ({"attention_at": (2,)}, "position 2"),
        ({"n_heads": 3}, "not a multiple"),
        ({"d_state": 7}, "d_state=7"),
    ],
)
def test_settings_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        small(**changes)


def test_more_than_fits_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="use a smaller batch"):
        reproduce("h3-throughput", tmp_path / "run", small(batch=10**9), plots=False)


def test_registered() -> None:
    assert find("h3-throughput").full() == H3ThroughputSettings()
    assert settings("h3-throughput", quick=True).prompts == (64, 256)
    assert settings("h3-throughput", assignments=["attention_at=[6]"]).attention_at == (6,)


def test_without_c(tmp_path: Path) -> None:
    with use("torch"):
        outcome = reproduce("h3-throughput", tmp_path / "run", small(prompts=(5,)), plots=False)
    assert outcome.report is not None
