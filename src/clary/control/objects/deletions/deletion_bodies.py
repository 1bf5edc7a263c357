"""Bodies of DeleteObjects that name keys by their names in the store.

Where: `outgoing_bodies` writes such a body anew if a key in it has another name there (`contract.object_store.
stored_names`). The digests that the client sent are of its own body, so they are checked here, and left out. Pure.
Source: Amazon S3 API reference, DeleteObjects.
"""

from __future__ import annotations

import base64
import hashlib
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from clary.base.errors import WireError
from clary.contract.object_store.stored_names import stored_name

_LENGTH = "content-length"
_CHECKSUM = "x-amz-checksum-"
_ALGORITHM = "x-amz-sdk-checksum-algorithm"
# Header -> digest of a body. CRC32C and CRC64NVME are not in the standard library, and stay unchecked.
_DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "content-md5": lambda body: hashlib.md5(body, usedforsecurity=False).digest(),
    f"{_CHECKSUM}crc32": lambda body: zlib.crc32(body).to_bytes(4, "big"),
    f"{_CHECKSUM}sha1": lambda body: hashlib.sha1(body, usedforsecurity=False).digest(),
    f"{_CHECKSUM}sha256": lambda body: hashlib.sha256(body).digest(),
}


def named_in_store(headers: Sequence[tuple[str, str]], content: bytes) -> tuple[list[tuple[str, str]], bytes]:
    """Return headers and body of the same deletion with stored names.

    Args:
        headers: lower-case names; the digests among them are checked against `content`.
        content: well-formed XML without a document type.
    Raises: WireError(BadDigest).
    """
    for name, value in headers:
        if name in _DIGESTS and base64.b64encode(_DIGESTS[name](content)).decode() != value.strip():
            raise WireError("BadDigest", f"The {name} you specified did not match what we received.")
    kept = [(name, value) for name, value in headers if not _is_of_body(name)]
    body = _document(ET.fromstring(content))  # noqa: S314 - checked before; expat limits expansions itself
    digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    return [*kept, ("content-md5", digest), (_LENGTH, str(len(body)))], body


def _is_of_body(name: str) -> bool:
    return name in _DIGESTS or name in (_LENGTH, _ALGORITHM) or name.startswith(_CHECKSUM)


def _document(root: ET.Element) -> bytes:
    return f"<Delete>{''.join(_element(child) for child in root)}</Delete>".encode()


def _element(element: ET.Element) -> str:
    name = element.tag.rpartition("}")[2]
    text = element.text or ""
    content = "".join(_element(child) for child in element) or escape(stored_name(text) if name == "Key" else text)
    return f"<{name}>{content}</{name}>"
