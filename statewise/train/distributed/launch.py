"""Joining the processes of a launch, and parting: what ends one of them ends all, with one reason."""

from __future__ import annotations

import logging
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from statewise.checkpoints.folders import RUN_FILE
from statewise.errors import CheckpointError, StatewiseError, TrainingError
from statewise.train.distributed.several import SeveralRanks
from statewise.train.run_folder import LOCK_FILE

TIMEOUT = timedelta(hours=1)  # the others wait while rank 0 writes; who died is noticed by torchrun long before
STORE_TIMEOUT = timedelta(minutes=1)
REASON = "statewise-error"
LAUNCH = "statewise-launch"
NETWORK = ("gloo", "nccl", "connection", "timed out", "socket")  # words of PyTorch's errors when a peer is gone


@contextmanager
def join() -> Iterator[SeveralRanks]:
    """The processes of this launch. A StatewiseError of one is raised on those that wait for it, too.

    Errors: TrainingError where another process has ended without a word.
    """
    own = not dist.is_initialized()
    if own:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        _meet()
    store = distributed_c10d._get_default_store()
    try:
        with warnings.catch_warnings():  # of views that somebody might change in place: nothing here does
            warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
            # That a parameter on two axes of the mesh is gathered along one after the other, as it is for a checkpoint
            logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
            yield SeveralRanks()
    except StatewiseError as error:
        with suppress(Exception):  # the store may be gone, and then nobody reads it
            store.set(REASON, pickle.dumps((type(error), str(error))).hex())
        raise
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in NETWORK):
            raise
        raise _reason_of(store, error) from error
    finally:
        if own:
            with suppress(RuntimeError):  # of a group that has lost a member
                dist.destroy_process_group()


def _meet() -> None:
    """Joins the processes that the environment tells of.

    On one machine the names by which they find each other have the number of the attempt in them: torchrun's store
    outlives the processes, and one that is early would find the address of another's dead predecessor.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        dist.init_process_group(timeout=TIMEOUT)
        return
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    store = dist.PrefixStore(f"statewise-attempt-{attempt}", store)
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def _reason_of(store: dist.Store, error: RuntimeError) -> StatewiseError:
    """Why another process is gone, if it could say so."""
    with suppress(Exception):
        if store.check([REASON]):
            kind, message = pickle.loads(bytes.fromhex(store.get(REASON).decode()))
            found: StatewiseError = kind(message)
            return found
    reason = " ".join(str(error).split())[:200]
    return TrainingError(
        f"another process of the run has ended ({reason}); its own message says why. The run goes on from its last "
        "checkpoint with --resume, or by itself under torchrun --max-restarts"
    )


def goes_on(folder: Path) -> bool:
    """Whether torchrun has started these processes anew, and it was they who had begun the run in this folder."""
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
