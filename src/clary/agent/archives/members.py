"""Reader of a tar stream as checked members: names, kinds and sizes are safe to use, damage is an error.

Where: `extraction` unpacks user code through this, `agent.artifacts` merges the results of several hosts through it.

The standard library's `tarfile` is not used for reading: it mistakes a damaged header in mid-archive for the end of the
archive, reads headers of any size into memory and accepts negative sizes. This reader knows ustar, GNU long names and
pax headers, which is what tar, Python, Go and Java write, and refuses every other format. The error names the format
if it is a common one.
Source: POSIX.1-2017 pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from clary.base.errors import AgentError, Fault
from clary.base.string_enum import StrEnum

BLOCK_BYTES = 512
_GIB = 1 << 30
_MAX_EXTENSION_BYTES = 1 << 20  # of one long name or pax header: real ones have some hundred bytes
_MAX_PART_BYTES = 255  # NAME_MAX of Linux file systems
_MAX_PATH_BYTES = 4096  # PATH_MAX of Linux
_READ_KEYS = frozenset(("path", "linkpath", "size", "mtime"))  # of pax headers; no others are kept
_SPARSE = "GNU.sparse."  # prefix of the keys of sparse files
_SKIP_BYTES = 1 << 20  # per read while content is skipped
_MODE_BITS = 0o777  # setuid, setgid and sticky bits of an archive are never taken over
_MAX_MTIME_S = (1 << 33) - 1  # year 2242: the largest time in tar's 12 byte field
_SUM_START, _SUM_END = 148, 156
_HIGH_BIT = 0x80  # marks a base-256 number
_NEGATIVE = 0xFF  # first byte of a negative base-256 number
_OTHER_FORMATS: Mapping[bytes, str] = {
    b"PK\x03\x04": "a zip file",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ": "xz data",
    b"\x28\xb5\x2f\xfd": "zstandard data",
    b"7z\xbc\xaf": "a 7z file",
}
_KIND_NAMES: Mapping[bytes, str] = {
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file (write the archive without --sparse)",
    b"M": "a part of a multi-volume archive",
}


class Readable(Protocol):
    """A source of bytes in order."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes; the source may return fewer, and returns b"" at the end."""


