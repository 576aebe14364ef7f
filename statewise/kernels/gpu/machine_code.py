"""Faults of NVIDIA's assembler that can be seen in the machine code of Hopper's products.

A product of a whole warp group runs on while the next instructions begin. Where its left factor is in registers, these
must stay as they are until a wait (WARPGROUP.DEPBAR). The assembler of CUDA before 13.3 may give them to something else
too early: wrong numbers, without an error (triton-lang/triton, issue 9433 and pull request 11781).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LABEL = re.compile(r"^\s*\.?(\w+):\s*$")
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:(@!?\w+)\s+)?([\w.]+)\s*(.*?);")
_FROM_REGISTERS = re.compile(r"R\d+, R(\d+)(?:\.reuse)?, gdesc")
_NO_RESULT = ("ST", "RED", "BAR", "R2UR", "SYNCS", "UTMA", "LDGSTS", "ATOM", "HGMMA")
_LEFT = 4  # registers of a left factor in one instruction


class _Instruction(NamedTuple):
    condition: str | None
    name: str
    rest: str


def overwritten_factors(code: str) -> int:
    """How many products have a left factor in registers that an instruction may write to before the wait.

    code: as ``nvdisasm -c`` prints it. Every way through the code is followed, back to the start of a loop as well.
    """
    instructions, labels = _parsed(code)
    found = 0
    for i, instruction in enumerate(instructions):
        factor = _FROM_REGISTERS.match(instruction.rest) if instruction.name.startswith("HGMMA") else None
        if factor:
            first = int(factor[1])
            found += _is_overwritten(set(range(first, first + _LEFT)), i + 1, instructions, labels)
    return found


def _parsed(code: str) -> tuple[list[_Instruction], dict[str, int]]:
    """The instructions, and which one is behind each label."""
    instructions: list[_Instruction] = []
    labels: dict[str, int] = {}
    for line in code.splitlines():
        label, found = _LABEL.match(line), _LINE.search(line)
        if label:
            labels[label[1]] = len(instructions)
        elif found:
            instructions.append(_Instruction(*found.groups()))
    return instructions, labels


def _is_overwritten(registers: set[int], start: int, instructions: list[_Instruction], labels: dict[str, int]) -> bool:
    waiting, seen = [start], set[int]()
    while waiting:
        i = waiting.pop()
        while i < len(instructions) and i not in seen:
            seen.add(i)
            condition, name, rest = instructions[i]
            if name.startswith("WARPGROUP.DEPBAR") or (name == "EXIT" and condition is None):
                break
            if _written(name, rest) & registers:
                return True
            if name == "BRA":
                target = re.search(r"\(\.?(\w+)\)", rest)
                if target and target[1] in labels:
                    waiting.append(labels[target[1]])
                if condition is None and not re.match(r"!?U?P", rest):
                    break
            i += 1
    return False


def _written(name: str, rest: str) -> set[int]:
    first = re.match(r"R(\d+)", rest)
    if first is None or name.startswith(_NO_RESULT):
        return set()
    wide = 4 if re.search(r"\.128|\.M88\.4|\.4$", name) else 2 if re.search(r"\.64|\.WIDE|\.M88\.2", name) else 1
    return set(range(int(first[1]), int(first[1]) + wide))
