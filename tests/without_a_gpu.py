"""Triton kernels as far as their TTIR, which needs no GPU: `python tests/without_a_gpu.py [FILE]`.

It prints what narrow_offsets finds, as JSON by name: in each function of a file; without one, in each build of our
kernels, with sizes that are multiples of nothing. It is a process of its own, since TRITON_INTERPRET compiles nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SIGNATURE = {"out": "*fp32", "numbers": "*i32", "tiles": "tensordesc<bf16[64, 64]>", "length": "i32", "stride": "i32"}


def found_in(file: Path | None, cache: Path) -> dict[str, list[str]]:
    """What the program prints."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, *([] if file is None else [str(file)])]
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(Path(__file__).parents[1])}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = json.loads(printed)
    return found


def ttir(kernel: Any, signature: dict[str, str], constants: dict[str, Any]) -> str:
    """For sm_90."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    target = GPUTarget("cuda", 90, 32)
    backend, context = make_backend(target), ir.context()
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = backend.parse_options(source.parse_options())
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options), backend.get_module_map()
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    return str(stages["ttir"](source.make_ir(target, options, *functions, context), {}))


def main() -> None:
    from statewise.kernels.gpu import KERNELS, module
    from statewise.kernels.gpu.offsets import narrow_offsets

    found = {}
    if len(sys.argv) > 1:
        spec = importlib.util.spec_from_file_location("of_a_test", sys.argv[1])
        assert spec is not None
        assert spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        for name, kernel in vars(kernels).items():
            if type(kernel).__name__ == "JITFunction":
                found[name] = narrow_offsets(ttir(kernel, SIGNATURE, {}))
    else:
        for room in KERNELS:
            for i, build in enumerate(module(room).builds()):
                if build.targets is None or "sm_90" in build.targets:
                    as_launched = {"EIGHTHS": False, "PRODUCT": "tf32x3"}
                    constants = {key: as_launched.get(key, value) for key, value in build.constants.items()}
                    text = ttir(build.kernel, build.signature, constants)
                    found[f"{room}, {i}: {build.name}, {build.label}"] = narrow_offsets(text)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
