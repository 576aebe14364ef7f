"""Kernels that are wrong on purpose: canary and laws catch wrong numbers, the gate what could overflow or spill."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_kernels import CASES, loss
from interpreted import compare, long_but, needs_interpreter
from lti_kernels import cauchy_case, vandermonde_case
from torch import Tensor

from statewise import kernels
from statewise.kernels import gpu
from statewise.kernels.diagonal_scan import diagonal_scan, diagonal_scan_reference
from statewise.kernels.fft_convolution import fft_convolution, fft_convolution_reference
from statewise.kernels.gpu import canary
from statewise.kernels.linear_scan import linear_scan, linear_scan_reference
from statewise.kernels.selective_scan import selective_scan, selective_scan_reference
from statewise.kernels.ssd import ssd, ssd_reference
from statewise.kernels.step import pytorch

pytestmark = needs_interpreter
CPU = torch.device("cpu")
MUTANTS = {  # the file, and what is written instead of what
    "a lost mask of SSD": ("ssd/triton_kernels", "q[:, None] >= q[None, :], gap", "q[:, None] >= 0 * q[None, :], gap"),
    "a dropped decay of SSD": ("ssd/triton_kernels", "h = h * across + dot", "h = h + dot"),
    "a document that remembers the one before": (
        "ssd/triton_kernels",
        "& inside, -300.0, each)",
        "& inside, each, each)",
    ),
    "a decay that counts its own step": ("ssd/triton_adjoint", "later = q[:, None] > q", "later = q[:, None] >= q"),
    "a state that is not handed on": (
        "linear_scan/triton",
        "begins, x_im + m * state_im",
        "begins, x_im + 0 * state_im",
    ),
    "a dropped decay of the scan": ("selective_scan/triton_kernels", "passed_on(a * h, ", "passed_on(h, "),
    "a lost mask of the convolution": ("short_convolution/triton_kernels", "if segments is not None:", "if False:"),
    "a lost mean of the norm": ("rms_norm/triton", "normed * mean[:, None]) * r", "normed) * r"),
    "a softmax without its largest": ("linear_cross_entropy/triton", "total * tl.exp(before - base)", "total"),
    "a slope without its target": ("linear_cross_entropy/triton", "own[:, None], 1.0, 0.0)", "own[:, None], 0.0, 0.0)"),
    "a filter that runs the wrong way": ("fft_convolution/triton_kernels", "filter_im = -filter_im", "filter_im *= 1"),
    "a window whose size is lost": ("fft_convolution/triton_kernels", "sums * scale, float", "sums, float"),
    "a gradient whose size is lost": ("fft_convolution/triton_kernels", "re *= scale", "re *= 1.0"),
    "a window that is not closed": ("fft_convolution/triton_kernels", "& (time < length)", "& (time < 8 * length)"),
    "a lost quarter of a turn": ("vandermonde/triton_kernels", "tl.where(quarter >= 2, -im, im)", "im"),
    "a step too early in the powers": ("vandermonde/triton_kernels", "        step += 1\n", ""),
    "a pole that is not a pair": ("cauchy/triton_kernels", "(height[None, :] + q[:, None])", "height[None, :]"),
    "a turn that runs the wrong way": ("diagonal_scan/triton", "a * g_im - a_im * g", "a * g_im + a_im * g"),
    "a chunk from the state of another": ("diagonal_scan/triton", "chunks - 1 - back) * slot", "chunks - 1) * slot"),
    "a sum that forgets other nodes": ("cauchy/triton_kernels", "plain -= re", "plain = -re"),
    "a dropped decay of the adjoint": ("selective_scan/triton_adjoint", "flow = g * a", "flow = g"),
    "a gate that is lost": ("rms_norm/triton", "out = out * gate\n", "out = 1.0 * out\n"),
    "a gate without its gradient": ("rms_norm/triton", "d_gate = du * loaded[0].to(tl.float32)", "d_gate = du"),
    "a dropped decay of the step": ("step/triton_kernels", "after = a * before +", "after = before +"),
    "a state that is not moved on": ("step/triton_kernels", "tl.load(follows, mask=real", "tl.load(place, mask=real"),
    "a nibble whose zero is lost": ("step/triton_kernels", "bits & 15, 8)", "bits & 15, 7)"),
    "a dropped decay of a piece": ("ssd/triton_kernels", "h = h * tl.load(decay", "h = h + 0.0 * tl.load(decay"),
    "a piece from the end of another": (
        "linear_scan/triton",
        "tl.store(starts + at, state,",
        "tl.store(starts + at, 0 * state,",
    ),
}
OF_THE_GATE = ("a gate that is lost", "a gate without its gradient")
IN_PIECES = {"a dropped decay of a piece": "_LEAST_CHUNKS", "a piece from the end of another": "_LEAST_BLOCKS"}


def wrong(name: str, folder: Path) -> ModuleType:
    """A copy of a kernel's file with its fault."""
    file, good, bad = MUTANTS[name]
    source = (Path(kernels.__file__).parent / f"{file}.py").read_text("utf-8")
    assert good in source
    path = folder / "wrong_kernel.py"
    path.write_text(source.replace(good, bad), "utf-8")
    spec = importlib.util.spec_from_file_location(f"wrong_kernel_{abs(hash(name))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OF_CASES = {
    "short_convolution": ("convolution, trailing axis, packed",),
    "rms_norm": ("norm, odd",),
    "gated_rms_norm": ("gated norm, groups", "gated norm, norm first"),
}


