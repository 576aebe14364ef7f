"""Operands are declared once: what Python refuses, and the structs that C is compiled with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from statewise.decoding import instructions, operands
from statewise.decoding.instructions import INSTRUCTIONS
from statewise.decoding.mixers import MIXERS
from statewise.decoding.operands import Place, Slot, c_name, members, n_fields
from statewise.decoding.program import Program, Weights
from statewise.decoding.recurrences import Convolution
from statewise.mixers.activations import ACTIVATIONS
from statewise.native import build


def convolution(**changed: Any) -> Convolution:
    operands = {"width": 3, "n_taps": 2, "bias": None, "x": Place(0), "state": Slot(0), "silu": True}
    return Convolution(**{"taps": torch.ones(2, 3), **operands, **changed})


def test_operands_go_by_name_in_the_order_of_their_declaration() -> None:
    program = Program(Weights("float32", None, {}))
    program.emit(convolution(x=Place(5, 7), state=Slot(9)), wait=True)
    table, _ = program.tables()
    address = program.kept[0].data_ptr()
    assert table[0, :10].tolist() == [INSTRUCTIONS.index(Convolution), 1, 3, 2, address, 0, 5, 7, 9, 1]
    assert not table[0, 10:].any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 3.0}, "convolution.width is float, expected int"),
        ({"width": True}, "convolution.width is bool, expected int"),
        ({"silu": 1}, "convolution.silu is int, expected bool"),
        ({"state": 4}, "convolution.state is int, expected Slot"),
        ({"n_taps": Slot(2)}, "convolution.n_taps is Slot, expected int"),
        ({"x": (0, 0)}, "convolution.x is tuple, expected Place"),
        ({"x": None}, "convolution.x is NoneType, expected Place"),
        ({"taps": None}, "convolution.taps is NoneType, expected a tensor"),
        ({"taps": torch.ones(3, 2)}, r"convolution.taps is \(3, 2\), expected \(2, 3\)"),
        ({"bias": torch.ones(4)}, r"convolution.bias is \(4,\), expected \(3,\)"),
        ({"tap": None}, "unexpected keyword argument 'tap'"),
    ],
)
def test_a_wrong_operand_is_an_error_at_once(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Program(Weights("float32", None, {})).emit(convolution(**changed))


def test_a_missing_operand_is_an_error_and_nothing_goes_by_its_place() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'history'"):
        instructions.Advance()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional argument"):
        instructions.Advance(Slot(0))  # type: ignore[call-arg, misc]
    frequencies = {"n_angles": 2, "output": Place(0), "history": Slot(0), "frequencies": torch.ones(2)}
    with pytest.raises(TypeError, match=r"angles.frequencies is torch.float32, expected torch.float64"):
        Program(Weights("float32", None, {})).emit(instructions.Angles(**frequencies))  # type: ignore[arg-type]


def test_the_header_is_written_without_pytorch_and_has_every_member() -> None:
    script = (
        f"import sys, runpy; sys.argv = ['build.py', '--header']; runpy.run_path({build.__file__!r}, "
        "run_name='__main__'); assert 'torch' not in sys.modules"
    )
    text = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True).stdout
    assert text == build.header()
    for one in INSTRUCTIONS:
        struct = text.split(f"}} {c_name(one)};")[0].rsplit("typedef struct {", 1)[1]
        assert [line.rstrip(";").split()[-1].lstrip("*") for line in struct.strip().splitlines()] == [*members(one)]
        assert f"sizeof({c_name(one)}) == {8 * n_fields(one)}" in text


def test_another_declaration_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.sources_digest()
    recurrences = next(path for path in build.DECLARATIONS if path.name == "recurrences.py")
    changed = tmp_path / recurrences.name
    changed.write_text(recurrences.read_text().replace("silu: Flag", "silu: Count"))
    assert changed.read_text() != recurrences.read_text()
    monkeypatch.setattr(
        build, "DECLARATIONS", tuple(changed if path == recurrences else path for path in build.DECLARATIONS)
    )
    assert build.sources_digest() != before


def test_every_activation_and_every_emitter_is_there() -> None:
    gates = {"identity", "sigmoid"}  # of Multiply alone
    assert {kind.name.lower() for kind in operands.ActivationKind} == set(ACTIVATIONS) | gates
    files = {path.stem for path in (Path(instructions.__file__).parent / "mixers").glob("[!_]*.py")}
    assert files == {emitter.emit.__module__.rpartition(".")[2] for emitter in MIXERS.values()}
