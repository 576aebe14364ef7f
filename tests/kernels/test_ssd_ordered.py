"""SSD step by step in C, as exact mode runs it: a cut changes no bit, for states of any number of vectors."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from statewise import native
from statewise.kernels.ssd import ordered
from statewise.kernels.ssd.reference import Arguments
from statewise.native import build

needs_c = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
SHAPES = [  # length, heads, d_head, groups, d_state
    (7, 2, 3, 1, 3),
    (7, 2, 3, 1, 4),
    (40, 2, 3, 1, 8),
    (7, 4, 5, 2, 9),
    (40, 4, 5, 2, 16),
    (7, 2, 3, 1, 24),
    (40, 2, 3, 1, 32),
    (7, 2, 3, 1, 40),
    (7, 2, 2, 1, 64),
    (7, 1, 2, 1, 128),
    (7, 2, 2, 2, 300),  # in three passes
]


def _arguments(length: int, heads: int, d_head: int, groups: int, d_state: int) -> tuple[Arguments, Tensor, Tensor]:
    """Those of a row, and gradients of its outputs and of the state behind it."""
    torch.manual_seed(3)
    x, dt, log_a = torch.randn(1, length, heads, d_head), torch.rand(1, length, heads), -torch.rand(1, length, heads)
    B, C = torch.randn(2, 1, length, groups, d_state)
    given = Arguments(x, log_a, B, C, torch.randn(1, heads, d_head, d_state), dt, torch.randn(heads), None, 64)
    return given, torch.randn_like(x), torch.randn_like(given.h0)


def _piece(given: Arguments, begin: int, end: int, state: Tensor) -> Arguments:
    x, log_a, B, C, dt = (m[:, begin:end] for m in (given.x, given.log_a, given.B, given.C, given.dt))  # type: ignore[index]
    return given._replace(x=x, log_a=log_a, B=B, C=C, dt=dt, h0=state)


@needs_c
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cut_changes_no_bit(shape: tuple[int, int, int, int, int], instructions: str) -> None:
    given, slope, last = _arguments(*shape)
    with native.forced(instructions):
        y, state = ordered.forward(given)
        whole = ordered.backward(slope, last, given)
        for size in (1, 3):
            cuts = [*range(0, shape[0], size), shape[0]]
            pieces, states = [*itertools.pairwise(cuts)], [given.h0]
            outputs = []
            for begin, end in pieces:
                part, after = ordered.forward(_piece(given, begin, end, states[-1]))
                outputs.append(part)
                states.append(after)
            assert torch.equal(torch.cat(outputs, 1), y)
            assert torch.equal(states[-1], state)
            found: list[tuple[Tensor | None, ...]] = []
            carried = last
            for (begin, end), before in reversed([*zip(pieces, states)]):
                grads = ordered.backward(slope[:, begin:end], carried, _piece(given, begin, end, before))
                carried = grads[4]  # type: ignore[assignment]
                found.insert(0, grads)
            assert torch.equal(carried, whole[4])  # type: ignore[arg-type]
            for i in (0, 1, 2, 3, 5):  # of x, log_a, B, C and dt
                assert torch.equal(torch.cat([m[i] for m in found], 1), whole[i])  # type: ignore[misc, arg-type]


@pytest.mark.parametrize("instructions", build.VARIANTS)
def test_the_compiler_joins_no_product_and_sum_by_itself(instructions: str, tmp_path: Path) -> None:
    """It may do so in one copy of a loop and not in another. So the code is the same where it may not."""
    try:
        command = build.compiler()
        sets = build.variants(command)
    except build.BuildError as why:
        pytest.skip(str(why))
    if instructions not in sets:
        pytest.skip(f"the compiler's processor has no {instructions}")
    if instructions == "portable" and "avx2" in sets:
        pytest.skip("the first processors of x86 have no product and sum in one")
    source = next(path for path in build.sources(".c") if path.name == "ssd_ordered.c")
    includes = [word for room in sorted({path.parent for path in build.sources(".h")}) for word in ("-I", str(room))]
    flags = [*build.FLAGS, "-w", "-O3", *build.VARIANTS[instructions], f"-DISA={instructions}", *includes]
    made = []
    for contraction in ("fast", "off"):
        target = tmp_path / f"{contraction}.s"
        target_flags = [*flags, f"-ffp-contract={contraction}", "-S", str(source), "-o", str(target)]
        subprocess.run([*command, *target_flags], check=True)
        made.append(target.read_text())
    assert made[0] == made[1]
