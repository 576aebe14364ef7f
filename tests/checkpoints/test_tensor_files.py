"""The writer of safetensors files, which has one tensor at a time in memory; the library reads what it wrote."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from statewise.checkpoints.tensor_files import ALIGNMENT, STORED_AS, read_metadata, read_tensors, write_tensors
from statewise.errors import InputError


def of_every_dtype() -> dict[str, Tensor]:
    found = {}
    for number, dtype in enumerate(STORED_AS):
        values = torch.arange(6).reshape(2, 3) % 2 if dtype == torch.bool else torch.arange(6).reshape(2, 3) + number
        found[f"layers.{number}.{dtype}"] = values.to(dtype)
    return found


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    tensors = of_every_dtype() | {
        "transposed": x.T,
        "part": x[1:3, ::2],
        "same memory": x,
        "expanded": x[:1].expand(3, 6),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(7.5, dtype=torch.float64),
        "nothing": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "ein Name mit Umlaut \u00e4": torch.ones(1, dtype=torch.int8),
    }
    write_tensors(tmp_path / "a", tensors, {"format": "pt", "b": "\u00e4"})
    for read in (load_file, read_tensors):
        found = read(tmp_path / "a")
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(found[name], tensor.detach()), name
    assert read_metadata(tmp_path / "a") == {"format": "pt", "b": "\u00e4"}


def test_the_file_is_as_large_as_the_librarys(tmp_path: Path) -> None:
    """And every tensor begins at a multiple of its width, as the library has it."""
    tensors = of_every_dtype()
    write_tensors(tmp_path / "a", tensors, {"format": "pt"})
    save_file(tensors, tmp_path / "b", {"format": "pt"})
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size
    assert int.from_bytes((tmp_path / "a").read_bytes()[:8], "little") % ALIGNMENT == 0
    with safe_open(tmp_path / "a", framework="pt") as file:
        for name in tensors:
            assert file.get_tensor(name).data_ptr() % file.get_tensor(name).element_size() == 0


def test_no_tensors_and_no_metadata(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {})
    assert load_file(tmp_path / "a") == read_metadata(tmp_path / "a") == {}


def test_each_tensor_is_written_before_the_next_is_fetched(tmp_path: Path) -> None:
    shapes = {name: torch.empty(3, device="meta") for name in "abc"}
    alive: list[weakref.ref[Tensor]] = []

    def fetch(name: str, tensor: Tensor) -> Tensor:
        assert [one() for one in alive] == [None] * len(alive)
        full = torch.full(tensor.shape, float(ord(name)))
        alive.append(weakref.ref(full))
        return full

    write_tensors(tmp_path / "a", shapes, fetch=fetch)
    assert {name: tensor.tolist() for name, tensor in load_file(tmp_path / "a").items()} == {
        name: [float(ord(name))] * 3 for name in "abc"
    }


def test_what_the_format_has_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="x is complex128, which safetensors cannot hold; use one of bool, "):
        write_tensors(tmp_path / "a", {"x": torch.zeros(1, dtype=torch.complex128)})
    assert not (tmp_path / "a").exists()
