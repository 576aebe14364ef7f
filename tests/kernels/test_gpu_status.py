"""Which kernel runs on a card, and why, without a card: what is kept decides."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from statewise import kernels
from statewise.cli.console import show_info
from statewise.cli.facts import environment
from statewise.kernels import gpu
from statewise.kernels.gpu import canary, gate
from statewise.kernels.gpu.status import on_card, on_cards

CARD = torch.device("cuda", 0)


@pytest.fixture
def with_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton and one card, as far as anyone asks."""
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    monkeypatch.setattr(gpu, "by_default", lambda device: False)
    monkeypatch.setattr(canary, "_key", lambda kernel, device: f"{kernel} on {device}")
    monkeypatch.setattr(canary, "_known", {"ssd on cuda:0": None, "rms_norm on cuda:0": "it is off by 1.0"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "A Card")


@pytest.mark.usefixtures("with_a_card")
def test_a_card_tells_path_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_card("cauchy_of_old", CARD) == ("PyTorch", "not written in Triton")
    assert on_card("rms_norm", CARD) == ("PyTorch", "refused on this card: it is off by 1.0")
    with kernels.use("auto"):
        path, reason = on_card("ssd", CARD)
        assert path == "PyTorch"
        assert reason.endswith("asks for it by name; checked on this card, its answers are those of PyTorch")
        monkeypatch.setattr(gpu, "by_default", lambda device: True)
        assert on_card("linear_scan", CARD) == ("Triton", "checks itself before its first use")
    with kernels.use("triton"):
        assert on_card("ssd", CARD)[0] == "Triton"
        assert on_card("rms_norm", CARD)[0] == "PyTorch"
    with kernels.use("torch"):
        assert on_card("ssd", CARD) == ("PyTorch", '"torch" was chosen by kernels.use or STATEWISE_KERNELS')


@pytest.mark.usefixtures("with_a_card")
def test_info_shows_every_card(capsys: pytest.CaptureFixture[str]) -> None:
    record = environment()
    assert {status["device"] for status in record["cards"]} == {"cuda:0 A Card"}
    assert [status["kernel"] for status in record["cards"]] == [status["kernel"] for status in record["kernels"]]
    show_info(record, as_json=False)
    shown = capsys.readouterr().out
    assert "kernels on cuda:0 A Card" in shown
    assert "refused" in shown


def test_without_triton_the_reason_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "why_not", lambda: "Triton is not installed")
    assert on_card("ssd", CARD) == ("PyTorch", "Triton is not installed")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert on_cards(["ssd"]) == []


def test_what_the_gate_found_in_a_line_for_each_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        gate.Found("ssd", "sweep", name, target, registers, 0, 2048, 8, faults)
        for name, target, registers, faults in (
            ("64", "sm_90", 200, ()),
            ("32", "sm_90", 96, ()),
            ("64", "gfx942", 255, ("3 registers spill",)),
        )
    ]
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for path, part in zip(files, (found[:1], found[1:]), strict=True):
        path.write_text(json.dumps([asdict(one) for one in part]))
    assert gate.main(["--read", *map(str, files)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| kernel | function | configurations | sm_90 | gfx942 | shared, KiB at most | faults |",
        "|---|---|---|---|---|---|---|",
        "| ssd | sweep | 2 | 96 to 200 | 255 to 255 | 2 | 1 |",
    ]
