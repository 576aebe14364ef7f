"""The tiles of SSD's kernels, and what the offline gate compiles: every one of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from statewise.kernels.gpu.build import Build, descriptors, numbers, pointers
from statewise.kernels.ssd.triton_adjoint import of_groups, of_heads, states_and_gradients
from statewise.kernels.ssd.triton_kernels import chain_pieces, sweep

REGISTERS = 255  # of a thread at most
CHAINED = 1024  # numbers of a state that a program chains


class Tile(NamedTuple):
    """What a program holds: steps of a chunk, of a head's width and of its states so many at most, and its warps.

    stages: chunks whose tiles are on their way at one time; tiled: tiles come through descriptors
    """

    q: int
    p: int
    n: int
    warps: int
    stages: int = 1
    tiled: bool = False

    def fixed(self, staged: bool = True) -> dict[str, Any]:
        blocks: dict[str, Any] = {"TILED": self.tiled, "Q": self.q, "P": self.p, "N": self.n}
        return blocks | ({"STAGES": self.stages} if staged else {})


class Tiles(NamedTuple):
    """The tiles of a kind of products that spill nothing on any card; the three backwards have one length of chunks."""

    ahead: tuple[Tile, ...]  # the first that holds all states, else the last, which splits them
    states: Tile
    heads: Tile
    groups: Tile


TILES = {
    "bfloat16": Tiles(
        (Tile(32, 32, 64, 4), Tile(32, 32, 128, 4)), *(Tile(64, 64, 64, 8), Tile(64, 16, 32, 8), Tile(64, 16, 64, 8))
    ),
    "float32": Tiles((Tile(16, 16, 32, 2),), *(Tile(32, 32, 32, 4), Tile(32, 16, 16, 4), Tile(32, 16, 16, 4))),
}
# The same for sizes and strides that are not all multiples of 16: numbers come one by one, which costs registers
TILES_ANY = {
    "bfloat16": Tiles((Tile(32, 16, 64, 4),), *(Tile(32, 64, 64, 8), Tile(32, 16, 32, 8), Tile(32, 16, 64, 8))),
    "float32": Tiles((Tile(16, 16, 32, 4),), *(Tile(16, 32, 32, 4), Tile(16, 16, 16, 4), Tile(16, 16, 32, 4))),
}
# bfloat16 on Hopper where the tiles divide the sizes: by the least of the states' tiles
TILED = {
    128: Tiles(
        (Tile(64, 64, 128, 4, 1, True), Tile(64, 64, 64, 4, 1, True)),  # in parts the first would spill
        *(Tile(64, 64, 128, 4, 2, True), Tile(64, 64, 64, 4, 1, True), Tile(64, 64, 128, 8, 2, True)),
    ),
    64: Tiles(
        (Tile(64, 64, 64, 4, 2, True), Tile(64, 64, 64, 4, 1, True)),
        *(Tile(64, 64, 64, 4, 2, True), Tile(64, 64, 64, 4, 1, True), Tile(64, 64, 64, 4, 2, True)),
    ),
}


def builds() -> list[Build]:
    """The heaviest of each: with dt, D and documents; for sizes that are multiples of 16, as those of most models are,
    and for any, in tensors so large that 32 bits do not hold the distance of two rows."""
    found = []
    for dtype, name in {"bfloat16": "bfloat16", "float32": "float32", "float16": "float32"}.items():
        found += _builds_of(dtype, TILES[name], None) + _builds_of(dtype, TILES_ANY[name], None, any_size=True)
    for tiles in TILED.values():
        found += _builds_of("bfloat16", tiles, ("sm_90",))
    chained = {**pointers(fp32="h0 ends decay start"), **numbers(i32="size n_pieces"), "BLOCK": CHAINED}
    found.append(Build(chain_pieces, chained, 4, label=f"{CHAINED}"))
    return list({(one.name, one.label): one for one in found}.values())  # some tiles are of two kinds


def _builds_of(name: str, tiles: Tiles, targets: tuple[str, ...] | None, any_size: bool = False) -> list[Build]:
    rows, steps = "x_row B_row C_row grad_row", "x_step B_step C_step grad_step"
    sizes = numbers(i32=f"rows length heads per_group width states n_pieces chunks {steps}")
    sizes |= numbers(**{"i64" if any_size else "i32": rows})
    kind = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[name]
    kept, fine = ("bf16", "") if name == "bfloat16" else ("fp32", "fine")
    given: dict[str, Any] = {**sizes, **pointers(**{kind: "grad x B C y d_x d_B d_C"}), "fine": None}
    given |= pointers(**{kept: "before after"}) | pointers(i64="segments")
    given |= pointers(fp32=f"log_a dt coarse {fine} steps D start last grad_state h0 d_h0 d_log_a d_dt d_D")
    given |= {"PRODUCT": name, "decay": None, "WHOLE": True, "ENDS": False}
    ends = {"ENDS": True, "start": None, "y": None, "D": None, "decay": "*fp32"}
    launches: list[tuple[Any, Tile, dict[str, Any]]] = [
        *((sweep, tile, {}) for tile in tiles.ahead),
        *((sweep, tile, ends) for tile in tiles.ahead),
        (sweep, tiles.ahead[-1], {"WHOLE": False, "y": "*fp32"}),
        (states_and_gradients, tiles.states, {}),
        (of_heads, tiles.heads, {"WHOLE": False}),
        (of_heads, tiles.heads, {}),
        (of_groups, tiles.groups, {}),
    ]
    found = []
    for kernel, tile, more in launches:
        all_of_them = {**given, **more, **tile.fixed()}
        if tile.tiled:
            described = descriptors(f"{kind}[1, {tile.q}, {tile.p}]", "grad x y d_x")
            described |= descriptors(f"{kind}[1, {tile.q}, {tile.n}]", "B C")
            described |= descriptors(f"{kind}[{tile.p}, {tile.n}]", "before after")
            described |= descriptors(f"fp32[{tile.p}, {tile.n}]", "start last grad_state h0 d_h0")
            parts = {"y"} if more.get("WHOLE") is False else set()
            all_of_them |= {m: text for m, text in described.items() if all_of_them[m] is not None and m not in parts}
        label = f"{name}, {tile.q} x {tile.p} x {tile.n}"
        label += f", descriptors, {tile.stages} on their way" if tile.tiled else ""
        label += ", ends" if more.get("ENDS") else ", more states" if more.get("WHOLE") is False else ""
        found.append(
            Build(
                kernel,
                {key: all_of_them[key] for key in kernel.arg_names},
                tile.warps,
                registers=REGISTERS,
                products=True,
                sixteens="" if any_size else f"width states {rows} {steps}",
                label=label + (", any size" if any_size else ""),
                targets=targets,
            )
        )
    return found
