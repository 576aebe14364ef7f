"""One compilation of a Triton kernel, as its launch would ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Build:
    """A kernel with one pinned configuration.

    kernel:     a function under ``triton.jit``
    arguments:  by name a type of Triton's ("*bf16", "i32"), or the value of what is known when it is compiled
    registers:  of a thread at most, None for as many as NVIDIA's assembler likes, which spills some to fit two programs
    sixteens:   numbers that are multiples of 16, as the sizes of most models: rows are then read in vectors
    products:   whether it multiplies matrices, which have to become matrix instructions
    label:      the configuration in words
    targets:    those whose launches pick it, None for all
    """

    kernel: Any
    arguments: Mapping[str, Any]
    warps: int
    stages: int = 1
    registers: int | None = None
    sixteens: str = ""
    products: bool = False
    label: str = ""
    targets: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)

    @property
    def signature(self) -> dict[str, str]:
        """In the kernel's own order, as Triton has it."""
        given = self.arguments
        return {key: given[key] if _is_type(given[key]) else "constexpr" for key in self.kernel.arg_names}

    @property
    def constants(self) -> dict[str, Any]:
        return {key: value for key, value in self.arguments.items() if not _is_type(value)}

    @property
    def aligned(self) -> dict[tuple[int], list[list[Any]]]:
        """Pointers to multiples of 16 bytes, as PyTorch allocates them, and the numbers of ``sixteens``."""
        numbers = self.sixteens.split()
        names = enumerate(self.kernel.arg_names)
        given = [i for i, key in names if str(self.arguments[key]).startswith("*") or key in numbers]
        return {(i,): [["tt.divisibility", 16]] for i in given}


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and (value.startswith(("*", "tensordesc")) or value in ("i32", "i64", "fp32"))


def pointers(**names: str) -> dict[str, str]:
    """Types of pointers, as ``pointers(bf16="x y", fp32="weight")``."""
    return {name: f"*{kind}" for kind, text in names.items() for name in text.split()}


def numbers(**names: str) -> dict[str, str]:
    """Types of numbers, as ``numbers(i32="length width", fp32="eps")``."""
    return {name: kind for kind, text in names.items() for name in text.split()}


def descriptors(tile: str, names: str) -> dict[str, str]:
    """Types of descriptors of tiles, as ``descriptors("bf16[1, 64, 64]", "x y")``."""
    return dict.fromkeys(names.split(), f"tensordesc<{tile}>")
