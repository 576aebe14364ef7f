"""torch.save's files, read without running anything in them: by ``torch.load(weights_only=True)``, and never otherwise.

Lightning's files also hold objects of the libraries it was run with, such as omegaconf's of a configuration. For
these, and only these, the reader makes stand-ins: dictionaries of what the file says of the object, of a class of our
own, so that nothing of those libraries runs, nor has to be there.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import tarfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints.tensor_files import shown
from statewise.errors import CheckpointError, DataError
from statewise.files.limits import VARIABLE, most
from statewise.files.opening import check_zip, read_member

# Whose classes get a stand-in, and the names that such a file gives as the types of its values
LIBRARIES = ("omegaconf.", "pytorch_lightning.", "lightning.", "lightning_fabric.")
TYPES = ("typing.Any", "collections.defaultdict") + tuple(
    f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "object", "str", "tuple", "type")
)
ZIP = b"PK\x03\x04"  # what the file of a zip begins with
N_PICKLES = 5  # one after the other in a file from before torch.save wrote zips
MOST_VALUES = 1_000_000  # of plain data in a file of weights
SCALARS = (str, int, float, bool, type(None))


class StandIn(dict[Any, Any]):
    """What a file says of an object of a library that is not asked: its items here, its state under ``state``."""

    state: Any = None

    def __new__(cls, *_: Any) -> StandIn:
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        self.state = state


def load_pickle(path: Path) -> Any:
    """What torch.save wrote: tensors, on the CPU and mapped to the file where its format can be, and plain data.

    Errors:  CheckpointError for a file that names anything else, of which nothing has then been run, and for one that
             is damaged or no file of torch.save.
    """
    is_zip = _is_whole_zip(path)
    _check_calls(path, is_zip)
    stand_ins: list[Any] = []
    if is_zip:
        try:
            unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        except Exception as error:  # as below
            raise _unreadable(path, error) from error
        stand_ins = [(StandIn, name) for name in unsafe if name.startswith(LIBRARIES)]
        if stand_ins:
            stand_ins += [(StandIn, name) for name in unsafe if name in TYPES]
        if others := sorted({*unsafe} - {name for _, name in stand_ins}):
            raise _refused(path, f"names {shown(others[0])}")
    try:
        with torch.serialization.safe_globals(stand_ins), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that are then refused
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        text = " ".join(str(error).split())
        named = re.search(r"GLOBAL ([\w.]+)", text)
        name = named[1] if named else _first_global(path)
        if name is not None:
            raise _refused(path, f"names {shown(name)}") from error
        if "Unsupported operand" in text and _begins_as_pickle(path):
            raise _refused(path, "holds more than tensors and plain data") from error
        raise _unreadable(path, error) from error
    except Exception as error:  # a damaged pickle may raise anything
        raise _unreadable(path, error) from error


def _check_calls(path: Path, is_zip: bool) -> None:
    """Refuses calls that PyTorch lets pass and that make as many bytes as a file of any size likes to ask for.

    Errors:  CheckpointError for a bytearray, and where ``_codecs.encode``, by which old protocols write bytes, could
             make more of the longest text than the file's size allows.
    """
    n_calls, longest, encodes = 0, 0, False
    for operation, value, names in _operations(path, is_zip):
        if operation == "REDUCE":
            n_calls += 1
        elif isinstance(value, str):
            longest = max(longest, len(value))
        if names in ("builtins.bytearray", "__builtin__.bytearray"):
            raise CheckpointError(
                f"{path} allocates memory with builtins.bytearray, which weights never do; it was not read"
            )
        encodes |= names == "_codecs.encode"
    if encodes and n_calls * longest > most(path.stat().st_size):
        raise CheckpointError(
            f"{path} may expand {longest:,} characters {n_calls:,} times, which looks like an attack on the memory; "
            f"if you trust it, set {VARIABLE} to more than {n_calls * longest / path.stat().st_size:.0f}"
        )


def _operations(path: Path, is_zip: bool) -> Iterator[tuple[str, Any, str | None]]:
    """Name, argument, and what it names if it names a class, of each operation of the file's pickles; none is run.

    Errors:  CheckpointError for a pickle that cannot be read to its end: PyTorch may read on where this ends.
    """
    strings = ["", ""]
    try:
        with ExitStack() as opened:
            if is_zip:
                archive = opened.enter_context(zipfile.ZipFile(path))
                files: list[Any] = [
                    io.BytesIO(read_member(archive, member, path))
                    for member in archive.infolist()
                    if member.filename.endswith("data.pkl")
                ]
            else:
                files = [opened.enter_context(open(path, "rb"))] * N_PICKLES
            for file in files:
                if not is_zip and not file.peek(1):  # a pickle of something else, with nothing after it
                    return
                for operation, value, _ in pickletools.genops(file):
                    names = None
                    if operation.name in ("GLOBAL", "INST"):
                        names = str(value).replace(" ", ".")
                    elif operation.name == "STACK_GLOBAL":
                        names = ".".join(strings)
                    elif isinstance(value, str):
                        strings = [strings[1], value]
                    yield operation.name, value, names
    except DataError as error:
        raise CheckpointError(str(error)) from error
    except Exception as error:  # of what cannot be read through nothing is promised
        raise _unreadable(path, error) from error


def plain(value: Any, left: list[int] | None = None) -> Any:
    """Stand-ins and containers as JSON has them; what is neither, nor a number or text, becomes None.

    left: how many more values there may be. A pickle that names one list twice in another, and so on, has few.
    Errors:  CheckpointError for too many.
    """
    left = [MOST_VALUES] if left is None else left
    left[0] -= 1
    if left[0] < 0:
        raise CheckpointError(f"its plain data expand to more than {MOST_VALUES:,} values")
    if isinstance(value, StandIn):
        state = value.state
        if isinstance(state, Mapping) and "_content" in state:  # omegaconf's containers
            return plain(state["_content"], left)
        if isinstance(state, Mapping) and "_val" in state:  # and its values
            return plain(state["_val"], left)
    if isinstance(value, Mapping):
        return {str(name): plain(item, left) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, left) for item in value]
    return value if isinstance(value, SCALARS) else None


def _is_whole_zip(path: Path) -> bool:
    """Whether it is a zip, as torch.save writes. Errors: CheckpointError if it begins as one and is cut short."""
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                check_zip(archive, path, path.stat().st_size)
        except DataError as error:
            raise CheckpointError(str(error)) from error
        except Exception as error:  # of a damaged list of members
            raise _unreadable(path, error) from error
        return True
    with open(path, "rb") as file:
        start = file.read(4)
    if not start:
        raise CheckpointError(f"{path} is not a file of torch.save that can be read: it is empty")
    if start == ZIP:
        raise CheckpointError(
            f"{path} is not a file of torch.save that can be read: it is damaged or cut short (a zip without its end)"
        )
    if tarfile.is_tarfile(path):
        raise CheckpointError(
            f"{path} is not a file of torch.save that can be read: it is a tar, as PyTorch wrote before 0.2; none of "
            "it was run. Convert it to safetensors on a machine where you trust it"
        )
    return False


def _first_global(path: Path) -> str | None:
    """The first thing that a bare pickle asks for and tensors do not need; its operations are read, not run."""
    named = (name for _, _, name in _operations(path, is_zip=False) if name is not None)
    return next((name for name in named if name.split(".")[0] not in ("torch", "collections")), None)


def _refused(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is a pickle that {what}, which could run code; none of it was run. "
        "Convert it to safetensors on a machine where you trust it"
    )


def _begins_as_pickle(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(1) == pickle.PROTO


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    """In our words: PyTorch's often tell to switch off what keeps a pickle from running code."""
    why = "it is damaged, cut short, or something else"
    if "torchscript" in str(error).lower():
        why = "it is a program of TorchScript; save the state_dict() of its module with torch.save"
    return CheckpointError(f"{path} is not a file of torch.save that can be read: {why}")
