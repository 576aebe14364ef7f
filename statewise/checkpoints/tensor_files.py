"""Tensors by name in a safetensors file; what is read is checked by name, shape, dtype and value."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from statewise.configuration import parse_json
from statewise.errors import CheckpointError, ConfigError, InputError, reason, retold

LONGEST_NAME = 200  # that a message shows in full
GGUF = ".gguf"
SAFETENSORS = ".safetensors"
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")  # of torch.save
PICKLE_SUFFIXES = (*TORCH_SUFFIXES, ".pkl", ".pickle")
WEIGHT_SUFFIXES = (SAFETENSORS, *TORCH_SUFFIXES, GGUF)  # of files that are a model
LONGEST_HEADER = 100_000_000  # bytes, of a safetensors file, as the library has it
ALIGNMENT = 8  # bytes, of the first tensor in a file
# As the file format calls them
STORED_AS = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}


class Expected(NamedTuple):
    """What a tensor of a file has to be."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def uncompiled(model: Any) -> Any:
    """The model that ``torch.compile`` was given, or what is none of its."""
    return getattr(model, "_orig_mod", model)


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, not detached; tied ones once, under the first of their names.

    For a model made by ``torch.compile``, those of the model itself.
    """
    seen: set[int] = set()
    found = {}
    for name, tensor in uncompiled(model).state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor
    return found


def count_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def require_finite(name: str, tensor: Tensor, where: str) -> None:
    """CheckpointError if a floating tensor holds NaN or an infinity."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    least, most = tensor.aminmax()  # NaN if one is; unlike isfinite it needs no memory
    if not math.isfinite(least.item()) or not math.isfinite(most.item()):
        n_wrong = int((~torch.isfinite(tensor)).sum())
        raise CheckpointError(f"{where}: {name} has {n_wrong:,} of {tensor.numel():,} values that are not finite")


def require_storable(name: str, tensor: Tensor) -> None:
    """InputError for a dtype that is not written."""
    if tensor.dtype not in STORED_AS:
        known = ", ".join(map(dtype_name, STORED_AS))
        raise InputError(f"{name} is {dtype_name(tensor.dtype)}, which safetensors cannot hold; use one of {known}")


