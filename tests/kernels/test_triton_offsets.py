"""Numbers of 32 bits that could overflow on their way to an offset: in kernels that are wrong, right, and ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from interpreted import long_interpreted, needs_interpreter
from without_a_gpu import found_in

from statewise.kernels.gpu.offsets import narrow_offsets

pytestmark = needs_interpreter
WRONG = {  # what a kernel does, and what is found
    "no_cast": ("tl.store(out + program, 1.0)", "an offset of 32 bits"),
    "a_product": ("at = program * length", "a product of 32 bits: at"),
    "a_product_by_a_constant": ("at = program * 64", "a product of 32 bits: at"),
    "a_product_in_parts": ("first = program * 64\nat = first[None] + block", "a product of 32 bits: first"),
    "a_shift": ("at = program << 6", "a shift of 32 bits: at"),
    "a_sum": ("at = program + length", "a sum of 32 bits: at"),
    "a_difference": ("at = tl.load(numbers) - length", "a difference of 32 bits: at"),
    "a_large_constant": ("at = program + 2000000000", "a sum of 32 bits: at"),
    "a_quotient_multiplied": ("at = program // stride * length", "a product of 32 bits: at"),
    "a_loop_that_adds_a_stride": (
        "at = program\nfor _ in range(length):\n    at += stride",
        "a sum in a loop of 32 bits: at",
    ),
    "a_loop_that_adds_a_block": (
        "at = program\nfor _ in range(length):\n    at += 64",
        "a sum in a loop of 32 bits: at",
    ),
    "loops_in_a_loop": (
        "at = program\nfor _ in range(length):\n    for _ in range(length):\n        at += 1",
        "a sum in a loop of 32 bits: at",
    ),
    "a_loop_that_doubles": ("at = program\nfor _ in range(length):\n    at = 2 * at", "a product of 32 bits: at"),
    "a_branch": ("at = program\nif length > 5:\n    at = program * length", "a product of 32 bits: at"),
    "another_branch": ("at = program * length\nif length > 5:\n    at = program", "a product of 32 bits: at"),
    "a_mask": ("tl.store(out + (wide + block), 1.0, mask=program * 64 + block < length)", "a product of 32 bits"),
    "the_end_of_a_loop": (
        "for t in range(length * stride):\n    tl.store(out + wide + t.to(tl.int64), 1.0)",
        "a product",
    ),
    "a_condition": ("if length * stride > 5:\n    tl.store(out + wide, 1.0)", "a product of 32 bits"),
    "coordinates": (
        "tl.store(out + wide, tl.sum(tl.sum(tiles.load([program * 64, 0]).to(tl.float32), 0)))",
        "a product of 32 bits",
    ),
}
RIGHT = {
    "wide_from_the_first": "at = wide * length + block + stride",
    "a_block_behind_a_number": "at = program + block + 64",
    "numbers_subtracted": "at = length - program - block",
    "divided": "at = (program // length).to(tl.int64) * stride + (program % length) + block",
    "small_after_a_remainder": "at = program % 8 * 64 + block",
    "small_after_a_minimum": "at = tl.minimum(program, 7) * 64",
    "a_ceiling": "at = wide\nfor t in range(tl.cdiv(length, 64)):\n    at += t.to(tl.int64) * 64",
    "a_loop_of_blocks": "for start in range(0, length, 64):\n    tl.store(out + (wide + (start + block)), 1.0)",
    "a_loop_that_counts": "at = 0\nfor _ in range(length):\n    at += 1",
    "a_loop_that_adds_its_own_step": "at = 0\nfor _ in range(0, length, 64):\n    at += 64",
    "a_loop_that_adds_a_wide_stride": "at = wide\nfor _ in range(length):\n    at += stride",
    "cut_by_the_kernel_itself": "at = (wide * 64 + block).to(tl.int32) // stride",
    "two_loops": (
        "at = wide\nfor t in range(length):\n    at = wide + t\n"
        "for t in range(length):\n    tl.store(out + wide + t.to(tl.int64), tl.load(out + at))"
    ),
    "a_product_of_data": "tl.store(out + wide, (tl.load(numbers + wide) * length).to(tl.float32))",
}


def source(name: str, body: str) -> str:
    lines = ["program, block = tl.program_id(0), tl.arange(0, 64)", "wide = program.to(tl.int64)", *body.splitlines()]
    if "at =" in body:
        lines.append("tl.store(out + (tl.zeros((64,), tl.int64) + at), 1.0)")
    head = f"\n\n@triton.jit\ndef {name}(out, numbers, tiles, length, stride):\n"
    return head + "".join(f"    {line}\n" for line in lines)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("offsets")
    bodies = {name: body for name, (body, _) in WRONG.items()} | RIGHT
    kernels = [source(name, body) for name, body in bodies.items()]
    file = folder / "kernels.py"
    file.write_text("import triton\nimport triton.language as tl\n" + "".join(kernels), "utf-8")
    return found_in(file, folder / "cache")


@pytest.mark.parametrize("name", WRONG)
def test_what_could_overflow_is_found(name: str, found: dict[str, list[str]]) -> None:
    assert any(fault.startswith(WRONG[name][1]) for fault in found[name]), found[name]


@pytest.mark.parametrize("name", RIGHT)
def test_what_could_not_is_passed(name: str, found: dict[str, list[str]]) -> None:
    assert found[name] == []


@long_interpreted
def test_sizes_that_are_multiples_of_nothing(tmp_path: Path) -> None:
    """The gate builds for sizes that are multiples of 16."""
    assert {name: faults for name, faults in found_in(None, tmp_path).items() if faults} == {}


def test_a_loop_that_is_not_counted() -> None:
    """Which our kernels do not have, and Triton writes so: what it carries may be anything."""
    text = """
    %at = scf.while (%n = %length) : (i32) -> i32 {
      %more = arith.cmpi slt, %n, %length : i32
      scf.condition(%more) %n : i32
    } do {
    ^bb0(%m: i32 loc(#loc)):
      %one = arith.addi %m, %step : i32
      scf.yield %one : i32
    } loc(#loc)
    %where = arith.addi %at, %step : i32 loc(#loc)
    %wide = arith.extsi %where : i32 to i64 loc(#loc)
    %p = tt.addptr %out, %wide : !tt.ptr<f32>, i64 loc(#loc)
    """
    assert narrow_offsets(text) == ["a sum of 32 bits: one", "a sum of 32 bits: where"]
