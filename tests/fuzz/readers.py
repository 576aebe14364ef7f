"""Every reader of files, given good small files with changes: it reads them, or refuses them in one line."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from random import Random

from fuzz.draw import Draw, Finding
from fuzz.files import KINDS
from fuzz.mutate import json_changed, mutated
from statewise.errors import StatewiseError

LONGEST = 400
FOLDER = Path("case")
os.fsync = lambda descriptor: None  # the disk of the cache would be most of the time; this process ends with it
_made: dict[str, dict[str, bytes]] = {}


def check(draw: Draw) -> None:
    name = draw.choice(sorted(KINDS), "kind")
    kind, files = KINDS[name], dict(_files_of(name))
    member = draw.choice(kind.changed or sorted(files), "member")
    outer = kind.archive is not None and draw.chance(0.35, "the archive itself")
    if not outer:
        files[member] = _changed(draw.random, files[member])
    for cache in (FOLDER, Path(os.environ["STATEWISE_CACHE"])):
        shutil.rmtree(cache, ignore_errors=True)
    FOLDER.mkdir()
    if kind.archive is not None:
        data = _packed(kind.archive, files)
        files = {kind.archive: mutated(draw.random, data) if outer else data}
    for path, content in files.items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_bytes(content)
    try:
        kind.read(FOLDER)
    except StatewiseError as error:
        text = str(error)
        if len(text) > LONGEST or not text.isprintable():
            raise Finding(f"{name}: refused with {len(text)} characters: {text[:200]!r}") from error


def _files_of(name: str) -> dict[str, bytes]:
    """What the kind writes, by path; made once in a process."""
    if name not in _made:
        folder = Path("good", name)
        folder.mkdir(parents=True, exist_ok=True)
        KINDS[name].write(folder)
        _made[name] = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        shutil.rmtree(folder)
    return _made[name]


def _changed(random: Random, data: bytes) -> bytes:
    """Also within gzip, and the JSON before the tensors of safetensors, so that more than a checksum is met."""
    if data[:2] == b"\x1f\x8b" and random.random() < 0.7:
        return gzip.compress(mutated(random, gzip.decompress(data)), 1)
    if data[8:10] in (b'{"', b"{ ") and random.random() < 0.7:
        n = int.from_bytes(data[:8], "little")
        header = json_changed(random, data[8 : 8 + n])
        return len(header).to_bytes(8, "little") + header + data[8 + n :]
    return mutated(random, data)


def _packed(archive: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if archive.endswith(".tar.gz"):
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    else:
        stored = archive.endswith(".pt")
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as opened:
            for name, content in files.items():
                opened.writestr(name, content)
    return buffer.getvalue()
