"""Benchmarks run, their sides compute the same, and every bar is told with or without the packages of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_toys import fixed

from statewise.benchmark import measured, timing
from statewise.benchmark.bars import Bar, growth, run_bars, speed
from statewise.benchmark.case import OURS, OURS_WITHOUT_C, Case, Missing, Workload
from statewise.benchmark.measured import Measured
from statewise.benchmark.promises import all_bars
from statewise.benchmark.run import run_workload
from statewise.benchmark.timing import Times, time_case
from statewise.benchmark.workloads import WORKLOADS, models, scan, ssd, time_invariant


def values_of(case: Case) -> dict[str, Any]:
    """The outputs of every side that is installed: the first one, and the gradients if there are any."""
    found = {}
    for side, prepare in case.sides.items():
        try:
            output = prepare()()
        except Missing:
            continue
        first = output[0] if isinstance(output, tuple) else output
        gradients = output[1] if isinstance(output, tuple) and isinstance(output[1], tuple) else ()
        found[side] = [first, *(m for m in gradients if m is not None)]
    return found


def assert_same(found: dict[str, list[torch.Tensor]], relative: float) -> None:
    known = found.pop(next(side for side in found if not side.startswith("ours")))
    assert found
    for side, tensors in found.items():
        for m, exact in zip(tensors, known, strict=True):
            assert (m - exact).abs().max() <= relative * exact.abs().max(), side


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("scan", lambda gradients: scan.case_name("L=8,192", gradients)),
        ("convolution", lambda gradients: time_invariant.case_name("256 x 4,096", gradients)),
        ("filters", lambda gradients: time_invariant.case_name("S4D filter, L=4,096", gradients)),
        ("filters", lambda gradients: time_invariant.case_name("S4D layer, L=4,096", gradients)),
        ("filters", lambda gradients: time_invariant.case_name("S4 Cauchy sums, 2,049 nodes", gradients)),
    ],
)
def test_the_sides_compute_the_same(workload: str, name: Callable[[bool], str], gradients: bool) -> None:
    assert_same(values_of(WORKLOADS[workload].case(name(gradients), True)), 2e-5)


@pytest.mark.parametrize("gradients", [False, True])
def test_the_sides_of_ssd_compute_the_same(gradients: bool) -> None:
    found = values_of(WORKLOADS["ssd"].case(ssd.case_name("L=8,192", gradients), True))
    attention = found.pop(ssd.ATTENTION)  # another function, of the same shape
    assert attention[0].transpose(1, 2).shape == found[OURS_WITHOUT_C][0].shape
    assert_same(found, 2e-5)


def test_the_listing_of_ssd_is_the_batched_matmul() -> None:
    tensors = ssd.inputs(192, heads=2)
    y = peers_of_ssd().paper_listing(*tensors)
    torch.testing.assert_close(y, peers_of_ssd().batched_matmul(*tensors), rtol=1e-4, atol=1e-4)


def peers_of_ssd() -> Any:
    from statewise.benchmark.peers import ssd as module

    return module


def test_the_loop_and_the_chunks_are_the_same_scan() -> None:
    from statewise.benchmark.peers import scan as module

    tensors = scan.inputs(100, width=4)
    torch.testing.assert_close(module.chunked(*tensors), module.paper_loop(*tensors))


@pytest.mark.parametrize("preset", ["mamba-130m", "mamba2-130m"])
def test_hugging_face_computes_what_we_compute(preset: str) -> None:
    pytest.importorskip("transformers")
    from statewise.benchmark.peers.hugging_face import hugging_face

    model = models.build(preset, True)
    tokens = models.prompt(model, 40)
    with torch.inference_mode():
        torch.testing.assert_close(hugging_face(model)(tokens).logits, model(tokens)[0], rtol=1e-4, atol=1e-5)


def test_llama_cpp_computes_what_we_compute() -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    model = models.build("mamba-130m", True)
    tokens = models.prompt(model, 40)
    with torch.inference_mode():
        known = model(tokens)[0][0, -1]
    for weights, tolerance in (("float32", 1e-5), ("q8_0", 2e-2)):
        found = torch.from_numpy(LlamaCpp(model, weights, 1, 64).read(tokens[0].tolist()))
        assert (found - known).abs().max() < tolerance, weights


def test_every_bar_is_told() -> None:
    bars = [bar for bar in all_bars() if not bar.name.startswith(("decoding", "prefill"))]
    records = run_bars(bars, quick=True)
    assert [record["name"] for record in records] == [bar.name for bar in bars]
    for record in records:
        assert list(record)[:6] == ["name", "setting", "ratio", "bar", "kind", "holds"]
        told = record["ratio"] is not None
        assert told or "pip install" in record["why"] or "C kernels" in record["why"], record
        assert record["holds"] is None  # small sizes say nothing
        if told:
            assert record["why"] == ("reported, no bar" if record["bar"] is None else "quick")
    assert len(json.dumps(records)) > 1000


def test_a_name_with_its_setting_is_one_bar() -> None:
    keys = [(bar.name, bar.setting) for bar in all_bars()]
    assert len(set(keys)) == len(keys)


def test_bars_cover_what_is_asked() -> None:
    names = {bar.name for bar in all_bars()}
    assert len(names) > 40
    for part in (
        "scan",
        "scan without C",
        "ssd",
        "ssd without C",
        "S4D layer",
        "S4D layer without C",
        "decoding",
        "demo",
    ):
        assert any(name.startswith(part) for name in names), part


def test_times_are_medians_of_turns(toy: Workload) -> None:
    times = time_case(toy.cases(False)[0], seconds=0.01)
    assert times.ratio("theirs", OURS) > 1
    with pytest.raises(Missing, match="pip install"):
        times.ratio("absent", OURS)


def test_bars_hold_or_do_not_or_are_not_known(toy: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    def known(case: Case, **options: Any) -> Times:
        times = {OURS: 2.0 * case.length, "theirs": 6.0}
        return Times(case.name, case.setting, case.length, times, {"absent": "pip install it"})

    def broken(found: Measured) -> float:
        raise RuntimeError("it broke\nin two lines")

    monkeypatch.setattr(measured, "time_case", known)
    bars = [
        speed("fast enough", "toy", "L=1, forward", "theirs", OURS, 1.2),
        speed("too slow", "toy", "L=1, forward", "theirs", OURS, 20),
        speed("absent", "toy", "L=1, forward", "absent", OURS, 2),
        growth("linear", "toy", ["L=1, forward", "L=4, forward"], OURS, 2, "1 to 4"),
        Bar(name="broken", setting="", bar=1, measure=broken),
        Bar(name="not finite", setting="", bar=1, measure=lambda found: float("nan")),
    ]
    records = {record["name"]: record for record in run_bars(bars)}
    assert {name: record["holds"] for name, record in records.items()} == {
        "fast enough": True,
        "too slow": False,
        "absent": None,
        "linear": True,
        "broken": None,
        "not finite": False,
    }
    assert records["broken"]["why"] == "RuntimeError: it broke"
    assert "pip install" in records["absent"]["why"]


def test_an_interrupted_run_gives_what_it_has() -> None:
    def interrupted(found: Measured) -> float:
        raise KeyboardInterrupt

    measures: list[Callable[[Measured], float]] = [lambda found: 2.0, interrupted, lambda found: 3.0]
    bars = [Bar(name=str(i), setting="", bar=1, measure=measure) for i, measure in enumerate(measures)]
    assert [(record["ratio"], record.get("why")) for record in run_bars(bars)] == [
        (2.0, None),
        (None, "interrupted"),
        (None, "interrupted"),
    ]


def test_slow_and_broken_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"slowest": 0, "slow": 0, "fast": 0}

    def counted(name: str, milliseconds: float) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            action = fixed(milliseconds)()

            def count() -> Any:
                calls[name] += 1
                return action()

            return count

        return prepare

    def broken() -> Any:
        raise ValueError("it broke")

    monkeypatch.setattr(timing, "SLOW", 0.03)
    monkeypatch.setattr(timing, "SLOWEST", 0.06)
    sides = {"slowest": counted("slowest", 65), "slow": counted("slow", 31), "fast": counted("fast", 21)}
    times = time_case(Case(name="c", setting="", sides=sides | {"broken": broken}), seconds=1e-3)
    assert times.missing == {"broken": "ValueError: it broke"}
    if calls["fast"] == 6:  # else the machine is so busy that it was slow, too
        assert calls["slowest"] == 2
    assert calls["slow"] <= 3


def test_a_workload_as_json_and_a_plot(toy: Workload, tmp_path: Path) -> None:
    record = run_workload(toy, quick=True, memory=False)
    assert record["cases"][0]["sides"]["theirs"]["ratio"] > 0
    assert "why" in record["cases"][0]["sides"]["absent"]
    json.dumps(record)
    pytest.importorskip("matplotlib")
    from statewise.benchmark.plot import plot_cost

    plot_cost(record, tmp_path / "cost.png")
    assert (tmp_path / "cost.png").stat().st_size > 1000
