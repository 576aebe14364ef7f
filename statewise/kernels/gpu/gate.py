"""The offline gate: every Triton kernel compiled for eight GPUs, without one, and inspected.

    python -m statewise.kernels.gpu.gate [KERNEL...] [--targets sm_90,gfx942] [--json FILE] [--record FILE] [--few FILE]

The wheel of Triton brings the assemblers and disassemblers, so that any x86-64 Linux will do. A build passes if nothing
spills, its registers and its shared memory fit the card, its products are matrix instructions, no offset could overflow
(offsets.py), and on Hopper no product's factor is overwritten while it runs (machine_code.py). Time it cannot tell, nor
what else the assembler gets wrong: the former needs a GPU, the latter is the canary's (canary.py).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from statewise.kernels.gpu import KERNELS, interprets, module, why_not
from statewise.kernels.gpu.build import Build
from statewise.kernels.gpu.machine_code import overwritten_factors
from statewise.kernels.gpu.offsets import narrow_offsets
from statewise.kernels.gpu.sources import digest, sources

KIB = 1024
# of each target what a program may have of shared memory: NVIDIA, CUDA C++ programming guide, table of technical
# specifications per compute capability; AMD, the instruction set manuals of CDNA 3 and CDNA 4
SHARED = {
    "sm_80": 163 * KIB,
    "sm_86": 99 * KIB,
    "sm_89": 99 * KIB,
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "sm_120": 99 * KIB,
    "gfx942": 64 * KIB,
    "gfx950": 160 * KIB,
}
FEW = ("sm_90", "gfx942")  # of a short run: one with products of whole warp groups, and one of AMD's
REGISTERS = 65_536  # of a processor of NVIDIA's; a program for more does not start
_PRODUCTS = {"float32": "tf32x3", "float16": "tf32"}  # triton_products.py
_MATRIX = re.compile(r"\bmma\.sync|\bwgmma\.mma_async|\btcgen05\.mma|\bv_mfma_|\bv_smfmac_")


@dataclass(frozen=True)
class Found:
    """What became of one build on one target. ``faults``: why it does not pass, empty if it does."""

    kernel: str
    function: str
    configuration: str
    target: str
    registers: int
    spills: int
    shared: int
    matrix_instructions: int
    faults: tuple[str, ...]


def inspect(kernel: str, build: Build, target: str) -> Found:
    """Compiles a build for a target and says what it found."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    is_amd = target.startswith("gfx")
    gpu = GPUTarget("hip", target, 64) if is_amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    constants = dict(build.constants)
    if constants.get("PRODUCT") in _PRODUCTS:  # as a launch on such a card says it
        constants["PRODUCT"] = "ieee" if is_amd else _PRODUCTS[constants["PRODUCT"]]
    source = ASTSource(fn=build.kernel, signature=build.signature, constexprs=constants, attrs=build.aligned)
    options: dict[str, Any] = {"num_warps": build.warps, "num_stages": build.stages}
    if build.registers and not is_amd:
        options["maxnreg"] = build.registers
    try:
        built = triton.compile(source, target=gpu, options=options)
    except Exception as error:  # whatever the compiler and its assemblers raise
        fault = f"does not compile: {str(error).strip().splitlines()[-1]}"
        return Found(kernel, build.name, build.label, target, 0, 0, 0, 0, (fault,))
    text = str(built.asm["amdgcn" if is_amd else "ptx"])
    registers, spills, overwritten = (*_amd(text), 0) if is_amd else _nvidia(built.asm["cubin"], target == "sm_90")
    products = len(_MATRIX.findall(text))
    shared = int(built.metadata.shared)
    faults = []
    if spills:
        faults.append(f"{spills} registers spill")
    if overwritten:
        faults.append(f"{overwritten} products whose left factor may be overwritten while they run")
    if not is_amd and registers * 32 * build.warps > REGISTERS:
        faults.append(f"{registers} registers for {build.warps} warps, and a processor has {REGISTERS:,}")
    if shared > SHARED[target]:
        faults.append(f"{shared:,} bytes of shared memory, and the card has {SHARED[target]:,}")
    if build.products and not products:
        faults.append("no matrix instructions")
    faults += narrow_offsets(str(built.asm["ttir"]))
    return Found(kernel, build.name, build.label, target, registers, spills, shared, products, tuple(faults))


