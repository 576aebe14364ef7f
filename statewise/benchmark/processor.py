"""Which kind of processor this is: a figure that depends on it is kept under it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

from statewise import native
from statewise.reproduce.hardware import cpu_model

CPUINFO = Path("/proc/cpuinfo")
# What the speed of products depends on, of x86 and of Arm
EXTENSIONS = [
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
    "sme",
]
# As x86 and Arm call them
NUMBERS = {
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
}


def processor(cpuinfo: Path = CPUINFO) -> dict[str, Any]:
    """``name`` (a hypervisor may hide which one it is), ``vendor``, ``family``, ``model`` and ``stepping`` (None where
    the system does not say), ``extensions`` (those of vectors and matrices) and ``cores``."""
    fields = _first(cpuinfo)
    numbers = {name: next((fields[key] for key in keys if key in fields), None) for name, keys in NUMBERS.items()}
    has = set(fields.get("flags", fields.get("Features", "")).split())
    extensions = [name for name in EXTENSIONS if name in has]
    return {"name": cpu_model(), **numbers, "extensions": extensions, "cores": os.cpu_count()}


def describe_processor(record: dict[str, Any]) -> str:
    """One line."""
    known = [f"{name} {record[name]}" for name in ("family", "model", "stepping") if record[name] is not None]
    return ", ".join([record["name"], *known, " ".join(record["extensions"])]).rstrip(", ")


def describe_here() -> str:
    """One line: this processor, the instruction set that the C kernels use on it, and the threads. It belongs to every
    figure that depends on them."""
    c_kernels = f"C kernels in {native.instruction_set()}" if native.available() else "no C kernels"
    n_threads = torch.get_num_threads()
    threads = "one thread" if n_threads == 1 else f"{n_threads} threads"
    return f"{describe_processor(processor())}; {c_kernels}, {threads}"


def file_name(record: dict[str, Any], n_threads: int) -> str:
    """Letters and digits that name this kind of processor and the number of threads."""
    kind = "-".join(str(record[name]) for name in ("name", "family", "model") if record[name] is not None)
    plain = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")[:100]
    return f"{plain}-of-{record['cores']}-{n_threads}-threads.json"


def _first(cpuinfo: Path) -> dict[str, str]:
    """What the system says of its first processor."""
    try:
        text = cpuinfo.read_text("utf-8", "replace")
    except OSError:  # not a Linux system
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
