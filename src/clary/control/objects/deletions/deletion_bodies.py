"""Bodies of DeleteObjects: read strictly, checked, and written anew for the store.

Where: `outgoing_bodies` passes every such body through here. The store's own parser takes other texts for the same
document: it skips an element inside `Key` and joins the text around it, and ignores the declared encoding. So a body is
never forwarded: the store gets a document of the keys that were checked, and the digests that the client sent are
checked here. Pure. Source: Amazon S3 API reference, DeleteObjects.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.parsers import expat
from xml.sax.saxutils import escape

from clary.base.errors import WireError
from clary.contract.object_store.stored_names import stored_name
from clary.control.objects.s3_request import check_key, check_version

MAX_BYTES = 2 * 1024 * 1024  # S3 API reference: 1000 keys
MAX_KEYS = 1000
MAX_DIGESTS = 2  # content-md5 and one checksum, as in S3

_LENGTH = "content-length"
_CHECKSUM = "x-amz-checksum-"
_ALGORITHM = "x-amz-sdk-checksum-algorithm"
_CRC32C, _CRC64NVME = 0x82F63B78, 0x9A6C9329AC4BC9B5  # reflected polynomials
_QUIET = ("Delete", "Quiet")
_ENTRY = ("Delete", "Object")
_FIELDS = frozenset({"Key", "VersionId", "ETag", "LastModifiedTime", "Size"})
_IGNORED_BY_STORE = ("LastModifiedTime", "Size")  # SeaweedFS would delete whatever these conditions say
_LINE_ENDS = {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """The objects of one DeleteObjects request."""

    entries: tuple[dict[str, str], ...]  # name of a member -> its text; each has a Key
    is_quiet: bool  # whether the answer names only the keys that were not deleted

    @property
    def keys(self) -> list[str]:
        """The keys, in the client's order."""
        return [entry["Key"] for entry in self.entries]


def read_deletion(body: bytes) -> Deletion:
    """Return the objects of a body; one bad key or version refuses the request, and nothing is deleted.

    Raises: WireError MalformedXML, InvalidArgument or KeyTooLongError.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.CharacterDataHandler = reader.text
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = _refuse_doctype
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise _malformed(f"was not well-formed or did not validate: {error}") from error
    if not reader.entries:
        raise _malformed("names no object")
    for entry in reader.entries:
        check_key(entry["Key"], is_read=False)
        check_version(entry.get("VersionId", ""))
    return Deletion(entries=tuple(reader.entries), is_quiet=reader.quiet.strip().lower() == "true")


def written(
    deletion: Deletion, headers: Sequence[tuple[str, str]], *, aliases_keys: bool
) -> tuple[list[tuple[str, str]], bytes]:
    """Return headers and body of a deletion for the store.

    Args:
        deletion: the objects.
        headers: of the request, with lower-case names; those that describe its body are replaced.
        aliases_keys: whether the store is the embedded one, which has other names for some keys.
    Raises: WireError(NotImplemented) for a condition that the embedded store ignores.
    """
    for entry in deletion.entries if aliases_keys else ():
        for name in _IGNORED_BY_STORE:
            if name in entry:
                raise WireError(
                    "NotImplemented",
                    f"{name} in DeleteObjects is not implemented by the embedded object store; nothing was deleted.",
                    http_status=501,
                )
    lines = [_entry(entry, aliases_keys=aliases_keys) for entry in deletion.entries]
    quiet = "<Quiet>true</Quiet>" if deletion.is_quiet else ""
    body = f"<Delete>{''.join(lines)}{quiet}</Delete>".encode()
    digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    kept = [(name, value) for name, value in headers if not _is_of_body(name)]
    return [*kept, ("content-md5", digest), (_LENGTH, str(len(body)))], body


def check_digests(headers: Sequence[tuple[str, str]], body: bytes) -> None:
    """Check the digests that a client sent with a body.

    Args:
        headers: lower-case names.
        body: as it was received.
    Raises: WireError BadDigest; InvalidRequest for a digest that is given twice with different values, or in more ways
        than S3 allows.
    """
    given: dict[str, str] = {}
    for name, value in headers:
        if name in _DIGESTS and given.setdefault(name, value.strip()) != value.strip():
            raise WireError("InvalidRequest", f"The header {name} is given twice, with different values.")
    if len(given) > MAX_DIGESTS:
        raise WireError(
            "InvalidRequest", "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
        )
    for name, value in given.items():  # one computation for each: some take a quarter of a second for 2 MiB
        if base64.b64encode(_DIGESTS[name](body)).decode() != value:
            raise WireError("BadDigest", f"The {name} you specified did not match what we received.")


class _Reader:
    """Takes the events of the parser; an element that S3 does not define, or in another place, is refused."""

    def __init__(self) -> None:
        self.entries: list[dict[str, str]] = []
        self.quiet = ""
        self._path: list[str] = []
        self._texts: list[str] = []
        self._entry: dict[str, str] = {}

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._path.append(name.rpartition(":")[2])
        path = tuple(self._path)
        is_field = path[:2] == _ENTRY and len(path) == 3 and path[2] in _FIELDS and path[2] not in self._entry
        if path == _ENTRY:
            self._entry = {}
        elif not (is_field or path in (_ENTRY[:1], _QUIET)):
            raise _malformed(f"has an element {'/'.join(path)[:100]!r} in an unexpected place")
        self._texts = []

    def text(self, data: str) -> None:
        self._texts.append(data)

    def end(self, _name: str) -> None:
        path = tuple(self._path)
        text = "".join(self._texts)
        if path == _QUIET:
            self.quiet = text
        elif path == _ENTRY:
            if not self._entry.get("Key"):
                raise _malformed("has an object without a key")
            self.entries.append(self._entry)
            if len(self.entries) > MAX_KEYS:
                raise _malformed(f"names more than {MAX_KEYS} objects")
        elif len(path) == 3:
            self._entry[path[2]] = text
        self._path.pop()
        self._texts = []


def _refuse_doctype(*_: object) -> None:
    raise _malformed("must not have a document type")


def _malformed(reason: str) -> WireError:
    return WireError("MalformedXML", f"The XML you provided {reason}.")


def _is_of_body(name: str) -> bool:
    return name in _DIGESTS or name in (_LENGTH, _ALGORITHM) or name.startswith(_CHECKSUM)


def _entry(entry: dict[str, str], *, aliases_keys: bool) -> str:
    texts = {**entry, "Key": stored_name(entry["Key"])} if aliases_keys else entry
    return f"<Object>{''.join(f'<{name}>{escape(text, _LINE_ENDS)}</{name}>' for name, text in texts.items())}</Object>"


def _crc(body: bytes, polynomial: int, num_bytes: int) -> bytes:
    table = _crc_table(polynomial)
    ones = (1 << 8 * num_bytes) - 1
    value = ones
    for byte in body:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return (value ^ ones).to_bytes(num_bytes, "big")


@functools.cache
def _crc_table(polynomial: int) -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        table.append(value)
    return tuple(table)


_DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "content-md5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    f"{_CHECKSUM}crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    f"{_CHECKSUM}crc32c": lambda body: _crc(body, _CRC32C, 4),
    f"{_CHECKSUM}crc64nvme": lambda body: _crc(body, _CRC64NVME, 8),
    f"{_CHECKSUM}sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    f"{_CHECKSUM}sha256": lambda body: hashlib.sha256(body).digest(),
}
