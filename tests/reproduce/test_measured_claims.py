"""Claims of time, of lost data and of places: S4's filter, sampling, attention in a hybrid."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from quick_reports import figures, quick

from statewise.errors import ConfigError
from statewise.reproduce import reproduce, settings
from statewise.reproduce.h3_language.models import build_config, kind_and_places
from statewise.reproduce.sampling import Altered, SamplingSettings, conditions


def test_the_two_ways_to_s4s_filter_are_one_filter(tmp_path: Path) -> None:
    outcome = quick("s4-filter", tmp_path / "run")
    parts = figures(outcome)["parts"]
    assert set(parts) == {f"order-{n}-length-{length}" for n in (4, 16) for length in (64, 256)}
    for part in parts.values():
        assert part["difference"] < 1e-4
        assert part["chosen"] in part["seconds"]
        assert all(n > 0 for n in part["peak_bytes"].values())


class TestSampling:
    def split(self) -> Any:
        lengths = np.array([6, 9])
        rows = [np.arange(1, n + 1, dtype=np.float32)[:, None] for n in lengths]

        def read(i: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return rows[int(i[0])][None], i

        return SimpleNamespace(name="test", lengths=lengths, read=read, __len__=lambda: 2)

    def altered(self, name: str, **fields: Any) -> tuple[list[np.ndarray], float]:
        (condition,) = (c for c in conditions(SamplingSettings(**fields)) if c.name == name)
        split = self.split()

        class Two:
            name, lengths, read = "test", split.lengths, staticmethod(split.read)

            def __len__(self) -> int:
                return 2

        found = Altered(Two(), condition.alter, seed=0)
        padded, targets = found.read(np.array([1, 0]))
        assert targets.tolist() == [1, 0]
        assert padded.shape == (2, max(found.lengths), 1)
        assert (padded[1, found.lengths[0] :] == 0).all()
        return [row[:, 0] for row in found.rows], condition.rate

    def test_whole(self) -> None:
        (one, two), rate = self.altered("whole")
        assert one.tolist() == list(range(1, 7))
        assert two.tolist() == list(range(1, 10))
        assert rate == 1

    def test_held(self) -> None:
        (one, two), rate = self.altered("50% missing, the last value held")
        assert rate == 1
        for row, n in ((one, 6), (two, 9)):
            steps = np.arange(1, n + 1)
            assert len(row) == n
            assert row[0] == 1
            kept = row == steps
            assert 0 < kept.sum() < n
            assert (row == np.maximum.accumulate(np.where(kept, steps, 0))).all()

    def test_left_out_is_what_is_not_held(self) -> None:
        (held, _), _ = self.altered("30% missing, the last value held")
        (rest, _), rate = self.altered("30% left out, rate told")
        assert rest.tolist() == sorted(set(held.tolist()))
        assert rate == pytest.approx(1 / 0.7)

    def test_one_of_some(self) -> None:
        (one, two), rate = self.altered("one of 4, rate told")
        assert (one.tolist(), two.tolist(), rate) == ([1, 5], [1, 5, 9], 4)

    @pytest.mark.skipif(find_spec("sklearn") is None, reason="needs the extra tasks")
    def test_quick(self, tmp_path: Path) -> None:
        outcome = quick("sampling", tmp_path / "run", 'arms=["s4d","gru"]')
        runs = figures(outcome)["runs"]
        assert "one of 2, rate told" in runs["s4d-0"]["accuracy"]
        assert "one of 2, rate told" not in runs["gru-0"]["accuracy"]
        assert outcome.record is not None
        rows = {row[0]: row[1:] for row in outcome.record["tables"][0]["rows"]}
        assert rows["one of 2, rate told"][1] == "-"
        assert rows["whole"][0] == f"{100 * runs['s4d-0']['accuracy']['whole']:.1f}"

    def test_settings(self) -> None:
        for field, value in (("missing", (1.0,)), ("strides", (1,)), ("preset", "co2")):
            with pytest.raises(ConfigError, match=field):
                SamplingSettings(**{field: value})  # type: ignore[arg-type]


class TestAttentionPlace:
    def test_places(self) -> None:
        assert kind_and_places("h3-hybrid", 8) == ("h3", (1, 5))
        assert kind_and_places("h3@1+5", 8) == ("h3", (1, 5))
        sizes = settings("attention-place").language.sizes
        assert build_config("h3@1+5", sizes) == build_config("h3-hybrid", sizes)
        assert build_config("h3@none", sizes) == build_config("h3", sizes)
        for wrong in ("8", "1+1", "-1", "1,5", ""):
            with pytest.raises(ConfigError, match="expected layers from 0 to 7"):
                kind_and_places(f"h3@{wrong}", 8)

    def test_whole(self, tmp_path: Path) -> None:
        text = tmp_path / "text.txt"
        text.write_text("".join(f"{i} and {i * i} are a number and its square.\n" for i in range(1500)))
        small = ["vocab_size=272", "d_model=16", "tolerance=0.5", "tokens=256", "length=16", "batch_size=4"]
        small += ["evaluate_tokens=64", "test_tokens=200", f"source={text}"]
        config = settings("attention-place", quick=True, assignments=[f"language.{word}" for word in small])
        outcome = reproduce("attention-place", tmp_path / "run", config, plots=find_spec("matplotlib") is not None)
        assert outcome.record is not None
        rows = outcome.record["tables"][0]["rows"]
        assert [(row[0], row[1]) for row in rows] == [("none", "0"), ("1", "1"), ("0+2", "2")]
        best = min(rows, key=lambda row: float(row[2]))[0]
        assert f"The best here: {best}." in outcome.record["setting"]
