"""What tests of kernels share: memory that nobody wrote is NaN, and which implementation runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fused_kernels import PATHS

from statewise import kernels, native


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN, so that a kernel that reads what it did not write is found out."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def in_c() -> Iterator[None]:
    with kernels.use("c"):
        yield


@pytest.fixture
def in_triton() -> Iterator[None]:
    """And with the same random numbers each time."""
    torch.manual_seed(0)
    with kernels.use("triton"):
        yield


@pytest.fixture(params=["c", "torch"])
def each_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """C and PyTorch in turn, asked for by name."""
    if request.param == "c" and not native.available():
        pytest.skip(f"no C kernels: {native.why_not()}")
    with kernels.use(request.param):
        yield


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """PyTorch and C on each instruction set in turn, asked for by name."""
    if request.param == "torch":
        with kernels.use("torch"):
            yield request.param
    else:
        with native.forced(request.param), kernels.use("c"):
            yield request.param