def a_step(path: Any) -> list[Tensor]:
    """A state that goes on, and a product of integers behind a norm."""
    torch.manual_seed(0)
    projected, inputs, h = torch.randn(2, 4 + 8 + 2), torch.randn(2, 2, 8), torch.randn(2, 2, 2, 2)
    layer = pytorch.Layer(torch.randn(8, 3), torch.randn(8), *torch.randn(3, 2), 1, (0.0, 9.0))
    u = path.mamba2_step(projected, inputs, h, layer)
    weight = pytorch.pack(torch.randint(-8, 8, (3, 16), dtype=torch.int8), torch.rand(3, 1).bfloat16(), 4)
    x, norm, shift = torch.randn(2, 16), pytorch.Norm(torch.randn(16), 1e-5), pytorch.Shift(inputs, projected, 4)
    return [u, h, path.norm_matvec(x, norm, weight, shift=shift, out=torch.empty(2, 3)), inputs]


def law(kernel: str) -> None:
    torch.manual_seed(0)
    if kernel == "ssd":
        shapes = ((1, 40, 1, 2), (1, 40, 1), (1, 40, 1, 3), (1, 40, 1, 3), (1, 1, 2, 3))
        x, log_a, B, C, h0 = (torch.randn(shape) for shape in shapes)
        inputs = [m.requires_grad_() for m in (x, -log_a.abs(), B, C, h0)]
        ids = (torch.arange(40) // 13).expand(1, -1)
        compare(lambda *m: ssd(*m, ids), lambda *m: ssd_reference(*m, ids), inputs, 1e-5)
    elif kernel == "linear_scan":
        a, b, h0 = (torch.randn(shape, dtype=torch.complex64) for shape in ((1, 40, 2), (1, 40, 2), (1, 2)))
        inputs = [m.requires_grad_() for m in (a / (1 + a.abs()), b, h0)]
        compare(linear_scan, linear_scan_reference, inputs, 2e-5)
    elif kernel == "selective_scan":
        shapes = ((1, 5, 2), (1, 5, 2), (2, 3), (1, 5, 1, 3), (1, 5, 1, 3), (1, 2, 3))
        u, dt, A, B, C, h0 = (torch.randn(shape) for shape in shapes)
        inputs = [m.requires_grad_() for m in (u, dt.abs(), -A.abs(), B, C, h0)]
        compare(lambda *m: selective_scan(*m), lambda *m: selective_scan_reference(*m), inputs, 1e-5)
    elif kernel == "linear_cross_entropy":
        fast, definition, inputs = loss(4, 3, 20000, "mean")(torch.float32)
        compare(fast, definition, inputs, 2e-5)
    elif kernel in ("vandermonde", "cauchy"):
        fast, definition, inputs = vandermonde_case(130) if kernel == "vandermonde" else cauchy_case(70)
        narrow = [m.detach().cfloat().requires_grad_() for m in inputs]
        compare(fast, definition, narrow, 1e-5)
    elif kernel == "diagonal_scan":
        shapes = ((1, 40, 2, 1), (2, 3, 2), (2, 3, 2), (2, 3, 2), (2,), (1, 2, 1, 3, 2))
        u, A, B, C, D, state = (torch.randn(shape) for shape in shapes)
        A, B, C = (torch.view_as_complex(m) for m in (A, B, C))
        inputs = [m.requires_grad_() for m in (u, A / (1 + A.abs()), B, C, D, state)]
        compare(diagonal_scan, lambda *m: diagonal_scan_reference(*m, None), inputs, 1e-5)
    elif kernel == "step":
        for got, want in zip(a_step(gpu.module("step")), a_step(pytorch)):
            torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
    elif kernel == "fft_convolution":
        u, K = (9 * torch.randn(2, 30, 2)).bfloat16().requires_grad_(), torch.randn(2, 9, requires_grad=True)
        compare(fft_convolution, fft_convolution_reference, [u, K], 3e-3)
    else:
        for name in OF_CASES[kernel]:
            fast, definition, inputs = CASES[name](torch.float32)
            compare(fast, definition, inputs, 2e-5)


@functools.cache
def passes_as_it_is(kernel: str, in_pieces: bool) -> None:
    with kernels.use("triton"):
        law(kernel)
        assert canary.check(kernel, CPU) is None


LONG = (
    *("a document that remembers the one before", "a decay that counts its own step", *IN_PIECES),
    *("a state that is not moved on", "a nibble whose zero is lost"),
)


@pytest.mark.parametrize("name", long_but([name for name in MUTANTS if name not in LONG], MUTANTS))
def test_a_wrong_kernel_is_caught_by_the_laws_and_by_the_canary(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = MUTANTS[name][0].split("/")[0]
    kernel = "gated_rms_norm" if name in OF_THE_GATE else room
    mutant = wrong(name, tmp_path)
    if name in IN_PIECES:
        monkeypatch.setattr(gpu, "processors", lambda device: 64)
        monkeypatch.setattr(gpu.module(kernel), IN_PIECES[name], 1)
    monkeypatch.setattr(gpu.module("step"), "_PROGRAMS", 1)  # each takes an interpreter milliseconds
    passes_as_it_is(kernel, name in IN_PIECES)
    with kernels.use("triton"):
        launches = gpu.module(room)
        for key, value in vars(mutant).items():
            for where in (launches, getattr(launches, "kernels", None)):  # a launch may have the name of its kernel
                if type(value).__name__ == type(getattr(where, key, None)).__name__ == "InterpretedFunction":
                    monkeypatch.setattr(where, key, value)
        reason = canary.check(kernel, CPU)
        assert reason is not None
        assert "is off by" in reason
        with pytest.raises(AssertionError):
            law(kernel)


@pytest.mark.parametrize("kernel", ["gated_rms_norm"])
def test_the_canary_passes_kernels_that_are_right(kernel: str) -> None:
    assert canary.check(kernel, CPU) is None


def test_the_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(canary, "_known", {})
    asked: list[str] = []

    def check(kernel: str, device: torch.device) -> str | None:
        asked.append(kernel)
        return "a reason"

    monkeypatch.setattr(canary, "check", check)
    for _ in range(2):
        assert canary.verdict("rms_norm", CPU) == "a reason"
        canary._known.clear()
    assert asked == ["rms_norm"]
    assert "a reason" in json.loads((tmp_path / canary.FILE).read_text("utf-8")).values()


def test_a_kernel_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Tensor) -> Tensor:
        raise RuntimeError("no such card\nand more")

    monkeypatch.setattr(gpu.module("rms_norm"), "forward", fails)
    assert canary.check("rms_norm", CPU) == "it fails with RuntimeError: no such card"


IN_THE_GATE = """
import dataclasses, importlib.util, sys
from statewise.kernels.gpu import module
from statewise.kernels.gpu.gate import inspect
spec = importlib.util.spec_from_file_location("wrong_kernel", sys.argv[1])
wrong = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wrong)
build = module("ssd").builds()[0]
print(inspect("ssd", build, "sm_90").faults)
print(inspect("ssd", dataclasses.replace(build, kernel=wrong.sweep), "sm_90").faults)
print(inspect("ssd", dataclasses.replace(build, arguments={**build.arguments, "Q": 128, "N": 128}), "sm_90").faults)
large = module("fft_convolution").builds()[-1]
print(inspect("fft_convolution", dataclasses.replace(large, warps=16), "sm_90").faults)
"""


def test_the_gate_catches_offsets_of_32_bits_and_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (Path(kernels.__file__).parent / "ssd/triton_kernels.py").read_text("utf-8")
    good = "row = (of_head // heads).to(tl.int64)"
    assert good in source
    (tmp_path / "wrong_kernel.py").write_text(source.replace(good, "row = of_head // heads"), "utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", IN_THE_GATE, str(tmp_path / "wrong_kernel.py")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[0] == "()"
    assert "a product of 32 bits" in found[1]
    assert "spill" in found[2]
    assert "registers for 16 warps, and a processor has 65,536" in found[3]
