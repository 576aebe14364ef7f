"""Every reader of files, given good small files with changes: it reads them, or refuses them in one line."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path
from random import Random

from fuzz.draw import Draw, Finding
from fuzz.files import KINDS
from fuzz.mutate import json_changed, mutated, pickle_changed
from statewise.errors import StatewiseError

LONGEST = 400
FOLDER, CACHE = Path("fuzz-case"), Path("fuzz-cache")  # in the working folder; one case leaves them there
os.fsync = lambda descriptor: None  # the disk of the cache would be most of the time; this process ends with it
_made: dict[str, dict[str, bytes]] = {}


def check(draw: Draw) -> None:
    name = draw.choice(sorted(KINDS), "kind")
    kind, files = KINDS[name], dict(_files_of(name))
    member = draw.choice(kind.changed or sorted(files), "member")
    outer = kind.archive is not None and draw.chance(0.35, "the archive itself")
    if not outer:
        files[member] = _changed(draw.random, files[member])
    os.environ["STATEWISE_CACHE"] = str(CACHE.absolute())
    for folder in (FOLDER, CACHE):
        shutil.rmtree(folder, ignore_errors=True)
    FOLDER.mkdir()
    if kind.archive is not None:
        data = _packed(kind.archive, files, draw.random if outer else None)
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
        folder = Path("fuzz-good", name)
        folder.mkdir(parents=True, exist_ok=True)
        KINDS[name].write(folder)
        _made[name] = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        shutil.rmtree(folder)
    return _made[name]


def _changed(random: Random, data: bytes) -> bytes:
    """Also within gzip, the JSON before the tensors of safetensors, and the operations of a pickle, so that more than a
    checksum is met."""
    if data[:2] == b"\x1f\x8b" and random.random() < 0.7:
        return gzip.compress(mutated(random, gzip.decompress(data)), 1)
    if data[8:10] in (b'{"', b"{ ") and random.random() < 0.7:
        n = int.from_bytes(data[:8], "little")
        header = json_changed(random, data[8 : 8 + n])
        return len(header).to_bytes(8, "little") + header + data[8 + n :]
    if data[:1] == b"\x80" and random.random() < 0.5:
        return pickle_changed(random, data)
    return mutated(random, data)


def _packed(archive: str, files: dict[str, bytes], random: Random | None = None) -> bytes:
    """random: one member may say what is not so; a tar's checksum is right, which noise alone would not have."""
    buffer = io.BytesIO()
    if archive.endswith(".tar.gz"):
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                if random is not None and random.random() < 1 / (2 * len(files)):
                    _lie(random, member)
                tar.fileobj.write(member.tobuf(tarfile.PAX_FORMAT))  # type: ignore[union-attr]
                tar.fileobj.write(content + bytes(-len(content) % 512))  # type: ignore[union-attr]
            tar.fileobj.write(bytes(1024))  # type: ignore[union-attr]
    else:
        stored = archive.endswith(".pt")
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as opened:
            for name, content in files.items():
                opened.writestr(name, content)
        if random is not None and random.random() < 0.7:
            return _lying_zip(random, buffer.getvalue())
    return buffer.getvalue()


def _lying_zip(random: Random, data: bytes) -> bytes:
    """One member says another size or checksum, in the list at the end and, mostly, before its bytes."""
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        members = opened.infolist()
        member = random.choice(members)
        content = opened.read(member)
        begins = opened.start_dir
    changed = bytearray(data)
    for other in members:  # the list names them in this order
        if other is member:
            break
        begins += 46 + int.from_bytes(data[begins + 28 : begins + 30], "little")
        begins += len(other.extra) + len(other.comment)
    n = random.choice((0, 1, len(content) // 2, len(content) + 1, 1 << 31, (1 << 32) - 2))
    claims = [(14, 16, zlib.crc32(content[:n])), (22, 24, n)]
    if random.random() < 0.3:  # stored bytes too
        claims.append((18, 20, random.choice((0, 1, 1 << 31))))
    both = random.random() < 0.7
    for local, central, value in claims:
        if both:
            changed[member.header_offset + local : member.header_offset + local + 4] = value.to_bytes(4, "little")
        changed[begins + central : begins + central + 4] = value.to_bytes(4, "little")
    return bytes(changed)


def _lie(random: Random, member: tarfile.TarInfo) -> None:
    how = random.randrange(4)
    if how == 0:
        member.size = random.choice((0, 1, member.size + 1, 1 << 31, 1 << 40, 1 << 62))
    elif how == 1:
        member.type = bytes([random.choice(b"0123457LKSDVMNxg\0A")])
    elif how == 2:
        member.name = random.choice(
            (member.name * 50, "../" + member.name, f"{member.name}\n", "x/" * 300 + member.name)
        )
    else:
        member.linkname = member.name
        member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 15}
