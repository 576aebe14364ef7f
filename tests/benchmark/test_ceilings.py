"""Ceilings: kernels that do what they count, the fastest way, what is kept, and bars as shares of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from statewise import native
from statewise.benchmark import bars, ceilings, measured
from statewise.benchmark.bars import run_bars, speed
from statewise.benchmark.case import OURS, Case, Workload
from statewise.benchmark.processor import describe_here, describe_processor, file_name, processor
from statewise.benchmark.timing import Times
from statewise.benchmark.workloads import WORKLOADS, models, scan, ssd
from statewise.cli import run
from statewise.decoding import PRECISIONS

needs_library = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
def test_every_word_is_read_once(instructions: str) -> None:
    words = torch.randint(-(2**31), 2**31, (100_003,), dtype=torch.int64)
    with native.forced(instructions):
        for length in (0, 1, 15, 16, 17, 1000, len(words)):
            for n_rows in (1, 2, 3, 8):
                for n_threads in (1, 2, 3):
                    part = words[:length]
                    sums = ceilings.read_memory(part.int(), n_rows, n_threads)
                    assert (int(sums.sum()) - int(part.sum())) % 2**32 == 0
                    assert len(sums) == n_threads


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
def test_every_thread_computes_the_exponentials(instructions: str) -> None:
    x = torch.linspace(-20, 5, 101)
    with native.forced(instructions):
        y = ceilings.repeat_exp2(x, 3, 2)
    torch.testing.assert_close(y, torch.exp2(x).expand(2, -1))


def test_the_fastest_way_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(case: Case, **options: Any) -> Times:
        times = {} if case.name == "none" else {"slow": 4.0, "fast": 2.0}
        return Times(case.name, case.setting, 1, times, {"absent": "not available"})

    monkeypatch.setattr(ceilings, "time_case", known)
    shared: dict[str, Any] = {"setting": "", "unit": "GB/s", "amount": 3e7, "ways": {}}
    found = [ceilings.Ceiling(name=name, **shared).record(seconds=1) for name in ("some", "none")]
    assert (found[0]["value"], found[0]["way"]) == (15.0, "fast")  # 30 MB in 2 ms
    assert (found[1]["value"], found[1]["why"]) == (None, "not available")
    assert ceilings.highest(found, ("some", "none")) == ("some", 15e9)
    assert ceilings.highest(found, ("none",)) is None


def test_what_one_call_has_to_do() -> None:
    assert scan.exponentials(3, width=5, n_states=7) == 3 * 5 * 9
    assert scan.exponentials(3, True, width=5, n_states=7) == 2 * 3 * 5 * 9
    assert ssd.operations(2, heads=3, d_head=5, d_state=7) == 2 * 3 * (2 * 5 * 7 + 2 * 7 * 5)
    assert ssd.operations(2, True, heads=3, d_head=5, d_state=7) == 3 * ssd.operations(2, heads=3, d_head=5, d_state=7)
    # one Mamba of width 128: twice that inside, a step size of rank 8, 16 states; 512 words
    layer = 128 * 512 + 256 * (8 + 2 * 16) + 8 * 256 + 256 * 128
    assert models.prefill_operations("mamba-130m", 10, quick=True) == 2 * (10 * layer + 512 * 128)


@needs_library
def test_bytes_read_of_a_small_model() -> None:
    n_parameters = sum(p.numel() for p in models.build("mamba-130m", True).parameters())
    assert 0.95 < models.bytes_read("mamba-130m", "float32", 3, quick=True) / (3 * 4 * n_parameters) < 1.05


def test_bars_are_shares_of_what_binds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(case: Case, **options: Any) -> Times:
        return Times(case.name, case.setting, 1, {OURS: 2.0, "theirs": 6.0})

    monkeypatch.setattr(measured, "time_case", known)
    toy = Case(name="case", setting="", sides={})
    monkeypatch.setitem(WORKLOADS, "toy", Workload(name="toy", summary="", cases=lambda quick: [toy]))
    words: Any = {"ceilings": ceilings.READING, "amount": lambda: 3e7}  # in 2 ms: 15 GB/s
    asked = [
        speed("bound", "toy", "case", "theirs", OURS, 1, **words),
        speed("free", "toy", "case", "theirs", OURS, 1),
    ]
    values = [10.0, 20.0]
    machine = [{"name": name, "value": value} for name, value in zip(ceilings.READING, values, strict=True)]
    bound, free = run_bars(asked, ceilings=machine)
    assert (bound["share"], bound["ceiling"]) == (0.75, ceilings.READING[1])
    assert "share" not in free
    assert all("share" not in record for record in run_bars(asked))
    assert all("share" not in record for record in run_bars(asked, ceilings=machine, quick=True))
    work = asked[0].work
    assert isinstance(work, bars.Work)
    (told,) = run_bars([bars.share("share", "case", work, 0.8)], ceilings=machine)
    assert (told["ratio"], told["holds"]) == (0.75, False)
    (told,) = run_bars([bars.share("share", "case", work, 0.8)])
    assert told["ratio"] is None
    assert "statewise benchmark ceilings" in told["why"]
    (told,) = run_bars([bars.share("share", "case", work, 0.8)], ceilings=machine, quick=True)
    assert (told["ratio"], told["holds"], told["why"]) == (None, None, "quick")


@needs_library
@pytest.mark.parametrize("quick", [False, True])
def test_ours_is_our_code(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    function = native.function

    def told(name: str, *how: Any) -> Any:
        called.append(name)
        return function(name, *how)

    monkeypatch.setattr(native, "function", told)
    having = [one for one in ceilings.all_ceilings(quick) if "ours" in one.ways]
    assert [one.name for one in having] == [ceilings.product_name("float32", n) for n in ceilings.ROWS]
    for one in having:
        called.clear()
        one.ways["ours"]()()
        assert {"matmul", "matmul_few"} & {*called}, one.name
    for one in ceilings.all_ceilings(quick):
        if one.name.startswith("product"):
            called.clear()
            theirs = next(prepare for way, prepare in one.ways.items() if way != "ours")
            theirs()()
            assert not called, one.name


def test_kept_for_this_machine_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path))
    assert ceilings.kept() is None
    record = ceilings.measure_ceilings(quick=True)
    path = ceilings.keep(record)
    assert ceilings.kept() is None  # quick figures are none
    ceilings.keep(record | {"quick": False})
    assert ceilings.kept() == record | {"quick": False}
    ceilings.keep(record | {"quick": False, "torch": "0"})
    assert ceilings.kept() is None
    for damaged in ("", "[]", "{", '{"quick": false}'):
        path.write_text(damaged)
        assert ceilings.kept() is None


def test_a_kept_file_that_lacks_what_readers_use_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path))
    head = {"name": "reading", "setting": "", "unit": "GB/s"}
    found: list[dict[str, Any]] = [{**head, "value": 1.0, "way": "one"}, {**head, "value": None, "why": "absent"}]
    whole = ceilings._here() | {"quick": False, "measured": "2026-01-01", "ceilings": found}
    ceilings.keep(whole)
    assert ceilings.kept() == whole
    damaged = [{key: value for key, value in whole.items() if key != lost} for lost in whole]
    for i, one in enumerate(found):
        for lost in one:
            rest = {key: value for key, value in one.items() if key != lost}
            damaged.append(whole | {"ceilings": [*found[:i], rest, *found[i + 1 :]]})
    wrong: list[Any] = [[], {}, [None], ["reading"], [found[0] | {"value": "1"}]]
    damaged += [whole | {"ceilings": one} for one in wrong]
    damaged.append(whole | {"measured": None})
    for record in damaged:
        ceilings.keep(record)
        assert ceilings.kept() is None, record
    assert run(["info", "--no-json"]) == 0
    assert "not measured; run: statewise benchmark ceilings" in " ".join(capsys.readouterr().out.split())


def test_a_short_measurement_is_shown_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path))
    quick = ceilings.all_ceilings(True)[-1:]
    monkeypatch.setattr(ceilings, "all_ceilings", lambda quick_: list(quick))
    assert run(["benchmark", "ceilings", "--seconds", "0.02", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["ceilings"]) == 1
    assert [line for line in err.splitlines() if line.startswith("statewise: ")] == [
        "statewise: these ceilings are not kept: --seconds 0.02 is too short to trust them; "
        "give 0.25 or more to keep them"
    ]
    assert ceilings.kept() is None
    assert run(["benchmark", "ceilings", "--seconds", "0.25", "--json"]) == 0
    assert ceilings.kept() == json.loads(capsys.readouterr().out)


def test_the_processor(tmp_path: Path) -> None:
    text = "vendor_id : V\ncpu family : 6\nmodel : 143\nmodel name : M (R) 1\nflags : fpu avx2 amx_bf16\n\nmodel : 7\n"
    (tmp_path / "cpuinfo").write_text(text)
    found = processor(tmp_path / "cpuinfo") | {"name": "M (R) 1", "cores": 2}
    assert (found["family"], found["model"], found["stepping"]) == ("6", "143", None)
    assert found["extensions"] == ["avx2", "amx_bf16"]
    assert describe_processor(found) == "M (R) 1, family 6, model 143, avx2 amx_bf16"
    assert file_name(found, 2) == "m-r-1-6-143-of-2-2-threads.json"
    assert processor(tmp_path / "none")["extensions"] == []
    c_kernels = f"C kernels in {native.instruction_set()}" if native.available() else "no C kernels"
    n_threads = torch.get_num_threads()
    threads = "one thread" if n_threads == 1 else f"{n_threads} threads"
    assert describe_here() == f"{describe_processor(processor())}; {c_kernels}, {threads}"


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path))
    assert run(["benchmark", "ceilings", "--quick", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    products = {f"decoding's product, {precision}" for precision in PRECISIONS}
    assert {*products, *ceilings.READING, *ceilings.PRODUCT, *ceilings.EXP} <= {
        one["name"] for one in record["ceilings"]
    }
    assert all(one["value"] is not None or one["why"] for one in record["ceilings"])
    assert run(["info", "--no-json"]) == 0
    out = capsys.readouterr().out
    assert "statewise benchmark ceilings" in out
    assert "near 4096" in out
    monkeypatch.setenv("STATEWISE_PREFETCH", "passing 512")
    assert run(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["decoding"]["asked"] == "passing 512"
    assert told["bfloat16"] == {"gain": None, "pays": None}  # not measured
    monkeypatch.delenv("STATEWISE_PREFETCH")
    ceilings.keep(record | {"quick": False})
    assert run(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ceilings"]["ceilings"] == record["ceilings"]
    gain = ceilings.bfloat16_gain(record)
    assert told["bfloat16"] == {"gain": gain, "pays": None if gain is None else gain >= 1.5}
    assert run(["info", "--no-json"]) == 0
    out = capsys.readouterr().out
    assert "fastest way" in out
    assert "not measured" not in out


@pytest.mark.parametrize(
    ("narrow", "full", "told"),
    [
        (
            860.0,
            410.0,
            "pays in wide models, where products take most of a step: products in bfloat16 run 2.1x as fast",
        ),
        (300.0, 410.0, "does not pay: products in bfloat16 run 0.7x as fast here as in float32"),
        (None, 410.0, "it is unknown whether train.precision=bfloat16 pays here; run: statewise benchmark ceilings"),
    ],
)
def test_whether_bfloat16_pays(narrow: float | None, full: float, told: str) -> None:
    values = {"bfloat16": narrow, "float32": full}
    found = [{"name": ceilings.product_name(kind, 2048), "value": value} for kind, value in values.items()]
    assert told in ceilings.whether_bfloat16_pays({"ceilings": found})


def test_bfloat16_of_a_machine_that_was_not_measured() -> None:
    assert ceilings.bfloat16_gain(None) is None
    assert "run: statewise benchmark ceilings" in ceilings.whether_bfloat16_pays(None)


@needs_library
def test_a_training_step_in_bfloat16_rounds_and_learns_the_same() -> None:
    losses = [float(models.our_training("mamba2-130m", True, 32, precision)()) for precision in ("float32", "bfloat16")]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
