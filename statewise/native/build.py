"""Compiles the C kernels into one shared library. Needs a C compiler and the standard library, nothing else.

    python statewise/native/build.py                                   # the library that the package loads
    python statewise/native/build.py --only linear_scan.c --output /tmp/k.so --sanitize

setup.py calls it during `pip install`; it must not import the package, which may not be installed yet. Nor may the
Python files that write headers for it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "source"  # what every room of C shares: vectors, threads, precisions
ROOMS = (SOURCE, *sorted((HERE.parent / "kernels").glob("*/")), HERE.parent / "decoding")
LIBRARY = HERE / "_kernels.so"
REASON = HERE / "_kernels.txt"  # why there is no library, where there is none
ONCE = ("threads.c",)  # compiled for every processor and only once
# Python files of which a header is made: the declarations, each after those that it imports, and what writes them for C
DECODING = HERE.parent / "decoding"
DECLARED = ("operands", "recurrences", "memories", "latent", "turning", "instructions")
DECLARATIONS = tuple(DECODING / f"{name}.py" for name in DECLARED)
HEADER = DECODING / "c_header.py"

# No -ffast-math: NaN and infinity propagate, sums keep their order. Products and sums may become one rounding.
FLAGS = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas")
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
VARIANTS = {
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512", "-DVECTOR_BYTES=64"),
    "avx2": ("-march=x86-64-v3", "-DVECTOR_BYTES=32"),
    "portable": ("-DVECTOR_BYTES=16",),
}


def sources(*endings: str) -> list[Path]:
    """All files of C with these endings, by name. A name stands once, whatever the room: all can include it."""
    found = [path for room in ROOMS for ending in endings for path in room.glob(f"*{ending}")]
    return sorted(found, key=lambda path: path.name)


def header() -> str:
    """``instructions.h``, which is made of Python files."""
    *declared, header = _modules((*DECLARATIONS, HEADER))
    return str(header.c_header(declared[0], declared[-1]))


def _modules(paths: Sequence[Path]) -> list[Any]:
    """Files of ``decoding`` as modules by themselves: what one imports of those before it is what was made here, and no
    package is imported."""
    made: dict[str, Any] = {}
    names = [f"statewise.decoding.{path.stem}" for path in paths]
    imported = {name: sys.modules[name] for name in names if name in sys.modules}
    try:
        for name, path in zip(names, paths):
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            made[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made[name])
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(imported)
    return list(made.values())


def sources_digest() -> str:
    """16 hexadecimal digits of all sources: what a library was built from is written into it."""
    digest = hashlib.sha256()
    for path in (*sources(".c", ".h"), *DECLARATIONS, HEADER):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class BuildError(Exception):
    """Why there is no library; one line."""


def variants(command: Sequence[str]) -> tuple[str, ...]:
    """The instruction sets that a library by this compiler holds: those of the processor that it compiles for, which
    may be another than this one.
    """
    asked = subprocess.run([*command, "-dumpmachine"], capture_output=True, text=True)
    machine = asked.stdout.strip() or platform.machine()
    return tuple(VARIANTS) if machine.startswith(("x86_64", "AMD64")) else ("portable",)


def compiler() -> list[str]:
    """The C compiler: of the variable CC, or the one that Python was built with, or cc.

    Errors: BuildError if there is none.
    """
    if sys.platform == "win32":
        raise BuildError("the C kernels need GCC or clang, and this is Windows")
    asked = shlex.split(os.environ.get("CC", ""))
    if asked and not shutil.which(asked[0]):
        raise BuildError(f"CC is {asked[0]}, and there is no such program; name a C compiler, or unset CC")
    for words in (asked, ["cc"], ["gcc"], ["clang"], shlex.split(sysconfig.get_config_var("CC") or "")[:1]):
        if words and shutil.which(words[0]):
            return words
    raise BuildError("no C compiler was found (cc, gcc, clang); install one, or name it in the variable CC")


def build(output: Path = LIBRARY, *, only: Sequence[str] = (), sanitize: bool = False) -> Path:
    """Compiles every file for every instruction set and links them into ``output``, which is replaced whole.

    The variable STATEWISE_CFLAGS holds further flags for the compiler, after ours: "-O1" for a quick build.

    Errors: BuildError with the compiler's first complaint.
    """
    command = compiler()
    places = {path.name: path for path in sources(".c")}
    names = [*places]
    if unknown := sorted({*only} - {*names}):
        raise BuildError(f"there is no source {', '.join(unknown)}; use {', '.join(names)}")
    chosen = [name for name in names if not only or name in only or name in ONCE]
    includes = [word for room in sorted({path.parent for path in sources(".h")}) for word in ("-I", str(room))]
    own = shlex.split(os.environ.get("STATEWISE_CFLAGS", ""))
    optimise = (*(SANITIZE if sanitize else ("-O3",)), f'-DSOURCES="{sources_digest()}"')
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "instructions.h").write_text(header())
        includes += ["-I", folder]
        jobs, sets = [], variants(command)
        for name in chosen:
            for variant in ("portable",) if name in ONCE else sets:
                target = Path(folder) / f"{Path(name).stem}_{variant}.o"
                flags = [*FLAGS, *WARNINGS, *optimise, *VARIANTS[variant], f"-DISA={variant}", *own, *includes]
                jobs.append([*command, *flags, "-c", str(places[name]), "-o", str(target)])
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_run, jobs))
        library = Path(folder) / "library.so"
        extra = SANITIZE[:1] if sanitize else ()
        _run([*command, "-shared", *extra, "-o", str(library), *[job[-1] for job in jobs], "-lm"])
        output.parent.mkdir(parents=True, exist_ok=True)
        aside = output.with_name(f"{output.name}.{os.getpid()}")
        shutil.copyfile(library, aside)
        os.replace(aside, output)  # a process that has loaded the old one keeps it
    return output


def is_current(library: Path) -> bool:
    """Whether a library was built from these sources with the usual flags, so that it need not be built again."""
    if any(os.environ.get(name, "") for name in ("STATEWISE_NO_C", "STATEWISE_CFLAGS", "CC")):
        return False
    return library.exists() and sources_digest().encode() in library.read_bytes()


def build_or_explain(output: Path = LIBRARY) -> Path | None:
    """What an installation does: the library, or no library and beside it a file that says why."""
    reason = output.with_suffix(".txt")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    reason.unlink(missing_ok=True)
    try:
        if os.environ.get("STATEWISE_NO_C", "") not in ("", "0"):
            raise BuildError("STATEWISE_NO_C was set when statewise was installed")
        return build(output)
    except BuildError as error:
        reason.write_text(f"{error}\n")
        print(f"statewise: installed without the C kernels: {error}", file=sys.stderr)
        return None


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        what = next((word for word in command if word.endswith(".c")), "the link")
        complaint = lines[0] if lines else f"exit code {done.returncode}, and no message"
        raise BuildError(
            f"{command[0]} failed at {Path(what).name}: {complaint}; to use another compiler, set CC and install again"
        )
    if done.stderr:
        print(done.stderr, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=LIBRARY)
    parser.add_argument("--only", action="append", default=[], help="the name of a C file; again for several")
    parser.add_argument("--sanitize", action="store_true", help="with the address and undefined-behaviour sanitizers")
    parser.add_argument("--header", action="store_true", help="print instructions.h, and compile nothing")
    arguments = parser.parse_args()
    if arguments.header:
        print(header(), end="")
        return
    try:
        print(build(arguments.output, only=arguments.only, sanitize=arguments.sanitize))
    except BuildError as error:
        sys.exit(f"build.py: error: {error}")
    if arguments.output == LIBRARY:
        REASON.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
