"""Which way a step reads its weights is tried by the first steps, or said; it is the same step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from decoded_models import build, needs_library, tokens_of

from statewise.decoding import Decoder, reading
from statewise.decoding.operands import Prefetch
from statewise.decoding.reading import ROUNDS, VARIABLE, WAYS, Trial, Way, forget, parse_way, way_of
from statewise.errors import ConfigError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    forget()
    yield
    forget()


def test_each_way_has_its_turns_and_the_fastest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(reading.time, "perf_counter_ns", lambda: now[0])
    tried, found = [], Trial()
    assert found.best() == WAYS[0]
    for i in range(ROUNDS * len(WAYS)):
        assert not found.over
        with found.turn() as way:
            tried.append(way)
            now[0] += 1000 if way == WAYS[2] and i > len(WAYS) else 2000 + i  # once it was disturbed
    assert found.over
    assert {way: tried.count(way) for way in tried} == dict.fromkeys(WAYS, ROUNDS)
    assert found.best() == WAYS[2]


@needs_library
def test_only_whole_steps_of_large_models_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    large = reading.LARGE
    for n_bytes, whole, n_tried in ((large - 1, True, 0), (large, False, 0), (large, True, 1)):
        with way_of("int8", n_bytes, 1, 2, whole=whole) as way:
            assert way == WAYS[0]
        assert sum(len(one["milliseconds"]) for one in reading.tried()) == n_tried
    with way_of("int8", large, 8, 2, whole=True) as way:  # several sequences have a trial of their own
        assert way == WAYS[0]
    with way_of("int8", large + 1, 1, 2, whole=True) as way:  # and so has another model
        assert way == WAYS[0]
    with way_of("int8", large, 1, 2, whole=True) as way:
        assert way == WAYS[1]
    monkeypatch.setenv(VARIABLE, "passing 512")
    with way_of("int8", large, 1, 2, whole=True) as way:
        assert way == Way(Prefetch.PASSING, 512)


@needs_library
def test_while_ways_are_tried_every_step_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, tokens = Decoder(build("hybrid"), "int8"), tokens_of(2, 30)

    def said() -> list[torch.Tensor]:
        running = decoder.run(decoder.initial_state(2))
        logits = [running.step(tokens[:, t]) for t in range(30)]
        return [one for one in logits if one is not None]

    plain = said()
    assert not reading.tried()
    monkeypatch.setattr(reading, "LARGE", 0)
    tried = said()
    (record,) = reading.tried()
    assert {*record["milliseconds"]} == {str(way) for way in WAYS}
    assert record["way"] in record["milliseconds"]
    monkeypatch.setenv(VARIABLE, "none")
    monkeypatch.setenv("STATEWISE_VNNI", "0")
    for one, two, three in zip(plain, tried, said(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_ways_by_name() -> None:
    for way in WAYS:
        assert parse_way(str(way)) == way
    assert parse_way(" Near   64") == Way(Prefetch.NEAR, 64)
    for text in ("", "far 1", "near", "near -1", "near 64 64", "near 9999999", "none 3", "passing x"):
        with pytest.raises(ConfigError, match="STATEWISE_PREFETCH"):
            parse_way(text)


def test_vnni_is_wanted_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (("", True), ("1", True), ("0", False)):
        monkeypatch.setenv("STATEWISE_VNNI", text)
        assert reading.uses_vnni() is wanted
    monkeypatch.setenv("STATEWISE_VNNI", "no")
    with pytest.raises(ConfigError, match="STATEWISE_VNNI='no' is neither 0 nor 1"):
        reading.uses_vnni()
