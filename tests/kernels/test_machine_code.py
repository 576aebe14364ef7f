"""Products of Hopper whose factor is overwritten, in lines as the disassembler prints them."""

from __future__ import annotations

import pytest

from statewise.kernels.gpu.machine_code import overwritten_factors

PRODUCT = "HGMMA.64x64x16.F32.BF16 R88, R120, gdesc[UR4].tnspB, R88, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


def code(*lines: str) -> str:
    return "\n".join(
        line if line.endswith(":") else f"        /*{16 * i:04x}*/                   {line} ;"
        for i, line in enumerate(lines)
    )


@pytest.mark.parametrize(
    "write", ["MOV R123, RZ", "@P1 FADD R120, R1, R2", "LDS.128 R120, [R4]", "LDS.64 R122, [R4+0x10]"]
)
def test_a_write_before_the_wait_is_found(write: str) -> None:
    assert overwritten_factors(code(PRODUCT, write, WAIT, "EXIT")) == 1
    assert overwritten_factors(code(PRODUCT, WAIT, write, "EXIT")) == 0


@pytest.mark.parametrize(
    "other",
    [
        "MOV R124, RZ",
        "FADD R1, R120, R121",
        "STS.128 [R4], R120",
        "ST R120, [R1]",
        "HGMMA.64x64x16.F32.BF16 R88, gdesc[UR4], R88",
    ],
)
def test_what_does_not_write_to_it_is_fine(other: str) -> None:
    assert overwritten_factors(code(PRODUCT, other, WAIT, "EXIT")) == 0


def test_the_next_round_of_a_loop_counts() -> None:
    loop = (".L_x_1:", "F2FP.BF16.F32.PACK_AB R121, R1, R2", PRODUCT, "@P0 BRA `(.L_x_1)", WAIT, "EXIT")
    assert overwritten_factors(code(*loop)) == 1
    assert overwritten_factors(code(*loop[:3], WAIT, loop[3], "EXIT")) == 0


def test_a_way_around_the_wait_is_followed() -> None:
    lines = (PRODUCT, "@P0 BRA `(.L_x_2)", WAIT, "EXIT", ".L_x_2:", "MOV R120, RZ", WAIT, "EXIT")
    assert overwritten_factors(code(*lines)) == 1


def test_products_of_shared_memory_alone_have_nothing_to_lose() -> None:
    assert (
        overwritten_factors(code("HGMMA.64x64x16.F32.BF16 R120, gdesc[UR52], RZ, !UPT", "MOV R120, RZ", WAIT, "EXIT"))
        == 0
    )
