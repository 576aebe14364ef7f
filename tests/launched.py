"""What launches of Triton kernels ask for, and whether the offline gate compiles it.

Nothing runs: launches are recorded as they would be on a card, so that sizes cost nothing but room.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from statewise.kernels import gpu
from statewise.kernels.gpu.build import Build


class Card(NamedTuple):
    """One of a family: the name of a target, its capability (None for AMD's), and its processors."""

    target: str
    capability: int | None
    processors: int


CARDS = (Card("sm_80", 8, 108), Card("sm_90", 9, 132), Card("sm_120", 12, 188), Card("gfx942", None, 304))


class Launch(NamedTuple):
    kernel: Any
    arguments: Mapping[str, Any]
    warps: int
    stages: int
    registers: int | None


@contextmanager
def recorded(card: Card) -> Iterator[list[Launch]]:
    """Fills with the launches of this block, as they would be on a card; their kernels do not run."""
    from triton.runtime.interpreter import InterpretedFunction

    from statewise.kernels.gpu.triton_products import product

    found: list[Launch] = []

    def run(self: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        warps, stages = named.pop("num_warps", 4), named.pop("num_stages", 1)
        registers = named.pop("maxnreg", None)
        arguments = dict(zip(self.arg_names, given)) | named
        assert arguments.keys() == set(self.arg_names)
        found.append(Launch(self, arguments, warps, stages, registers))

    def options(device: Any, warps: int, registers: int | None = None, stages: int = 1) -> dict[str, int]:
        limit = {"maxnreg": registers} if registers and card.capability else {}
        return {"num_warps": warps, "num_stages": stages, **limit}

    instead: dict[Any, Any] = {
        gpu.options: options,
        gpu.is_nvidia: lambda device, capability: capability == card.capability,
        gpu.processors: lambda device: card.processors,
        product: lambda m: str(m.dtype).removeprefix("torch."),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", run)
        patch.setattr(torch.version, "hip", None if card.capability else "6")
        for name, module in list(sys.modules.items()):
            for known in instead if name.startswith("statewise.kernels") else ():
                if vars(module).get(known.__name__) is known:
                    patch.setattr(module, known.__name__, instead[known])
        yield found


_TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int64: "i64"}
_TYPES |= {torch.int8: "i8", torch.uint8: "u8"}


def more(asked: Any, has: Any) -> bool:
    return bool(asked <= has)


def one_or_more(asked: int, has: int) -> bool:
    """What is for several is for any number of them, and for one there is code of its own."""
    return (asked > 1) == (has > 1)


def one_or_none(asked: int, has: int) -> bool:
    """Several are for any number of them, and for one too, which then is less."""
    return asked == 1 or has > 1


def any_value(asked: Any, has: Any) -> bool:
    return True


# By function what a build may have other than a launch, which then has no more to hold: arithmetic that is left out,
# masks that are not needed, fewer numbers of a loop. All else is the same
COVERS: dict[str, dict[str, Callable[[Any, Any], bool]]] = {
    "scan_forward": {
        "n": any_value,
        "groups": any_value,
        "SOFTPLUS": more,
        "EXACT": more,
        "WHOLE": lambda a, b: a >= b,
    },
    "convolution_forward": {"SILU": more, "TAPS": more},
    # y has a number a row of the weight, whatever it is stored as; the shift has programs of its own, of any tile
    "norm_matvec": {"ROWS": one_or_more, "GROUPS": one_or_none, "TAPS": one_or_none, "y": any_value},
    "mamba2_step": {"LIMIT": more, "TAPS": more},
}
COVERS["convolution_backward"] = COVERS["convolution_forward"]
COVERS["scan_backward"] = COVERS["scan_forward"]  # of the selective scan; the diagonal scan's has none of these


def why_not_built(launch: Launch, builds: Sequence[Build], card: Card) -> str | None:
    """None if a build is what the launch asks for, or more; else what differs from that which comes nearest."""
    nearest = ["there is no build"] * 9
    for build in builds:
        if build.kernel is launch.kernel and (build.targets is None or card.target in build.targets):
            found = _differences(launch, build, card)
            if not found:
                return None
            nearest = min(nearest, found, key=len)
    return f"{launch.kernel.__name__} on {card.target}: {'; '.join(nearest)}"


def _differences(launch: Launch, build: Build, card: Card) -> list[str]:
    pairs = {"warps": (launch.warps, build.warps), "stages": (launch.stages, build.stages)}
    pairs["registers"] = (launch.registers, build.registers if card.capability else None)
    found = [f"{key} {asked}, and the build has {has}" for key, (asked, has) in pairs.items() if asked != has]
    covers = COVERS.get(build.name, {})
    for key in launch.kernel.arg_names:
        asked, has = launch.arguments[key], build.arguments[key]
        same = covers[key](asked, has) if key in covers else _is_same(asked, has, key in build.sixteens.split())
        if not same:
            text = f"{asked.dtype} at {asked.data_ptr() % 16}" if isinstance(asked, Tensor) else asked
            found.append(f"{key} {text}, and the build has {has}")
    return found


def _is_same(asked: Any, has: Any, in_sixteens: bool) -> bool:
    if asked is None:  # what is not given takes nothing
        return True
    if isinstance(asked, Tensor):
        return bool(has == f"*{_TYPES[asked.dtype]}" and asked.data_ptr() % 16 == 0)
    if hasattr(asked, "block_shape"):
        return bool(has == f"tensordesc<{_TYPES[asked.base.dtype]}[{', '.join(map(str, asked.block_shape))}]>")
    if has == "i64" or has == "fp32":
        return not in_sixteens or asked % 16 == 0
    if has == "i32":
        return -(2**31) <= asked < 2**31 and (not in_sixteens or asked % 16 == 0)
    return bool(asked == has)
