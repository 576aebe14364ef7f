"""How much memory is free here: what the system says, and what the group of processes may take at most."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.errors import ConfigError

if TYPE_CHECKING:
    import torch

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
SMALL = 1 << 26


def available_memory(device: torch.device | None = None, *, proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Bytes that a new run may take on the device (None: the CPU); None where the system does not say.

    On CUDA what the driver has left, and what PyTorch holds of it without use. On Linux MemAvailable of /proc/meminfo,
    which counts caches that can be given up, and what is left to the control group of this process and to each above
    it (versions 1 and 2), which is how containers and job schedulers limit it; and what ``ulimit -v`` leaves to this
    process. Swap does not count: a run in it is a hundred times slower.

    proc, groups: where the system's files are
    """
    if device is not None and device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [free for free in (_of_machine(proc), _of_process(proc), *_of_groups(proc, groups)) if free is not None]
    return max(0, min(known)) if known else None


def _of_machine(proc: Path) -> int | None:
    found = re.search(r"MemAvailable:\s+(\d+) kB", _read(proc / "meminfo"))
    return None if found is None else int(found[1]) * 1024


def _of_process(proc: Path) -> int | None:
    """What is left of the address space that this process may have; None without a limit, or where there is none."""
    found = re.search(r"Max address space +(\d+) ", _read(proc / "self" / "limits"))
    used = re.search(r"VmSize:\s+(\d+) kB", _read(proc / "self" / "status"))
    return None if found is None or used is None else int(found[1]) - int(used[1]) * 1024


def _of_groups(proc: Path, groups: Path) -> Iterator[int | None]:
    """What is left to each control group that this process is in."""
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            root, names = groups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be that of the machine, which is not there; the root is then the group.
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                yield _of_group(folder, *names)


def _of_group(folder: Path, limit: str, used: str, cache: str) -> int | None:
    most, now = _read(folder / limit).strip(), _read(folder / used).strip()
    if not (most.isdigit() and now.isdigit()):  # "max": there is no limit
        return None
    given_up = re.search(rf"^{cache} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
    return int(most) - int(now) + (int(given_up[1]) if given_up is not None else 0)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # not this system, or not this version
        return ""


def size(n_bytes: int) -> str:
    """Bytes for people: "1.5 GB"."""
    if n_bytes >= 1e21:
        return f"{min(n_bytes, 10**300) / 1e12:.0e} TB"
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.3g} {unit}" if n_bytes < 1000 * factor else f"{n_bytes / factor:,.0f} {unit}"
    return f"{n_bytes:,} bytes"


def require_free(n_bytes: int, what: str) -> None:
    """Errors: ConfigError, before anything is allocated, if ``what`` needs more bytes than are free here."""
    if n_bytes < SMALL:  # without asking the system, which takes time
        return
    free = available_memory()
    if free is not None and n_bytes > free:
        raise ConfigError(
            f"{what} needs {size(n_bytes)} of memory, but only {size(free)} are free; use a smaller number"
        )
