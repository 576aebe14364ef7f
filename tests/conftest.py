"""What every test shares: one thread a worker, a cache folder of its own, marks for slow and CUDA tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

# Before torch is imported anywhere: the workers of pytest-xdist are the parallelism.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

# A shared machine may stall for seconds: a deadline would find slow machines and no mistakes.
hypothesis.settings.register_profile("statewise", deadline=None, print_blob=True)
hypothesis.settings.load_profile("statewise")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--every", type=int, default=1, metavar="N", help="of each test's cases one in N, at least one")
    parser.addoption("--browser", action="store_true", help="also run the tests in Chromium, as make browser does")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--every") > 1:
        _keep_every(config.getoption("--every"), config, items)
    cuda = torch.cuda.is_available()
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with --slow"))
        if item.get_closest_marker("browser") and not config.getoption("--browser"):
            item.add_marker(pytest.mark.skip(reason="needs Chromium; run with --browser"))
        if item.get_closest_marker("cuda") and not cuda:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def _keep_every(n: int, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each test's cases about one in n, as their names pick them, and at least one of those that run here: the same
    ones each time, and of each parameter all values if there are many cases."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in ("slow", "browser", "cuda")):
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    least = {id(min(found, key=_number)) for found in cases.values()}
    dropped = [
        item
        for item in items
        if item.nodeid.split("[")[0] in cases and _number(item) % n != 0 and id(item) not in least
    ]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        gone = {id(item) for item in dropped}
        items[:] = [item for item in items if id(item) not in gone]


def _number(item: pytest.Item) -> int:
    return crc32(item.nodeid.encode())


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the modules of all tests hold stays. A full collection would look at all of it each time, for a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def statewise_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of tokenised texts: nothing is read from or left in the user's own."""
    folder = tmp_path_factory.mktemp("cache")
    previous = os.environ.get("STATEWISE_CACHE")
    os.environ["STATEWISE_CACHE"] = str(folder)
    yield folder
    if previous is None:
        del os.environ["STATEWISE_CACHE"]
    else:
        os.environ["STATEWISE_CACHE"] = previous


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of workers.py are forked from a Python that has imported everything, where a test does not need
    them to be new."""
    if not hasattr(os, "fork"):
        return
    from forked_programs import in_forks

    from statewise.training import workers

    monkeypatch.setattr(workers, "subprocess", in_forks())


@pytest.fixture(scope="session")
def superglue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The eight tasks' files, four made-up rows in each split, to be read and not changed."""
    from questions import write_superglue

    folder = tmp_path_factory.mktemp("superglue")
    write_superglue(folder, n_validation=4, n_train=4)
    return folder


@pytest.fixture(autouse=True)
def _on_device() -> Iterator[None]:
    """STATEWISE_TEST_DEVICE=cuda runs laws and kernels on a GPU, as `make gpu-day` does."""
    name = os.environ.get("STATEWISE_TEST_DEVICE")
    if not name:
        yield
        return
    from on_device import OnDevice

    with OnDevice(name):
        yield
