"""The GGUF file by the gguf package, beside bytes laid out here by hand; damaged lengths; the package missing."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf_examples
import numpy as np
import pytest
import torch
from forked_programs import ran

from statewise.checkpoints.convert.gguf_file import read_file, write_file
from statewise.errors import CheckpointError

assert gguf_examples  # which skips where the package is missing
U8, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 3, 4, 5, 6, 7, 8, 9, 10, 12


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def laid_out(values: dict[str, bytes], tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> bytes:
    """values: each with its type before it; tensors: (number of the type, shape as in the file, numbers)."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    header += b"".join(text(key) + value for key, value in values.items())
    body = b""
    for name, (kind, shape, numbers) in tensors.items():
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += numbers + bytes(-len(numbers) % 32)
    return header + bytes(-len(header) % 32) + body


def array(kind: int, n: int, numbers: bytes = b"") -> dict[str, bytes]:
    return {"a": struct.pack("<IIQ", ARRAY, kind, n) + numbers}


def test_each_type_is_read_exactly(tmp_path: Path) -> None:
    """The numbers by arithmetic: 0.5 times an integer, and float32 without its lower 16 bits."""
    values = {
        "uint8": struct.pack("<IB", U8, 3),
        "int16": struct.pack("<Ih", I16, -4),
        "uint64": struct.pack("<IQ", U64, 2**40),
        "float32": struct.pack("<If", F32, 1e-5),
        "float64": struct.pack("<Id", F64, 1e-5),
        "bool": struct.pack("<I?", BOOL, True),
        "string": struct.pack("<I", STRING) + text("né"),
        "texts": struct.pack("<IIQ", ARRAY, STRING, 3) + text("") + text("x") + text("né"),
        "none": struct.pack("<IIQ", ARRAY, STRING, 0),
        "numbers": struct.pack("<IIQ2i", ARRAY, I32, 2, 1, -2),
    }
    n = np.arange(64) - 32
    tensors = {
        "odd": (0, (5,), np.arange(5, dtype="<f4").tobytes()),
        "half": (1, (2, 3), np.array([1, -2, 0.5, 65504, 2**-24, 0], "<f2").tobytes()),
        "bfloat16": (30, (2, 2), np.array([0x3F80, 0xC000, 0x0001, 0x7F7F], "<u2").tobytes()),
        "q8_0": (8, (32, 2), b"".join(struct.pack("<e32b", 0.5 + i, *n[32 * i : 32 * i + 32]) for i in range(2))),
    }
    path = tmp_path / "x.gguf"
    path.write_bytes(laid_out(values, tensors))
    file = read_file(path)
    assert file.metadata == {
        **{"uint8": 3, "int16": -4, "uint64": 2**40, "float32": 1e-5, "float64": 1e-5, "bool": True, "string": "né"},
        **{"texts": ["", "x", "né"], "none": [], "numbers": [1, -2]},
    }
    assert [t.type for t in file.tensors.values()] == ["F32", "F16", "BF16", "Q8_0"]
    found = {name: file.read(name) for name in tensors}
    path.unlink()
    path.write_bytes(b"")
    assert found["odd"].tolist() == [0, 1, 2, 3, 4]
    assert found["half"].tolist() == [[1, -2], [0.5, 65504], [2**-24, 0]]
    assert found["bfloat16"].tolist() == [[1, -2], [2**-133, float(torch.finfo(torch.bfloat16).max)]]
    assert np.array_equal(found["q8_0"].numpy(), np.stack([0.5 * n[:32], 1.5 * n[32:]]))
    for tensor in found.values():  # in memory of its own
        assert tensor.dtype == torch.float32
        assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()
        tensor.zero_()


def test_what_is_written_is_laid_out_as_known(tmp_path: Path) -> None:
    known = {
        "general.architecture": struct.pack("<I", STRING) + text("mamba"),
        "count": struct.pack("<II", U32, 7),
        "eps": struct.pack("<If", F32, 1e-5),
        "flag": struct.pack("<I?", BOOL, False),
        "texts": struct.pack("<IIQ", ARRAY, STRING, 2) + text("a") + text("né"),
        "merges": struct.pack("<IIQ", ARRAY, STRING, 0),  # which the package alone does not write
        "numbers": struct.pack("<IIQ2i", ARRAY, I32, 2, 1, -2),
    }
    values = {"count": 7, "eps": 1e-5, "flag": False, "texts": ["a", "né"], "merges": [], "numbers": [1, -2]}
    full, half = torch.arange(6.0).reshape(3, 2).T, torch.arange(5).half()
    write_file(tmp_path / "x.gguf", {"general.architecture": "mamba", **values}, {"full": full, "half": half})
    numbers = np.array([0, 2, 4, 1, 3, 5], "<f4").tobytes(), np.arange(5, dtype="<f2").tobytes()
    written = laid_out(known, {"full": (0, (3, 2), numbers[0]), "half": (1, (5,), numbers[1])})
    assert (tmp_path / "x.gguf").read_bytes() == written
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "x.gguf", {"general.architecture": "mamba"}, {})
    assert (tmp_path / "x.gguf").read_bytes() == written