def _amd(text: str) -> tuple[int, int]:
    """Vector registers, and those that spill, or words of memory of a thread's own, if there are more of these.

    Scalar registers spill into vector registers, which costs no memory.
    """
    found = {key: int(value) for key, value in re.findall(r"\.(\w+_count|private_segment_fixed_size): +(\d+)", text)}
    return found["vgpr_count"], max(found["vgpr_spill_count"], found["private_segment_fixed_size"] // 4)


def _nvidia(cubin: bytes, whole_groups: bool) -> tuple[int, int, int]:
    """Registers, instructions that load or store local memory, and what machine_code.py finds in the products of whole
    warp groups, which Hopper has."""
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        usage = _output(tools / "cuobjdump", "--dump-resource-usage", file.name)
        registers, stack = (int(n) for n in re.findall(r"(?:REG|STACK):(\d+)", usage)[:2])
        # nothing spills without a stack
        code = _output(tools / "nvdisasm", "-c", file.name) if stack or whole_groups else ""
    spills = len(re.findall(r"\b(?:LDL|STL)\b", code))
    return registers, spills, overwritten_factors(code) if whole_groups else 0


def _output(*command: Any) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def gate(
    kernels: Iterable[str] = KERNELS,
    targets: Iterable[str] = tuple(SHARED),
    n_jobs: int = 1,
    first_of: Iterable[str] = (),
) -> Iterator[Found]:
    """Each configuration of each kernel on each target, in their order, compiled by as many processes.

    first_of:  the kernels of which it takes the first configuration of each function alone
    """
    with ProcessPoolExecutor(n_jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_inspect_one, _chosen(kernels, targets, first_of))


def _chosen(kernels: Iterable[str], targets: Iterable[str], first_of: Iterable[str]) -> list[tuple[str, int, str]]:
    """The kernel, the number of its build, and the target."""
    tasks = []
    for kernel in kernels:
        seen = set()
        for i, build in enumerate(module(kernel).builds()):
            for target in targets:
                passed_over = kernel in first_of and (build.name, target) in seen
                if not passed_over and (build.targets is None or target in build.targets):
                    seen.add((build.name, target))
                    tasks.append((kernel, i, target))
    return tasks


def _inspect_one(task: tuple[str, int, str]) -> Found:
    kernel, i, target = task
    return inspect(kernel, module(kernel).builds()[i], target)


def table(found: Sequence[Found]) -> str:
    """A line for each configuration: registers on each target, and the most shared memory of any."""
    targets = list(dict.fromkeys(f.target for f in found))
    heads = ["kernel", "function", "configuration", *targets, "shared, bytes", "matrix instructions"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    rows: dict[tuple[str, str, str], list[Found]] = {}
    for f in found:
        rows.setdefault((f.kernel, f.function, f.configuration), []).append(f)
    for names, of in rows.items():
        cells = [str(f.registers) + (" !" if f.faults else "") for f in of]
        products = "yes" if all(f.matrix_instructions for f in of) else "none"
        lines.append(f"| {' | '.join(names)} | {' | '.join(cells)} | {max(f.shared for f in of):,} | {products} |")
    return "\n".join(lines)


def summary(found: Sequence[Found]) -> str:
    """A line for each function: its configurations, and the fewest and the most registers of any on each target."""
    targets = list(dict.fromkeys(f.target for f in found))
    heads = ["kernel", "function", "configurations", *targets, "shared, KiB at most", "faults"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    rows: dict[tuple[str, str], list[Found]] = {}
    for f in found:
        rows.setdefault((f.kernel, f.function), []).append(f)
    for names, of in rows.items():
        cells = []
        for target in targets:
            registers = sorted(f.registers for f in of if f.target == target)
            cells.append(f"{registers[0]} to {registers[-1]}" if registers else "-")
        counts = (len({f.configuration for f in of}), *cells, f"{max(f.shared for f in of) / KIB:.0f}")
        lines.append(f"| {' | '.join(map(str, (*names, *counts)))} | {sum(bool(f.faults) for f in of)} |")
    return "\n".join(lines)


def record(found: Iterable[Found], file: Path) -> None:
    """Writes for each kernel how many builds passed, and of which sources; what the file says of others stays.

    The tests hold it against the sources of today, so that no kernel changes unseen where Triton is not installed.
    """
    import triton

    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    of: dict[str, list[Found]] = {}
    for one in found:
        of.setdefault(one.kernel, []).append(one)
    for kernel, builds in of.items():
        faults = sum(bool(one.faults) for one in builds)
        made = {"sources": digest(sources(kernel)), "triton": triton.__version__}
        kept[kernel] = {**made, "builds": len(builds), "faulty": faults}
    file.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", "utf-8")


def recorded(file: Path, kernels: Iterable[str]) -> list[str]:
    """The kernels whose sources are those of a record."""
    kept = json.loads(file.read_text("utf-8"))
    return [k for k in kernels if kept.get(k, {}).get("sources") == digest(sources(k))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m statewise.kernels.gpu.gate", description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=list(KERNELS), metavar="KERNEL", help="all if none is named")
    parser.add_argument("--targets", help="of " + ", ".join(SHARED))
    parser.add_argument("--json", type=Path, help="a file for what was found")
    parser.add_argument("--record", type=Path, help="a file that keeps what passed, and of which sources")
    few = f"what --record wrote: of kernels unchanged since, the first configurations alone; on {', '.join(FEW)}"
    parser.add_argument("--few", type=Path, metavar="FILE", help=few)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; one a processor")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="of --json: a line for each function")
    given = parser.parse_args(arguments)
    if given.read:
        read = [one for path in given.read for one in json.loads(path.read_text("utf-8"))]
        print(summary([Found(**{**one, "faults": tuple(one["faults"])}) for one in read]))
        return 0
    targets = given.targets.split(",") if given.targets else list(FEW if given.few else SHARED)
    unknown = [name for name in (*given.kernels, *targets) if name not in (*KERNELS, *SHARED)]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; kernels are {', '.join(KERNELS)}, targets {', '.join(SHARED)}")
    if given.record and (given.few or set(targets) != set(SHARED)):
        parser.error("--record is for all configurations on all targets; leave out --few and --targets")
    if interprets():
        parser.error("TRITON_INTERPRET=1 is set, under which nothing is compiled; unset it")
    reason = why_not()
    if reason is not None:
        parser.error(reason)
    found = []
    first_of = recorded(given.few, given.kernels) if given.few else ()
    for one in gate(given.kernels, targets, given.jobs, first_of):
        found.append(one)
        for fault in one.faults:
            print(f"{one.kernel}: {one.function}, {one.configuration}, {one.target}: {fault}", file=sys.stderr)
    print(table(found))
    failed = sum(bool(one.faults) for one in found)
    print(f"\n{len(found)} builds of {len(given.kernels)} kernels, {failed} of them faulty")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", "utf-8")
    if given.record:
        record(found, given.record)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