def require_held(name: str, tensor: Tensor, where: str, advice: str = "write it in a wider dtype") -> None:
    """CheckpointError if a tensor that was cast from finite numbers is not finite any more."""
    if tensor.is_floating_point() and tensor.numel() and not all(map(math.isfinite, map(float, tensor.aminmax()))):
        kind, most = dtype_name(tensor.dtype), torch.finfo(tensor.dtype).max
        raise CheckpointError(f"{where}: {name} has values beyond {kind}'s {most:.5g}; {advice}")


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    fetch: Callable[[str, Tensor], Tensor] | None = None,
) -> None:
    """Writes a new file. Tensors may be on any device, may have any strides and may share memory.

    fetch: (name, tensor) -> what is written of it, of the same shape and dtype; called for one tensor after the other,
           each written before the next is asked for. So a model may be written that nobody has whole, which the
           library's own writer, with all tensors in memory at once, cannot do. None: the tensors themselves
    Errors:  OSError; InputError for a dtype that the format does not have.
    """
    # Wide ones first: then each begins at a multiple of its width
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor, begin = tensors[name], end
        require_storable(name, tensor)
        end += tensor.numel() * tensor.element_size()
        header[name] = {"dtype": STORED_AS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            _append(file, tensors[name] if fetch is None else fetch(name, tensors[name]))


def _append(file: BinaryIO, tensor: Tensor) -> None:
    if tensor.numel():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        file.write(plain.view(-1).view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU, each in memory of its own.

    Errors:  CheckpointError if it is not a safetensors file.
    """
    return {name: tensor.clone() for name, tensor in map_tensors(path).items()}


def map_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU, not yet read: their memory is the file's, which may not change meanwhile.

    Errors:  as :func:`read_tensors`.
    """
    with _open(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)


def read_expected(path: Path, expected: Mapping[str, Expected]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file one by one, on the CPU, each in memory of its own; nothing before all could be there.

    Errors:  CheckpointError naming the first tensor that is missing, unexpected, of a wrong shape or dtype, or not
             finite.
    """
    with _open(path) as file:
        names = set(file.keys())
        for problem, differing in (("missing", expected.keys() - names), ("unexpected", names - expected.keys())):
            if differing:
                others = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
                raise CheckpointError(f"{path}: the tensor {shown(min(differing))} is {problem}{others}")
        for name, (shape, dtype) in expected.items():
            tensor = file.get_tensor(name)  # mapped, not read
            if tuple(tensor.shape) != shape:
                raise CheckpointError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {shape}")
            if tensor.dtype != dtype:
                raise CheckpointError(f"{path}: {name} is {dtype_name(tensor.dtype)}, expected {dtype_name(dtype)}")
        for name in expected:
            tensor = file.get_tensor(name).clone()
            require_finite(name, tensor, str(path))
            yield name, tensor


def read_metadata(path: Path) -> dict[str, str]:
    """The text beside the tensors."""
    with _open(path) as file:
        return dict(file.metadata() or {})


def shown(name: str) -> str:
    """A name that a file gives, for a message of one line: as it is if it is short printable ASCII, else its repr."""
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}..."
    if name.isascii() and name.isprintable():
        return name
    escaped = ascii(name)  # ten characters for one, at most
    return escaped if len(escaped) <= LONGEST_NAME else f"{escaped[:LONGEST_NAME]}..."


def require_floating(dtype: Any, caller: str) -> None:
    """InputError unless it is a floating dtype, or None."""
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        given = repr(dtype) if isinstance(dtype, str) else f"a {type(dtype).__name__}"
        raise InputError(f"{caller} needs a PyTorch dtype, such as torch.float32; got {given}")
    if not dtype.is_floating_point:
        raise InputError(f"{caller} needs a floating-point dtype; got {dtype}")


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def refuse_pickle(path: Path) -> None:
    """CheckpointError if the file is a pickle by its name or its first bytes. It is not opened as one."""
    if path.suffix in PICKLE_SUFFIXES or _looks_like_pickle(path):
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is loaded, so Statewise does not load it. "
            "Convert it to safetensors on a machine where you trust it"
        )


def _looks_like_pickle(path: Path) -> bool:
    """By the first bytes of torch.save's files, old and new. In a safetensors file the ninth byte is a brace."""
    with open(path, "rb") as file:
        start = file.read(9)
    if start[8:] == b"{":
        return False
    if start[:4] == b"PK\x03\x04":
        return _zip_may_hold_pickles(path)
    return start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"


def _zip_may_hold_pickles(path: Path) -> bool:
    """Other files are zips too, such as NumPy's .npz; one that is damaged is taken for the worst."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(PICKLE_SUFFIXES) for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError):
        return True


def _require_unique_names(path: Path) -> None:
    """CheckpointError for a header with a name that is there twice, of which the library takes the last."""
    with open(path, "rb") as file:
        n = int.from_bytes(file.read(8), "little")
        header = file.read(n) if n <= LONGEST_HEADER else b""  # else the library refuses it
    with retold(CheckpointError, ConfigError):
        parse_json(header.rstrip(b" ") or b"{}", f"{path} is not a safetensors file that can be read: its header")


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    refuse_pickle(path)
    _require_unique_names(path)
    try:
        opened = safe_open(path, framework="pt", device="cpu")
    except (
        SafetensorError,
        RuntimeError,
        OSError,
    ) as error:  # the latter two from PyTorch, if the file is gone or cannot be mapped
        raise _unreadable(path, error) from error
    try:
        with opened as file:
            yield file
    except (SafetensorError, KeyError, AttributeError) as error:  # the latter two: dtypes that PyTorch does not have
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is not a safetensors file that can be read ({reason(error)})")
