"""Which torchrun began a run: its processes, started again, continue it; those of another one do not."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import torch.distributed as dist

from statewise.checkpoints.folders import RUN_FILE
from statewise.errors import CheckpointError
from statewise.training.run_folder import LOCK_FILE

STORE_TIMEOUT = timedelta(minutes=1)
LAUNCH = "statewise-launch"


def goes_on(folder: Path) -> bool:
    """Whether torchrun has started these processes again, and they had begun the run in this folder."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0 or not (folder / RUN_FILE).exists():
        return False
    try:
        return (folder / LOCK_FILE).read_text("utf-8") == _launch()
    except OSError:
        return False


def sign(folder: Path) -> None:
    """Says in the lock's file which launch the run was begun by, so that no other is taken for it.

    What is there already is not written again: a process that is killed just then would leave an empty file.

    Errors: CheckpointError where it cannot be written.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    file, launch = folder / LOCK_FILE, _launch()
    try:
        if file.read_text("utf-8") != launch:
            file.write_text(launch, "utf-8")
    except OSError as error:
        raise CheckpointError(
            f"cannot write {file}: {error.strerror}; make room for it, or give another folder"
        ) from error


def _launch() -> str:
    """The same for every attempt of one torchrun, and for no other one.

    A name in its store, which outlives the workers. Where it has none that workers can reach, the process above this
    one, which is torchrun itself unless a script between them has not become (``exec``) the worker.
    """
    environment = os.environ
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        with suppress(RuntimeError, KeyError, ValueError):
            address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=STORE_TIMEOUT)
            return f"{run} {store.compare_set(LAUNCH, '', uuid4().hex).decode()}"  # unless it has one already
    parent = os.getppid()
    begun = ""
    with suppress(OSError, IndexError):  # where there is such a file: a number is given to another process one day
        begun = Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return f"{run} {parent} {begun}"
