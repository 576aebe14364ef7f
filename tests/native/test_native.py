"""The library of C kernels: its threads, its rounding, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from statewise import kernels, native
from statewise.errors import InputError
from statewise.kernels.linear_scan import linear_scan
from statewise.kernels.vandermonde import vandermonde
from statewise.native import build
from statewise.native.threads import runtime

needs_library = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("threads", [1, 2])
def test_subnormal_numbers_are_zero_in_kernels_and_nowhere_else(threads: int, instructions: str) -> None:
    """A decay of 0.99 is subnormal after 8,700 steps; then some processors take a hundred cycles for each product."""
    smallest = torch.full((100_000,), 1e-40)
    torch.set_num_threads(threads)
    try:
        with native.forced(instructions), kernels.use("c"):
            A = torch.full((4, 1), 0.99)
            taps = vandermonde(torch.ones(4, 1, 1), A, 12_000)
            starts = linear_scan(torch.full((4, 12_000, 1), 0.99), torch.zeros(4, 12_000, 1), torch.ones(4, 1))
        assert (smallest * 1.0 != 0).all()  # of every thread, after the kernels
    finally:
        torch.set_num_threads(1)
    tiny = torch.finfo(torch.float32).tiny
    for found in (taps.flatten(1), starts.flatten(1)):
        assert not ((found != 0) & (found.abs() < tiny)).any()
        assert (found[:, :8600] >= tiny).all()
        assert not found[:, 8800:].any()


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
def test_bfloat16_rounds_as_pytorch_does(instructions: str) -> None:
    torch.manual_seed(0)
    x = torch.cat(
        [torch.randn(1001) * 10 ** torch.linspace(-30, 30, 1001), torch.tensor([torch.inf, -torch.inf, torch.nan, 0])]
    )
    bits, back = torch.empty(len(x), dtype=torch.bfloat16), torch.empty_like(x)
    with native.forced(instructions):
        native.function("elementary_bf16", None, "pppl")(x, bits, back, len(x))
    torch.testing.assert_close(bits, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(back, x.bfloat16().float(), rtol=0, atol=0, equal_nan=True)


def test_threads_are_those_of_pytorch() -> None:
    path = runtime()
    assert path is None or Path(path).name.startswith(("libgomp", "libiomp", "libomp"))


def test_without_a_compiler_or_on_request_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEWISE_NO_C", "1")
    library = tmp_path / "k.so"
    assert build.build_or_explain(library) is None
    assert library.with_suffix(".txt").read_text() == "STATEWISE_NO_C was set when statewise was installed\n"
    monkeypatch.delenv("STATEWISE_NO_C")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert build.build_or_explain(library) is None
    assert "no C compiler was found" in library.with_suffix(".txt").read_text()


def test_without_the_library_everything_says_so(tmp_path: Path) -> None:
    script = (
        "import torch, statewise as sw\n"
        "from statewise import native\n"
        "from statewise.kernels.linear_scan import linear_scan\n"
        "assert not native.available() and native.instruction_sets() == ()\n"
        "a = torch.full((1, 3, 1), 0.5)\n"
        "print(linear_scan(a, a, torch.zeros(1, 1)).flatten().tolist())\n"
        "print(native.why_not())\n"
    )
    library = tmp_path / "none.so"
    environment = {"STATEWISE_LIBRARY": str(library), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    why = f"STATEWISE_LIBRARY={library} is not a file; name the library with its path, or unset the variable"
    assert done.stdout == f"[0.5, 0.75, 0.875]\n{why}\n"


@pytest.fixture
def loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks for the library anew within the test, and forgets what was found."""
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    monkeypatch.delenv("STATEWISE_LIBRARY", raising=False)
    monkeypatch.delenv("STATEWISE_ISA", raising=False)


@pytest.mark.usefixtures("loaded_again")
def test_why_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_HERE", tmp_path)
    assert native.why_not() == "statewise was installed without building them"
    monkeypatch.setenv("STATEWISE_ISA", "avx2")
    assert native.why_not() == (
        "statewise was installed without building them; STATEWISE_ISA=avx2 has no effect without them"
    )
    monkeypatch.delenv("STATEWISE_ISA")
    for place in (tmp_path, tmp_path / "nope"):
        monkeypatch.setenv("STATEWISE_LIBRARY", str(place))
        assert native.why_not() == (
            f"STATEWISE_LIBRARY={place} is not a file; name the library with its path, or unset the variable"
        )
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setenv("STATEWISE_LIBRARY", str(tmp_path / "text.so"))
    assert str(native.why_not()).startswith(f"STATEWISE_LIBRARY={tmp_path / 'text.so'} does not load: ")


def test_backends_by_name() -> None:
    with pytest.raises(InputError, match=r"kernels.use\('cuda'\) is unknown"), kernels.use("cuda"):
        pass
    with kernels.use("torch"):
        assert kernels.backend.backend() == "torch"
    with pytest.raises(InputError, match="is not available here"), native.forced("sse9"):
        pass


def test_a_compiler_that_fails_is_named_with_what_it_failed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "k.so"
    monkeypatch.setenv("CC", "/nonexistent/cc")
    assert build.build_or_explain(library) is None
    assert "CC is /nonexistent/cc, and there is no such program" in library.with_suffix(".txt").read_text()
    monkeypatch.setenv("CC", "/bin/false")
    assert build.build_or_explain(library) is None
    reason = library.with_suffix(".txt").read_text()
    assert "/bin/false failed at " in reason
    assert "to use another compiler, set CC" in reason


def test_a_library_of_these_sources_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATEWISE_NO_C", "STATEWISE_CFLAGS", "CC"):
        monkeypatch.delenv(name, raising=False)
    library = tmp_path / "library.so"
    assert not build.is_current(library)
    library.write_bytes(b"\x7fELF" + build.sources_digest().encode())
    assert build.is_current(library)
    monkeypatch.setenv("STATEWISE_CFLAGS", "-O1")
    assert not build.is_current(library)
    monkeypatch.delenv("STATEWISE_CFLAGS")
    library.write_bytes(b"\x7fELF of other sources")
    assert not build.is_current(library)
