"""What is not an intact checkpoint is refused with a reason."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoint_examples import (
    refusal,
    rewrite_config,
)
from damaged import FILES, read_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statewise as sw
from statewise.configuration import parse_json
from statewise.errors import CheckpointError, ConfigError


def reason(folder: Path) -> str | None:
    """Why it is refused; None if it is not."""
    try:
        read_all(folder)
    except CheckpointError as error:
        return one_line(str(error))
    return None


def one_line(message: str) -> str:
    assert "\n" not in message
    return message


def expect_refusal(path: Path, folder: Path, content: bytes, what: str) -> str:
    """``content`` in the place of a file has to be refused, by all that read it and naming it."""
    path.write_bytes(content)
    said = reason(folder)
    assert said is not None, f"{what} of {path.name} was not noticed"
    assert str(path) in said, what
    return said


def test_intact(intact: Path) -> None:
    read_all(intact)


@pytest.mark.parametrize("name", FILES)
def test_truncated_anywhere(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    at = {0, 1, 7, 8, 9, len(content) // 2, *range(len(content) - 5, len(content))}
    at |= {random.Random(name).randrange(len(content)) for _ in range(40 - len(at))}
    for n in at:
        expect_refusal(path, folder, content[:n], f"cut off at {n}")
    expect_refusal(path, folder, content + b"\n", "a further byte")
    expect_refusal(path, folder, content + content, "a doubling")


@pytest.mark.parametrize("name", FILES)
def test_one_bit_flipped_anywhere(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    choose = random.Random(name)
    for _ in range(100):
        at, bit = choose.randrange(len(content)), choose.randrange(8)
        flipped = content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
        expect_refusal(path, folder, flipped, f"bit {bit} of byte {at}")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_and_one_that_is_none(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in refusal(read_all, folder)
    (folder / name).mkdir()
    assert name in refusal(read_all, folder)
    (folder / name).rmdir()
    os.mkfifo(folder / name)
    assert name in refusal(read_all, folder), "and it does not wait for somebody to write into a pipe"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe", b'{"format_version": 1}', b"[" * 99_999]
)
def test_malformed_json(folder: Path, content: bytes) -> None:
    expect_refusal(folder / "config.json", folder, content, "malformed JSON")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_in_a_field_of_the_config(folder: Path, intact: Path, data: st.DataObject) -> None:
    """One value somewhere replaced by any other, and the checksum made right: it is refused, or it loads."""
    shutil.copy(intact / "config.json", folder / "config.json")
    value = data.draw(JSON)

    def change(config: dict[str, Any]) -> None:
        node: Any = config
        while True:
            key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
            if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
                node[key] = value
                return
            node = node[key]

    rewrite_config(folder, change)
    reason(folder)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=80) | st.integers(0, 2**40).map(lambda n: n.to_bytes(8, "little") + b'{"a":1}'))
def test_anything_in_the_place_of_the_tensors(folder: Path, content: bytes) -> None:
    """Also where the checksums are right: nothing but a CheckpointError comes out."""
    (folder / "model.safetensors").write_bytes(content)
    rewrite_config(folder, lambda data: None)
    refusal(sw.load, folder)


def test_what_the_strict_reader_refuses_any_reader_would_misread() -> None:
    """The canonical form settles this for config.json; for trainer/state.json it is the reader that does."""
    with pytest.raises(ConfigError, match="twice"):
        parse_json('{"step": 1, "step": 2}', "state.json")
