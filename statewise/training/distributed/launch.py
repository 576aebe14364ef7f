"""Joining the processes of a launch, and parting: what ends one of them ends all, with one reason."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from statewise.errors import ConfigError, StatewiseError, TrainingError
from statewise.training.distributed.several import SeveralRanks

TIMEOUT = timedelta(hours=1)  # the others wait while rank 0 writes; who died is noticed by torchrun long before
REASON = "statewise-error"
_JOINED = itertools.count()  # runs of this process: one process group may have several, and each has its own reason
NETWORK = ("gloo", "nccl", "connection", "timed out", "socket")  # words of PyTorch's errors when a peer is gone


@contextmanager
def join() -> Iterator[SeveralRanks]:
    """The processes of this launch. A StatewiseError of one is raised on those that wait for it, too.

    Errors: TrainingError if another process has ended without an error of its own.
    """
    own = not dist.is_initialized()
    if own:
        _meet()
    require_cpu_backend()
    store, is_alone = distributed_c10d._get_default_store(), True
    key = f"{REASON}-{next(_JOINED)}"
    try:
        with warnings.catch_warnings():  # of views that somebody might change in place: nothing here does
            warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
            # That a parameter on two axes of the mesh is gathered along one after the other, as it is for a checkpoint
            logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
            yield SeveralRanks()
        is_alone = False
    except StatewiseError as error:
        with suppress(Exception):  # the store may be gone, and then nobody reads it
            store.set(key, pickle.dumps((type(error), str(error))).hex())
        raise
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in NETWORK):
            raise
        raise _reason_of(store, key, error) from error
    finally:
        if own:
            _leave(is_alone)


def _leave(is_alone: bool) -> None:
    """is_alone: an error ended this process, and the others may be in the midst of what NCCL would wait for."""
    abort = getattr(distributed_c10d, "_abort_process_group", None) if "nccl" in dist.get_backend_config() else None
    with suppress(RuntimeError):  # of a group that has lost a member
        if is_alone and abort is not None:
            abort()
        else:
            dist.destroy_process_group()


def _meet() -> None:
    """Joins the processes that the environment names.

    On one machine the names by which they find each other have the number of the attempt in them: torchrun's store
    outlives the processes, and one that is early would find the address of another's dead predecessor.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        dist.init_process_group(choose_backends(), timeout=TIMEOUT)
        return
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    store = dist.PrefixStore(f"statewise-attempt-{attempt}", store)
    dist.init_process_group(choose_backends(), store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def choose_backends() -> str:
    """gloo for what is on the CPU, also beside NCCL: by itself PyTorch would take NCCL alone where there is a GPU, and
    the ranks agree on numbers and text, and gather what is saved, in main memory."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def require_cpu_backend() -> None:
    """Errors: ConfigError for a process group that cannot carry tensors of the CPU."""
    backends = dist.get_backend_config()
    if "cpu:" not in backends:
        raise ConfigError(
            f"the process group has the backends {backends!r}, none of them for the CPU; start it with "
            'torch.distributed.init_process_group("cpu:gloo,cuda:nccl")'
        )


def _reason_of(store: dist.Store, key: str, error: RuntimeError) -> StatewiseError:
    """Why another process is gone, if it could say so."""
    with suppress(Exception):
        if store.check([key]):
            kind, message = pickle.loads(bytes.fromhex(store.get(key).decode()))
            found: StatewiseError = kind(message)
            return found
    reason = " ".join(str(error).split())[:200]
    return TrainingError(
        f"another process of the run has ended ({reason}); its own message says why. Continue from the last "
        "checkpoint with --resume, or let torchrun restart it (--max-restarts)"
    )