def test_a_damaged_length_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    """The package alone takes what is not there number by number; when it does not, our guard can go."""
    from gguf import GGUFReader

    path = tmp_path / "x.gguf"
    path.write_bytes(laid_out(array(I32, 20_000), {})[:49])
    assert len(GGUFReader(path).fields["a"].parts) > 20_000
    for kind in (U8, I32, F64, STRING, ARRAY):
        path.write_bytes(laid_out(array(kind, 2**40), {}))
        with pytest.raises(CheckpointError, match="ends before the data that it lists"):
            read_file(path)
    path.write_bytes(laid_out(array(I32, 2**22, bytes(2**24)), {}))  # as much as a length may claim of a large file
    began = time.process_time()
    assert len(read_file(path).metadata["a"]) == 2**22  # type: ignore[arg-type]
    assert time.process_time() - began < 3
    path.write_bytes(laid_out({"a": struct.pack("<I", STRING) + text("cut short")}, {}).rstrip(b"\0")[:-1])
    with pytest.raises(CheckpointError, match="ends before the data that it lists"):  # though nothing comes after it
        read_file(path)
    path.write_bytes(laid_out(array(ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 5000), {}))
    with pytest.raises(CheckpointError, match="recursion"):
        read_file(path)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (0, (2**32, 2**32)),  # 0 elements in 64 bits
        (0, (2**63, 2)),
        (0, (2**61 + 1, 8)),
        (1, (2**64 - 1,)),
        (0, (1,) * 70),
        (8, (31,)),  # no multiple of a block
        (8, ()),
        (99, (8,)),
    ],
)
def test_a_shape_that_cannot_be(kind: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(laid_out({}, {"x": (kind, shape, bytes(64))}))
    with pytest.raises(CheckpointError, match="is not a GGUF file, is damaged, or is newer") as caught:
        read_file(path)
    assert "\n" not in str(caught.value)


def test_a_tensor_that_begins_elsewhere(tmp_path: Path) -> None:
    data = bytearray(laid_out({}, {"x": (0, (1,), bytes(4))}))
    at = data.index(b"x") + 1 + 4 + 8 + 4
    for start in (2**64 - 32, 2**63, 2**40, 64):  # the first would be a place before all tensors in 64 bits
        data[at : at + 8] = struct.pack("<Q", start)
        (tmp_path / "x.gguf").write_bytes(data)
        with pytest.raises(CheckpointError, match=r"overflow|ends before"):
            read_file(tmp_path / "x.gguf")


def test_no_empty_file_no_folder_and_no_other_byte_order(tmp_path: Path) -> None:
    from gguf import GGUFEndian, GGUFWriter

    writer = GGUFWriter(tmp_path / "big.gguf", "mamba", endianess=GGUFEndian.BIG)
    for step in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{step}")()
    writer.close()
    (tmp_path / "empty.gguf").touch()
    for name, message in (("big.gguf", "other byte order"), ("empty.gguf", "empty"), ("no.gguf", "cannot read .* No")):
        with pytest.raises(CheckpointError, match=message):
            read_file(tmp_path / name)
    with pytest.raises(CheckpointError, match="cannot read"):
        read_file(tmp_path)


def test_a_vocabulary_of_50000_tokens_is_read_at_once(tmp_path: Path) -> None:
    words = [f"Ġtoken{i}" for i in range(50_000)]
    values = {"tokens": words, "types": [1] * len(words), "merges": [f"{word} {word}" for word in words]}
    write_file(tmp_path / "x.gguf", {"general.architecture": "mamba", **values}, {})
    began = time.process_time()
    found = read_file(tmp_path / "x.gguf").metadata
    assert time.process_time() - began < 15  # one second; minutes where a list is read as it grows
    assert {key: found[key] for key in values} == values


def test_without_the_package_it_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['gguf'] = None\n"
        "from statewise.checkpoints.convert import gguf\n"
        "from statewise.errors import CheckpointError\n"
        "for call in (gguf.read_gguf, gguf.gguf_tokenizer, lambda path: gguf.write_gguf(None, {}, path)):\n"
        "    try: call(sys.argv[1])\n"
        "    except CheckpointError as error: print(error)\n"
    )
    done = ran(["-c", program, tmp_path / "x.gguf"])
    expected = 'GGUF files need gguf, which is not installed; pip install "statewise[gguf]"'
    assert done.stdout.splitlines() == [expected] * 3, done.stderr
