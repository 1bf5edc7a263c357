"""Archives that a user's bucket or a host's results hold: tar, plain or packed, with anything in them.

What must hold: nothing but AgentError that blames the user comes out; no member leaves its tree or is larger than the
limits; and reading ends.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from clary.agent.archives.members import ArchiveLimits, MemberKind, read_members
from clary.base.errors import AgentError, Fault
from fuzz.byte_reader import ByteReader
from fuzz.findings import require
from fuzz.targets import Run

_LIMITS = ArchiveLimits(max_members=20, max_bytes=1 << 20, max_ratio=50.0, ratio_floor_bytes=1 << 16)
_NAMES = ("a", "a/b", "../a", "/a", "a/../../b", "a//b", ".", "", "a\0b", "\udcff", "x" * 300, "a/" * 60, "é", "a\\b")
_KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"S")
_PAX = ("path", "linkpath", "size", "mtime", "GNU.sparse.map", "uid")
_PAX_VALUES = ("../x", "9" * 40, "-1", "1.5", "nan", "", "\0", "a\nb=c", "1e400")
_FORMATS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)


@contextmanager
def open_target() -> Iterator[Run]:
    """Yield the function that takes an input."""
    yield _run


def _run(data: bytes) -> None:
    reader = ByteReader(data)
    packed = _archive(reader)
    read = 0
    try:
        for number, member in enumerate(read_members(io.BytesIO(packed), limits=_LIMITS, label="s3://bucket/a.tar.gz")):
            require(number < _LIMITS.max_members, "there are more members than the limit", number=number)
            require(bool(member.path), "a member is the tree itself", member=member)
            for part in member.path:
                fits = part not in ("", ".", "..") and "/" not in part and "\0" not in part
                require(fits, "a member's path leaves its folder", path=member.path)
            if member.content is not None and reader.byte() % 4:
                num_bytes = 0
                while piece := member.content.read(1 + reader.byte() * 16):
                    num_bytes += len(piece)
                require(num_bytes == member.size_bytes, "a content is cut", member=member, got=num_bytes)
                read += num_bytes
            require(member.kind is MemberKind.FILE or member.size_bytes == 0, "a link has a content", member=member)
    except AgentError as error:
        require(error.fault is Fault.USER, "an archive's fault is blamed on others", error=error.message)
    require(read <= _LIMITS.max_bytes, "more was read than the limit", num_bytes=read)


def _archive(reader: ByteReader) -> bytes:
    unpacked = reader.rest() if reader.chance(12) else _written(reader)
    for _ in range(max(0, reader.byte() % 8 - 4)):
        at = reader.below(len(unpacked) + 1)
        kind = reader.below(3)
        if kind == 0:
            unpacked = unpacked[:at] + bytes([reader.byte()]) + unpacked[at + 1 :]
        elif kind == 1:
            unpacked = unpacked[:at]
        else:
            unpacked = _with_checksum(unpacked, at - at % tarfile.BLOCKSIZE, reader)
    if not reader.chance():
        return unpacked
    packed = gzip.compress(unpacked, compresslevel=1, mtime=0)
    at = reader.below(len(packed) + 1)
    return packed if not reader.chance(4) else packed[:at] + reader.chunk() + packed[at + reader.byte() :]


def _written(reader: ByteReader) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=reader.choose(_FORMATS)) as archive:
        for _ in range(reader.below(5)):
            info = tarfile.TarInfo(reader.word(_NAMES).encode("utf-8", "replace").decode()[:400])
            info.type = reader.choose(_KINDS)
            info.linkname = reader.word(_NAMES).encode("utf-8", "replace").decode()[:400]
            info.mtime = reader.choose((0, 1, 2**33, 1.5))
            content = reader.chunk() * reader.choose((1, 1, 3, 400)) if info.type == tarfile.REGTYPE else b""
            info.size = len(content)
            if reader.chance(4):
                info.pax_headers = {reader.choose(_PAX): reader.choose(_PAX_VALUES)}
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _with_checksum(unpacked: bytes, at: int, reader: ByteReader) -> bytes:
    """Change a field of a header and make its checksum right again, so that the change is looked at."""
    header = bytearray(unpacked[at : at + tarfile.BLOCKSIZE])
    if len(header) < tarfile.BLOCKSIZE:
        return unpacked
    place, width = reader.choose(((124, 12), (136, 12), (156, 1), (0, 100), (157, 100), (257, 8), (345, 155)))
    new = reader.take(width)
    header[place : place + len(new)] = new
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % (sum(header) & 0o777777)
    return unpacked[:at] + bytes(header) + unpacked[at + tarfile.BLOCKSIZE :]
