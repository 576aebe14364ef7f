"""What a wheel has to do in an empty environment: have its C kernels, agree with the definition, train and generate.

python tests/package/installed.py              # cibuildwheel runs it for each wheel
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import statewise as sw
from statewise import native


def main() -> None:
    assert native.available(), native.why_not()
    B = C = torch.randn(1, 100, 1, 8)
    operator = sw.SSD(-torch.rand(1, 100, 2), B, C)
    x = torch.randn(1, 100, 2, 4)
    for instructions in native.instruction_sets():
        with native.forced(instructions), sw.kernels.use("c"):
            y, _ = operator(x, form="chunked")
        torch.testing.assert_close(y, operator(x, form="recurrent")[0], rtol=1e-4, atol=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder, "run"))
        for words in (["info"], ["train", "--preset", "tiny", "--steps", "20", "--out", run], ["generate", run]):
            subprocess.run([sys.executable, "-m", "statewise", *words], check=True, cwd=folder)
    print("the wheel works, with", ", ".join(native.instruction_sets()))


if __name__ == "__main__":
    main()