class MemberKind(StrEnum):
    """Kind of a member."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"


@dataclass(frozen=True, kw_only=True)
class ArchiveLimits:
    """Bounds above which an archive counts as a bomb."""

    max_members: int = 500_000
    max_bytes: int = 64 * _GIB  # of the unpacked stream, headers included
    max_ratio: float = 400.0  # unpacked to packed bytes; gzip reaches 1030 on zeros
    ratio_floor_bytes: int = _GIB // 4  # below this size no ratio is suspicious


@dataclass(frozen=True, kw_only=True)
class Member:
    """One entry of an archive that is read, or of a folder that is about to be archived."""

    path: tuple[str, ...]  # parts below the root of the tree: never empty, no "..", no "/" inside
    kind: MemberKind
    size_bytes: int = 0  # of the content; 0 unless kind is FILE
    mode: int = 0o644  # permission bits only
    mtime_s: int = 0  # seconds since 1970
    target: str = ""  # of a symbolic link: its text; of a hard link: path of the member it repeats
    content: Readable | None = field(default=None, repr=False)  # FILE: `size_bytes` bytes, until the next member

    @property
    def name(self) -> str:
        """The path as one string, for messages."""
        return "/".join(self.path)


def read_members(stream: Readable, *, limits: ArchiveLimits, label: str, accepts_gzip: bool = True) -> Iterator[Member]:
    """Yield the members of a tar archive, plain or gzip, in order.

    Every name has been checked: relative, no `..`, no NUL, parts that a file system can hold. Of targets of links only
    the length is checked. The iterator ends only after the archive's own end mark and, with gzip, a correct checksum.

    Args:
        stream: the archive from its first byte; read to its end.
        limits: bounds above which the archive is refused.
        label: name of the archive in messages, for example its URI.
        accepts_gzip: false if only a plain archive is accepted.
    Raises: AgentError (fault USER) naming archive, member and reason, for damage also the offset; errors of `stream`
        propagate.
    """
    archive = _Archive(stream, limits, label=label, accepts_gzip=accepts_gzip)
    while (member := archive.next_member()) is not None:
        yield member


def checked_path(name: str, *, label: str) -> tuple[str, ...]:
    """Return the parts of a member's name without empty and `.` parts; empty for the root of the tree.

    Raises: AgentError (fault USER) for a name that could lead out of the folder or that no file system can hold.
    """
    if name.startswith("/"):
        raise _refused(label, name, "its path is absolute")
    if "\0" in name:
        raise _refused(label, name, "its name holds a NUL byte")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _refused(label, name, 'its path goes up with ".."')
    lengths = [len(part.encode("utf-8", "surrogateescape")) for part in parts]
    if lengths and max(lengths) > _MAX_PART_BYTES:
        raise _refused(label, name, f"a part of its path has {max(lengths)} bytes, at most {_MAX_PART_BYTES} fit")
    if sum(lengths) + len(lengths) > _MAX_PATH_BYTES:
        raise _refused(label, name, f"its path has more than {_MAX_PATH_BYTES} bytes")
    return parts


def refused(label: str, name: str, reason: str) -> AgentError:
    """Return the error for a member that must not be unpacked.

    Args:
        label: name of the archive in messages.
        name: of the member; a long name is truncated.
        reason: rest of the sentence, without a full stop.
    """
    return _refused(label, name, reason)


def _refused(label: str, name: str, reason: str) -> AgentError:
    shown = name if len(name) <= _MAX_PART_BYTES else name[:_MAX_PART_BYTES] + "..."
    return AgentError(
        f"Archive {label} is refused: member {shown!a}: {reason}. Write the archive again without it.",
        fault=Fault.USER,
        details={"archive": label, "member": ascii(shown)},
    )


class _Archive:
    """State of one pass over an archive: the position in the stream and the counters."""

    def __init__(self, stream: Readable, limits: ArchiveLimits, *, label: str, accepts_gzip: bool) -> None:
        self._limits = limits
        self._label = label
        self._packed = _CountingReader(stream)
        self._unpacked: Readable = self._packed
        self._offset = 0  # in the unpacked stream
        self._num_members = 0
        self._left_bytes = 0  # of the current member's content, not read yet
        self._padding_bytes = 0  # of the padding after the current member's content
        self._last_name = ""
        self._defaults: dict[str, str] = {}  # of global pax headers
        self._open(accepts_gzip=accepts_gzip)

    def next_member(self) -> Member | None:
        """Return the next member, None after the last one has been confirmed."""
        self._finish_content()
        extensions: dict[str, str] = dict(self._defaults)
        while True:
            header = self._read_header()
            if header is None:
                if extensions != self._defaults:
                    raise self._damaged("an extension header with no member after it")
                self._drain()
                return None
            kind = header[156:157]
            if kind in (b"x", b"g", b"L", b"K", b"X"):
                self._read_extension(kind, header, extensions)
                continue
            member = self._member(kind, header, extensions)
            if member is None:  # the root of the tree itself
                extensions = dict(self._defaults)
                self._finish_content()
                continue
            return member

    def read_content(self, size: int) -> bytes:
        """Return up to `size` bytes of the current member, or b"" at its end."""
        if self._left_bytes == 0 or size == 0:
            return b""
        wanted = self._left_bytes if size < 0 else min(size, self._left_bytes)
        data = self._read_some(wanted)
        if not data:
            raise self._damaged(f"ends {self._left_bytes} bytes before the end of this member")
        self._left_bytes -= len(data)
        return data

    def _open(self, *, accepts_gzip: bool) -> None:
        magic = self._packed.peek(6)
        if not magic:
            raise self._damaged("it is empty")
        if magic.startswith(b"\x1f\x8b"):
            if not accepts_gzip:
                raise self._damaged("it is gzip data, expected a plain tar archive")
            self._unpacked = gzip.GzipFile(fileobj=self._packed, mode="rb")  # type: ignore[call-overload]
            return
        for start, name in _OTHER_FORMATS.items():
            if magic.startswith(start):
                raise self._damaged(f"it is {name}, expected a tar archive, plain or gzip")

    def _finish_content(self) -> None:
        while self._left_bytes:
            self.read_content(_SKIP_BYTES)
        if self._padding_bytes:
            self._read_exactly(self._padding_bytes)
            self._padding_bytes = 0

    def _read_header(self) -> bytes | None:
        """Return the next header, its checksum verified; None for the end mark."""
        block = self._read_exactly(BLOCK_BYTES)
        if not block.strip(b"\0"):
            return None
        blanked = block[:_SUM_START] + b" " * (_SUM_END - _SUM_START) + block[_SUM_END:]
        signed = sum(byte if byte < _HIGH_BIT else byte - 256 for byte in blanked)  # old tar versions sum signed bytes
        written = block[_SUM_START:_SUM_END].split(b"\0", 1)[0].strip()
        if not written.isdigit() or written.strip(b"01234567") or int(written, 8) not in (sum(blanked), signed):
            what = "it is no tar archive" if self._offset == BLOCK_BYTES else "a header has a wrong checksum"
            raise self._damaged(what)
        return block

    def _read_extension(self, kind: bytes, header: bytes, extensions: dict[str, str]) -> None:
        size = self._number(header[124:136], "size")
        if size > _MAX_EXTENSION_BYTES:
            raise self._damaged(f"an extension header has {size} bytes, at most {_MAX_EXTENSION_BYTES} are read")
        self._begin_content(size)
        data = b""
        while self._left_bytes:
            data += self.read_content(self._left_bytes)
        self._finish_content()
        if kind in (b"L", b"K"):
            extensions["path" if kind == b"L" else "linkpath"] = _text(data.rstrip(b"\0"))
            return
        records = self._pax_records(data)
        extensions.update(records)
        if kind == b"g":
            self._defaults.update(records)

    def _pax_records(self, data: bytes) -> dict[str, str]:
        """Return the records `length key=value` of a pax header that this reader uses.

        Only those are kept, because an archive may have any number of pax headers before a member.
        """
        records = {}
        position = 0
        while position < len(data):
            length_text, blank, _ = data[position : position + 20].partition(b" ")
            length = int(length_text) if blank and length_text.isdigit() else 0
            record = data[position : position + length]
            if length <= len(length_text) + 1 or len(record) != length or not record.endswith(b"\n"):
                raise self._damaged("a pax header cannot be read")
            key, _, value = record[len(length_text) + 1 : -1].partition(b"=")
            name = _text(key)
            if name in _READ_KEYS:
                records[name] = _text(value)
            elif name.startswith(_SPARSE):
                records[_SPARSE] = ""
            position += length
        return records

    def _member(self, kind: bytes, header: bytes, extensions: Mapping[str, str]) -> Member | None:
        name = extensions.get("path") or _header_name(header)
        self._last_name = name
        self._count_member()
        size = self._number(header[124:136], "size")
        if "size" in extensions:
            size = self._pax_number(extensions["size"], "size")
        if _SPARSE in extensions:
            kind = b"S"
        if kind in (b"0", b"\0", b"7") and name.endswith("/"):  # how tar wrote folders before 1988
            kind = b"5"
        path = checked_path(name, label=self._label)
        common = {
            "path": path,
            "mode": self._number(header[100:108], "mode") & _MODE_BITS,
            "mtime_s": self._mtime(header, extensions),
        }
        self._begin_content(size if kind in (b"0", b"\0", b"7") else 0)
        if kind == b"5":
            return Member(kind=MemberKind.FOLDER, **common) if path else None  # type: ignore[arg-type]
        if not path:
            raise _refused(self._label, name, "its path is the root of the archive, but it is no folder")
        if kind in (b"0", b"\0", b"7"):
            content = _Content(self, self._num_members)
            return Member(kind=MemberKind.FILE, size_bytes=size, content=content, **common)  # type: ignore[arg-type]
        if kind in (b"1", b"2"):
            target = extensions.get("linkpath") or _text(header[157:257].split(b"\0", 1)[0])
            if len(target) > _MAX_PATH_BYTES:
                raise _refused(self._label, name, f"the target of its link has more than {_MAX_PATH_BYTES} characters")
            link = MemberKind.HARDLINK if kind == b"1" else MemberKind.SYMLINK
            return Member(kind=link, target=target, **common)  # type: ignore[arg-type]
        raise _refused(self._label, name, f"it is {_KIND_NAMES.get(kind, f'of the unknown kind {kind!r}')}")

    def _count_member(self) -> None:
        self._num_members += 1
        if self._num_members > self._limits.max_members:
            raise self._too_large(f"more than {self._limits.max_members} members")

    def is_current(self, number: int) -> bool:
        """Whether the stream is still positioned at the member with this number."""
        return number == self._num_members

    def _mtime(self, header: bytes, extensions: Mapping[str, str]) -> int:
        """Return the modification time; 0 if it cannot be read."""
        try:
            seconds = float(extensions["mtime"]) if "mtime" in extensions else self._number(header[136:148], "mtime")
            return max(0, min(int(seconds), _MAX_MTIME_S))
        except (ValueError, OverflowError):
            return 0

    def _begin_content(self, size: int) -> None:
        if self._offset + size > self._limits.max_bytes:
            raise self._too_large(f"more than {self._limits.max_bytes} bytes unpacked")
        self._left_bytes = size
        self._padding_bytes = -size % BLOCK_BYTES

    def _pax_number(self, text: str, what: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise self._damaged(f"{what} {text[:20]!r} is no number")
        return int(text)

    def _number(self, raw: bytes, what: str) -> int:
        """Return the value of a number field: octal digits, or base 256 if the first bit is set."""
        if raw[0] & _HIGH_BIT:
            if raw[0] == _NEGATIVE:
                raise self._damaged(f"{what} is negative")
            return int.from_bytes(bytes([raw[0] & ~_HIGH_BIT]) + raw[1:], "big")
        digits = raw.split(b"\0", 1)[0].strip()
        if not digits:
            return 0
        if digits.strip(b"01234567"):
            raise self._damaged(f"{what} {digits!r} is no octal number")
        return int(digits, 8)

    def _drain(self) -> None:
        """Read past the end mark to the end of the stream, where gzip keeps its checksum."""
        while self._read_some(_SKIP_BYTES):
            pass

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._read_some(size - len(data))
            if not more:
                raise self._damaged("it ends without the mark that ends an archive: it is cut off")
            data += more
        return data

    def _read_some(self, size: int) -> bytes:
        try:
            data = self._unpacked.read(min(size, _SKIP_BYTES))
        except EOFError as error:
            raise self._damaged("the gzip data is cut off") from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise self._damaged(f"the gzip data is damaged ({error})") from error
        self._offset += len(data)
        limits = self._limits
        if self._offset > limits.max_bytes:
            raise self._too_large(f"more than {limits.max_bytes} bytes unpacked")
        ratio = self._offset / max(1, self._packed.num_bytes)
        if self._offset > limits.ratio_floor_bytes and ratio > limits.max_ratio:
            raise self._too_large(f"{ratio:.0f} bytes unpacked for each packed one, at most {limits.max_ratio:.0f}")
        return data

    def _damaged(self, reason: str) -> AgentError:
        where = f"at unpacked byte {self._offset}"
        if self._last_name:
            where += f", in or after member {self._last_name[:_MAX_PART_BYTES]!a}"
        return AgentError(
            f"Archive {self._label} cannot be unpacked: {reason} ({where}). Upload it again, whole.",
            fault=Fault.USER,
            details={"archive": self._label, "offset": self._offset},
        )

    def _too_large(self, reason: str) -> AgentError:
        return AgentError(
            f"Archive {self._label} is refused as too large: {reason} (read up to member "
            f"{self._last_name[:_MAX_PART_BYTES]!a}).",
            fault=Fault.USER,
            details={"archive": self._label, "offset": self._offset},
        )


class _Content:
    """Content of one member; readable only until the archive moves on."""

    def __init__(self, archive: _Archive, number: int) -> None:
        self._archive = archive
        self._number = number

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, or b"" at the end of the member."""
        assert self._archive.is_current(self._number), "content is read while its member is the current one"
        return self._archive.read_content(size)


class _CountingReader:
    """A stream that counts the bytes read and can look ahead."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._ahead = b""
        self.num_bytes = 0

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end, without consuming them."""
        while len(self._ahead) < size:
            more = self._stream.read(size - len(self._ahead))
            if not more:
                break
            self._ahead += more
        return self._ahead

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes."""
        if self._ahead:
            end = len(self._ahead) if size < 0 else size
            data, self._ahead = self._ahead[:end], self._ahead[end:]
        else:
            data = self._stream.read(size)
        self.num_bytes += len(data)
        return data


def _header_name(header: bytes) -> str:
    name = header[0:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and prefix:  # GNU's own format has other fields there
        name = prefix + b"/" + name
    return _text(name)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
